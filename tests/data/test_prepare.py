"""A prepared folder gives the same batches as its text, or it is not complete."""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from s2sjax import config
from s2sjax.config import Data, Luong, Mixture, Prepared, Synthetic, Text, TextFiles, Train
from s2sjax.data import pairs as textpairs
from s2sjax.data import prepare
from s2sjax.data.batching import batch_plan
from s2sjax.data.corpora import prepared_corpus, readers
from s2sjax.errors import UserError
from s2sjax.runs import folder as run_folder
from s2sjax.runs import run
from s2sjax.tasks import Translation

COPY = Synthetic("copy", train=150, dev=5, test=0, length=9, alphabet=4)
SORT = Synthetic("sort", train=60, dev=5, test=5, length=9, alphabet=4)
BUCKETS = ((6, 6), (12, 12))
DATA = Data(COPY, buckets=BUCKETS, batch_tokens=96)
MIXED = config.replace(DATA, corpus=Mixture((COPY, SORT), temperature=3.0, tags=("<copy>", "<sort>")))


def refused(build) -> str:
    with pytest.raises(UserError) as caught:
        build()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read_from(data, folder):
    return config.replace(data, corpus=Prepared(str(folder)))


def all_batches(data, steps=25):
    train = textpairs.read(data)
    source, target = textpairs.vocabularies(data, train)
    pairs = textpairs.make_columns(data, train, source, target, seed=1)
    plan = textpairs.make_plan(data, pairs, seed=1, multiple=2)
    found = [batch_plan.make_batch(pairs, plan, step) for step in range(steps)]
    shares = [batch_plan.make_batch(pairs, plan, 3, [index], 2) for index in range(2)]
    return source.fingerprint, target.fingerprint, textpairs.fingerprint(train), plan.left_out, found + shares


def equal(left, right):
    *facts, batches_left = left
    *others, batches_right = right
    assert facts == others and len(batches_left) == len(batches_right)
    for one, other in zip(batches_left, batches_right):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype == np.int32
            np.testing.assert_array_equal(one[name], other[name])
    return True


# --------------------------------------------------------------------------- raw equals prepared


@pytest.mark.parametrize("section", [64, 10_000])
@pytest.mark.parametrize("data", [DATA, MIXED], ids=["alone", "mixture"])
def test_batch_for_batch_it_is_the_raw_corpus(tmp_path, monkeypatch, data, section):
    monkeypatch.setattr(prepare, "CHUNK", 16)
    done = prepare.prepare(data, tmp_path / "made", section=section)
    assert done.new and done.pairs == len(readers.load(data.corpus, "train"))
    assert equal(all_batches(data), all_batches(read_from(data, tmp_path / "made")))
    assert readers.load(Prepared(str(tmp_path / "made")), "dev") == readers.load(data.corpus, "dev")
    assert readers.labels(Prepared(str(tmp_path / "made"))) == readers.labels(data.corpus)


def test_several_targets_subwords_and_too_long_pairs_too(tmp_path):
    rows = [f"wort {n % 7} {'x' * (n % 3)}\tword {n % 7}\t{'y ' * (n % 9)}\n" for n in range(90)]
    (tmp_path / "pairs.tsv").write_text("".join(rows), encoding="utf-8")
    pieces = Text("subwords", size=30, sample=50)
    corpus = TextFiles(train=(str(tmp_path / "pairs.tsv"),))
    data = Data(corpus, pieces, pieces, shared=True, buckets=((9, 5), (12, 9)), batch_tokens=120)
    prepare.prepare(data, tmp_path / "made")
    raw, made = all_batches(data), all_batches(read_from(data, tmp_path / "made"))
    assert raw[3] > 0 and equal(raw, made)
    assert not readers.has(Prepared(str(tmp_path / "made")), "dev")


