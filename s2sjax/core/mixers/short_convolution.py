"""The short causal convolution before a recurrence: each feature by itself, over the last few positions.

Letters: B batch, T time, D features, L taps.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from s2sjax.core.backend.matmul import at_least_float32

Past = Float[Array, "B L1 D"]
"""the L - 1 positions before"""


def start(kernel: Float[Array, "L D"], rows: int, dtype) -> Past:
    """Zeros."""
    return jnp.zeros((rows, kernel.shape[0] - 1, kernel.shape[1]), dtype)


def convolve(
    kernel: Float[Array, "L D"],
    xs: Float[Array, "B T D"],
    past: Past,
    mask: Bool[Array, "B T"] | None = None,
    segments: Int[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T D"], Past]:
    """y_t = sum_l kernel_l x_{t - L + 1 + l} -> ys, the last L - 1 real positions.

    The real positions of a row are consecutive. Segments do not see each other; the positions before the row, and
    padding beside the real positions, belong to the segment that they touch.
    """
    taps, length = len(kernel), xs.shape[1]
    if mask is None:
        joined = jnp.concatenate([past, xs], axis=1)
    else:  # the past ends where the real positions begin
        joined = jnp.pad(jnp.where(mask[..., None], xs, 0), ((0, 0), (taps - 1, 0), (0, 0)))
        joined = jax.vmap(lambda row, past, first: lax.dynamic_update_slice(row, past, (first, 0)))(
            joined, past, jnp.argmax(mask, axis=1)
        )
    of = None if segments is None else jnp.pad(segments, ((0, 0), (taps - 1, 0)), mode="edge")
    ys = jnp.zeros(xs.shape, at_least_float32(xs.dtype))
    for tap in range(taps):
        seen = joined[:, tap : tap + length]
        if segments is not None and of is not None:
            seen = jnp.where((of[:, tap : tap + length] == segments)[..., None], seen, 0)
        ys = ys + kernel[tap].astype(ys.dtype)[None, None] * seen
    ys = ys.astype(xs.dtype)
    ends = jnp.full(len(xs), length) if mask is None else jnp.max(mask * jnp.arange(1, length + 1)[None], axis=1)
    place = ends[:, None] + jnp.arange(taps - 1)[None]  # [B, L - 1] the last real positions
    last = jnp.take_along_axis(joined, place[..., None], axis=1)
    if segments is not None and of is not None:
        last = jnp.where((jnp.take_along_axis(of, place, axis=1) == segments[:, -1:])[..., None], last, 0)
    return ys, last


def step(kernel: Float[Array, "L D"], past: Past, x: Float[Array, "B D"]) -> tuple[Float[Array, "B D"], Past]:
    """One position -> y, the last L - 1 positions."""
    joined = jnp.concatenate([past, x[:, None]], axis=1)
    return jnp.einsum("ld,bld->bd", kernel, joined), joined[:, 1:]
