"""The commands. Each takes its parsed options and the fields set on the command line, and prints its results.

Modules that are slow to import, or may be missing, are imported inside the commands: `doctor` works without them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from s2sjax.cli import data_command
from s2sjax.cli import launch as processes
from s2sjax.cli.overrides import check_command, override
from s2sjax.cli.standard_input import Refused, chunks, two_columns
from s2sjax.cli.start_jax import ends_at_sigterm, ends_by_signal, start_jax
from s2sjax.errors import UserError, nearest
from s2sjax.files import as_path, in_storage

LAUNCH = "s2sjax launch -p 2 -d 4 -- train experiments/reverse.py"


def train(options: argparse.Namespace, fields: list[str]) -> None:
    began = time.perf_counter()  # nothing slow has been imported yet
    with ends_at_sigterm():
        from s2sjax.runs import run
        from s2sjax.training.preemption import Interrupted

        experiment = read_experiment(options, fields)
        if options.debug:
            return _debug(options, experiment)
        start_jax(options.distributed)
        try:
            trained, result = run.train(
                experiment, options.out or Path("runs") / experiment.name, options.subject, options.init,
                options.init_assets, options.accept_code, options.profile, began,
            )  # fmt: skip
        except Interrupted:
            leave(130)
        if result.status == "interrupted":
            leave(0)
        written = [trained.folder / name for name in ("checkpoints", "metrics.jsonl")]
        if trained.task.default_split:
            written.append(run.evaluate(trained, report=_print_now).path)
        written += run.show(trained)
        if options.profile and (trained.folder / "profile").is_dir():
            written.append(trained.folder / "profile")
        print("wrote " + ", ".join(str(path) for path in written))
        return None


def prepare(options: argparse.Namespace, fields: list[str]) -> None:
    with ends_at_sigterm():
        from s2sjax import config
        from s2sjax.data import beam_prepare
        from s2sjax.data import prepare as preparing

        experiment: Any = read_experiment(options, fields)
        if not isinstance(experiment.data, config.Data):
            raise UserError(f"{options.subject} has no text to prepare: use s2sjax train")
        if experiment.init:
            raise UserError("prepare learns vocabularies, and init takes those of another run: train without preparing")
        corpus_folder = getattr(experiment.data.corpus, "folder", None)
        folder = config.relative_path(options.out or corpus_folder or f"prepared/{experiment.name}")
        with preparing.progress_bars() as progress:
            if options.beam is None:
                done = preparing.prepare(experiment.data, folder, options.workers, progress)
            else:
                done = beam_prepare.prepare(experiment.data, folder, options.beam, options.workers, progress)
        what = "wrote" if done.new else "nothing to do:"
        print("\n".join([f"{what} {done.folder}, {done.pairs:,} pairs of {done.tokens:,} tokens", *done.remarks]))
        if corpus_folder is None or as_path(corpus_folder) != as_path(folder).absolute():
            there = folder if in_storage(folder) else os.path.relpath(folder, Path(options.subject).parent)
            print(f"to train on it, write in {options.subject}: data.corpus = config.Prepared({there!r})")


def launch(options: argparse.Namespace, fields: list[str]) -> None:
    if fields:
        raise UserError(f"launch has no option {fields[0]}: write the command after --, as in {LAUNCH}")
    if options.launched[:1] not in (["train"], ["evaluate"]):
        raise UserError(f"launch runs train or evaluate: write the command after --, as in {LAUNCH}")
    sys.exit(processes.pod(options.processes, options.devices, options.launched))


def evaluate(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.runs import run

    opened = run.load(options.subject)
    opened = _adjusted(opened, opened.experiment.evaluate_fields, options, fields)
    others = [run.load(other) for other in options.also]
    start_jax(options.distributed)
    found = run.evaluate(opened, options.split, others, options.average, report=_print_now)
    print(f"wrote {found.path}")


def results(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.runs import evaluations
    from s2sjax.runs.sweeps import sweep_results

    sweep = sweep_results.sweep_among(options.runs)
    if options.curves:
        return _draw_curves(options, sweep)
    if sweep:
        found = sweep_results.summarize(sweep, options.split, options.metric)
        table, remarks = found.table(), found.remarks()
    else:
        for folder in options.runs:
            if not evaluations.read_all(folder):
                print(f"{folder} has no evaluations yet: s2sjax evaluate {folder}", file=sys.stderr)
        table, remarks = (
            evaluations.table(options.runs, options.split, options.metric),
            evaluations.remarks(options.runs),
        )
    print(table.to(options.format, terminal=sys.stdout.isatty()))
    for line in remarks:
        print(line, file=sys.stderr)
    return None


def compare(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.runs import comparison

    print(comparison.compare(options.first, options.second, options.split, options.resamples))


def report(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.report.contents import Limits
    from s2sjax.report.write import check_out, write
    from s2sjax.runs.sweeps.sweep_results import sweep_among

    if options.out:
        check_out(options.out)
    if not sweep_among(options.runs):
        start_jax()
    limits = Limits(options.attention, options.heads, options.trees, options.resamples)
    write(options.runs, options.out, options.split, limits, say=_print_now)


def serve(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.runs import run
    from s2sjax.serve.api import Service
    from s2sjax.serve.server import Server

    opened = run.load(options.subject)
    opened = _adjusted(opened, opened.experiment.decode_fields, options, fields)
    start_jax()
    service = Service(opened, options.average, options.files)
    try:
        server = Server(service, options.host, options.port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        where = f"{options.host}:{options.port}"
        raise UserError(f"cannot listen on {where} ({reason}): choose another --port or --host") from None
    with ends_by_signal(server.shutdown):
        print(f"serving {opened.folder} at {server.url} until Ctrl-C", flush=True)
        service.start(_print_now)
        server.serve_forever()
    server.server_close()
    service.engine.close()
    done = service.engine
    print(f"stopped; requests answered: {done.requests:,}, lines decoded: {done.items:,}, batches: {done.batches:,}")
    leave(0)


def decode(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.evaluate.prediction.line_notes import Notes
    from s2sjax.runs import run

    opened = run.load(options.subject)
    opened = _adjusted(opened, opened.experiment.decode_fields, options, fields)
    figures = [name for name in ("tree", "attention") if getattr(options, name)]
    for name in figures:
        from s2sjax.evaluate.figures import style  # imports Matplotlib, which is slow

        style.check_format(getattr(options, name), f"--{name} ")
    others = [run.load(other) for other in options.also]
    if not opened.task.generates_text:
        return _predict(opened, others, options)
    pairs_of_stdin = _pairs_of_stdin(opened, options, "prefix" if options.prefixes else "")
    translator, params = _translator(opened, others, options.average)
    for name in ("alignment", "attention"):
        if getattr(options, name):
            translator.require_attention(f"--{name}", "leave it out")
    first, notes, refused = 0, Notes(), Refused()
    for read in pairs_of_stdin:
        if first == 0 and figures and isinstance(read[0], UserError):
            raise read[0]
        pairs = refused.blanked(read)
        lines = [source for source, _ in pairs]
        prefixes = [prefix for _, prefix in pairs] if options.prefixes else None
        if first == 0 and options.tree:
            _draw_tree(options.tree, translator, params, lines[0], prefixes[0] if prefixes else None)
        outputs = translator.decode(params, lines, prefixes, first, notes)
        if first == 0 and options.attention:
            _draw_attention(options.attention, translator, params, lines[0], outputs[0])
        _print_answers(read, _decoded(translator, params, lines, outputs, options))
        first += len(lines)
    if not first and figures:
        print("standard input has no lines: nothing is drawn", file=sys.stderr)
    _report(notes)
    refused.check()
    return None


def score(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.evaluate.prediction.line_notes import Notes
    from s2sjax.runs import run

    opened = run.load(options.subject)
    if not opened.task.generates_text:
        raise UserError(f"{opened.folder} does not translate text, which score requires: use s2sjax evaluate")
    opened = _adjusted(opened, opened.experiment.decode_fields, options, fields)
    pairs_of_stdin = _pairs_of_stdin(opened, options, "target")
    translator, params = _translator(opened, (), options.average)
    first, notes, refused = 0, Notes(), Refused()
    for read in pairs_of_stdin:
        scores = translator.score(params, refused.blanked(read), first, notes)
        _print_answers(read, (f"{log_prob:.4f}\t{tokens}" for log_prob, tokens in scores))
        first += len(read)
    _report(notes)
    refused.check()


def models(options: argparse.Namespace, fields: list[str]) -> None:
    for name in ("source_size", "target_size"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)}: it must be at least 1")
    from s2sjax.models import named_models

    print(named_models.table(options.source_size, options.target_size))


def plan(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.plan import mesh_report, tpu_report

    experiment = read_experiment(options, fields)
    if (options.source_size is None) != (options.target_size is None):
        raise UserError("one of --source-size and --target-size is missing: give both, or neither to read the data")
    sizes = None if options.source_size is None else (options.source_size, options.target_size)
    named = ["--model", options.model] if options.model else []
    command = " ".join(["s2sjax train", options.subject, *named, *fields])
    if options.compile is None:
        if options.mesh is not None:
            raise UserError("--mesh is for --compile TOPOLOGY: give both, or set --train.mesh.fsdp and so on")
        if options.slices is not None:
            raise UserError("--slices is for --compile TOPOLOGY, a slice: give both, or leave out --slices")
        cache = start_jax()
        devices = 8 if options.devices is None else options.devices
        print(mesh_report.plan(experiment, devices, options.chip or "H200", sizes, command, cache))
        return
    for name in ("devices", "chip"):
        if getattr(options, name) is not None:
            raise UserError(f"--compile {options.compile} determines the devices: leave out --{name}")
    note = partial(print, flush=True)
    slices = 1 if options.slices is None else options.slices
    for line in tpu_report.plan(experiment, options.compile, options.mesh, sizes, command, start_jax, note, slices):
        note(line)


def bench(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.bench.command import bench

    bench(options, start_jax)


def doctor(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.cli.doctor import report

    report(start_jax)


# --------------------------------------------------------------------------------------- helpers


def _debug(options: argparse.Namespace, experiment: Any) -> None:
    from s2sjax.runs.debugging import debug

    for name in ("out", "init", "init_assets", "accept_code", "log", "profile", "distributed"):
        if getattr(options, name):
            option = name.replace("_", "-")
            raise UserError(f"--debug trains new parameters on one device and writes nothing: leave out --{option}")
    start_jax()
    debug(experiment, _print_now)


def leave(code: int) -> NoReturn:
    """Ends the process at once: everything is saved, and Python would wait for threads that compile."""
    from s2sjax.training import multihost

    multihost.shutdown()
    sys.stdout.flush()
    os._exit(code)


def read_experiment(options: argparse.Namespace, fields: list[str]) -> Any:
    """The experiment of a file, with the model that --model names and the fields set on the command line."""
    from s2sjax import config, models
    from s2sjax.config import adapters
    from s2sjax.core import tables
    from s2sjax.runs import experiment_file

    place, trusted = partial(_run_folder, options, fields), getattr(options, "trust", False)
    experiment = experiment_file.load_experiment(options.subject, place, trusted)
    changed = {}
    if name := getattr(options, "model", None):
        if not isinstance(getattr(experiment, "model", None), config.ModelSettings | config.Pair):
            kind = type(experiment).__name__
            raise UserError(f"--model names encoder-decoders, which {kind} does not use: leave it out")
        if name not in models.NAMED:
            names = list(models.NAMED)
            raise UserError(f"there is no model {name!r}: did you mean {nearest(name, names)!r}? ({', '.join(names)})")
        changed["model"] = models.NAMED[name].config
    with tables.within(experiment_file.space_of_file(options.subject)):  # names may refer to rows of the file
        experiment = override(options, experiment, fields, changed)
    if (loggers := getattr(options, "log", None)) is not None:
        experiment = config.replace(experiment, train=config.replace(experiment.train, loggers=loggers))
    if getattr(options, "no_test", False):
        if not hasattr(experiment.evaluate, "test"):
            kind = type(experiment.evaluate).__name__
            raise UserError(f"{kind} has no field test for --no-test: derive it from config.EvaluationSettings")
        experiment = config.replace(experiment, evaluate=config.replace(experiment.evaluate, test=False))
    experiment = adapters.freeze_around_adapters(config.resolve_paths(experiment, Path.cwd()))
    if options.name in ("train", "sweep", "prepare"):
        data_command.offer(config.missing_data(experiment))
    return experiment


def _run_folder(options: argparse.Namespace, fields: list[str], experiment: Any) -> Path:
    """The folder of the run or the sweep that a command trains."""
    if options.name == "sweep":
        return below_runs(options.sweep_name or f"{experiment.name}-sweep")
    names = [value for field, value in zip(fields, [*fields[1:], ""]) if field == "--name"]
    names += [field.partition("=")[2] for field in fields if field.startswith("--name=")]
    return as_path((options.name == "train" and options.out) or Path("runs") / (names or [experiment.name])[-1])


def below_runs(name: str) -> Path:
    """The folder runs/NAME, or that of an address in object storage."""
    return as_path(name) if in_storage(name) else Path("runs") / name


def trust(options: argparse.Namespace) -> None:
    """Marks the code of all runs that a command names as trusted."""
    from s2sjax.runs import evaluations, stored_code

    single = [getattr(options, name, None) for name in ("init", "run", "reverse_run")]
    named = [*single, *getattr(options, "also", ()), *getattr(options, "runs", ())]
    for path in map(as_path, filter(None, [*named, None if options.name == "train" else options.subject])):
        is_evaluation = (path / evaluations.RESULTS).is_file()
        stored_code.trust(stored_code.read(path.parents[1] if is_evaluation else path).files)


def _adjusted(opened: Any, names: Sequence[str], options: argparse.Namespace, fields: list[str]) -> Any:
    """The run with the fields set on the command line. `names`: the settings that can change after training."""
    if fields and not names:
        check_command(options, fields[0])
        raise UserError(f"{opened.folder} has no field {fields[0]} that can be changed after training: leave it out")
    if not names and options.help:
        options.parser.print_help()
        sys.exit(0)
    if not names or not (fields or options.help):
        return opened
    values = {name: getattr(opened.experiment, name) for name in names}
    kinds = [(name, type(value)) for name, value in values.items()]
    settings = override(options, dataclasses.make_dataclass("Adjustable", kinds, frozen=True)(**values), fields)
    return opened.adjusted(**{name: getattr(settings, name) for name in names})


def _print_now(text: object) -> None:
    print(text, flush=True)


def _draw_curves(options: argparse.Namespace, sweep: str | Path | None) -> None:
    from s2sjax.evaluate.figures import style, training_curves
    from s2sjax.runs.sweeps import sweep_results

    style.check_format(options.curves, "--curves ")
    logs: dict[str, Any] = {folder: as_path(folder) / "metrics.jsonl" for folder in options.runs}
    if sweep:
        logs = sweep_results.summarize(sweep, options.split, options.metric).logs()
    training_curves.learning_curves(options.curves, logs)
    print(f"wrote {options.curves}")


@contextlib.contextmanager
def messages_to_stderr() -> Iterator[None]:
    """Redirects messages to standard error, so that standard output holds only the results of a command."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _translator(opened: Any, others: Sequence[Any], average: int) -> tuple[Any, Any]:
    """A translator and its parameters."""
    start_jax()
    with messages_to_stderr():
        mesh = opened.mesh()
        params = _params(opened, others, average, mesh)
        return opened.task.translator(mesh, [other.task for other in others]), params


