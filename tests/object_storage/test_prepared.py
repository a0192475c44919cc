"""Text and prepared folders in object storage: read, written, killed and damaged as in a local folder."""

import contextlib
import gzip
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import child_environment, refused

from s2sjax import config, files, object_storage
from s2sjax.config import Data, Luong, Mixture, Prepared, Synthetic, TextFiles, Train
from s2sjax.data import pairs as textpairs
from s2sjax.data import prepare
from s2sjax.data.batching import batch_plan
from s2sjax.data.corpora import prepared_corpus, readers
from s2sjax.runs import run as runs
from s2sjax.tasks import Translation

ONE = pytest.mark.parametrize("bucket", ["gs", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)
"""of tests that take long, those of S3 are run by CI alone"""
COPY = Synthetic("copy", train=150, dev=5, test=0, length=9, alphabet=4)
SORT = Synthetic("sort", train=60, dev=5, test=5, length=9, alphabet=4)
DATA = Data(COPY, buckets=((6, 6), (12, 12)), batch_tokens=96)
MIXED = config.replace(DATA, corpus=Mixture((COPY, SORT), temperature=3.0, tags=("<copy>", "<sort>")))
SECTION = 64


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(prepare, "CHUNK", 16)


def contents(folder) -> dict[str, bytes]:
    if files.in_storage(folder):
        return {name: (folder / name).read_bytes() for name in folder.files()}
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_from(data, folder):
    return config.replace(data, corpus=Prepared(str(folder)))


def batches(data, steps=40):
    train = textpairs.read(data)
    pairs = textpairs.make_columns(data, train, *textpairs.vocabularies(data, train), seed=1)
    plan = textpairs.make_plan(data, pairs, seed=1, multiple=2)
    found = [batch_plan.make_batch(pairs, plan, step) for step in range(steps)]
    return found + [batch_plan.make_batch(pairs, plan, 3, [shard], 2) for shard in range(2)]


def not_read(folder) -> str:
    return refused(lambda: textpairs.read(read_from(DATA, folder)))


def equal(left, right) -> bool:
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])
    return True


# ------------------------------------------------------------------------------ text in a bucket


