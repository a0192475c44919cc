"""`s2sjax data`, paths data:NAME/FILE on the command line and in experiments, and the offer of `s2sjax train`."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import child_environment

import s2sjax
from s2sjax.cli import data_command
from s2sjax.config import Prepared, TextFiles, missing_data, replace
from s2sjax.config.paths import resolve_paths
from s2sjax.datasets import table
from s2sjax.errors import UserError
from s2sjax.runs.experiment_file import load_experiment

DATA_PAGE = Path(s2sjax.__file__).parents[1] / "docs/data.md"
PAIRS = b"ab\tba\nabb\tbba\n" * 4
PAGE = """
from s2sjax.config import *
from s2sjax.tasks import Translation
experiment = Translation(
    "page", data=Data(TextFiles(("data:mine/train.tsv",), test=("data:mine/test.tsv",)), buckets=((6, 6),)),
    model=Luong(width=8, embedding_size=4, layers=1), train=Train(steps=1, warmup_steps=1, evaluate_every=0),
    search=Search(beam_size=1),
)
"""


@pytest.fixture
def own(host, tmp_path):
    """A set of the user's own, and an experiment that reads it."""
    host.files |= {"/train.tsv": PAIRS, "/test.tsv": PAIRS[:13]}
    files = {
        name: {"url": f"{host.url}/{name}", "sha256": hashlib.sha256(host.files[f"/{name}"]).hexdigest(), "size": 56}
        for name in ("train.tsv", "test.tsv")
    }
    entry = {"about": "letters", "licence": "CC0", "citation": "Me (2026). Letters.", "files": files}
    (tmp_path / "data").mkdir()
    (tmp_path / "data/sets.json").write_text(json.dumps({"mine": entry}))
    (tmp_path / "page.py").write_text(PAGE)


def test_list_get_and_check(call, own, host, tmp_path):
    code, out, _ = call("data", "list")
    assert code == 0 and "\nmine                  0.1 kB  0 of 2 files    letters; licence: CC0\n" in out
    assert "cannot be fetched: it has no public address" in out
    code, out, _ = call("data", "get", "mine")
    assert (code, out) == (0, "getting mine: letters (2 files, 0.1 kB to download)\n  licence: CC0\n"
                              "  cite: Me (2026). Letters.\nwrote data/mine\n")  # fmt: skip
    assert call("data", "get", "mine", "--offline") == (0, "data/mine is complete\n", "")
    assert call("data", "check") == (0, "mine                2 right\n", "")
    (tmp_path / "data/mine/train.tsv").write_text("other")
    (tmp_path / "data/mine/test.tsv").unlink()
    code, out, _ = call("data", "check", "mine")
    assert (code, out) == (1, "mine                0 right; 1 differ: train.tsv; 1 missing: test.tsv\n")
    assert "1 of 2 files" in call("data", "list")[1]


def test_another_folder(call, own, host, tmp_path):
    (tmp_path / "data").rename(tmp_path / "else")
    assert call("data", "get", "mine", "--folder", "else")[0] == 0
    assert sorted(os.listdir(tmp_path / "else/mine")) == ["SOURCE.json", "test.tsv", "train.tsv"]
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("given", ["variable", "option"])
def test_a_folder_of_an_unknown_user_is_a_folder(call, own, tmp_path, monkeypatch, given):
    """As in the shell."""
    (tmp_path / "data").rename(tmp_path / "~nouser")
    monkeypatch.setenv("S2SJAX_DATA", "~nouser" if given == "variable" else "none")
    assert call("data", "get", "mine", *(("--folder", "~nouser") if given == "option" else ()))[0] == 0
    assert (tmp_path / "~nouser/mine/train.tsv").exists()


