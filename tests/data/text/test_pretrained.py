"""Vocabularies of pretrained models give the ids of transformers, which references/make_tokenizers.py has stored."""

import io
import json
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import references

from s2sjax import config
from s2sjax.core.special_tokens import EOS, PAD, SOS, SPECIALS, UNK
from s2sjax.data import pairs, text
from s2sjax.data.examples import Example
from s2sjax.errors import UserError

CASES = [
    ("t5-spm", "source"), ("t5", "source"), ("pegasus-spm", "source"), ("pegasus", "source"), ("mbart50-spm", "source"),
    ("mbart50", "source"), ("mbart50", "target"), ("nllb", "source"), ("nllb", "target"), ("m2m100", "source"),
    ("m2m100", "target"), ("marian", "source"), ("marian", "target"), ("bart", "source"), ("bart", "target"),
    ("byt5", "source"), ("umt5-spm", "source"), ("umt5", "source"), ("marian-two", "source"), ("marian-two", "target"),
]  # fmt: skip
SIDES: tuple[Literal["source"], Literal["target"]] = ("source", "target")
LANGUAGES = {"mbart50": ("de_DE", "fr_XX"), "nllb": ("deu_Latn", "fra_Latn"), "m2m100": ("de", "fr")}
each_case = pytest.mark.parametrize(("name", "side"), CASES)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folders of the tokenizers, and cases.json."""
    folder = tmp_path_factory.mktemp("tokenizers")
    with tarfile.open(Path(references.__file__).with_name("tokenizers.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def stored(root):
    """What transformers makes of each text: (name, side) -> list of (text, ids or None, text of the ids)."""
    saved = json.loads((root / "cases.json").read_text())
    assert [(case["folder"], case["side"]) for case in saved["cases"]] == CASES
    zipped = (zip(saved["texts"], case["ids"], case["decoded"]) for case in saved["cases"])
    return dict(zip(CASES, map(list, zipped)))


@pytest.fixture(scope="module")
def opened(root):
    """open(name, side) -> the vocabulary, read once."""
    found = {}

    def open_folder(name, side="source"):
        if (name, side) not in found:
            languages = LANGUAGES.get(name.removesuffix("-spm"), (None, None))
            found[name, side] = text.PretrainedVocabulary.from_folder(root / name, side, *languages)
        return found[name, side]

    return open_folder


@pytest.fixture
def copy(root, tmp_path):
    """copy(name, file=change of its JSON, ...) -> a folder of its own."""

    def make(name, **changes):
        folder = shutil.copytree(root / name, tmp_path / name, dirs_exist_ok=True)
        for stem, changed in changes.items():
            path = folder / f"{stem}.json"
            before = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps({**before, **changed}))
        return folder

    return make


def error_of(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400 and not message.endswith(".")
    return message


def refusal(folder, side="source", *languages):
    message = error_of(text.PretrainedVocabulary.from_folder, folder, side, *languages)
    assert message.startswith(f"{folder}: ")
    return message.removeprefix(f"{folder}: ")


# ------------------------------------------------------------------------------ the law of tokenizers


@each_case
def test_ids_and_text_are_those_of_transformers(name, side, opened, stored):
    vocabulary, compared = opened(name, side), 0
    for line, theirs, decoded in stored[name, side]:
        ours = [*vocabulary.encode(line), EOS]
        if theirs is None or (not name.startswith("marian") and vocabulary.split_tag(line)[0]):
            continue  # transformers finds special tokens in this text; or it begins with a tag, which we read
        assert vocabulary.foreign[ours].tolist() == theirs, line
        assert vocabulary.decode([*ours, *ours, PAD]) == decoded, line
        compared += 1
    assert compared >= 180


@each_case
def test_no_text_has_a_special_token(name, side, opened, stored):
    """Neither a stored text nor one that spells any piece at all, such as the placeholder of an id without one."""
    vocabulary = opened(name, side)
    front = [*vocabulary.begin, *vocabulary.encode("")[len(vocabulary.begin) :]]
    assert len(front) <= 1
    never = vocabulary._silent - {UNK}
    assert {PAD, EOS, *range(len(SPECIALS), len(SPECIALS) + len(vocabulary.tags))} <= never
    lines = [line for line, _, _ in stored[name, side]] + [f"a {piece}" for piece in vocabulary.all_pieces[:600]]
    for line in lines:
        if not vocabulary.split_tag(line)[0]:
            ids = vocabulary.encode(line)
            assert ids[: len(front)] == front and not never.intersection(ids[len(front) :]), line


@each_case
def test_ids_are_a_permutation(name, side, opened, root):
    vocabulary = opened(name, side)
    size = json.loads((root / name / "config.json").read_text())["vocab_size"]
    assert vocabulary.size == size == len({*vocabulary.all_pieces}) and vocabulary.foreign.dtype == np.int32
    assert np.array_equal(np.sort(vocabulary.foreign), np.arange(size))
    first = len(SPECIALS) + len(vocabulary.tags)
    assert (np.diff(vocabulary.foreign[first:]) > 0).all()
    assert [vocabulary.all_pieces[index] for index in (PAD, EOS, UNK)] == ["<pad>", "<eos>", "<unk>"]
    assert tuple(vocabulary.all_pieces[len(SPECIALS) : first]) == vocabulary.tags
    assert all(piece and piece.isprintable() for piece in vocabulary.pieces(range(size)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("bart", [1, 0, 2, 3]), ("t5", [0, 3, 1, 2]), ("pegasus", [0, 106, 1, 105]), ("mbart50", [1, 0, 2, 3])],
)
def test_the_first_four_ids(name, expected, opened):
    """Where the model has no <s>, id 1 is the first piece that is not special. It is read and written like others."""
    vocabulary = opened(name)
    assert vocabulary.foreign[:4].tolist() == expected
    if name in ("t5", "pegasus"):
        assert vocabulary.all_pieces[SOS] == "▁" and vocabulary.encode("a b").count(SOS) == 2
        assert vocabulary.decode(vocabulary.encode("a b")) == "a b"
    assert opened("marian").all_pieces[SOS] not in opened("marian").tags


# ----------------------------------------------------------------------------- languages and templates


def test_a_text_begins_with_its_language(opened):
    source, target = opened("nllb"), opened("nllb", "target")
    assert (source.default_tag, target.default_tag, len(source.tags)) == ("deu_Latn", "fra_Latn", 202)
    french = len(SPECIALS) + target.tags.index("fra_Latn")
    assert target.forced_begin == (french,) and source.forced_begin == ()
    assert target.encode("")[:1] == [french] == source.encode("fra_Latn")
    assert source.encode("fra_Latn abc") == [french, *source.encode("abc")[1:]]
    assert french not in source.encode("abc fra_Latn")
    assert opened("m2m100").default_tag == "__de__" and len(opened("m2m100").tags) == 100


def test_lines_need_no_tag_where_there_is_a_default(opened, root):
    named = lambda line, tag=None, of="m2m100": text.with_tag(opened(of), line, tag, "line 7")
    assert named("ab") == "ab" and named("ab", "__fr__") == "__fr__ ab" and named("__fr__ ab") == "__fr__ ab"
    assert "unknown tag 'fr'" in error_of(named, "ab", "fr")
    assert "line 7 does not begin with a tag: begin it with one of >>deu<<, >>fra<<" in error_of(
        lambda: named("ab", of="marian")
    )
    assert named(">>fra<<ab", of="marian") == ">>fra<<ab" and named("ab", ">>fra<<", "marian") == ">>fra<< ab"
    french = text.PretrainedVocabulary.from_folder(root / "marian", "source", None, "fra")
    assert french.encode("ab") == french.encode(">>fra<< ab") == opened("marian").encode(">>fra<<ab")
    assert french.decode(french.encode("ab")) == "ab"


def test_what_a_text_and_an_output_begin_with(opened, copy):
    bart = opened("bart", "target")
    assert bart.begin == bart.forced_begin == (SOS,) and opened("bart").forced_begin == ()
    folder = copy("bart", generation_config={"forced_bos_token_id": None}, config={"forced_bos_token_id": 0})
    assert text.PretrainedVocabulary.from_folder(folder, "target").forced_begin == ()
    (folder / "generation_config.json").unlink()
    assert text.PretrainedVocabulary.from_folder(folder, "target").forced_begin == (SOS,)
    assert opened("t5").begin == opened("t5").forced_begin == ()
    plain = text.Vocabulary("characters", "ab")
    assert (plain.begin, plain.forced_begin, plain.default_tag) == ((), (), None)


def test_languages_that_are_missing_or_wrong(root):
    m2m, bart, marian = root / "m2m100", root / "bart", root / "marian"
    assert refusal(m2m).startswith(
        "the model has 100 languages: name that of the sources by --source-language, one of af, "
    )
    assert "no target language 'deu_Latn'" in refusal(m2m, "target", "de", "deu_Latn")
    assert "no source language 'deu_Latin': did you mean deu_Latn?" in refusal(
        root / "nllb", "source", "deu_Latin", "x"
    )
    assert refusal(bart, "source", "de") == "the model has no languages to choose from: leave out 'de'"
    assert refusal(marian, "source", "de", "fra") == "the model finds out the source language: leave it out"
    assert "no target language 'ron'" in refusal(marian, "source", None, "ron")


def test_two_vocabularies_of_a_marian(root, opened):
    """The language is chosen in the text to translate, whose vocabulary alone has languages."""
    source, target = (text.PretrainedVocabulary.from_folder(root / "marian-two", each, None, "fra") for each in SIDES)
    assert ({*source.tags}, target.tags, target.default_tag) == ({">>deu<<", ">>fra<<"}, (), None)
    assert source.encode("ab") == opened("marian-two").encode(">>fra<< ab") and target.forced_begin == ()
    assert {*source.all_pieces} != {*target.all_pieces} and source.files == target.files
    assert "no target language 'ron'" in refusal(root / "marian-two", "source", None, "ron")


def test_the_language_that_the_files_name(copy):
    folder = copy("mbart50", tokenizer_config={"src_lang": "cs_CZ", "tgt_lang": None})
    assert text.PretrainedVocabulary.from_folder(folder, "source").default_tag == "cs_CZ"
    assert text.PretrainedVocabulary.from_folder(folder, "source", "de_DE").default_tag == "de_DE"
    assert "name that of the targets" in refusal(folder, "target")


# ------------------------------------------------------------------------------------- text in, text out


def test_unknown_pieces_are_named(opened):
    assert opened("t5-spm").unknown("a ☃☃ b") == opened("t5").unknown("a ☃☃ b") == ["☃☃"]
    assert opened("marian").unknown(">>zzz<< ☃") == [">>zzz<<", "☃"]
    assert opened("bart").unknown("☃") == opened("byt5").unknown("☃") == []
    assert "☃" not in opened("m2m100").decode(opened("m2m100").encode("a ☃"))


def test_a_lone_surrogate_is_a_replacement_character(opened):
    for name in ("t5-spm", "t5", "byt5", "bart"):
        assert opened(name).encode("a\ud800🙂") == opened(name).encode("a\ufffd🙂")


def test_ids_without_a_piece_are_not_decoded(opened):
    vocabulary = opened("m2m100")
    empty = [index for index, piece in enumerate(vocabulary.all_pieces) if piece.startswith("<id ")]
    assert len(empty) == 8 and vocabulary.decode([*empty, *vocabulary.encode("ab")]) == "ab"


# ------------------------------------------------------------------------------------------ the file


@each_case
def test_saved_and_loaded_is_the_same(name, side, opened, stored, tmp_path):
    vocabulary = opened(name, side)
    for other in (text.Vocabulary("words", "ab"), vocabulary):
        other.save(tmp_path, "v")
    assert [path.name for path in tmp_path.iterdir()] == ["v.pretrained"]
    loaded = text.load(tmp_path, "v")
    assert type(loaded) is text.PretrainedVocabulary and loaded.fingerprint == vocabulary.fingerprint
    assert loaded.files == vocabulary.files and loaded.all_pieces == vocabulary.all_pieces
    assert (loaded.default_tag, loaded.begin, loaded.forced_begin) == (
        vocabulary.default_tag, vocabulary.begin, vocabulary.forced_begin,
    )  # fmt: skip
    for line, _, _ in stored[name, side]:
        assert loaded.encode(line) == vocabulary.encode(line)
    content = (tmp_path / "v.pretrained").read_bytes()
    loaded.save(tmp_path, "v")
    assert (tmp_path / "v.pretrained").read_bytes() == content
    text.Vocabulary("words", "ab").save(tmp_path, "v")
    assert [path.name for path in tmp_path.iterdir()] == ["v.json"]


def test_the_original_files_are_kept(opened, root):
    for name in ("marian", "bart"):
        there = {path.name: path.read_bytes() for path in (root / name).iterdir()}
        assert opened(name).files == there
    assert len({opened(name, side).fingerprint for name, side in CASES}) == len(CASES)


def rezipped(content, change):
    """The zip after `change` of its dict of members."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    change(members)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        for name, each in members.items():
            file.writestr(name, each)
    return written.getvalue()


