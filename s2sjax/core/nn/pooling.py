"""Attention pooling of a sequence of vectors into one. The mask is True for real positions.

Letters: B batch, S positions, H width, K queries, A width of a hidden layer.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def attention_pool(
    weights: Mapping[str, Any], states: Float[Array, "B S H"], mask: Bool[Array, "B S"]
) -> tuple[Float[Array, "B H"], Float[Array, "B S"]]:
    """Attention with a bias per position, for sequences of a fixed length -> pooled, alpha.

    e_s = tanh(w . h_s + b_s);  alpha = softmax(e) over real positions;  pooled = sum_s alpha_s h_s

    `kernel` w [H], `bias` b [S]. A row without real positions gives zeros.
    """
    scores = jnp.tanh(states @ weights["kernel"] + weights["bias"][None])  # [B, S]
    alpha = jax.nn.softmax(scores, axis=-1, where=mask)
    alpha = jnp.where(mask.any(-1, keepdims=True), alpha, 0)
    return jnp.einsum("bs,bsh->bh", alpha, states), alpha


def query_pool(
    weights: Mapping[str, Any], states: Float[Array, "B S H"], mask: Bool[Array, "B S"]
) -> tuple[Float[Array, "B KH"], Float[Array, "B K S"]]:
    """Attention with K learned queries (Yang et al. 2016; K > 1: Lin et al. 2017) -> pooled, alpha; KH = K H.

    e_ks = q_k . tanh(W h_s + b);  alpha_k = softmax(e_k) over real positions;  pooled = [sum_s alpha_ks h_s for each k]

    `kernel` W [H, A], `bias` b [A], `query` q [A, K]. The softmax is in at least float32. A row without real positions
    gives zeros.
    """
    scores = jnp.tanh(states @ weights["kernel"] + weights["bias"][None, None]) @ weights["query"]  # [B, S, K]
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32)).swapaxes(1, 2)  # [B, K, S]
    alpha = jax.nn.softmax(scores, axis=-1, where=mask[:, None])
    alpha = jnp.where(mask.any(-1)[:, None, None], alpha, 0)
    pooled = jnp.einsum("bks,bsh->bkh", alpha.astype(states.dtype), states)
    return pooled.reshape(len(states), -1), alpha