@ONE
def test_text_is_read_as_from_local_files(bucket, tmp_path):
    folder = files.as_path(bucket)
    lines = {"x.de": "ä b\r\nc\n", "x.en": "A B\nC", "x.tsv": "a\tb\td\nc\td\n"}
    for name, text in lines.items():
        (folder / name).write_text(text)
        (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        (tmp_path / name).write_text(text, newline="")
    for suffix in ("", ".gz"):
        for names in (("x.de", "x.en"), ("x.tsv",)):
            there = TextFiles(train=tuple(f"{bucket}/{name}{suffix}" for name in names))
            here = TextFiles(train=tuple(str(tmp_path / name) for name in names))
            assert readers.load(there, "train") == readers.load(here, "train")


def test_a_large_text_is_fetched_in_blocks(bucket, monkeypatch):
    monkeypatch.setattr(object_storage, "BLOCK", 1 << 20)
    path = files.as_path(bucket) / "large.tsv"
    rows = [f"source {number} {'x' * (number % 99)}\ttarget {number}" for number in range(60_000)]
    path.write_text("\n".join(rows))
    corpus, asked = TextFiles(train=(str(path),)), []
    kind = type(object_storage.file_system(path.scheme).open(str(path)))
    fetch = kind._fetch_range
    monkeypatch.setattr(kind, "_fetch_range", lambda self, *ends: asked.append(ends) or fetch(self, *ends))
    found = readers.stream(corpus, "train")
    next(found)
    assert len(asked) == 1 and path.stat().st_size > 3 << 20, "more than the first block is fetched"
    assert sum(1 for _ in found) == len(rows) - 1 and 3 <= len(asked) <= 6


@ONE
def test_what_cannot_be_read_is_one_line(bucket, outage, impatient, tmp_path):
    read = lambda *names: refused(lambda: readers.load(TextFiles(train=names), "train"))
    assert read(f"{bucket}/gone.tsv") == f"there is no file {bucket}/gone.tsv: correct data.corpus.train"
    assert "name a" not in read(f"{bucket}/gone.tsv") and "names no bucket" in read("gs://x")
    outage.write_text("403")
    assert read(f"{bucket}/secret.tsv").startswith(f"{bucket}/secret.tsv cannot be read (")
    outage.write_text("503")
    with pytest.raises(OSError, match=f"{bucket}/a.tsv"):
        readers.load(TextFiles(train=(f"{bucket}/a.tsv",)), "train")


def test_settings_name_text_and_prepared_folders_by_address(bucket, tmp_path):
    data = Data(TextFiles(train=(f"{bucket}/a/../x.de".replace("a/../", ""), "x.en")))
    found = config.resolve_paths(data, tmp_path)
    assert found.corpus.train == (f"{bucket}/x.de", str(tmp_path / "x.en"))
    assert config.resolve_paths(found, Path("/elsewhere")) == found and not config.missing_data(found)
    assert config.without_folders(found).corpus.train == ("x.de", "x.en")
    assert config.resolve_paths(Prepared(bucket.replace("//", "/")), tmp_path).folder == bucket
    local = refused(lambda: config.resolve_paths(config.Tfds("a", data_dir=bucket), tmp_path))
    assert local.startswith(f"{bucket} is not a local path, which is needed here: mount it")


# ---------------------------------------------------------------------------- prepared in a bucket


@ONE
@pytest.mark.parametrize("data", [DATA, MIXED], ids=["alone", "mixture"])
def test_a_prepared_folder_and_its_batches_are_those_of_a_local_one(bucket, tmp_path, data):
    local = prepare.prepare(data, tmp_path / "made", section=SECTION)
    there = prepare.prepare(data, bucket, section=SECTION)
    assert there[1:] == local[1:] and there.new and str(there.folder) == bucket
    assert contents(there.folder) == contents(local.folder)
    assert not prepare.prepare(data, bucket, section=SECTION).new
    assert equal(batches(read_from(data, bucket)), batches(read_from(data, tmp_path / "made")))
    packed = config.replace(data, packing=True)
    assert equal(batches(read_from(packed, bucket)), batches(read_from(packed, tmp_path / "made")))
    assert readers.load(Prepared(bucket), "dev") == readers.load(data.corpus, "dev")
    assert readers.labels(Prepared(bucket)) == readers.labels(data.corpus)


def test_a_batch_requests_the_ranges_of_its_own_rows(bucket, tmp_path, monkeypatch):
    made = prepare.prepare(DATA, bucket)
    found, local = (
        prepared_corpus.Records(bucket),
        prepared_corpus.Records(prepare.prepare(DATA, tmp_path / "x").folder),
    )
    ranges, asked = found._ids.ranges, []
    read = ranges._read
    monkeypatch.setattr(ranges, "_read", lambda *ends: asked.append(list(zip(*ends))) or read(*ends))
    for gap, rows, requests in [
        (0, [3, 90, 4, -1, 3], 2), (0, [0], 1), (0, [149, 148, 147], 1), (1 << 16, [3, 90, 4, -1], 1), (0, [-1, -1], 0),
    ]:  # fmt: skip
        monkeypatch.setattr(prepared_corpus, "GAP", gap)
        asked.clear()
        rows = np.array(rows)
        assert equal([found.batch(rows, (12, 12))], [local.batch(rows, (12, 12))])
        assert sum(map(len, asked)) == requests
        if gap == 0:
            real = set(rows[rows >= 0].tolist())
            bytes_asked = sum(end - start for ends in asked for start, end in ends)
            assert bytes_asked == sum(2 * int(local.lengths[row].sum()) for row in real)
    assert made.new


@ONE
def test_training_reads_by_range_waits_out_an_outage_and_ends_in_the_same_weights(
    bucket, tmp_path, outage, impatient, monkeypatch, capsys
):  # fmt: skip
    monkeypatch.setattr(object_storage, "SHORTEST", 0.1)
    prepare.prepare(DATA, f"{bucket}/made")
    read, requests, said = object_storage.Ranges._read, [], []

    def interrupted(self, starts, ends):
        """The storage refuses requests from the sixth batch on, until that was said."""
        requests.append(len(starts))
        if len(requests) == 6:
            outage.write_text("503" if bucket.startswith("gs") else "429")
        said.append(capsys.readouterr().out)
        if "cannot be read" in said[-1]:
            outage.unlink(missing_ok=True)
        return read(self, starts, ends)

    monkeypatch.setattr(object_storage.Ranges, "_read", interrupted)
    weights = []
    for data in (DATA, read_from(DATA, f"{bucket}/made")):
        tiny = Translation(
            "tiny", data=data, model=Luong(width=4, embedding_size=4, layers=1),
            train=Train(steps=12, warmup_steps=1, evaluate_every=0),
        )  # fmt: skip
        _, result = runs.train(tiny, tmp_path / f"run{len(weights)}")
        weights.append([np.asarray(leaf) for leaf in jax.tree.leaves(result.state.params)])
    assert all(np.array_equal(raw, made) for raw, made in zip(*weights, strict=True))
    text = "".join([*said, capsys.readouterr().out])
    assert text.count("cannot be read") == text.count("can be read again") == 1, text


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bucket", ["gs"], indirect=True)
def test_text_and_folder_in_a_bucket_are_prepared_by_command(bucket, tmp_path, workers):
    (files.as_path(bucket) / "pairs.tsv.gz").write_bytes(
        gzip.compress("".join(f"wort {n % 7}\tword {n % 7}\n" for n in range(90)).encode())
    )
    (tmp_path / "tiny.py").write_text(
        "from s2sjax.config import Data, TextFiles\nfrom s2sjax.tasks import Translation\n"
        f"experiment = Translation('tiny', data=Data(TextFiles(train=('{bucket}/pairs.tsv.gz',))))\n"
    )
    command = [sys.executable, "-m", "s2sjax.cli.main", "prepare", "tiny.py", "--workers", str(workers)]
    command += ["--out", f"{bucket}/made"]
    done = subprocess.run(command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"wrote {bucket}/made, 90 pairs" in done.stdout
    assert f"data.corpus = config.Prepared('{bucket}/made')" in done.stdout
    data = Data(TextFiles(train=(f"{bucket}/pairs.tsv.gz",)))
    assert equal(batches(data), batches(read_from(data, f"{bucket}/made")))


# ------------------------------------------------------------------------- whole or not at all


class Killed(BaseException):
    pass


def kill_at(monkeypatch, moment, data, folder):
    """A preparation that is killed before the request `moment` that changes an object. Returns all such requests."""
    calls, call, close = [], object_storage.ObjectPath._call, object_storage.Upload.close

    def count(what, path):
        calls.append(f"{what} {path.name}")
        if len(calls) == moment:
            raise Killed

    def counted(self, method, *arguments, **options):
        if method in ("pipe_file", "rm_file"):
            count(method, self)
        return call(self, method, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(object_storage.ObjectPath, "_call", counted)
        patch.setattr(object_storage.Upload, "close", lambda self: count("upload", self._path) or close(self))
        with contextlib.suppress(Killed):
            prepare.prepare(data, folder, section=SECTION)
    return calls


MOMENTS = {
    1: "unfinished.json", 5: "target.json", 9: "section-00000.ids", 10: "section-00000.npz", 13: "section-00001.npz",
    18: "starts.npy", 20: "lengths.npy", 21: "train.ids", 25: "prepared.json", 26: "section-00000.ids",
    29: "section-00001.npz", 32: "unfinished.json",
}  # fmt: skip
"""the requests before which a preparation is killed, and their objects"""


@ONE
@pytest.mark.parametrize(
    "moment", [pytest.param(at, marks=() if at in (10, 13, 20, 25, 29) else pytest.mark.slow) for at in MOMENTS]
)
def test_killed_at_any_request_it_is_no_prepared_folder_and_goes_on(bucket, tmp_path, monkeypatch, moment):
    folder = files.as_path(bucket)
    assert kill_at(monkeypatch, moment, DATA, folder)[-1].split()[1] == MOMENTS[moment]
    whole = [number for number in range(3) if prepare.read_section(folder, number)]
    if moment > 25:  # whole, but for the sections that nobody needs any more
        assert equal(batches(read_from(DATA, folder), 5), batches(DATA, 5))
    else:
        assert "is not prepared: run `s2sjax prepare" in not_read(folder)
    written, write = [], prepare.write_section
    monkeypatch.setattr(prepare, "write_section", lambda to, n, *rest: written.append(n) or write(to, n, *rest))
    assert prepare.prepare(DATA, folder, section=SECTION).new == (moment <= 25)
    assert written == ([] if moment > 25 else [number for number in range(3) if number not in whole])
    assert contents(folder) == contents(prepare.prepare(DATA, tmp_path / "made", section=SECTION).folder)


@ONE
def test_killed_for_real_it_goes_on(bucket, tmp_path):
    program = (
        "import os, signal, sys\nfrom s2sjax.config import Data, Synthetic\nfrom s2sjax.data import prepare\n"
        "prepare.CHUNK = 16\n"
        "copy = Synthetic('copy', train=150, dev=5, test=0, length=9, alphabet=4)\n"
        "def kill(stage, done):\n"
        "    if stage == 'writing' and done >= 140: os.kill(os.getpid(), signal.SIGKILL)\n"
        "prepare.prepare(Data(copy, buckets=((6, 6), (12, 12)), batch_tokens=96), sys.argv[1], 1, kill, section=64)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, bucket], env=child_environment(), timeout=120)
    folder = files.as_path(bucket)
    assert done.returncode == -9 and not (folder / "prepared.json").exists()
    assert [number for number in range(3) if prepare.read_section(folder, number)] == [0, 1]
    prepare.prepare(DATA, bucket, section=SECTION)
    assert contents(folder) == contents(prepare.prepare(DATA, tmp_path / "made", section=SECTION).folder)


def test_objects_of_others_are_not_touched(bucket, monkeypatch):
    folder = files.as_path(bucket)
    (folder / "thesis.tex").write_text("chapter 1")
    assert refused(lambda: prepare.prepare(DATA, bucket)) == f"{bucket} contains other files: choose another --out"
    assert contents(folder) == {"thesis.tex": b"chapter 1"}
    assert kill_at(monkeypatch, 6, DATA, f"{bucket}/made")
    (folder / "made/dev.jsonl").write_text("mine")
    words = refused(lambda: prepare.prepare(DATA, f"{bucket}/made", section=SECTION))
    assert words == f"{bucket}/made/dev.jsonl was not written by this preparation: choose another --out"
    assert (folder / "made/dev.jsonl").read_text() == "mine"
    prepare.prepare(DATA, f"{bucket}/two")
    other = config.replace(DATA, corpus=SORT)
    assert "contains another corpus: choose another --out" in refused(lambda: prepare.prepare(other, f"{bucket}/two"))


def saved(array) -> bytes:
    import io

    np.save(file := io.BytesIO(), array)
    return file.getvalue()


@pytest.mark.parametrize(
    "name, change, words",
    [
        ("lengths.npy", None, "lengths.npy is damaged ([Errno 2] No such file"),
        ("lengths.npy", lambda _: b"", "lengths.npy is damaged (No data left"),
        ("lengths.npy", lambda content: content[:-5], "lengths.npy is damaged ("),
        ("lengths.npy", lambda _: saved(np.ones((3, 2), np.int32)), "(3 pairs, not 150)"),
        ("lengths.npy", lambda _: saved(np.full((150, 2), 2, np.int32)), "train.ids is damaged ("),
        ("starts.npy", lambda _: saved(np.arange(150) * 7 - 90), "train.ids is damaged ("),
        ("train.ids", None, "train.ids is damaged ([Errno 2] No such file"),
        ("train.ids", lambda _: b"", "train.ids is damaged (0 ids, not "),
        ("train.ids", lambda content: content[:500], "train.ids is damaged (250 ids, not "),
        ("train.ids", lambda content: b"\0" * len(content), "train.ids is damaged (a pair does not end in <eos>)"),
        ("prepared.json", lambda _: b"{", "prepared.json is damaged (Expecting"),
        ("vocabulary/source.json", None, "the vocabulary"),
    ],
)
@pytest.mark.parametrize("bucket", ["gs"], indirect=True)
def test_what_is_damaged_is_named(bucket, name, change, words):
    path = prepare.prepare(DATA, bucket).folder / name
    content = path.read_bytes()
    path.unlink() if change is None else path.write_bytes(change(content))
    assert words in refused(lambda: batches(read_from(DATA, bucket)))


def test_what_is_damaged_during_training_is_named_and_not_waited_for(bucket):
    path = prepare.prepare(DATA, bucket).folder / "train.ids"
    records, content = prepared_corpus.Records(bucket), path.read_bytes()
    path.write_bytes(content[:10])
    last = np.array([149])
    assert "train.ids is damaged (" in refused(lambda: records.batch(last, (12, 12)))
    path.unlink()
    assert "train.ids is damaged ([Errno 2]" in refused(lambda: records.batch(last, (12, 12)))


@ONE
def test_an_error_while_reading_is_not_damage(bucket, outage, impatient):
    prepare.prepare(DATA, bucket)
    outage.write_text("503")
    with pytest.raises(OSError, match=bucket):
        prepared_corpus.Records(bucket)
