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


def tarred(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"repository-0123/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


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
        "getting mine: letters (3 files, 0.0 kB to download)", "  licence: CC0", "  cite: Me (2026). Letters.",
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


@pytest.mark.parametrize("wrong", ["download", "result", "function", "type", "name"])
def test_nothing_wrong_is_ever_written(get, host, tmp_path, wrong):
    host.files["/a"] = b"good"
    digest = sha256(b"good")
    source = Source((f"{host.url}/a",), sha256=(sha256(b"other") if wrong == "download" else digest,))
    functions = {"function": lambda data: data.decode("ascii")[9], "type": bytes.decode, "name": "gunzp"}
    function = functions.get(wrong, bytes.upper)
    file = File("a", (source,), function, sha256=sha256(b"good"))
    error = {
        "download": r"its hash is not that of the published file \(4 bytes\)",
        "result": "has not the expected hash: correct its entry",
        "function": "IndexError: string index out of range",
        "type": r"cannot make a from .*TypeError: the converter returns str, not bytes\): correct its entry",
        "name": r"there is no converter 'gunzp': did you mean 'gunzip'\?",
    }[wrong]
    with pytest.raises(UserError, match=error):
        get(DataSet("own", "a", "b", "c", (file,)))
    home = tmp_path / "data/own"
    assert not home.exists() or not os.listdir(home)


GOOD = tarred({"a.txt": b"good"})
GIT_BLOB = hashlib.sha1(b"blob %d\0" % len(GOOD) + GOOD).hexdigest()
text_of = lambda files: files["a.txt"]
source_of = lambda url, **fields: (Source((url,), **fields),)
WAYS = {
    "a file": lambda url: File("a", source_of(url), sha256=sha256(GOOD)),
    "what is in a file": lambda url: File("a", source_of(url), content=sha256(gzip.decompress(GOOD))),
    "a file of a source": lambda url: {"from": "s", "sha256": sha256(GOOD)},
    "upper case": lambda url: {"from": "s", "sha256": sha256(GOOD).upper()},
    "what is in an address": lambda url: {"url": url, "content": sha256(gzip.decompress(GOOD))},
    "unpacked": lambda url: File("a", source_of(url), "gunzip", sha256=sha256(gzip.decompress(GOOD))),
    "an archive": lambda url: File("a", source_of(url, members="*", sha256=(sha256(GOOD),)), text_of),
    "an archive of Git": lambda url: File("a", source_of(url, members="*", git_blob=GIT_BLOB), text_of),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("page", [b"<html>Log in</html>", tarred({"a.txt": b"other"})], ids=["page", "archive"])
def test_another_page_is_never_written_where_a_hash_is_known(get, host, tmp_path, way, page):
    """Wherever the hash is: at the file or at its download, of the bytes or of what is in them."""
    made = WAYS[way](f"{host.url}/a")
    if isinstance(made, dict):
        about = {"about": "a", "licence": "b", "citation": "c", "sources": {"s": {"url": f"{host.url}/a"}}}
        own = table.parse({"own": about | {"files": {"a": made}}}, "test")["own"]
    else:
        own = DataSet("own", "a", "b", "c", (made,))
    host.files["/a"] = page
    for asked in (1, 2):
        with pytest.raises(UserError, match="its hash is not that of the published file"):
            get(own)
        assert not (tmp_path / "data/own").exists() and len(host.requests) == asked
    host.files["/a"] = GOOD
    get(own)
    assert store.check(own).right == list(own.files)
    assert not set(get(own).iterdir()) ^ {tmp_path / "data/own/a", tmp_path / "data/own/SOURCE.json"}


@pytest.mark.parametrize("known", ["the result", "nothing", "an archive"])
def test_a_wrong_download_without_a_hash_is_fetched_again(get, host, tmp_path, known):
    """By the next command: perhaps the first answer was the page of a hotel's network."""
    good = {"an archive": GOOD}.get(known, b"1 2")
    host.files["/a"] = b"<html>Log in</html>"
    source = Source((f"{host.url}/a",), members="*" if known == "an archive" else "")
    function = text_of if source.members else lambda data: b"%d" % sum(map(int, data.split()))
    if known == "the result":
        function = bytes.upper
    own = DataSet(
        "own", "a", "b", "c", (File("a", (source,), function, sha256=sha256(good) * (known == "the result")),)
    )
    with pytest.raises(UserError):
        get(own)
    host.files["/a"] = good
    get(own)
    assert host.paths() == ["/a", "/a"] and store.check(own).is_complete


def test_a_download_without_a_hash_is_kept_when_its_file_cannot_be_written(get, host, tmp_path):
    """Such as on a full disk."""
    host.files["/a"] = b"x"
    own = DataSet("own", "a", "b", "c", (File("a", source_of(f"{host.url}/a")),))
    (tmp_path / "data/own/a").mkdir(parents=True)
    with pytest.raises(UserError, match="cannot write data/own/a"):
        get(own)
    (tmp_path / "data/own/a").rmdir()
    (tmp_path / "data/own/SOURCE.json").mkdir()
    with pytest.raises(UserError, match=r"cannot write data/own/SOURCE.json"):
        get(own)
    assert host.paths() == ["/a"] and sorted(os.listdir(tmp_path / "data/own")) == ["SOURCE.json", "a"]


def test_a_right_download_is_kept_when_another_one_is_wrong(get, host):
    host.files |= {"/a": b"1", "/b": b"x"}
    sources = Source((f"{host.url}/a",), sha256=(sha256(b"1"),)), Source((f"{host.url}/b",))
    own = DataSet("own", "a", "b", "c", (File("sum", sources, lambda a, b: b"%d" % (int(a) + int(b))),))
    with pytest.raises(UserError, match="ValueError"):
        get(own)
    host.files["/b"] = b"2"
    assert (get(own) / "sum").read_bytes() == b"3" and host.paths() == ["/a", "/b", "/b"]


def test_a_hash_may_be_in_upper_case(get, host, entry):
    files = entry["mine"]["files"]
    for file in files.values():
        file["sha256"] = file.get("sha256", sha256(b"t\n")).upper()
    blob = hashlib.sha1(b"blob %d\0" % len(DEV) + DEV).hexdigest().upper()
    entry["mine"]["sources"] = {
        "several": {"url": "dev.tsv", "sha256": [sha256(DEV).upper(), "0" * 64]},
        "content": {"url": "train.gz", "content": sha256(TRAIN).upper()},
        "git": {"url": "dev.tsv", "git_blob": blob},
    }
    files |= {f"{name}.tsv": {"from": name} for name in entry["mine"]["sources"]}
    own = table.parse(entry, "test")["mine"]
    get(own)
    host.requests.clear()
    get(own)
    assert len(store.check(own).right) == 6 and not host.requests


def test_a_file_that_cannot_be_replaced_leaves_no_draft(get, tmp_path):
    for name in ("dev.tsv", "text/train.tsv"):  # one is copied, and one is converted
        (tmp_path / "data/mine" / name).mkdir(parents=True)
        with pytest.raises(UserError, match=rf"cannot write data/mine/{name} \(Is a directory\)"):
            get()
        left = [path.name for path in (tmp_path / "data/mine").rglob("*") if path.is_file()]
        assert set(left) <= {"dev.tsv", "SOURCE.json"}
        (tmp_path / "data/mine" / name).rmdir()
    get()


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o2775])
def test_whoever_can_write_in_a_shared_folder_can_get_other_sets(get, tmp_path, mode):
    """Without the sticky bit, with which Linux may refuse to open the lock of another user."""
    before = os.umask(0o077)
    try:
        (tmp_path / "data").mkdir()
        (tmp_path / "data").chmod(mode)
        get()
    finally:
        os.umask(before)
    mode_of = lambda path: (tmp_path / "data" / path).stat().st_mode & 0o7777
    assert mode_of(".downloads") == mode & 0o2777 and mode_of(".downloads/mine.lock") == mode & 0o666


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


