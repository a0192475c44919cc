"""Scheduled sampling (Bengio et al. 2015): during training the decoder reads the true token with probability p,
otherwise its own output.

Letters: B batch, T target positions, V vocabulary. `inputs` are the inputs of teacher forcing, <sos> y1 y2 ..., or
another token `start` in place of <sos>; `truth` is True where the decoder reads them. Tokens are integers, so no
gradient flows through them.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Num, PRNGKeyArray

from s2sjax.core.special_tokens import SOS, never_written
from s2sjax.core.traced_numbers import Scalar

Schedule = Literal["constant", "linear", "exponential", "inverse_sigmoid"]


def truth_probability(schedule: Schedule, k: Scalar, floor: Scalar, step: Num[ArrayLike, ""]) -> Float[Array, ""]:
    """The probability p at update i = `step`, never below `floor`.

    constant  k        linear  1 - i / k        exponential  k^i        inverse_sigmoid  k / (k + exp(i / k))
    """
    i = jnp.asarray(step, jnp.float32)
    match schedule:
        case "constant":
            p = jnp.full_like(i, k)
        case "linear":
            p = 1 - i / k
        case "exponential":
            p = k**i
        case "inverse_sigmoid":
            p = jax.nn.sigmoid(jnp.log(k) - i / k)  # equal, and exp cannot overflow
    return jnp.clip(p, floor, 1)


def choose_truth(key: PRNGKeyArray, p: Float[Array, ""] | float, shape: tuple[int, int]) -> Bool[Array, "B T"]:
    """Draws `truth` with probability p, independently for each token. The first input is always true."""
    return jax.random.bernoulli(key, p, shape).at[:, 0].set(True)


def own_output(logits: Float[Array, "*shape V"], key: PRNGKeyArray | None, start: int = SOS) -> Int[Array, "*shape"]:
    """The model's next token, the most likely one or, with a key, a sampled one.

    Never <pad>, nor <sos> if it is the token `start` that starts the decoder: as in a search.
    """
    never = jnp.isin(jnp.arange(logits.shape[-1]), jnp.array(never_written(start)))
    written = jnp.where(never, -jnp.inf, logits)
    token = jnp.argmax(written, axis=-1) if key is None else jax.random.categorical(key, written)
    return token.astype(jnp.int32)


def step_by_step(
    step: Callable[[Any, Array, Array], tuple[Any, Array]],
    state: Any,
    inputs: Int[Array, "B T"],
    truth: Bool[Array, "B T"],
    key: PRNGKeyArray,
    drawn: bool,
    start: int = SOS,
) -> Float[Array, "B T V"]:
    """Runs the decoder in one `lax.scan`, where an output may be the next input -> logits of every step.

    step: step(state, token [B], key) -> state, logits [B, V]; `key` is for its dropout
    drawn: whether outputs are sampled, rather than the most likely ones
    """

    def body(carry, now):
        state, own = carry
        given, is_true, key = now
        for_step, for_draw = jax.random.split(key)
        state, logits = step(state, jnp.where(is_true, given, own), for_step)
        return (state, own_output(logits, for_draw if drawn else None, start)), logits

    steps = (inputs.T, truth.T, jax.random.split(key, inputs.shape[1]))
    return lax.scan(body, (state, jnp.full_like(inputs[:, 0], start)), steps)[1].swapaxes(0, 1)


def mixed(
    inputs: Int[Array, "B T"],
    truth: Bool[Array, "B T"],
    logits: Float[Array, "B T V"],
    key: PRNGKeyArray | None,
    start: int = SOS,
) -> Int[Array, "B T"]:
    """The inputs of the second of two passes, from the logits of the first (Mihaylova and Martins 2019).

    inputs <sos> a b, truth 1 1 0, the first pass writes a c d  ->  <sos> a c
    """
    own = jnp.pad(own_output(logits, key, start)[:, :-1], ((0, 0), (1, 0)), constant_values=start)
    return jnp.where(truth, inputs, own)
