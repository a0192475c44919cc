"""With Apache Beam, a corpus is prepared byte for byte as without it, on any number of workers, also after a kill."""

import gzip
import os
import random
import signal
import subprocess
import sys
from functools import partial

import pytest
from conftest import child_environment

from s2sjax import config
from s2sjax.config import Data, Mixture, Synthetic, Text, TextFiles
from s2sjax.data import beam_prepare, prepare
from s2sjax.data.beam_runner import Beam
from s2sjax.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore")  # Beam's
beam = pytest.importorskip(
    "apache_beam", reason="apache-beam is missing: make test-beam installs it", exc_type=ImportError
)

WORDS = ["Haus", "maus", "cafe\u0301", "e", "xyz", "<eos>", "<x>", "", "ﬁn", "\u2028", "12"]
SECTION = 32


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(prepare, "CHUNK", 8)
    monkeypatch.setattr(beam_prepare, "BLOCK", 300)
    monkeypatch.setattr(beam_prepare, "BLOCKS", 3)


@pytest.fixture
def corpora(tmp_path):
    """Corpora with empty lines, several targets, pairs of dev in train, and a last line without an end."""
    rng = random.Random(1)
    line = lambda: " ".join(rng.choices(WORDS, k=rng.randint(0, 5)))
    pairs = [*((line(), line()) for _ in range(149)), ("Haus e", "maus")]
    for side, name in enumerate(("src", "tgt")):
        text = "\n".join(pair[side] for pair in pairs)
        (tmp_path / name).write_bytes(text.encode() + (b"" if side else b"\r\n"))
        (tmp_path / f"dev.{name}").write_text("".join(f"{pair[side]}\n" for pair in pairs[::9]), encoding="utf-8")
    rows = "".join("\t".join([line(), *(line() for _ in range(rng.randint(1, 3)))]) + "\n" for _ in range(70))
    (tmp_path / "rows.tsv").write_text(f"\ufeff{rows}", encoding="utf-8")
    (tmp_path / "rows.tsv.gz").write_bytes(gzip.compress(rows.encode()))
    at = lambda *names: tuple(str(tmp_path / name) for name in names)
    two = TextFiles(train=at("src", "tgt"), dev=at("dev.src", "dev.tgt"))
    return {
        "two": two,
        "rows": TextFiles(train=at("rows.tsv")),
        "gz": TextFiles(train=at("rows.tsv.gz"), dev_percent=20),
        "percent": TextFiles(train=at("src", "tgt"), dev_percent=20),
        "mixture": Mixture(
            (two, Synthetic("copy", train=50, dev=5, test=5), TextFiles(train=at("rows.tsv"))),
            tags=("<x>", "<y>", "<z>"),
        ),
    }


PIECES = Text("subwords", size=60, sample=45)
SETTINGS = {
    "two": (Text("words", min_count=2), Text("characters", normalize="nfkc_lower"), False),
    "rows": (PIECES, config.replace(PIECES, size=55, sample=1000), False),
    "gz": (Text("words"), PIECES, False),
    "percent": (PIECES, PIECES, True),
    "mixture": (Text("words"), Text("words"), True),
}


def data_of(corpora, name):
    source, target, shared = SETTINGS[name]
    return Data(corpora[name], source, target, shared)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(build) -> str:
    with pytest.raises(UserError) as caught:
        build()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", SETTINGS)
def test_it_is_byte_for_byte_the_folder_of_the_local_workers(tmp_path, corpora, name):
    data, stages = data_of(corpora, name), []
    alone = prepare.prepare(data, tmp_path / "alone", section=SECTION)
    made = beam_prepare.prepare(
        data, tmp_path / "made", progress=lambda stage, done: stages.append((stage, done)), section=SECTION
    )
    assert contents(tmp_path / "made") == contents(tmp_path / "alone")
    assert made._replace(folder=None) == alone._replace(folder=None) and made.new
    assert stages[-1][0] == "writing" and not (tmp_path / "made.beam").exists()