def test_a_part_that_no_experiment_needs_may_be_damaged(get, host, said, tmp_path):
    """The files that its entry lists after it are made all the same."""
    host.files["/damaged.gz"] = b"no gzip"
    damaged = File("test", source_of(f"{host.url}/damaged.gz"), "gunzip", extra=True)
    own = DataSet("own", "a", "b", "c", (damaged, File("dev", source_of(f"{host.url}/dev.tsv"))))
    assert (get(own) / "dev").read_bytes() == DEV and not (tmp_path / "data/own/test").exists()
    assert said[-1].startswith("wrote data/own, without test, which no experiment needs (cannot make test from ")
    host.files["/damaged.gz"] = gzip.compress(b"t")
    assert (get(own) / "test").read_bytes() == b"t"


def test_what_files_need_that_could_not_be_made_is_kept(get, host, answers, tmp_path):
    """And nothing else: the next command continues with it."""
    host.files |= {"/list": b"a", "/big": b"b" * 5000, "/dev": DEV}
    host.script["/big"] = [answers.breaks_after(1000), answers.status(403)]
    a, b, c = (Source((f"{host.url}/{name}",)) for name in ("list", "big", "dev"))
    join = lambda *parts: b"".join(parts)
    files = File("dev", (c, a), join), File("test", (c, b), join, extra=True), File("both", (a,))
    own = DataSet("own", "a", "b", "c", files)
    get(own)
    (partial,) = (tmp_path / "data/.downloads/own").glob("*-big.partial")
    kept = sorted(path.name[9:] for path in partial.parent.iterdir())
    assert kept == ["big.partial", "big.partial.json", "dev"] and partial.stat().st_size == 1000
    host.requests.clear()
    get(own)
    assert host.paths() == ["/big"] and host.requests[0][1]["Range"] == "bytes=1000-"
    assert store.check(own).missing == [] and os.listdir(tmp_path / "data/.downloads") == ["own.lock"]


def test_the_list_of_an_archives_members_is_kept_with_it(get, host, answers, tmp_path):
    host.files |= {"/list": b"a.txt", "/tar": GOOD, "/dev": DEV}
    host.script["/tar"] = [answers.status(404)]
    named = Source((f"{host.url}/list",))
    test = File("test", (Source((f"{host.url}/tar",), members="*", names=(named,)),), text_of, extra=True)
    own = DataSet("own", "a", "b", "c", (File("dev", source_of(f"{host.url}/dev")), test))
    get(own)
    host.requests.clear()
    assert (get(own) / "test").read_bytes() == b"good" and host.paths() == ["/tar"]


def test_a_busy_host_is_left_for_the_rest_of_a_set(get, host, other_host, answers, waits):
    host.files["/dev"] = DEV
    paths = [f"/test{n}" for n in range(9)]
    other_host.script |= {path: [answers.status(429)] * 3 for path in paths}
    extra = [File(path[1:], source_of(f"{other_host.url}{path}"), extra=True) for path in paths]
    get(DataSet("own", "a", "b", "c", (File("dev", source_of(f"{host.url}/dev")), *extra)))
    assert len(waits) == 2 and other_host.paths() == ["/test0"] * 3


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


@pytest.mark.parametrize("record", ["[]", '{"files": []}', '{"files": {"dev.tsv": 5}}', "{"])
def test_a_record_that_was_edited_does_no_harm(get, mine, tmp_path, record):
    (get() / "SOURCE.json").write_text(record)
    assert len(store.check(mine).right) == 2 and [file.path for file in store.check(mine).unknown] == ["test.tsv"]


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
