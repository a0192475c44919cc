"""The layers of `MIXERS`: projections of the input, a recurrence, and a projection of what it reads.

    inputs, rest = project(x)      what the recurrence reads at each position, and what `output` needs besides
    ys           = recurrence(inputs)
    result       = output(ys, rest)

A layer is used by four functions. Its weights are a dict of arrays, declared by `mixer.weights(sizes)`:

    ys, state = apply(mixer, sizes, weights, xs)            xs [B, T, W] -> ys [B, T, W]
    state     = start(mixer, sizes, weights, rows, dtype)   the state before the first position, of constant size
    y, state  = step(mixer, sizes, weights, state, x)       x [B, W] -> y [B, W]
    weights   = draw(mixer, sizes, key)                     random weights

Letters: B batch, T time, W width, N heads, K key width, V value width of a head, L taps.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, nn
from jaxtyping import Array, Bool, Float, Int

from s2sjax.core.attention.position_encodings import exact_sinusoidal, turn
from s2sjax.core.backend.matmul import at_least_float32, product
from s2sjax.core.mixers import short_convolution
from s2sjax.core.mixers.decayed import DECAYED, GATED
from s2sjax.core.mixers.delta_rule import DELTA
from s2sjax.core.mixers.forms import Form, Recurrence, numbered, run
from s2sjax.core.mixers.initial_values import (
    Weight,
    griffin_rates,
    inverse_softplus_of_times,
    kernel,
    log_rates,
    matrix,
    ones,
    spread,
)  # fmt: skip
from s2sjax.core.mixers.mlstm import MLSTM
from s2sjax.core.mixers.rg_lru import RG_LRU, gates
from s2sjax.core.mixers.slstm import GATES, slstm
from s2sjax.core.nn.normalization import rms_norm
from s2sjax.core.tables import Table

Weights = Mapping[str, Any]
"""arrays, or what stands for a matrix in `x @ matrix`"""


class Sizes(NamedTuple):
    """The sizes of a layer. A head has the value width V = width / heads."""

    width: int
    heads: int
    state: int = 64
    """key width of state-space duality; those of the other layers follow from their papers"""
    taps: int = 4
    """positions of the short convolution"""
    expand: int = 2
    """ratio of the inner width of state-space duality to `width`"""

    @property
    def head(self) -> int:
        return self.width // self.heads


class Context(NamedTuple):
    """What a projection needs besides the input at its own position."""

    convolve: Callable[[str, Array], Array]
    """convolves x [..., D] with the kernel of this name over the last positions"""
    position: Int[Array, "..."]
    """number of the position"""


class State(NamedTuple):
    """The state of a layer between two positions. Every leaf is [B, ...]."""

    recurrence: Any
    past: dict[str, short_convolution.Past]
    """inputs of the short convolutions at the last positions"""
    position: Int[Array, " B"]


class Mixer(NamedTuple):
    """A layer, as listed in `MIXERS`."""

    weights: Callable[[Sizes], dict[str, Weight]]
    project: Callable[[Weights, Sizes, Array, Context], tuple[dict[str, Array], Any]]
    """xs [..., W] -> inputs of the recurrence, what `output` needs besides"""
    recurrence: Callable[[Weights], Recurrence]
    output: Callable[[Weights, Sizes, Array, Any], Array]
    """ys of the recurrence, what `project` left -> [..., W]"""


def apply(
    mixer: Mixer,
    sizes: Sizes,
    weights: Weights,
    xs: Float[Array, "B T W"],
    mask: Bool[Array, "B T"] | None = None,
    *,
    segments: Int[Array, "B T"] | None = None,
    state: State | None = None,
    reverse: bool = False,
    form: Form = "chunked",
    chunk: int | None = None,
) -> tuple[Float[Array, "B T W"], State]:
    """Applies a layer to whole sequences -> ys, the last state. The options are those of `forms.run`."""
    if reverse:
        flip = lambda x: None if x is None else jnp.flip(x, axis=1)
        ys, state = apply(
            mixer, sizes, weights, jnp.flip(xs, axis=1), flip(mask), segments=flip(segments), state=state, form=form,
            chunk=chunk,
        )  # fmt: skip
        return jnp.flip(ys, axis=1), state
    segments = numbered(segments, mask)
    given = state is not None
    state = start(mixer, sizes, weights, len(xs), xs.dtype) if state is None else state
    past = dict(state.past)

    def convolve(name: str, x: Array) -> Array:
        ys, past[name] = short_convolution.convolve(weights[name].astype(x.dtype), x, past[name], mask, segments)
        return ys

    real = jnp.ones(xs.shape[:2], jnp.int32) if mask is None else mask.astype(jnp.int32)
    counts = jnp.cumsum(real, axis=1)
    position = state.position[:, None] + counts - 1
    inputs, rest = mixer.project(weights, sizes, xs, Context(convolve, position))
    recurrence = mixer.recurrence(weights)
    ys, last = run(
        recurrence, inputs, mask, segments=segments, state=state.recurrence if given else None, form=form, chunk=chunk
    )
    return mixer.output(weights, sizes, ys, rest), State(last, past, state.position + counts[:, -1])


def start(mixer: Mixer, sizes: Sizes, weights: Weights, rows: int, dtype) -> State:
    """The state of a layer before the first position."""
    past: dict[str, Array] = {}

    def convolve(name: str, x: Array) -> Array:
        past[name] = short_convolution.start(weights[name], rows, x.dtype)
        return x

    position = jnp.zeros(rows, jnp.int32)
    empty = jnp.zeros((rows, 1, sizes.width), dtype)
    inputs, _ = mixer.project(weights, sizes, empty, Context(convolve, position[:, None]))
    return State(mixer.recurrence(weights).start(inputs), past, position)


def step(
    mixer: Mixer, sizes: Sizes, weights: Weights, state: State, x: Float[Array, "B W"]
) -> tuple[Float[Array, "B W"], State]:
    """Applies a layer to one position -> y, state."""
    past = dict(state.past)

    def convolve(name: str, x: Array) -> Array:
        y, past[name] = short_convolution.step(weights[name].astype(x.dtype), past[name], x)
        return y

    inputs, rest = mixer.project(weights, sizes, x, Context(convolve, state.position))
    last, y = mixer.recurrence(weights).step(state.recurrence, inputs)
    return mixer.output(weights, sizes, y, rest), State(last, past, state.position + 1)


def draw(mixer: Mixer, sizes: Sizes, key: Array) -> dict[str, Array]:
    """Random weights in float32."""
    declared = mixer.weights(sizes)
    keys = jax.random.split(key, len(declared))
    return {name: weight.initial(each, weight.shape) for each, (name, weight) in zip(keys, declared.items())}


# ----------------------------------------------------------------------------------- shared parts


def _heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-1], heads, -1)  # [..., N, D]


def _merged(x: Array) -> Array:
    return x.reshape(*x.shape[:-2], -1)  # [..., N D]


def _exact(x: Array) -> Array:
    return x.astype(at_least_float32(x.dtype))


def _vector(weights: Weights, name: str, like: Array) -> Array:
    """A vector of the weights, in the dtype of `like` and broadcast to its rank."""
    return lax.broadcast_to_rank(weights[name].astype(like.dtype), like.ndim)


def _unit(x: Array) -> Array:
    """x / |x|, in the dtype of x."""
    exact = _exact(x)
    return (exact * lax.rsqrt(jnp.sum(exact**2, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def _head_norm(weights: Weights, ys: Array) -> Array:
    """RMS norm of each head, with a scale for each feature: [..., N, V] -> [..., N V]."""
    normed = _merged(rms_norm(ys, jnp.ones(ys.shape[-1], jnp.float32)))
    return normed * _vector(weights, "norm_scale", normed)


def _query_key_value(sizes: Sizes, key: int | None = None) -> dict[str, Weight]:
    """The projections of a layer with keys of width K, by default those of attention."""
    inner = sizes.heads * (key or sizes.head)
    return {
        "query": matrix(sizes.width, inner),
        "key": matrix(sizes.width, inner),
        "value": matrix(sizes.width, sizes.width),
        "output": matrix(sizes.width, sizes.width),
    }


def _projected(weights: Weights, sizes: Sizes, xs: Array) -> tuple[Array, Array, Array]:
    """Queries, keys and values [..., N, D]; the queries divided by sqrt(K)."""
    query, key, value = (_heads(product(xs, weights[name]), sizes.heads) for name in ("query", "key", "value"))
    return query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype), key, value


def _normed_output(weights: Weights, sizes: Sizes, ys: Array, gate: Array | None) -> Array:
    """W_O (norm(y) * gate)."""
    ys = _head_norm(weights, ys)
    return product(ys if gate is None else ys * gate, weights["output"])


def _zeros_of_heads(value: Array) -> Array:
    return jnp.zeros(value.shape[:-1], at_least_float32(value.dtype))


# --------------------------------------------------------------------------- linear attention, retention


def _linear_attention(weights: Weights, sizes: Sizes, xs: Array, context: Context):
    """q, k -> elu + 1, which is positive; the last value is 1 and sums the weights. Katharopoulos et al. 2020."""
    query, key, value = (_heads(product(xs, weights[name]), sizes.heads) for name in ("query", "key", "value"))
    positive = lambda x: nn.elu(x) + 1
    value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)
    inputs = {"query": positive(query), "key": positive(key), "value": value, "log_decay": _zeros_of_heads(value)}
    return inputs, None


def _linear_attention_output(weights: Weights, sizes: Sizes, ys: Array, rest: None) -> Array:
    """y = sum_j w_ij v_j / sum_j w_ij."""
    read = ys[..., :-1] / jnp.maximum(ys[..., -1:], jnp.asarray(1e-6, ys.dtype))
    return product(_merged(read), weights["output"])


def _retention(weights: Weights, sizes: Sizes, xs: Array, context: Context):
    """Rotated queries and keys; head n has the decay 1 - 2^(-5 - n). Sun et al. 2023."""
    query, key, value = _projected(weights, sizes, xs)
    sines = exact_sinusoidal(context.position[..., None], query.shape[-1])
    log_decay = jnp.log1p(-(2.0 ** (-5.0 - jnp.arange(sizes.heads))))
    inputs = {"query": turn(query, sines), "key": turn(key, sines), "value": value}
    inputs["log_decay"] = _zeros_of_heads(value) + lax.broadcast_to_rank(log_decay, value.ndim - 1)
    return inputs, nn.swish(product(xs, weights["gate"]))


def _retention_weights(sizes: Sizes) -> dict[str, Weight]:
    own = {"gate": matrix(sizes.width, sizes.width), "norm_scale": ones(sizes.width)}
    return _query_key_value(sizes) | own


# -------------------------------------------------------------------------------- gated linear attention

LOW_RANK = 16
"""rank of the matrix of the decays, and the root that is taken of them, in gated linear attention"""


def _gla(weights: Weights, sizes: Sizes, xs: Array, context: Context):
    """a = sigmoid(W_2 W_1 x + b)^(1/16), one for each feature of a key. Yang et al. 2023."""
    query, key, value = _projected(weights, sizes, xs)
    decay = _exact(product(product(xs, weights["decay_in"]), weights["decay_out"]))
    log_decay = nn.log_sigmoid(decay + _vector(weights, "decay_bias", decay)) / LOW_RANK
    inputs = {"query": query, "key": key, "value": value, "log_decay": _heads(log_decay, sizes.heads)}
    return inputs, nn.swish(product(xs, weights["gate"]))


def _gla_weights(sizes: Sizes) -> dict[str, Weight]:
    half = max(1, sizes.head // 2)
    return _query_key_value(sizes, half) | {
        "decay_in": matrix(sizes.width, LOW_RANK),
        "decay_out": matrix(LOW_RANK, sizes.heads * half),
        "decay_bias": Weight((sizes.heads * half,), nn.initializers.zeros),
        "gate": matrix(sizes.width, sizes.width),
        "norm_scale": ones(sizes.width),
    }


# ------------------------------------------------------------------------------------------ delta rule


def _delta(weights: Weights, sizes: Sizes, xs: Array, context: Context):
    """q, k, v after a short convolution; |q| = |k| = 1; beta = sigmoid(W x). Yang et al. 2024."""
    parts = (nn.swish(context.convolve(f"{name}_convolution", product(xs, weights[name]))) for name in ("query", "key"))
    query, key = (_unit(_heads(part, sizes.heads)) for part in parts)
    value = _heads(nn.swish(context.convolve("value_convolution", product(xs, weights["value"]))), sizes.heads)
    beta = nn.sigmoid(_exact(product(xs, weights["beta"])))
    inputs = {"query": query, "key": key, "value": value, "beta": beta, "log_decay": _zeros_of_heads(value)}
    return inputs, None


def _gated_delta(weights: Weights, sizes: Sizes, xs: Array, context: Context):
    """The delta rule with a decay, exp(-exp(A) softplus(W x + b)), and an output gate. Yang et al. 2024."""
    inputs, _ = _delta(weights, sizes, xs, context)
    inputs["log_decay"] = -_times(weights, xs)[0]
    return inputs, nn.swish(product(xs, weights["gate"]))


def _times(weights: Weights, xs: Array) -> tuple[Array, Array]:
    """dt = softplus(W x + b) of each head, and dt * exp(A): the rate of decay times dt -> both, the latter first."""
    time = _exact(product(xs, weights["time"]))
    time = nn.softplus(time + _vector(weights, "time_bias", time))
    return time * jnp.exp(_vector(weights, "log_rate", time)), time


def _time_weights(width: int, heads: int) -> dict[str, Weight]:
    return {
        "time": matrix(width, heads),
        "time_bias": Weight((heads,), inverse_softplus_of_times),
        "log_rate": Weight((heads,), log_rates),
    }


def _delta_weights(sizes: Sizes) -> dict[str, Weight]:
    kernels = {f"{name}_convolution": kernel(sizes.taps, sizes.width) for name in ("query", "key", "value")}
    own = {"beta": matrix(sizes.width, sizes.heads), "norm_scale": ones(sizes.width)}
    return _query_key_value(sizes) | kernels | own


def _gated_delta_weights(sizes: Sizes) -> dict[str, Weight]:
    gate = {"gate": matrix(sizes.width, sizes.width)}
    return _delta_weights(sizes) | _time_weights(sizes.width, sizes.heads) | gate


# ------------------------------------------------------------------------------ state-space duality


def _ssd(weights: Weights, sizes: Sizes, xs: Array, context: Context):
    """Mamba-2: a = exp(-exp(A) dt), k = B, q = C, v = dt x, and x, B, C after a short convolution.

    All heads share q and k. Dao and Gu 2024.
    """
    inner = sizes.expand * sizes.width
    mixed = nn.swish(context.convolve("convolution", product(xs, weights["input"])))
    value, key, query = jnp.split(mixed, (inner, inner + sizes.state), axis=-1)
    value = _heads(value, sizes.expand * sizes.heads)
    rate, time = _times(weights, xs)
    inputs = {
        "query": query[..., None, :],
        "key": key[..., None, :],
        "value": (_exact(value) * time[..., None]).astype(value.dtype),
        "log_decay": -rate,
    }
    return inputs, (value, product(xs, weights["gate"]))


def _ssd_output(weights: Weights, sizes: Sizes, ys: Array, rest: tuple[Array, Array]) -> Array:
    """W_O norm((y + D x) * swish(z))."""
    value, gate = rest
    ys = ys + _vector(weights, "skip_scale", ys[..., 0])[..., None] * value
    gated = _merged(ys) * nn.swish(gate)
    return product(rms_norm(gated, _exact(weights["norm_scale"])), weights["output"])


def _ssd_weights(sizes: Sizes) -> dict[str, Weight]:
    inner, heads = sizes.expand * sizes.width, sizes.expand * sizes.heads
    mixed = inner + 2 * sizes.state
    return {
        "input": matrix(sizes.width, mixed),
        "convolution": kernel(sizes.taps, mixed),
        "gate": matrix(sizes.width, inner),
        **_time_weights(sizes.width, heads),
        "skip_scale": ones(heads),
        "norm_scale": ones(inner),
        "output": matrix(inner, sizes.width),
    }


# -------------------------------------------------------------------------------------------- RG-LRU


def _griffin(weights: Weights, sizes: Sizes, xs: Array, context: Context):
    """u = conv(W x), whose gates are products within each head. De et al. 2024."""
    u = context.convolve("convolution", product(xs, weights["input"]))
    gate = lambda name: nn.sigmoid(_in_heads(u, weights[name]) + _vector(weights, f"{name}_bias", u))
    return gates(u, gate("keep"), gate("write"), weights["rate"]), nn.gelu(product(xs, weights["gate"]))


def _in_heads(x: Array, matrix: Float[Array, "N D E"]) -> Array:
    """x W with one matrix for each head: [..., N D] -> [..., N E]."""
    return _merged(jnp.einsum("...nd,nde->...ne", _heads(x, len(matrix)), matrix.astype(x.dtype)))


def _griffin_output(weights: Weights, sizes: Sizes, ys: Array, gate: Array) -> Array:
    """W_O (h * gelu(W x))."""
    return product(ys.astype(gate.dtype) * gate, weights["output"])


def _griffin_weights(sizes: Sizes) -> dict[str, Weight]:
    width = sizes.width
    blocks = Weight((sizes.heads, sizes.head, sizes.head), nn.initializers.normal(sizes.head**-0.5))
    zeros = Weight((width,), nn.initializers.zeros)
    return {
        "input": matrix(width, width),
        "convolution": kernel(sizes.taps, width),
        "keep": blocks,
        "keep_bias": zeros,
        "write": blocks,
        "write_bias": zeros,
        "rate": Weight((width,), griffin_rates),
        "gate": matrix(width, width),
        "output": matrix(width, width),
    }


# --------------------------------------------------------------------------------------------- xLSTM


def _mlstm(weights: Weights, sizes: Sizes, xs: Array, context: Context):
    """q and k after a short convolution; i = exp(.), f = sigmoid(.), and an output gate. Beck et al. 2024."""
    mixed = nn.swish(context.convolve("convolution", xs))
    query, key = (_heads(product(mixed, weights[name]), sizes.heads) for name in ("query", "key"))
    value = _heads(product(xs, weights["value"]), sizes.heads)
    gate = lambda name: (y := _exact(product(mixed, weights[name]))) + _vector(weights, f"{name}_bias", y)
    inputs = {"query": query, "key": key * jnp.asarray(sizes.head**-0.5, key.dtype), "value": value}
    inputs |= {"log_forget": nn.log_sigmoid(gate("forget")), "log_input": gate("write")}
    return inputs, nn.sigmoid(product(xs, weights["gate"]))


def _mlstm_weights(sizes: Sizes) -> dict[str, Weight]:
    return _query_key_value(sizes) | {
        "convolution": kernel(sizes.taps, sizes.width),
        "forget": matrix(sizes.width, sizes.heads),
        "forget_bias": Weight((sizes.heads,), partial(spread, least=3.0, most=6.0)),
        "write": matrix(sizes.width, sizes.heads),
        "write_bias": Weight((sizes.heads,), nn.initializers.zeros),
        "gate": matrix(sizes.width, sizes.width),
        "norm_scale": ones(sizes.width),
    }


def _slstm(weights: Weights, sizes: Sizes, xs: Array, context: Context):
    """The gates i and f after a short convolution, z and o without. Beck et al. 2024."""
    mixed = nn.swish(context.convolve("convolution", xs))
    z, o = jnp.split(_heads(product(xs, weights["input"]), sizes.heads), 2, axis=-1)
    i, f = jnp.split(_heads(product(mixed, weights["decay"]), sizes.heads), 2, axis=-1)
    gates = _exact(_merged(jnp.concatenate([z, i, f, o], axis=-1)))
    return {"gates": _heads(gates + _vector(weights, "bias", gates), sizes.heads)}, xs.dtype


def _slstm_output(weights: Weights, sizes: Sizes, ys: Array, dtype: Any) -> Array:
    return _normed_output(weights, sizes, ys.astype(dtype), None)


def _slstm_weights(sizes: Sizes) -> dict[str, Weight]:
    head, width = sizes.head, sizes.width
    return {
        "convolution": kernel(sizes.taps, width),
        "input": matrix(width, 2 * width),
        "decay": matrix(width, 2 * width),
        "recurrent": Weight((sizes.heads, head, len(GATES) * head), nn.initializers.normal(head**-0.5)),
        "bias": Weight((len(GATES) * width,), partial(_open_forget_gates, heads=sizes.heads)),
        "norm_scale": ones(width),
        "output": matrix(width, width),
    }


def _open_forget_gates(key: Array, shape: tuple[int, ...], heads: int) -> Array:
    """Zeros, and 3 to 6 for the forget gates of the heads."""
    bias = jnp.zeros((heads, len(GATES), shape[0] // len(GATES) // heads))
    return bias.at[:, GATES.index("forget")].set(jnp.linspace(3.0, 6.0, heads)[:, None]).reshape(shape)


# ----------------------------------------------------------------------------------------- the table


def _always(recurrence: Recurrence) -> Callable[[Weights], Recurrence]:
    return lambda weights: recurrence


MIXERS = Table({
    "linear_attention": Mixer(_query_key_value, _linear_attention, _always(DECAYED), _linear_attention_output),
    "retention": Mixer(_retention_weights, _retention, _always(DECAYED), _normed_output),
    "gla": Mixer(_gla_weights, _gla, _always(GATED), _normed_output),
    "delta": Mixer(_delta_weights, _delta, _always(DELTA), _normed_output),
    "gated_delta": Mixer(_gated_delta_weights, _gated_delta, _always(DELTA), _normed_output),
    "ssd": Mixer(_ssd_weights, _ssd, _always(DECAYED), _ssd_output),
    "rg_lru": Mixer(_griffin_weights, _griffin, _always(RG_LRU), _griffin_output),
    "mlstm": Mixer(_mlstm_weights, _mlstm, _always(MLSTM), _normed_output),
    "slstm": Mixer(_slstm_weights, _slstm, lambda weights: slstm(weights["recurrent"]), _slstm_output),
})  # fmt: skip
