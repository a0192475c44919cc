"""Decodes or scores a corpus with a trained model or an ensemble: lines in, lines out.

Letters: B rows of a batch, S source length, T target length, L maximum output length, n hypotheses per line.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.core import constraints, continuous_batching, device, ensemble, losses, precision, sampling, search
from s2sjax.core.hypotheses import Hypotheses, Tree
from s2sjax.core.tokens import EOS, PAD, UNK
from s2sjax.data.batches import evaluation_batches, round_length, rows_that_fit
from s2sjax.data.columns import Ragged
from s2sjax.data.text import AnyVocabulary
from s2sjax.errors import UserError
from s2sjax.evaluate import mbr
from s2sjax.evaluate.batched import spare_tokens
from s2sjax.evaluate.counter import count
from s2sjax.evaluate.notes import Notes
from s2sjax.evaluate.search_words import WordConstraints, check_beam, word_constraints


class Output(NamedTuple):
    """One hypothesis for a line."""

    text: str
    score: float  # the outputs of a line are sorted by it; with MBR, the expected utility
    log_prob: float
    ids: list[int]  # <eos> included

    def __str__(self) -> str:
        return self.text


MAX_QUEUE = 8  # sentences per slot of continuous batching, at most
EMPTY = Output("", 0.0, 0.0, [EOS])
MAX_BUCKETS = 4  # search.max_source, in lengths of the longest bucket


class Translator:
    """A model with its vocabularies and search options. Compiles one program per shape, and reuses it between calls."""

    def __init__(
        self,
        module: nn.Module | Sequence[nn.Module],
        source: AnyVocabulary,
        target: AnyVocabulary,
        options: config.Search,
        buckets: Sequence[int],
        rows: int,
        batch_sharding: jax.sharding.NamedSharding | None = None,
        multiple: int = 1,
    ):
        """`buckets` are source lengths; `rows` sentences are decoded at once, fewer if longer than all buckets.

        With `batch_sharding`, the rows of a batch are a multiple of `multiple`, the number of their shards.
        Several modules are an ensemble; `params` is then a sequence with one entry per module.
        """
        check_beam(options, target)
        modules = (module,) if isinstance(module, nn.Module) else tuple(module)
        self.attends = all(each.attends for each in modules)  # type: ignore[attr-defined]
        self.has_heads = self.attends and len(modules) == 1 and modules[0].has_attention_heads  # type: ignore[attr-defined]
        if options.coverage:
            self.require_attention(f"search.coverage {options.coverage}", "set it to 0")
        self.source, self.target = source, target
        self.options, self.buckets, self.rows = options, buckets, rows
        self._sharding = batch_sharding
        self._is_single = isinstance(module, nn.Module)
        self._multiple = multiple
        self._output_length = partial(_output_length, modules, options)
        self._max_source, self._max_target = _positions(modules, "source"), _positions(modules, "target")
        self._cut_at = options.max_source or MAX_BUCKETS * max(buckets)
        self._converted = Converted(options.precision)
        self._constraints = word_constraints(options, target)
        # The rows are split over the devices, and every process gets all results.
        replicated = batch_sharding and jax.sharding.NamedSharding(batch_sharding.mesh, jax.sharding.PartitionSpec())
        compiled = partial(jax.jit, out_shardings=replicated)
        in_slots = partial(search_batch, modules, options, self._constraints)
        self._search = compiled(in_slots, static_argnames=("slots", "record"))
        self._attention = compiled(partial(attention_weights, modules, options.ensemble))
        self._heads = compiled(partial(attention_heads, modules))
        self._log_likelihood = compiled(partial(_log_likelihood, modules, options.ensemble))

    def require_attention(self, what: str, remedy: str = "choose a model with attention") -> None:
        """Raises a UserError if the model, or a member of the ensemble, has no attention."""
        if not self.attends:
            raise UserError(f"{what} requires a model with attention, and this model has none: {remedy}")

    def decode(
        self,
        params: Any,
        lines: Sequence[str],
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        notes: Notes | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Output]]:
        """The n best outputs of each line, best first. A blank line has one empty output.

        prefixes: the forced prefix of each line, instead of search.prefix. `first` is the number of the first line in
        its corpus; the random samples of a line depend on its number, or on that in `numbers`. `notes` collects what is
        odd about the lines.
        """
        return self.dispatch(params, lines, prefixes, first, notes, numbers)()

    def dispatch(
        self,
        params: Any,
        lines: Sequence[str],
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        notes: Notes | None = None,
        numbers: Sequence[int] | None = None,
    ) -> Callable[[], list[list[Output]]]:
        """Begins to decode; what it returns waits for the outputs of `decode`."""
        numbers = range(first, first + len(lines)) if numbers is None else numbers
        nonblank = [index for index, line in enumerate(lines) if line.strip()]
        sources = [self.source.encode(lines[index]) for index in nonblank]
        if notes:
            notes.lines += len(lines)
            for index, ids in zip(nonblank, sources):
                notes.add_unknown(first + index + 1, [(self.source, lines[index], ids)])
        sources = self._cut(sources, [first + index + 1 for index in nonblank], notes)
        forced = [self._prefix(prefixes[index] if prefixes else None) for index in nonblank]
        params = self._stored(params)
        # All batches are dispatched before the first result is read: the device never waits for the host.
        batches = []
        queue = MAX_QUEUE if self._sharding is None else 1  # with a mesh, slots cannot be refilled across devices
        for indices, source in self._batches(params, sources, max_queue=queue):
            seeds = np.array([numbers[nonblank[index]] if index >= 0 else 0 for index in indices], np.int32)
            begin = padded_prefixes([forced[index] if index >= 0 else [] for index in indices])
            batches.append((indices, _dispatch(self._search_rows(params, source, begin, seeds))))

        def collect() -> list[list[Output]]:
            outputs, done = [[EMPTY] for _ in lines], 0
            for indices, found in batches:
                found = jax.device_get(found)
                for row, index in enumerate(indices):
                    if index >= 0:
                        outputs[nonblank[index]] = outputs_of(self.options, self.target, found, row)
                        done += 1
                count(done, len(nonblank))
            return outputs

        return collect

    def _search_rows(self, params: tuple, source: np.ndarray, begin: np.ndarray, numbers: np.ndarray) -> Hypotheses:
        slots = rows_that_fit(source.shape[1], max(self.buckets), self.rows, self._multiple)
        return self._search(params, *map(self._place, (source, begin, numbers)), slots=slots)[0]

    def lower(self, params: Any) -> dict[str, Any]:
        """The search and the scoring of the longest bucket, for parameters of these shapes, ready to be compiled."""
        length, rows = max(self.buckets), self.rows
        ids = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self._sharding)
        begin = ids(rows, padded_prefixes([self._constraints.prefix]).shape[1])
        slots = rows_that_fit(length, length, rows, self._multiple)
        return {
            "search": self._search.lower((params,), ids(rows, length), begin, ids(rows), slots=slots),
            "scoring": self._log_likelihood.lower((params,), ids(rows, length), ids(rows, length)),
        }

    def _batches(
        self, params: tuple, sources: Sequence[list[int]], **options: Any
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return evaluation_batches(
            sources, self.buckets, self.rows, self._max_source, multiple=self._multiple, spare=spare_tokens(params),
            **options,
        )  # fmt: skip

    def _cut(
        self,
        sequences: Sequence[list[int]],
        numbers: Sequence[int] = (),
        notes: Notes | None = None,
        positions: int | None = None,
    ) -> list[list[int]]:
        """The sequences, none longer than search.max_source with its <eos>, or than the positions of the model.

        numbers: those of their lines. positions: of the target, for targets.
        """
        positions = positions or self._max_source
        most, name = self._cut_at, "search.max_source"
        if positions and positions < most:
            most, name = positions, "model.max_length"
        long = [number for number, ids in zip(numbers, sequences) if len(ids) >= most]
        if long and notes:
            notes.add_cut(long, f"{most:,} tokens ({name})")
        elif long:
            warnings.warn(f"lines longer than {most:,} tokens ({name}) were cut", stacklevel=3)
        return [ids[: most - 1] for ids in sequences]

    def _prefix(self, prefix: str | None) -> list[int]:
        if prefix is None:
            return list(self._constraints.prefix)
        ids = self.target.encode(prefix)
        if UNK in ids:
            raise UserError(f"the prefix {prefix!r} is not in the target vocabulary: choose another")
        return ids

    def _stored(self, params: Any) -> tuple:
        return self._converted((params,) if self._is_single else tuple(params))

    def _place(self, source: np.ndarray) -> np.ndarray | Array:
        if self._sharding is None:
            return source
        return jax.make_array_from_callback(source.shape, self._sharding, lambda index: source[index])

    def tree(self, params: Any, line: str, prefix: str | None = None) -> tuple[Tree, Hypotheses]:
        """The search tree of one line; the leaves have no batch axis. `prefix`: see `decode`."""
        if self.options.beam == 1 or self.options.sampling.count:
            raise UserError("only beam search has a tree: set search.beam above 1 and search.sampling.count to 0")
        (ids,) = self._cut([self.source.encode(line)])
        # Always the longest bucket, which changes no output: the trees of most lines share one compiled program.
        ((_, source),) = evaluation_batches([ids], [max(self.buckets)], 1, self._max_source)
        begin = padded_prefixes([self._prefix(prefix)])
        found, tree = self._search(self._stored(params), source, begin, np.zeros(1, np.int32), slots=1, record=True)
        return jax.tree.map(lambda leaf: leaf[0], jax.device_get((tree, found)))

    def attention(
        self, params: Any, lines: Sequence[str], outputs: Sequence[Output]
    ) -> list[tuple[list[str], list[str], np.ndarray]]:
        """The attention of the output of each line: source pieces, target pieces, weights [T, S]."""
        self.require_attention("an attention map")
        sources = self._cut([self.source.encode(line) for line in lines])
        found = dict(self._forced_attention(params, sources, [output.ids[:-1] for output in outputs], eos=True))
        alone = lambda output: np.ones((len(output.ids), 1))  # a blank line is <eos> alone
        return [
            (self.source.pieces([*ids, EOS]), self.target.pieces(output.ids), found.get(n, alone(output)))
            for n, (ids, output) in enumerate(zip(sources, outputs))
        ]

    def align(self, params: Any, lines: Sequence[str], outputs: Sequence[Output]) -> list[list[tuple[int, int]]]:
        """(source piece, output piece) of each output piece except <eos>: the source piece with the highest weight."""
        self.require_attention("an alignment")
        sources = self._cut([self.source.encode(line) for line in lines])
        found: list[list[tuple[int, int]]] = [[] for _ in lines]
        for index, weights in self._forced_attention(params, sources, [output.ids[:-1] for output in outputs]):
            found[index] = [(int(place), t) for t, place in enumerate(weights.argmax(-1))]
        return found

    def attention_of(
        self, params: Any, sources: Sequence[list[int]], targets: Sequence[list[int]], heads: bool = False,
        eos: bool = False,
    ) -> Iterator[tuple[int, np.ndarray]]:  # fmt: skip
        """(index, weights [T, S]) of each pair of ids, while the model writes the target; not if the source is empty.

        Neither has <eos>. What is longer than the model can read or write is cut, and its weights with it.
        heads: of each layer and head, [layers, heads, T, S], where `has_heads`. eos: with the weights of <eos>.
        """
        self.require_attention("an attention map")
        return self._forced_attention(
            params, self._cut(sources), self._cut(targets, positions=self._max_target or self._cut_at), heads, eos
        )

    def _forced_attention(
        self, params: Any, sources: Sequence[list[int]], targets: Sequence[list[int]], heads: bool = False,
        eos: bool = False,
    ) -> Iterator[tuple[int, np.ndarray]]:  # fmt: skip
        params, attention = self._stored(params), self._heads if heads else self._attention
        for indices, source, target in self._pair_batches(params, sources, Ragged.of_ids(targets)):
            weights = np.asarray(attention(params, self._place(source), self._place(target)))
            for row, index in enumerate(indices):
                if index >= 0 and sources[index]:
                    yield int(index), weights[row, ..., : len(targets[index]) + eos, : len(sources[index]) + eos]

    def score(
        self, params: Any, pairs: Sequence[tuple[str, str]], first: int = 0, notes: Notes | None = None
    ) -> list[tuple[float, int]]:
        """(log-probability, number of tokens with <eos>) of each (source, target) pair, by teacher forcing.

        A source or a target longer than search.max_source is cut. `first` and `notes`: see `decode`.
        """
        numbers = range(first + 1, first + len(pairs) + 1)
        sources = [self.source.encode(source) for source, _ in pairs]
        written = [self.target.encode(target) for _, target in pairs]
        if notes:
            notes.lines += len(pairs)
            for number, pair, read, ids in zip(numbers, pairs, sources, written):
                notes.add_unknown(number, [(self.source, pair[0], read), (self.target, pair[1], ids)])
        sources = self._cut(sources, numbers, notes)
        targets = Ragged.of_ids(self._cut(written, numbers, notes, self._max_target or self._cut_at))
        params = self._stored(params)
        scores: list[tuple[float, int]] = [(0.0, 0)] * len(pairs)
        for indices, source, target in self._pair_batches(params, sources, targets):
            found = np.asarray(self._log_likelihood(params, self._place(source), self._place(target)))
            for row, index in enumerate(indices):
                if index >= 0:
                    scores[index] = (float(found[row]), int(targets.lengths[index]))
        return scores

    def _pair_batches(
        self, params: tuple, sources: Sequence[list[int]], targets: Ragged
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(indices [B], source [B, S], target [B, T]); the longer side of a pair decides how many are in a batch."""
        longer = np.maximum([len(ids) + 1 for ids in sources], targets.lengths)
        for indices, source in self._batches(params, sources, lengths=longer):
            longest = int(max(targets.lengths[indices[indices >= 0]]))
            # A long target made the batch wide: no source is longer than the model's positions.
            source = source[:, : self._max_source]
            yield indices, source, targets.padded(indices, round_length(longest, self._max_target))


