"""Getting and checking data sets: only what is missing, verified, in one piece, by one process at a time."""

import gzip
import hashlib
import io
import json
import multiprocessing
import os
import tarfile
import threading
import zipfile

import pytest

import s2sjax
from s2sjax.datasets import digests, store, table
from s2sjax.datasets.table import DataSet, File, Source
from s2sjax.errors import UserError

TRAIN, DEV = b"a\tb\n" * 500, b"c\td\n"
sha256 = lambda data: hashlib.sha256(data).hexdigest()


@pytest.fixture
def entry(host):
    """A table with one set: a file as it is, a packed one, and one that no experiment needs."""
    host.files |= {"/dev.tsv": DEV, "/train.gz": gzip.compress(TRAIN), "/test.tsv": b"t\n"}
    files = {
        "dev.tsv": {"url": "dev.tsv", "sha256": sha256(DEV), "size": len(DEV)},
        "text/train.tsv": {"url": "train.gz", "convert": "gunzip", "sha256": sha256(TRAIN)},
        "test.tsv": {"url": "test.tsv", "extra": True},
    }
    about = {"about": "letters", "licence": "CC0", "citation": "Me (2026). Letters.", "base": f"{host.url}/"}
    return {"mine": about | {"files": files}}


@pytest.fixture
def mine(entry) -> DataSet:
    return table.parse(entry, "test")["mine"]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def get(mine, said, patience):
    return lambda data_set=mine, **options: store.get(data_set, say=said.append, patience=patience, **options)


def test_a_set_is_made_and_described(get, mine, said, tmp_path, host):
    assert get() == tmp_path / "data/mine"
    assert (tmp_path / "data/mine/dev.tsv").read_bytes() == DEV
    assert (tmp_path / "data/mine/text/train.tsv").read_bytes() == TRAIN
    assert said == [
        "getting mine: letters (3 files, 0 kB to download)", "  licence: CC0", "  cite: Me (2026). Letters.",
        "wrote data/mine",
    ]  # fmt: skip
    record = json.loads((tmp_path / "data/mine/SOURCE.json").read_text())
    assert record["licence"] == "CC0" and record["files"]["dev.tsv"]["from"] == [f"{host.url}/dev.tsv"]
    assert os.listdir(tmp_path / "data/.downloads") == ["mine.lock"]
    assert store.check(mine).is_complete


def test_what_is_there_is_not_downloaded_again(get, host, said, tmp_path):
    get()
    host.requests.clear(), said.clear()
    (tmp_path / "data/mine/dev.tsv").unlink()
    get()
    assert host.paths() == ["/dev.tsv"] and said
    host.requests.clear(), said.clear()
    get(offline=True)
    assert not host.requests and not said


def test_a_changed_file_is_neither_used_nor_overwritten(get, mine, tmp_path):
    get()
    file = tmp_path / "data/mine/dev.tsv"
    file.write_text("my own\n")
    with pytest.raises(UserError, match=r"data/mine/dev.tsv is not the published file: move it away"):
        get()
    assert file.read_text() == "my own\n"
    state = store.check(mine)
    assert [each.path for each in state.differs] == ["dev.tsv"] and len(state.right) == 2
    (tmp_path / "data/mine/test.tsv").write_text("x")  # its hash is only in SOURCE.json
    assert len(store.check(mine).differs) == 2
    (tmp_path / "data/mine/SOURCE.json").unlink()
    assert [each.path for each in store.check(mine).unknown] == ["test.tsv"]


def test_offline_names_what_is_missing(get, monkeypatch, host):
    error = "data/mine lacks dev.tsv and 2 others, and nothing is downloaded offline: run s2sjax data get mine where"
    with pytest.raises(UserError, match=error):
        get(offline=True)
    monkeypatch.setenv("S2SJAX_OFFLINE", "1")
    with pytest.raises(UserError, match=error):
        get()
    monkeypatch.setenv("S2SJAX_OFFLINE", "0")
    get()


def test_a_folder_without_test_parts_is_complete_for_python(entry, mine, host, tmp_path, monkeypatch, capsys):
    """Such as a shared folder that cannot be written."""
    monkeypatch.setenv("S2SJAX_DATA", str(tmp_path / "shared"))
    home = tmp_path / "shared/mine/text"
    home.mkdir(parents=True)
    (home.parent / "dev.tsv").write_bytes(DEV)
    (home / "train.tsv").write_bytes(TRAIN)
    (tmp_path / "shared/sets.json").write_text(json.dumps(entry))
    assert s2sjax.get_data("mine") == s2sjax.get_data(mine) == home.parent
    assert not host.requests and capsys.readouterr().out == ""
    (home / "train.tsv").unlink()
    assert s2sjax.get_data("mine") == home.parent and set(host.paths()) == {"/train.gz", "/test.tsv"}
    assert "licence: CC0" in capsys.readouterr().out


def test_a_set_of_ones_own_in_python(host, tmp_path, get):
    """Its converter is any function of bytes."""
    host.files |= {"/a": b"x y", "/b": b"1 2"}
    rows = lambda a, b, sep: "".join(f"{x}{sep}{y}\n" for x, y in zip(a.decode().split(), b.decode().split())).encode()
    sources = Source((f"{host.url}/a",)), Source((f"{host.url}/none", f"{host.url}/b"))
    home = get(DataSet("own", "pairs", "CC0", "Me", (File("pairs.tsv", sources, rows, ("\t",)),)))
    assert (home / "pairs.tsv").read_text() == "x\t1\ny\t2\n"


