"""Self-attention restricted to a window (Vaswani et al. 2017, section 4): O(r n d) time and memory, not O(n^2 d).

Letters: B batch, T positions, N heads, D width of a head, r radius, M = ceil(T / r) blocks, K keys a block sees.

Position t sees t - r .. t + r, or t - r .. t if causal. In blocks of r positions, the windows of a block end in the
neighbouring blocks, so each block attends to itself and its neighbours:

    block       0     1     2     3                r = 3: the queries of block 2
    position    012   345   678   9..                     see keys 3 .. 11, the band within them
                      [   keys    ]
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from s2sjax.core.attention.multi_head_attention import Queries, multi_head


def offsets(radius: int, causal: bool) -> Int[Array, "{radius} K"]:
    """The offset of each key of a block from each of its queries; K = 2r if causal, else 3r.

    >>> offsets(2, causal=True)
    Array([[-2, -1,  0,  1],
           [-3, -2, -1,  0]], dtype=int32)
    """
    keys = jnp.arange((2 if causal else 3) * radius) - radius
    return keys[None] - jnp.arange(radius)[:, None]


def windowed_multi_head(
    queries: Queries,
    keys: Queries,
    values: Queries,
    lengths: Int[Array, " B"],
    radius: int,
    causal: bool = False,
    bias: Float[Array, "1 N {radius} K"] | None = None,
) -> Queries:
    """Computes `multi_head` with a band mask, for the first `lengths` positions.

    The bias is added to the scores at `offsets`, the same for every block.
    """
    rows, length, heads, width = queries.shape
    blocks = -(-length // radius)
    after = 0 if causal else 1

    def cut(x: Array) -> Array:
        """[B, T, ...] -> [B, M, r, ...]."""
        x = jnp.pad(x, ((0, 0), (0, blocks * radius - length), (0, 0), (0, 0)))
        return x.reshape(rows, blocks, radius, heads, width)

    def seen(x: Array) -> Array:
        """The positions that each block sees: [B, T, ...] -> [B * M, K, ...]."""
        padded = jnp.pad(cut(x), ((0, 0), (1, after), (0, 0), (0, 0), (0, 0)))
        sides = [padded[:, side : side + blocks] for side in range(2 + after)]
        return jnp.concatenate(sides, axis=2).reshape(rows * blocks, -1, heads, width)

    offset = offsets(radius, causal)
    near = (jnp.abs(offset) <= radius) & (not causal or offset <= 0)  # [r, K]
    place = (jnp.arange(blocks) - 1)[:, None] * radius + jnp.arange(offset.shape[1])[None]  # [M, K]
    real = (place >= 0)[None] & (place[None] < lengths[:, None, None])  # [B, M, K]
    mask = (near[None, None] & real[:, :, None]).reshape(rows * blocks, *offset.shape)
    blocked = cut(queries).reshape(rows * blocks, radius, heads, width)
    attended = multi_head(blocked, seen(keys), seen(values), mask, bias)
    return attended.reshape(rows, blocks * radius, heads, width)[:, :length]
