"""The commands. Each gets its parsed options and the fields set on the command line, and prints its results."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from s2sjax import config
from s2sjax import launch as processes
from s2sjax.errors import UserError
from s2sjax.fields import nearest, override
from s2sjax.lines import chunks, input_lines, two_columns
from s2sjax.startup import ends_at_sigterm, start_jax

LAUNCH = "s2sjax launch -p 2 -d 4 -- train experiments/reverse.py"
BENCHMARKS = ("train", "decode", "data")


def train(options: argparse.Namespace, fields: list[str]) -> None:
    with ends_at_sigterm():
        from s2sjax import run
        from s2sjax.train import hosts

        experiment = _experiment(options, fields)
        start_jax(options.distributed)
        trained, result = run.train(experiment, options.out or Path("runs") / experiment.name, options.subject)
        if result.status == "interrupted":  # everything is saved; Python would wait until XLA has compiled
            hosts.shutdown()
            sys.stdout.flush()
            os._exit(0)
        written = [trained.folder / name for name in ("checkpoints", "metrics.jsonl")]
        if run.default_split(trained.task):
            written.append(run.evaluate(trained, report=_print_now).path)
        written += run.show(trained)
        print("wrote " + ", ".join(str(path) for path in written))


def prepare(options: argparse.Namespace, fields: list[str]) -> None:
    with ends_at_sigterm():
        from s2sjax.data import prepare as preparing

        experiment: Any = _experiment(options, fields)
        if not isinstance(experiment.data, config.Data):
            raise UserError(f"{options.subject} has no text to prepare: use s2sjax train")
        folder = options.out or getattr(experiment.data.corpus, "folder", f"prepared/{experiment.name}")
        with preparing.progress_bars() as progress:
            done = preparing.prepare(experiment.data, folder, options.workers, progress)
        what = "wrote" if done.new else "nothing to do:"
        print(f"{what} {done.folder}, {done.pairs:,} pairs of {done.tokens:,} tokens")
        if getattr(experiment.data.corpus, "folder", None) != folder:
            print(f"to train on it: data.corpus = config.Prepared({folder!r})")


def launch(options: argparse.Namespace, fields: list[str]) -> None:
    if fields:
        raise UserError(f"launch has no option {fields[0]}: write the command after --, as in {LAUNCH}")
    if options.launched[:1] not in (["train"], ["evaluate"]):
        raise UserError(f"launch runs train or evaluate: write the command after --, as in {LAUNCH}")
    sys.exit(processes.pod(options.processes, options.devices, options.launched))


def evaluate(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax import run

    opened = run.load(options.subject)
    opened = _adjusted(opened, opened.experiment.evaluate_fields, options, fields)
    others = [run.load(other) for other in options.also]
    start_jax(options.distributed)
    found = run.evaluate(opened, options.split, others, options.average, _print_now)
    print(f"wrote {found.path}")


def results(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax import evaluations

    if options.curves:
        return _draw_curves(options)
    if options.json:
        return print(json.dumps(evaluations.rows(options.runs), indent=2))
    for folder in options.runs:
        if not evaluations.read_all(folder):
            print(f"{folder} has no evaluations yet: s2sjax evaluate {folder}", file=sys.stderr)
    return print(evaluations.table(options.runs))


def compare(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax import comparison

    print(comparison.compare(options.first, options.second, options.split, options.resamples))


def decode(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax import run

    opened = run.load(options.subject)
    opened = _adjusted(opened, opened.experiment.decode_fields, options, fields)
    for name in ("tree", "attention"):
        if getattr(options, name):
            from s2sjax.evaluate import style  # imports Matplotlib, which is slow

            style.check_format(getattr(options, name), f"--{name} ")
    others = [run.load(other) for other in options.also]
    if not opened.task.generates_text:
        return _predict(opened, others, options)
    translator, params = _translator(opened, others, options.average)
    if options.alignment:
        translator.require_attention("--alignment", "leave it out")
    if options.attention:
        translator.require_attention("--attention", "leave it out")
    first = 0
    for lines in chunks(input_lines()):
        prefixes = None
        if options.prefixes:
            pairs = [two_columns(line, first + i, "prefix") for i, line in enumerate(lines)]
            lines, prefixes = [source for source, _ in pairs], [prefix for _, prefix in pairs]
        lines = [_tagged(opened, line, options.tag, first + i) for i, line in enumerate(lines)]
        if options.tree and first == 0:
            from s2sjax.evaluate import figures

            tree, found = translator.tree(params, lines[0], prefixes[0] if prefixes else None)
            figures.search_tree(options.tree, tree, found, translator.target.pieces)
        outputs = translator.decode(params, lines, prefixes, first)
        if options.attention and first == 0:
            from s2sjax.evaluate import figures

            drawn = figures.AttentionMap(*translator.attention(params, lines[0], outputs[0][0]))
            drawn._replace(title=lines[0]).save(options.attention)
        aligned = _alignments(translator, params, lines, outputs) if options.alignment else None
        for best in outputs:
            columns = [f"{o.score:.4f}\t{o.text}" if options.scores else o.text for o in best]
            print("\t".join(f"{column}\t{next(aligned)}" if aligned else column for column in columns))
        sys.stdout.flush()
        first += len(lines)
    return None


def score(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax import run

    opened = run.load(options.subject)
    if not opened.task.generates_text:
        raise UserError(f"{opened.folder} does not generate text, so score cannot be used: use s2sjax evaluate")
    translator, params = _translator(opened, (), options.average)
    number = 0
    for lines in chunks(input_lines()):
        pairs = []
        for line in lines:
            source, target = two_columns(line, number, "target")
            pairs.append((_tagged(opened, source, options.tag, number), target))
            number += 1
        for log_prob, tokens in translator.score(params, pairs):
            print(f"{log_prob:.4f}\t{tokens}")
        sys.stdout.flush()


def models(options: argparse.Namespace, fields: list[str]) -> None:
    for name in ("source_size", "target_size"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)}: it must be at least 1")
    from s2sjax.models import catalogue

    print(catalogue.table(options.source_size, options.target_size))


def plan(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.plan import report

    experiment = _experiment(options, fields)
    if (options.source_size is None) != (options.target_size is None):
        raise UserError("one of --source-size and --target-size is missing: give both, or neither to read the data")
    sizes = None if options.source_size is None else (options.source_size, options.target_size)
    start_jax()
    named = ["--model", options.model] if options.model else []
    command = " ".join(["s2sjax train", options.subject, *named, *fields])
    print(report.plan(experiment, options.devices, options.chip, sizes, command))


def bench(options: argparse.Namespace, fields: list[str]) -> None:
    if options.subject not in BENCHMARKS:
        near = nearest(options.subject, BENCHMARKS)
        raise UserError(f"there is no benchmark {options.subject!r}: did you mean {near!r}?")
    if options.rounds < 1:
        raise UserError(f"--rounds is {options.rounds}: it must be at least 1")
    start_jax()
    from s2sjax.bench import data as feeding
    from s2sjax.bench import decode as decoding
    from s2sjax.bench import train as training

    if options.subject == "decode":
        return decoding.bench(options.size, options.rounds)
    return {"train": training, "data": feeding}[options.subject].bench(options.rounds)


def doctor(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.doctor import report

    report(start_jax)


# --------------------------------------------------------------------------------------- helpers


def _experiment(options: argparse.Namespace, fields: list[str]) -> config.Experiment:
    """The experiment of a file, with the model that --model names and the fields set on the command line."""
    from s2sjax import experiment_file, models

    experiment = experiment_file.load_experiment(options.subject)
    name = getattr(options, "model", None)
    if name:
        if not isinstance(getattr(experiment, "model", None), config.ModelSettings | config.Pair):
            raise UserError(f"--model names encoder-decoders: {type(experiment).__name__} has a model of its own")
        if name not in models.NAMED:
            names = list(models.NAMED)
            raise UserError(f"there is no model {name!r}: did you mean {nearest(name, names)!r}? ({', '.join(names)})")
        # `override` checks the whole: a field set on the command line may make the model fit.
        object.__setattr__(experiment, "model", models.NAMED[name].config)
    return override(options, experiment, fields)


def _adjusted(opened: Any, names: Sequence[str], options: argparse.Namespace, fields: list[str]) -> Any:
    """The run with the fields set on the command line. `names`: the settings that can change after training."""
    if fields and not names:
        raise UserError(f"{opened.folder} has no field {fields[0]} that can be changed after training: leave it out")
    if not names and options.help:
        options.parser.print_help()
        sys.exit(0)
    if not names:
        return opened
    values = {name: getattr(opened.experiment, name) for name in names}
    kinds = [(name, type(value)) for name, value in values.items()]
    settings = override(options, dataclasses.make_dataclass("Adjustable", kinds, frozen=True)(**values), fields)
    return opened.adjusted(**{name: getattr(settings, name) for name in names})


def _print_now(text: object) -> None:
    print(text, flush=True)


def _draw_curves(options: argparse.Namespace) -> None:
    from s2sjax.evaluate import figures, style

    style.check_format(options.curves, "--curves ")
    figures.learning_curves(options.curves, {folder: Path(folder) / "metrics.jsonl" for folder in options.runs})
    print(f"wrote {options.curves}")


@contextlib.contextmanager
def _messages_to_stderr() -> Iterator[None]:
    """Standard output holds only the lines that a command prints."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _translator(opened: Any, others: Sequence[Any], average: int) -> tuple[Any, Any]:
    """A translator and its parameters."""
    start_jax()
    with _messages_to_stderr():
        mesh = opened.mesh()
        params = _params(opened, others, average, mesh)
        return opened.task.translator(mesh, [other.task for other in others]), params


