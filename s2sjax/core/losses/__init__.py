"""Losses, as (sum, weight) pairs, and what decides their inputs.

token_losses         cross-entropy with label smoothing, and other losses of positions
sampled_softmax      cross-entropy against a sample of the vocabulary
scheduled_sampling   the model's own outputs in the place of correct tokens
word_masking         masked words for pre-training
"""

from s2sjax.core.losses.token_losses import (
    Total,
    cross_entropy,
    doubly_stochastic,
    log_likelihood,
    symmetric_divergence,
)

__all__ = [
    "Total", "cross_entropy", "doubly_stochastic", "log_likelihood", "symmetric_divergence",
]  # fmt: skip
