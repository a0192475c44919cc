"""The compiled programs of a model or an ensemble: search, attention and log-likelihood of given targets.

Letters: B rows of a batch, N sentences of a search, S source length, T target length, P length of the prefixes.
"""

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from s2sjax import config
from s2sjax.core import losses, search
from s2sjax.core.backend import quantization
from s2sjax.core.search import constraints, continuous_batching, ensemble, sampling
from s2sjax.core.search.hypotheses import Hypotheses, Tree
from s2sjax.core.special_tokens import PAD, SPECIALS
from s2sjax.errors import UserError
from s2sjax.evaluate.prediction.batched_apply import placed, replicated
from s2sjax.evaluate.prediction.word_constraints import WordConstraints


class Programs:
    """The programs of a model or an ensemble with search options, compiled once per shape and reused between calls.

    search(params, source [N, S], prefixes [N, P], numbers [N], slots=..., record=...): see `search_batch`
    attention(params, source [B, S], target [B, T]) -> [B, T, S]
    heads(params, source [B, S], target [B, T]) -> [B, layers, heads, T, S], where `has_heads`
    self_attention[side](params, source [B, S], target [B, T]) -> [B, heads, T, T] by layer, for each side that has it
    log_likelihood(params, source [B, S], target [B, T]) -> [B]

    `params` are those that `stored` returns.
    """

    def __init__(
        self,
        module: nn.Module | Sequence[nn.Module],
        options: config.Search,
        words: WordConstraints,
        batch_sharding: NamedSharding | None = None,
    ):
        modules = (module,) if isinstance(module, nn.Module) else tuple(module)
        self.start_token = start_token(modules)
        self.attends = all(each.attends for each in modules)  # type: ignore[attr-defined]
        self.has_heads = self.attends and len(modules) == 1 and modules[0].has_attention_heads  # type: ignore[attr-defined]
        self.max_source, self.max_target = _positions(modules, "source"), _positions(modules, "target")
        self.output_length = partial(_output_length, modules, options)
        self.sharding = batch_sharding
        self._is_single = isinstance(module, nn.Module)
        self._converted = Converted(options.precision)
        # The rows are split over the devices, and every process gets all results.
        compiled = partial(jax.jit, out_shardings=replicated(batch_sharding))
        self.search = compiled(partial(search_batch, modules, options, words), static_argnames=("slots", "record"))
        self.attention = compiled(partial(attention_weights, modules, options.ensemble))
        self.heads = compiled(partial(_attention_heads, modules))
        sides = modules[0].self_attends if len(modules) == 1 else ()  # type: ignore[attr-defined]
        self.self_attention = {side: compiled(partial(_self_attention, modules[0], side)) for side in sides}
        self.log_likelihood = compiled(partial(_log_likelihood, modules, options.ensemble))

    def stored(self, params: Any) -> tuple:
        """The parameters of each module, in the precision of the search options."""
        return self._converted((params,) if self._is_single else tuple(params))

    def place(self, array: np.ndarray) -> np.ndarray | Array:
        """Splits the rows of an array over the devices."""
        return placed(array, self.sharding)


class Converted:
    """Converts parameters to a lower precision, and keeps the result until the original arrays are freed."""

    def __init__(self, kind: quantization.Precision):
        self.kind = kind
        self._of: list[weakref.ref] = []
        self._params: Any = None

    def __call__(self, params: tuple) -> tuple:
        if self.kind not in ("bfloat16", "int8"):
            return params
        leaves = jax.tree.leaves(params)
        if len(leaves) != len(self._of) or any(ref() is not leaf for ref, leaf in zip(self._of, leaves)):
            self._params = quantization.stored(params, self.kind)
            # Training replaces its parameters: the converted ones are freed with them.
            self._of = [weakref.ref(leaf, self._forget) for leaf in leaves]
        return self._params

    def _forget(self, gone: weakref.ref) -> None:
        if any(ref is gone for ref in self._of):
            self._of, self._params = [], None


def start_token(modules: Sequence[nn.Module]) -> int:
    """The token that the models read first. Raises a UserError if they read different ones."""
    first, *others = (module.start_token for module in modules)  # type: ignore[attr-defined]
    for number, other in enumerate(others, 2):
        if other != first:
            raise UserError(
                f"the models of an ensemble must start with the same token: the decoder of model 1 starts with "
                f"{SPECIALS[first]}, that of model {number} with {SPECIALS[other]}: combine models of one decoder_start"
            )
    return first


def _positions(modules: Sequence[nn.Module], side: str) -> int | None:
    """The number of source or target positions that all models can address; None if there is no limit."""
    return min(filter(None, (getattr(module, f"longest_{side}") for module in modules)), default=None)


def _output_length(modules: Sequence[nn.Module], o: config.Search, width: int) -> int:
    """The maximum output length for sources of this width."""
    if o.max_length:
        return o.max_length
    length, positions = int(o.max_ratio * width) + 10, _positions(modules, "target")
    return min(length, positions) if positions else length


# ------------------------------------------------------------------------------------------- search


