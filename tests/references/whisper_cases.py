"""What make_whisper.py and the tests of Whisper share: recordings."""

import numpy as np

RATE = 16000
SHOWN = 24
"""number of frames whose features are stored; those after the recording are all equal"""


def recordings() -> dict[str, np.ndarray]:
    """Short recordings [N] by name."""
    random = np.random.default_rng(3)
    t = np.arange(RATE) / RATE
    chirp = np.sin(2 * np.pi * (200 + 900 * t) * t) * np.exp(-3 * t) + 1e-3 * random.normal(size=RATE)
    found = {
        "noise": 0.1 * random.normal(size=RATE // 2),
        "tone": 0.5 * np.sin(2 * np.pi * 440 * t),
        "chirp": 0.3 * chirp,
        "click": np.eye(1, RATE // 4, 1000)[0],
        "short": 0.01 * random.normal(size=500),
    }
    return {name: samples.astype(np.float32) for name, samples in found.items()}
