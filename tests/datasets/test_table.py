"""The table is complete and consistent; mistakes in a user's table are named."""

import json
import re
from pathlib import Path

import pytest
from conftest import refused

import s2sjax
from s2sjax.config import paths
from s2sjax.datasets import folder, table
from s2sjax.datasets.table import File, Source
from s2sjax.errors import UserError
from s2sjax.runs.experiment_file import load_experiment

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
ENTRY = {"about": "a", "licence": "CC0", "citation": "c"}


@pytest.mark.parametrize("name", table.all_sets())
def test_every_set_is_described_and_every_file_is_verified(name):
    data_set = table.find(name)
    assert data_set.about and data_set.licence and len(data_set.citation) > 40
    assert data_set.files and bool(data_set.note) == (name == "ddtp")
    for file in data_set.files:
        assert file.sources or data_set.note
        for source in file.sources:
            assert source.size > 0 and all(url.startswith(("https://", "http://d2l-data")) for url in source.url)
            assert source.sha256 or source.content or source.git_blob
            commits = {re.search(r"[0-9a-f]{40}", url) for url in source.url if "amazonaws" not in url}
            assert None not in commits  # an address that never changes
        digests = [file.sha256, file.content, *(d for s in file.sources for d in (*s.sha256, s.content))]
        assert all(re.fullmatch(r"([0-9a-f]{64})?", digest) for digest in digests)
    assert len({file.path for file in data_set.files}) == len(data_set.files)


def test_every_file_of_every_experiment_is_in_the_table(monkeypatch):
    monkeypatch.chdir(EXPERIMENTS.parent)
    monkeypatch.setenv("S2SJAX_DATA", "/nowhere")
    used = set()
    for file in sorted(EXPERIMENTS.glob("*.py")):
        if "\nexperiment = " not in file.read_text(encoding="utf-8"):
            continue
        found = list(paths._paths(load_experiment(file), ()))
        for path in filter(lambda path: path.startswith("/nowhere"), found):
            data_set, inner = table.owner(path)
            assert not inner or inner in {each.path for each in data_set.files if not each.extra}, path
            assert re.search("has no such file", table.missing(path)) is None
            used.add(data_set.name)
    assert used >= {"multi30k", "ptb", "tatoeba", "fsdd", "flickr8k", "ddtp", "hansards", "ett", "cmudict"}


def test_experiments_name_data_sets_and_no_other_folder():
    for file in EXPERIMENTS.rglob("*.py"):
        assert "../data" not in file.read_text(encoding="utf-8"), file


def test_a_wrong_name_has_a_right_one():
    with pytest.raises(UserError, match="there is no data set 'multi3k': did you mean 'multi30k'"):
        table.find("multi3k")
    with pytest.raises(UserError, match="there is no data set 'zzzz': s2sjax data list names them"):
        table.find("zzzz")


def test_a_missing_file_says_what_to_do(monkeypatch, tmp_path):
    error = (
        "data:ptb/ptb.train.txt is not in data/: run s2sjax data get ptb, or set S2SJAX_DATA to the folder that has it"
    )
    assert table.missing(tmp_path / "data/ptb/ptb.train.txt") == error
    assert "did you mean data:ptb/ptb.train.txt?" in table.missing("data/ptb/train.txt")
    assert "it has no public address" in table.missing("data/ddtp/en-de.dev.tsv.gz")
    assert table.missing("data/mine/a.tsv") == "" and table.missing("elsewhere/ptb/ptb.train.txt") == ""
    assert table.missing("data") == "" and table.missing("data/ptb/*.txt") == ""
    (tmp_path / "data/ptb").mkdir(parents=True)
    assert table.missing("data/ptb") == "" and table.missing("data/ptb/ptb.valid.txt")


def test_paths_of_the_python_api(monkeypatch, tmp_path):
    monkeypatch.setenv("S2SJAX_DATA", str(tmp_path / "shared"))
    file = tmp_path / "shared/tatoeba/deu.train.tsv"
    with pytest.raises(UserError, match="run s2sjax data get tatoeba"):
        s2sjax.data_path("tatoeba/deu.train.tsv")
    with pytest.raises(UserError, match="did you mean 'tatoeba'"):
        s2sjax.data_path("tatoba/deu.train.tsv")
    file.parent.mkdir(parents=True)
    file.write_text("a\tb\n")
    assert s2sjax.data_path("tatoeba/deu.train.tsv") == s2sjax.data_path("data:tatoeba/deu.train.tsv") == file


def test_the_users_own_table_is_in_the_data_folder(tmp_path):
    (tmp_path / "data").mkdir()
    own = {"mine": ENTRY | {"base": ["https://a.org/", "https://b.org/"], "files": {
        "train.tsv": {"url": "t.gz", "convert": "gunzip", "sha256": "ab"},
        "dev.tsv": {"url": ["dev", "https://c.org/dev"], "size": 5},
    }}}  # fmt: skip
    (tmp_path / "data/sets.json").write_text(json.dumps(own))
    train, dev = table.find("mine").files
    unpacked = Source(("https://a.org/t.gz", "https://b.org/t.gz"), content="ab")
    assert train == File("train.tsv", (unpacked,), "gunzip", sha256="ab")
    assert dev.sources[0].url == ("https://a.org/dev", "https://b.org/dev", "https://c.org/dev")
    assert table.missing("data/mine/dev.tsv").endswith(
        "run s2sjax data get mine, or set S2SJAX_DATA to the folder that has it"
    )


def of_file(**fields):
    return ENTRY | {"files": {"a": {"url": "https://x"} | fields}}


def of_source(**fields):
    return ENTRY | {"sources": {"s": {"url": "https://x"} | fields}}


