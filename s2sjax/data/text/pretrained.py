"""Vocabularies of pretrained models: their own tokenizers, with the ids of s2sjax.

    vocabulary = PretrainedVocabulary.from_folder(folder, "source", None, None)     a folder of Hugging Face
    vocabulary.encode("Das Haus")        -> [61, 4, 1093]
    vocabulary.foreign[[61, 4, 1093]]    -> the ids of the same pieces in the original model

Every vocabulary of s2sjax begins with <pad>, <sos>, <eos>, <unk> and its tags. So the ids of the model are permuted:

    id of s2sjax          0    1    2    3    4 ...  then
    id of the model      pad   X   eos  unk   tags   all others, in ascending order

X is the model's <s>, or if it has none, the lowest id that is neither special nor a tag: an ordinary piece. The
permutation has all `vocab_size` ids of config.json, with or without a piece. GPT-2 has one special token, which ends a
text: <pad>, <sos> and <unk> get the next three ids, for which the model has no rows (`spare`).

The original files are kept, so that an export has them, and are the only state: a file of such a vocabulary is a zip of
them and spec.json. In Marian's models, s2sjax and transformers 5 alike leave out the normalization of punctuation by
Moses, which the models were trained with.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from s2sjax.core.special_tokens import EOS, MASK, PAD, SOS, SPECIALS, UNK
from s2sjax.data.text.pretrained_families import LARGEST, Folder, Tokenizer, open_tokenizer
from s2sjax.data.text.pretrained_tokenizers import UnreadableError, demand
from s2sjax.data.text.vocabulary import PRETRAINED_SUFFIX, AnyVocabulary, mark
from s2sjax.errors import UserError, nearest

FILES = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.json", "vocab.json", "target_vocab.json", "vocab.txt", "merges.txt", "source.spm", "target.spm",
    "spiece.model", "sentencepiece.bpe.model", "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
"""names of the files that are kept"""
SPEC = "spec.json"
FORMAT = 1
MOST_BYTES = 1 << 29
"""maximum size of all files of a vocabulary: those of the largest known model have 50 MB"""


class Spec(NamedTuple):
    """What a vocabulary is made of, besides the files."""

    side: Literal["source", "target"]
    source_language: str | None
    target_language: str | None


class PretrainedVocabulary(AnyVocabulary):
    """The vocabulary of one side of a pretrained model. Text that spells a special token is ordinary text."""

    unit, normalize, suffix = "pretrained", "none", PRETRAINED_SUFFIX

    def __init__(self, files: Mapping[str, bytes], spec: Spec):
        """Opens the files of a model. Raises UnreadableError if they do not fit together."""
        self.files, self.spec = dict(files), spec
        tokenizer = open_tokenizer(self.files, spec.side)
        config = Folder(self.files, spec.side).config
        entry = _size_entry(config, spec.side)
        size = _size(config, entry)
        _check(tokenizer, config, size, entry)
        size += tokenizer.extra
        self.spare = (PAD, SOS, UNK) if tokenizer.extra else ()
        self._segmenter, self._glued = tokenizer.segmenter, tokenizer.tag_form.startswith(">>")
        self.foreign = _permutation(tokenizer, size)
        self._ours = np.argsort(self.foreign).tolist()
        self.tags = tokenizer.marks or tuple(tokenizer.pieces[index] for index in tokenizer.tags)
        self._has_marks, self._mask_takes_blanks = bool(tokenizer.marks), tokenizer.mask_takes_blanks
        self.all_pieces = _unique_pieces(tokenizer, self.foreign)
        # What decoding drops. No text has these, not even one that spells them: then it is <unk>.
        silent = {*tokenizer.special, *tokenizer.tags, *tokenizer.begin}.union(
            {*range(size)}.difference(tokenizer.pieces)
        )
        self._silent = frozenset(self._ours[index] for index in silent if index < size)
        prompt = tokenizer.prompt(spec.source_language, spec.target_language) if tokenizer.prompt else ()
        self.begin = tuple(self._ours[index] for index in (*tokenizer.begin, *prompt))
        self.default_tag, forced = self._languages(tokenizer)
        self._default = [] if self.default_tag is None else [len(SPECIALS) + self.tags.index(self.default_tag)]
        self.forced_begin = () if spec.side == "source" else forced or self._forced_by_files(config)
        if spec.side == "target":
            generation = self._generation(config)
            self.never = self._suppressed(generation, "suppress_tokens")
            self.never_first = self._suppressed(generation, "begin_suppress_tokens")

    @classmethod
    def from_folder(
        cls, folder: Path, side: Literal["source", "target"], source_language: str | None = None,
        target_language: str | None = None,
    ) -> PretrainedVocabulary:  # fmt: skip
        """Reads the tokenizer of a folder that transformers has written. Raises a UserError if that is not possible.

        source_language, target_language: languages of a model that knows several, as "de", "deu_Latn" or "de_DE". For
        Marian, the language of the target is the one that texts without a tag are translated to.
        """
        try:
            return cls(_read_files(Path(folder)), Spec(side, source_language, target_language))
        except UnreadableError as error:
            raise UserError(f"{folder}: {error}") from None

    # ------------------------------------------------------------------------------ text and ids

    def encode(self, text: str) -> list[int]:
        tag, text = self.split_tag(text)
        return [*self.begin, *(tag or self._default), *self._encode(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first <eos>, without special tokens (<unk> too) and tags, as transformers has it."""
        until_eos = takewhile(lambda index: index != EOS, map(int, ids))
        return self._join([index for index in until_eos if index not in self._silent])

    def encode_masked(self, text: str) -> list[int]:
        """The ids of a text with [MASK] in it, which splits a text before anything else."""
        *before, last = text.split(MASK)
        strip = str.rstrip if self._mask_takes_blanks else str
        ids = [index for part in before for index in (*self.encode(strip(part)), mark(self, MASK))]
        return [*ids, *self.encode(last)]

    def split_tag(self, text: str) -> tuple[list[int], str]:
        if self._has_marks:
            return [], text
        if self._glued and (end := text.find("<<")) != -1 and text[: end + 2] in self.tags:  # no blank is required
            return [len(SPECIALS) + self.tags.index(text[: end + 2])], text[end + 2 :]
        return super().split_tag(text)

    def _encode(self, text: str) -> list[int]:
        ours, silent = self._ours, self._silent
        return [UNK if ours[index] in silent else ours[index] for index, _ in self._segmenter.segment(_valid(text))]

    def _split(self, text: str) -> Sequence[str]:
        return [piece for _, piece in self._segmenter.segment(_valid(text))]

    def _join(self, ids: list[int]) -> str:
        return self._segmenter.join(self.foreign[ids].tolist())

    # --------------------------------------------------------------------------------- languages

    def _languages(self, tokenizer: Tokenizer) -> tuple[str | None, tuple[int, ...]]:
        """The tag of texts without one, and the ids that every target begins with."""
        spec, tags = self.spec, self.tags
        if tokenizer.prompt is not None:
            return None, self.begin
        if not tags or tokenizer.marks:
            given = spec.source_language or spec.target_language
            of_source = self._glued and spec.side == "target"  # the source vocabulary of a Marian has the codes
            demand(given is None or of_source, f"the model has no languages to choose from: leave out {given!r}")
            return None, ()
        if not tokenizer.side_has_language:
            demand(spec.source_language is None, "the model finds out the source language: leave it out")
            aim = spec.target_language if spec.side == "source" else None
            return (aim and _language(tokenizer, tags, aim, "target")), ()
        settings = Folder(self.files, spec.side).settings
        stored = settings.get("src_lang" if spec.side == "source" else "tgt_lang")
        language = (spec.source_language if spec.side == "source" else spec.target_language) or stored
        tag = _language(tokenizer, tags, language, spec.side)
        return tag, (len(SPECIALS) + tags.index(tag),)

    def _forced_by_files(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """The id that generation_config.json, or an older config.json, forces every output to begin with."""
        found = config.get("forced_bos_token_id")
        if "generation_config.json" in self.files:
            generation = Folder(self.files, self.spec.side).read("generation_config.json")
            found = generation.get("forced_bos_token_id", found)
        if found is None:
            return ()
        demand(
            type(found) is int and 0 <= found < self.size,
            f"forced_bos_token_id is {found!r}, which is no id of the model: set it to null in generation_config.json",
        )
        return (self._ours[found],)

    def _generation(self, config: dict[str, Any]) -> dict[str, Any]:
        """The settings of transformers' `generate`: generation_config.json, or an older config.json."""
        name = "generation_config.json"
        return Folder(self.files, self.spec.side).read(name) if name in self.files else config

    def _suppressed(self, generation: Mapping[str, Any], name: str) -> tuple[int, ...]:
        """The ids of a list of tokens that outputs do not have."""
        found = generation.get(name) or []
        demand(
            isinstance(found, list) and all(type(index) is int and 0 <= index < self.size for index in found),
            f"{name} of generation_config.json has what is no id of the model: correct the list, or set it to null",
        )
        return tuple(self._ours[index] for index in found)

    # --------------------------------------------------------------------------------------- file

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the files and the settings: equal fingerprints mean equal ids for every text."""
        parts = hashlib.sha256(self._spec())
        for name in sorted(self.files):
            parts.update(f"{name} {hashlib.sha256(self.files[name]).hexdigest()}\n".encode())
        return parts.hexdigest()

    def _spec(self) -> bytes:
        return json.dumps({"format": FORMAT, **self.spec._asdict()}, indent=1).encode()

    def _content(self) -> bytes:
        """A zip of the files. The same files give the same bytes: names are sorted, and times fixed."""
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w") as file:
            for name, content in sorted({**self.files, SPEC: self._spec()}.items()):
                member = zipfile.ZipInfo(name)
                member.compress_type, member.create_system, member.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
                file.writestr(member, content)
        return written.getvalue()

    @classmethod
    def _parse(cls, content: bytes) -> Self:
        members = _members(content)
        saved = json.loads(members.pop(SPEC).decode())
        if saved["format"] > FORMAT:
            raise UserError("the vocabulary is from a newer version of s2sjax: install that version")
        spec = Spec(saved["side"], saved["source_language"], saved["target_language"])
        languages = (spec.source_language, spec.target_language)
        if spec.side not in ("source", "target") or not all(isinstance(one, str | None) for one in languages):
            raise ValueError("not the settings of a pretrained vocabulary")
        return cls(members, spec)


# -------------------------------------------------------------------------------------- helpers


def _size_entry(config: Mapping[str, Any], side: str) -> str:
    """The entry of config.json that has the size of the vocabulary of a side."""
    own = config.get("model_type") == "marian" and config.get("decoder_vocab_size") is not None
    return "decoder_vocab_size" if own and side == "target" else "vocab_size"


def _size(config: Mapping[str, Any], name: str) -> int:
    found = config.get(name)
    demand(
        type(found) is int and 4 < found < LARGEST,
        f"{name} in config.json is {found!r}: it must be the number of rows of the model's embeddings",
    )
    assert isinstance(found, int)
    return found


def _check(tokenizer: Tokenizer, config: Mapping[str, Any], size: int, entry: str) -> None:
    """Raises unless the tokenizer fits the model. Only special tokens may be beyond its ids: no text has them."""
    beyond = [piece for index, piece in tokenizer.pieces.items() if index >= size and index not in tokenizer.special]
    needed = {*tokenizer.tags, *tokenizer.begin, tokenizer.pad, tokenizer.eos, tokenizer.unk}
    needed = needed.difference(range(size, size + tokenizer.extra))
    demand(
        not beyond and max(needed) < size,
        f"the tokenizer has more pieces than the {size} of {entry} in config.json: they are of two models",
    )
    for name in ("pad", "eos")[not tokenizer.has_pad :]:
        ours, theirs = getattr(tokenizer, name), config.get(f"{name}_token_id")
        demand(
            theirs is None or ours == theirs,
            f"{name}_token_id in config.json is {theirs}, but {ours} in the tokenizer: make them equal",
        )


def _permutation(tokenizer: Tokenizer, size: int) -> np.ndarray:
    """The model's id of each of our ids: int32 [V]."""
    taken = {*tokenizer.special, *tokenizer.tags}
    lowest = next(index for index in range(size) if index not in taken)
    first = next(index for index in (tokenizer.bos, tokenizer.spare, lowest) if index is not None)
    begin = [tokenizer.pad, first, tokenizer.eos, tokenizer.unk, *tokenizer.tags]
    found = np.array(begin, np.int32)
    return np.concatenate([found, np.setdiff1d(np.arange(size, dtype=np.int32), found)])


def _unique_pieces(tokenizer: Tokenizer, foreign: np.ndarray) -> list[str]:
    """One piece for each of our ids. Ids without a piece, and what would occur twice, have the id in their names."""
    named = {PAD: SPECIALS[PAD], EOS: SPECIALS[EOS], UNK: SPECIALS[UNK]}
    named |= dict(enumerate(tokenizer.marks, start=len(SPECIALS)))
    if tokenizer.bos is not None:
        named[SOS] = SPECIALS[SOS]
    pieces: dict[str, None] = dict.fromkeys(named.values())
    found = []
    for index, theirs in enumerate(foreign.tolist()):
        piece = named.get(index) or tokenizer.pieces.get(theirs) or f"<id {theirs}>"
        while index not in named and piece in pieces:
            piece = f"{piece}<id {theirs}>"
        pieces[piece] = None
        found.append(piece)
    return found


def _language(tokenizer: Tokenizer, tags: Sequence[str], language: str | None, side: str) -> str:
    """The tag of a language, which is written as in the tag or without its marks."""
    left, right = tokenizer.tag_form.split("{}")
    names = [tag.removeprefix(left).removesuffix(right) for tag in tags]
    known = ", ".join(names[:8]) + (f" and {len(names) - 8} others" if len(names) > 8 else "")
    count = f"the model has {len(names)} languages"
    demand(language, f"{count}: name that of the {side}s by --{side}-language, one of {known}")
    assert language is not None
    meant = language.removeprefix(left).removesuffix(right)
    close = nearest(meant, names, 0.5)
    guess = f"did you mean {close}? It" if close else "it"
    demand(meant in names, f"the model has no {side} language {language!r}: {guess} knows {known}")
    return tags[names.index(meant)]


def _valid(text: str) -> str:
    """Text without lone surrogates, which have no UTF-8: each becomes U+FFFD. JSON can contain them."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_files(folder: Path) -> dict[str, bytes]:
    """Reads the files of a model that are there."""
    found: dict[str, bytes] = {}
    try:
        sizes = {name: (folder / name).stat().st_size for name in FILES if (folder / name).is_file()}
        demand(sum(sizes.values()) <= MOST_BYTES, "the files of the tokenizer are larger than 512 MB: they are damaged")
        for name in sizes:
            found[name] = (folder / name).read_bytes()
    except OSError as error:
        raise UnreadableError(f"{error.strerror or type(error).__name__}: check its files") from None
    demand(found, "no files of a pretrained model are there: give a folder with config.json and a tokenizer")
    return found


def _members(content: bytes) -> dict[str, bytes]:
    """The members of the zip. Raises ValueError if it is damaged, or has anything that a vocabulary has not."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            infos = file.infolist()
            names = [info.filename for info in infos]
            if len({*names}) < len(names) or not {SPEC} <= {*names} <= {SPEC, *FILES}:
                raise ValueError("not the files of a pretrained vocabulary")
            if sum(info.file_size for info in infos) > MOST_BYTES:
                raise ValueError("too large")
            return {name: file.read(name) for name in names}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
        raise ValueError(str(error)) from None
