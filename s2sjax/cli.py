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

from s2sjax import __version__, commands, launch
from s2sjax.addresses import local_path
from s2sjax.errors import UserError, one_line
from s2sjax.fields import nearest

RESUME = {
    "train": ": run the same command again; training continues from its last checkpoint",
    "prepare": ": run the same command again to continue",
}


def main(arguments: Sequence[str] | None = None) -> None:
    owns_process = arguments is None
    if owns_process:
        launch.end_with_parent()
        _quiet_libraries()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    interruption = f"interrupted{RESUME.get(arguments[0], '') if arguments else ''}"
    if owns_process and arguments[:1] != ["prepare"]:  # which first ends its workers
        _end_at_ctrl_c(interruption)
    for stream in (sys.stdout, sys.stderr):  # text is UTF-8 whatever the locale
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
    try:
        known, rest = _parse(arguments)
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
        _end(2, f"error: {error}: s2sjax doctor says what to install")
    except OSError as error:
        _end(2, f"error: {_explain(error)}", at_once=owns_process)
    except KeyboardInterrupt:
        _end(130, interruption, at_once=owns_process)


def _run(options: argparse.Namespace, fields: list[str]) -> None:
    if options.help and (options.subject is None or not options.takes_fields):
        return options.parser.print_help()
    if fields and not options.takes_fields:
        raise UserError(f"{options.name} has no option {fields[0]}: see s2sjax {options.name} --help")
    for value in vars(options).values():  # before anything is read or made
        for path in filter(lambda each: isinstance(each, str), value if isinstance(value, list) else [value]):
            local_path(path)
    if getattr(options, "trust", False):
        commands.trust(options)
    return options.command(options, fields)


def _quiet_libraries() -> None:
    """A failed save is reported in one line. Orbax and asyncio would add many, because their tasks end later."""
    with contextlib.suppress(ImportError):  # `doctor` reports what is missing
        import absl.logging

        absl.logging.set_verbosity(absl.logging.FATAL)
    logging.getLogger("asyncio").addFilter(lambda log: "exception was never retrieved" not in log.getMessage())
    hook = sys.unraisablehook
    sys.unraisablehook = lambda late: None if str(late.exc_value) == "Event loop is closed" else hook(late)


def _end_at_ctrl_c(message: str) -> None:
    """By a handler: a KeyboardInterrupt is lost in a callback of JAX, and becomes another error in an import."""

    def handle(*_) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the signal may have come while it was written to
            sys.stdout.flush()
        os.write(2, f"{message}\n".encode())
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored, as in the background
        signal.signal(signal.SIGINT, handle)


def _end(code: int, message: str, at_once: bool = False) -> None:
    """Exits. One of several processes does not wait for the others: JAX stops them when it is gone.

    at_once: does not wait for threads either, such as one that compiles.
    """
    # In one piece: `print` may let a line of XLA's log come before the end of this one.
    sys.stderr.write(f"{one_line(message)}\n")
    if at_once or launch.WATCHED in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _explain(error: OSError) -> str:
    """Which file cannot be read or written, why, and what to do."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "free some space" if full else "fix it, or choose another folder"
    what = f"{error.filename}: " if error.filename else ""
    return f"{what}{error.strerror or error}: {remedy}, and run the same command again"


# ------------------------------------------------------------------------------- the arguments


class _Parser(argparse.ArgumentParser):
    """Reports a mistake as a UserError: one line."""

    def error(self, message: str):
        raise UserError(f"{message}: see {self.prog} --help")


FIELDS = """Any field of the experiment can be set by its dotted name, for example
  --train.steps 500 --model.width 256
