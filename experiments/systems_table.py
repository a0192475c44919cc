"""Collects the scores of the sweeps of all systems and writes the tables of docs/systems/comparison.md.

    s2sjax sweep experiments/systems/*.py --seed 0,1,2,3,4 --name systems-pronunciation
    python experiments/multi30k_systems.py
    python experiments/systems_table.py [runs]

comparison.json beside the page keeps what was measured, so that a table can be completed later and elsewhere. A table
is written, as mean ± standard deviation over the seeds that are finished, when each of its systems has one; it stands
between two comments that name its data.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import jax
from multi30k_systems import MODELS

from s2sjax import config, models
from s2sjax.cli import start_jax
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.runs.run import Run, load
from s2sjax.runs.sweeps import sweep_results

HERE = Path(__file__).parent
PAGE = HERE.with_name("docs") / "systems/comparison.md"
STORE = PAGE.with_suffix(".json")
SYSTEMS = {
    "pronunciation": (
        "rctm", "cho", "sutskever", "character", "rnnsearch", "luong", "luong_local", "luong_mingru", "gnmt", "convs2s",
        "transformer", "pair", "lstm_dense", "dense_dense",
    ),
    "translation": tuple(MODELS),
}  # fmt: skip
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


def measured(run: Run, data: str) -> dict[str, Any] | None:
    """The weights of a run, whether it attends, and its scores on test; None if it has none."""
    evaluations = [each for each in run.evaluations() if each.split == "test"]
    if not evaluations:
        return None
    shapes = jax.eval_shape(run.task.init, jax.random.key(0))
    aligned = config.encoder_and_decoder(run.experiment.model)[1].attends_own_position
    return {
        "weights": sum(leaf.size for leaf in jax.tree.leaves(shapes)),
        "attention": "aligned" if aligned else "yes" if run.task.module.attends else "no",
        "scores": {metric: evaluations[-1][metric].value for metric in COLUMNS[data]},
    }


def collect(runs: Path, store: dict[str, Any]) -> None:
    """Adds the runs that are finished."""
    for data in SYSTEMS:
        folder = runs / f"systems-{data}"
        members = sweep_results.read_page(folder)["members"] if folder.exists() else {}
        for name, settings in members.items():
            started = (folder / name / "config.json").exists()
            if found := measured(load(folder / name), data) if started else None:
                system = store.setdefault(data, {}).setdefault(settings.get("experiment") or settings["model"], {})
                system[str(settings["seed"])] = found


def table(data: str, store: dict[str, Any]) -> str | None:
    """None while a system has no score."""
    systems, columns = {name: store.get(data, {}).get(name) for name in SYSTEMS[data]}, COLUMNS[data]
    lines = [
        f"| model | paper | lines of code | weights | attention | n | {' | '.join(columns.values())} |",
        f"|---|---|---:|---:|---|---:|{'---:|' * len(columns)}",
    ]
    for name, seeds in systems.items():
        if not seeds:
            return None
        runs, file = list(seeds.values()), HERE / "systems" / f"{name}.py"
        link = file if data == "pronunciation" else HERE / "multi30k_systems.py"
        model = load_experiment(file).model if data == "pronunciation" else MODELS[name]
        cells = [
            f"[{name}](../../{link.relative_to(HERE.parent).as_posix()})",
            paper(file),
            str(lines_of_code(model)),
            f"{runs[0]['weights']:,}",
            runs[0]["attention"],
            str(len(runs)),
            *(spread([run["scores"][metric] for run in runs]) for metric in columns),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def main(runs: Path) -> None:
    start_jax.start_jax()
    store = json.loads(STORE.read_text("utf-8"))
    collect(runs, store)
    STORE.write_text(json.dumps(store, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    page = PAGE.read_text("utf-8")
    for data in SYSTEMS:
        comment = f"<!-- {data} -->"
        if text := table(data, store):
            print(text)
            before, _, after = page.split(comment)
            page = f"{before}{comment}\n\n{text}\n\n{comment}{after}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
