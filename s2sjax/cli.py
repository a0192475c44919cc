"""The commands. Every one prints what it did; a user's mistake is one line on standard error and exit code 2."""

import argparse
import contextlib
import dataclasses
import errno
import io
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from s2sjax import __version__, config, launch
from s2sjax.errors import UserError
from s2sjax.fields import nearest, override
from s2sjax.lines import chunks, input_lines, two_columns

THREADS = 8
"""that XLA gets for each pretended device"""


def main(arguments: Sequence[str] | None = None) -> None:
    if arguments is None:
        _quiet_libraries()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # text is UTF-8 whatever the locale
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    try:
        known, rest = _parse(arguments)
        if getattr(known, "distributed", False) and launch.WATCHED not in os.environ:
            sys.exit(launch.watch([{}], arguments))
        try:
            known.command(known, rest)
        except Exception as error:
            if launch.WATCHED in os.environ and launch.is_loss(error):
                raise UserError(launch.LOST) from error
            raise
        sys.stdout.flush()
    except UserError as error:
        _end(2, f"error: {error}")
    except BrokenPipeError:  # `s2sjax decode RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        _end(2, f"error: {_explain(error)}")
    except KeyboardInterrupt:
        _end(130, "interrupted: run the same command again; training continues from its last checkpoint")


def _quiet_libraries() -> None:
    """A failed save is reported in one line; Orbax and asyncio, whose tasks end later, would add many."""
    import absl.logging

    absl.logging.set_verbosity(absl.logging.FATAL)
    logging.getLogger("asyncio").addFilter(lambda log: "exception was never retrieved" not in log.getMessage())
    hook = sys.unraisablehook
    sys.unraisablehook = lambda late: None if str(late.exc_value) == "Event loop is closed" else hook(late)


def _end(code: int, message: str) -> None:
    """Of several processes, one that fails does not wait for the others: JAX ends them when it is gone."""
    print(message, file=sys.stderr)
    if launch.WATCHED in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _explain(error: OSError) -> str:
    """A file that cannot be read or written: which, why, and what to do."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "free some space" if full else "fix it, or choose another folder"
    what = f"{error.filename}: " if error.filename else ""
    return f"{what}{error.strerror or error}: {remedy}, and run the same command again"


# ------------------------------------------------------------------------------- the arguments


class _Parser(argparse.ArgumentParser):
    """One line for a mistake, like everywhere else."""

    def error(self, message: str):
        raise UserError(f"{message}: see {self.prog} --help")


FIELDS = """Any field of the experiment can be set by its dotted name, for example
  --train.steps 500 --model.width 256