def test_a_folder_may_be_named_from_the_parent(call, own, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("S2SJAX_DATA", "../data")
    code, _, err = call("train", "../page.py")
    assert code == 2 and err.startswith("error: data:mine/train.tsv is not in ") and "run s2sjax data get mine" in err
    assert call("data", "get", "mine")[0] == 0 and (tmp_path / "data/mine/train.tsv").exists()


def test_a_mirror_that_is_no_address_is_one_line(call, own, monkeypatch):
    monkeypatch.setenv("S2SJAX_DATA_MIRROR", "mirror.org")
    code, _, err = call("data", "get", "mine")
    assert code == 2 and err.startswith("error: S2SJAX_DATA_MIRROR is 'mirror.org', which is no address")


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["get"], "name the data sets to get, or all: s2sjax data list names them"),
        (["gat", "ptb"], "s2sjax data has no action 'gat': did you mean 'get'?"),
        (["get", "ptbb"], "there is no data set 'ptbb': did you mean 'ptb'?"),
        (["list", "ptb"], "list shows all data sets: leave out ptb"),
        (["get", "ddtp"], "ddtp cannot be fetched: it has no public address; docs/data.md says what it was made from"),
        (["check"], "data has no data sets: s2sjax data get NAME"),
        (["get", "ptb", "--offline"], "data/ptb lacks ptb.train.txt and 2 others, and nothing is downloaded offline: "
         "run s2sjax data get ptb where there is a network and copy the folder, or unset S2SJAX_OFFLINE"),
    ],
)  # fmt: skip
def test_mistakes(call, arguments, error):
    assert call("data", *arguments) == (2, "", f"error: {error}\n")


def test_a_set_that_fails_does_not_stop_the_others(call, own, host, answers, tmp_path):
    table = json.loads((tmp_path / "data/sets.json").read_text())
    table = {"gone": table["mine"] | {"files": {"a": {"url": f"{host.url}/gone"}}}} | table
    (tmp_path / "data/sets.json").write_text(json.dumps(table))
    code, out, err = call("data", "get", "gone", "mine")
    assert code == 2 and out.startswith("2 data sets, 0.1 kB to download\n") and "wrote data/mine" in out
    assert (
        "cannot download gone (127.0.0.1:" in err
        and "404 Not Found" in err
        and err.endswith("1 of 2 data sets are not complete (gone): see the errors above\n")
    )


def test_all_leaves_out_what_is_very_large(capsys, tmp_path):
    names = [each.name for each in data_command._chosen(["all"], tmp_path)]
    assert "multi30k" in names and "flickr8k" not in names and "ddtp" not in names
    assert "without flickr8k (1.1 GB; name it to get it)" in capsys.readouterr().out
    assert "flickr8k" in [each.name for each in data_command._chosen(["all", "flickr8k"], tmp_path)]


