r"""Sentences with a tag for each word, and perhaps one label for the whole: files, vocabularies and columns.

    play jazz please <tab> O B-genre O <tab> PlayMusic         words, their tags, the intent (optional)

Words and tags are separated by blanks. Only blanks and tabs separate words: a no-break space is part of a word.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.tokens import EOS, SOS, SPECIALS, UNK
from s2sjax.data import Split, in_share, sources, split_of, tables, text
from s2sjax.data.columns import Aligned, Columns, Ragged

FORM = ("words", "equally many tags")


class Sentence(NamedTuple):
    words: tuple[str, ...]
    tags: tuple[str, ...]
    """empty if they are not known"""
    intent: str = ""


def split_words(line: str) -> tuple[str, ...]:
    return tuple(filter(None, re.split("[ \t]", line)))


def sentence(where: str, fields: Sequence[str], intents: bool = False) -> Sentence:
    """Checked; `where` is for errors. With `intents`, there must be one."""
    require(len(fields) in (2, 3), f"{where} has {len(fields)} columns: write {', '.join(FORM)}, and perhaps an intent")
    words, tags = split_words(fields[0]), split_words(fields[1])
    require(len(words) > 0, f"{where} has no words: remove it")
    require(len(words) == len(tags), f"{where} has {len(words)} words and {len(tags)} tags: give each word one tag")
    intent = fields[2].strip() if len(fields) == 3 else ""
    require(
        not intents or intent != "", f"{where} has no intent: write one in the third column, or set model.intent to 0"
    )
    return Sentence(words, tags, intent)


def read(corpus: config.Corpus, split: Split, intents: bool) -> list[Sentence]:
    """The sentences of a split; with `intents`, each must have one."""
    if isinstance(corpus, config.TaggedFiles):
        return _read_files(corpus, split, intents)
    # Of any other corpus, an example's source has the words, its first target the tags, its second the intent.
    name = type(corpus).__name__
    named = ((f"{name}.{split}, example {n}", e) for n, e in enumerate(sources.load(corpus, split), start=1))
    return [sentence(where, (example.source, *example.targets), intents) for where, example in named]


def _read_files(corpus: config.TaggedFiles, split: Split, intents: bool) -> list[Sentence]:
    held_out = split == "dev" and corpus.dev_percent > 0
    name = "train" if held_out else split
    require(getattr(corpus, name) != "", f"data.corpus.{name} is empty: name a TSV file of words and tags")
    path = Path(corpus.folder, getattr(corpus, name))
    rows = tables.read_tsv(path, FORM, "data.corpus.folder", corpus.origin, more="the intent if any")
    found = [sentence(row.where, row.fields, intents) for row in rows]
    if split != "test" and corpus.dev_percent > 0:
        part = lambda sentence: split_of(" ".join(sentence.words).lower(), corpus.dev_percent, 0)
        found = [sentence for sentence in found if part(sentence) == split]
        require(len(found) > 0, f"{path} has no sentence for {split}: change data.corpus.dev_percent")
    if split == "train":
        found = [s for s in found if in_share(" ".join(s.words).lower(), corpus.train_percent)]
        require(len(found) > 0, f"{path} has no sentence left: raise data.corpus.train_percent")
    return found


def fingerprint(sentences: Iterable[Sentence]) -> str:
    """SHA-256 of the words, tags and intents."""
    digest = hashlib.sha256()
    for each in sentences:
        digest.update("\t".join([" ".join(each.words), " ".join(each.tags), each.intent, "\n"]).encode())
    return digest.hexdigest()


# -------------------------------------------------------------------------------- vocabularies


def label_vocabulary(labels: Iterable[str]) -> text.Vocabulary:
    """Tags or intents, the most frequent first: label i has the id i + len(SPECIALS)."""
    counts = Counter(labels)
    return text.Vocabulary("words", sorted(counts, key=lambda label: (-counts[label], label)), normalize="none")


def labels_of(vocabulary: text.Vocabulary) -> list[str]:
    return vocabulary.all_pieces[len(SPECIALS) :]


def with_words_of(vocabulary: text.Vocabulary, other: text.AnyVocabulary) -> text.Vocabulary:
    """The words, and behind them those of another vocabulary: words, or subwords that are whole words."""
    require(other.unit != "characters", "the other run reads characters, and has no words: leave out --init-assets")
    begin = len(SPECIALS) + len(other.tags)
    pieces = other.all_pieces[begin:]
    if other.unit == "subwords":
        pieces = [piece[1:] for piece in pieces if piece.startswith("▁")]
    known = {*labels_of(vocabulary), ""}
    normal = [piece for piece in pieces if text.normalized(piece, vocabulary.normalize) == piece]
    words = [*labels_of(vocabulary), *(piece for piece in normal if piece not in known)]
    return text.Vocabulary("words", words, (), vocabulary.normalize)


def ids_of(vocabulary: text.Vocabulary, pieces: Iterable[str]) -> list[int]:
    """The id of each whole piece, <unk> for those that are not in the vocabulary."""
    known = {piece: index for index, piece in enumerate(labels_of(vocabulary), start=len(SPECIALS))}
    return [known.get(text.normalized(piece, vocabulary.normalize), UNK) for piece in pieces]


def spell(alphabet: text.Vocabulary, words: Sequence[str], length: int) -> np.ndarray:
    """[words, length + 2]: the characters of each word between <sos> and <eos>, then 0.

    Of a word with more than `length` characters the first and the last half: "internationalization", 6 -> "intion".
    """
    begin = (length + 1) // 2
    found = np.zeros((len(words), length + 2), np.uint16 if alphabet.size <= 2**16 else np.int32)
    for row, word in zip(found, words):
        spelt = word if len(word) <= length else word[:begin] + word[len(word) - (length - begin) :]
        ids = alphabet.encode(spelt)[:length]
        row[: len(ids) + 2] = [SOS, *ids, EOS]
    return found


# ------------------------------------------------------------------------------------- columns


class Vocabularies(NamedTuple):
    words: text.Vocabulary
    characters: text.Vocabulary
    tags: text.Vocabulary
    intents: text.Vocabulary | None


def columns(sentences: Sequence[Sentence], known: Vocabularies, length: int) -> Aligned:
    """words and tags as ids, characters [*, length + 2]; of the whole sentence its intent. Unknown ones are <unk>."""
    distinct = sorted({word for each in sentences for word in each.words})
    number = {word: index for index, word in enumerate(distinct)}
    flat = np.array([number[word] for each in sentences for word in each.words], np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(each.words) for each in sentences])]).astype(np.int64)
    tags = ids_of(known.tags, (tag for each in sentences for tag in each.tags or ("",) * len(each.words)))
    ragged = {
        "words": np.array(ids_of(known.words, distinct), np.int32)[flat],
        "characters": spell(known.characters, distinct, length)[flat],
        "tags": np.array(tags, np.int32),
    }
    dense = {}
    if known.intents is not None:
        dense["intent"] = np.array(ids_of(known.intents, (each.intent for each in sentences)), np.int32)
    rows = np.arange(len(sentences), dtype=np.int32)
    return Aligned(
        Columns({name: Ragged(each, offsets) for name, each in ragged.items()}, dense, rows, (len(sentences),))
    )
