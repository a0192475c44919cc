"""Decodes or scores a corpus with a trained model or an ensemble: lines in, lines out.

Letters: B rows of a batch, S source length, T target length, n hypotheses per line.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from s2sjax import config
from s2sjax.core.search.hypotheses import Hypotheses, Tree
from s2sjax.core.special_tokens import EOS
from s2sjax.data.batching.columns import Ragged
from s2sjax.data.text.vocabulary import AnyVocabulary
from s2sjax.errors import UserError
from s2sjax.evaluate.prediction import minimum_bayes_risk
from s2sjax.evaluate.prediction.attention_heads import (
    AttentionHeads,
    Kind,
    check_kind,
    no_self_attention,
    self_attention,
)
from s2sjax.evaluate.prediction.batched_apply import dispatched
from s2sjax.evaluate.prediction.line_batches import Ids, LineBatches, LineEncoder, padded_prefixes
from s2sjax.evaluate.prediction.line_notes import Notes
from s2sjax.evaluate.prediction.progress_listener import count
from s2sjax.evaluate.prediction.search_programs import Programs
from s2sjax.evaluate.prediction.word_constraints import word_constraints


class Output(NamedTuple):
    """One hypothesis for a line."""

    text: str
    score: float  # the outputs of a line are sorted by it; with MBR, the expected utility
    log_prob: float
    ids: list[int]  # including <eos>

    def __str__(self) -> str:
        return self.text


MAX_QUEUE = 8  # maximum number of sentences per slot of continuous batching
EMPTY = Output("", 0.0, 0.0, [EOS])
MAX_BUCKETS = 4  # default of search.max_source, as a multiple of the longest bucket


class Translator:
    """Decodes and scores lines with a model or an ensemble, its vocabularies and search options.

    Its parts: `Programs` compiles one program per shape, and reuses it between calls; `LineEncoder` encodes and cuts
    lines; `LineBatches` makes batches.
    """

    def __init__(
        self,
        module: nn.Module | Sequence[nn.Module],
        source: AnyVocabulary,
        target: AnyVocabulary,
        options: config.Search,
        buckets: Sequence[int],
        rows: int,
        batch_sharding: NamedSharding | None = None,
        multiple: int = 1,
    ):
        """`buckets` are source lengths; `rows` sentences are decoded at once, fewer if longer than all buckets.

        With `batch_sharding`, the rows of a batch are a multiple of `multiple`, the number of their shards.
        Several modules are an ensemble; `params` is then a sequence with one entry per module.
        """
        words = word_constraints(options, target)
        self.options, self.source, self.target = options, source, target
        self._programs = Programs(module, options, words, batch_sharding)
        self.attends, self.has_heads = self._programs.attends, self._programs.has_heads
        self.self_attends: tuple[Kind, ...] = tuple(self._programs.self_attention)
        self.has_trees = options.beam_size > 1 and not options.sampling.count
        positions = (self._programs.max_source, self._programs.max_target)
        limit = options.max_source or MAX_BUCKETS * max(buckets)
        self._encoder = LineEncoder(source, target, limit, *positions, words.prefix)
        max_queue = MAX_QUEUE if batch_sharding is None else 1  # slots cannot be refilled across devices
        self._batches = LineBatches(buckets, rows, multiple, *positions, max_queue)
        if options.coverage:
            self.require_attention(f"search.coverage {options.coverage}", "set it to 0")

    def require_attention(self, what: str, remedy: str = "choose a model with attention") -> None:
        """Raises a UserError if the model, or a member of the ensemble, has no attention."""
        if not self.attends:
            raise UserError(f"{what} requires a model with attention, and this model has none: {remedy}")

    def decode(self, params: Any, lines: Sequence[str], *args: Any, **options: Any) -> list[list[Output]]:
        """Returns the n best outputs of each line, best first. The arguments are those of `dispatch`."""
        return self.dispatch(params, lines, *args, **options)()

    def dispatch(
        self,
        params: Any,
        lines: Sequence[str],
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        notes: Notes | None = None,
        numbers: Sequence[int] | None = None,
    ) -> Callable[[], list[list[Output]]]:
        """Begins to decode, and returns a function that waits for the outputs. A blank line has one empty output.

        prefixes: forced prefix of each line, instead of search.prefix
        first: number of the first line in its corpus
        notes: collects warnings about the lines
        numbers: seeds of the random samples of each line; by default the number of the line in its corpus
        """
        numbers = range(first, first + len(lines)) if numbers is None else numbers
        nonblank = [index for index, line in enumerate(lines) if line.strip()]
        sources = [self.source.encode(lines[index]) for index in nonblank]
        if notes:
            notes.lines += len(lines)
            for index, ids in zip(nonblank, sources):
                notes.add_unknown(first + index + 1, [(self.source, lines[index], ids)])
        sources = self._encoder.cut_sources(sources, [first + index + 1 for index in nonblank], notes)
        forced = [self._encoder.prefix(prefixes[index] if prefixes else None) for index in nonblank]
        params = self._programs.stored(params)
        # All batches are dispatched before the first result is read: the device never waits for the host.
        batches = []
        for indices, source in self._batches.sources(params, sources):
            seeds = np.array([numbers[nonblank[index]] if index >= 0 else 0 for index in indices], np.int32)
            begin = padded_prefixes([forced[index] if index >= 0 else [] for index in indices])
            batches.append((indices, dispatched(self._search_rows(params, source, begin, seeds))))

        def collect() -> list[list[Output]]:
            outputs, done = [[EMPTY] for _ in lines], 0
            for indices, found in batches:
                found = jax.device_get(found)
                for row, index in enumerate(indices):
                    if index >= 0:
                        one = Hypotheses(*(leaf[row] for leaf in found))
                        outputs[nonblank[index]] = outputs_of(self.options, self.target, one)
                        done += 1
                count(done, len(nonblank))
            return outputs

        return collect

    def _search_rows(self, params: tuple, source: np.ndarray, begin: np.ndarray, numbers: np.ndarray) -> Hypotheses:
        slots = self._batches.slots(source.shape[1])
        return self._programs.search(params, *map(self._programs.place, (source, begin, numbers)), slots=slots)[0]

    def lower(self, params: Any) -> dict[str, Any]:
        """Lowers search and scoring of the longest bucket for parameters of these shapes, ready to be compiled."""
        length, rows = max(self._batches.buckets), self._batches.rows
        ids = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self._programs.sharding)
        begin = ids(rows, padded_prefixes([self._encoder.prefix(None)]).shape[1])
        slots = self._batches.slots(length)
        return {
            "search": self._programs.search.lower((params,), ids(rows, length), begin, ids(rows), slots=slots),
            "scoring": self._programs.log_likelihood.lower((params,), ids(rows, length), ids(rows, length)),
        }

    def tree(self, params: Any, line: str, prefix: str | None = None) -> tuple[Tree, Hypotheses]:
        """The search tree and the hypotheses of one line; the leaves have no batch axis. prefix: forced prefix."""
        if not self.has_trees:
            raise UserError("only beam search has a tree: set search.beam_size above 1 and search.sampling.count to 0")
        (ids,) = self._encoder.sources([line])
        inputs = self._batches.alone(ids), padded_prefixes([self._encoder.prefix(prefix)]), np.zeros(1, np.int32)
        found, tree = self._programs.search(self._programs.stored(params), *inputs, slots=1, record=True)
        return jax.tree.map(lambda leaf: leaf[0], jax.device_get((tree, found)))

    def attention(
        self, params: Any, lines: Sequence[str], outputs: Sequence[Output]
    ) -> list[tuple[list[str], list[str], np.ndarray]]:
        """The attention of the output of each line: (source pieces, target pieces, weights [T, S])."""
        self.require_attention("an attention map")
        sources, targets = self._encoder.sources(lines), [output.ids[:-1] for output in outputs]
        found = dict(self._forced_attention(params, sources, targets, eos=True))
        alone = lambda output: np.ones((len(output.ids), 1))  # the source of a blank line is only <eos>
        return [
            (self.source.pieces([*ids, EOS]), self.target.pieces(output.ids), found.get(n, alone(output)))
            for n, (ids, output) in enumerate(zip(sources, outputs))
        ]

    def align(self, params: Any, lines: Sequence[str], outputs: Sequence[Output]) -> list[list[tuple[int, int]]]:
        """Links each output piece except <eos> to the source piece with the highest weight: (source, output) pieces."""
        self.require_attention("an alignment")
        sources, targets = self._encoder.sources(lines), [output.ids[:-1] for output in outputs]
        found: list[list[tuple[int, int]]] = [[] for _ in lines]
        for index, weights in self._forced_attention(params, sources, targets):
            found[index] = [(int(place), t) for t, place in enumerate(weights.argmax(-1))]
        return found

    def attention_of(
        self, params: Any, sources: Ids, targets: Ids, heads: bool = False, eos: bool = False
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (index, weights [T, S]) of each pair of ids without <eos> whose source is not empty.

        Sources and targets that are longer than the model can read or write are cut, and their weights as well.
        heads: yield the weights of each layer and head, [layers, heads, T, S], where `has_heads`
        eos: include <eos> on both sides
        """
        self.require_attention("an attention map")
        read, written = self._encoder.cut_sources(sources), self._encoder.cut_targets(targets)
        return self._forced_attention(params, read, written, heads, eos)

    def heads(
        self, params: Any, sources: Ids, targets: Ids, of: Kind = "cross"
    ) -> Iterator[tuple[int, AttentionHeads]]:
        """Yields (index, attention by layer and head) of each pair as in `attention_of`, with <eos> on both sides.

        A model whose attention to the source is not that of several heads has one layer and one head.
        """
        check_kind(of)
        if of != "cross":
            yield from self._self_attention(params, sources, targets, of)
            return
        for index, weights in self.attention_of(params, sources, targets, self.has_heads, eos=True):
            *_, T, S = weights.shape
            weights = weights if self.has_heads else weights[None, None]
            source = self.source.pieces([*sources[index][: S - 1], EOS])
            target = self.target.pieces([*targets[index][: T - 1], EOS])
            yield index, AttentionHeads(source, target, weights, of, range(1, len(weights) + 1))

    def _self_attention(
        self, params: Any, sources: Ids, targets: Ids, of: Kind
    ) -> Iterator[tuple[int, AttentionHeads]]:
        sources, targets = self._encoder.cut_sources(sources), self._encoder.cut_targets(targets)
        if of not in self.self_attends:
            raise no_self_attention(of)
        for index, weights in self._forced(self._programs.self_attention[of], params, sources, targets):
            if sources[index]:
                read = self.source.pieces([*sources[index], EOS])
                written = self.target.pieces([self._programs.start_token, *targets[index]])
                yield index, self_attention(of, read if of == "encoder" else written, weights)

    def heads_of(self, params: Any, line: str, output: Output, of: Kind) -> AttentionHeads:
        """The attention of one line, which is not blank, and its output, by layer and head."""
        ((_, found),) = self.heads(params, self._encoder.sources([line]), [output.ids[:-1]], of)
        return found

    def _forced_attention(
        self, params: Any, sources: Ids, targets: Ids, heads: bool = False, eos: bool = False
    ) -> Iterator[tuple[int, np.ndarray]]:
        program = self._programs.heads if heads else self._programs.attention
        for index, weights in self._forced(program, params, sources, targets):
            if sources[index]:
                yield index, weights[..., : len(targets[index]) + eos, : len(sources[index]) + eos]

    def score(
        self, params: Any, pairs: Sequence[tuple[str, str]], first: int = 0, notes: Notes | None = None
    ) -> list[tuple[float, int]]:
        """Returns (log-probability, number of tokens including <eos>) of each (source, target) by teacher forcing.

        Sources and targets longer than search.max_source are cut. `first` and `notes`: see `dispatch`.
        """
        numbers = range(first + 1, first + len(pairs) + 1)
        sources = [self.source.encode(source) for source, _ in pairs]
        targets = [self.target.encode(target) for _, target in pairs]
        if notes:
            notes.lines += len(pairs)
            for number, pair, read, written in zip(numbers, pairs, sources, targets):
                notes.add_unknown(number, [(self.source, pair[0], read), (self.target, pair[1], written)])
        sources = self._encoder.cut_sources(sources, numbers, notes)
        targets = self._encoder.cut_targets(targets, numbers, notes)
        found = dict(self._forced(self._programs.log_likelihood, params, sources, targets))
        return [(float(found[index]), len(target) + 1) for index, target in enumerate(targets)]

    def _forced(
        self, program: Callable[..., Any], params: Any, sources: Ids, targets: Ids
    ) -> Iterator[tuple[int, Any]]:
        """Yields (index, result of the program) of each pair of source and target ids, both without <eos>."""
        params, place = self._programs.stored(params), self._programs.place
        for indices, source, target in self._batches.pairs(params, sources, Ragged.of_ids(targets)):
            found = jax.device_get(program(params, place(source), place(target)))
            rows = ((row, int(index)) for row, index in enumerate(indices) if index >= 0)
            yield from ((index, jax.tree.map(lambda leaf, row=row: leaf[row], found)) for row, index in rows)


def outputs_of(options: config.Search, target: AnyVocabulary, found: Hypotheses) -> list[Output]:
    """The n best outputs among the hypotheses of one source, best first."""
    outputs = [
        Output(target.decode(tokens), float(score), float(log_prob), tokens[:length].tolist())
        for tokens, length, score, log_prob in zip(found.tokens, found.lengths, found.scores, found.log_probs)
        if length > 0
    ]
    utility = options.sampling.mbr
    if utility != "none":
        ranked = minimum_bayes_risk.order([output.text for output in outputs], utility)
        outputs = [outputs[index]._replace(score=score) for index, score in ranked]
    # If the constraints allow no output, the output is empty.
    return outputs[: options.nbest] or [EMPTY._replace(score=-np.inf, log_prob=-np.inf)]
