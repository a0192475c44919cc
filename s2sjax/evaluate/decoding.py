"""Lines in, lines out: a corpus decoded or scored with a trained model.

Letters: B rows of a batch, S source length, L most tokens of an output, n hypotheses a line.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.core import losses, search
from s2sjax.core.tokens import EOS, PAD
from s2sjax.data.batches import Ragged, evaluation_batches
from s2sjax.data.text import AnyVocabulary
from s2sjax.errors import UserError


class Output(NamedTuple):
    """One hypothesis for a line."""

    text: str
    score: float
    log_prob: float
    ids: list[int]  # <eos> included


class Translator:
    """A model with its vocabularies and its way of searching. One compiled program a shape, kept between calls."""

    def __init__(
        self,
        module: nn.Module,
        source: AnyVocabulary,
        target: AnyVocabulary,
        options: config.Search,
        buckets: Sequence[int],
        rows: int,
        batch_sharding: jax.sharding.Sharding | None = None,
    ):
        """`buckets` are source lengths; `rows` sentences are decoded at once."""
        if options.beam > target.size:
            raise UserError(f"search.beam {options.beam} is wider than the vocabulary of {target.size}: lower it")
        self.module, self.source, self.target = module, source, target
        self.options, self.buckets, self.rows = options, buckets, rows
        self._sharding = batch_sharding
        self._search = jax.jit(partial(_search, module, options))
        self._attention = jax.jit(partial(_attention, module))
        self._log_likelihood = jax.jit(partial(_log_likelihood, module))

    def decode(self, params: Any, lines: Sequence[str]) -> list[list[Output]]:
        """The n best outputs of each line, best first. A blank line has nothing to say: its one output is empty."""
        wanted = [index for index, line in enumerate(lines) if line.strip()]
        outputs = [[Output("", 0.0, 0.0, [EOS])] for _ in lines]
        sources = [self.source.encode(lines[index]) for index in wanted]
        # All batches are sent off before the first is read: the device never waits for the host.
        batches = [
            (indices, self._search(params, self._place(source)))
            for indices, source in evaluation_batches(sources, self.buckets, self.rows)
        ]
        for indices, found in batches:
            found = jax.device_get(found)
            for row, index in enumerate(indices):
                if index >= 0:
                    outputs[wanted[index]] = self._outputs(found, row)
        return outputs

    def _outputs(self, found: search.Hypotheses, row: int) -> list[Output]:
        hypotheses = zip(found.tokens[row], found.lengths[row], found.scores[row], found.log_probs[row])
        return [
            Output(self.target.decode(tokens), float(score), float(log_prob), tokens[:length].tolist())
            for tokens, length, score, log_prob in hypotheses
            if length > 0
        ]

    def _place(self, source: np.ndarray) -> np.ndarray | Array:
        return source if self._sharding is None else jax.device_put(source, self._sharding)

    def attention(self, params: Any, line: str, output: Output) -> tuple[list[str], list[str], np.ndarray]:
        """What the model looked at while it wrote: source pieces, target pieces, weights [T, S]."""
        source = [*self.source.encode(line), EOS]
        weights = self._attention(params, jnp.array([source], jnp.int32), jnp.array([output.ids], jnp.int32))
        return self.source.pieces(source), self.target.pieces(output.ids), np.asarray(weights[0])

    def score(self, params: Any, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, int]]:
        """(log-probability, number of tokens with <eos>) of each (source, target) pair, by teacher forcing."""
        targets = Ragged.of([self.target.encode(target) for _, target in pairs])
        sources = [self.source.encode(source) for source, _ in pairs]
        scores: list[tuple[float, int]] = [(0.0, 0)] * len(pairs)
        for indices, source in evaluation_batches(sources, self.buckets, self.rows):
            longest = int(max(targets.lengths[indices[indices >= 0]]))
            target = targets.padded(indices, 1 << (longest - 1).bit_length())
            found = np.asarray(self._log_likelihood(params, self._place(source), self._place(target)))
            for row, index in enumerate(indices):
                if index >= 0:
                    scores[index] = (float(found[row]), int(targets.lengths[index]))
        return scores


def _search(module: nn.Module, options: config.Search, params: Any, source: Array) -> search.Hypotheses:
    """source [B, S] -> the n best of each row. An empty row, which only fills the batch, ends at once."""
    apply: Callable[..., Any] = partial(module.apply, {"params": params})
    real = jnp.sum(source != PAD, axis=1)
    length = options.max_length or 2 * source.shape[1] + 10
    # The limit follows the sentence, not its bucket: the bucket must not change what is written.
    limit = jnp.where(real > 0, jnp.minimum(length, options.max_length or 2 * real + 10), 0)
    memory = apply(source, method="encode")
    state = apply(memory, length, method="start")
    step = lambda state, token: apply(memory, state, token, method="step")
    score: dict[str, Any] = {"penalty": options.penalty, "alpha": options.alpha}
    if options.beam == 1:
        return search.greedy(step, state, limit, length, **score)
    return search.beam(step, state, limit, length, width=options.beam, nbest=options.nbest, **score)


def _attention(module: nn.Module, params: Any, source: Array, tokens: Array) -> Array:
    """[B, S], [B, T] -> [B, T, S]."""
    apply: Callable[..., Any] = partial(module.apply, {"params": params})
    memory = apply(source, method="encode")
    state = apply(memory, tokens.shape[1], method="start")
    return search.forced_attention(lambda state, token: apply(memory, state, token, method="step"), state, tokens)


def _log_likelihood(module: nn.Module, params: Any, source: Array, target: Array) -> Array:
    logits: Any = module.apply({"params": params}, source, target)
    return losses.log_likelihood(logits, target, target != PAD)
