"""Pure functions on arrays. They import JAX and no other package of s2sjax.

attention/    scores, multi-head attention, windows, positions, the key-value cache, kernels
recurrence/   cells, the scan over a padded sequence, regularization
mixers/       recurrences that train in parallel: linear attention, the delta rule, Mamba-2, xLSTM
nn/           convolution, normalization, dropout, pooling
losses/       cross-entropy, sampled softmax, scheduled sampling, masked words
search/       beam search, greedy search, sampling, constraints, continuous batching
chains/       CTC, conditional random fields, hidden Markov models, Kalman filters, n-grams
signals/      log-mel frames, changes of frames and pictures
backend/      what depends on the device: products, precision, sharding, remat
"""

__all__ = [
    "attention", "backend", "chains", "losses", "mixers", "nn", "recurrence", "search", "signals", "special_tokens",
    "tables",
]  # fmt: skip
