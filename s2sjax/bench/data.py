"""The input pipeline beside what it feeds: pairs and tokens a second, raw, prepared and packed, and the training step.

A token is a real one, of source or target; padding does not count.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from s2sjax import config
from s2sjax.bench import train
from s2sjax.core.tokens import PAD
from s2sjax.data import batches, columns, pairs, prepare

PAIRS = 50_000
WORDS = 8_000
SECONDS = 3.0
"""that each pipeline is watched"""
ENOUGH = 5
"""times what the step consumes: then the step never waits"""


def bench(rounds: int = 1, model: config.ModelConfig | None = None, pairs: int = PAIRS) -> None:
    """Prints a line for each pipeline, the step, and how often the slowest pipeline could feed it."""
    with tempfile.TemporaryDirectory() as folder:
        files = _corpus(Path(folder), pairs)
        raw = config.Data(
            config.TextFiles(train=files), config.Text("words"), config.Text("words"),
            buckets=((16, 16), (32, 32), (64, 64)), tokens=2048,
        )  # fmt: skip
        begin = time.perf_counter()
        made = prepare.prepare(raw, Path(folder) / "prepared", workers=os.cpu_count() or 1)
        seconds = time.perf_counter() - begin
        print(f"{'':24}{'pairs/s':>12}{'tokens/s':>14}{'of it padding':>16}")
        print(f"{'prepare, once':24}{made.pairs / seconds:12,.0f}{made.tokens / seconds:14,.0f}", flush=True)
        prepared = config.replace(raw, corpus=config.Prepared(str(made.folder)))
        rates = []
        for name, data in (
            ("raw", raw),
            ("raw, packed", config.replace(raw, packing=True)),
            ("prepared", prepared),
            ("prepared, packed", config.replace(prepared, packing=True)),
        ):
            counts, padding, batch = _watch(data)
            print(f"{name:24}{counts[0]:12,.0f}{counts[1]:14,.0f}{100 * padding:15.1f}%", flush=True)
            rates.append(counts[1])
            if name == "raw":
                plain = batch
    base = model or config.Transformer()
    begin = time.perf_counter()
    step = train._ours(base, WORDS, plain["source"], plain["target"])
    print(f"the step was compiled and run in {time.perf_counter() - begin:.1f} s", flush=True)
    tokens = sum(int((plain[side] != PAD).sum()) for side in ("source", "target"))
    consumed = tokens / train._seconds(step, rounds)
    size = f"Transformer {base.width}" if isinstance(base, config.Transformer) else type(base).__name__
    print(f"{f'step of {size}':24}{len(plain['source']) * consumed / tokens:12,.1f}{consumed:14,.1f}")
    ratio = min(rates) / consumed
    verdict = "enough" if ratio >= ENOUGH else f"NOT enough: {ENOUGH} are wanted"
    print(f"the slowest pipeline feeds {ratio:,.1f} such steps at once: {verdict}")


def _watch(data: config.Data) -> tuple[tuple[float, float], float, columns.Batch]:
    """(pairs, tokens) a second, the share of padding, and a batch of the middle bucket."""
    examples = pairs.read(data)
    found = pairs.make_columns(data, examples, *pairs.vocabularies(data, examples), seed=0)
    plan = pairs.make_plan(data, found, seed=0, multiple=1)
    stream = batches.stream(found, plan, 0, 10**9, prefetch=data.prefetch)
    chosen = next(batch for _, batch in stream if batch["source"].shape[1] == 32 or data.packing)
    count = tokens = places = 0
    begin = time.perf_counter()
    while (seconds := time.perf_counter() - begin) < SECONDS:
        _, batch = next(stream)
        count += int((batch["example"] >= 0).sum())
        tokens += int((batch["source"] != PAD).sum() + (batch["target"] != PAD).sum())
        places += batch["source"].size + batch["target"].size
    stream.close()  # type: ignore[attr-defined]
    return (count / seconds, tokens / seconds), 1 - tokens / places, chosen


def _corpus(folder: Path, pairs: int) -> tuple[str, str]:
    """Two files of lines of 4 to 44 words, those of a pair about as long.

    Words are drawn as they are in texts: the n-th most frequent in proportion to 1 / n.
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