def _params(opened: Any, others: Sequence[Any], average: int, mesh: Any) -> Any:
    """The parameters of a run, or a list with those of each run of an ensemble."""
    opened.check_ensemble(others)
    params = [run.params(average, mesh)[0] for run in (opened, *others)]
    return params if others else params[0]


def _predict(opened: Any, others: Sequence[Any], options: argparse.Namespace) -> None:
    """Prints one line for each line of standard input, for a task that does not translate text."""
    for name in ("scores", "alignment", "prefixes", "tag", "tree", "attention"):
        if getattr(options, name):
            raise UserError(f"--{name} applies only to runs that translate text: leave it out")

    parse = lambda line, index: opened.task.example_of(line, f"standard input, line {index + 1}")
    examples_of_stdin: Any = chunks(parse)
    start_jax()
    with messages_to_stderr():
        mesh = opened.mesh()
        params = _params(opened, others, options.average, mesh)
        predict = opened.task.predictor(mesh, [other.task for other in others])
    refused = Refused()
    for examples in examples_of_stdin:
        good = refused.without(examples)
        outputs = iter(predict(params, good) if good else [])
        _print_answers(examples, ("" if isinstance(example, UserError) else next(outputs) for example in examples))
    refused.check()


def _report(notes: Any) -> None:
    """Prints remarks on the lines, after all outputs."""
    for line in notes.report():
        print(line, file=sys.stderr)


