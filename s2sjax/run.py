"""An experiment and its folder: everything the commands share.

A run folder holds config.json, vocabulary/, checkpoints/, metrics.jsonl, tensorboard/, samples.txt, once it was
evaluated results.json and attention.png, and, if steps were skipped, nonfinite.jsonl with the numbers of their
examples: all that decoding needs, and nothing else.
"""

import contextlib
import json
import os
import runpy
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import __version__, config, models
from s2sjax.core import sampled
from s2sjax.data import Example, batches, sources, text, training
from s2sjax.data.parts import Parts
from s2sjax.errors import UserError
from s2sjax.evaluate import figures, metrics
from s2sjax.evaluate.decoding import Translator
from s2sjax.layers import Spelling
from s2sjax.models import objectives
from s2sjax.models.contract import EncoderDecoder
from s2sjax.train import hosts
from s2sjax.train import mesh as meshes
from s2sjax.train.checkpoints import Checkpoints
from s2sjax.train.loop import Result, Scores, compiler_options, fit
from s2sjax.train.progress import Log
from s2sjax.train.schedules import optimizer
from s2sjax.train.state import Loss, TrainState, create, evaluation_params, make_train_step

# Fields that may change between two starts of one run: they decide how long and how it is watched, not what it is;
# where its data are kept may change too, for their fingerprint may not.
# The metrics are not among them: the scores of two of them cannot tell which checkpoint is best.
FREE = ("train.steps", "train.log_every", "train.evaluate_every", "train.save_every", "train.keep", "train.patience",
        "train.max_skipped", "train.mesh", "train.remat", "data.prefetch", "data.corpus.folder", "data.corpus.data_dir",
        "search", "evaluate.lines", "evaluate.samples", "evaluate.rows", "show")  # fmt: skip


