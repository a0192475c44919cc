"""Random sampling of outputs, from the model's distribution or a truncated one.

Letters: B batch, n samples per sentence, V vocabulary, L maximum output length.

A token is drawn from softmax(log_probs / temperature), truncated in this order:
    top_k  the k most likely tokens
    top_p  the fewest most likely tokens with total probability at least p (nucleus sampling, Holtzman et al. 2020)
    min_p  the tokens with at least min_p times the highest probability (Nguyen et al. 2024)
min_p keeps ties; top_p and top_k break them in favour of the smaller token. The log-probability of a sample is that
of the model's full distribution, and so is the score, except for the repetition penalty and free forced tokens (see
beam_decoding.py).

Token t of sample i of a sentence is drawn with fold_in(fold_in(key, i), t), where key is that of the sentence. So a
sample does not depend on the other sentences of its batch.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from s2sjax.core.search.beam_interface import Beams, State, Step
from s2sjax.core.search.constraints import DEAD
from s2sjax.core.search.decoding_loop import DecodingLoop, Limit, decode_loop, run_loop
from s2sjax.core.search.hypotheses import Hypotheses


def sample(
    step: Step | Beams, state: State, limit: Limit, length: int, keys: Key[Array, " B"], **options
) -> Hypotheses:
    """Draws samples, in the order of their numbers. Arguments are those of `sampling_loop`."""
    return run_loop(sampling_loop(step, state, limit, length, keys, **options))[0]


def sampling_loop(
    step: Step | Beams,
    state: State,
    limit: Limit,
    length: int,
    keys: Key[Array, " B"],
    *,
    count: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    **options,
) -> DecodingLoop:
    """The loop that draws `count` samples per sentence, with a key for each sentence.

    Other arguments and options are those of `search.decode_loop`.
    """
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    per_sample = jax.vmap(fold, in_axes=(0, None))(keys, jnp.arange(count))  # [B, n]

    def draw(key: Key[Array, ""], log_probs: Float[Array, " V"], t: Int[Array, ""]) -> Int[Array, ""]:
        kept = truncated(log_probs / temperature, top_k, top_p, min_p)
        return jax.random.categorical(jax.random.fold_in(key, t), kept)

    draw_all = jax.vmap(jax.vmap(draw, in_axes=(0, 0, None)))
    choose = lambda log_probs, t: draw_all(per_sample, log_probs, t)
    return decode_loop(step, state, limit, length, choose, copies=count, **options)


def truncated(
    log_probs: Float[Array, " V"], top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Float[Array, " V"]:
    """Sets removed tokens to DEAD, without normalising the rest. The defaults remove nothing."""
    if (top_k and top_k < len(log_probs)) or top_p < 1:
        order = jnp.argsort(-log_probs, stable=True)
        ranked = log_probs[order]
        if top_k:
            ranked = jnp.where(jnp.arange(len(ranked)) < top_k, ranked, DEAD)
        if top_p < 1:
            p = jax.nn.softmax(ranked)
            ranked = jnp.where(jnp.cumsum(p) - p < top_p, ranked, DEAD)  # more likely tokens do not reach p
        log_probs = jnp.zeros_like(log_probs).at[order].set(ranked)
    if min_p > 0:
        log_probs = jnp.where(log_probs >= jnp.max(log_probs) + jnp.log(min_p), log_probs, DEAD)
    return log_probs
