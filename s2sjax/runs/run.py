"""Runs: trained experiments, opened from their folders to predict and evaluate.

run, result = train(experiment, "runs/mine")
run = load("runs/mine")
run.decode(["a line", "another"])
run.evaluate("test")
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import jax

from s2sjax import config
from s2sjax.core.backend.device import use_compilation_cache
from s2sjax.errors import UserError
from s2sjax.evaluate.prediction.attention_heads import AttentionHeads, Kind, check_kind
from s2sjax.evaluate.prediction.line_notes import Notes
from s2sjax.evaluate.prediction.translator import Output, Translator
from s2sjax.layers.parameters import shapes_only
from s2sjax.runs import evaluations, folder, lock
from s2sjax.runs.evaluations import Evaluation, evaluate
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.tasks.task import Predictor, Task
from s2sjax.training import jax_settings, multihost
from s2sjax.training import mesh as meshes
from s2sjax.training.checkpoints.manager import Checkpoints
from s2sjax.training.loop import FitResult
from s2sjax.training.run_log import METRICS

if TYPE_CHECKING:  # Matplotlib and Optax are slow to import
    from s2sjax.evaluate.figures.attention_maps import AttentionMap
    from s2sjax.evaluate.figures.search_trees import SearchTree
    from s2sjax.evaluate.figures.style import Drawing
    from s2sjax.training.profiling import Steps

__all__ = ["Run", "evaluate", "load", "load_experiment", "train"]


class Score(NamedTuple):
    """The score of a target, given its source."""

    log_prob: float
    tokens: int
    """number of target tokens, including <eos>"""


class Run:
    """A trained experiment. Parameters are restored once, and compiled programs are reused from call to call."""

    def __init__(self, folder: str | Path, task: Task):
        self.folder, self.task = config.as_path(folder), task
        self.trained = task.experiment
        """the experiment as it was trained; `experiment` may have other settings for predictions"""
        self._params: dict[Any, tuple[Any, int]] = {}
        self._with_search: dict[Any, Run] = {}

    def __repr__(self) -> str:
        return f"<Run {self.folder}: {self.experiment.name}, {self.task.model_name}>"

    @property
    def experiment(self) -> Any:
        return self.task.experiment

    def adjusted(self, **fields: Any) -> Run:
        """The same run with other settings for predictions: `run.adjusted(search=config.Search(beam_size=8))`."""
        other = Run(self.folder, self.task.replace(config.replace(self.experiment, **fields)))
        other.trained, other._params = self.trained, self._params
        return other

    # ---------------------------------------------------------------------------- predictions

    @overload
    def decode(self, lines: str, **search: Any) -> Any: ...
    @overload
    def decode(self, lines: Sequence[Any], **search: Any) -> list[Any]: ...
    def decode(self, lines: str | Sequence[Any], **search: Any) -> Any:
        """The best output of each line, as a string: run.decode(["a line"], beam_size=8). One string gives one output.

        search: fields of config.Search. A task that does not translate text returns its own type of outputs, and
        accepts examples as well as lines.
        """
        if self.task.generates_text:
            found = [best[0].text for best in self.nbest([lines] if isinstance(lines, str) else lines, **search)]
        else:
            run = self._searching(search)
            named = enumerate([lines] if isinstance(lines, str) else _listed(lines), start=1)
            examples = [self.task.example_of(x, f"line {n}") if isinstance(x, str) else x for n, x in named]
            found = run.predictor(run._restored(), examples) if examples else []
        return found[0] if isinstance(lines, str) else found

    def nbest(self, lines: Sequence[str], nbest: int | None = None, **search: Any) -> list[list[Output]]:
        """The `nbest` best outputs of each line, best first, with text, score, log_prob and ids."""
        run = self._searching(search if nbest is None else {**search, "nbest": nbest})
        notes = Notes()
        found = run._translator.decode(run._restored(), _strings(lines), notes=notes)
        _warn(notes)
        return found

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """The log-probability of each (source, target) pair."""
        pairs, notes = _pairs(pairs), Notes()
        found = self._translator.score(self._restored(), pairs, notes=notes)
        _warn(notes)
        return [Score(*each) for each in found]

    def attention(
        self, line: str, of: Kind = "cross", layer: int | None = None, head: int | None = None, **search: Any
    ) -> AttentionMap:
        """The attention of the best output of a line: source and target pieces, weights [T, S]. A notebook draws it.

        of: "cross", from the output to the source; "encoder" or "decoder", its self-attention
        layer, head: their numbers, from 1; by default the mean of all
        """
        from s2sjax.evaluate.figures.attention_maps import AttentionMap

        if (of, layer, head) != ("cross", None, None):
            return self.attention_heads(line, of, **search).map(layer, head)
        run = self._searching(search)
        run._translator.require_attention("an attention map")
        params = run._restored()
        (outputs,) = run._translator.decode(params, _strings([line]))
        return AttentionMap(*run._translator.attention(params, [line], outputs)[0], title=line)

    def attention_heads(self, line: str, of: Kind = "cross", **search: Any) -> AttentionHeads:
        """The attention of the best output of a line, by layer and head: weights [layers, heads, T, S].

        of: as in `attention`. Classifiers, taggers and pre-trained models have an encoder, language models a decoder;
        they show how they read the line.
        """
        check_kind(of)
        if not _strings([line])[0].strip():
            raise UserError("the line is blank, so nothing attends to it: write some text")
        if of != "cross" and not self.task.generates_text:
            return self.task.self_attention(self._restored(), line, of)._replace(title=line)
        run = self._searching(search)
        if of == "cross":
            run._translator.require_attention("an attention map")
        params = run._restored()
        (outputs,) = run._translator.decode(params, [line])
        return run._translator.heads_of(params, line, outputs[0], of)._replace(title=line)

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[set[tuple[int, int]]]:
        """The (source word, target word) links of each (source, target) pair: where each target word attends most."""
        from s2sjax.align.attention_links import attention_links

        return attention_links(self._translator, self._restored(), _pairs(pairs))

    def tree(self, line: str, **search: Any) -> SearchTree:
        """The beam search of a line. A notebook draws it."""
        from s2sjax.evaluate.figures.search_trees import SearchTree

        run = self._searching(search)
        tree, found = run._translator.tree(run._restored(), *_strings([line]))
        return SearchTree(tree, found, run.task.assets["target"].pieces)

    def curves(self) -> Drawing:
        """A drawing of the training loss and the scores against the step."""
        from s2sjax.evaluate.figures.style import Drawing
        from s2sjax.evaluate.figures.training_curves import learning_curves

        return Drawing(partial(learning_curves, runs={self.folder.name: self.folder / METRICS}))

    def evaluate(
        self, split: str | None = None, also: Sequence[Any] = (), average: int = 0, **search: Any
    ) -> Evaluation:
        """Predicts a split, scores it, and writes RUN/evaluations/NAME. See evaluations.py.

        also: other runs, or their folders, that form an ensemble with this one.
        """
        listed = [also] if isinstance(also, str | Path | Run) else also
        others = [other if isinstance(other, Run) else load(other) for other in listed]
        return evaluate(self._searching(search), split, others, average)

    def evaluations(self) -> list[Evaluation]:
        """All evaluations of this run, newest last."""
        return evaluations.read_all(self.folder)

    def _searching(self, fields: dict[str, Any]) -> Run:
        """The same run with other search settings. The same settings give the same object, which keeps its programs."""
        if not fields:
            return self
        if "search" not in self.experiment.decode_fields:
            raise UserError(f"{self.folder} has no search settings: leave out {', '.join(fields)}")
        search = config.replace(self.experiment.search, **fields)
        if search == self.experiment.search:
            return self
        if search not in self._with_search:
            self._with_search[search] = self.adjusted(search=search)
        return self._with_search[search]

    @cached_property
    def _translator(self) -> Translator:
        if not self.task.generates_text:
            raise UserError(f"{self.folder} does not translate text: use run.decode or run.evaluate")
        return self.task.translator(self.mesh())  # type: ignore[attr-defined]

    @cached_property
    def predictor(self) -> Predictor:
        return self.task.predictor(self.mesh())

    def _restored(self) -> Any:
        return self.params(mesh=self.mesh())[0]

    # ------------------------------------------------------------------------------ the state

    def mesh(self) -> jax.sharding.Mesh:
        """A mesh of all devices: as in training if their number allows, else with a copy of the model on each."""
        wanted = self.experiment.train.mesh
        split = wanted.fsdp * wanted.tensor
        fits = jax.device_count() % split == 0 and wanted.data in (-1, jax.device_count() // split)
        return meshes.make_mesh(wanted if fits else config.Mesh())

    def checkpoints(self, read_only: bool = False) -> Checkpoints:
        return folder.checkpoints(self.folder, self.task, read_only)

    def params(self, average: int = 0, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, int]:
        """Restores (the parameters of the best checkpoint, its step). Raises if they do not fit this model.

        average: restore the mean of that many newest checkpoints instead, with the step of the newest. mesh: shard the
        parameters over it as in training. The result is cached.
        """
        if not isinstance(average, int) or average < 0:
            raise UserError(f"average is {average!r}: it must be a whole number, 0 for the best checkpoint")
        if (average, mesh) not in self._params:
            self._params[average, mesh] = self._restore(average, mesh)
        return self._params[average, mesh]

    def _restore(self, average: int, mesh: jax.sharding.Mesh | None) -> tuple[Any, int]:
        jax_settings.check()
        with shapes_only():
            # Inside eval_shape, the key is abstract too: a concrete one would compile and run a program.
            template = jax.eval_shape(lambda: self.task.init(jax.random.key(0)))
        if mesh:
            template = meshes.with_shardings(template, mesh, self.task.rules if mesh.shape["tensor"] > 1 else ())
        checkpoints = self.checkpoints(read_only=True)
        restore = partial(checkpoints.restore_average, average) if average else checkpoints.restore_params
        params, step = restore(template)
        return self.task.merged(params), step

    def check_ensemble(self, others: Sequence[Run]) -> None:
        """Raises if the runs cannot form an ensemble with this one."""
        if others and not (self.task.generates_text or self.task.has_ensembles):
            raise UserError(f"{self.folder} does not translate text, so it cannot be part of an ensemble: drop --also")
        for other in others:
            if config.kind_of(type(other.task)) != config.kind_of(type(self.task)):
                mine, theirs = (type(run.task.experiment).__name__ for run in (self, other))
                raise UserError(
                    f"{self.folder} is {mine} and {other.folder} is {theirs}: an ensemble requires runs of one task"
                )
            self.task.check_ensemble(other.task)
            for name, asset in self.task.assets.items():
                if name not in other.task.assets or other.task.assets[name].fingerprint != asset.fingerprint:
                    raise UserError(
                        f"{other.folder} and {self.folder} have different {name} vocabularies: "
                        "an ensemble requires runs with the same vocabularies"
                    )


def load(path: str | Path, trust: bool = False) -> Run:
    """Opens the run in a folder.

    trust: execute the code of a run that this user has not trained, and remember that it is trusted (stored_code.py).
    """
    use_compilation_cache()
    return Run(path := config.as_path(path), folder.open_task(path, trust))


# ------------------------------------------------------------------------------------ training


def train(
    experiment: config.Experiment,
    path: str | Path,
    file: str | Path | None = None,
    init: str | Path | None = None,
    init_assets: bool = False,
    accept_code: bool = False,
    profile: Steps | None = None,
    began: float | None = None,
) -> tuple[Run, FitResult]:
    """Trains an experiment in a folder. Returns the run, and the result with the final state.

    Continues from the newest checkpoint if there is one. Only one process, or pod, at a time can train in a folder.
    Ctrl-C saves, then raises KeyboardInterrupt. file: the experiment file, which is copied into the folder; then the
    experiment already has the settings that its field `init` takes (`load_experiment`). init: the run from which a new
    run takes its initial parameters; with `init_assets`, also its vocabularies. accept_code: continue a run whose code
    has changed, which is refused otherwise. profile: the first and the last step of a trace (training/profiling.py).
    began: when the run began, by `time.perf_counter`; by default with this call.
    """
    began = time.perf_counter() if began is None else began
    from s2sjax.runs import initial_settings, train_run  # imports Optax, which is slow

    path = config.as_path(path)
    if file is None:
        experiment = initial_settings.take(config.resolve_paths(experiment, Path.cwd()), path)
    with lock.held(path):
        inputs = train_run.resolve(experiment, path, file, init, init_assets, profile=profile)
        task = train_run.open_folder(inputs, path, init_assets=init_assets, accept_code=accept_code)
        training = train_run.build(inputs, task, path, began)
        del inputs  # frees the examples: training reads the columns
        return Run(path, task), train_run.fit(training, path, init, profile)


# ---------------------------------------------------------------------------------- after training


def show(run: Run) -> list[Path]:
    """Prints and draws the figures of a trained run. Returns the files that were written."""
    mesh = run.mesh()
    written = run.task.figures(run.folder, mesh, lambda: run.params(mesh=mesh)[0])
    if (run.folder / METRICS).exists() and multihost.is_leader():
        written.append(run.curves().save(run.folder / "curves.png"))
    return written


def _strings(lines: Sequence[str]) -> list[str]:
    """The lines as a list. Raises if one is not a string."""
    found = _listed(lines)
    for number, line in enumerate(found, start=1):
        if not isinstance(line, str):
            raise UserError(f"line {number} is {line!r:.60}: give strings")
    return found


def _pairs(items: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs as a list. Raises if one is not a pair of strings."""
    pairs = _listed(items)
    for number, pair in enumerate(pairs, start=1):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise UserError(f"pair {number} is {pair!r:.60}: give (source, target) pairs of strings")
    return pairs


def _listed(items: Any) -> list[Any]:
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise UserError(f"{items!r:.60} is not a list: give a list")
    return list(items)


def _warn(notes: Notes) -> None:
    for line in notes.report():
        warnings.warn(line, stacklevel=3)
