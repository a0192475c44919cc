"""The folder of a sweep, without training: what s2sjax sweep leaves there, with scores that a test chooses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from s2sjax.evaluate.metrics.corpus_metrics import MetricResult
from s2sjax.runs import evaluations

STEPS = 20
Score = float | Sequence[float] | str
"""WER of a member; [number of wrong words of each example, which has ten]; or a status"""


def name_of(settings: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in settings.items())


def make(folder: Path, members: Sequence[tuple[dict[str, Any], Score]], split: str = "test") -> Path:
    """Writes a sweep. members: (settings, score)."""
    folder.mkdir(parents=True)
    listed = {name_of(settings): settings for settings, _ in members}
    dropped = {name_of(settings): STEPS // 2 for settings, score in members if score == "dropped"}
    (folder / "sweep.json").write_text(json.dumps({"s2sjax": "0.1", "members": listed, "dropped": dropped}))
    for settings, score in members:
        run = folder / name_of(settings)
        if score == "missing":
            continue
        start(run, steps=STEPS // 2 if score in ("unfinished", "dropped", "diverged") else STEPS)
        if score == "diverged":
            skipped = [json.dumps({"step": 11 + n, "loss": "nan"}) + "\n" for n in range(3)]
            (run / "nonfinite.jsonl").write_text("".join(skipped))
        elif not isinstance(score, str):
            evaluate(run, score, split)
    return folder


def start(run: Path, steps: int = STEPS, patience: int = 0) -> None:
    """Writes the config.json and metrics.jsonl of a run that has been trained for so many of its STEPS."""
    run.mkdir()
    train = {"steps": STEPS, "max_skipped": 3, "patience": patience}
    page = {"data": "", "assets": {}, "experiment": {"seed": 0, "train": train, "model": {"width": 8}}}
    (run / "config.json").write_text(json.dumps(page))
    shift = sum(map(ord, run.name)) % 7 / 10  # runs differ
    lines: list[dict[str, Any]] = [{"step": step, "loss": 3 / step + shift} for step in range(1, steps + 1)]
    lines += [{"step": step, "score": "wer", "wer": 90 / step + shift} for step in range(5, steps + 1, 5)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def evaluate(run: Path, score: float | Sequence[float], split: str = "test", **options: Any) -> evaluations.Evaluation:
    """Writes an evaluation with two metrics: WER, which is better if low, and exact, which is better if high."""
    wrong = [score / 10] * 4 if isinstance(score, int | float) else list(score)
    wer = [(100.0 * each, 10.0) for each in wrong]
    exact = [(100.0 - 10 * each, 1.0) for each in wrong]
    results = {
        name: MetricResult(name, sum(a for a, _ in terms) / sum(b for _, b in terms), name == "exact", None, len(terms),
                           label, terms=terms)
        for name, label, terms in (("wer", "WER", wer), ("exact", "exact", exact))
    }  # fmt: skip
    records = [{"source": str(n), "hypothesis": "a", "references": ["b"]} for n in range(len(wrong))]
    return evaluations.write(evaluations.make(run, split, STEPS, results, **options), records, results)