def outputs_of(options: config.Search, target: AnyVocabulary, found: Hypotheses, row: int) -> list[Output]:
    """The n best outputs in a row of what a search has found, best first."""
    hypotheses = zip(found.tokens[row], found.lengths[row], found.scores[row], found.log_probs[row])
    outputs = [
        Output(target.decode(tokens), float(score), float(log_prob), tokens[:length].tolist())
        for tokens, length, score, log_prob in hypotheses
        if length > 0
    ]
    utility = options.sampling.mbr
    if utility != "none":
        ranked = mbr.order([output.text for output in outputs], utility)
        outputs = [outputs[index]._replace(score=score) for index, score in ranked]
    # If the constraints allow no output, the output is empty.
    return outputs[: options.nbest] or [EMPTY._replace(score=-np.inf, log_prob=-np.inf)]


class Converted:
    """Parameters at a lower precision, converted once: as long as the same arrays are given, and no longer."""

    def __init__(self, kind: precision.Precision):
        self.kind = kind
        self._of: list[weakref.ref] = []
        self._params: Any = None

    def __call__(self, params: tuple) -> tuple:
        if self.kind not in ("bfloat16", "int8"):
            return params
        leaves = jax.tree.leaves(params)
        if len(leaves) != len(self._of) or any(ref() is not leaf for ref, leaf in zip(self._of, leaves)):
            self._params = precision.stored(params, self.kind)
            # Training replaces its parameters: the converted ones are freed with them.
            self._of = [weakref.ref(leaf, self._forget) for leaf in leaves]
        return self._params

    def _forget(self, gone: weakref.ref) -> None:
        if any(ref is gone for ref in self._of):
            self._of, self._params = [], None