def _params(opened: Any, others: Sequence[Any], average: int, mesh: Any) -> Any:
    """The parameters of a run; for an ensemble, a list with those of each run."""
    opened.check_ensemble(others)
    params = [run.params(average, mesh)[0] for run in (opened, *others)]
    return params if others else params[0]


def _predict(opened: Any, others: Sequence[Any], options: argparse.Namespace) -> None:
    """Prints one line for each line of standard input, for a task that does not generate text."""
    for name in ("scores", "alignment", "prefixes", "tag", "tree", "attention"):
        if getattr(options, name):
            raise UserError(f"--{name} applies only to runs that generate text: leave it out")
    start_jax()
    with _messages_to_stderr():
        mesh = opened.mesh()
        predict = opened.task.predictor(mesh, [other.task for other in others])
        params = _params(opened, others, options.average, mesh)
    number = 0
    for lines in chunks(input_lines()):
        where = [f"standard input, line {number + i + 1}" for i in range(len(lines))]
        for output in predict(params, [opened.task.example_of(*pair) for pair in zip(lines, where)]):
            print(output)
        sys.stdout.flush()
        number += len(lines)


def _alignments(translator: Any, params: Any, lines: Sequence[str], outputs: Sequence[Sequence]) -> Iterator[str]:
    """The alignment of each output of each line: "0-0 1-2"."""
    each = [(line, output) for line, best in zip(lines, outputs) for output in best]
    for pairs in translator.align(params, [line for line, _ in each], [output for _, output in each]):
        yield " ".join(f"{source}-{target}" for source, target in pairs)


def _tagged(opened: Any, line: str, tag: str | None, index: int) -> str:
    from s2sjax.data import text

    return text.with_tag(opened.task.source, line, tag, f"standard input, line {index + 1}")
