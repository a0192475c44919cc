"""Vocabularies, which convert text to ids and back: characters, words and SentencePiece subwords.

Every vocabulary begins with the same four ids. <sos> starts the decoder, <eos> ends a sequence, <pad> fills a batch.

    vocabulary = build(config.Text("characters"), ["abba"])
    vocabulary.encode("abc")           -> [4, 5, 3]       no <eos>: data/batching adds it
    vocabulary.decode([4, 5, 2, 4])    -> "ab"            stops at <eos>

A tag tells a model which of several tasks a source is for. A tag at the beginning of a source has its own id; elsewhere
it is ordinary text.

    vocabulary = build(config.Text("characters"), ["<2de> abba"], tags=["<2de>"])
    vocabulary.encode("<2de> ab")      -> [4, 5, 6]       and decode drops the tag

Text is normalized before it becomes ids (`config.Text.normalize`), by default to NFC: "é" has the same ids whether it
is written as one code point or as e and an accent. The normalization is saved with the vocabulary.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import sentencepiece

from s2sjax import config
from s2sjax.config.data import Normalize
from s2sjax.core.special_tokens import CLS, EOS, MASK, PAD, SOS, SPECIALS, UNK
from s2sjax.data.examples import Example
from s2sjax.data.text import subword_sampling
from s2sjax.errors import UserError
from s2sjax.files import as_path, replace_file

NORMALIZE: tuple[Normalize, ...] = get_args(Normalize)
SENTENCEPIECE_SPECIALS = ("pad", "bos", "eos", "unk")
"""SentencePiece's names of the SPECIALS"""
PRETRAINED_SUFFIX = ".pretrained"
SHOWN = 12
"""maximum number of tags in an error"""
BLOCK = 1 << 20
"""number of random numbers drawn at a time"""


def normalized(text: str, form: Normalize) -> str:
    """Converts text to a Unicode form: "ﬁ E\u0301" -> nfc "ﬁ É", nfkc "fi É", nfkc_lower "fi é"."""
    if form == "none":
        return text
    if form == "nfc":
        return unicodedata.normalize("NFC", text)
    text = unicodedata.normalize("NFKC", text)
    return unicodedata.normalize("NFKC", text.lower()) if form == "nfkc_lower" else text