def test_a_damaged_file_is_named(opened, tmp_path):
    opened("marian").save(tmp_path, "v")
    path = tmp_path / "v.pretrained"
    whole = path.read_bytes()
    middle = len(whole) // 2
    change = lambda **members: rezipped(whole, lambda there: there.update(members))
    spec = json.loads(zipfile.ZipFile(path).read("spec.json"))
    damages = [
        b"", b"nothing", whole[:-1], whole[:middle], whole[:middle] + bytes(9) + whole[middle + 9 :],
        change(**{"../outside": b""}), change(**{"code.py": b""}), change(**{"config.json": b"[]"}),
        change(**{"config.json": b"{" * 99_999}), change(**{"vocab.json": b'{"a": 1, "b": 1}'}),
        change(**{"vocab.json": b'{"a": 99999999999}'}), change(**{"source.spm": b"model"}),
        rezipped(whole, lambda there: there.pop("source.spm")), rezipped(whole, lambda there: there.pop("spec.json")),
        change(**{"spec.json": b"{}"}), change(**{"spec.json": json.dumps({**spec, "side": "left"}).encode()}),
    ]  # fmt: skip
    for damage in damages:
        path.write_bytes(damage)
        assert error_of(text.load, tmp_path, "v") == (
            f"the vocabulary {path} is damaged: copy it again from the original run"
        )
    path.write_bytes(change(**{"spec.json": json.dumps({**spec, "format": 2}).encode()}))
    assert "newer version" in error_of(text.load, tmp_path, "v")