def _dispatch(found: Hypotheses) -> Hypotheses:
    """Waits for each program on the CPUs of several processes: programs that run at once may start their collectives in
    different orders, and would deadlock.
    """
    return jax.block_until_ready(found) if jax.process_count() > 1 and device.on_cpu() else found


def padded_prefixes(prefixes: Sequence[Sequence[int]]) -> np.ndarray:
    """[B, P], P a power of two, or 0 if all prefixes are empty."""
    longest = max(map(len, prefixes))
    table = np.full((len(prefixes), 1 << (longest - 1).bit_length() if longest else 0), PAD, np.int32)
    for row, prefix in zip(table, prefixes):
        row[: len(prefix)] = prefix
    return table


# ---------------------------------------------------------------------------- the compiled programs


def _positions(modules: Sequence[nn.Module], side: str) -> int | None:
    """The number of source or target positions that all models can address; None if there is no limit."""
    return min(filter(None, (getattr(module, f"longest_{side}") for module in modules)), default=None)


def _output_length(modules: Sequence[nn.Module], o: config.Search, width: int) -> int:
    """The maximum output length of sources of this width."""
    if o.max_length:
        return o.max_length
    length, positions = int(o.max_ratio * width) + 10, _positions(modules, "target")
    return min(length, positions) if positions else length  # whatever the ratio, the model's positions limit it


