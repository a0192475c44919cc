"""Collects the scores of the runs of train.py and writes the tables of docs/systems.md.

    python experiments/systems/table.py [runs/systems]

docs/systems.json keeps what was measured, so that a table can be completed later and elsewhere. A table is written, as
mean ± standard deviation, when all of its systems have all seeds; it stands between two comments that name its data.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import jax
from train import HERE, SYSTEMS, experiment_of, file_of, finished

from s2sjax import config, models
from s2sjax.cli import start_jax
from s2sjax.runs.run import load

ROOT = Path(__file__).parents[2]
STORE, PAGE = ROOT / "docs" / "systems.json", ROOT / "docs" / "systems.md"
SEEDS = ("0", "1", "2")
COLUMNS = {"pronunciation": {"per": "PER, %", "wer": "WER, %"}, "translation": {"bleu_tokenized": "tokenised BLEU"}}


def paper(file: Path) -> str:
    """The authors and the year in the docstring of an experiment file."""
    found = re.search(r"^Paper +(.*? \d{4})", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{file} has no line that begins with Paper"
    return found[1]


def lines_of_code(model: config.ModelConfig) -> int:
    """The number of lines of the files of its encoder and decoder, docstrings included."""
    encoder, decoder = config.encoder_and_decoder(model)
    kinds = {models.FAMILIES[type(encoder)][0], models.FAMILIES[type(decoder)][1]}
    files = {sys.modules[kind.__module__].__file__ for kind in kinds}
    return sum(len(Path(str(file)).read_text(encoding="utf-8").splitlines()) for file in files)


def measured(folder: Path, data: str) -> dict[str, Any]:
    """The weights of a run, whether it attends, and its scores on test."""
    run = load(folder)
    shapes = jax.eval_shape(run.task.init, jax.random.key(0))
    scores = [found for found in run.evaluations() if found.split == "test"][-1]
    aligned = config.encoder_and_decoder(run.experiment.model)[1].attends_own_position
    return {
        "weights": sum(leaf.size for leaf in jax.tree.leaves(shapes)),
        "attention": "aligned" if aligned else "yes" if run.task.module.attends else "no",
        "scores": {metric: scores[metric].value for metric in COLUMNS[data]},
    }


def collect(runs: Path, store: dict[str, Any]) -> None:
    """Adds the runs that are finished."""
    for data, names in SYSTEMS.items():
        for name in names:
            for seed in SEEDS:
                folder = runs / data / f"{name}-{seed}"
                if finished(folder):
                    store.setdefault(data, {}).setdefault(name, {})[seed] = measured(folder, data)


def table(data: str, store: dict[str, Any]) -> str | None:
    """None while a score is missing."""
    found = store.get(data, {})
    if any(seed not in found.get(name, {}) for name in SYSTEMS[data] for seed in SEEDS):
        return None
    columns = COLUMNS[data]
    lines = [
        f"| model | paper | lines of code | weights | attention | {' | '.join(columns.values())} |",
        f"|---|---|---:|---:|---|{'---:|' * len(columns)}",
    ]
    for name in SYSTEMS[data]:
        runs = [found[name][seed] for seed in SEEDS]
        values = {metric: [run["scores"][metric] for run in runs] for metric in columns}
        cells = [
            f"[{name}](../{file_of(data, name).relative_to(ROOT).as_posix()})",
            paper(HERE / f"{name}.py"),
            str(lines_of_code(experiment_of(data, name).model)),  # type: ignore[attr-defined]
            f"{runs[0]['weights']:,}",
            runs[0]["attention"],
            *(f"{statistics.mean(each):.2f} ± {statistics.stdev(each):.2f}" for each in values.values()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(runs: Path) -> None:
    start_jax.start_jax()
    store = json.loads(STORE.read_text("utf-8")) if STORE.exists() else {}
    collect(runs, store)
    STORE.write_text(json.dumps(store, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    page = PAGE.read_text("utf-8")
    for data, names in SYSTEMS.items():
        done = sum(seed in store.get(data, {}).get(name, {}) for name in names for seed in SEEDS)
        text, comment = table(data, store), f"<!-- {data} -->"
        print(f"{data}: {done} of {len(names) * len(SEEDS)} runs")
        if text:
            print(text)
        if text and page.count(comment) == 2:
            before, _, after = page.split(comment)
            page = f"{before}{comment}\n\n{text}\n\n{comment}{after}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/systems"))
