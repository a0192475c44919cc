"""Set fields of a configuration on the command line by their dotted names: --train.steps 500."""

import argparse
import contextlib
import dataclasses
import difflib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from s2sjax.errors import UserError

INTERNAL = ("command", "parser", "subject", "help", "name", "takes_fields")
"""what the parser keeps for itself"""


def nearest(name: str, names: Sequence[str]) -> str:
    return difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]


def override(known: argparse.Namespace, settings: Any, arguments: list[str]) -> Any:
    """`settings` with fields replaced by `--dotted.name value`; --help prints all of them."""
    import tyro

    names = list(_field_names(settings))
    options = [name for name in vars(known) if name not in INTERNAL]
    for argument in arguments:
        name = argument.split("=")[0].removeprefix("--").replace("-", "_")
        if argument.startswith("--") and name not in names:
            raise UserError(f"there is no field --{name}: did you mean --{nearest(name, names + options)}?")
    if arguments and not arguments[0].startswith("--"):
        raise UserError(f"{arguments[0]!r} is not a field: write --name value, as in --{names[0]} VALUE")
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    title = "Fields that can be set:"
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            return tyro.cli(
                type(settings), default=settings, args=["--help"] if known.help else arguments, description=title,
                config=(tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands), use_underscores=True,
            )  # fmt: skip
    except SystemExit:
        if not known.help:
            raise UserError(_one_line(_written(printed))) from None
    known.parser.print_help()
    print("\n" + title + _written(printed).partition(title)[2].rstrip())
    sys.exit(0)


def _field_names(settings: Any, prefix: str = "") -> Iterator[str]:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from _field_names(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def _written(stream: io.TextIOWrapper) -> str:
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def _one_line(box: str) -> str:
    """The message in the box that tyro draws: its first paragraph."""
    inside = [line.strip("│ \n") for line in box.splitlines() if line.startswith("│")]
    message = []
    for line in inside:
        if re.match("[─-]+$", line):
            break
        message.append(line)
    text = " ".join(message) or "the fields cannot be parsed"
    text = text.removeprefix("Error parsing ")
    return re.sub(r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not a whole number", text)
