"""Audio features: log-mel filterbanks, and frames joined to fewer and wider ones.

    frame_t = samples[t hop : t hop + window]
    power_t = |DFT(hann * frame_t)|^2                           [bins]
    log_mel_t = log(max(power_t @ triangles, floor))            [F]

The triangles are equally wide on the mel scale, mel(f) = 1127 log(1 + f / 700) (O'Shaughnessy 1987): triangle k is 1 at
its centre and 0 at the centres of its two neighbours.

Letters: N samples, T frames, W window, F features of a frame, n frames joined.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

FLOOR = 1e-2
"""minimum power in a triangle, for samples in [-1, 1]"""


Triangles = Float32[np.ndarray, "bins F"]


def mel(hertz):
    """Converts frequencies in hertz to the mel scale."""
    return 1127 * np.log1p(np.asarray(hertz) / 700)


def mel_triangles(filters: int, bins: int, rate: float, low: float, high: float) -> Triangles:
    """The weight of each bin of the DFT, from 0 to rate / 2 hertz, in each filter."""
    edges = np.linspace(mel(low), mel(high), filters + 2)
    at = mel(np.linspace(0, rate / 2, bins))[:, None]
    rising = (at - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - at) / (edges[2:] - edges[1:-1])
    return np.clip(np.minimum(rising, falling), 0, None).astype(np.float32)


def frame_count(samples: int, window: int, hop: int) -> int:
    """Number of windows that fit: 1 + floor((N - W) / hop), and 0 if N < W."""
    return 1 + (samples - window) // hop if samples >= window else 0


def log_mel(
    samples: Float[Array, "*shape N"], window: int, hop: int, triangles: Triangles, floor: float = FLOOR
) -> Float[Array, "*shape T F"]:
    """Log-mel features of samples, by the `mel_triangles`; bins = size / 2 + 1 for a DFT of `size` >= window."""
    size = 2 * (triangles.shape[0] - 1)
    T = frame_count(samples.shape[-1], window, hop)
    frames = samples[..., hop * np.arange(T)[:, None] + np.arange(window)]  # [..., T, W]
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)).astype(np.float32)
    power = jnp.abs(jnp.fft.rfft(frames * jax.lax.broadcast_to_rank(hann, frames.ndim), size)) ** 2  # [..., T, bins]
    return jnp.log(jnp.maximum(jnp.matmul(power, triangles, precision=jax.lax.Precision.HIGHEST), floor))


def stack_frames(
    frames: Float[Array, "B T F"], lengths: Int[Array, " B"], n: int
) -> tuple[Float[Array, "B -(-T//{n}) {n}*F"], Int[Array, " B"]]:
    """Joins every n frames -> [B, ceil(T / n), n F], ceil(lengths / n).

    Padding becomes zeros. Example:

    A B C D E, n = 2  ->  AB CD E0
    """
    B, T, F = frames.shape
    frames = jnp.where((jnp.arange(T)[None] < lengths[:, None])[..., None], frames, 0)
    frames = jnp.pad(frames, ((0, 0), (0, -T % n), (0, 0)))
    return frames.reshape(B, -1, n * F), -(-lengths // n)


def normalize_example(frames: Float[Array, "B T F"], lengths: Int[Array, " B"]) -> Float[Array, "B T F"]:
    """Normalises each feature of each example to mean 0 and standard deviation 1 over its real frames.

    Padding becomes zeros. Standard deviations below 0.1 count as 0.1, so
    that nearly constant features are not amplified.
    """
    real = (jnp.arange(frames.shape[1])[None] < lengths[:, None])[..., None]  # [B, T, 1]
    count = jnp.maximum(lengths, 1)[:, None, None]
    centred = jnp.where(real, frames - jnp.sum(frames, axis=1, where=real, keepdims=True) / count, 0)
    return centred / jnp.sqrt(jnp.maximum(jnp.sum(centred**2, axis=1, keepdims=True) / count, 0.01))
