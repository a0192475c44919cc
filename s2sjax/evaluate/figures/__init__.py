"""Figures that several tasks share. They import Matplotlib, which is slow."""