@pytest.mark.parametrize(
    "entry, error",
    [
        ({}, "'about' is missing"),
        (ENTRY | {"flies": {}}, "the data set has no field 'flies'"),
        (ENTRY | {"files": {"a": {"url": "x"}}}, "'x' is no address: write https://"),
        (ENTRY | {"files": {"a": {"url": "ftp://x"}}}, "'ftp://x' is no address"),
        (ENTRY | {"files": {"a": {}}}, "'' is no address"),
        (ENTRY | {"files": {"../a": {"url": "https://x"}}}, "the path ../a must be below"),
        (ENTRY | {"files": {"a": {"url": "https://x", "convert": "gunzp"}}}, "did you mean 'gunzip'"),
        (ENTRY | {"files": {"a": {"from": "b"}}}, "there is no source 'b'"),
        (ENTRY | {"files": {"a": {"from": "b"}}, "sources": {"c": {"url": "https://x"}}}, "did you mean 'c'"),
        ("text", "the data set has no field 'text'"),
        (ENTRY | {"files": {"": {"url": "https://x"}}}, "the path  must be below"),
        (ENTRY | {"files": {".": {"url": "https://x"}}}, "the path . must be below"),
        (of_file(url="https://"), "'https://' is no address"),
        (of_file(url="http://[x/a"), "'http://[x/a' is no address"),
        (of_file(url="http://x:port/a"), "'http://x:port/a' is no address"),
        (of_file(**{"from": "s"}) | of_source(members="*"), "a is made from several files: name the function"),
        (of_file(**{"from": ["s", "s"]}) | of_source(), "a is made from several files: name the function"),
        (of_source(each="gunzp"), "there is no converter 'gunzp': did you mean 'gunzip'?"),
    ],
)
def test_a_mistake_in_a_table_is_named(entry, error):
    assert error in refused(lambda: table.parse({"mine": entry}, "sets.json"))


@pytest.mark.parametrize(
    "what, name, values, kind",
    [
        *(("the data set", name, (5, None, ["x"]), "a text") for name in ("about", "licence", "citation", "note")),
        ("the data set", "base", (5, None, [], [5]), "a text or a list of texts"),
        ("the data set", "files", (["a"], None, "a"), "an object of names and entries"),
        ("the data set", "sources", (["a"], None, "a"), "an object of names and entries"),
        ("a", "url", (5, None, [], {}, [["https://x"]]), "a text or a list of texts"),
        ("a", "from", (5, None, [], {}, [{}]), "a text or a list of texts"),
        ("a", "size", ("12", None, -5, 1.5, True), "a whole number"),
        ("a", "extra", ("no", 1, None), "true or false"),
        ("a", "convert", (5, None, [], {"a": 1}, [5], ["unzip", ["x"]]), "the name of a function, or a list of it"),
        *(("a", name, (5, None, ["x"]), "a text") for name in ("sha256", "content", "git_blob")),
        ("a source", "url", (5, None, []), "a text or a list of texts"),
        ("a source", "size", ("12", -5), "a whole number"),
        ("a source", "sha256", (5, None, [5]), "a text"),
        ("a source", "names", (5, None, []), "a text or a list of texts"),
        *(("a source", name, (5, None, ["x"]), "a text") for name in ("content", "git_blob", "members", "each")),
    ],
)
def test_a_field_of_another_type_is_named(what, name, values, kind):
    for value in values:
        entry = {"a": of_file, "a source": of_source}.get(what, lambda **fields: ENTRY | fields)(**{name: value})
        error = refused(lambda entry=entry: table.parse({"mine": entry}, "sets.json"))
        assert error.startswith(f"sets.json, mine: {name!r} of {what} is {value!r}: it must be {kind}")


def test_other_mistakes_in_a_table(tmp_path):
    with pytest.raises(UserError, match="must map names to data sets"):
        table.parse([], "sets.json")
    with pytest.raises(UserError, match="the name of a data set is the name of its folder"):
        table.parse({"a/b": ENTRY}, "sets.json")
    for text in ("{", "[" * 200_000, "\ufeff{}"):
        (tmp_path / "sets.json").write_text(text)
        with pytest.raises(UserError, match=r"sets.json is not a table of data sets"):
            table.read_table(tmp_path / "sets.json")


def test_names_may_be_one_text():
    sources = {"list": {"url": "https://t"}, "s": {"url": "https://s", "members": "*", "names": "list"}}
    file = {"from": "s", "convert": "hansards_train"}
    (found,) = table.parse({"mine": ENTRY | {"sources": sources, "files": {"a": file}}}, "test")["mine"].files
    assert found.sources[0].names == (Source(("https://t",)),)


def test_the_folder(monkeypatch, tmp_path):
    assert folder.data_folder() == tmp_path / "data"
    assert folder.resolve("data:a/b") == str(tmp_path / "data/a/b")
    assert folder.resolve("../data/a") == "../data/a"
    monkeypatch.setenv("S2SJAX_DATA", "~/sets")
    assert folder.resolve("data:a") == str(Path.home() / "sets/a")
    monkeypatch.setenv("S2SJAX_DATA", "~nouser/sets")
    assert folder.resolve("data:a") == str(tmp_path / "~nouser/sets/a")


def test_a_folder_with_two_dots_and_its_files_are_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("S2SJAX_DATA", "x/../../sets")
    assert folder.data_folder() == tmp_path.parent / "sets"
    for path in (
        folder.resolve("data:ptb/ptb.train.txt"),
        "../sets/ptb/ptb.train.txt",
        "../x/../sets/ptb/ptb.train.txt",
    ):
        assert "run s2sjax data get ptb" in table.missing(path)
    assert table.owner("~nouser/a") is None and table.missing("../sets/../ptb/ptb.train.txt") == ""
