"""A training step of s2sjax and of the same model in PyTorch, alternating in one run."""

import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import config, models
from s2sjax.bench.peers import Once, alternate, torch_device
from s2sjax.models import objectives
from s2sjax.training.schedules import optimizer
from s2sjax.training.state import create, make_train_step

# name -> (model, vocabulary, rows, length)
SIZES: dict[str, tuple[config.ModelConfig, int, int, int]] = {
    "g2p (RNNsearch 128)": (config.RNNsearch(width=128, embedding=64, dropout=0.0), 43, 64, 10),
    "Luong 256": (
        config.Luong(width=256, embedding=256, layers=1, bidirectional=True, input_feeding=False, dropout=0.0),
        8000, 64, 32,
    ),
    "RNNsearch 256": (config.RNNsearch(width=256, embedding=256, dropout=0.0), 8000, 64, 32),
    "Transformer 256, 3+3": (
        config.Transformer(width=256, heads=4, feedforward=1024, encoder_layers=3, decoder_layers=3, dropout=0.0),
        8000, 64, 32,
    ),
}  # fmt: skip


def bench(rounds: int = 5) -> None:
    """Prints one line per model: milliseconds of both, and the median ratio of all rounds."""
    print(f"on {jax.devices()[0].device_kind}")
    said: set[str] = set()
    print(f"{'training step':24}{'s2sjax ms':>10}{'compile s':>11}{'PyTorch ms':>12}{'s2sjax is faster by':>21}")
    for name, (model, vocabulary, rows, length) in SIZES.items():
        source, target = _batch(vocabulary, rows, length)
        begin = time.perf_counter()
        ours = build_step(model, vocabulary, source, target)
        compiling = time.perf_counter() - begin
        peer = partial(_torch_step, model, vocabulary, source, target)
        spans, reasons = alternate(ours, {"PyTorch": peer}, rounds, fastest)
        mine, theirs = spans["s2sjax"], spans.get("PyTorch")
        columns = f"{name:24}{1e3 * statistics.median(mine):10.1f}{compiling:11.1f}"
        if theirs:
            ratio = statistics.median(b / a for a, b in zip(mine, theirs))
            columns += f"{1e3 * statistics.median(theirs):12.1f}{ratio:20.2f}x"
        print(columns, flush=True)
        for why in set(reasons.values()) - said:  # mostly the same for all models
            print(f"  PyTorch is left out: {why}", flush=True)
        said |= set(reasons.values())


def _torch_step(model: config.ModelConfig, vocabulary: int, source: np.ndarray, target: np.ndarray) -> Once:
    from s2sjax.bench.torch_peers import Trainer

    return Trainer(model, vocabulary, source, target, torch_device(), compiled=False).step


def _batch(vocabulary: int, rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Random ids. Each row ends at a random position of its last third."""
    rng = np.random.default_rng(0)
    ids = rng.integers(4, vocabulary, (2, rows, length)).astype(np.int32)
    ends = rng.integers(2 * length // 3, length + 1, (2, rows))
    ids[np.arange(length) >= ends[..., None]] = 0
    return ids[0], ids[1]


def build_step(
    model: config.ModelConfig, vocabulary: int, source: np.ndarray, target: np.ndarray
) -> Callable[[], None]:
    """A function that runs one step and waits for its result. It is already compiled."""
    train = config.Train()
    module = models.build(model, vocabulary, vocabulary)
    init = lambda key: create(module.init(key, source[:1], target[:1])["params"], optimizer(train))
    state = jax.jit(init)(jax.random.key(0))
    step = make_train_step(partial(objectives.loss, module, 0.0), optimizer(train), train, seed=0)
    batch = {"source": jnp.asarray(source), "target": jnp.asarray(target)}
    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()

    def once() -> None:
        nonlocal state
        state, _ = compiled(state, batch)
        jax.block_until_ready(state)

    once()
    return once


def fastest(function: Callable[[], object], times: int = 3) -> float:
    """The time of the fastest of a few calls, which other jobs on the machine disturb least."""
    spans = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        spans.append(time.perf_counter() - begin)
    return min(spans)
