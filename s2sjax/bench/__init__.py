"""Benchmarks against other libraries. Ratios measured in one run vary less than times on a shared machine."""