class Sentences(NamedTuple):
    """The inputs of a search; every leaf [N, ...]."""

    memories: tuple
    mask: Array  # [N, S] True for real source positions
    limit: Array  # [N] maximum output length
    prefixes: Array  # [N, P] forced prefixes
    numbers: Array  # [N] line numbers


def search_batch(
    modules: Sequence[nn.Module],
    o: config.Search,
    words: WordConstraints,
    params: tuple,
    source: Any,
    prefixes: Array,
    numbers: Array,
    slots: int,
    record: bool = False,
) -> tuple[Hypotheses, Tree | None]:
    """source: what the modules read, prefixes [N, P], numbers [N] -> the n best of each; a row of <pad> has none."""
    params = precision.restored(params)
    mask: Array = modules[0].source_mask(source)  # type: ignore[attr-defined]
    real = jnp.sum(mask, axis=1)
    length = _output_length(modules, o, mask.shape[1])
    # The limit depends on the sentence, not on its bucket: the bucket must not change the output.
    most = o.max_length or jnp.floor(o.max_ratio * real).astype(jnp.int32) + 10
    limit = jnp.where(real > 0, jnp.minimum(length, most), 0)
    memories = tuple(module.apply({"params": one}, source, method="encode") for module, one in zip(modules, params))
    sentences = Sentences(memories, mask, limit, prefixes, numbers)
    prepared = tuple(module.prepared(one) for module, one in zip(modules, params))
    make = partial(_make_search, modules, params, prepared, o, words, length, record)
    if record:
        return search.run_loop(make(sentences))
    return continuous_batching.decode(make, sentences, slots), None