@pytest.mark.slow
def test_two_processes_make_it_too(tmp_path, monkeypatch, corpora):
    monkeypatch.setattr(beam_prepare, "BLOCK", 1 << 20)  # they take seconds to start for each stage: not for counting
    data = data_of(corpora, "two")
    prepare.prepare(data, tmp_path / "alone", section=SECTION)
    beam_prepare.prepare(data, tmp_path / "made", workers=2, section=SECTION)
    assert contents(tmp_path / "made") == contents(tmp_path / "alone")


# -------------------------------------------------------------------------- interrupted and again


class Killed(Exception):
    pass


def complete(folder):
    """The numbers of the complete sections."""
    return {int(path.stem[-5:]) for path in folder.glob("section-*.npz")}


def noted(monkeypatch, write_section):
    """The numbers of the sections that are written from now on."""
    found = []
    monkeypatch.setattr(
        prepare,
        "write_section",
        lambda folder, number, *rest: found.append(number) or write_section(folder, number, *rest),
    )
    return found


@pytest.mark.parametrize("again", ["beam", "local"])
def test_interrupted_it_keeps_the_complete_sections_for_either_way(tmp_path, monkeypatch, corpora, again):
    data, whole = data_of(corpora, "mixture"), prepare.write_section
    prepare.prepare(data, tmp_path / "alone", section=SECTION)

    done = []

    def ends(folder, number, *rest):
        if len(done) == 3:
            raise Killed("killed")
        done.append(number)
        return whole(folder, number, *rest)

    monkeypatch.setattr(prepare, "write_section", ends)
    words = refused(lambda: beam_prepare.prepare(data, tmp_path / "made", section=SECTION))
    assert words.startswith("Beam stopped while writing (") and "killed" in words
    assert words.endswith("run the same command again; it keeps the complete sections")
    assert complete(tmp_path / "made") == set(done)
    assert not (tmp_path / "made/prepared.json").exists() and not (tmp_path / "made.beam").exists()
    written = noted(monkeypatch, whole)
    run = beam_prepare.prepare if again == "beam" else prepare.prepare
    assert run(data, tmp_path / "made", section=SECTION).new
    assert set(written) == set(range(len(done) + len(written))) - set(done)
    assert contents(tmp_path / "made") == contents(tmp_path / "alone")
    assert not beam_prepare.prepare(data, tmp_path / "made", section=SECTION).new


PROGRAM = """
import sys, time
from s2sjax.config import Data, Text, TextFiles
from s2sjax.data import beam_prepare, prepare
whole, done = prepare.write_section, []
def write_section(folder, number, *rest):
    if len(done) == 2:
        print("two sections", flush=True)
        time.sleep(600)
    done.append(number)
    return whole(folder, number, *rest)
prepare.write_section = write_section
source, target, folder = sys.argv[1:]
beam_prepare.prepare(Data(TextFiles(train=(source, target)), Text("words"), Text("words")), folder, section=32)
"""


def test_killed_it_goes_on(tmp_path, monkeypatch, corpora):
    data = Data(config.replace(corpora["two"], dev=()), Text("words"), Text("words"))
    command = [sys.executable, "-c", PROGRAM, *data.corpus.train, str(tmp_path / "made")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment())
    assert child.stdout.readline() == "two sections\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    kept = complete(tmp_path / "made")
    assert len(kept) == 2 and (tmp_path / "made.beam").is_dir()
    prepare.prepare(data, tmp_path / "alone", section=SECTION)
    written = noted(monkeypatch, prepare.write_section)
    assert beam_prepare.prepare(data, tmp_path / "made", section=SECTION).new
    assert set(written) == set(range(5)) - kept
    assert contents(tmp_path / "made") == contents(tmp_path / "alone")
    assert not (tmp_path / "made.beam").exists()


