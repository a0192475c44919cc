"""Benchmarks: ours beside the peer's, in one run, as ratios. Machines are shared and noisy; a ratio survives that."""
