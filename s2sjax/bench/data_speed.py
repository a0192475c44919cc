"""Throughput of the input pipeline (raw, prepared and packed) compared with that of the training step.

Token counts are those of source and target, without padding.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from s2sjax import config
from s2sjax.bench import timing, train_speed
from s2sjax.core.special_tokens import PAD
from s2sjax.data import pairs, prepare
from s2sjax.data.batching import batch_plan, columns

PAIRS = 50_000
WORDS = 8_000
SECONDS = 3.0
"""seconds for which each pipeline is measured"""
ENOUGH = 5
"""multiple of the step's throughput at which the step never waits for data"""


def bench(rounds: int = 1, model: config.ModelConfig | None = None, pairs: int = PAIRS) -> None:
    """Prints the throughput of each pipeline and of the step, and how many steps the slowest pipeline can feed."""
    with tempfile.TemporaryDirectory() as folder:
        files = _corpus(Path(folder), pairs)
        raw = config.Data(
            config.TextFiles(train=files), config.Text("words"), config.Text("words"),
            buckets=((16, 16), (32, 32), (64, 64)), batch_tokens=2048,
        )  # fmt: skip
        begin = time.perf_counter()
        made = prepare.prepare(raw, Path(folder) / "prepared", workers=os.cpu_count() or 1)
        seconds = time.perf_counter() - begin
        print(f"{'':24}{'pairs/s':>12}{'tokens/s':>14}{'padding':>16}")
        print(f"{'prepare, once':24}{made.pairs / seconds:12,.0f}{made.tokens / seconds:14,.0f}", flush=True)
        prepared = config.replace(raw, corpus=config.Prepared(str(made.folder)))
        rates = []
        for name, data in (
            ("raw", raw),
            ("raw, packed", config.replace(raw, packing=True)),
            ("prepared", prepared),
            ("prepared, packed", config.replace(prepared, packing=True)),
        ):
            counts, padding, batch = _measure(data)
            print(f"{name:24}{counts[0]:12,.0f}{counts[1]:14,.0f}{100 * padding:15.1f}%", flush=True)
            rates.append(counts[1])
            if name == "raw":
                plain = batch
    base = model or config.Transformer()
    step = train_speed.Trainer(base, WORDS, plain["source"], plain["target"], config.Train())
    print(f"the step was compiled in {step.compile_seconds:.1f} s", flush=True)
    tokens = sum(int((plain[side] != PAD).sum()) for side in ("source", "target"))
    consumed = tokens / timing.measure(step, rounds).low
    size = f"Transformer {base.width}" if isinstance(base, config.Transformer) else type(base).__name__
    print(f"{f'step of {size}':24}{len(plain['source']) * consumed / tokens:12,.1f}{consumed:14,.1f}")
    ratio = min(rates) / consumed
    verdict = "enough" if ratio >= ENOUGH else f"NOT enough: at least {ENOUGH} are required"
    print(f"the slowest pipeline can feed {ratio:,.1f} such steps: {verdict}")


def _measure(data: config.Data) -> tuple[tuple[float, float], float, columns.Batch]:
    """(pairs, tokens) per second, the fraction of padding, and a batch of the middle bucket."""
    examples = pairs.read(data)
    found = pairs.make_columns(data, examples, *pairs.vocabularies(data, examples), seed=0)
    plan = pairs.make_plan(data, found, seed=0, multiple=1)
    stream = batch_plan.stream(found, plan, 0, 10**9, prefetch=data.prefetch)
    chosen = next(batch for _, batch in stream if batch["source"].shape[1] == 32 or data.packing)
    count = tokens = positions = 0
    begin = time.perf_counter()
    while (seconds := time.perf_counter() - begin) < SECONDS:
        _, batch = next(stream)
        count += int((batch["example"] >= 0).sum())
        tokens += int((batch["source"] != PAD).sum() + (batch["target"] != PAD).sum())
        positions += batch["source"].size + batch["target"].size
    stream.close()  # type: ignore[attr-defined]
    return (count / seconds, tokens / seconds), 1 - tokens / positions, chosen


def _corpus(folder: Path, pairs: int) -> tuple[str, str]:
    """Writes two files with lines of 4 to 44 words; the two lines of a pair have about the same length.

    Word frequencies follow Zipf's law: that of the n-th most frequent word is proportional to 1 / n.
    """
    rng = np.random.default_rng(0)
    words = np.array([f"w{n}" for n in range(WORDS - 4)])
    edges = np.cumsum(1 / np.arange(1, len(words) + 1))
    lengths = rng.integers(4, 45, pairs)
    paths = folder / "source.txt", folder / "target.txt"
    for path in paths:
        drawn = (words[np.searchsorted(edges, edges[-1] * rng.random(length))] for length in lengths)
        path.write_text("\n".join(map(" ".join, drawn)) + "\n", encoding="utf-8")
        lengths = np.clip(lengths + rng.integers(-3, 4, pairs), 1, None)
    return str(paths[0]), str(paths[1])