`s2sjax {name} FILE --help` lists the fields of FILE."""
ADJUST = """Some fields of the run can be changed after training, for example --search.beam 8.
`s2sjax {name} RUN --help` lists them."""


ALIGN = "align the words of sentence pairs, and print the links of each pair in Pharaoh format, such as 0-0 1-2"


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of a command, and the remaining arguments: fields of the configuration."""
    # The fields have their own help, so the parsers leave --help to the commands.
    help = "-h" in arguments or "--help" in arguments
    parser = _Parser(prog="s2sjax", description="Sequence-to-sequence research in JAX.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"s2sjax {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(
        name: str, function, about: str, subject: str = "", subject_help: str = "", epilog: str = ""
    ) -> _Parser:
        takes_fields = bool(epilog)
        sub = subparsers.add_parser(
            name, help=about, description=about[0].upper() + about[1:] + ".", epilog=epilog, allow_abbrev=False,
            add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        if subject:
            sub.add_argument("subject", metavar=subject, nargs="?" if help else None, help=subject_help)
        shown = f"print this help; with {subject}, also the fields that can be set" if subject and epilog else ""
        sub.add_argument("-h", "--help", action="store_true", help=shown or "print this help")
        sub.set_defaults(command=function, parser=sub, subject=None, name=name, takes_fields=takes_fields)
        return sub

    file, folder = "a Python file, such as experiments/g2p.py", "a run folder, such as runs/g2p"
    train = command(
        "train", commands.train, "train the experiment defined in a file, and evaluate it", "FILE", file,
        FIELDS.format(name="train"),
    )  # fmt: skip
    train.add_argument("--out", metavar="DIR", help="the run folder (default: runs/NAME, the name of the experiment)")
    named = "use a named model instead of that of FILE: see s2sjax models"
    train.add_argument("--model", metavar="NAME", help=named)
    about = "start from the parameters of another run, where names and shapes agree"
    train.add_argument("--init", metavar="RUN", help=about)
    about = "with --init, also take its vocabularies, instead of learning new ones"
    train.add_argument("--init-assets", action="store_true", help=about)
    about = "leave the test split alone, and score dev after training instead (evaluate.test False)"
    train.add_argument("--no-test", action="store_true", help=about)
    about = "continue a run whose code has changed since it was trained, and store the new code"
    train.add_argument("--accept-code", action="store_true", help=about)
    joined = "run as one process of several, one on each host: see docs/pod.md"
    train.add_argument("--distributed", action="store_true", help=joined)
    about = "convert the text of an experiment to ids once, so that training only reads them"
    prepare = command("prepare", commands.prepare, about, "FILE", file, FIELDS.format(name="prepare"))
    prepare.add_argument(
        "--out", metavar="DIR", help="the folder to write (default: that of config.Prepared, or prepared/NAME)"
    )
    about = "number of processes (default: one per core)"
    prepare.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help=about)
    about = "predict a split with the best checkpoint and print its metrics"
    evaluate = command("evaluate", commands.evaluate, about, "RUN", folder, ADJUST.format(name="evaluate"))
    about = "(default: test, or dev if there is no test split or evaluate.test is False)"
    evaluate.add_argument("--split", choices=["train", "dev", "test"], help=about)
    also = "another run with the same vocabularies: decode with both as an ensemble; can be repeated"
    evaluate.add_argument("--also", metavar="RUN", action="append", default=[], help=also)
    evaluate.add_argument("--distributed", action="store_true", help=joined)
    average = "use the mean of the newest K checkpoints (train.keep is how many are kept) instead of the best one"
    evaluate.add_argument("--average", metavar="K", type=_count, default=0, help=average)
    about = "list the evaluations of runs: split, checkpoint, search, metrics, date"
    results = command("results", commands.results, about)
    results.add_argument("runs", metavar="RUN", nargs="*" if help else "+", help=folder)
    results.add_argument("--json", action="store_true", help="print them as JSON, with all digits")
    about = "draw the learning curves of the runs to FILE (.png, .svg, .pdf) instead"
    results.add_argument("--curves", metavar="FILE", help=about)
    about = "test whether two runs differ significantly, and print the examples that changed most"
    compare = command("compare", commands.compare, about)
    for name, about in (("first", "a run, or one of its evaluations, RUN/evaluations/NAME"), ("second", "another")):
        compare.add_argument(name, metavar="RUN", nargs="?" if help else None, help=about)
    about = "compare the newest evaluations of this split (default: test, else dev, else train)"
    compare.add_argument("--split", choices=["train", "dev", "test"], help=about)
    about = "resamples of the paired bootstrap (default: 1000)"
    compare.add_argument("--resamples", metavar="N", type=_count, default=1000, help=about)
    report = command("report", commands.report, "write one HTML file on runs: scores, curves, outputs, attention")
    _add_report_options(report, help)
    about = "print one line for each line of standard input, n-best outputs separated by tabs"
    decode = command("decode", commands.decode, about, "RUN", folder, ADJUST.format(name="decode"))
    decode.add_argument("--scores", action="store_true", help="print the score and a tab before each output")
    about = "print a tab and the source-output pairs of pieces, such as 0-0 1-2, after each output"
    decode.add_argument("--alignment", action="store_true", help=about)
    about = "each line of standard input is source<tab>prefix: its outputs begin with the prefix"
    decode.add_argument("--prefixes", action="store_true", help=about)
    tag = "for a model trained on a tagged mixture: the tag of lines that begin with none, such as '<2de>'"
    decode.add_argument("--tag", metavar="TAG", help=tag)
    about = "draw the search tree of the first line to FILE (.png, .svg, .pdf)"
    decode.add_argument("--tree", metavar="FILE", help=about)
    about = "draw the attention of the best output of the first line to FILE (.png, .svg, .pdf)"
    decode.add_argument("--attention", metavar="FILE", help=about)
    decode.add_argument("--also", metavar="RUN", action="append", default=[], help=also)
    decode.add_argument("--average", metavar="K", type=_count, default=0, help=average)
    about = "open a page for live input, and a JSON API: outputs, n-best lists, attention, search trees"
    serve = command("serve", commands.serve, about, "RUN", folder, ADJUST.format(name="serve"))
    about = "the address to listen on (default: 127.0.0.1, which only this machine can reach)"
    serve.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help=about)
    serve.add_argument("--port", metavar="N", type=_amount, default=8000, help="(default: 8000; 0: any free one)")
    about = "for a run that reads recordings or pictures: the folder whose files requests may name, and no others"
    serve.add_argument("--files", metavar="FOLDER", help=about)
    serve.add_argument("--average", metavar="K", type=_count, default=0, help=average)
    about = "print log-probability<tab>number of tokens for each line source<tab>target of standard input"
    score = command("score", commands.score, about, "RUN", folder, ADJUST.format(name="score"))
    score.add_argument("--tag", metavar="TAG", help=tag)
    score.add_argument("--average", metavar="K", type=_count, default=0, help=average)
    align = command("align", commands.align, ALIGN)
    _add_align_options(align, help)
    about = "execute the code of runs that you have not trained yourself; asked for once"
    for each in (train, evaluate, report, decode, serve, score, align):
        each.add_argument("--trust", action="store_true", help=about)
    models = command("models", commands.models, "list the named models: paper, family, number of weights, description")
    for side in ("source", "target"):
        about = f"entries of the {side} vocabulary, for the number of weights (default: 32000)"
        models.add_argument(f"--{side}-size", type=int, metavar="N", default=32_000, help=about)
    about = "run a command in several processes on this machine, as a simulated pod"
    pod = command("launch", commands.launch, about, epilog=f"Example: {commands.LAUNCH}")
    pod.set_defaults(launched=[])
    pod.add_argument("-p", "--processes", metavar="P", type=_count, default=2, help="number of processes (default: 2)")
    pod.add_argument(
        "-d", "--devices", metavar="D", type=_count, default=4, help="CPU devices of each process (default: 4)"
    )
    about = "estimate step time, memory and MFU on N devices that you do not have here, and recommend a mesh"
    plan = command("plan", commands.plan, about, "FILE", file, FIELDS.format(name="plan"))
    plan.add_argument("--model", metavar="NAME", help=named)
    plan.add_argument("--devices", type=int, metavar="N", help="number of devices (default: 8)")
    plan.add_argument("--chip", metavar="NAME", help="H200, H100, A100, or TPU v4, v5e, v5p, v6e (default: H200)")
    about = "compile the programs for this slice of a TPU pod, such as v6e:4x4 or v6e-16, without having it"
    plan.add_argument("--compile", metavar="TOPOLOGY", help=about)
    about = "with --compile: data x fsdp x tensor, such as 4x4x1 (default: train.mesh of the experiment)"
    plan.add_argument("--mesh", metavar="DxFxT", help=about)
    for side in ("source", "target"):
        about = f"entries of the {side} vocabulary; with both sizes, no data is read"
        plan.add_argument(f"--{side}-size", type=int, metavar="N", help=about)
    about = "measure s2sjax against other installed libraries (layers, train, decode), or the input pipeline (data)"
    bench = command("bench", commands.bench, about, "NAME", "layers, train, decode, data, or serve")
    bench.add_argument("--run", metavar="RUN", help="serve: the run folder whose server is measured")
    about = "of the models of train and decode (default: small on a CPU, base on an accelerator)"
    bench.add_argument("--size", choices=["small", "base"], help=about)
    about = "measure only models (train) or searches (decode) with NAME in their name; can be repeated"
    bench.add_argument("--only", metavar="NAME", action="append", default=[], help=about)
    about = "the folder for results as CSV and JSON, and figures (default: runs/bench/NAME)"
    bench.add_argument("--out", metavar="DIR", help=about)
    bench.add_argument("--rounds", type=int, default=5, help="number of measurements (default: 5)")
    _add_layer_options(bench)
    command("doctor", commands.doctor, "print versions, devices, and how to install what is missing")

    names = list(subparsers.choices)
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
    field = next((argument for argument in rest if argument.startswith("-")), None)
    if known.subject and field and not _names_subject(parser, arguments[: arguments.index(field)]):
        # The parser knows no fields: in `--train.steps 5 FILE` it takes the 5 for the subject.
        raise UserError(f"{known.subject} follows {field}: write what to {arguments[0]} first, then the fields")
    return known, rest


def _add_report_options(report: _Parser, help: bool) -> None:
    about = "a run folder, such as runs/g2p, or one of its evaluations; others are compared with the first"
    report.add_argument("runs", metavar="RUN", nargs="*" if help else "+", help=about)
    report.add_argument("--out", metavar="FILE", help="the file to write (default: report.html in the first run)")
    about = "report the newest evaluation of this split (default: that of which most runs have one, test before dev)"
    report.add_argument("--split", choices=["train", "dev", "test"], help=about)
    for name, number, about in (
        ("attention", 10_000, "examples with attention maps"),
        ("heads", 50, "examples with the attention of each layer and head, of a model that has several"),
        ("trees", 12, "examples with a search tree: each is decoded again"),
    ):
        report.add_argument(f"--{name}", metavar="N", type=_amount, default=number, help=f"{about} (default: {number})")
    about = "resamples of the paired bootstrap between runs (default: 1000)"
    report.add_argument("--resamples", metavar="N", type=_count, default=1000, help=about)


def _add_align_options(align: _Parser, help: bool) -> None:
    about = "a text file, one sentence a line, words separated by blanks; alone, a TSV file: source<tab>target"
    align.add_argument("source", metavar="SOURCE", nargs="?" if help else None, help=f"{about}. Both plain or .gz")
    align.add_argument("target", metavar="TARGET", nargs="?", help="a text file: line n translates line n of SOURCE")
    about = "IBM Model 1 or 2, or the hidden Markov model (default: hmm)"
    align.add_argument("--model", choices=["ibm1", "ibm2", "hmm"], help=about)
    about = "of EM, for Model 1, and again for the model that starts from it (default: 5)"
    align.add_argument("--iterations", metavar="N", type=_count, help=about)
    about = "the two directions learn from each other, which makes both better (default), or each learns alone, by EM"
    align.add_argument("--agree", action=argparse.BooleanOptionalAction, help=about)
    methods = ["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]
    about = "how the two directions become one alignment (default: grow-diag-final-and)"
    align.add_argument("--symmetrize", choices=methods, help=about)
    about = "one direction alone: in forward, each target word has at most one source word; in reverse, the opposite"
    align.add_argument("--direction", choices=["forward", "reverse"], help=about)
    align.add_argument(
        "--add", metavar="TSV", action="append", default=[], help="more pairs to learn from; can be repeated"
    )
    about = "print the alignment error rate: a line of links, 0-1 sure and 0?1 possible, for each pair, or a TSV file: "
    align.add_argument("--gold", metavar="FILE", help=f"{about}source<tab>target<tab>links")
    align.add_argument("--out", metavar="FILE", help="write the links there (default: to standard output)")
    about = "learn nothing: align by the attention of this run, which translates SOURCE to TARGET"
    align.add_argument("--run", metavar="RUN", help=about)
    about = "the same, for a run that translates TARGET to SOURCE; can be given with --run"
    align.add_argument("--reverse-run", metavar="RUN", help=about)


def _add_layer_options(bench: _Parser) -> None:
    """Of `bench layers`: None where the device decides."""
    group = bench.add_argument_group("bench layers (several values are separated by commas; defaults suit the device)")
    about = "recurrent, parallel, convolution, attention, restricted (default: all)"
    group.add_argument("--layers", metavar="NAMES", type=_names, help=about)
    for name, about in (
        ("lengths", "sequence lengths n"),
        ("widths", "widths d"),
        ("batch", "sequences in a batch"),
        ("kernel", "positions that a convolution sees"),
        ("radius", "positions that restricted attention sees to either side"),
        ("unroll", "time steps of the recurrence that are compiled as one"),
    ):
        group.add_argument(f"--{name}", metavar="N,N", type=_counts, help=about)
    group.add_argument(
        "--heads", metavar="N", type=_count, help="heads of attention (default: as many as have width 64)"
    )
    about = "how the recurrence saves memory for its backward pass: none, products, layers (default: none)"
    group.add_argument("--remat", metavar="NAMES", type=_names, help=about)
    about = "(default: float32 on a CPU, else bfloat16)"
    group.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help=about)
    about = "also measure torch.compile, which takes minutes, and compare with the faster one"
    group.add_argument("--compile-torch", action="store_true", default=None, help=about)


def _names_subject(parser: _Parser, arguments: list[str]) -> bool:
    try:
        return parser.parse_known_args(arguments)[0].subject is not None
    except UserError:
        return False


def _count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number that is at least {least}")
    return int(text)


def _amount(text: str) -> int:
    return _count(text, least=0)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_count(part.strip()) for part in text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


if __name__ == "__main__":
    main()
