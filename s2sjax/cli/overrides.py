"""Sets fields of a configuration on the command line by their dotted names: --train.steps 500."""

import argparse
import contextlib
import dataclasses
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from s2sjax import former_names
from s2sjax.errors import UserError, nearest

INTERNAL = ("command", "parser", "subject", "help", "name", "takes_fields", "launched", "owners")
"""attributes of parsed options that are not options"""
FILE_ONLY = ("init",)
"""fields of an experiment that a file sets, and no command: other fields have been taken from what they name"""


def check_command(known: argparse.Namespace, argument: str) -> None:
    """Raises UserError if an unknown argument, such as --no-test, is an option of other commands."""
    option = argument.split("=")[0].replace("_", "-")
    if option.removeprefix("--") in former_names.FIELDS:  # --beam was a field, and is an option of prepare
        return
    if option.startswith("-") and (owners := known.owners.get(option)):
        *first, last = (f"s2sjax {owner}" for owner in owners)
        listed = f"{', '.join(first)} and {last}" if first else last
        raise UserError(f"{option} is an option of {listed}, not of s2sjax {known.name}: leave it out")


def override(known: argparse.Namespace, settings: Any, arguments: list[str], changed: Mapping[str, Any] = {}) -> Any:
    """The settings with fields replaced by `--dotted.name value`. With --help, prints all fields and exits.

    changed: fields that are replaced before these are.
    """
    import tyro

    kind, hidden = type(settings), {name: getattr(settings, name) for name in FILE_ONLY if hasattr(settings, name)}
    settings = _draft(settings, changed)
    names = list(_field_names(settings))
    options = [name.replace("_", "-") for name in vars(known) if name not in INTERNAL]
    arguments = [_renamed(argument, names) for argument in arguments]
    for argument in arguments:
        name = argument.split("=")[0].removeprefix("--").replace("-", "_")
        if argument.startswith("--") and name not in names:
            check_command(known, argument)
            near = nearest(former_names.FIELDS.get(name, name), names + options, cutoff=0.6)
            remedy = f"did you mean --{near}?" if near else f"see s2sjax {known.name} {known.subject} --help"
            raise UserError(f"there is no field --{name}: {remedy}")
    if arguments and not arguments[0].startswith("--"):
        raise UserError(f"{arguments[0]!r} is not a field: write --name value, as in --{names[0]} VALUE")
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    title = "Fields that can be set:"
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            found = tyro.cli(
                type(settings), default=settings, args=["--help"] if known.help else arguments, description=title,
                config=(tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands), use_underscores=True,
            )  # fmt: skip
            return kind(**_values(found) | hidden)
    except SystemExit:
        if not known.help:
            raise UserError(_one_line(_written(printed))) from None
    known.parser.print_help()
    print("\n" + title + _written(printed).partition(title)[2].rstrip())
    sys.exit(0)


def _draft(settings: Any, changed: Mapping[str, Any]) -> Any:
    """The settings with other values, whose combination is not checked: it may be valid with the fields that follow."""
    unchecked = {"__module__": type(settings).__module__, "__post_init__": lambda self: None}
    name, bases = type(settings).__name__, (type(settings),)
    hidden = [(name, str, dataclasses.field(default="", init=False)) for name in FILE_ONLY if hasattr(settings, name)]
    draft = dataclasses.make_dataclass(name, hidden, bases=bases, namespace=unchecked, frozen=True)
    return draft(**_values(settings) | dict(changed))


def _values(settings: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(settings) if field.init and field.name not in FILE_ONLY]
    return {name: getattr(settings, name) for name in names}


def _renamed(argument: str, names: Sequence[str]) -> str:
    """Replaces the former name of a field, --search.beam, by its name now, and prints it."""
    option, equals, value = argument.partition("=")
    group, dot, last = option.removeprefix("--").replace("-", "_").rpartition(".")
    name = f"{group}{dot}{last}"
    now = f"{group}{dot}{former_names.FIELDS.get(last, last)}"
    if not option.startswith("--") or name in names or now not in names:
        return argument
    print(f"--{name} is now --{now}", file=sys.stderr)
    return f"--{now}{equals}{value}"


def _field_names(settings: Any, prefix: str = "") -> Iterator[str]:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if not prefix and field.name in FILE_ONLY:
            continue
        if dataclasses.is_dataclass(value):
            yield from _field_names(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def _written(stream: io.TextIOWrapper) -> str:
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def _one_line(box: str) -> str:
    """The first paragraph of the message in the box that tyro draws."""
    inside = [line.strip("│ \n") for line in box.splitlines() if line.startswith("│")]
    message = []
    for line in inside:
        if re.match("[─-]+$", line):
            break
        message.append(line)
    text = " ".join(message) or "the fields cannot be parsed"
    text = text.removeprefix("Error parsing ")
    return re.sub(r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not a whole number", text)
