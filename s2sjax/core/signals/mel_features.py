"""Audio features: log-mel filterbanks, and frames joined to fewer and wider ones.

    frame_t = samples[t hop : t hop + window]
    power_t = |DFT(hann * frame_t)|^2                           [bins]
    log_mel_t = log(max(power_t @ triangles, floor))            [F]

The triangles are equally wide on the mel scale, mel(f) = 1127 log(1 + f / 700) (O'Shaughnessy 1987): triangle k is 1 at
its centre and 0 at the centres of its two neighbours.

Whisper (Radford et al. 2023) reads other features: triangles on Slaney's mel scale with equal areas, windows that are
centred at t hop, and decimal logarithms that are cut and scaled:

    power_t as above, of samples that are mirrored at both ends
    x_t = log10(max(power_t @ triangles, 1e-10))
    whisper_log_mel_t = (max(x_t, max(x) - 8) + 4) / 4

Letters: N samples, T frames, W window, F features of a frame, n frames joined.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

FLOOR = 1e-2
"""minimum power in a triangle, for samples in [-1, 1]"""


WHISPER_FLOOR, WHISPER_RANGE = 1e-10, 8.0
"""minimum power in a triangle, and powers of ten below the largest that are kept"""

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


def slaney_mel(hertz):
    """Slaney's mel scale: linear below 1000 Hz, 3 mel for 200 Hz, and logarithmic above (Slaney 1998)."""
    hertz = np.asarray(hertz, np.float64)
    return np.where(hertz < 1000, 3 * hertz / 200, 15 + np.log(np.maximum(hertz, 1000) / 1000) * 27 / np.log(6.4))


def slaney_hertz(mels):
    """The inverse of `slaney_mel`."""
    mels = np.asarray(mels, np.float64)
    return np.where(mels < 15, 200 * mels / 3, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))


def slaney_triangles(filters: int, bins: int, rate: float, low: float, high: float) -> Triangles:
    """The weights of the bins of the DFT: triangles of area 1 over hertz, equally wide in `slaney_mel`."""
    edges = slaney_hertz(np.linspace(slaney_mel(low), slaney_mel(high), filters + 2))
    at = np.linspace(0, rate / 2, bins)[:, None]
    rising = (at - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - at) / (edges[2:] - edges[1:-1])
    return (np.clip(np.minimum(rising, falling), 0, None) * 2 / (edges[2:] - edges[:-2])).astype(np.float32)


def frame_count(samples: int, window: int, hop: int) -> int:
    """Number of windows that fit: 1 + floor((N - W) / hop), and 0 if N < W."""
    return 1 + (samples - window) // hop if samples >= window else 0


def log_mel(
    samples: Float[Array, "*shape N"], window: int, hop: int, triangles: Triangles, floor: float = FLOOR
) -> Float[Array, "*shape T F"]:
    """Log-mel features of samples, by the `mel_triangles`; bins = size / 2 + 1 for a DFT of `size` >= window."""
    return jnp.log(jnp.maximum(_mel_power(samples, window, hop, triangles), floor))


def whisper_log_mel(
    samples: Float[Array, "*shape N"], window: int, hop: int, triangles: Triangles
) -> Float[Array, "*shape N//{hop} F"]:
    """Whisper's features of samples, by the `slaney_triangles`: see the module. There must be more than window / 2."""
    sides = [(0, 0)] * (samples.ndim - 1) + [(window // 2, window // 2)]
    power = _mel_power(jnp.pad(samples, sides, mode="reflect"), window, hop, triangles)
    logs = jnp.log10(jnp.maximum(power[..., : samples.shape[-1] // hop, :], WHISPER_FLOOR))
    least = jnp.max(logs, axis=(-2, -1), keepdims=True) - WHISPER_RANGE
    return (jnp.maximum(logs, least) + 4) / 4


def _mel_power(
    samples: Float[Array, "*shape N"], window: int, hop: int, triangles: Triangles
) -> Float[Array, "*shape T F"]:
    """The power of each window in each filter."""
    size = 2 * (triangles.shape[0] - 1)
    T = frame_count(samples.shape[-1], window, hop)
    frames = samples[..., hop * np.arange(T)[:, None] + np.arange(window)]  # [..., T, W]
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)).astype(np.float32)
    power = jnp.abs(jnp.fft.rfft(frames * jax.lax.broadcast_to_rank(hann, frames.ndim), size)) ** 2  # [..., T, bins]
    return jnp.matmul(power, triangles, precision=jax.lax.Precision.HIGHEST)


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