def _pairs_of_stdin(opened: Any, options: argparse.Namespace, second: str) -> Iterator[list[Any]]:
    """Yields lists of (source, second column) from standard input. second: name of that column; "" for none."""
    from s2sjax.data import text

    def tagged(source: str, index: int) -> str:
        return text.with_tag(opened.task.source, source, options.tag, f"standard input, line {index + 1}")

    def parse(line: str, index: int) -> tuple[str, str]:
        source, other = two_columns(line, index, second) if second else (line, "")
        return tagged(source, index), other

    tagged("", 0)  # an unknown tag is refused here, not at each line
    return chunks(parse)


def _print_answers(read: Sequence[Any], answers: Iterable[object]) -> None:
    """Prints one line for each line read, which is empty for one that could not be read."""
    for line, answer in zip(read, answers):
        print("" if isinstance(line, UserError) else answer)
    sys.stdout.flush()


def _decoded(
    translator: Any, params: Any, lines: Sequence[str], outputs: Sequence[Sequence], options: argparse.Namespace
) -> Iterator[str]:
    """Yields the n-best outputs of each line, separated by tabs, with the columns that the options add."""
    aligned = _alignments(translator, params, lines, outputs) if options.alignment else None
    for best in outputs:
        columns = [f"{o.score:.4f}\t{o.text}" if options.scores else o.text for o in best]
        yield "\t".join(f"{column}\t{next(aligned)}" if aligned else column for column in columns)


def _alignments(translator: Any, params: Any, lines: Sequence[str], outputs: Sequence[Sequence]) -> Iterator[str]:
    """Yields the alignment of each output of each line: "0-0 1-2"."""
    each = [(line, output) for line, best in zip(lines, outputs) for output in best]
    for pairs in translator.align(params, [line for line, _ in each], [output for _, output in each]):
        yield " ".join(f"{source}-{target}" for source, target in pairs)


def _draw_tree(path: str, translator: Any, params: Any, line: str, prefix: str | None) -> None:
    from s2sjax.evaluate.figures import attention_maps

    tree, found = translator.tree(params, line, prefix)
    attention_maps.search_tree(path, tree, found, translator.target.pieces)


def _draw_attention(path: str, translator: Any, params: Any, line: str, best: Sequence) -> None:
    from s2sjax.evaluate.figures import attention_maps

    drawn = attention_maps.AttentionMap(*translator.attention(params, [line], best)[0])
    drawn._replace(title=line).save(path)