@pytest.mark.slow
def test_a_worker_that_is_killed_is_not_waited_for(tmp_path):
    def run():
        with Beam([], 2, tmp_path / "made.beam") as workers:
            list(workers.each("reading", [partial(os._exit, 3), partial(len, "ab")]))

    assert refused(run).startswith("Beam stopped while reading (a worker was killed, perhaps because memory ran out)")


# ------------------------------------------------------------------------------------- mistakes


def replaced(path, before, after):
    path.write_bytes(path.read_bytes().replace(before, after, 1))


@pytest.mark.parametrize(
    "name, harm, words",
    [
        ("two", lambda folder: (folder / "tgt").unlink(), "there is no file"),
        ("two", lambda folder: (folder / "src").write_bytes(b""), "is empty: put examples in it"),
        ("two", lambda folder: replaced(folder / "src", b"\r\n", b"\nx\ny\nz"), "has 153 lines but"),
        ("rows", lambda folder: replaced(folder / "rows.tsv", b"\n", b"\nnothing\n" * 40), "line 2: there is no tab"),
        ("percent", lambda folder: replaced(folder / "tgt", b"maus\n", b"\xff\n"), ": not UTF-8"),
        ("mixture", lambda folder: (folder / "dev.src").unlink(), "there is no file"),
    ],
)
def test_a_mistake_is_the_same_line_as_without_beam(tmp_path, corpora, name, harm, words):
    harm(tmp_path)
    data = data_of(corpora, name)
    alone = refused(lambda: prepare.prepare(data, tmp_path / "alone", section=SECTION))
    made = refused(lambda: beam_prepare.prepare(data, tmp_path / "made", section=SECTION))
    assert made == alone and words in made
    assert not (tmp_path / "made").exists() and not (tmp_path / "made.beam").exists()


@pytest.mark.parametrize(
    "options, words",
    [
        (["--direct_num_workers=x"], "an option after --beam is wrong: argument --direct_num_workers: invalid int"),
        (["--regoin=x"], "an option after --beam is wrong: the DirectRunner has no --regoin"),
        (["--runner", "Nonsense"], "an option after --beam is wrong: Unexpected pipeline runner: Nonsense"),
        (["--data.batch_tokens", "3"], "--data.batch_tokens after --beam is given to Beam, which has no such option"),
        (["--runner", "DataflowRunner"], "Beam stopped while counting (Missing required option: region): run"),
    ],
)
def test_wrong_options_are_named(tmp_path, corpora, options, words):
    made = refused(lambda: beam_prepare.prepare(data_of(corpora, "gz"), tmp_path / "made", options, section=1000))
    assert made.startswith(words)


def test_a_folder_of_others_stays(tmp_path, corpora):
    (tmp_path / "made.beam").mkdir()
    (tmp_path / "made.beam" / "thesis.tex").write_text("chapter 1")
    words = refused(lambda: beam_prepare.prepare(data_of(corpora, "rows"), tmp_path / "made"))
    assert words == f"{tmp_path / 'made.beam'} contains other files (thesis.tex): choose another --out"
    assert (tmp_path / "made.beam/thesis.tex").read_text() == "chapter 1"


def test_the_command_passes_the_options_after_beam(tmp_path, call, corpora):
    (tmp_path / "mine.py").write_text(
        "from s2sjax import config, tasks\n"
        'text = config.TextFiles(train=("src", "tgt"))\n'
        'experiment = tasks.Translation("mine", data=config.Data(text), model=config.Luong())\n'
    )
    arguments = ["prepare", str(tmp_path / "mine.py"), "--out", str(tmp_path / "made"), "--workers", "1", "--beam"]
    code, out, err = call(*arguments, "--runner", "DirectRunner", "--flink_master", "http://nowhere")
    assert (code, err) == (0, "") and f"wrote {tmp_path / 'made'}, 150 pairs" in out
    assert call(*arguments, "--runner", "None")[0] == 2