class AnyVocabulary(ABC):
    """What all vocabularies share. A subclass converts normalized text without a tag to ids, and ids to text."""

    unit: str
    normalize: Normalize
    tags: tuple[str, ...]
    all_pieces: list[str]
    """pieces by id, including specials and tags"""
    suffix: str
    """ending of the name of a file"""
    default_tag: str | None = None
    """tag that `encode` puts before a text that begins with none"""
    begin: tuple[int, ...] = ()
    """ids that `encode` puts before every text"""
    forced_begin: tuple[int, ...] = ()
    """ids that every output of a search begins with"""
    never: tuple[int, ...] = ()
    """ids that no output of a search has"""
    never_first: tuple[int, ...] = ()
    """ids that no output of a search has first, after `forced_begin`"""
    spare: tuple[int, ...] = ()
    """ids that no text has and that the original model lacks: a language model never writes them"""

    @property
    def size(self) -> int:
        return len(self.all_pieces)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the content: equal fingerprints mean equal ids for every text."""
        return hashlib.sha256(self._content()).hexdigest()

    def encode(self, text: str) -> list[int]:
        tag, text = self.split_tag(text)
        return tag + self._encode(normalized(text, self.normalize))

    def split_tag(self, text: str) -> tuple[list[int], str]:
        """Splits off the tag at the beginning of a text, if any: "<2de> Haus" -> [4], "Haus"."""
        return _split_tag(text, self.tags)

    def unknown(self, text: str) -> list[str]:
        """The pieces of a text that become <unk>, in order."""
        text = normalized(self.split_tag(text)[1], self.normalize)
        return [piece for index, piece in zip(self._encode(text), self._split(text)) if index == UNK]

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first <eos>, without <pad>, <sos> and tags; an unknown piece becomes <unk>."""
        skipped = {PAD, SOS, *range(len(SPECIALS), len(SPECIALS) + len(self.tags))}
        until_eos = takewhile(lambda index: index != EOS, map(int, ids))  # SentencePiece accepts no NumPy integers
        return self._join([index for index in until_eos if index not in skipped])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable piece for each id, including specials: labels for an attention map."""
        return [_printable(self.all_pieces[index]) for index in ids]

    def save(self, folder: str | Path, name: str) -> None:
        """Writes the vocabulary, and removes one of another kind with the same name."""
        replace_file(as_path(folder) / f"{name}{self.suffix}", self._content())
        for other in {Vocabulary.suffix, Subwords.suffix, PRETRAINED_SUFFIX} - {self.suffix}:
            (as_path(folder) / f"{name}{other}").unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | Path, name: str) -> Self:
        path = as_path(folder) / f"{name}{cls.suffix}"
        try:
            return cls._parse(path.read_bytes())
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise UserError(f"the vocabulary {path} cannot be read ({why}): check that this is a run folder") from None
        except (RuntimeError, ValueError, TypeError, LookupError):
            raise UserError(f"the vocabulary {path} is damaged: copy it again from the original run") from None

    @abstractmethod
    def _encode(self, text: str) -> list[int]: ...
    @abstractmethod
    def _split(self, text: str) -> Sequence[str]: ...  # a piece for each id of `_encode`
    @abstractmethod
    def _join(self, ids: list[int]) -> str: ...
    @abstractmethod
    def _content(self) -> bytes: ...
    @classmethod
    @abstractmethod
    def _parse(cls, content: bytes) -> Self: ...  # raises one of the errors that `load` explains


class Vocabulary(AnyVocabulary):
    """Characters (Unicode code points) or words (separated by white space), one id each.

    `pieces` are in the order of their ids, after the specials and the tags. Text that spells a special, for example
    `<eos>`, is unknown text, so that no input can end a sequence.
    """

    suffix = ".json"

    def __init__(
        self, unit: Literal["characters", "words"], pieces: Iterable[str], tags: Sequence[str] = (),
        normalize: Normalize = "nfc",
    ):  # fmt: skip
        self.unit, self.normalize, self.tags = unit, normalize, tuple(tags)
        self._first = len(SPECIALS) + len(self.tags)
        self.all_pieces = [*SPECIALS, *self.tags, *pieces]
        self._ids = {piece: index for index, piece in enumerate(self.all_pieces) if index >= self._first}

    def _encode(self, text: str) -> list[int]:
        ids = self._ids
        return [ids.get(piece, UNK) for piece in self._split(text)]

    def _split(self, text: str) -> Sequence[str]:
        return text if self.unit == "characters" else text.split()

    def _join(self, ids: list[int]) -> str:
        return ("" if self.unit == "characters" else " ").join([self.all_pieces[index] for index in ids])

    def spelling(self, length: int) -> np.ndarray:
        """The first `length` characters of each piece between 1 and 2, padded with 0 to [V, C]. Each special or tag is
        one character.

        pieces ab, a, length 20 -> ... 1 7 8 2 | 1 7 2 0
        """
        pieces = self.all_pieces[self._first :]
        letters = sorted(set("".join(pieces)))
        number = {letter: 3 + self._first + index for index, letter in enumerate(letters)}
        rows = [[3 + index] for index in range(self._first)]
        rows += [[number[letter] for letter in piece[:length]] for piece in pieces]
        table = np.zeros((self.size, 2 + max(map(len, rows))), np.int32)
        for line, row in zip(table, rows):
            line[: len(row) + 2] = [1, *row, 2]
        return table

    def _content(self) -> bytes:
        tags, pieces = {"tags": self.tags} if self.tags else {}, self.all_pieces[self._first :]
        content = {"unit": self.unit, "normalize": self.normalize, "size": self.size, **tags, "pieces": pieces}
        return json.dumps(content, ensure_ascii=False, indent=0).encode()

    @classmethod
    def _parse(cls, content: bytes) -> Self:
        saved = json.loads(content.decode())
        found = cls(saved["unit"], saved["pieces"], saved.get("tags", ()), saved["normalize"])
        known = found.unit in ("characters", "words") and found.normalize in NORMALIZE
        if not known or saved["size"] != found.size or not all(isinstance(piece, str) for piece in found.all_pieces):
            raise ValueError("not a vocabulary, or not all of it")
        return found


class Subwords(AnyVocabulary):
    """SentencePiece (Kudo and Richardson 2018): `unigram` (Kudo 2018) or `bpe` (Sennrich, Haddow and Birch 2016).

    SentencePiece's own normalization is off: decode(encode(x)) == normalized(x) for text of known characters.
    SentencePiece reserves three: U+2581 is decoded as a space, and a tab or U+2585 is unknown. A run of unknown
    characters is one <unk>. Tags are control symbols, which SentencePiece neither splits nor finds in text.
    """

    unit, suffix = "subwords", ".model"

    def __init__(self, model: bytes):
        """Loads the content of a .model file. Raises RuntimeError or ValueError if it is damaged or not from s2sjax."""
        forms = [form for form in NORMALIZE if model.endswith(_form_field(form))]
        if not forms:
            raise ValueError("the model does not end with the Unicode form of its text")
        self._model, self.normalize = model, forms[0]
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self.all_pieces = self._processor.id_to_piece(list(range(self._processor.get_piece_size())))
        controls = takewhile(self._processor.is_control, range(len(SPECIALS), self.size))
        self.tags = tuple(self.all_pieces[index] for index in controls)
        ids = [getattr(self._processor, f"{name}_id")() for name in SENTENCEPIECE_SPECIALS]
        known = (*self.all_pieces[: len(SPECIALS)],) == SPECIALS and ids == [PAD, SOS, EOS, UNK]
        # A file truncated between two records still parses; without the last ones, spaces would be merged silently.
        if not known or self.decode(self.encode("  ")) != "  ":
            raise ValueError("not a SentencePiece model with the special ids and the normalization of s2sjax")

    @classmethod
    def train(
        cls, lines: Iterable[str], size: int, algorithm: Literal["unigram", "bpe"] = "unigram",
        tags: Sequence[str] = (), normalize: Normalize = "nfc",
    ) -> Subwords:  # fmt: skip
        """Learns `size` subwords, including specials and tags; fewer, with a message, if the text has fewer.

        The same lines give the same model, byte for byte.
        """
        model, lines = io.BytesIO(), list(lines)
        specials: dict[str, Any] = {f"{name}_id": index for index, name in enumerate(SENTENCEPIECE_SPECIALS)}
        specials |= {f"{name}_piece": piece for name, piece in zip(SENTENCEPIECE_SPECIALS, SPECIALS)}
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(normalized(line, normalize) for line in lines),
                model_writer=model,
                model_type=algorithm,
                vocab_size=size,
                **specials,
                unk_surface=SPECIALS[UNK],
                control_symbols=list(tags),
                character_coverage=1.0,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                max_sentence_length=1 << 24,  # longer lines would be skipped, with their characters
                num_threads=4,  # fixed, because sums of floats depend on it
                minloglevel=3,
            )
        except RuntimeError as error:
            most = re.search(r"value <= (\d+)", str(error))
            if most and int(most[1]) < size:
                print(f"{size:,} subwords are too many for this text: learning {int(most[1]):,}", flush=True)
                return cls.train(lines, int(most[1]), algorithm, tags, normalize)
            raise _training_error(str(error), size) from None
        return cls(model.getvalue() + _form_field(normalize))

    def _encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def _split(self, text: str) -> list[str]:
        return self._processor.encode(text, out_type=str)

    def _join(self, ids: list[int]) -> str:
        return self._processor.decode(ids)

    def _content(self) -> bytes:
        return self._model

    @classmethod
    def _parse(cls, content: bytes) -> Self:
        return cls(content)

    def sampler(self, algorithm: Literal["unigram", "bpe"], strength: float) -> subword_sampling.Draw:
        """Returns draw(text, rng) -> ids of a random segmentation, for training (subword_sampling.py)."""
        known = range(len(SPECIALS) + len(self.tags), self.size)
        pieces = {self.all_pieces[index]: (index, self._processor.get_score(index)) for index in known}
        make = subword_sampling.bpe_dropout if algorithm == "bpe" else subword_sampling.unigram_sampling
        segment = make(pieces, strength)

        def draw(text: str, rng: random.Random) -> list[int]:
            tag, text = self.split_tag(text)
            return tag + subword_sampling.encode(normalized(text, self.normalize), pieces, segment, rng)

        return draw


class Size(NamedTuple):
    """The size and tags of a vocabulary: enough to build a model, but not to encode text."""

    size: int
    tags: tuple[str, ...] = ()
    forced_begin: tuple[int, ...] = ()
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    spare: tuple[int, ...] = ()


def build(text: config.Text, lines: Iterable[str], tags: Sequence[str] = ()) -> AnyVocabulary:
    """Builds the vocabulary of `lines`: characters and words by decreasing frequency, ties in alphabetical order.

    Each line is read once, and at most `text.sample` of them are kept, so the lines need not fit in memory.
    """
    if text.unit == "pretrained":
        raise UserError(
            "a pretrained vocabulary comes with its model and is not learned: set init of the experiment to an "
            "imported run, or use --init RUN --init-assets"
        )
    tags = tuple(dict.fromkeys(tags))
    if text.unit == "subwords":
        lines = (_split_tag(line, tags)[1] for line in lines)
        return Subwords.train(sample(lines, text.sample), text.size, text.algorithm, tags, text.normalize)
    return build_from_counts(text, count_pieces(text, lines, tags), tags)


def count_pieces(text: config.Text, lines: Iterable[str], tags: Sequence[str] = ()) -> Counter[str]:
    """Counts the characters or words of `lines`."""
    counts: Counter[str] = Counter()
    for line in lines:
        line = normalized(_split_tag(line, tags)[1], text.normalize)
        counts.update(line if text.unit == "characters" else line.split())
    return counts


def build_from_counts(text: config.Text, counts: Counter[str], tags: Sequence[str] = ()) -> Vocabulary:
    """Builds the vocabulary of the characters or words that `count_pieces` has counted."""
    assert text.unit in ("characters", "words")
    tags = tuple(dict.fromkeys(tags))
    reserved = {*SPECIALS, *tags}
    kept = [piece for piece, count in counts.items() if count >= text.min_count and piece not in reserved]
    if not kept:
        raise UserError(
            f"none of {len(counts)} {text.unit} is frequent enough for the vocabulary: check that the training text is "
            f"not empty, or lower min_count {text.min_count}"
        )
    return Vocabulary(text.unit, sorted(kept, key=lambda piece: (-counts[piece], piece)), tags, text.normalize)


def build_both(data: config.Data, examples: Iterable[Example]) -> tuple[AnyVocabulary, AnyVocabulary]:
    """Builds the vocabularies of sources and targets. Iterates twice over `examples`."""
    tags = data.corpus.tags if isinstance(data.corpus, config.Mixture) else ()
    sources = (example.source for example in examples)
    targets = (line for example in examples for line in example.targets)
    if data.shared:
        both = build(data.source, chain(sources, targets), tags)
        return both, both
    return build(data.source, sources, tags), build(data.target, targets)


def rows_in(vocabulary: AnyVocabulary, other: AnyVocabulary) -> np.ndarray | None:
    """The id in `other` of each piece of `vocabulary`, or -1; None if their units differ.

    Words are also found among subwords: as one that begins a word, or, like most punctuation, as one within a word.
    """
    ids = {piece: index for index, piece in enumerate(other.all_pieces)}
    pieces = vocabulary.all_pieces
    if (vocabulary.unit, other.unit) == ("words", "subwords"):
        first = len(SPECIALS) + len(vocabulary.tags)
        pieces = pieces[:first] + [word if f"▁{word}" not in ids else f"▁{word}" for word in pieces[first:]]
    elif vocabulary.unit != other.unit:
        return None
    return np.array([ids.get(piece, -1) for piece in pieces])


def sample(lines: Iterable[str], size: int) -> list[str]:
    """A uniform sample of at most `size` lines (Vitter 1985, algorithm R).

    The same lines give the same sample; only the sample is kept in memory.
    """
    lines, rng = iter(lines), random.Random(0)
    kept = list(islice(lines, size))
    for seen, line in enumerate(lines, start=size + 1):
        place = int(rng.random() * seen)
        if place < size:
            kept[place] = line
    return kept


def sampled_places(total: int, size: int) -> np.ndarray:
    """The places, in order, of the lines that `sample` keeps of `total` lines: sample(range(total), size)."""
    kept = np.arange(min(total, size))
    _, (*key, position), _ = random.Random(0).getstate()  # NumPy's old generator draws the same numbers
    rng = np.random.RandomState()
    rng.set_state(("MT19937", np.array(key, np.uint32), position, 0, 0.0))
    for first in range(size, total, BLOCK):
        seen = np.arange(first, min(first + BLOCK, total))
        places = (rng.random_sample(len(seen)) * (seen + 1)).astype(np.int64)
        for place, line in zip(places[places < size], seen[places < size]):
            kept[place] = line
    return kept


def mark(vocabulary: AnyVocabulary, piece: str) -> int:
    """The id of [CLS] or [MASK], or -1 if the vocabulary lacks it."""
    return len(SPECIALS) + vocabulary.tags.index(piece) if piece in vocabulary.tags else -1


def with_tag(vocabulary: AnyVocabulary, line: str, tag: str | None, where: str) -> str:
    """Puts `tag` before `line` if the model has tags and the line does not begin with one. Keeps blank lines.

    Without `tag`, the line must begin with one, unless the vocabulary has a default.
    """
    tags = [each for each in vocabulary.tags if each not in (CLS, MASK)]
    known = ", ".join(tags[:SHOWN]) + (f" and {len(tags) - SHOWN} others" if len(tags) > SHOWN else "")
    if tag is not None and tag not in tags:
        raise UserError(f"unknown tag {tag!r}: " + (f"choose from {known}" if known else "this model has no tags"))
    present = any(vocabulary.all_pieces[index] in tags for index in vocabulary.split_tag(line)[0])
    if not tags or not line.strip() or present or (tag is None and vocabulary.default_tag is not None):
        return line
    if tag is None:
        raise UserError(f"{where} does not begin with a tag: begin it with one of {known} and a space, or set --tag")
    return f"{tag} {line}"


def load(folder: str | Path, name: str) -> AnyVocabulary:
    """Loads the vocabulary with this name, of any kind."""
    from s2sjax.data.text.pretrained import PretrainedVocabulary  # which imports this module

    kinds: tuple[type[AnyVocabulary], ...] = (PretrainedVocabulary, Subwords)
    found = [kind for kind in kinds if (as_path(folder) / f"{name}{kind.suffix}").exists()]
    return (found or [Vocabulary])[0].load(folder, name)


def load_both(folder: Path) -> tuple[AnyVocabulary, AnyVocabulary]:
    """Loads the vocabularies of sources and targets."""
    return load(folder, "source"), load(folder, "target")


# -------------------------------------------------------------------------------------- helpers


def _split_tag(text: str, tags: Sequence[str]) -> tuple[list[int], str]:
    """Splits off the tag at the beginning of a text, if any: "<2de> Haus" -> [4], "Haus"."""
    if tags:
        first, _, rest = text.partition(" ")
        if first in tags:
            return [len(SPECIALS) + tags.index(first)], rest
    return [], text


def _form_field(form: Normalize) -> bytes:
    """The Unicode form as a string field, number 200, of SentencePiece's protocol buffer, which ignores it."""
    return b"\xc2\x0c" + bytes([len(form)]) + form.encode()


def _printable(piece: str) -> str:
    r"""Replaces spaces by "▁", as SentencePiece does, and unprintable characters by Python escapes: "\t"."""
    return "".join("▁" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in piece)


def _training_error(message: str, size: int) -> UserError:
    """Converts SentencePiece's error, which contains the possible sizes, to a UserError."""
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(f"{size} subwords are fewer than the text's characters: set size to {found[1]} or more")
    if "sentences_.empty()" in message:
        return UserError("there is no text to learn subwords from: check that the training text is not empty")
    return UserError(f"SentencePiece cannot learn {size} subwords from this text: {' '.join(message.split())}")
