"""The special tokens of Whisper (Radford et al. 2023): the prompt of its decoder, and stand-ins for <pad> and <unk>.

    <|startoftranscript|> <|de|> <|transcribe|> <|notimestamps|> Guten Tag. <|endoftext|>      many languages
    <|startoftranscript|> <|notimestamps|> Good morning. <|endoftext|>                         English alone

The decoder reads the prompt before the text, and every output begins with it. Whisper pads with <|endoftext|>, and
writes any text in bytes, so it has no tokens for padding and for the unknown: <|startoflm|> and <|startofprev|>, which
no transcript has, take their places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from s2sjax.data.text.pretrained_tokenizers import TokenizerJson, demand
from s2sjax.errors import nearest

START, END, WITHOUT_TIMES = "<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>"
PAD, UNK = "<|startoflm|>", "<|startofprev|>"
MARK, LANGUAGE = re.compile(r"<\|.*\|>"), re.compile(r"<\|([a-z]{2,3})\|>")
MULTILINGUAL = 51865
"""smallest vocab_size of a model of many languages, for files that do not say whether it is one"""


def open_json(content: dict[str, Any]) -> TokenizerJson:
    """Opens a tokenizer.json. All its marks are special, also times, which newer files do not call special."""
    for token in content.get("added_tokens") or ():
        token["special"] = bool(token.get("special")) or MARK.fullmatch(token["content"]) is not None
    return TokenizerJson(content, ())


def token(ids: Mapping[str, int], name: str) -> int:
    """The id of a special token."""
    demand(name in ids, f"tokenizer.json has no {name}, as Whisper's has: copy it again from the original model")
    return ids[name]


def is_multilingual(config: Mapping[str, Any], generation: Mapping[str, Any]) -> bool:
    """Whether the prompt names a language and a task. The tokenizer of a model of English has these tokens too."""
    usual = bool(generation.get("lang_to_id")) or config.get("vocab_size", 0) >= MULTILINGUAL
    return bool(generation.get("is_multilingual", usual))


def prompt_of(ids: Mapping[str, int], multilingual: bool) -> Callable[[str | None, str | None], tuple[int, ...]]:
    """The function from the languages of source and target to the prompt after <|startoftranscript|>."""
    languages = [found[1] for piece in ids if (found := LANGUAGE.fullmatch(piece))]

    def prompt(source: str | None, target: str | None) -> tuple[int, ...]:
        if not multilingual:
            for given in (source, target):
                demand(given in (None, "en"), f"the model knows English alone: leave out the language {given!r}")
            return (token(ids, WITHOUT_TIMES),)
        spoken = _known(source or "en", languages)
        written = _known(target, languages) if target else spoken
        demand(
            written in (spoken, "en"),
            f"the model writes the language that is spoken, or English: leave out the target language {written!r}",
        )
        task = "<|transcribe|>" if written == spoken else "<|translate|>"
        return token(ids, f"<|{spoken}|>"), token(ids, task), token(ids, WITHOUT_TIMES)

    return prompt


def _known(language: str, known: list[str]) -> str:
    """The code of a language, which may be written with its marks."""
    meant = language.removeprefix("<|").removesuffix("|>")
    close = nearest(meant, known, 0.5)
    guess = f"did you mean {close}? It" if close else "it"
    demand(meant in known, f"the model has no language {language!r}: {guess} knows {', '.join(known)}")
    return meant