def _make_search(
    modules: Sequence[nn.Module],
    params: tuple,
    prepared: tuple,
    o: config.Search,
    words: WordConstraints,
    length: int,
    record: bool,
    s: Sentences,
) -> search.Search:
    """The search selected by the options."""
    real = jnp.sum(s.mask, axis=1)
    rules = [
        o.repetition != 1 and constraints.repetition(o.repetition),
        o.no_repeat and constraints.no_repeated(o.no_repeat),
        words.without and constraints.without(words.without),
        words.containing and constraints.with_all(words.containing, s.limit),
        (o.min_length or o.min_ratio)
        and constraints.at_least(jnp.maximum(o.min_length, jnp.ceil(o.min_ratio * real).astype(jnp.int32))),
        s.prefixes.shape[1] and constraints.beginning(s.prefixes),
    ]
    constraint = constraints.compose([rule for rule in rules if rule])
    step, state = _start(modules, o.ensemble, params, s.memories, length, prepared)
    score: dict[str, Any] = {"penalty": o.penalty, "alpha": o.alpha, "constraint": constraint}
    drawn = o.sampling
    if drawn.count:
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(drawn.seed)))(s.numbers)
        cut = {name: getattr(drawn, name) for name in ("count", "temperature", "top_k", "top_p", "min_p")}
        return sampling.sampling_loop(step, state, s.limit, length, keys, **cut, **score)
    if o.beam == 1:
        return search.decode_loop(step, state, s.limit, length, search.argmax_token, **score)
    return search.beam_loop(
        step, state, s.limit, length, width=o.beam, nbest=o.nbest, stop=o.stop, coverage=o.coverage,
        source_mask=s.mask, groups=o.groups, diversity=o.diversity, record=record, **score,
    )  # fmt: skip


def _start(
    modules: Sequence[nn.Module],
    mean: ensemble.Mean,
    params: tuple,
    memories: tuple,
    length: int,
    prepared: Sequence[Any] | None = None,
):
    """(step function, initial state) of the model or the ensemble."""
    each = zip(modules, params, memories, prepared or [None] * len(modules))
    members = [module.beams(*of) for module, *of in each]
    states = tuple(
        module.apply({"params": one}, memory, length, method="start")
        for module, one, memory in zip(modules, params, memories)
    )
    return (members[0], states[0]) if len(members) == 1 else (ensemble.combine(members, mean), states)


def attention_weights(
    modules: Sequence[nn.Module], mean: ensemble.Mean, params: tuple, source: Any, tokens: Array
) -> Array | None:
    """Sources and the tokens [B, T] that are written -> [B, T, S], or None."""
    params = precision.restored(params)
    memories = tuple(module.apply({"params": one}, source, method="encode") for module, one in zip(modules, params))
    step, state = _start(modules, mean, params, memories, tokens.shape[1])
    return search.forced_attention(step, state, tokens)


def attention_heads(modules: Sequence[nn.Module], params: tuple, source: Any, tokens: Array) -> Any:
    """The same of each layer and head of one model: [B, layers, heads, T, S]."""
    return modules[0].apply({"params": precision.restored(params)[0]}, source, tokens, method="attention_heads")


def _log_likelihood(
    modules: Sequence[nn.Module], mean: ensemble.Mean, params: tuple, source: Array, target: Array
) -> Array:
    members = zip(modules, precision.restored(params))
    logits: Any = [module.apply({"params": one}, source, target) for module, one in members]
    combined = logits[0] if len(logits) == 1 else ensemble.mean_of_log_probs(logits, mean)
    return losses.log_likelihood(combined, target, target != PAD)