class Sentences(NamedTuple):
    """The inputs of a search; every leaf is [N, ...]."""

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
    """Finds the n best outputs of each source, and the search tree if `record`; a row of <pad> has no output.

    source: [N, ...] input of the modules
    prefixes: [N, P] forced prefixes, padded with <pad>
    numbers: [N] line numbers, the seeds of random samples
    slots: number of sentences that are decoded at once
    """
    params, start = quantization.restored(params), start_token(modules)
    mask: Array = modules[0].source_mask(source)  # type: ignore[attr-defined]
    real = jnp.sum(mask, axis=1)
    length = _output_length(modules, o, mask.shape[1])
    # The limit depends on the sentence, not on its bucket: the bucket must not change the output.
    most = o.max_length or jnp.floor(o.max_ratio * real).astype(jnp.int32) + 10
    limit = jnp.where(real > 0, jnp.minimum(length, most), 0)
    memories = _encoded(modules, params, source)
    prepared = tuple(module.prepared(one) for module, one in zip(modules, params))

    def make(s: Sentences) -> search.DecodingLoop:
        constraint = _constraint(o, words, s)
        step, state = _start(modules, o.ensemble, params, s.memories, length, prepared)
        shared = {"constraint": constraint, "forced": o.forced, "start": start}
        return _chosen_search(o, step, state, s, length=length, record=record, shared=shared)

    sentences = Sentences(memories, mask, limit, prefixes, numbers)
    if record:
        return search.run_loop(make(sentences))
    return continuous_batching.decode(make, sentences, slots), None


def _constraint(o: config.Search, words: WordConstraints, s: Sentences) -> Any:
    """The conjunction of all constraints in the search options."""
    real = jnp.sum(s.mask, axis=1)
    rules = [
        o.repetition_penalty != 1 and constraints.repetition(o.repetition_penalty),
        o.no_repeat_ngram_size and constraints.no_repeated(o.no_repeat_ngram_size),
        words.without and constraints.without(words.without),
        (words.never or words.never_first)
        and constraints.without_tokens(words.never, words.never_first, jnp.sum(s.prefixes != PAD, axis=1)),
        words.containing and constraints.with_all(words.containing, s.limit),
        (o.min_length or o.min_ratio)
        and constraints.at_least(jnp.maximum(o.min_length, jnp.ceil(o.min_ratio * real).astype(jnp.int32))),
        s.prefixes.shape[1] and constraints.beginning(s.prefixes, o.forced),
    ]
    return constraints.compose([rule for rule in rules if rule])


def _chosen_search(
    o: config.Search, step: Any, state: Any, s: Sentences, *, length: int, record: bool, shared: dict[str, Any]
) -> search.DecodingLoop:
    """The search that the options select: sampling, greedy search or beam search; `shared` are options of all three."""
    shared = shared | {"penalty": o.length_penalty, "alpha": o.alpha}
    drawn = o.sampling
    if drawn.count:
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(drawn.seed)))(s.numbers)
        cut = {name: getattr(drawn, name) for name in ("count", "temperature", "top_k", "top_p", "min_p")}
        return sampling.sampling_loop(step, state, s.limit, length, keys, **cut, **shared)
    if o.beam_size == 1:
        return search.decode_loop(step, state, s.limit, length, search.argmax_token, **shared)
    return search.beam_loop(
        step, state, s.limit, length, width=o.beam_size, nbest=o.nbest, stop=o.stop, coverage=o.coverage,
        source_mask=s.mask, groups=o.groups, diversity=o.diversity, record=record, **shared,
    )  # fmt: skip


def _encoded(modules: Sequence[nn.Module], params: tuple, source: Any) -> tuple:
    """The memory of each module."""
    return tuple(module.apply({"params": one}, source, method="encode") for module, one in zip(modules, params))


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
        module.apply({"params": one}, memory, length, method="init_state")
        for module, one, memory in zip(modules, params, memories)
    )
    return (members[0], states[0]) if len(members) == 1 else (ensemble.combine(members, mean), states)


# ------------------------------------------------------------------------------------ given targets


def attention_weights(
    modules: Sequence[nn.Module], mean: ensemble.Mean, params: tuple, source: Any, tokens: Array
) -> Array | None:
    """The attention weights [B, T, S] of given target tokens [B, T], or None if the model has no attention."""
    params = quantization.restored(params)
    step, state = _start(modules, mean, params, _encoded(modules, params, source), tokens.shape[1])
    return search.forced_attention(step, state, tokens, start_token(modules))


def _attention_heads(modules: Sequence[nn.Module], params: tuple, source: Any, tokens: Array) -> Any:
    """The attention weights of each layer and head of one model: [B, layers, heads, T, S]."""
    return modules[0].apply({"params": quantization.restored(params)[0]}, source, tokens, method="attention_heads")


def _self_attention(module: nn.Module, side: str, params: tuple, source: Any, tokens: Array) -> dict[int, Array]:
    """The self-attention of one side of a model, by layer: [B, heads, T, T]."""
    (one,) = quantization.restored(params)
    return module.apply({"params": one}, side, source, tokens, method="self_attention_heads")  # type: ignore[return-value]


def _log_likelihood(
    modules: Sequence[nn.Module], mean: ensemble.Mean, params: tuple, source: Array, target: Array
) -> Array:
    """The log-likelihood [B] of given targets [B, T], padded with <pad>."""
    members = zip(modules, quantization.restored(params))
    logits: Any = [module.apply({"params": one}, source, target) for module, one in members]
    combined = logits[0] if len(logits) == 1 else ensemble.mean_of_log_probs(logits, mean)
    return losses.log_likelihood(combined, target, target != PAD)