@pytest.mark.slow
def test_workers_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "CHUNK", 16)
    stages = []
    for workers in (1, 2):
        prepare.prepare(DATA, tmp_path / f"by{workers}", workers, lambda stage, done: stages.append((stage, done)))
    one, two = (tmp_path / f"by{workers}" for workers in (1, 2))
    assert sorted(os.listdir(one)) == sorted(os.listdir(two))
    for name in ("prepared.json", "train.ids", "lengths.npy", "example.npy", "dev.jsonl", "vocabulary/source.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert equal(all_batches(read_from(DATA, one)), all_batches(read_from(DATA, two)))
    assert {stage for stage, _ in stages} == {"reading", "vocabulary", "writing"}
    assert max(done for _, done in stages) == 150


def test_a_batch_is_read_at_once_not_pair_by_pair(tmp_path):
    """The number of calls does not grow with the number of pairs."""
    prepare.prepare(DATA, tmp_path / "made")
    found = prepared_corpus.Records(tmp_path / "made")

    def calls(rows: int) -> int:
        events: list[str] = []
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            found.batch(np.arange(rows), (12, 12))
        finally:
            sys.setprofile(None)
        return len(events)

    assert calls(128) == calls(4)


TINY = Translation(
    "tiny",
    data=DATA,
    model=Luong(width=4, embedding_size=4, layers=1),
    train=Train(steps=2, warmup_steps=1, evaluate_every=0),
)


def test_a_run_may_find_it_elsewhere_the_next_time(tmp_path):
    prepare.prepare(DATA, tmp_path / "made")
    for name in ("made", "moved"):
        (tmp_path / "made").rename(tmp_path / name)
        experiment = config.replace(TINY, data=read_from(DATA, tmp_path / name))
        started = run_folder.start_task(experiment, tmp_path / "run", textpairs.read(experiment.data))
    raw = run_folder.start_task(TINY, tmp_path / "raw", textpairs.read(DATA))
    assert started.source.fingerprint == raw.source.fingerprint
    pages = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("run", "raw")]
    assert pages[0]["data"] == pages[1]["data"] and pages[0]["assets"] == pages[1]["assets"]


@pytest.mark.slow
def test_training_on_it_ends_in_the_same_weights(tmp_path):
    prepare.prepare(DATA, tmp_path / "made")
    weights = []
    for data in (DATA, read_from(DATA, tmp_path / "made")):
        _, result = run.train(config.replace(TINY, data=data), tmp_path / f"run{len(weights)}")
        weights.append([np.asarray(leaf) for leaf in jax.tree.leaves(result.state.params)])
    assert all(np.array_equal(raw, made) for raw, made in zip(*weights))


# ------------------------------------------------------------------------- whole or not at all


def test_a_whole_folder_is_left_as_it_is_and_another_corpus_refused(tmp_path):
    prepare.prepare(DATA, tmp_path / "made")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "made").rglob("*")}
    assert not prepare.prepare(config.replace(DATA, batch_tokens=7), tmp_path / "made").new  # batching has no effect
    for other in (config.replace(DATA, corpus=SORT), config.replace(DATA, source=Text(min_count=2))):
        assert refused(lambda other=other: prepare.prepare(other, tmp_path / "made")).endswith(
            "contains another corpus: choose another --out, or delete the folder"
        )
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "made").rglob("*")}


def test_something_else_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("chapter 1")
    assert "contains other files" in refused(lambda: prepare.prepare(DATA, tmp_path))
    assert os.listdir(tmp_path) == ["thesis.tex"]


FOREIGN = {"thesis.txt": "chapter 1", "photos/cat.jpg": "\x89", "vocabulary/mine.txt": "words", "section-1.npz": "mine"}


def put(folder, **files):
    for name, content in {**FOREIGN, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return contents(folder)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "unfinished",
    [
        "", "my plans", "{}", "[1, 2]", '{"files": ["thesis.txt"], "settings": {}}', '{"files": {}, "settings": {}}',
        '{"files": ["../thesis.txt"], "settings": {}}', '{"version": 2, "data": "", "section": 64, "made_with": {}}',
    ],
)  # fmt: skip
def test_an_unfinished_json_of_others_is_refused_and_every_file_stays(tmp_path, unfinished):
    before = put(tmp_path, **{"unfinished.json": unfinished})
    assert "unfinished.json does not list what a preparation wrote" in refused(lambda: prepare.prepare(DATA, tmp_path))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("other", [DATA, config.replace(DATA, corpus=SORT)], ids=["same text", "other text"])
