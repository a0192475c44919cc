"""Tokenizers of other libraries behind one interface, and in the ids of their models: `segment` text, `join` pieces.

TokenizerJson        a tokenizer.json, by the library `tokenizers`
SentencePieceModel   a .spm or .model file, by SentencePiece, and a table of ids
Bytes                UTF-8

Text that spells a special token stays text. A tokenizer.json with a unigram model would find "</s>" in text even if its
special tokens are off, since they are pieces of the model; SentencePiece never does. So such pieces are renamed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import sentencepiece

from s2sjax.errors import UserError

BYT5_OFFSET = 3
"""id of the byte 0"""


class UnreadableError(ValueError):
    """What is wrong with the files of a tokenizer, and what to do, in one line."""


def demand(condition: Any, message: str) -> None:
    if not condition:
        raise UnreadableError(message)


class Segmenter(Protocol):
    def segment(self, text: str) -> list[tuple[int, str]]:
        """Splits text into (id, part of the text or of its normalized form) pairs."""
        ...

    def join(self, ids: list[int]) -> str:
        """Joins the pieces of ids, none of which is special, to text."""
        ...


class TokenizerJson:
    """A tokenizer.json, read by the library `tokenizers`: what it normalizes, splits and joins is in the file."""

    def __init__(self, content: dict[str, Any], names: Iterable[str]):
        """content: what the file contains. names: special tokens, besides those that the file marks as such."""
        model, added = content["model"], content.get("added_tokens") or []
        vocab, unigram = model["vocab"], isinstance(model["vocab"], list)
        demand(
            unigram or "merges" in model or model.get("type") == "WordPiece",
            f"tokenizer.json has a model of type {model.get('type')}: only BPE, Unigram and WordPiece can be read",
        )
        self.pieces = dict(enumerate(piece for piece, _ in vocab)) if unigram else {i: p for p, i in vocab.items()}
        self.pieces |= {token["id"]: token["content"] for token in added}
        names = set(names)
        marked = {token["id"] for token in added if token["special"]}
        self.taking_blanks = frozenset(token["id"] for token in added if token.get("lstrip"))
        """ids of the special tokens that take the blanks before them"""
        self.special = frozenset(marked | {index for index, piece in self.pieces.items() if piece in names})
        if unigram:
            # A piece with a blank is in no text: blanks become "▁", or separate words, before the model splits them.
            hidden = {index: f" {index} " for index in self.special}
            for index in self.special.intersection(range(len(vocab))):
                vocab[index] = [hidden[index], vocab[index][1]]
            for token in added:
                token |= {"content": hidden.get(token["id"], token["content"]), "special": token["id"] in hidden}
        elif "merges" in model:
            spelled = {self.pieces[index] for index in self.special}
            model["merges"] = [pair for pair in model["merges"] if _merged(pair) not in spelled]
        self._tokenizer = load_tokenizer(json.dumps({**content, "truncation": None, "padding": None}))

    def segment(self, text: str) -> list[tuple[int, str]]:
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return [(index, text[begin:end]) for index, (begin, end) in zip(found.ids, found.offsets)]

    def join(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def template(self) -> tuple[list[int], list[int]]:
        """The ids that the file puts before and after a text."""
        plain, whole = (self._tokenizer.encode("a", add_special_tokens=flag).ids for flag in (False, True))
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return whole[:start], whole[start + len(plain) :]
        raise UnreadableError("tokenizer.json changes a text with special tokens: only those around it can be read")


def byte_level_bpe(vocab: Mapping[str, int], merges: str, add_prefix_space: bool = False) -> dict[str, Any]:
    """The tokenizer.json of a byte-level BPE that has a vocab.json and a merges.txt instead, as GPT-2."""
    lines = [line for line in merges.splitlines() if line and not line.startswith("#version")]
    demand(
        all(len(line.split(" ")) == 2 for line in lines),
        "merges.txt does not have two pieces in each line: copy it again from the original model",
    )
    options = {"add_prefix_space": bool(add_prefix_space), "trim_offsets": False, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", **options},
        "decoder": {"type": "ByteLevel", **options},
        "model": {"type": "BPE", "vocab": dict(vocab), "merges": [line.split(" ") for line in lines]},
    }


def load_tokenizer(content: str) -> Any:
    """Parses a tokenizer.json. Raises UnreadableError if it is damaged, a UserError if `tokenizers` is missing."""
    try:
        import tokenizers
    except ImportError:
        what = "tokenizers, which reads the tokenizer.json of pretrained models, is not installed"
        raise UserError(f"{what}: pip install tokenizers") from None
    try:
        found = tokenizers.Tokenizer.from_str(content)
        found.encode_special_tokens = True
        found.decode(found.encode("a b\u00e9").ids)
    except BaseException as error:
        # `tokenizers` raises Exception itself; its Rust code panics with a subclass of BaseException.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise UnreadableError(f"tokenizer.json cannot be read ({' '.join(str(error).split())[:200]})") from None
        raise
    return found


def _merged(pair: str | Sequence[str]) -> str:
    """The piece that a merge of BPE makes: "a b" or ["a", "b"] -> "ab"."""
    return "".join(pair.split(" ")) if isinstance(pair, str) else "".join(pair)


class SentencePieceModel:
    """A SentencePiece model and the ids of its pieces, which are often not those of SentencePiece.

    ids: the id of each piece that text may have; any other piece is `unk`.
    coded: whether a text may begin with a code of its language, as in Marian: ">>fra<< text".
    """

    def __init__(self, model: bytes, name: str, unk: int, coded: bool = False):
        self.processor = sentencepiece.SentencePieceProcessor()
        try:
            self.processor.LoadFromSerializedProto(model)
            self.names = self.processor.id_to_piece(list(range(self.processor.get_piece_size())))
            self.processor.encode("a b\u00e9")
        except (RuntimeError, ValueError, TypeError):
            raise UnreadableError(f"{name} is no SentencePiece model: copy it again from the original model") from None
        self.ids: dict[str, int] = {}
        self.pieces: dict[int, str] = {}
        self.unk, self.coded = unk, coded

    def numbered(self, pieces: Mapping[int, str], hidden: Iterable[int]) -> SentencePieceModel:
        """Gives every piece its id. Those in `hidden`, special tokens and tags, are in no text."""
        self.pieces, never = dict(pieces), frozenset(hidden)
        self.ids = {piece: index for index, piece in pieces.items() if index not in never}
        return self

    def segment(self, text: str) -> list[tuple[int, str]]:
        code = []
        if self.coded and text.startswith(">>") and (end := text.find("<<")) != -1:  # unknown, as it is not a tag
            code, text = [(self.unk, text[: end + 2])], text[end + 2 :]
        return code + [(self.ids.get(piece, self.unk), piece) for piece in self.processor.encode(text, out_type=str)]

    def join(self, ids: list[int]) -> str:
        text = self.processor.decode([self.pieces[index] for index in ids]) if ids else ""
        return (text.replace("\u2581", " ") if self.coded else text).strip()

    @property
    def controls(self) -> list[int]:
        """SentencePiece's ids of what it finds in no text."""
        test = lambda index: self.processor.is_control(index) or self.processor.is_unknown(index)
        return [index for index in range(len(self.names)) if test(index)]


class Bytes:
    """The bytes of UTF-8, numbered from `BYT5_OFFSET`."""

    def segment(self, text: str) -> list[tuple[int, str]]:
        return [(byte + BYT5_OFFSET, "") for byte in text.encode()]

    def join(self, ids: list[int]) -> str:
        return bytes(index - BYT5_OFFSET for index in ids).decode(errors="ignore")
