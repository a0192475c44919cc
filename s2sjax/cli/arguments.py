"""The arguments of the commands."""

import argparse
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from s2sjax.cli import align_command, commands, data_command, pretrained_command, sweep_command
from s2sjax.errors import UserError, nearest
from s2sjax.version import __version__

# ------------------------------------------------------------------------------- the arguments


class _Parser(argparse.ArgumentParser):
    """Raises a UserError, which is printed as one line, for a wrong argument."""

    def error(self, message: str):
        raise UserError(f"{message}: see {self.prog} --help")


class Option(NamedTuple):
    """An option or a positional argument of a command."""

    names: Sequence[str]
    settings: dict[str, Any]
    """keyword arguments of `add_argument`"""
    group: str = ""
    """title of its group in the help; "" for none"""


def option(usage: str, about: str, group: str = "", **settings: Any) -> Option:
    """An option by its usage, its names and metavar: "-p --processes P"."""
    names = usage.split()
    metavar = names.pop() if len(names) > 1 and not names[-1].startswith("-") else None
    return Option(names, settings | {"help": about} | ({"metavar": metavar} if metavar else {}), group)


class Command(NamedTuple):
    """A command of s2sjax."""

    name: str
    run: Callable[[argparse.Namespace, list[str]], None]
    about: str
    options: Sequence[Option] = ()
    subject: str = ""
    """metavar of the argument `subject`, a key of SUBJECTS; "" for none"""
    epilog: str = ""
    """help text after the options, by default that of EPILOGS; commands without one accept no fields"""

    def add_to(self, subparsers: Any, is_help: bool) -> None:
        """Adds the parser of this command. is_help: makes positional arguments optional, because --help is given."""
        epilog = self.epilog or EPILOGS.get(self.subject, "").format(name=self.name)
        parser = subparsers.add_parser(
            self.name, help=self.about, description=f"{self.about[0].upper()}{self.about[1:]}.", epilog=epilog,
            allow_abbrev=False, add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        parser.set_defaults(command=self.run, parser=parser, subject=None, name=self.name, takes_fields=bool(epilog))
        shown = f"print this help; with {self.subject}, also the fields that can be set"
        first = [option(f"subject {self.subject}", SUBJECTS[self.subject])] if self.subject else []
        # The fields have their own help, so the parser leaves --help to the command.
        first += [option("-h --help", shown if self.subject and epilog else "print this help", action="store_true")]
        groups = {"": parser}
        for names, settings, title in (*first, *self.options):
            if is_help and not names[0].startswith("-"):
                settings = settings | {"nargs": "*" if settings.get("nargs") == "+" else "?"}
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            groups[title].add_argument(*names, **settings)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of a command, and the remaining arguments: fields of the configuration."""
    parser = _Parser(prog="s2sjax", description="Sequence-to-sequence research in JAX.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"s2sjax {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        command.add_to(subparsers, is_help="-h" in arguments or "--help" in arguments)
    names = list(subparsers.choices)
    launched: list[str] = []
    if arguments[:1] == ["launch"] and "--" in arguments:
        cut = arguments.index("--")
        arguments, launched = arguments[:cut], arguments[cut + 1 :]
    if not arguments:
        raise UserError(f"name a command ({', '.join(names)}): see s2sjax --help")
    if not arguments[0].startswith("-") and arguments[0] not in names:
        near = nearest(arguments[0], names, cutoff=0.6)
        remedy = f"did you mean {near!r}?" if near else f"the commands are {', '.join(names)}"
        raise UserError(f"there is no command {arguments[0]!r}: {remedy}")
    owners = defaultdict(list)
    for command in COMMANDS:
        for name in (name for option in command.options for name in option.names):
            owners[name].append(command.name)
    known, rest = parser.parse_known_args(arguments, argparse.Namespace(launched=launched, owners=owners))
    field = next((argument for argument in rest if argument.startswith("-")), None)
    if known.subject and field and not _names_subject(parser, arguments[: arguments.index(field)]):
        # The parser does not know the fields: in `--train.steps 5 FILE` it takes the 5 for the subject.
        raise UserError(f"{known.subject} follows {field}: write what to {arguments[0]} first, then the fields")
    return known, rest


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


def _part(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not slash or not number.isdecimal() or not count.isdecimal() or not 1 <= int(number) <= int(count):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part: write 1/8 to 8/8 for eight parts")
    return int(number), int(count)


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not first.isdecimal() or not last.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of steps: write 100:110 for the steps 100 to 110")
    return int(first), int(last)


def _loggers(text: str) -> tuple[str, ...]:
    return () if text == "none" else _names(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


# -------------------------------------------------------------------------------- the commands

SUBJECTS = {
    "FILE": "a Python file, such as experiments/g2p.py",
    "RUN": "a run folder, such as runs/g2p",
    "NAME": "layers, train, decode, sweep, data, or serve",
}
EPILOGS = {
    "FILE": """Any field of the experiment can be set by its dotted name, for example
  --train.steps 500 --model.width 256
`s2sjax {name} FILE --help` lists the fields of FILE.""",
    "RUN": """Some fields of the run can be changed after training, for example --search.beam_size 8.
`s2sjax {name} RUN --help` lists them.""",
}
SWEEP_EPILOG = """Any field of the experiment can be set by its dotted name. Several values, separated by commas, are
swept; with --random, also ranges:
  --seed 0,1,2 --train.learning_rate 1e-3,2e-3 --train.steps 500
  --random 20 --train.learning_rate 1e-4..1e-2 --model.dropout 0.1,0.3
`s2sjax sweep FILE --help` lists the fields of FILE."""
SPLITS = ["train", "dev", "test"]
flag = partial(option, action="store_true")
# Options of several commands.
ALSO = option(
    "--also RUN", "another run with the same vocabularies: decode with both as an ensemble; can be repeated",
    action="append", default=[],
)  # fmt: skip
AVERAGE = option(
    "--average K", "use the mean of the newest K checkpoints (train.max_to_keep are kept) instead of the best one",
    type=_count, default=0,
)  # fmt: skip
LOG = option(
    "--log NAMES", "where the numbers of metrics.jsonl also go, separated by commas: tensorboard, wandb, mlflow; or "
    "none (train.loggers; default: tensorboard)", type=_loggers,
)  # fmt: skip
DISTRIBUTED = flag("--distributed", "run as one process of several, one on each host: see docs/pod.md")
MODEL = option("--model NAME", "use a named model instead of that of FILE: see s2sjax models")
TAG = option("--tag TAG", "for a model trained on a tagged mixture: the tag of lines that have none, such as '<2de>'")
TRUST = flag("--trust", "execute the code of runs that you have not trained yourself; needed once")
_of_layers = partial(option, group="bench layers (separate several values by commas; defaults suit the device)")

COMMANDS = (
    Command("train", commands.train, "train the experiment defined in a file, and evaluate it", (
        option("--out DIR", "the run folder (default: runs/NAME, the name of the experiment)"),
        MODEL,
        option("--init RUN", "start from the parameters of another run, where names and shapes agree"),
        flag("--init-assets", "with --init, also take its vocabularies, instead of learning new ones"),
        flag("--no-test", "do not read the test split; evaluate dev after training instead (evaluate.test False)"),
        flag("--accept-code", "continue a run whose code has changed since it was trained, and store the new code"),
        LOG,
        option("--profile A:B", "trace the steps A to B, for Perfetto and XProf, and write the trace to RUN/profile",
               type=_span),
        flag("--debug", "only train three steps, without jit and with NaN checks that name the layer; write nothing"),
        DISTRIBUTED, TRUST,
    ), "FILE"),
    Command("sweep", sweep_command.sweep, "train an experiment with all combinations of some values, together where "
            "their shapes agree", (
        option("others FILE", "further experiment files, to be compared with the first", nargs="*", default=[]),
        option("--name NAME", "the folder of the sweep is runs/NAME (default: the name of the experiment and -sweep)",
               dest="sweep_name"),
        flag("--pairs", "pair the values up, the first with the first, instead of combining all with all"),
        option("--random N", "draw N combinations, from ranges on a logarithmic scale and from lists; each is trained "
               "with all seeds", type=_count, default=0),
        flag("--same-data", "give all members the batches of the first seed: initial parameters and dropout differ"),
        option("--halving K", "after each evaluation, keep only the best 1/K of the members", type=_count, default=0),
        option("--part I/N", "train only the I-th of N parts of the members, for N machines", type=_part,
               default=(1, 1)),
        option("--at-once N", "train at most N members at once (default: as many as fit in memory)", type=_count,
               default=0),
        MODEL,
        option("--init RUN", "start all members from the parameters of another run, where names and shapes agree"),
        flag("--init-assets", "with --init, also take its vocabularies, instead of learning new ones"),
        flag("--no-test", "do not read the test split; evaluate dev after training instead (evaluate.test False)"),
        flag("--accept-code", "continue runs whose code has changed since they were trained, and store the new code"),
        LOG, TRUST,
    ), "FILE", SWEEP_EPILOG),
    Command("prepare", commands.prepare, "convert the text of an experiment to ids once, so that training only reads "
            "them", (
        option("--out DIR", "the folder to write (default: that of config.Prepared, or prepared/NAME)"),
        option("--workers N", "number of processes (default: one per core)", type=int, default=os.cpu_count() or 1),
        option("--beam OPTIONS", "prepare with Apache Beam; everything after --beam is for Beam, as in --beam --runner "
               "DataflowRunner --project mine (default: its DirectRunner, on this machine)", nargs=argparse.REMAINDER),
    ), "FILE"),
    Command("evaluate", commands.evaluate, "predict a split with the best checkpoint and print its metrics", (
        option("--split", "the split to predict (default: test, or dev if there is no test split or evaluate.test is "
               "False)", choices=SPLITS),
        ALSO, DISTRIBUTED, AVERAGE, TRUST,
    ), "RUN"),
    Command("results", commands.results, "list the evaluations of runs: split, checkpoint, search, metrics, date; or "
            "print the table of a sweep: mean and standard deviation over seeds, n, and p against the best", (
        option("runs RUN", "run folders, such as runs/g2p, or the folder of a sweep", nargs="+"),
        option("--split", "only evaluations of this split (default for a sweep: that which most runs have, test before "
               "dev)", choices=SPLITS),
        option("--metric NAMES", "only these metrics, separated by commas; the first decides which row of a sweep is "
               "best (default: all)", type=_names),
        option("--curves FILE", "draw the learning curves to FILE (.png, .svg, .pdf) instead; those of a sweep are "
               "means over seeds, with bands from the lowest to the highest"),
        *(option(f"--{form}", f"print the table {about}", dest="format", action="store_const", const=form,
                 default="text")
          for form, about in (("csv", "as CSV, with all digits"), ("json", "as JSON, with all digits"),
                              ("markdown", "in Markdown"), ("latex", "in LaTeX, with the rules of booktabs"))),
    )),
    Command("compare", commands.compare, "test whether two runs differ significantly, and print the examples that "
            "changed most", (
        option("first RUN", "a run, or one of its evaluations, RUN/evaluations/NAME"),
        option("second RUN", "another run or evaluation"),
        option("--split", "compare the newest evaluations of this split (default: test, else dev, else train)",
               choices=SPLITS),
        option("--resamples N", "resamples of the paired bootstrap (default: 1000)", type=_count, default=1000),
    )),
    Command("report", commands.report, "write one HTML file on runs: scores, curves, outputs, attention; or on a "
            "sweep: its table, curves with bands, scores against settings", (
        option("runs RUN", "a run folder, such as runs/g2p, or one of its evaluations; others are compared with the "
               "first; or the folder of a sweep", nargs="+"),
        option("--out FILE", "the file to write (default: report.html in the first run)"),
        option("--split", "report the newest evaluation of this split (default: that which most runs have, test before "
               "dev)", choices=SPLITS),
        option("--attention N", "examples with attention maps (default: 10000)", type=_amount, default=10_000),
        option("--heads N", "examples with the attention of each layer and head, if there are several (default: 50)",
               type=_amount, default=50),
        option("--trees N", "examples with a search tree: each is decoded again (default: 12)", type=_amount,
               default=12),
        option("--resamples N", "resamples of the paired bootstrap between runs (default: 1000)", type=_count,
               default=1000),
        TRUST,
    )),
    Command("decode", commands.decode, "print one line for each line of standard input, n-best outputs separated by "
            "tabs", (
        flag("--scores", "print the score and a tab before each output"),
        flag("--alignment", "print a tab and the source-output pairs of pieces, such as 0-0 1-2, after each output"),
        flag("--prefixes", "each line of standard input is source<tab>prefix: its outputs begin with the prefix"),
        TAG,
        option("--tree FILE", "draw the search tree of the first line to FILE (.png, .svg, .pdf)"),
        option("--attention FILE", "draw the attention of the best output of the first line to FILE (.png, .svg, "
               ".pdf)"),
        ALSO, AVERAGE, TRUST,
    ), "RUN"),
    Command("serve", commands.serve, "serve a page for live input, and a JSON API: outputs, n-best lists, attention, "
            "search trees", (
        option("--host ADDRESS", "the address to listen on (default: 127.0.0.1, which only this machine can reach)",
               default="127.0.0.1"),
        option("--port N", "the port to listen on (default: 8000; 0: any free port)", type=_amount, default=8000),
        option("--files FOLDER", "for a run that reads recordings or pictures: the only folder whose files requests "
               "may name"),
        AVERAGE, TRUST,
    ), "RUN"),
    Command("score", commands.score, "print log-probability<tab>number of tokens for each line source<tab>target of "
            "standard input", (TAG, AVERAGE, TRUST), "RUN"),
    Command("align", align_command.align, "align the words of sentence pairs, and print the links of each pair in "
            "Pharaoh format, such as 0-0 1-2", (
        option("source SOURCE", "a text file, one sentence per line, words separated by spaces; without TARGET, a TSV "
               "file: source<tab>target. Both may be .gz files"),
        option("target TARGET", "a text file: line n translates line n of SOURCE", nargs="?"),
        option("--model", "IBM Model 1 or 2, or the hidden Markov model (default: hmm)",
               choices=["ibm1", "ibm2", "hmm"]),
        option("--iterations N", "iterations of EM for Model 1, and again for the model that starts from it (default: "
               "5)", type=_count),
        option("--agree", "train the two directions to agree, which improves both (default), or each independently by "
               "EM", action=argparse.BooleanOptionalAction),
        option("--symmetrize", "method that combines the two directions (default: grow-diag-final-and)",
               choices=["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]),
        option("--direction", "print one direction: in forward, each target word has at most one source word; in "
               "reverse, the opposite", choices=["forward", "reverse"]),
        option("--add TSV", "more pairs to learn from; can be repeated", action="append", default=[]),
        option("--gold FILE", "print the alignment error rate: a line of links, 0-1 sure and 0?1 possible, for each "
               "pair, or a TSV file: source<tab>target<tab>links"),
        option("--out FILE", "write the links there (default: to standard output)"),
        option("--run RUN", "align by the attention of this run, which translates SOURCE to TARGET, instead of "
               "learning a model"),
        option("--reverse-run RUN", "the same for a run that translates TARGET to SOURCE; can be combined with --run"),
        TRUST,
    )),
    Command("data", data_command.data, "list the public data sets, get them, or check their files", (
        option("action ACTION", "list; get NAME ..., or get all; check [NAME ...]"),
        option("names NAME", "data sets, such as multi30k", nargs="*", default=[]),
        option("--folder DIR", "the folder of the data sets (default: $S2SJAX_DATA, or data)"),
        flag("--offline", "download nothing; name what is missing (also: S2SJAX_OFFLINE=1)"),
    )),
    Command("import", pretrained_command.import_run, "import a pretrained model of Hugging Face as a run", (
        option("folder FOLDER", "a folder with config.json, model.safetensors and the files of the tokenizer"),
        option("run RUN", "the run folder to write"),
        option("--source-language CODE", "for a model of many languages: language of the sources, such as eng_Latn"),
        option("--target-language CODE", "for a model of many languages: language of the outputs"),
        option("--test FILE", "text to evaluate on: a TSV file, or a source file and a target file", nargs="+",
               default=[]),
    )),
    Command("export", pretrained_command.export_run, "write a run as a folder that other libraries load", (
        option("run RUN", "a run folder, such as runs/multi30k"),
        option("folder FOLDER", "the folder to write"),
        option("--format", "hf for transformers (default), ctranslate2, or peft for low-rank adapters alone",
               choices=["hf", "ctranslate2", "peft"], default="hf"),
        option("--dtype", "dtype of the tensors (default: that of the imported model, or float32)",
               choices=["float32", "float16", "bfloat16"]),
        TRUST,
    )),
    Command("models", commands.models, "list the named models: paper, family, number of weights, description", tuple(
        option(f"--{side}-size N", f"entries of the {side} vocabulary, for the number of weights (default: 32000)",
               type=int, default=32_000) for side in ("source", "target")
    )),
    Command("launch", commands.launch, "run a command in several processes on this machine, as a simulated pod", (
        option("-p --processes P", "number of processes (default: 2)", type=_count, default=2),
        option("-d --devices D", "CPU devices of each process (default: 4)", type=_count, default=4),
    ), epilog=f"Example: {commands.LAUNCH}"),
    Command("plan", commands.plan, "estimate step time, memory and MFU on N devices that are not available here, and "
            "recommend a mesh", (
        MODEL,
        option("--devices N", "number of devices (default: 8)", type=int),
        option("--chip NAME", "H200, H100, A100, or TPU v4, v5e, v5p, v6e (default: H200)"),
        option("--compile TOPOLOGY", "compile the programs for this slice of a TPU pod, such as v6e:4x4 or v6e-16; no "
               "TPU is needed"),
        option("--slices N", "with --compile: number of such slices, joined by the data-centre network (default: 1)",
               type=int),
        option("--mesh DxFxT", "with --compile: data x fsdp x tensor, such as 4x4x1, and x context if it is above 1 "
               "(default: train.mesh of the experiment)"),
        *(option(f"--{side}-size N", f"entries of the {side} vocabulary; with both sizes, no data is read", type=int)
          for side in ("source", "target")),
    ), "FILE"),
    Command("bench", commands.bench, "compare the speed of s2sjax with other installed libraries (layers, train, "
            "decode), or measure sweeps (sweep), the input pipeline (data) or a server (serve)", (
        option("--run RUN", "serve: the run folder whose server is measured"),
        option("--size", "size of the models of train, decode, sweep (default: small on a CPU, base on an accelerator)",
               choices=["small", "base"]),
        option("--model NAME", "train, decode: a pretrained model at its size, with random weights, instead of "
               "those of --size",
               choices=["marian", "t5-base", "nllb-600m"]),
        option("--only NAME", "measure only models (train, sweep) or searches (decode) with NAME in their name; can "
               "be repeated", action="append", default=[]),
        option("--tokens N", "decode: compare decoding of N tokens by a Transformer and by the same model with "
               "recurrences; several numbers show the growth", nargs="+", type=_counts),
        option("--mixers PATTERN", "decode --tokens: the mixers of the decoder layers of each model with recurrences, "
               "separated by commas, such as ssd or ssd,attention (default: six patterns)", nargs="+"),
        option("--out DIR", "the folder for results as CSV and JSON, and figures (default: runs/bench/NAME)"),
        option("--rounds", "number of measurements (default: 5)", type=int, default=5),
        option("--members N,N", "sweep: how many trainings share a step (default: depends on the model)",
               type=_counts),
        option("--dtype", "data type of layers (default: float32 on a CPU, else bfloat16) and sweep (default: that of "
               "the model)", choices=["float32", "bfloat16", "float16"]),
        _of_layers("--layers NAMES", "recurrent, parallel, convolution, attention, causal, restricted, "
                   "linear_attention, retention, gla, delta, gated_delta, ssd, rg_lru, mlstm, slstm, or all (default: "
                   "the first six and ssd)", type=_names),
        _of_layers("--lengths N,N", "sequence lengths n", type=_counts),
        _of_layers("--widths N,N", "widths d", type=_counts),
        _of_layers("--batch N,N", "batch sizes", type=_counts),
        _of_layers("--kernel N,N", "kernel sizes of the convolution", type=_counts),
        _of_layers("--radius N,N", "positions on either side that restricted attention attends to", type=_counts),
        _of_layers("--form NAMES", "forms of the layers from linear_attention on: chunked, associative (only rg_lru), "
                   "scan (default: chunked)", type=_names),
        _of_layers("--chunk N,N", "positions of a chunk in the form chunked", type=_counts),
        _of_layers("--unroll N,N", "time steps of a scan that are unrolled", type=_counts),
        _of_layers("--heads N", "number of attention heads (default: heads of width 64)", type=_count),
        _of_layers("--remat NAMES", "rematerialization of the recurrence in its backward pass: none, products, layers "
                   "(default: none)", type=_names),
        _of_layers("--compile-torch", "also measure torch.compile, which takes minutes, and compare with the faster "
                   "one", action="store_true", default=None),
    ), "NAME"),
    Command("doctor", commands.doctor, "print versions, devices, and how to install what is missing"),
)  # fmt: skip
"""the commands of s2sjax, in the order of the help"""
