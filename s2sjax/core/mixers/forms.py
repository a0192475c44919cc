"""Runs a recurrence over time in one of three forms, which give the same result.

    scan           one position after the other, by `lax.scan`
    associative    in O(log T) rounds, by `lax.associative_scan`; for states that are vectors
    chunked        all positions of a chunk at once, as matrix products; only the states between chunks are sequential

`Recurrence.step` is the form of decoding: one position, a state of constant size.

Letters: B batch, T time, C positions of a chunk, M chunks, N heads, K key width, V value width.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from s2sjax.core.backend import device
from s2sjax.core.recurrence.masked_scan import keep

Inputs = Mapping[str, Array]
"""what a recurrence reads at each position, by name: each [B, T, ...]"""
State = Any
"""a pytree of arrays [B, ...], of constant size"""
Form = Literal["chunked", "scan", "associative"]
FORMS = get_args(Form)


class Sight(NamedTuple):
    """What the positions of each chunk see, if a row holds several segments. All True for one segment, but causal."""

    pairs: Bool[Array, "#M #B C C"]  # position i sees position j, j <= i
    before: Bool[Array, "#M #B C"]  # it sees the state before the chunk
    after: Bool[Array, "#M #B C"]  # it contributes to the state after the chunk
    through: Bool[Array, "#M #B"]  # the state before the chunk is part of the state after it


class Recurrence(NamedTuple):
    """A recurrence: y_t depends on the inputs up to t only through a state of constant size."""

    start: Callable[[Inputs], State]  # inputs [B, T, ...] -> the state before the first position
    step: Callable[[State, Inputs], tuple[State, Array]]  # inputs of one position [B, ...] -> state, y [B, ...]
    neutral: Mapping[str, float]  # inputs that leave the state unchanged, for padding
    chunks: Callable[[State, Inputs, Sight], tuple[State, Array]] | None = None
    """inputs [B, M, C, ...] -> last state, ys [B, M, C, ...]; None for a recurrence without a chunked form"""
    combine: Callable[[Any, Any], Any] | None = None
    """joins two elements of `elements`, the earlier first; None for a recurrence without an associative form"""
    elements: Callable[[State, Inputs, Bool[Array, "B T"]], Any] | None = None
    """inputs, and whether the state before a position is left behind -> what the associative scan joins"""


def run(
    recurrence: Recurrence,
    inputs: Inputs,
    mask: Bool[Array, "B T"] | None = None,
    *,
    segments: Int[Array, "B T"] | None = None,
    state: State = None,
    reverse: bool = False,
    form: Form = "chunked",
    chunk: int | None = None,
) -> tuple[Array, State]:
    """Runs a recurrence over time -> ys [B, T, ...], the last state. ys are zero at padding.

    mask: True for real positions; the others leave the state unchanged
    segments: numbers of the sequences of a row, each of which starts from the start state; at padding they do not count
    state: the state before the first position; None for the start state
    reverse: whether time runs from the last position to the first; ys stay in the order of the inputs
    chunk: positions of a chunk; None for the choice of s2sjax/core/backend/device.py
    """
    if form not in FORMS:
        raise ValueError(f"no form {form!r}: use one of {FORMS}")
    if reverse:
        flip = lambda tree: jax.tree.map(lambda leaf: jnp.flip(leaf, axis=1), tree)
        ys, state = run(
            recurrence, flip(dict(inputs)), flip(mask), segments=flip(segments), state=state, form=form, chunk=chunk
        )
        return flip(ys), state
    inputs = dict(inputs)
    segments = numbered(segments, mask)
    state = recurrence.start(inputs) if state is None else state
    if form == "scan" or (form == "chunked" and recurrence.chunks is None):
        state, ys = _scan(recurrence, inputs, mask, segments, state)
    else:
        if mask is not None:
            inputs |= {name: _where(mask, inputs[name], value) for name, value in recurrence.neutral.items()}
        whole = _associative if form == "associative" else _chunked
        state, ys = whole(recurrence, inputs, segments, state, chunk)
    return ys if mask is None else _where(mask, ys, 0), state


def _where(mask: Bool[Array, "B T"], x: Array, value: Any) -> Array:
    """x [B, T, ...] where the mask is True, else the value."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 2)), x, jnp.asarray(value, x.dtype))


