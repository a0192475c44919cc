"""Text is encoded and decoded, and vocabularies are saved and loaded."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s2sjax import config
from s2sjax.core import special_tokens
from s2sjax.data import text
from s2sjax.errors import UserError

LINES = ["the cat sat on the mat", "the dog sat on the log", "a  cat, a dog!", " thé end "] * 2
unhurried = settings(deadline=None, max_examples=50)  # test machines may be slow
KNOWN = "".join(sorted({c for line in LINES for c in line}))


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def subwords(request):
    return text.Subwords.train(LINES, 28, request.param)


def one_of_each():
    return [
        text.build(config.Text("characters"), LINES),
        text.build(config.Text("words"), LINES),
        text.build(config.Text("subwords", size=28), LINES),
    ]


def error_of(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_most_frequent_first_and_ties_in_alphabetical_order():
    vocabulary = text.build(config.Text("words"), ["b d c", "b a", "c b <eos> <eos> <eos>"])
    assert vocabulary.pieces(range(vocabulary.size)) == ["<pad>", "<sos>", "<eos>", "<unk>", "b", "c", "a", "d"]


def test_a_piece_seen_too_seldom_is_unknown():
    vocabulary = text.build(config.Text("characters", min_count=2), ["abba", "c"])
    assert vocabulary.encode("abc") == [4, 5, special_tokens.UNK]
    assert vocabulary.decode(vocabulary.encode("abc")) == "ab<unk>"


def test_the_places_of_a_sample_are_known_without_the_lines(monkeypatch):
    monkeypatch.setattr(text.vocabulary, "BLOCK", 64)
    for total, size in ((0, 3), (3, 3), (4, 3), (1000, 1), (1000, 70), (50, 1000)):
        assert text.sampled_places(total, size).tolist() == text.sample(range(total), size)


def test_a_vocabulary_is_built_from_the_counts_of_parts():
    lines = ["<2de> b d c", "b <2de>", "c <eos> b", "E\u0301 é"]
    for unit in ("words", "characters"):
        options = config.Text(unit, min_count=2)
        counts = [text.count_pieces(options, part, ("<2de>",)) for part in (lines[:1], lines[1:])]
        built = text.build_from_counts(options, counts[0] + counts[1], ("<2de>",))
        assert built.fingerprint == text.build(options, lines, ("<2de>",)).fingerprint


def test_decoding_stops_at_eos_and_skips_pad_and_sos():
    for vocabulary in one_of_each():
        ids = vocabulary.encode("the cat")
        row = np.array(
            [special_tokens.SOS, *ids, special_tokens.PAD, special_tokens.EOS, *ids, special_tokens.PAD], np.int32
        )
        assert vocabulary.decode(row) == "the cat"
        assert vocabulary.decode([]) == "" and vocabulary.decode([special_tokens.EOS]) == ""


def test_no_input_spells_a_special():
    for vocabulary in one_of_each():
        for special in special_tokens.SPECIALS:
            assert not {special_tokens.PAD, special_tokens.SOS, special_tokens.EOS} & set(
                vocabulary.encode(f"the {special} cat")
            )


def test_one_printable_piece_for_each_id(subwords):
    characters = text.build(config.Text("characters"), ["a b\t"])
    assert characters.pieces([*characters.encode("a b\t?"), special_tokens.EOS]) == [
        "a",
        "▁",
        "b",
        r"\t",
        "<unk>",
        "<eos>",
    ]
    for vocabulary in [*one_of_each(), subwords]:
        pieces = vocabulary.pieces(np.arange(vocabulary.size))
        assert len(pieces) == vocabulary.size and all(piece and piece.isprintable() for piece in pieces)
        assert pieces[:4] == list(special_tokens.SPECIALS)


@unhurried
@given(line=st.text(KNOWN))
def test_characters_and_subwords_round_trip(subwords, line):
    for vocabulary in [text.build(config.Text("characters"), LINES), subwords]:
        assert vocabulary.decode(vocabulary.encode(line)) == line


@unhurried
@given(words=st.lists(st.sampled_from(["the", "cat", "sat", "mat"])))
def test_words_round_trip(words):
    vocabulary = text.build(config.Text("words"), LINES)
    assert vocabulary.decode(vocabulary.encode("  ".join(words))) == " ".join(words)


def test_any_text_at_all_gives_known_ids(subwords):
    for vocabulary in [*one_of_each(), subwords]:
        ids = vocabulary.encode("Ωmega \u2028 日本語 \0 \t ▁ 🙂")
        assert special_tokens.UNK in ids and set(ids) <= set(range(vocabulary.size))


# --------------------------------------------------------------------------------- Unicode forms

COMPOSED, DECOMPOSED = "caf\u00e9 au lait", "cafe\u0301 au lait"


@pytest.mark.parametrize("unit", ["characters", "words", "subwords"])
def test_composed_and_decomposed_text_have_the_same_ids(unit, tmp_path):
    """Whichever of them the vocabulary was built from, sampled or not, and after the vocabulary was saved."""
    options = config.Text(unit, size=13)
    one, other = (text.build(options, [line] * 5) for line in (COMPOSED, DECOMPOSED))
    assert one.fingerprint == other.fingerprint
    one.save(tmp_path, "v")
    for vocabulary in (one, text.load(tmp_path, "v")):
        assert vocabulary.encode(COMPOSED) == vocabulary.encode(DECOMPOSED)
        assert vocabulary.decode(vocabulary.encode(DECOMPOSED)) == COMPOSED
    if isinstance(one, text.Subwords):
        draw = one.sampler("unigram", 0.5)
        assert draw(COMPOSED, random.Random(3)) == draw(DECOMPOSED, random.Random(3))
    raw = text.build(config.replace(options, normalize="none"), [COMPOSED] * 5)
    assert special_tokens.UNK not in raw.encode(COMPOSED) and special_tokens.UNK in raw.encode(DECOMPOSED)
    assert raw.fingerprint != one.fingerprint


def test_forms_of_a_text():
    line = "\ufb01 \u2460 E\u0301"  # the ligature fi, a one in a circle
    forms = [text.normalized(line, form) for form in text.NORMALIZE]
    assert forms == [line, "\ufb01 \u2460 É", "fi 1 É", "fi 1 é"]
    tagged = text.build(config.Text(normalize="nfkc_lower"), ["<2DE> Haus"], tags=["<2DE>"])
    assert tagged.encode("<2DE> HAUS") == tagged.encode("<2DE> haus")
    assert tagged.encode("<2DE> Haus")[0] == 4  # tags are not normalized


def test_unknown_pieces_are_named():
    found = [vocabulary.unknown("the cät sat on ω") for vocabulary in one_of_each()]
    assert found == [["ä", "ω"], ["cät", "ω"], ["ä", "ω"]]


def test_training_subwords_is_deterministic_and_silent(capfd):
    first, second = (text.Subwords.train(LINES, 28) for _ in range(2))
    assert first.fingerprint == second.fingerprint and first.size == 28
    assert first.fingerprint != text.Subwords.train(LINES, 27).fingerprint
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_too_many_subwords_become_as_many_as_the_text_has(algorithm, capfd):
    largest = text.Subwords.train(LINES, 5000, algorithm)
    said = f"5,000 subwords are too many for this text: learning {largest.size}\n"
    assert capfd.readouterr() == (said, "") and 20 < largest.size < 100
    assert text.Subwords.train(LINES, largest.size, algorithm).fingerprint == largest.fingerprint
    assert text.Subwords.train(iter(LINES), largest.size + 1, algorithm).fingerprint == largest.fingerprint
    capfd.readouterr()

    message = error_of(text.Subwords.train, LINES, 8, algorithm)
    smallest = int(message.split("set size to ")[1].split()[0])
    assert text.Subwords.train(LINES, smallest, algorithm).size == smallest
    assert capfd.readouterr() == ("", "")


def test_a_vocabulary_of_nothing_is_refused():
    assert error_of(text.build, config.Text("subwords"), []).startswith("there is no text to learn subwords from")
    assert error_of(text.build, config.Text("words"), []).startswith("none of 0 words is frequent enough")
    assert "lower min_count 9" in error_of(text.build, config.Text("characters", min_count=9), ["abc"])


# ------------------------------------------------------------------------------------ run folder


def test_saved_and_loaded_is_the_same(tmp_path):
    for vocabulary in one_of_each():  # one after the other under one name: the last one saved counts
        vocabulary.save(tmp_path / "run", "source")
        loaded = text.load(tmp_path / "run", "source")
        assert type(loaded) is type(vocabulary) and loaded.fingerprint == vocabulary.fingerprint
        assert loaded.encode("the mat ω") == vocabulary.encode("the mat ω") and loaded.size == vocabulary.size
        assert len(list((tmp_path / "run").iterdir())) == 1


def test_fingerprints_tell_vocabularies_apart():
    prints = [vocabulary.fingerprint for vocabulary in one_of_each()]
    prints += [text.Vocabulary("words", "ab").fingerprint, text.Vocabulary("characters", "ab").fingerprint]
    prints += [text.Vocabulary("characters", "ba").fingerprint]
    assert len(set(prints)) == len(prints)


def test_a_missing_vocabulary_is_named(tmp_path):
    message = error_of(text.load, tmp_path, "source")
    assert str(tmp_path / "source.json") in message and "No such file" in message
    assert str(tmp_path / "source.model") in error_of(text.Subwords.load, tmp_path, "source")


def test_a_damaged_vocabulary_is_named(tmp_path):
    vocabulary = text.Vocabulary("words", ["a", "b"])
    vocabulary.save(tmp_path, "v")
    path = tmp_path / "v.json"
    whole = path.read_text()
    fewer = json.dumps({**json.loads(whole), "pieces": ["a"]})
    other = whole.replace("words", "werds"), whole.replace("nfc", "nfx")
    for damage in ("", "[]", "null", "\ufeff", whole[:-3], fewer, *other):
        path.write_text(damage)
        assert error_of(text.load, tmp_path, "v") == (
            f"the vocabulary {path} is damaged: copy it again from the original run"
        )


def test_a_subword_model_cut_short_anywhere_is_noticed(tmp_path, capfd):
    path = tmp_path / "v.model"
    text.Subwords.train(LINES, 28).save(tmp_path, "v")
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert f"{path} is damaged" in error_of(text.load, tmp_path, "v")
    path.write_bytes(b"something else altogether")
    assert f"{path} is damaged" in error_of(text.load, tmp_path, "v")
    assert capfd.readouterr() == ("", "")
