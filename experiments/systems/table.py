"""Prints the table of docs/systems.md from the runs that were made: python experiments/systems/table.py [runs]"""

import json
import re
import sys
from pathlib import Path

import jax

from s2sjax import config, models
from s2sjax.experiment_file import load_experiment
from s2sjax.run import load

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
ORDER = ("rctm", "cho", "sutskever", "character", "rnnsearch", "luong", "luong_local", "luong_mingru", "gnmt",
         "convs2s", "transformer", "pair", "lstm_dense", "dense_dense")  # fmt: skip


def paper(page: Path) -> str:
    """The authors and the year that a page's docstring begins with."""
    found = re.search(r"^Paper +(.*? \d{4})", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{page} names no paper"
    return found[1]


def lines_of_code(model: config.ModelConfig) -> int:
    """Of the files that hold its encoder and its decoder, docstrings and all."""
    read, write = config.sides(model)
    kinds = {models.FAMILIES[type(read)][0], models.FAMILIES[type(write)][1]}
    files = {sys.modules[kind.__module__].__file__ for kind in kinds}
    return sum(len(Path(str(file)).read_text(encoding="utf-8").splitlines()) for file in files)


def main(runs: Path) -> None:
    print("| system | paper | lines of its files | weights | attention | PER | WER |")
    print("|---|---|---:|---:|---|---:|---:|")
    for name in ORDER:
        page = HERE / f"{name}.py"
        experiment = load_experiment(str(page))
        run = load(runs / experiment.name)
        shapes = jax.eval_shape(run.task.init, jax.random.key(0))
        weights = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        scores = json.loads((run.folder / "results.json").read_text(encoding="utf-8"))
        cells = [
            f"[{name}](../{page.relative_to(ROOT).as_posix()})",
            paper(page),
            str(lines_of_code(experiment.model)),
            f"{weights:,}",
            "own place" if "dense" in name else "yes" if run.task.module.attends else "no",
            *(f"{scores[metric]['value']:.2f}%" for metric in ("per", "wer")),
        ]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
