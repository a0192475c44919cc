"""Multi-head attention (Vaswani et al. 2017) over whole sequences.

Letters: B batch, T queries, S keys, N heads, D width of a head.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from s2sjax.core.attention import decode_kernel, short_sequence_kernel
from s2sjax.core.attention.scores import SCORES, attend, masked_softmax
from s2sjax.core.backend import device
from s2sjax.core.backend.matmul import at_least_float32

Queries = Float[Array, "B T N D"]
Keys = Float[Array, "B S N D"]
Mask = Bool[Array, "B T S"]
"""True where a query sees a position"""
Bias = Float[Array, "#B N T S"] | None
"""added to the scores"""


def multi_head(queries: Queries, keys: Keys, values: Keys, mask: Mask, bias: Bias = None) -> Queries:
    """Scaled dot-product attention of each query and head. The reference implementation."""
    if bias is not None:
        bias = jnp.broadcast_to(bias, (len(queries), *bias.shape[1:]))
    one = lambda *args, **options: attend(SCORES["scaled_dot"], {}, *args, **options)[0]
    per_query = jax.vmap(one, in_axes=(0, None, None, 0))  # [T, D], [S, D] -> [T, D]
    per_head = jax.vmap(per_query, in_axes=(1, 1, 1, None), out_axes=1)
    return jax.vmap(per_head)(queries, keys, values, mask, bias=bias)


def fused_multi_head(
    queries: Queries,
    keys: Keys,
    values: Keys,
    lengths: Int[Array, " B"] | None = None,
    *,
    mask: Mask | None = None,
    causal: bool = False,
    bias: Bias = None,
) -> Queries:
    """Computes `multi_head` with one fused kernel.

    Takes either `lengths`, the numbers of real positions of a memory with its padding at the end, or a mask, for rows
    with several sequences: see `same_segment`. If causal, query t sees only positions 0..t.
    """
    if mask is not None and lengths is None:
        return _masked_multi_head(queries, keys, values, mask, causal, bias)
    if lengths is None or mask is not None:
        raise ValueError("fused_multi_head takes either lengths [B] or a mask [B, T, S]: give one of them")
    if queries.dtype == jnp.float64:  # the kernels do not support float64
        real = jnp.arange(keys.shape[1])[None, None] < lengths[:, None, None]  # [B, 1, S]
        seen = jnp.tri(queries.shape[1], keys.shape[1], dtype=bool)[None] if causal else True  # [1, T, S]
        mask = jnp.broadcast_to(real & seen, (*queries.shape[:2], keys.shape[1]))
        return multi_head(queries, keys, values, mask, bias)
    kernel = device.attention_kernel(queries, keys)
    if kernel == "short" and (bias is None or len(bias) == 1):
        shared, static = None if bias is None else bias[0], short_sequence_kernel.Static(causal)
        return short_sequence_kernel.attend(queries, keys, values, lengths, static, shared)
    # An empty row must stay finite: it attends to one position, whose value is zero. XLA fuses this into a projection.
    values = jnp.where((lengths > 0)[:, None, None, None], values, 0)
    return jax.nn.dot_product_attention(
        queries, keys, values, bias,
        is_causal=causal,
        key_value_seq_lengths=jnp.maximum(lengths, 1).astype(jnp.int32),
        # Not for a bias: the gradient of cuDNN's fails for odd lengths.
        implementation="cudnn" if kernel == "cudnn" and bias is None else "xla",
    )  # fmt: skip


def same_segment(queries: Int[Array, "B T"], keys: Int[Array, "B S"]) -> Bool[Array, "B T S"]:
    """Mask of the keys in the same segment as the query, from segment numbers. Padding has number 0, and sees padding.

    >>> same_segment(jnp.array([[1, 2]]), jnp.array([[1, 1, 2, 0]])).astype(int)
    Array([[[1, 1, 0, 0],
            [0, 0, 1, 0]]], dtype=int32)
    """
    return queries[:, :, None] == keys[:, None, :]


def _masked_multi_head(queries: Queries, keys: Keys, values: Keys, mask: Mask, causal: bool, bias: Bias) -> Queries:
    mask = mask & jnp.tri(queries.shape[1], keys.shape[1], dtype=bool)[None] if causal else mask
    if queries.dtype == jnp.float64:
        return multi_head(queries, keys, values, mask, bias)
    # XLA's kernel, because cuDNN's takes lengths or a full bias, which costs more than it saves. A query that sees no
    # position attends uniformly to all of them, which is finite, and its result is set to zero.
    attended = jax.nn.dot_product_attention(queries, keys, values, bias, mask=mask[:, None], implementation="xla")
    return jnp.where(mask.any(-1)[..., None, None], attended, 0)


def attend_heads(
    queries: Float[Array, "B K N D"],
    keys: Float[Array, "B N S D"] | Float[Array, "B N K S D"],
    values: Float[Array, "B N S D"] | Float[Array, "B N K S D"],
    mask: Bool[Array, "B K S"],
    bias: Float[Array, "#B N #K S"] | None = None,
) -> tuple[Float[Array, "B K N D"], Float[Array, "B N K S"]]:
    """Scaled dot-product attention of K queries, K small -> contexts, weights alpha.

    The keys and values have an axis K if each query has its own. The mask is True where a query sees a position.

    Heads come before positions, so that each head reads one block of memory: four times faster on a CPU.
    """
    own = "k" if keys.ndim == 5 else ""
    # Keys first: XLA's CPU compiler would transpose the second operand.
    scores = jnp.einsum(f"bn{own}sd,bknd->bnks", keys, queries, preferred_element_type=at_least_float32(queries.dtype))
    scores = scores / queries.shape[-1] ** 0.5
    alpha = masked_softmax(scores if bias is None else scores + bias, mask[:, None])
    if bias is None and not own and decode_kernel.fits(queries):  # XLA drops alpha where it is unused
        return decode_kernel.attend(queries, keys, values, mask), alpha
    return jnp.einsum(f"bnks,bn{own}sd->bnkd", alpha.astype(values.dtype), values).swapaxes(1, 2), alpha
