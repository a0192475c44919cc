r"""Sentences with a tag for each word and an optional label (intent): files, vocabularies and columns.

    play jazz please <tab> O B-genre O <tab> PlayMusic         words, their tags, the intent (optional)

Only blanks and tabs separate words and tags: a no-break space is part of a word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.special_tokens import CLS, EOS, SOS, SPECIALS, UNK
from s2sjax.data import text
from s2sjax.data.batching.columns import Aligned, Columns, Ragged
from s2sjax.data.corpora import readers, text_files
from s2sjax.data.examples import Split, in_share, split_of
from s2sjax.tasks.tagging.settings import TaggedFiles

FORM = ("words", "equally many tags")


class Sentence(NamedTuple):
    """A sentence with its tags and intent."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    """a tag for each word; empty if they are unknown"""
    intent: str = ""


def split_words(line: str) -> tuple[str, ...]:
    return tuple(filter(None, re.split("[ \t]", line)))


def sentence(where: str, fields: Sequence[str], intents: bool = False) -> Sentence:
    """Parses and checks a sentence. `where` is for error messages. `intents`: whether it must have an intent."""
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
    """Reads the sentences of a split. `intents`: whether each must have an intent."""
    if isinstance(corpus, TaggedFiles):
        return _read_files(corpus, split, intents)
    # In other corpora, the source has the words, the first target the tags, and the second target the intent.
    located = readers.located(corpus, split)
    found = [sentence(where, (example.source, *example.targets), intents) for where, example in located]
    require(len(found) > 0, f"the corpus has no {split} sentences: give some, or change data.corpus")
    return found


def _read_files(corpus: TaggedFiles, split: Split, intents: bool) -> list[Sentence]:
    held_out = split == "dev" and corpus.dev_percent > 0
    name = "train" if held_out else split
    require(getattr(corpus, name) != "", f"data.corpus.{name} is empty: name a TSV file of words and tags")
    path = config.as_path(corpus.folder) / getattr(corpus, name)
    rows = text_files.read_tsv(path, FORM, "data.corpus.folder", corpus.origin, more="the intent if any")
    found = [sentence(row.where, row.fields, intents) for row in rows]
    if split != "test" and corpus.dev_percent > 0:
        part = lambda sentence: split_of(" ".join(sentence.words).lower(), corpus.dev_percent, 0)
        found = [sentence for sentence in found if part(sentence) == split]
        require(len(found) > 0, f"{path} has no sentence for {split}: change data.corpus.dev_percent")
    if split == "train":
        found = [s for s in found if in_share(" ".join(s.words).lower(), corpus.train_percent)]
        require(len(found) > 0, f"{path} has no sentence left: raise data.corpus.train_percent")
    return found


# -------------------------------------------------------------------------------- vocabularies


def label_vocabulary(labels: Iterable[str]) -> text.Vocabulary:
    """The vocabulary of tags or intents, the most frequent first: label i has the id i + len(SPECIALS)."""
    counts = Counter(labels)
    return text.Vocabulary("words", sorted(counts, key=lambda label: (-counts[label], label)), normalize="none")


def labels_of(vocabulary: text.Vocabulary) -> list[str]:
    return vocabulary.all_pieces[len(SPECIALS) :]


def with_words_of(vocabulary: text.Vocabulary, other: text.AnyVocabulary) -> text.Vocabulary:
    """Appends the words of another vocabulary: its words, or its subwords that begin a word."""
    require(other.unit != "characters", "the other run uses characters, not words: leave out --init-assets")
    begin = len(SPECIALS) + len(other.tags)
    pieces = other.all_pieces[begin:]
    if other.unit == "subwords":
        pieces = [piece[1:] for piece in pieces if piece.startswith("▁")]
    known = {*labels_of(vocabulary), ""}
    normal = [piece for piece in pieces if text.normalized(piece, vocabulary.normalize) == piece]
    words = [*labels_of(vocabulary), *(piece for piece in normal if piece not in known)]
    return text.Vocabulary("words", words, (), vocabulary.normalize)


def ids_of(vocabulary: text.Vocabulary, pieces: Iterable[str]) -> list[int]:
    """The id of each whole piece, or <unk> if the vocabulary lacks it."""
    known = {piece: index for index, piece in enumerate(labels_of(vocabulary), start=len(SPECIALS))}
    return [known.get(text.normalized(piece, vocabulary.normalize), UNK) for piece in pieces]


def spell(alphabet: text.Vocabulary, words: Sequence[str], length: int) -> np.ndarray:
    """The characters of each word between <sos> and <eos>, padded with 0 to [words, length + 2].

    Only the first and last half of `length` characters of a longer word: "internationalization", 6 -> "intion".
    """
    begin = (length + 1) // 2
    found = np.zeros((len(words), length + 2), np.uint16 if alphabet.size <= 2**16 else np.int32)
    for row, word in zip(found, words):
        spelt = word if len(word) <= length else word[:begin] + word[len(word) - (length - begin) :]
        ids = alphabet.encode(spelt)[:length]
        row[: len(ids) + 2] = [SOS, *ids, EOS]
    return found


# ------------------------------------------------------------------------------------- columns


def subword_columns(
    sentences: Sequence[Sentence], vocabulary: text.AnyVocabulary, known: Mapping[str, text.Vocabulary]
) -> Aligned:
    """The columns source, starts and tags, and the intent if any.

    source   [CLS] ▁play ▁ja zz <eos>    subwords; [CLS] if the vocabulary has it
    starts   2 3                         number of the first subword of each word, from 1
    tags     O B-genre
    """
    blank = " " if vocabulary.unit == "pretrained" else ""  # some of those tell a word from the rest of one by a blank
    distinct = {word for each in sentences for word in each.words}
    ids = {word: vocabulary.encode(blank + word) or [UNK] for word in distinct}
    cls = text.mark(vocabulary, CLS)
    begin = [cls] if cls >= 0 else []
    rows = [[*begin, *(index for word in each.words for index in ids[word])] for each in sentences]
    first = len(begin) + 1
    starts = [[first, *(first + np.cumsum([len(ids[word]) for word in each.words[:-1]]))] for each in sentences]
    return _aligned({"source": Ragged.of_ids(rows), "starts": Ragged.of_labels(starts)}, sentences, known)


def _aligned(
    ragged: Mapping[str, Ragged], sentences: Sequence[Sentence], known: Mapping[str, text.Vocabulary]
) -> Aligned:
    """Columns with the tags, and the intent if any. Unknown ones are <unk>."""
    tags = [ids_of(known["tags"], each.tags or ("",) * len(each.words)) for each in sentences]
    dense = {}
    if "intents" in known:
        dense["intent"] = np.array(ids_of(known["intents"], (each.intent for each in sentences)), np.int32)
    rows = np.arange(len(sentences), dtype=np.int32)
    return Aligned(Columns({**ragged, "tags": Ragged.of_labels(tags)}, dense, rows, (len(sentences),)))


def columns(sentences: Sequence[Sentence], known: Mapping[str, text.Vocabulary], length: int) -> Aligned:
    """The columns words, tags and characters [*, length + 2], and the intent if any. Unknown ones are <unk>.

    known: the vocabularies `words`, `characters`, `tags` and perhaps `intents`.
    """
    distinct = sorted({word for each in sentences for word in each.words})
    number = {word: index for index, word in enumerate(distinct)}
    flat = np.array([number[word] for each in sentences for word in each.words], np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(each.words) for each in sentences])]).astype(np.int64)
    ragged = {
        "words": np.array(ids_of(known["words"], distinct), np.int32)[flat],
        "characters": spell(known["characters"], distinct, length)[flat],
    }
    return _aligned({name: Ragged(each, offsets) for name, each in ragged.items()}, sentences, known)
