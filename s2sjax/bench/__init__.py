"""Benchmarks against other libraries in one run, as ratios, which vary less than times on a shared machine."""