def test_a_file_that_grows_when_it_is_read_is_refused(opened, tmp_path, monkeypatch):
    opened("byt5").save(tmp_path, "v")
    monkeypatch.setattr("s2sjax.data.text.pretrained.MOST_BYTES", 1000)
    assert "is damaged" in error_of(text.load, tmp_path, "v")


# ---------------------------------------------------------------------------------- folders that are refused


def test_a_folder_without_a_file(copy, tmp_path):
    assert refusal(tmp_path) == (
        "no files of a pretrained model are there: give a folder with config.json and a tokenizer"
    )
    for name, file in [("marian", "source.spm"), ("marian", "vocab.json"), ("bart", "tokenizer.json"),
                       ("bart", "config.json"), ("m2m100", "sentencepiece.bpe.model")]:  # fmt: skip
        folder = copy(name)
        (folder / file).unlink()
        languages = LANGUAGES.get(name, ())
        assert refusal(folder, "source", *languages).startswith(f"{file} is missing: copy it from the original model, ")


def test_families_that_are_refused(copy):
    assert refusal(copy("mbart25")).startswith("mBART-25 writes the language after </s>, ")
    assert refusal(copy("bart", config={"model_type": "pix2struct"})).startswith(
        "model_type 'pix2struct' of config.json"
    )
    assert "legacy_behaviour" in refusal(copy("nllb", tokenizer_config={"legacy_behaviour": True}))
    folder = copy("marian", tokenizer_config={"separate_vocabs": True})
    assert refusal(folder, "target").startswith("target_vocab.json is missing: copy it")
    folder = copy("marian")
    (folder / "target_vocab.json").write_bytes((folder / "vocab.json").read_bytes())
    assert refusal(folder, "source").startswith("target_vocab.json is there, but tokenizer_config.json does not say ")