and `s2sjax train FILE --help` lists those of FILE with their meaning."""
SEARCH = """How text is searched can be set anew, for example --search.beam 8;
`s2sjax {name} RUN --help` lists these fields with their meaning."""

LAUNCH = "s2sjax launch -p 2 -d 4 -- train experiments/reverse.py"


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of a command, and what is left: the fields of the configuration."""
    # The fields have a help of their own, so the commands' parsers leave --help to the commands.
    help = "-h" in arguments or "--help" in arguments
    parser = _Parser(prog="s2sjax", description="Sequence-to-sequence research in JAX.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"s2sjax {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(
        name: str, function, about: str, subject: str = "", subject_help: str = "", epilog: str = ""
    ) -> _Parser:
        sub = commands.add_parser(
            name, help=about, description=about[0].upper() + about[1:] + ".", epilog=epilog, allow_abbrev=False,
            add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        if subject:
            sub.add_argument("subject", metavar=subject, nargs="?" if help else None, help=subject_help)
        sub.add_argument("-h", "--help", action="store_true", help="show this, and every field that can be set")
        sub.set_defaults(command=function, parser=sub, subject=None)
        return sub

    file, folder = "a Python file, such as experiments/g2p.py", "a run folder, such as runs/g2p"
    train = command("train", _train, "train the experiment that a file defines, and evaluate it", "FILE", file, FIELDS)
    train.add_argument(
        "--out", metavar="DIR", help="the run folder (default: runs/NAME, by the name of the experiment)"
    )
    named = "take a named model instead: see s2sjax models"
    train.add_argument("--model", metavar="NAME", help=named)
    joined = "be one of several processes, on as many hosts: see docs/pod.md"
    train.add_argument("--distributed", action="store_true", help=joined)
    about = "prepare the corpus of an experiment once, so that training only reads it"
    prepare = command("prepare", _prepare, about, "FILE", file, FIELDS)
    prepare.add_argument("--out", metavar="DIR", help="(default: that of config.Prepared, or prepared/NAME)")
    prepare.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="(default: one a core)")
    about = "decode a split with the best checkpoint and score it"
    evaluate = command("evaluate", _evaluate, about, "RUN", folder, SEARCH.format(name="evaluate"))
    evaluate.add_argument("--split", choices=["train", "dev", "test"], help="(default: test, or dev where none is)")
    also = "another run of the same vocabularies that writes with the first, as an ensemble; may be given again"
    evaluate.add_argument("--also", metavar="RUN", action="append", default=[], help=also)
    evaluate.add_argument("--distributed", action="store_true", help=joined)
    average = "take the mean of the newest K checkpoints (train.keep says how many there are), not the best one"
    evaluate.add_argument("--average", metavar="K", type=_count, default=0, help=average)
    about = "write one line for each line of standard input, n-best outputs separated by tabs"
    decode = command("decode", _decode, about, "RUN", folder, SEARCH.format(name="decode"))
    decode.add_argument("--scores", action="store_true", help="write the score and a tab before each output")
    about = "write a tab and source-output pairs of pieces, such as 0-0 1-2, behind each output"
    decode.add_argument("--alignment", action="store_true", help=about)
    about = "each line of standard input is source<tab>prefix: its outputs begin with that prefix"
    decode.add_argument("--prefixes", action="store_true", help=about)
    tag = "the tag of lines that begin with none, of a model of several tasks: --tag '<2de>'"
    decode.add_argument("--tag", metavar="TAG", help=tag)
    about = "draw the search of the first line as a tree into FILE (.png, .svg, .pdf)"
    decode.add_argument("--tree", metavar="FILE", help=about)
    decode.add_argument("--also", metavar="RUN", action="append", default=[], help=also)
    decode.add_argument("--average", metavar="K", type=_count, default=0, help=average)
    about = "write log-probability<tab>tokens for each source<tab>target of standard input"
    score = command("score", _score, about, "RUN", folder)
    score.add_argument("--tag", metavar="TAG", help=tag)
    score.add_argument("--average", metavar="K", type=_count, default=0, help=average)
    models = command("models", _models, "list the models that have a name: paper, family, weights, what they do")
    for side in ("source", "target"):
        about = f"entries of the {side} vocabulary that weights are counted at (default: 32000)"
        models.add_argument(f"--{side}-size", type=int, metavar="N", default=32_000, help=about)
    about = "run a command as several processes on this machine, a pod in a box"
    pod = command("launch", _launch, about, epilog=LAUNCH)
    pod.set_defaults(launched=[])
    pod.add_argument("-p", "--processes", metavar="P", type=_count, default=2, help="(default: 2)")
    pod.add_argument("-d", "--devices", metavar="D", type=_count, default=4, help="of the CPU, each (default: 4)")
    about = "predict step time, memory and MFU on N devices that are not here, and say which mesh to take"
    plan = command("plan", _plan, about, "FILE", file, FIELDS)
    plan.add_argument("--model", metavar="NAME", help=named)
    plan.add_argument("--devices", type=int, metavar="N", default=8, help="(default: 8)")
    plan.add_argument("--chip", metavar="NAME", default="H200", help="H200, H100, A100, v4, v5e, v5p, v6e (of TPU)")
    for side in ("source", "target"):
        about = f"entries of the {side} vocabulary; with both given, no data is read"
        plan.add_argument(f"--{side}-size", type=int, metavar="N", help=about)
    about = "measure ours beside its peers, those that are installed (`train`, `decode`), or what feeds it (`data`)"
    bench = command("bench", _bench, about, "NAME", "train, decode, or data")
    bench.add_argument("--size", choices=["small", "base"], default="small", help="of decode; base is for a GPU")
    bench.add_argument("--rounds", type=int, default=5, help="turns that each takes (default: 5)")
    command("doctor", _doctor, "tell versions, devices, and what is missing with its remedy")

    names = list(commands.choices)
    launched: list[str] = []
    if arguments[:1] == ["launch"] and "--" in arguments:
        cut = arguments.index("--")
        arguments, launched = arguments[:cut], arguments[cut + 1 :]
    if not arguments:
        raise UserError(f"name a command ({', '.join(names)}): see s2sjax --help")
    if not arguments[0].startswith("-") and arguments[0] not in names:
        raise UserError(f"there is no command {arguments[0]!r}: did you mean {nearest(arguments[0], names)!r}?")
    known, rest = parser.parse_known_args(arguments)
    if launched:
        known.launched = launched
    if known.subject and (before := arguments[arguments.index(known.subject) - 1]) in rest:
        raise UserError(f"{known.subject} follows {before}: name what to {arguments[0]} first, and its fields after it")
    return known, rest


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


# -------------------------------------------------------------------------------- the commands


def _train(known: argparse.Namespace, rest: list[str]) -> None:
    if known.subject is None:
        return known.parser.print_help()
    with _ends_at_sigterm():
        from s2sjax import run
        from s2sjax.train import hosts

        experiment = _experiment(known, rest)
        _start_jax(known.distributed)
        trained, result = run.train(experiment, Path(known.out or Path("runs") / experiment.name))
        if result.status == "interrupted":  # all is saved, and Python would wait for what XLA is still compiling
            hosts.shutdown()
            sys.stdout.flush()
            os._exit(0)
        written = [trained.folder / name for name in ("checkpoints", "metrics.jsonl")]
        if run.default_split(experiment.data.corpus):
            run.evaluate(trained)
            written.append(trained.folder / "results.json")
        written += run.show(trained)
        print("wrote " + ", ".join(str(path) for path in written))
    return None


def _prepare(known: argparse.Namespace, rest: list[str]) -> None:
    if known.subject is None:
        return known.parser.print_help()
    with _ends_at_sigterm():
        from s2sjax.data import prepare

        experiment = _experiment(known, rest)
        folder = known.out or getattr(experiment.data.corpus, "folder", f"prepared/{experiment.name}")
        with prepare.bars() as progress:
            done = prepare.prepare(experiment.data, folder, known.workers, progress)
        what = "wrote" if done.new else "nothing to do:"
        print(f"{what} {done.folder}, {done.pairs:,} pairs of {done.tokens:,} tokens")
        if getattr(experiment.data.corpus, "folder", None) != folder:
            print(f"to train on it: data.corpus = config.Prepared({folder!r})")
    return None


def _launch(known: argparse.Namespace, rest: list[str]) -> None:
    if known.help:
        return known.parser.print_help()
    if rest:
        raise UserError(f"launch takes no {rest[0]}: write the command behind --, as in {LAUNCH}")
    if known.launched[:1] not in (["train"], ["evaluate"]):
        raise UserError(f"launch runs train or evaluate on several processes: write it behind --, as in {LAUNCH}")
    sys.exit(launch.pod(known.processes, known.devices, known.launched))


def _evaluate(known: argparse.Namespace, rest: list[str]) -> None:
    if known.subject is None:
        return known.parser.print_help()
    from s2sjax import run

    opened = run.open_run(known.subject)
    settings = override(known, _Judged(opened.experiment.search, opened.experiment.evaluate), rest)
    others = [run.open_run(other) for other in known.also]
    _start_jax(known.distributed)
    run.evaluate(opened, known.split, settings.search, settings.evaluate, others, known.average)
    return None


def _decode(known: argparse.Namespace, rest: list[str]) -> None:
    if known.subject is None:
        return known.parser.print_help()
    from s2sjax import run

    opened = run.open_run(known.subject)
    search = override(known, _Searched(opened.experiment.search), rest).search
    if known.tree and not known.tree.endswith((".png", ".svg", ".pdf")):
        raise UserError(f"--tree {known.tree} is no picture that can be drawn: end it with .png, .svg or .pdf")
    translator, params = _load(opened, search, [run.open_run(other) for other in known.also], known.average)
    if known.alignment:
        translator.need_attention("--alignment", "leave it out")
    first = 0
    for lines in chunks(input_lines()):
        prefixes = None
        if known.prefixes:
            pairs = [two_columns(line, first + i, "prefix") for i, line in enumerate(lines)]
            lines, prefixes = [source for source, _ in pairs], [prefix for _, prefix in pairs]
        lines = [_tagged(opened, line, known.tag, first + i) for i, line in enumerate(lines)]
        if known.tree and first == 0:
            from s2sjax.evaluate import figures

            tree, found = translator.tree(params, lines[0], prefixes[0] if prefixes else None)
            figures.search_tree(known.tree, tree, found, translator.target.pieces)
        outputs = translator.decode(params, lines, prefixes, first)
        aligned = _alignments(translator, params, lines, outputs) if known.alignment else None
        for best in outputs:
            columns = [f"{o.score:.4f}\t{o.text}" if known.scores else o.text for o in best]
            print("\t".join(f"{column}\t{next(aligned)}" if aligned else column for column in columns))
        sys.stdout.flush()
        first += len(lines)
    return None


def _alignments(translator, params, lines: Sequence[str], outputs: Sequence[Sequence]) -> Iterator[str]:
    """Of each output of each line: "0-0 1-2"."""
    each = [(line, output) for line, best in zip(lines, outputs) for output in best]
    for pairs in translator.align(params, [line for line, _ in each], [output for _, output in each]):
        yield " ".join(f"{source}-{target}" for source, target in pairs)


def _score(known: argparse.Namespace, rest: list[str]) -> None:
    if known.help:
        return known.parser.print_help()
    if rest:
        raise UserError(f"score takes no {rest[0]}: see s2sjax score --help")
    from s2sjax import run

    opened = run.open_run(known.subject)
    translator, params = _load(opened, opened.experiment.search, average=known.average)
    number = 0
    for lines in chunks(input_lines()):
        pairs = []
        for line in lines:
            source, target = two_columns(line, number, "target")
            pairs.append((_tagged(opened, source, known.tag, number), target))
            number += 1
        for log_prob, tokens in translator.score(params, pairs):
            print(f"{log_prob:.4f}\t{tokens}")
        sys.stdout.flush()
    return None


def _models(known: argparse.Namespace, rest: list[str]) -> None:
    if known.help:
        return known.parser.print_help()
    if rest:
        raise UserError(f"models takes no {rest[0]}: see s2sjax models --help")
    for name in ("source_size", "target_size"):
        if getattr(known, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(known, name)}: it must be at least 1")
    from s2sjax.models import catalogue

    print(catalogue.table(known.source_size, known.target_size))
    return None


def _plan(known: argparse.Namespace, rest: list[str]) -> None:
    if known.subject is None:
        return known.parser.print_help()
    from s2sjax.plan import report

    experiment = _experiment(known, rest)
    if (known.source_size is None) != (known.target_size is None):
        raise UserError("one of --source-size and --target-size is missing: give both, or none to read the data")
    sizes = None if known.source_size is None else (known.source_size, known.target_size)
    _start_jax()
    named = ["--model", known.model] if known.model else []
    command = " ".join(["s2sjax train", known.subject, *named, *rest])
    print(report.plan(experiment, known.devices, known.chip, sizes, command))
    return None


def _bench(known: argparse.Namespace, rest: list[str]) -> None:
    if known.help:
        return known.parser.print_help()
    if rest:
        raise UserError(f"bench takes no {rest[0]}: see s2sjax bench --help")
    if known.subject not in (names := ["train", "decode", "data"]):
        raise UserError(f"there is no benchmark {known.subject!r}: did you mean {nearest(known.subject, names)!r}?")
    if known.rounds < 1:
        raise UserError(f"--rounds is {known.rounds}: it must be at least 1")
    _start_jax()
    if known.subject == "train":
        from s2sjax.bench import train

        return train.bench(known.rounds)
    if known.subject == "data":
        from s2sjax.bench import data

        return data.bench(known.rounds)
    from s2sjax.bench import decode

    return decode.bench(known.size, known.rounds)


def _doctor(known: argparse.Namespace, rest: list[str]) -> None:
    if known.help:
        return known.parser.print_help()
    if rest:
        raise UserError(f"doctor takes no {rest[0]}: see s2sjax doctor --help")
    from s2sjax import doctor

    doctor.report(_start_jax)
    return None


# -------------------------------------------------------------------------------- their parts


@dataclasses.dataclass(frozen=True)
class _Searched:
    """What may be changed of a trained run to decode with it."""

    search: config.Search


@dataclasses.dataclass(frozen=True)
class _Judged(_Searched):
    """What may be changed of a trained run to evaluate it."""

    evaluate: config.Evaluate


def _experiment(known: argparse.Namespace, rest: list[str]) -> config.Experiment:
    """What a file defines, with the model that --model names and the fields that are set."""
    from s2sjax import models, run

    experiment = run.load_experiment(known.subject)
    name = getattr(known, "model", None)
    if name:
        if name not in models.NAMED:
            names = list(models.NAMED)
            raise UserError(f"there is no model {name!r}: did you mean {nearest(name, names)!r}? ({', '.join(names)})")
        # Whether it fits the rest is looked at when all is there: a field set here may make it fit.
        object.__setattr__(experiment, "model", models.NAMED[name].config)
    return override(known, experiment, rest)


def _load(opened, search: config.Search, others: Sequence = (), average: int = 0):
    """A translator and its parameters, or those of each run of an ensemble.

    Standard output belongs to the lines, so what there is to say goes elsewhere.
    """
    _start_jax()
    with contextlib.redirect_stdout(sys.stderr):
        mesh = opened.mesh()
        translator = opened.translator(search, mesh, others)
        params = [each.params(average, mesh)[0] for each in (opened, *others)]
        return translator, params if others else params[0]


def _tagged(opened, line: str, tag: str | None, index: int) -> str:
    from s2sjax.data import text

    return text.with_tag(opened.source, line, tag, f"standard input, line {index + 1}")


@contextlib.contextmanager
def _ends_at_sigterm() -> Iterator[None]:
    """A SIGTERM before or after the loop, which handles its own, loses nothing: all steps made are saved."""

    def end(*_) -> None:
        print("interrupted: run the same command again to continue", flush=True)
        sys.exit(0)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _start_jax(distributed: bool = False) -> Path:
    """Keeps compiled programs between runs: the second start of an experiment compiles next to nothing.

    Of several processes, only the first speaks.
    """
    import jax

    options: Any = jax.config
    if options.jax_num_cpu_devices > 0:
        # Such a device may stand in several collectives at once, and each takes a thread: when there is none left for
        # a device that the others wait for, all wait for ever.
        threads = max(THREADS * options.jax_num_cpu_devices, os.cpu_count() or 1)
        os.environ.setdefault("PJRT_NPROC", str(threads))
    if distributed:
        from s2sjax.train import hosts

        hosts.initialize()
        if not hosts.is_leader():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    if options.jax_compilation_cache_dir is None:  # JAX_COMPILATION_CACHE_DIR goes first
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        options.update("jax_compilation_cache_dir", str(home / "s2sjax"))
        options.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    # A cache that cannot be written, or was cut short by a kill, costs time and nothing else.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    return Path(options.jax_compilation_cache_dir)


if __name__ == "__main__":
    main()
