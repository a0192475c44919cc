"""Prints the table of docs/systems.md from the run folders: python experiments/systems/table.py [runs]"""

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


def main(runs: Path) -> None:
    print("| model | paper | lines of code | weights | attention | PER | WER |")
    print("|---|---|---:|---:|---|---:|---:|")
    for name in ORDER:
        file = HERE / f"{name}.py"
        experiment = load_experiment(str(file))
        run = load(runs / experiment.name)
        shapes = jax.eval_shape(run.task.init, jax.random.key(0))
        weights = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        scores = [found for found in run.evaluations() if found.split == "test"][-1]
        attention = "yes" if run.task.module.attends else "no"
        if config.encoder_and_decoder(experiment.model)[1].attends_own_position:
            attention = "aligned"
        cells = [
            f"[{name}](../{file.relative_to(ROOT).as_posix()})",
            paper(file),
            str(lines_of_code(experiment.model)),
            f"{weights:,}",
            attention,
            *(f"{scores[metric].value:.2f}%" for metric in ("per", "wer")),
        ]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
