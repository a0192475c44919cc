"""The command line: parses the arguments and calls a command (commands.py).

A user's mistake prints one line to standard error and exits with code 2.
"""

import argparse
import contextlib
import errno
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence

from s2sjax.cli import commands, launch
from s2sjax.cli.arguments import parse
from s2sjax.cli.overrides import check_command
from s2sjax.datasets import folder, table
from s2sjax.errors import UserError, one_line
from s2sjax.files import as_path, local_path

STORED: dict[str, tuple[str, ...]] = {
    "train": ("out", "init"), "evaluate": ("subject", "also"), "decode": ("subject", "also", "tree", "attention"),
    "score": ("subject", "also"), "results": ("runs", "curves"), "compare": ("runs", "first", "second"),
    "report": ("runs", "out"), "serve": ("subject",), "align": ("run", "reverse_run"), "launch": ("launched",),
    "prepare": ("out",),
    "sweep": ("sweep_name", "init"), "import": ("folder", "run"), "export": ("run", "folder"),
}  # fmt: skip
"""the options that may be addresses in object storage, of each command"""
RESUME = {
    "train": ": run the same command again; training continues from its last checkpoint",
    "sweep": ": run the same command again; training continues from the last checkpoints",
    "prepare": ": run the same command again to continue",
    "data": ": run the same command again; a download continues where it stopped",
}


def main(arguments: Sequence[str] | None = None) -> None:
    owns_process = arguments is None
    if owns_process:
        launch.end_with_parent()
        _quiet_libraries()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    interruption = f"interrupted{RESUME.get(arguments[0], '') if arguments else ''}"
    # prepare first ends its workers, data its progress bar
    if owns_process and arguments[:1] not in (["prepare"], ["data"]):
        _end_at_ctrl_c(interruption)
    for stream in (sys.stdout, sys.stderr):  # text is UTF-8 whatever the locale
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
    try:
        known, rest = parse(arguments)
        if getattr(known, "distributed", False) and launch.WATCHED not in os.environ:
            sys.exit(launch.watch([{}], arguments))
        try:
            _run(known, rest)
        except Exception as error:
            if launch.WATCHED in os.environ and launch.is_loss(error):
                raise UserError(launch.LOST) from error
            raise
        sys.stdout.flush()
    except UserError as error:
        _end(2, f"error: {error}", at_once=owns_process)  # a thread may still compile for a minute
    except BrokenPipeError:  # `s2sjax decode RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("s2sjax"):
            raise
        _end(2, f"error: {error}: s2sjax doctor prints what to install")
    except OSError as error:
        _end(2, f"error: {_explain(error)}", at_once=owns_process)
    except KeyboardInterrupt:
        _end(130, interruption, at_once=owns_process)


def _run(options: argparse.Namespace, fields: list[str]) -> None:
    if options.help and (options.subject is None or not options.takes_fields):
        return options.parser.print_help()
    if fields and not options.takes_fields:
        check_command(options, fields[0])
        raise UserError(f"{options.name} has no option {fields[0]}: see s2sjax {options.name} --help")
    for name, value in vars(options).items():  # before anything is read or written
        if name == "beam":  # Beam's own options
            continue
        paths = value if isinstance(value, list) else [value]
        for path in filter(lambda each: isinstance(each, str), paths):
            (as_path if name in STORED.get(options.name, ()) else local_path)(path)
        resolved = [_data_path(name, path) if isinstance(path, str) else path for path in paths]
        setattr(options, name, resolved if isinstance(value, list) else resolved[0])
    if getattr(options, "trust", False):
        commands.trust(options)
    return options.command(options, fields)


def _data_path(option: str, path: str) -> str:
    """A path data:NAME/FILE as an absolute path, which must exist if it is read."""
    resolved = folder.resolve(path)
    if resolved != path and option != "out" and (error := table.missing(resolved)):
        raise UserError(error)
    return resolved


def _quiet_libraries() -> None:
    """Silences Orbax and asyncio, which would add many lines to the one-line error of a failed save."""
    with contextlib.suppress(ImportError):  # `doctor` reports what is missing
        import absl.logging

        absl.logging.set_verbosity(absl.logging.FATAL)
    logging.getLogger("asyncio").addFilter(lambda log: "exception was never retrieved" not in log.getMessage())
    hook = sys.unraisablehook
    sys.unraisablehook = lambda late: None if str(late.exc_value) == "Event loop is closed" else hook(late)


def _end_at_ctrl_c(message: str) -> None:
    """Exits at Ctrl-C. A KeyboardInterrupt would be lost in a JAX callback, or become another error in an import."""

    def handle(*_) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the signal may have interrupted a write
            sys.stdout.flush()
        os.write(2, f"{message}\n".encode())
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a background process ignores Ctrl-C
        signal.signal(signal.SIGINT, handle)


def _end(code: int, message: str, at_once: bool = False) -> None:
    """Prints a message and exits.

    at_once: does not wait for threads, such as one that compiles. One of several processes never waits, because JAX
    would wait for the others, which JAX stops when this one ends.
    """
    # One write: with `print`, a line of XLA's log may come before the newline.
    sys.stderr.write(f"{one_line(message)}\n")
    if at_once or launch.WATCHED in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _explain(error: OSError) -> str:
    """Names the file that cannot be read or written, the reason, and the remedy."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "free some space" if full else "fix it, or choose another folder"
    what = f"{error.filename}: " if error.filename else ""
    return f"{what}{error.strerror or error}: {remedy}, and run the same command again"


if __name__ == "__main__":
    main()
