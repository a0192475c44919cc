"""N-gram language models of small alphabets, as tables with a row for every context.

Each model is interpolated with that of the next shorter context (Witten and Bell 1991), down to the uniform one:

    p(v | h) = (c(h v) + n(h) p(v | h without its oldest symbol)) / (c(h) + n(h))

c counts occurrences in the training sequences; n(h) is the number of different symbols seen after h. Symbol 0, CTC's
blank, stands for the end of a sequence, and in a context for the positions before its start.

Letters: V symbols with the blank, C = V^(order - 1) contexts. A context is a number of base V, its newest symbol last.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from s2sjax.core.chains.ctc_prefix_search import LanguageModel


def size(symbols: int, order: int) -> int:
    """Number of entries in each of the two tables."""
    return symbols**order


def estimate(sequences: Sequence[Sequence[int]], symbols: int, order: int) -> LanguageModel:
    """Estimates a model from sequences of labels 1 .. symbols - 1; tables float32 [C, V] and int32 [C, V]."""
    probs = np.full((1, symbols), 1 / symbols)
    for length in range(order):  # the length of the context
        counts = np.zeros((symbols**length, symbols))
        for sequence in sequences:
            context = 0
            for symbol in (*sequence, 0):
                counts[context, symbol] += 1
                context = (context * symbols + symbol) % len(counts)
        seen = (counts > 0).sum(axis=1, keepdims=True)
        shorter = probs[np.arange(len(counts)) % len(probs)]
        total = counts.sum(axis=1, keepdims=True) + seen
        probs = np.where(total > 0, (counts + seen * shorter) / np.maximum(total, 1), shorter)
    return from_table(np.log(probs).astype(np.float32))


def from_table(log_probs: Float[np.ndarray, "C V"]) -> LanguageModel:
    """Adds to log p(v | h) the table of the context after each symbol."""
    contexts, symbols = log_probs.shape
    following = (np.arange(contexts)[:, None] * symbols + np.arange(symbols)) % contexts
    return LanguageModel(log_probs, following.astype(np.int32))