class Run(NamedTuple):
    folder: Path
    experiment: config.Experiment
    source: text.AnyVocabulary
    target: text.AnyVocabulary

    @property
    def module(self) -> EncoderDecoder:
        return self._module(self.experiment.train.dtype)

    def _module(self, dtype: str) -> EncoderDecoder:
        e = self.experiment
        spelt = (_spelling(e.data.source, self.source), _spelling(e.data.target, self.target))
        return models.build(e.model, self.source.size, self.target.size, dtype, *spelt, e.train.remat)

    def translator(
        self,
        options: config.Search | None = None,
        mesh: jax.sharding.Mesh | None = None,
        others: Sequence["Run"] = (),
    ) -> Translator:
        """With `others`, runs of the same vocabularies, an ensemble: it takes as many parameters."""
        e = self.experiment
        for other in others:
            for side in ("source", "target"):
                if getattr(other, side).fingerprint != getattr(self, side).fingerprint:
                    raise UserError(
                        f"the {side} vocabulary of {other.folder} is not that of {self.folder}: "
                        "an ensemble needs runs of one vocabulary"
                    )
        sharding = jax.sharding.NamedSharding(mesh, meshes.ROWS) if mesh is not None and mesh.size > 1 else None
        ways = meshes.data_parallel_size(mesh) if mesh else 1
        options = options or e.search
        # What is stored in bfloat16 is computed in it, too; int8 is computed as it was trained.
        named = options.precision in ("float32", "bfloat16")
        modules = [run._module(options.precision if named else run.experiment.train.dtype) for run in (self, *others)]
        return Translator(
            modules if others else modules[0], self.source, self.target, options,
            buckets=[source for source, _ in e.data.buckets], rows=-(-e.evaluate.rows // ways) * ways,
            batch_sharding=sharding,
        )  # fmt: skip

    def rules(self, mesh: jax.sharding.Mesh) -> meshes.Rules:
        """How the model's parameters are split over the tensor axis of a mesh, if it has one."""
        return models.tensor_rules(self.experiment.model) if mesh.shape["tensor"] > 1 else ()

    def mesh(self) -> jax.sharding.Mesh:
        """All devices, as in training where these are as many, else each with a copy of the model."""
        wanted = self.experiment.train.mesh
        split = wanted.fsdp * wanted.tensor
        fits = jax.device_count() % split == 0 and wanted.data in (-1, jax.device_count() // split)
        return meshes.make_mesh(wanted if fits else config.Mesh())

    def checkpoints(self, read_only: bool = False) -> Checkpoints:
        first = metrics.higher_is_better(self.experiment.evaluate.metrics[0])
        keep = self.experiment.train.keep
        return Checkpoints(self.folder / "checkpoints", keep, "max" if first else "min", read_only)

    def params(self, average: int = 0, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, int]:
        """(the parameters of the best checkpoint, its step); refused where they are not this model's.

        With `average`, the mean of the newest so many checkpoints, and the step of the newest. With a mesh they are
        spread over it as training spreads them.
        """
        one = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        template = jax.eval_shape(self.module.init, jax.random.key(0), one, one)["params"]
        if mesh:
            template = meshes.with_shardings(template, mesh, self.rules(mesh))
        checkpoints = self.checkpoints(read_only=True)
        return checkpoints.restore_average(average, template) if average else checkpoints.restore_params(template)


def _spelling(options: config.Text, vocabulary: text.AnyVocabulary) -> Spelling | None:
    """The characters of the words, where their vectors are made of them."""
    if not options.spelling.on or not isinstance(vocabulary, text.Vocabulary):
        return None
    return Spelling(vocabulary.spelling(options.spelling.length), options.spelling)


# ------------------------------------------------------------------------------- opening a run


def load_experiment(file: str) -> config.Experiment:
    """The `experiment` that a Python file defines."""
    path = Path(file)
    if not path.is_file():
        raise UserError(f"there is no experiment file {file}: name a Python file such as experiments/g2p.py")
    try:
        page = runpy.run_path(str(path), run_name=path.stem)
    except UserError as error:
        raise UserError(f"{_place(path, error)}: {error}") from error
    except Exception as error:
        reason = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        raise UserError(f"{_place(path, error)}: {type(error).__name__}: {reason}: correct it") from error
    experiment = page.get("experiment")
    if not isinstance(experiment, config.Experiment):
        raise UserError(f"{file} defines no `experiment`: it must build an s2sjax.config.Experiment of that name")
    return experiment


def _place(path: Path, error: Exception) -> str:
    """Where in an experiment file an error arose: "experiments/g2p.py, line 12"."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def open_run(folder: str | Path) -> Run:
    """A run that was trained before."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is no run folder (it has no config.json): train first, or name another")
    page = _read_page(folder)
    try:
        experiment = config.from_json(page["experiment"])
    except (UserError, TypeError) as error:
        raise _unreadable(folder, error) from None
    if not isinstance(experiment, config.Experiment):
        raise _unreadable(folder, "it holds no experiment")
    return Run(folder, experiment, *_load_vocabularies(folder, page))


def start_run(experiment: config.Experiment, folder: str | Path, train: training.Training) -> Run:
    """A new run in `folder`, or the one that is there, if it is the same experiment on the same data."""
    folder = Path(folder)
    data = training.fingerprint(train)
    if (folder / "config.json").is_file():
        page = _read_page(folder)
        _same_experiment(folder, page["experiment"], config.to_json(experiment))
        if page["data"] != data:
            raise UserError(f"the training data has changed since {folder} was started: give another --out")
        run = Run(folder, experiment, *_load_vocabularies(folder, page))
    else:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file, not a folder: give another --out")
        # What a start that was killed before its config.json may have left, is written again.
        if folder.is_dir() and {path.name for path in folder.iterdir()} - {"vocabulary", ".config.json.partial"}:
            raise UserError(f"{folder} holds something that is not a run: give another --out")
        run = Run(folder, experiment, *training.vocabularies(experiment.data, train))
        _check_softmax(experiment.train.softmax, run.target.size)
        for name in ("source", "target"):
            getattr(run, name).save(folder / "vocabulary", name)
    if not hosts.is_leader():
        return run
    # Last, so that a folder with a config.json has all that it names.
    page = {
        "s2sjax": __version__,
        "data": data,
        "vocabulary": {"source": run.source.fingerprint, "target": run.target.fingerprint},
        "experiment": config.to_json(experiment),
    }
    _write(folder / "config.json", json.dumps(page, indent=2) + "\n")
    return run


def _check_softmax(softmax: config.Softmax, words: int) -> None:
    for name in ("samples", "subset"):
        if getattr(softmax, name) > words:
            raise UserError(
                f"train.softmax.{name} is {getattr(softmax, name)}, but the target vocabulary has {words} words: "
                "lower it, or set it to 0 to take all words"
            )


def _load_vocabularies(folder: Path, page: dict) -> list[text.AnyVocabulary]:
    vocabularies = [text.load(folder / "vocabulary", name) for name in ("source", "target")]
    for name, vocabulary in zip(("source", "target"), vocabularies):
        if vocabulary.fingerprint != page["vocabulary"][name]:
            raise UserError(
                f"the {name} vocabulary in {folder / 'vocabulary'} is not the one this run was trained with: "
                "copy it again from where the run was made"
            )
    return vocabularies


def _read_page(folder: Path) -> dict:
    try:
        page = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = {name: page[name] for name in ("data", "vocabulary", "experiment")}
        found["vocabulary"]["source"], found["vocabulary"]["target"]
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(folder, error) from None
    except KeyError as error:
        raise _unreadable(folder, f"it has no {error}") from None
    return found


def _unreadable(folder: Path, reason: object) -> UserError:
    return UserError(
        f"{folder / 'config.json'} cannot be read ({reason}): copy it again from where the run was made, "
        "or name another folder"
    )


def _same_experiment(folder: Path, old: dict, new: dict) -> None:
    with contextlib.suppress(UserError, TypeError):  # fields that came later have their defaults
        old = config.to_json(config.from_json(old))
    for name in sorted(flat(old).keys() | flat(new).keys()):
        before, now = flat(old).get(name), flat(new).get(name)
        if before != now and not any(name == free or name.startswith(free + ".") for free in FREE):
            raise UserError(
                f"{folder} holds another experiment: its {name} is {before!r}, not {now!r}: give another --out"
            )


def flat(page: Any, prefix: str = "") -> dict[str, Any]:
    """{"train": {"steps": 5}} -> {"train.steps": 5}"""
    if not isinstance(page, dict):
        return {prefix: page}
    parts = [flat(value, f"{prefix}.{name}" if prefix else name) for name, value in page.items()]
    return {name: value for part in parts for name, value in part.items()}


def _write(path: Path, content: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.write_text(content, encoding="utf-8")
    os.replace(draft, path)


# ------------------------------------------------------------------------------------ training


def train(experiment: config.Experiment, folder: str | Path) -> tuple[Run, Result]:
    """Trains, from where it stood if it ran before; the returned state lets a notebook go on from it."""
    e = experiment
    mesh = meshes.make_mesh(e.train.mesh)
    models.check_mesh(e.model, mesh.shape)
    with hosts.leader_first("data"):  # which it may have to fetch
        examples = training.read(e.data)
    if e.train.evaluate_every and not sources.has(e.data.corpus, "dev"):
        raise UserError("data.corpus has no dev examples to evaluate: give it some, or set train.evaluate_every 0")
    dev = sources.load(e.data.corpus, "dev") if e.train.evaluate_every else []
    with hosts.leader_first("run folder"):
        run = start_run(e, folder, examples)
    translator = run.translator(mesh=mesh)  # also where it is needed only later: a search that cannot work ends here
    log = Log(run.folder, e.train.steps, e.train.log_every)

    for line in e.show:
        text.with_tag(run.source, line, None, f"show: {line!r}")
    pairs = training.make_pairs(e.data, examples, run.source, run.target, e.seed)
    multiple = meshes.data_parallel_size(mesh) * e.train.micro_batches
    parts = training.make_parts(e.data, pairs, e.train.softmax.subset)
    plan = training.make_plan(e.data, pairs, e.seed, multiple, parts.of if parts else None)
    stream = partial(
        batches.stream, pairs, plan, stop=e.train.steps, prefetch=e.data.prefetch,
        process_index=jax.process_index(), process_count=jax.process_count(),
    )  # fmt: skip

    init = partial(initial_state, run, mesh)
    template = abstract_state(run, mesh)
    log.print(_describe(run, template, pairs, plan, mesh))
    result = fit(
        template,
        init,
        make_train_step(_objective(run, pairs, parts), optimizer(e.train), e.train, e.seed),
        stream,
        e.train,
        run.checkpoints(),
        DevEvaluation(run, _some_of_each(dev, e.evaluate.lines), translator, log) if dev else None,
        log,
        mesh=mesh,
        compiler_options=compiler_options(),
        shapes=[_shapes(pairs, plan, bucket) for bucket in plan.used_buckets],
    )
    return run, result


def _objective(run: Run, pairs: batches.AnyPairs, parts: Parts | None) -> Loss:
    """The loss that the experiment asks for, with the words that it draws from or takes."""
    softmax = run.experiment.train.softmax
    proposal = None
    if softmax.samples and softmax.distribution == "log_uniform":
        proposal = sampled.log_uniform(run.target.size)
    elif softmax.samples:
        proposal = sampled.proposal(batches.counts(training.target_side(pairs), run.target.size) + 1)
    words = None if parts is None else jnp.asarray(parts.words)
    return objectives.choose(run.module, run.experiment.train, proposal, words)


def abstract_state(run: Run, mesh: jax.sharding.Mesh) -> TrainState:
    """The shapes and shardings of the initial state."""
    e = run.experiment
    return meshes.abstract_state(beginning(run.module, e.train), mesh, run.rules(mesh), jax.random.key(e.seed))


def initial_state(run: Run, mesh: jax.sharding.Mesh) -> TrainState:
    """The state before the first step, each device computing only what it will hold."""
    e = run.experiment
    return meshes.init_sharded(beginning(run.module, e.train), mesh, run.rules(mesh), jax.random.key(e.seed))


def beginning(module: EncoderDecoder, train: config.Train) -> Callable[[jax.Array], TrainState]:
    """init(key), pure: the state of a model before its first step."""

    def init(key: jax.Array) -> TrainState:
        one = jnp.ones((1, 1), jnp.int32)
        return create(module.init(key, one, one)["params"], optimizer(train), ema=train.ema > 0)

    return init


def _shapes(pairs: batches.AnyPairs, plan: batches.Plan, bucket: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Of the batches of a bucket: those of one that is padding alone."""
    empty = pairs.batch(np.full(plan.rows[bucket], -1), *plan.buckets[bucket])
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in empty.items()}
    part = {} if plan.part is None else {"part": jax.ShapeDtypeStruct((plan.rows[bucket],), jnp.int32)}
    return {**shapes, **part}


def _describe(run: Run, state: TrainState, pairs: batches.AnyPairs, plan: batches.Plan, mesh: jax.sharding.Mesh) -> str:
    e = run.experiment
    weights = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    device = jax.devices()[0]
    items = "rows of packed pairs" if e.data.packing else "pairs"
    lines = [
        f"{e.name}: {config.family(e.model)} with {weights:,} weights, on {mesh.size} {device.device_kind} device"
        + ("s" if mesh.size > 1 else ""),
        f"{len(pairs.lengths):,} training {items}, vocabulary {run.source.size} -> {run.target.size}, "
        f"{plan.steps_per_epoch:,} steps an epoch",
    ]
    if pairs.too_long:
        longest = e.data.buckets[-1]
        lines.append(f"{pairs.too_long:,} pairs are longer than the last of data.buckets, {longest}, and are left out")
    if plan.idle > 0.1:
        multiple = meshes.data_parallel_size(mesh) * e.train.micro_batches
        lines.append(
            f"{plan.idle:.0%} of the rows are padding, for the pairs of a batch do not divide among {multiple} parts "
            "(devices x micro-batches): raise data.tokens"
        )
    return "\n".join(lines)


def _some_of_each(examples: Sequence[Example], lines: int) -> list[Example]:
    """The first `lines` examples; of a mixture, as many of each corpus."""
    corpora = sorted({example.corpus for example in examples})
    each = [[example for example in examples if example.corpus == corpus] for corpus in corpora]
    return [example for part in each for example in part[: -(-lines // len(each))]][:lines]


def _by_corpus(
    corpus: config.Corpus, examples: Sequence[Example], texts: Sequence[str], judge: config.Evaluate
) -> dict[str, dict[str, metrics.Result]]:
    """The results of each corpus of a mixture, by its name; nothing for a corpus that stands alone."""
    found = {}
    for number, label in enumerate(sources.labels(corpus)):
        chosen = [n for n, example in enumerate(examples) if example.corpus == number]
        if chosen:
            said, right = [texts[n] for n in chosen], [examples[n].targets for n in chosen]
            found[label] = metrics.score(judge.metrics, said, right, judge.line)
    return found


class DevEvaluation:
    """Decodes the dev lines with the parameters of the moment and shows a few."""

    def __init__(self, run: Run, dev: Sequence[Example], translator: Translator, log: Log):
        self.run, self.dev, self.translator, self.log = run, dev, translator, log

    def __call__(self, state: TrainState, step: int) -> Scores:
        options = self.run.experiment.evaluate
        outputs = self.translator.decode(evaluation_params(state), [example.source for example in self.dev])
        texts = [best[0].text for best in outputs]
        results = metrics.score(options.metrics, texts, [e.targets for e in self.dev], options.line)
        parts = _by_corpus(self.run.experiment.data.corpus, self.dev, texts, options)
        samples = []
        for example, best in zip(self.dev[: options.samples], outputs):
            verdict = "✓" if best[0].text in example.targets else f"({example.targets[0]})"
            samples.append(f"  {example.source}  ->  {best[0].text}  {verdict}")
        self.log.samples(step, samples)
        first, *others = results.values()
        details = {other.name: other.value for other in others}
        details |= {f"{first.name} {label}": part[first.name].value for label, part in parts.items()}
        return Scores(first.name, first.value, first.higher_is_better, details)


# ---------------------------------------------------------------------------------- evaluation


def evaluate(
    run: Run,
    split: str | None = None,
    options: config.Search | None = None,
    judge: config.Evaluate | None = None,
    others: Sequence[Run] = (),
    average: int = 0,
) -> dict[str, metrics.Result]:
    """Decodes a whole split with the best checkpoint, prints the scores and writes results.json.

    `others` are runs that write with it, as an ensemble. With `average`, each is the mean of its newest checkpoints.
    """
    e = run.experiment
    options, judge = options or e.search, judge or e.evaluate
    split = split or default_split(e.data.corpus)
    if split is None:
        raise UserError("data.corpus has neither test nor dev examples: name another --split")
    examples = sources.load(e.data.corpus, split)  # type: ignore[arg-type]
    mesh = run.mesh()
    params, step = run.params(average, mesh)
    translator = run.translator(options, mesh, others)
    together = [params, *(other.params(average, mesh)[0] for other in others)] if others else params
    outputs = translator.decode(together, [example.source for example in examples])
    texts = [best[0].text for best in outputs]
    results = metrics.score(judge.metrics, texts, [x.targets for x in examples], judge.line)
    parts = _by_corpus(e.data.corpus, examples, texts, judge)
    how = f"{options.sampling.count} samples" if options.sampling.count else f"beam {options.beam}"
    which = f"mean of {average} checkpoints to step {step}" if average else f"checkpoint of step {step}"
    print(f"{split}, {which}, {how}{f', with {len(others)} more' if others else ''}:")
    print(metrics.summary(results, judge.line), flush=True)
    for label, part in parts.items():
        print(f"{label}:\n{metrics.summary(part, judge.line)}", flush=True)
    corpora = {label: {name: result.value for name, result in part.items()} for label, part in parts.items()}
    extra: dict[str, Any] = {"corpora": corpora} if corpora else {}
    if hosts.is_leader():
        metrics.write_results(run.folder / "results.json", results, split=split, step=step, search=options, **extra)
    return results


def default_split(corpus: config.Corpus) -> str | None:
    """The split that is evaluated if none is named: test, or dev where there is no test."""
    return next((split for split in ("test", "dev") if sources.has(corpus, split)), None)  # type: ignore[arg-type]


def show(run: Run) -> list[Path]:
    """Decodes the texts that the experiment wants to see, and draws what the model looked at."""
    lines = run.experiment.show
    if not lines:
        return []
    mesh = run.mesh()
    params, _ = run.params(mesh=mesh)
    translator = run.translator(mesh=mesh)
    outputs = [best[0] for best in translator.decode(params, lines)]
    width = max(map(len, lines))
    for line, output in zip(lines, outputs):
        print(f"  {line:{width}}  ->  {output.text}")
    if not translator.attends:
        print("this model has no attention: attention.png is not drawn")
        return []
    maps = [translator.attention(params, line, output) for line, output in zip(lines[:4], outputs)]
    path = run.folder / "attention.png"
    if hosts.is_leader():
        figures.attention_grid(path, [figures.AttentionMap(*each) for each in maps], columns=2)
    return [path]