@pytest.mark.parametrize("moment", [2, 4, 9, 14, 18])
def test_files_beside_an_unfinished_preparation_stay(tmp_path, monkeypatch, moment, other):
    ended_at_rename(monkeypatch, moment, DATA, tmp_path)
    foreign = {name: put(tmp_path)[name] for name in FOREIGN}
    assert prepare.prepare(other, tmp_path, section=64).new
    assert equal(all_batches(other), all_batches(read_from(other, tmp_path)))
    assert foreign.items() <= contents(tmp_path).items()
    assert not list(tmp_path.rglob("*partial*")) and not list(tmp_path.glob("unfinished*"))


@pytest.mark.parametrize("name", ["dev.jsonl", ".dev.jsonl.partial", "lengths.npy", "section-00002.npz"])
def test_a_file_of_others_with_a_name_of_ours_is_not_replaced(tmp_path, monkeypatch, name):
    ended_at_rename(monkeypatch, 6, DATA, tmp_path)
    put(tmp_path, **{name: "mine"})
    words = refused(lambda: prepare.prepare(DATA, tmp_path, section=64))
    assert words == f"{tmp_path / name} was not written by this preparation: choose another --out"
    assert contents(tmp_path)[name] == b"mine"


class Killed(Exception):
    pass


def ended_at_rename(monkeypatch, moment, data, folder):
    """A preparation that is killed before one of its renames."""
    rename, calls = os.replace, []

    def ends(*arguments):
        calls.append(arguments)
        if len(calls) == moment:
            raise Killed
        return rename(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", ends)
        patch.setattr(prepare, "CHUNK", 16)
        with pytest.raises(Killed):
            prepare.prepare(data, folder, section=64)


@pytest.mark.parametrize("moment", range(1, 19))
def test_ended_at_any_rename_it_is_no_prepared_folder_and_goes_on(tmp_path, monkeypatch, moment):
    """Every file appears by a rename, so that a kill can only end the preparation before one of them."""
    folder = tmp_path / "made"
    ended_at_rename(monkeypatch, moment, DATA, folder)
    monkeypatch.setattr(prepare, "CHUNK", 16)
    assert "is not prepared: run `s2sjax prepare FILE` first" in refused(
        lambda: textpairs.read(read_from(DATA, folder))
    )
    whole = {path: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
    kept = []
    written = prepare.write_section
    monkeypatch.setattr(
        prepare, "write_section", lambda folder, number, *rest: kept.append(number) or written(folder, number, *rest)
    )
    assert prepare.prepare(DATA, folder, section=64).new
    assert not set(kept) & whole.keys()  # complete sections were not made again
    monkeypatch.undo()
    assert equal(all_batches(DATA), all_batches(read_from(DATA, folder)))
    assert (
        not list(folder.rglob("*partial*")) and not list(folder.glob("*.npz")) and not list(folder.glob("unfinished*"))
    )


def test_other_text_starts_over(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "_join", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        prepare.prepare(DATA, tmp_path / "made", section=64)
    monkeypatch.undo()
    other = config.replace(DATA, corpus=SORT)
    prepare.prepare(other, tmp_path / "made", section=64)
    assert equal(all_batches(other), all_batches(read_from(other, tmp_path / "made")))


@pytest.mark.slow
def test_workers_end_with_the_one_who_fed_them(tmp_path):
    program = (
        "import sys, time\n"
        "from s2sjax.config import Data, Synthetic\n"
        "from s2sjax.data import prepare\n"
        "def tell(stage, done):\n"
        "    if stage == 'writing':\n"
        "        import multiprocessing\n"
        "        print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"
        "        time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    prepare.CHUNK = 4\n"
        f"    prepare.prepare(Data(Synthetic('copy', train=400)), {str(tmp_path / 'made')!r}, 2, tell)\n"
    )
    (tmp_path / "feed.py").write_text(program.replace("done):\n", "done):\n    if done < 40: return\n"))
    parent = subprocess.Popen([sys.executable, tmp_path / "feed.py"], stdout=subprocess.PIPE, text=True)
    children = [int(child) for child in parent.stdout.readline().split()]
    assert len(children) >= 1
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while any(_alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(child) for child in children)
    assert not (tmp_path / "made" / prepared_corpus.MANIFEST).exists()


def _alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "harm, words",
    [
        (lambda folder: (folder / "lengths.npy").unlink(), "lengths.npy is damaged (["),
        (lambda folder: np.save(folder / "lengths.npy", np.ones((3, 2), np.int32)), "(3 pairs, not 150)"),
        (lambda folder: (folder / "train.ids").unlink(), "train.ids is damaged ([Errno 2] No such file"),
        (lambda folder: (folder / "train.ids").write_bytes(b""), "train.ids is damaged (cannot mmap an empty file"),
        (lambda folder: os.truncate(folder / "train.ids", 500), "train.ids is damaged (250 ids, not "),
        (lambda folder: (folder / "prepared.json").write_text("{"), "prepared.json is damaged (Expecting"),
        (lambda folder: (folder / "vocabulary/source.json").unlink(), "the vocabulary"),
        (lambda folder: blank(folder / "train.ids"), "train.ids is damaged (a pair does not end in <eos>)"),
        (lambda folder: np.save(folder / "lengths.npy", np.full((150, 2), 2, np.int32)), "train.ids is damaged ("),
        (lambda folder: np.save(folder / "starts.npy", np.arange(150) * 7 - 90), "train.ids is damaged ("),
    ],
)
def test_what_is_damaged_is_named(tmp_path, harm, words):
    prepare.prepare(DATA, tmp_path / "made")
    harm(tmp_path / "made")
    assert words in refused(lambda: all_batches(read_from(DATA, tmp_path / "made")))


def blank(path):
    """An interrupted copy has zeros in place of ids."""
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)


def test_an_experiment_that_asks_for_other_ids_is_refused(tmp_path):
    prepare.prepare(DATA, tmp_path / "made")
    page = json.loads((tmp_path / "made/prepared.json").read_text())
    made = read_from(DATA, tmp_path / "made")
    words = refused(lambda: textpairs.read(config.replace(made, target=Text("words"))))
    assert words.startswith(f"{tmp_path / 'made'} was prepared with data.target Text(unit='characters'")
    other = config.replace(made, corpus=Prepared(str(tmp_path / "made"), SORT))
    assert "was prepared from another corpus" in refused(lambda: textpairs.read(other))
    (tmp_path / "made/prepared.json").write_text(json.dumps({**page, "version": 0}))
    assert "was prepared by another version of s2sjax: delete it" in refused(lambda: textpairs.read(made))
    assert "was prepared by another version of s2sjax: delete it" in refused(
        lambda: prepare.prepare(DATA, tmp_path / "made")
    )


def test_what_a_prepared_folder_does_not_keep(tmp_path):
    prepare.prepare(DATA, tmp_path / "made")
    made = Prepared(str(tmp_path / "made"))
    assert "contains no training text" in refused(lambda: readers.load(made, "train"))
    assert "was prepared without test examples" not in refused(lambda: readers.load(Prepared("gone"), "test"))
    drawn = config.replace(DATA, source=Text("subwords", sampling=0.1))
    assert "data.source.sampling draws new subwords" in refused(lambda: prepare.prepare(drawn, tmp_path / "y"))
    assert "data.corpus.corpus is not set" in refused(lambda: prepare.prepare(read_from(DATA, "x"), tmp_path / "y"))
    again = config.replace(DATA, corpus=Prepared(str(tmp_path / "two"), COPY))
    assert prepare.prepare(again, tmp_path / "two").pairs == 150
    assert equal(all_batches(DATA), all_batches(again))


def test_how_a_model_spells_its_words_changes_no_ids(tmp_path):
    plain = config.replace(DATA, source=Text("words"))
    spelt = config.replace(plain, source=Text("words", spelling=config.Spelling(on=True)))
    made = prepare.prepare(spelt, tmp_path / "made")
    assert made.new and not prepare.prepare(plain, tmp_path / "made").new
    assert equal(all_batches(read_from(plain, made.folder)), all_batches(read_from(spelt, made.folder)))