def test_a_tokenizer_of_another_model(copy):
    assert "more pieces than the 200 of vocab_size" in refusal(copy("t5", config={"vocab_size": 200}))
    for size in (None, "200", True, -1, 10**12):
        assert refusal(copy("t5", config={"vocab_size": size})).startswith(f"vocab_size in config.json is {size!r}")
    copied = copy("t5", config={"vocab_size": 448, "pad_token_id": 7})
    assert refusal(copied) == "pad_token_id in config.json is 7, but 0 in the tokenizer: make them equal"
    assert "forced_bos_token_id is 999" in refusal(
        copy("bart", generation_config={"forced_bos_token_id": 999}), "target"
    )


def test_a_tokenizer_json_that_is_damaged(copy):
    folder = copy("bart")
    path = folder / "tokenizer.json"
    whole = json.loads(path.read_text())
    for damage in ("", "{", "[]", '{"model": 1}', '{"model": {}}', json.dumps({**whole, "model": None})):
        path.write_text(damage)
        assert "damaged: copy" in refusal(folder)
    path.write_text(json.dumps({**whole, "pre_tokenizer": {"type": "Evil"}}))
    assert refusal(folder).startswith("tokenizer.json cannot be read (")
    path.write_text(json.dumps({**whole, "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}))
    assert "only BPE, Unigram and WordPiece can be read" in refusal(folder)
    path.write_text(json.dumps({**whole, "post_processor": None}))
    assert "does not end a text with exactly" in refusal(folder)


def test_a_charsmap_that_is_damaged(copy):
    """`tokenizers` must not end the process by a panic of Rust."""
    folder = copy("t5")
    whole = json.loads((folder / "tokenizer.json").read_text())
    for charsmap in ("", "AAAA", "/////w==", whole["normalizer"]["precompiled_charsmap"][:2000]):
        whole["normalizer"]["precompiled_charsmap"] = charsmap
        (folder / "tokenizer.json").write_text(json.dumps(whole))
        assert refusal(folder).startswith("tokenizer.json cannot be read (")


def test_without_the_library_the_extra_is_named(root, copy, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    folder = copy("bart", tokenizer={"unread": True})  # the last files are remembered
    message = error_of(text.PretrainedVocabulary.from_folder, folder, "source")
    assert message.endswith("is not installed: pip install tokenizers")
    assert text.PretrainedVocabulary.from_folder(root / "marian", "source").size > 300


# ------------------------------------------------------------------------------------------- training data


def test_pairs_of_a_pretrained_model(opened):
    """Both sides may split text differently, and share the ids."""
    examples = [Example("aé", ("aé b",))]
    settings = config.Text("pretrained")
    data = config.Data(source=settings, target=settings, shared=True)
    for name in ("marian", "nllb", "t5"):
        source, target = opened(name), opened(name, "target")
        assert source.fingerprint != target.fingerprint and source.all_pieces == target.all_pieces
        pairs.check_vocabularies(data, examples, source, target)
    columns = pairs.encode(examples, opened("nllb"), opened("nllb", "target"))
    assert columns.ragged["target"].flat[0] == opened("nllb", "target").forced_begin[0]
    both = (opened("nllb"), opened("t5"))
    assert "differ: unset it" in error_of(pairs.check_vocabularies, data, examples, *both)
    plain = config.Data(source=config.Text("subwords"), target=config.Text("subwords"))
    message = error_of(pairs.check_vocabularies, plain, examples, opened("t5"), opened("t5"))
    assert "has unit pretrained, but data.source.unit is subwords" in message


def test_a_pretrained_vocabulary_is_not_learned():
    data = config.Data(source=config.Text("pretrained"), target=config.Text("characters"))
    assert "set init of the experiment to an imported run" in error_of(text.build_both, data, [Example("a", ("b",))])
    assert "only subwords can be sampled" in error_of(lambda: config.Text("pretrained", sampling=0.1))


def test_pieces_of_another_model_are_found_by_name(opened):
    t5, pegasus = opened("t5"), opened("pegasus")
    rows = text.rows_in(t5, pegasus)
    assert rows is not None and (rows[:4] == [0, 1, 2, 3]).all() and (rows >= 0).sum() > 250
    assert [pegasus.all_pieces[row] for row in rows if row >= 0] == [
        piece for piece, row in zip(t5.all_pieces, rows) if row >= 0
    ]
    assert text.rows_in(t5, text.Vocabulary("words", "ab")) is None