@pytest.mark.parametrize("wrong", ["download", "result", "function"])
def test_nothing_wrong_is_ever_written(get, host, tmp_path, wrong):
    host.files["/a"] = b"good"
    digest = sha256(b"good")
    source = Source((f"{host.url}/a",), sha256=(sha256(b"other") if wrong == "download" else digest,))
    function = (lambda data: data.decode("ascii")[9]) if wrong == "function" else bytes.upper
    file = File("a", (source,), function, sha256=sha256(b"good"))
    error = {
        "download": r"its hash is not that of the published file \(4 bytes\)",
        "result": "has not the expected hash: correct its entry",
        "function": "IndexError: string index out of range",
    }[wrong]
    with pytest.raises(UserError, match=error):
        get(DataSet("own", "a", "b", "c", (file,)))
    home = tmp_path / "data/own"
    assert not home.exists() or not os.listdir(home)


def test_a_file_that_was_compressed_again_is_the_same(get, host, mine):
    host.files["/train.gz"] = gzip.compress(TRAIN, 1)
    get()
    assert store.check(mine).is_complete


def test_a_git_blob_is_verified(get, host):
    host.files["/a"] = b"hello\n"
    blob = "ce013625030ba8dba906f756967f9e9ca394464a"  # echo hello | git hash-object --stdin
    get(DataSet("own", "a", "b", "c", (File("a", (Source((f"{host.url}/a",), git_blob=blob),)),)))
    host.files["/a"] = b"hallo\n"
    with pytest.raises(UserError, match="its hash is not that"):
        get(DataSet("two", "a", "b", "c", (File("a", (Source((f"{host.url}/a",), git_blob=blob),)),)))


def tarred(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"repository-0123/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_many_files_of_one_archive(get, host, patience):
    """One digest of their names and hashes verifies them; those of other names are not looked at."""
    members = {"wavs/1_a_0.wav": b"0", "wavs/1_a_7.wav": b"7", "wavs/2_a_7.wav": b"27"}
    host.files |= {
        "/tar": tarred(members | {"README": b"r", "wavs/index.txt": b"i"}),
        "/names": b"1_a_0.wav\n1_a_7.wav\n",
    }
    named = Source((f"{host.url}/names",))
    listed = digests.listing({name: sha256(data) for name, data in list(members.items())[:2]})
    source = Source((f"{host.url}/tar",), content=listed, members="wavs/*.wav", names=(named,))
    files = (File("index.tsv", (source,), "fsdd_index", ("train",)), File("test.zip", (source,), "fsdd_zip", ("test",)))
    home = get(DataSet("own", "a", "b", "c", files))
    assert (home / "index.tsv").read_text() == "path\tspeaker\tdigit\ttake\n1_a_7.wav\ta\t1\t7\n"
    assert host.paths() == ["/names", "/tar"]
    with zipfile.ZipFile(home / "test.zip") as archive:
        assert archive.namelist() == ["1_a_0.wav"]
    assert digests.content(home / "test.zip") == digests.listing({"1_a_0.wav": sha256(b"0")})
    host.files["/tar"] = tarred(members | {"wavs/1_a_7.wav": b"changed"})
    with pytest.raises(UserError, match="its files have other hashes than the published"):
        get(DataSet("two", "a", "b", "c", files))
    host.files["/tar"] = b"<html>"
    with pytest.raises(UserError, match="it is no archive"):
        get(DataSet("three", "a", "b", "c", files))


def test_an_interrupted_set_keeps_what_it_has(get, host, answers, tmp_path):
    host.script["/train.gz"] = [answers.status(404)]
    with pytest.raises(UserError, match="404"):
        get()
    assert not (tmp_path / "data/mine").exists()
    get()
    assert host.paths().count("/dev.tsv") == 1


def test_a_part_that_no_experiment_needs_may_be_gone(get, host, said, mine, tmp_path, monkeypatch):
    del host.files["/test.tsv"]
    get()
    assert said[-1].startswith(
        "wrote data/mine, without test.tsv, which no experiment needs (cannot download test.tsv ("
    )
    assert [file.path for file in store.check(mine).missing] == ["test.tsv"]
    del said[:], host.files["/dev.tsv"]
    get()  # is tried again
    assert "without test.tsv" in said[-1]


def test_two_threads_get_a_set_once(get, host, tmp_path, mine, patience):
    begun, go = threading.Event(), threading.Event()

    def slow(host, handler, content):
        begun.set()
        go.wait(60)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    host.script["/dev.tsv"] = [slow]
    waiting = threading.Event()
    say = lambda line: waiting.set() if line.startswith("waiting for another process that gets mine") else None
    first = threading.Thread(target=get)
    first.start()
    assert begun.wait(60)
    second = threading.Thread(target=store.get, args=(mine,), kwargs={"say": say, "patience": patience})
    second.start()
    assert waiting.wait(60)
    go.set()
    first.join(60), second.join(60)
    assert sorted(host.paths()) == ["/dev.tsv", "/test.tsv", "/train.gz"] and store.check(mine).is_complete


@pytest.mark.slow
def test_four_processes_get_a_set_at_once(host, mine, tmp_path):
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        assert set(pool.map(store.get, [mine] * 4)) == {tmp_path / "data/mine"}
    assert sorted(host.paths()) == ["/dev.tsv", "/test.tsv", "/train.gz"] and store.check(mine).is_complete


def test_a_folder_that_cannot_be_written_is_one_line(get, tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(
        UserError, match=r"cannot write data \((File exists|Not a directory)\): .* or set S2SJAX_DATA to another folder"
    ):
        get()


def test_a_set_without_an_address(get):
    with pytest.raises(UserError, match="ddtp cannot be fetched: it has no public address"):
        get("ddtp")
