"""Recurrent cells, and the scan that runs them over padded sequences.

cells               the table CELLS: plain, LSTM, GRU, their variants, minGRU, minLSTM
masked_scan         runs a cell over a padded sequence
scan_gradient       the scan, with a backward pass that multiplies late
regularization      dropped weights and words, penalties of activations
gradient_analysis   how gradients shrink and grow through time
"""

from s2sjax.core.recurrence.masked_scan import keep, plain_step, reverse_sequences, run
from s2sjax.core.recurrence.scan_gradient import Step, plain_scan, scan

__all__ = [
    "Step", "keep", "plain_scan", "plain_step", "reverse_sequences", "run", "scan",
]  # fmt: skip