def numbered(segments: Int[Array, "B T"] | None, mask: Bool[Array, "B T"] | None = None) -> Int[Array, "B T"] | None:
    """Numbers the segments of each row from 0 on: positions with equal numbers that follow each other are one segment.

    Padding belongs to the segment of the real position before it, or else of the first one: it ends no segment.

    >>> numbered(jnp.array([[0, 7, 0, 7, 3, 0, 7]]), jnp.array([[False, True, False, True, True, False, True]]))
    Array([[0, 0, 0, 0, 1, 1, 2]], dtype=int32)
    """
    if segments is None:
        return None
    if mask is not None:
        before = lax.cummax(jnp.where(mask, jnp.arange(mask.shape[1])[None], -1), axis=1)
        first = jnp.argmax(mask, axis=1)[:, None]
        segments = jnp.take_along_axis(segments, jnp.where(before < 0, first, before), axis=1)
    return jnp.cumsum(_starts(segments).astype(jnp.int32), axis=1)


def _starts(segments: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """Whether a position is the first of its segment; the state before the row belongs to the first segment."""
    return segments != jnp.concatenate([segments[:, :1], segments[:, :-1]], axis=1)


def _scan(recurrence: Recurrence, inputs: Inputs, mask: Array | None, segments: Array | None, state: State):
    start = recurrence.start(inputs)
    starts = None if segments is None else _starts(segments)

    def one(state, now):
        inputs, real, first = now
        before = state if first is None else keep(first, start, state)
        new, y = recurrence.step(before, inputs)
        return (new if real is None else keep(real, new, before)), y

    time_first = lambda tree: jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)
    state, ys = lax.scan(one, state, time_first((inputs, mask, starts)), unroll=device.scan_unroll())
    return state, jnp.swapaxes(ys, 0, 1)


def _associative(recurrence: Recurrence, inputs: Inputs, segments: Array | None, state: State, chunk: int | None):
    if recurrence.combine is None or recurrence.elements is None:
        raise ValueError("this recurrence has no associative form: use 'scan' or 'chunked'")
    first = next(iter(inputs.values()))
    starts = jnp.zeros(first.shape[:2], bool) if segments is None else _starts(segments)
    found = lax.associative_scan(recurrence.combine, recurrence.elements(state, inputs, starts), axis=1)
    ys = found[1]
    return ys[:, -1], ys


def _chunked(recurrence: Recurrence, inputs: Inputs, segments: Array | None, state: State, chunk: int | None):
    assert recurrence.chunks is not None
    length = next(iter(inputs.values())).shape[1]
    size = min(chunk or device.chunk_length(), length)
    padding = -length % size

    def cut(x: Array, value: Any = 0) -> Array:
        """[B, T, ...] -> [B, M, C, ...]."""
        x = jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2), constant_values=value)
        return x.reshape(len(x), -1, size, *x.shape[2:])

    parts = {name: cut(x, recurrence.neutral.get(name, 0)) for name, x in inputs.items()}
    if segments is not None:  # the added positions belong to the last segment, whose state they leave unchanged
        segments = jnp.pad(segments, ((0, 0), (0, padding)), mode="edge").reshape(len(segments), -1, size)
        segments = jnp.swapaxes(segments, 0, 1)
    state, ys = recurrence.chunks(state, parts, _sight(size, segments))
    return state, ys.reshape(len(ys), -1, *ys.shape[3:])[:, :length]


def _sight(size: int, segments: Int[Array, "M B C"] | None) -> Sight:
    causal = jnp.tri(size, dtype=bool)[None, None]
    if segments is None:
        every = jnp.ones((1, 1, size), bool)
        return Sight(causal, every, every, every[..., 0])
    last = segments[:, :, -1]
    previous = jnp.concatenate([segments[:1, :, 0], last[:-1]], axis=0)  # [M, B] segment of the state before
    return Sight(
        causal & (segments[..., :, None] == segments[..., None, :]),
        segments == previous[..., None],
        segments == last[..., None],
        previous == last,
    )


def implied_attention(recurrence: Recurrence, inputs: Inputs, **options: Any) -> Array:
    """The weights with which each position reads the values of all others: [B, T, N, T], of ys = weights values.

    A recurrence that is linear in its values is a causal attention without softmax. Its weights are the outputs for
    the values e_1 .. e_T, the rows of the identity.
    """
    values = inputs["value"]
    rows, length, heads = values.shape[:3]
    basis = jnp.broadcast_to(jnp.eye(length, dtype=values.dtype)[None, :, None], (rows, length, heads, length))
    return run(recurrence, {**inputs, "value": basis}, **options)[0]
