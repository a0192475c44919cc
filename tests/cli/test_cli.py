"""The commands from a user's point of view. One tiny run is trained for all of these tests; each one gets a copy."""

import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli.test_standard_input import Pipe
from conftest import child_environment

from s2sjax import config, models
from s2sjax.cli import main
from s2sjax.cli import standard_input as standard_input
from s2sjax.models import named_models
from s2sjax.runs import run
from s2sjax.training import loop

PAGE = """
from s2sjax.config import Data, Evaluate, Luong, Search, Synthetic, Train
from s2sjax.tasks import Translation
experiment = Translation(
    name="tiny",
    data=Data(Synthetic("reverse", train=64, dev=8, test=8, length=5, alphabet=4), buckets=((6, 6),), batch_tokens=96),
    model=Luong(width=8, embedding_size=4, layers=1, dropout=0.0),
    train=Train(steps=4, warmup_steps=1, evaluate_every=2, save_every=2, log_every=2, max_to_keep=9),
    search=Search(beam_size=2),
    evaluate=Evaluate(metrics=("exact", "cer"), batch_size=8, dev_examples=8),
    show=("abcd", "bad"),
)
"""


NAMES = (
    "train, sweep, prepare, evaluate, results, compare, report, decode, serve, score, align, data, import, export, "
    "models, launch, plan, bench, doctor"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("experiments") / "tiny.py"
    path.write_text(PAGE)
    return str(path)


@pytest.fixture(scope="module")
def trained(page, tmp_path_factory) -> tuple[Path, str]:
    """A run folder, and the output of training it."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", printed)
        main.main(["train", page, "--out", str(folder)])
    return folder, printed.getvalue()


@pytest.fixture
def copy(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained[0], tmp_path / "copy"))


@pytest.fixture
def refused(call):
    """The one-line error of a command that must fail."""

    def command(*arguments, stdin: bytes = b"") -> str:
        code, _, err = call(*arguments, stdin=stdin)
        assert (code, err.count("\n")) == (2, 1), err
        assert err.startswith("error: ")
        return err.removeprefix("error: ").removesuffix("\n")

    return command


# --------------------------------------------------------------------------------------- help


@pytest.mark.parametrize(
    "command",
    ["train", "sweep", "prepare", "evaluate", "results", "compare", "decode", "score", "align", "models", "doctor"],
)
def test_each_command_explains_itself_without_a_subject(call, command):
    code, out, err = call(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: s2sjax {command} ")
    assert command in call("--help")[1]


def test_the_help_of_train_shows_how_to_set_a_field_and_where_the_run_goes(call):
    out = call("train", "-h")[1]
    assert "--train.steps 500" in out
    assert re.search(r"--out DIR +the run folder \(default: runs/NAME", out)


def test_help_lists_the_fields_with_their_words_and_defaults(call, page, trained):
    code, out, err = call("train", page, "--help")
    assert (code, err) == (0, "")
    assert out.count("usage:") == 1
    words = re.sub(r"[│\s]+", " ", out)
    assert re.search(r"--train.steps INT total number of updates; [^()]*\(default: 4\) --train.grad_accum_steps", words)
    assert re.search(r"--model\.width INT[│\s]+width of the states \(default: 8\)", out)
    out = call("decode", trained[0], "--help")[1]
    assert (
        "--search.beam_size INT number of hypotheses that the search keeps; 1 is greedy search (default: 2)"
        in re.sub(r"[│\s]+", " ", out)
    )
    assert "--train" not in out
    assert "--evaluate.metrics" in call("evaluate", trained[0], "--help")[1]


def test_version(call):
    assert re.fullmatch(r"s2sjax \d+\.\d+\.\d+\n", call("--version")[1])


def test_pretended_devices_have_threads_enough_to_wait_in_several_collectives(call, monkeypatch):
    monkeypatch.delenv("PJRT_NPROC")
    call("doctor")
    assert int(os.environ.pop("PJRT_NPROC")) >= 8 * 8
    monkeypatch.setenv("PJRT_NPROC", "3")
    call("doctor")
    assert os.environ["PJRT_NPROC"] == "3"


# ------------------------------------------------------------------------------ wrong arguments


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            [],
            f"name a command ({NAMES}): see s2sjax --help",
        ),
        (["trian"], "there is no command 'trian': did you mean 'train'?"),
        (["train"], "the following arguments are required: FILE: see s2sjax train --help"),
        (["decode"], "the following arguments are required: RUN: see s2sjax decode --help"),
        (["--verbose"], "the following arguments are required: COMMAND: see s2sjax --help"),
        (
            ["train", "nowhere.py"],
            "there is no experiment file nowhere.py: name a Python file such as experiments/g2p.py",
        ),
        (["train", "PAGE", "--train.stepz", "5"], "there is no field --train.stepz: did you mean --train.steps?"),
        (["train", "PAGE", "--steps=5"], "there is no field --steps: did you mean --train.steps?"),
        (["train", "PAGE", "--uot", "x"], "there is no field --uot: did you mean --out?"),
        (["train", "PAGE", "--train.steps", "many"], "--train.steps: 'many' is not a whole number"),
        (["train", "PAGE", "--train.steps"], "Missing value for argument '--train.steps'. Expected 1 values."),
        (["train", "PAGE", "--train.max_to_keep", "0"], "train.max_to_keep is 0: it must be at least 1"),
        (
            ["train", "PAGE", "--model.cell", "x"],
            "invalid choice 'x' for argument '--model.cell'. Expected one of ('rnn', ",
        ),
        (["train", "PAGE", "extra"], "'extra' is not a field: write --name value, as in --name VALUE"),
        (["train", "--train.steps", "5", "PAGE"], "5 follows --train.steps: write what to train first"),
        (["train", "--train.steps=5", "PAGE"], "PAGE follows --train.steps=5: write what to train first"),
        (["train", "train", "--train.steps", "5"], "there is no experiment file train: name a Python file"),
        (["train", "--train.steps", "train", "train"], "train follows --train.steps: write what to train first"),
        (
            ["evaluate", "--split", "dev", "--search.beam_size", "dev"],
            "dev follows --search.beam_size: write what to evaluate",
        ),
        (["train", "PAGE", "--model", "transformr"], "there is no model 'transformr': did you mean 'transformer_b"),
        (
            ["train", "PAGE", "--search.nbest", "3"],
            "search.nbest 3 is not from 1 to search.beam_size 2: raise the beam_size or lower",
        ),
        (["decode", "nowhere"], "nowhere is not a run folder (it has no config.json): train first, or name another"),
        (
            ["score", "nowhere", "--search.beam_size", "2"],
            "nowhere is not a run folder (it has no config.json): train fir",
        ),
        (["doctor", "--all"], "doctor has no option --all"),
        (
            ["doctor", "--no-test"],
            "--no-test is an option of s2sjax train and s2sjax sweep, not of s2sjax doctor: leave it out",
        ),
        (
            ["evaluate", "RUN", "--no-test"],
            "--no-test is an option of s2sjax train and s2sjax sweep, not of s2sjax evaluate: leave it",
        ),
        (
            ["evaluate", "RUN", "--no_test"],
            "--no-test is an option of s2sjax train and s2sjax sweep, not of s2sjax evaluate: leave it",
        ),
        (["evaluate", "RUN", "--search.beem=8"], "there is no field --search.beem: did you mean --search.beam_size?"),
        (["train", "PAGE", "--init_asset"], "there is no field --init_asset: did you mean --init-assets?"),
        (
            ["evaluate", "RUN", "--model=cho"],
            "--model is an option of s2sjax train, s2sjax sweep, s2sjax align, s2sjax plan and s2sjax bench, not",
        ),
        (["evaluate", "RUN", "--xyz"], "there is no field --xyz: see s2sjax evaluate RUN --help"),
        (["evaluate", "RUN", "--beam", "3"], "there is no field --beam: did you mean --search.beam_size?"),
        (["zzz"], f"there is no command 'zzz': the commands are {NAMES}"),
        (["models", "--all"], "models has no option --all"),
        (["models", "--source-size", "0"], "--source-size is 0: it must be at least 1"),
        (
            ["train", "PAGE", "--model", "cho", "--search.coverage", "0.2"],
            "search.coverage 0.2 requires a model with attention, and Cho has none: set it to 0",
        ),
        (["evaluate", "nowhere", "--split", "tset"], "argument --split: invalid choice: 'tset'"),
    ],
)
def test_a_mistake_is_one_line(refused, page, trained, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    paths = {"PAGE": page, "RUN": str(trained[0])}
    line = refused(*(paths.get(argument, argument) for argument in arguments))
    assert line.replace(page, "PAGE").replace(str(trained[0]), "RUN").startswith(message)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["evaluate", "8", "dev"])
def test_a_run_may_be_called_like_a_command_or_a_value(trained, tmp_path, monkeypatch, name):
    (tmp_path / name).symlink_to(trained[0])
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(
        run, "evaluate", lambda opened, split, *_, **__: seen.append((opened, split)) or SimpleNamespace(path="")
    )
    for arguments in (
        ["evaluate", name, "--search.beam_size", "8", "--split", "dev"],
        ["evaluate", "--split", "dev", name, "--search.beam_size", "8"],
    ):
        main.main(arguments)
        opened, split = seen.pop()
        assert (opened.folder, opened.experiment.search.beam_size, split) == (Path(name), 8, "dev")


def test_a_ctrl_c_before_training_ends_the_command_at_once():
    """Ctrl-C ends the command, even within an import, where a KeyboardInterrupt becomes another error."""
    program = (
        "import os, signal; from s2sjax.cli import commands, main; "
        "commands.read_experiment = lambda *_: (os.kill(os.getpid(), signal.SIGINT), print('not reached')); "
        "signal.signal(signal.SIGINT, signal.default_int_handler); main.main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "train", "page.py"], capture_output=True, text=True, env=child_environment()
    )
    message = "interrupted: run the same command again; training continues from its last checkpoint\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", message)


def test_a_named_model_takes_the_place_of_the_files_and_its_fields_can_be_set(page, monkeypatch):
    seen = []

    class Stop(Exception):
        pass

    def train(experiment, folder, *_):
        seen.append((experiment, folder))
        raise Stop

    monkeypatch.setattr(run, "train", train)
    with pytest.raises(Stop):
        main.main(
            ["train", "--model", "transformer_base", page, "--model.heads", "4", "--data.buckets", "4", "4", "9", "9"]
        )
    (experiment, folder) = seen[0]
    assert (experiment.model.heads, experiment.model.width) == (4, 512)
    assert experiment.data.buckets == ((4, 4), (9, 9))
    assert folder == Path("runs/tiny")


@pytest.mark.parametrize("name", models.NAMED)
def test_every_named_model_fits_and_its_fields_can_be_set(page, monkeypatch, name):
    seen = []
    monkeypatch.setattr(run, "train", lambda experiment, *_: seen.append(experiment) or 1 / 0)
    part = "model.encoder.dropout" if "encoder" in vars(models.NAMED[name].config) else "model.dropout"
    with pytest.raises(ZeroDivisionError):
        main.main(["train", page, "--model", name, f"--{part}", "0.25", "--data.buckets", "24", "24"])
    reads, _ = config.encoder_and_decoder(seen[0].model)
    assert reads == config.replace(config.encoder_and_decoder(models.NAMED[name].config)[0], dropout=0.25)


def test_models_lists_all_that_have_a_name(call, monkeypatch):
    monkeypatch.setattr(named_models, "NAMED", {name: models.NAMED[name] for name in ("character", "cho")})
    code, out, err = call("models", "--source-size", 1000, "--target-size", 500)
    assert (code, err) == (0, "")
    assert re.search(r"\ncharacter +Sutskever et al\. 2014 +Sutskever +74 -> 78 +702,030 +no +no +one LSTM layer", out)
    assert re.search(r"\ncho +Cho et al\. 2014 +Cho +1,000 -> 500 +[\d,]+ +no +no +GRU; the source as one", out)


@pytest.mark.slow
def test_a_model_without_attention_is_trained_and_nothing_is_made_of_attention(call, refused, page, tmp_path):
    folder = tmp_path / "run"
    small = ["--model.width", 8, "--train.steps", 1, "--train.evaluate_every", 0]
    code, out, _ = call("train", page, "--model", "character", "--out", folder, *small)
    assert code == 0
    assert "\nthis model has no attention: attention.png is not drawn\nwrote " in out
    assert not (folder / "attention.png").exists()
    assert refused("decode", folder, "--alignment") == (
        "--alignment requires a model with attention, and this model has none: leave it out"
    )


@pytest.mark.parametrize(
    "files, message",
    [
        (
            {"a": b"x\ny\n", "b": b"x\n"},
            "{a} has 2 lines but {b} has 1: line n of one must translate line n of the other",
        ),
        ({"a": b"", "b": b"x\n"}, "{a} is empty: put examples in it, or change data.corpus.train"),
        ({"a": b"x\n\xff\n", "b": b"x\ny\n"}, "{a}, line 2: not UTF-8: convert the file to UTF-8"),
        ({"b": b"x\n"}, "there is no file {a}: correct data.corpus.train"),
    ],
)
def test_faulty_text_files(refused, tmp_path, files, message):
    paths = {name: str(tmp_path / name) for name in "ab"}
    for name, content in files.items():
        Path(paths[name]).write_bytes(content)
    text = PAGE.replace("Synthetic,", "TextFiles,")
    text = re.sub(r"Synthetic\(.*?\)", f"TextFiles(train={(paths['a'], paths['b'])}, dev=({paths['b']!r},))", text)
    (tmp_path / "page.py").write_text(text)
    assert refused("train", tmp_path / "page.py", "--out", tmp_path / "run") == message.format(**paths)
    assert not (tmp_path / "run").exists()


# ----------------------------------------------------------------------------------- training


def test_training_prints_plain_lines_and_writes_the_run_folder(trained):
    folder, printed = trained
    (evaluation,) = (folder / "evaluations").iterdir()
    assert not re.search(r"[\r\x1b]", printed)
    assert printed.startswith(
        "tiny: Luong with 1,416 weights, on 8 cpu devices\n64 training pairs, vocabulary 8 -> 8, "
    )
    assert "\nstep 4/4  loss " in printed
    assert (
        f"\nwrote {folder}/checkpoints, {folder}/metrics.jsonl, {evaluation}, {folder}/attention.png, "
        f"{folder}/curves.png\n" in printed
    )
    assert {path.name for path in folder.iterdir()} == {
        "attention.png", "checkpoints", "config.json", "curves.png", "evaluations", "metrics.jsonl", "samples.txt",
        "tensorboard", "assets", "code", "time.json",
    }  # fmt: skip
    results = json.loads((evaluation / "results.json").read_text())
    assert {"split", "step", "metrics", "search", "evaluate", "date"} <= set(results)
    cer = results["metrics"]["cer"]
    assert (cer["examples"], cer["signature"], results["split"]) == (8, None, "test")
    assert len((evaluation / "outputs.jsonl").read_text().splitlines()) == 8


def test_every_evaluation_tells_the_loss_of_the_dev_examples(trained):
    folder, printed = trained
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scored = {line["step"]: line for line in lines if "score" in line}
    assert list(scored) == [2, 4]
    events = b"".join(path.read_bytes() for path in (folder / "tensorboard").iterdir())
    for step, line in scored.items():
        assert line["dev_perplexity"] == pytest.approx(math.exp(line["dev_loss"])) and 0 <= line["dev_accuracy"] <= 100
        shown = [f"{name} {line[name]:.4g}" for name in ("dev_loss", "dev_perplexity", "dev_accuracy")]
        assert f"\nstep {step}  exact {line['exact']:.4g}  cer {line['cer']:.4g}  {'  '.join(shown)}\n" in printed
    assert all(name in events for name in (b"dev_loss", b"dev_perplexity", b"dev_accuracy"))


def test_the_same_command_again_says_that_it_is_done(call, page, copy):
    code, out, err = call("train", page, "--out", copy)
    assert (code, err) == (0, "")
    assert "already done: 4 steps\n" in out
    assert "compiled the train step" not in out


@pytest.mark.slow
def test_more_steps_go_on_and_another_experiment_is_refused(call, refused, page, copy):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    for field, was, now in (("--model.width", 8, 16), ("--train.learning_rate", 0.001, 1.0), ("--seed", 0, 3)):
        assert refused("train", page, "--out", copy, field, now) == (
            f"{copy} contains another experiment: its {field[2:]} is {was}, not {now}: give another --out"
        )
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    code, out, _ = call("train", page, "--out", copy, "--train.steps", 6)
    assert code == 0
    assert "resumed after step 4\n" in out
    assert "\nstep 6/6  loss " in out
    assert json.loads((copy / "config.json").read_text())["experiment"]["train"]["steps"] == 6


def test_loggers_and_a_trace_are_options(call, refused, page, copy):
    assert "there is no logger 'wnadb': did you mean" in refused("train", page, "--out", copy, "--log", "wnadb")
    assert "--profile: '5' is not a range of steps: write" in refused("train", page, "--out", copy, "--profile", "5")
    assert "--profile is 5:9, but train.steps is 4" in refused("train", page, "--out", copy, "--profile", "5:9")
    assert "--profile is an option of s2sjax train" in refused("sweep", page, "--seed", "0,1", "--profile", "5:6")
    assert "leave out --profile" in refused("train", page, "--debug", "--profile", "1:2")
    shutil.rmtree(copy / "tensorboard")
    options = ("--train.steps", 6, "--log", "none", "--profile", "5:6")
    code, out, _ = call("train", page, "--out", copy, *options)
    assert code == 0 and f", {copy}/profile\n" in out and "https://ui.perfetto.dev" in out
    assert "\nsteps took " in out and not (copy / "tensorboard").exists()
    assert json.loads((copy / "config.json").read_text())["experiment"]["train"]["loggers"] == []
    assert list((copy / "profile").rglob("perfetto_trace.json.gz"))
    times = json.loads((copy / "time.json").read_text())
    newest = max((copy / "evaluations").glob("*/results.json"), key=lambda path: path.stat().st_mtime)
    assert json.loads(newest.read_text())["training_seconds"] == times and times["restart"] > 0


@pytest.mark.slow
def test_a_corpus_of_training_lines_alone_is_trained_and_not_scored(call, page, tmp_path):
    alone = ["--data.corpus.dev", 0, "--data.corpus.test", 0, "--train.evaluate_every", 0]
    code, out, _ = call("train", page, "--out", tmp_path / "run", "--train.steps", 1, *alone)
    assert code == 0
    assert "evaluations" not in out
    assert (tmp_path / "run/attention.png").exists()


def test_a_file_in_the_way(refused, page, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        assert refused("train", page, "--out", out) == (
            f"{tmp_path / 'file'} is a file, not a folder: give another --out"
        )
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_may_not_be_written(refused, page, tmp_path, monkeypatch):
    def mkdir(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    said = refused("train", page, "--out", tmp_path / "run")
    assert said.startswith(f"cannot write in {tmp_path}/run (Permission denied): fix it, or give another --out")


def test_a_disk_full_of_other_files_is_one_line_too(refused, page, tmp_path, monkeypatch):
    def replace(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    assert refused("train", page, "--out", tmp_path / "run") == (
        "No space left on device: free some space, and run the same command again"
    )


# ----------------------------------------------------------------------------------- evaluate


def test_evaluate_scores_any_split_in_any_way(call, refused, copy):
    code, out, err = call(
        "evaluate", copy, "--split", "dev", "--search.beam_size", 3, "--evaluate.metrics", "chrf", "wer"
    )
    assert (code, err) == (0, "")
    folder = Path(out.splitlines()[-1].removeprefix("wrote "))
    results = json.loads((folder / "results.json").read_text())
    scores = results["metrics"]
    assert folder == copy / f"evaluations/dev-step{results['step']}-beam3-metrics-chrf+wer"
    assert (results["split"], results["search"]["beam_size"], scores["chrf"]["examples"]) == ("dev", 3, 8)
    assert scores["chrf"]["signature"] in out
    assert scores["wer"]["signature"] is None
    assert f"dev, checkpoint of step {results['step']}, beam 3:\n" in out
    assert refused("evaluate", copy, "--train.steps", 5).startswith("there is no field --train.steps: see s2sjax evalu")


def test_no_test_score_is_computed_that_nobody_asked_for(call, page, copy, monkeypatch):
    """Neither training nor a report reads the test split; a report says how to produce what is missing."""
    shutil.rmtree(copy / "evaluations")
    code, out, err = call("report", copy, "--trees", 0, "--attention", 0)
    assert (code, err) == (0, "") and f"not been evaluated on test: run s2sjax evaluate {copy} --split test\n" in out
    assert not (copy / "evaluations").exists()
    monkeypatch.setattr(run, "show", lambda run: [])
    code, out, err = call("train", page, "--out", copy, "--no-test")
    assert (code, err) == (0, "") and "\ndev, checkpoint of step " in out and "\ntest, " not in out
    assert json.loads((copy / "config.json").read_text())["experiment"]["evaluate"]["test"] is False
    code, out, _ = call("report", copy, "--trees", 0, "--attention", 0)
    assert (code, out.count("\n")) == (0, 1)  # dev, which exists
    (only,) = (copy / "evaluations").iterdir()
    rows = (only / "outputs.jsonl").read_text().replace('"hypothesis"', '"hypo"')
    (only / "outputs.jsonl").write_text(rows)
    code, out, err = call("report", copy)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{only}/outputs.jsonl cannot be read (line 1: it has no 'hypothesis'): delete {only}, and ev" in err


def test_scores_that_cannot_be_written_are_printed_first(call, copy, monkeypatch):
    def replace(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    code, out, err = call("evaluate", copy)
    assert (code, err) == (2, "error: No space left on device: free some space, and run the same command again\n")
    assert "CER" in out


# ------------------------------------------------------------------------------------- decode


def test_decode_writes_exactly_one_line_for_each_line(call, trained, monkeypatch):
    lines = b"\xef\xbb\xbfabcd\n\nbad\r\n   \n" + b"abcd" * 10 + "\n✓é\nabcd".encode()
    code, out, err = call("decode", trained[0], stdin=lines)
    assert (code, err.splitlines()) == (0, [
        "1 of 7 lines contains characters the model has never seen, such as '✓' and 'é': line 6",
        "1 of 7 lines is longer than 24 tokens (search.max_source) and was cut: line 5",
    ])  # fmt: skip
    answers = out.removesuffix("\n").split("\n")
    assert len(answers) == 7
    assert (answers[1], answers[3]) == ("", "")
    assert answers[0] == answers[6] == call("decode", trained[0], stdin=b"abcd\n")[1].removesuffix("\n")
    monkeypatch.setattr(standard_input, "CHUNK", 2)
    assert call("decode", trained[0], stdin=lines) == (code, out, err)


def test_nothing_in_nothing_out_and_blank_lines_for_blank_lines(call, trained):
    assert call("decode", trained[0], stdin=b"") == (0, "", "")
    assert call("decode", trained[0], stdin=b"\n" * 10_000) == (0, "\n" * 10_000, "")


def test_n_best_and_scores_are_columns_of_the_one_line(call, trained):
    folder = trained[0]
    plain = call("decode", folder, "--search.nbest", 2, stdin=b"abcd\n\n")[1].split("\n")
    assert len(plain) == 3
    first, second = plain[0].split("\t")
    assert first != second
    assert first + "\n" == call("decode", folder, stdin=b"abcd\n")[1]
    scored = call("decode", folder, "--search.nbest", 2, "--scores", stdin=b"abcd\n\n")[1].split("\n")
    best, text, next_best, next_text = scored[0].split("\t")
    assert (text, next_text) == (first, second)
    assert float(best) >= float(next_best)
    assert scored[1] == "0.0000\t"


def test_score_agrees_with_the_search(call, refused, trained):
    folder = trained[0]
    line = call("decode", folder, "--scores", "--search.length_penalty", "none", stdin=b"abcd\n")[1].removesuffix("\n")
    score, text = line.split("\t")
    out = call("score", folder, stdin=f"abcd\t{text}\nabcd\tdcba\n".encode())[1].splitlines()
    assert abs(float(out[0].split("\t")[0]) - float(score)) <= 1e-4
    assert out[1].endswith("\t5")
    assert call("score", folder, "--search.max_source", 4, stdin=b"a\tb\nA\tb\nabcd\tbA\n")[2].splitlines() == [
        "2 of 3 lines contain characters the model has never seen, such as 'A': lines 2 and 3",
        "1 of 3 lines is longer than 4 tokens (search.max_source) and was cut: line 3",
    ]
    code, out, err = call("score", folder, stdin=b"a\tb\nabcd\na\tb\n")
    first, second, third = out.splitlines()
    assert (code, second, third) == (2, "", first)  # the other lines are answered
    assert err.splitlines() == [
        "error: standard input, line 2 has no tab: write source<tab>target on each line",
        "error: 1 of 3 lines could not be read and got empty answers: see the errors above",
    ]


def test_input_that_is_not_utf8_is_named_and_the_other_lines_are_answered(call, trained, tmp_path):
    answer = call("decode", trained[0], "--alignment", stdin=b"abcd\n")[1]
    code, out, err = call("decode", trained[0], "--alignment", stdin=b"abcd\n\xff\xfe\nabcd\n")
    assert (code, out) == (2, f"{answer}\n{answer}")
    named = "error: standard input, line {} is not UTF-8: convert it first"
    assert err.splitlines() == [
        named.format(2), "error: 1 of 3 lines could not be read and got empty answers: see the errors above",
    ]  # fmt: skip
    drawn = call("decode", trained[0], "--tree", tmp_path / "tree.png", stdin=b"\xff\nabcd\n")
    assert drawn == (2, "", named.format(1) + "\n")


def test_a_search_that_cannot_work_is_refused(refused, trained):
    assert refused("decode", trained[0], "--search.beam_size", 9) == (
        "search.beam_size 9 is larger than the target vocabulary (8): lower it"
    )
    assert refused("decode", trained[0], "--search.nbest", 3).startswith(
        "search.nbest 3 is not from 1 to search.beam_size 2"
    )


def test_the_first_answer_of_a_pipe_comes_before_its_second_line(trained, monkeypatch):
    """Runs the whole command, and writes the second line only after the first answer has been read."""
    pipe = Pipe(monkeypatch)
    pipe.write(b"abcd\n")

    class Printed(io.StringIO):
        def flush(self):
            if self.getvalue().count("\n") == 1 and not pipe.stdin.closed:
                monkeypatch.setattr(self, "flush", lambda: None, raising=False)
                pipe.write(b"bad\n")
                pipe.close()

    printed = Printed()
    monkeypatch.setattr(sys, "stdout", printed)
    main.main(["decode", str(trained[0])])
    streamed = printed.getvalue()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abcd\nbad\n")))
    monkeypatch.setattr(sys, "stdout", together := io.StringIO())
    main.main(["decode", str(trained[0])])
    assert streamed == together.getvalue() and streamed.count("\n") == 2


# ------------------------------------------------------------------------------ a damaged run


def spoil(checkpoint: Path) -> None:
    """Cuts every file of a checkpoint's parameters in half."""
    for file in checkpoint.rglob("*"):
        if file.is_file() and "params" in file.parts:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.slow
def test_a_copied_run_decodes_and_a_damaged_checkpoint_gives_way_to_the_newest_whole_one(call, refused, trained, copy):
    whole = call("decode", trained[0], stdin=b"abcd\nbad\n")
    assert call("decode", copy, stdin=b"abcd\nbad\n") == whole
    best = json.loads(next(copy.glob("evaluations/*/results.json")).read_text())["step"]
    other = next(step for step in (2, 4) if step != best)
    spoil(copy / "checkpoints" / str(best))
    code, out, err = call("decode", copy, stdin=b"abcd\nbad\n")
    assert (code, out.count("\n")) == (0, 2)
    assert re.fullmatch(rf"checkpoint of step {best} is damaged \(.*\): falling back to step {other}\n", err)
    spoil(copy / "checkpoints" / str(other))
    code, out, err = call("decode", copy, stdin=b"abcd\n")
    assert (code, out) == (2, "")
    told, error = err.splitlines()
    assert told.startswith(f"checkpoint of step {best} is damaged (")
    assert error.startswith(f"error: every checkpoint in {copy / 'checkpoints'} is damaged (step {other}: ")
    assert error.endswith("): copy it again from where the run was made")


def test_no_checkpoint_yet(refused, copy):
    shutil.rmtree(copy / "checkpoints")
    for command in ("decode", "score", "evaluate"):
        assert refused(command, copy) == f"there is no checkpoint in {copy / 'checkpoints'}: train first"


def test_a_checkpoint_of_another_model_is_refused(refused, copy):
    page = json.loads((copy / "config.json").read_text())
    page["experiment"]["model"]["width"] = 16
    (copy / "config.json").write_text(json.dumps(page))
    message = refused("decode", copy)
    assert "but this model has it as float32" in message
    assert message.endswith("use the model and data it was trained with, or another run folder")


def test_a_vocabulary_of_another_run_is_refused(refused, copy):
    vocabulary = json.loads((copy / "assets/target.json").read_text())
    vocabulary["pieces"].reverse()
    (copy / "assets/target.json").write_text(json.dumps(vocabulary))
    assert "target in " in refused("decode", copy)


# -------------------------------------------------------------------------------- interruptions


def test_ctrl_c_is_one_line(call, page, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "train", interrupt)
    code, _, err = call("train", page)
    assert (code, err.count("\n")) == (130, 1)
    assert err.startswith("interrupted: ")


def test_ctrl_c_of_other_commands_promises_nothing(call, copy, monkeypatch):
    monkeypatch.setattr(run, "evaluate", lambda *_, **__: signal.default_int_handler(signal.SIGINT, None))
    assert call("evaluate", copy) == (130, "", "interrupted\n")


def test_ctrl_c_in_the_loop_saves_and_exits_with_130(call, page, copy, monkeypatch):
    def leave(code):
        raise SystemExit(code)

    def pressed(programs, state, batch, log, call=loop.Programs.__call__):
        os.kill(os.getpid(), signal.SIGINT)
        return call(programs, state, batch, log)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(loop.Programs, "__call__", pressed)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, out, err = call("train", page, "--out", copy, "--train.steps", 9)
    finally:
        signal.signal(signal.SIGINT, former)
    assert (code, err) == (130, "")
    assert out.endswith("\ninterrupted: saved step 5; run the same command again to continue\n")
    assert (copy / "checkpoints" / "5").is_dir() and not (copy / "lock").exists()


def test_a_sigterm_outside_the_loop_ends_well_too(call, page, monkeypatch):
    monkeypatch.setattr(run, "train", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    former = signal.getsignal(signal.SIGTERM)
    assert call("train", page) == (0, "interrupted: run the same command again to continue\n", "")
    assert signal.getsignal(signal.SIGTERM) is former


def process(*arguments, before: str = "", **options) -> subprocess.Popen:
    """Runs a command in a separate process, and reads its output line by line."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    command = [
        "bash",
        "-c",
        before + 'exec "$@"',
        "bash",
        sys.executable,
        "-m",
        "s2sjax.cli.main",
        *map(str, arguments),
    ]
    return subprocess.Popen(command, env=environment, **pipes)


def wait_for(child: subprocess.Popen, words: str) -> str:
    for line in child.stdout:
        if words in line:
            return line
    raise AssertionError(child.stderr.read())


@pytest.mark.slow
def test_a_kill_loses_only_the_steps_since_the_last_save_and_a_sigterm_loses_none(page, copy):
    long = [
        "train",
        page,
        "--out",
        copy,
        "--train.steps",
        1_000_000,
        "--train.evaluate_every",
        0,
        "--train.log_every",
        1,
    ]
    child = process(*long, "--train.save_every", 5)
    wait_for(child, "step 12/")
    child.kill()
    child.wait(timeout=120)

    child = process(*long, "--train.save_every", 1_000_000)
    resumed = int(re.search(r"resumed after step (\d+)", wait_for(child, "resumed"))[1])
    assert resumed >= 5
    wait_for(child, f"step {resumed + 2}/")
    child.terminate()
    out, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")
    last = int(re.search(r"interrupted: saved step (\d+); run the same command again to continue\n$", out)[1])
    assert (copy / "checkpoints" / str(last)).is_dir()


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_harms_no_older_checkpoint(page, copy):
    more = ["train", page, "--out", copy, "--train.steps", 5, "--train.evaluate_every", 0]
    child = process(*more, before="ulimit -f 6; export JAX_ENABLE_COMPILATION_CACHE=0;")  # no file beyond 6 kB
    assert child.communicate(timeout=120)[1] == (
        f"error: could not save the checkpoint of step 5 in {copy / 'checkpoints'}: File too large: "
        "free some space and run the same command again\n"
    )
    assert child.returncode == 2
    assert run.load(copy).checkpoints(read_only=True).steps() == [2, 4]


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(trained):
    child = process("decode", trained[0], stdin=subprocess.PIPE)
    child.stdout.close()
    child.stdin.write("abcd\n" * 5)
    child.stdin.close()
    assert child.stderr.read() == ""
    assert child.wait(timeout=120) == 0


# ----------------------------------------------------------------------------------- options of decode


def test_decode_can_be_told_how_to_begin_and_what_to_avoid(call, trained):
    folder = trained[0]
    code, out, err = call("decode", folder, "--prefixes", stdin=b"abcd\tba\n\t\nbad\t\n")
    assert (code, err) == (0, "")
    first, blank, free, end = out.split("\n")
    assert first.startswith("ba") and (blank, end) == ("", "")
    assert free == call("decode", folder, stdin=b"bad\n")[1].strip("\n")
    without = call("decode", folder, "--search.forbidden_words", "a", "b", stdin=b"abcd\n")
    assert without[0] == 0 and not set("ab") & set(without[1])
    assert "line 1 has no tab" in call("decode", folder, "--prefixes", stdin=b"abcd\n")[2]


@pytest.mark.slow
def test_decode_writes_alignments_and_draws_its_tree(call, trained, tmp_path):
    folder, picture = trained[0], tmp_path / "tree.png"
    code, out, err = call("decode", folder, "--alignment", "--tree", picture, stdin=b"abcd\n")
    assert (code, err) == (0, "")
    text, alignment = out.rstrip("\n").split("\t")
    pairs = [tuple(map(int, pair.split("-"))) for pair in alignment.split()]
    assert all(0 <= source <= 4 and 0 <= target <= len(text) for source, target in pairs)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_align_takes_the_attention_of_a_run(call, trained, tmp_path):
    """Aligns in one direction, and in both; the words of the tiny run are whole lines."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("abcd\tdcba\t0-0\n\ta\t\nbad\tdab\t0-0\n")
    code, out, err = call("align", pairs, "--run", trained[0], "--gold", pairs)
    assert (code, out) == (0, "0-0\n\n0-0\n")
    assert err == "on 3 gold sentences:\nforward  AER  0.0%  precision 100.0%  recall 100.0%\n"
    both = call("align", pairs, "--run", trained[0], "--reverse-run", trained[0], "--symmetrize", "union")
    assert both == (0, "0-0\n\n0-0\n", "")
    assert call("align", pairs, "--run", tmp_path)[2].startswith(f"error: {tmp_path} is not a run folder")


def test_decode_draws_the_attention(call, trained, tmp_path):
    picture = tmp_path / "attention.svg"
    code, out, err = call("decode", trained[0], "--attention", picture, stdin=b"abcd\nbad\n")
    assert (code, err, out.count("\n")) == (0, "", 2)
    assert "<!-- attention weight -->" in picture.read_text() and "<!-- abcd -->" in picture.read_text()
    assert call("decode", trained[0], "--attention", tmp_path / "a.gif", stdin=b"abcd\n")[2] == (
        f"error: --attention {tmp_path / 'a.gif'} is not a supported image format: use .png, .svg or .pdf\n"
    )


def test_a_tree_that_cannot_be_drawn_is_refused_before_the_search(call, trained, tmp_path):
    code, out, err = call("decode", trained[0], "--tree", tmp_path / "tree.foo", stdin=b"abcd\n")
    assert (code, out) == (2, "")
    assert err == f"error: --tree {tmp_path / 'tree.foo'} is not a supported image format: use .png, .svg or .pdf\n"


@pytest.mark.slow
def test_a_run_beside_itself_is_the_same_run(call, trained, copy):
    """An ensemble of two equal models has the outputs of one."""
    alone = call("decode", trained[0], stdin=b"abcd\nbad\n")
    assert call("decode", trained[0], "--also", copy, stdin=b"abcd\nbad\n") == alone
    code, out, _ = call("evaluate", copy, "--also", trained[0])
    assert code == 0 and ", beam 2, with 1 more:\nexact " in out
    assert re.search(rf"^wrote {copy}/evaluations/test-step(\d)-with-tiny-step\1-beam2$", out, re.M)


@pytest.mark.slow
def test_samples_are_reproducible_from_a_seed(call, trained):
    sampling = ["--search.sampling.count", 4, "--search.nbest", 3]
    sample = lambda seed: call("decode", trained[0], "--search.sampling.seed", seed, *sampling, stdin=b"abcd\nbad\n")
    assert sample(1) == sample(1) != sample(2)
    assert sample(1)[0] == 0 and sample(1)[1].count("\n") == 2


def test_the_mean_of_the_newest_checkpoints_writes_too(call, refused, trained, copy):
    """The average of one checkpoint is the newest one; a number larger than train.max_to_keep is refused."""
    lines = dict(stdin=b"abcd\nbad\n")
    code, out, _ = call("decode", trained[0], "--average", 1, **lines)
    assert code == 0 and out.count("\n") == 2
    out = call("evaluate", copy, "--average", 1)[1]
    assert out.startswith("test, mean of 1 checkpoints to step 4, beam 2:\n")
    assert out.endswith(f"\nwrote {copy}/evaluations/test-step4-average1-beam2\n")
    assert "but 9 are to be averaged: average fewer, or train with a higher train.max_to_keep" in refused(
        "decode", trained[0], "--average", 9, **lines
    )
    assert refused("score", trained[0], "--average", 0, **lines) == (
        "argument --average: '0' is not a whole number that is at least 1: see s2sjax score --help"
    )


def test_a_named_model_that_does_not_fit_is_refused_unless_its_fields_make_it_fit(page, refused, monkeypatch):
    assert "model.radius 10 reaches across" in refused("train", page, "--model", "luong_local")
    monkeypatch.setattr(run, "train", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main.main(["train", page, "--model", "luong_local", "--model.radius", "2"])