def test_paths_of_experiments(own, tmp_path, monkeypatch):
    experiment = load_experiment("page.py")
    corpus = experiment.data.corpus
    assert corpus.train == (str(tmp_path / "data/mine/train.tsv"),)
    error = (
        "data:mine/train.tsv is not in data/: run s2sjax data get mine, or set S2SJAX_DATA to the folder that has it"
    )
    assert missing_data(experiment) == {"mine": error}
    with pytest.raises(UserError, match="run s2sjax data get mine"):
        s2sjax.train("page.py", "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "data/mine").mkdir()
    (tmp_path / "data/mine/train.tsv").write_bytes(PAIRS)
    assert "data:mine/test.tsv" in missing_data(experiment)["mine"]
    untested = replace(experiment, evaluate=replace(experiment.evaluate, test=False))
    assert missing_data(untested) == {}
    prepared = replace(experiment, data=replace(experiment.data, corpus=Prepared("ids", corpus)))
    assert missing_data(prepared) == {}
    monkeypatch.setenv("S2SJAX_DATA", str(tmp_path / "shared"))
    assert resolve_paths(TextFiles(("data:a/b", "c")), Path("/x")).train == (str(tmp_path / "shared/a/b"), "/x/c")


def test_missing_data_stops_every_command_before_any_work(call, own, tmp_path):
    error = "error: data:{} is not in data/: run s2sjax data get {}, or set S2SJAX_DATA to the folder that has it\n"
    for command in ("train", "prepare"):
        assert call(command, "page.py") == (2, "", error.format("mine/train.tsv", "mine"))
    assert call("sweep", "page.py", "--seed", "0,1") == (2, "", error.format("mine/train.tsv", "mine"))
    assert call("align", "data:hansards/dev.tsv") == (2, "", error.format("hansards/dev.tsv", "hansards"))
    assert call("plan", "page.py")[2].startswith(error.format("mine/train.tsv", "mine")[:-1])
    code, _, err = call("train", "page.py", "--data.corpus.train", "data:ptb/ptb.train.txt", "--no-test")
    assert (code, err) == (2, error.format("ptb/ptb.train.txt", "ptb"))


def test_a_path_of_the_command_line(call, own, tmp_path):
    call("data", "get", "mine")
    code, out, _ = call("align", "data:mine/train.tsv", "--model", "ibm1", "--out", "data:mine/links")
    assert code == 0 and "wrote" in out and (tmp_path / "data/mine/links").is_file()


def in_a_terminal(monkeypatch, answer) -> list[str]:
    """The questions that are asked, and answered with this, or with Ctrl-D."""
    questions = []

    def asked(question):
        questions.append(question)
        if answer == "Ctrl-D":
            raise EOFError
        return answer

    monkeypatch.setattr("builtins.input", asked)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    return questions


@pytest.mark.parametrize("answer", ["y", "", "no", "Ctrl-D"])
def test_the_offer_of_train(own, answer, tmp_path, monkeypatch, capsys):
    questions = in_a_terminal(monkeypatch, answer)
    missing = missing_data(load_experiment("page.py"))
    if answer == "y":
        data_command.offer(missing)
    else:
        with pytest.raises(UserError, match="run s2sjax data get mine"):
            data_command.offer(missing)
    assert questions == ["get it now (0.1 kB, licence: CC0)? [y/N] "]
    assert (tmp_path / "data/mine/train.tsv").exists() == (answer == "y")
    monkeypatch.setenv("S2SJAX_OFFLINE", "1")
    with pytest.raises(UserError, match="run s2sjax data get mine"):
        data_command.offer(missing)
    assert len(questions) == 1


def test_an_unknown_size_is_not_offered_as_zero(own, tmp_path, monkeypatch, capsys):
    file = tmp_path / "data/sets.json"
    file.write_text(file.read_text().replace(', "size": 56', ""))
    questions = in_a_terminal(monkeypatch, "y")
    data_command.offer(missing_data(load_experiment("page.py")))
    assert questions == ["get it now (licence: CC0)? [y/N] "] and (tmp_path / "data/mine/train.tsv").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.slow
def test_train_asks_in_a_terminal(own, tmp_path):
    leader, follower = pty.openpty()
    os.write(leader, b"n\n")
    done = subprocess.Popen(
        [sys.executable, "-m", "s2sjax.cli.main", "train", "page.py"],
        stdin=follower, stdout=follower, stderr=follower, env=child_environment(), cwd=tmp_path,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # the process has ended
        while part := os.read(leader, 1 << 16):
            shown += part
    os.close(leader)
    assert done.wait() == 2 and b"get it now (0.1 kB, licence: CC0)? [y/N]" in shown
    assert not (tmp_path / "data/mine").exists()


def test_the_sets_of_the_page(call, host, tmp_path, capsys):
    """The table and the program of docs/data.md, with the address of a local server."""
    page = DATA_PAGE.read_text(encoding="utf-8").replace("https://example.org", host.url)
    host.files |= {
        "/frisian/train.tsv.gz": gzip.compress(b"one\tien\ntwo\ttwa\n"),
        "/frisian/dev.tsv": b"Three\ttrije\n",
    }
    (tmp_path / "data").mkdir()
    (tmp_path / "data/sets.json").write_text(re.findall("```json\n(.*?)```", page, re.DOTALL)[0])
    program = next(each for each in re.findall("```python\n(.*?)```", page, re.DOTALL) if "DataSet" in each)
    exec(program, {})
    assert capsys.readouterr().out.endswith("wrote data/lower\nthree\ttrije\n\n")
    assert call("data", "get", "frisian")[0] == 2  # this dev.tsv is another one
    host.files["/frisian/dev.tsv"] = b"three\ttrije\n"
    assert call("data", "get", "frisian")[0] == 0
    assert call("data", "check", "frisian") == (0, "frisian             2 right\n", "")


def test_the_page_lists_every_set():
    page = DATA_PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(table.all_sets()) <= listed
