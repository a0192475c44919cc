"""s2sjax: sequence-to-sequence research in JAX, from the plain recurrent cell to the Transformer.

run = s2sjax.load("runs/g2p")                    opens a trained run
run = s2sjax.train(experiment, "runs/mine")      trains an experiment
swept = s2sjax.sweep(experiment, {"seed": [0, 1]}, "runs/seeds")      trains it with several values of some settings
s2sjax.compare("runs/g2p", "runs/mine")          tests whether their scores differ significantly
s2sjax.get_data("tatoeba")                       gets a public data set and returns its folder
s2sjax.import_pretrained("opus-mt-en-de", "runs/opus")       imports a model of Hugging Face as a run
s2sjax.export(run, "exported")                   writes a run as a folder that transformers or CTranslate2 load

See docs/python.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s2sjax import former_names
from s2sjax.version import __version__ as __version__

if TYPE_CHECKING:  # importing s2sjax does not import JAX
    from s2sjax.config import Experiment
    from s2sjax.datasets.table import DataSet
    from s2sjax.runs.comparison import Comparison
    from s2sjax.runs.evaluations import Evaluation
    from s2sjax.runs.run import Run
    from s2sjax.runs.sweeps.sweep import Swept

former_names.install()


def load(folder: str | Path, trust: bool = False) -> Run:
    """Opens the run in a folder. See s2sjax/runs/run.py.

    trust: execute the code of a run that this user has not trained, and remember that it is trusted.
    """
    from s2sjax.runs import run

    return run.load(folder, trust)


def train(
    experiment: Experiment | str | Path,
    folder: str | Path | None = None,
    init: str | Path | None = None,
    init_assets: bool = False,
    *,
    accept_code: bool = False,
) -> Run:
    """Trains an experiment in a folder (default: runs/NAME) and returns the run. Continues from its newest checkpoint.

    experiment: an experiment, or the path of an experiment file. init: the run folder from which a new run takes its
    initial parameters; with `init_assets`, also its vocabularies. accept_code: continue a run whose code has changed.
    `s2sjax.runs.run.train` also returns the final state.
    """
    from s2sjax import config
    from s2sjax.runs import run

    file = None
    if isinstance(experiment, str | Path):
        place = lambda read: config.as_path(folder or f"runs/{read.name}")
        file, experiment = experiment, run.load_experiment(experiment, place)
    trained, _ = run.train(experiment, folder or f"runs/{experiment.name}", file, init, init_assets, accept_code)
    return trained


def sweep(
    experiment: Experiment | str | Path | Mapping[str, Experiment | str | Path],
    grid: Mapping[str, Any],
    folder: str | Path | None = None,
    *,
    pairs: bool = False,
    random: int = 0,
    same_data: bool = False,
    halving: int = 0,
    at_once: int = 0,
    init: str | Path | None = None,
    init_assets: bool = False,
    accept_code: bool = False,
) -> Swept:
    """Trains an experiment with all combinations of the values in `grid`, together where their shapes agree.

    Returns the runs by name and a table, a list of dicts. Every member is an ordinary run in its own folder below
    `folder` (default: runs/NAME-sweep); finished ones are not trained again.

    experiment: an experiment, or the path of an experiment file; several, by name, are compared with each other.
    grid: {"seed": range(3), "train.learning_rate": [1e-3, 2e-3]}; a dict gives names to values such as models.
    pairs: pair the values up instead of combining all with all. random: draw this many combinations, from lists and
    from `s2sjax.runs.sweeps.sweep_grid.Range(low, high)`. same_data: give all members the batches of the first seed.
    halving: after each evaluation, keep only the best 1 / halving of the members. at_once: maximum number of members to
    train at once, 0 for as many as fit in memory. init, init_assets, accept_code: as for `train`.
    """
    from s2sjax import config
    from s2sjax.runs import run
    from s2sjax.runs.sweeps import sweep as sweeps

    several = dict(experiment) if isinstance(experiment, Mapping) else {"": experiment}
    files = {name: each for name, each in several.items() if isinstance(each, str | Path)}
    experiments: dict[str, Any] = {}

    def place(experiment: Experiment) -> Path:
        """The folder of the sweep, which has the name of the first experiment."""
        return config.as_path(folder or f"runs/{next(iter(experiments.values()), experiment).name}-sweep")

    for name, each in several.items():
        experiments[name] = run.load_experiment(each, place) if isinstance(each, str | Path) else each
    first = next(iter(experiments.values()))
    options = sweeps.Options(
        pairs=pairs, random=random, same_data=same_data, halving=halving, at_once=at_once, accept_code=accept_code,
        init=init, init_assets=init_assets,
    )  # fmt: skip
    swept = experiments if isinstance(experiment, Mapping) else first
    found = sweeps.sweep(swept, grid, place(first), options, files)
    if found is None:
        raise KeyboardInterrupt("a SIGTERM has interrupted the sweep: call it again to continue")
    return found


def compare(
    first: Run | Evaluation | str | Path,
    second: Run | Evaluation | str | Path,
    split: str | None = None,
    resamples: int = 1000,
) -> Comparison:
    """Compares two evaluations, or the newest ones of two runs: scores, and significance of the difference."""
    from s2sjax.runs import comparison

    return comparison.compare(first, second, split, resamples)


def get_data(name: str | DataSet, folder: str | Path | None = None, *, offline: bool | None = None) -> Path:
    """Gets a public data set, unless its files are there, and returns its folder.

    name: one of `s2sjax data list`, or a `s2sjax.datasets.table.DataSet` of your own. folder: the folder of all data
    sets, by default $S2SJAX_DATA, or data in the current directory. offline: raise an error instead of downloading, by
    default whether $S2SJAX_OFFLINE is set. Files that no experiment needs, such as test parts, may be missing in a
    folder that is otherwise complete.
    """
    from s2sjax.datasets import store

    return store.get(name, None if folder is None else Path(folder), offline=offline, every=False)


def data_path(path: str) -> Path:
    """The absolute path of a file of a data set: data_path("tatoeba/deu.train.tsv"). Raises if it is missing."""
    from s2sjax.datasets import folder, table
    from s2sjax.errors import UserError

    found = Path(folder.resolve(folder.PREFIX + path.removeprefix(folder.PREFIX)))
    if not found.exists():
        name = path.removeprefix(folder.PREFIX).partition("/")[0]
        raise UserError(
            table.missing(found) or f"there is no file {found}: run s2sjax data get {table.find(name).name}"
        )
    return found


def import_pretrained(
    source: str | Path,
    out: str | Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    test: Sequence[str | Path] = (),
) -> Run:
    """Imports a folder of Hugging Face as a run, and returns it. Prints what was read, and what was not taken.

    source: a folder with config.json, model.safetensors and the files of the tokenizer. out: the run folder to write.
    source_language, target_language: codes of a model of many languages, such as eng_Latn. test: text files to evaluate
    on, as of `config.TextFiles`.
    """
    from s2sjax.runs import pretrained

    return pretrained.import_pretrained(
        source, out, source_language=source_language, target_language=target_language, test=test
    )


def export(run: Run | str | Path, out: str | Path, kind: str = "hf", *, dtype: str | None = None) -> Path:
    """Writes the best checkpoint of a run as a folder that other libraries load, and returns the folder.

    kind: hf, for transformers, ctranslate2, or peft for low-rank adapters alone. dtype: float32, float16 or bfloat16,
    by default that of the imported model, or float32.
    """
    from s2sjax.runs import pretrained

    return pretrained.export(load(run) if isinstance(run, str | Path) else run, out, kind, dtype=dtype)
