"""What the files of a pretrained model say about its tokenizer, for each family of Hugging Face.

    open_tokenizer(files, side)    its pieces by id, its special tokens, its languages, and a segmenter

Ids are those of the model; pretrained.py maps them to those of s2sjax.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from s2sjax.core.special_tokens import CLS, MASK
from s2sjax.data.text import pretrained_whisper
from s2sjax.data.text.pretrained_tokenizers import (
    BYT5_OFFSET,
    Bytes,
    Segmenter,
    SentencePieceModel,
    TokenizerJson,
    UnreadableError,
    byte_level_bpe,
    demand,
)

ENCODERS = ("bert", "roberta", "xlm-roberta")
MODEL_TYPES = ("bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "umt5", "whisper", "gpt2", *ENCODERS)
"""values of model_type in config.json; some have several tokenizers"""
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
M2M100_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
WMT21_LANGUAGES = "en ha is ja cs ru zh de"
MBART50_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN "
    "pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
"""codes in the order of their ids"""
NLLB_LANGUAGE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")
PEGASUS_OFFSET = 103
PLACEHOLDER = re.compile(r"\[unused\d+\]|madeupword\d+")
"""pieces of BERT and of RoBERTa that no text has"""
LARGEST = 10_000_000
"""maximum number of ids: more is a damaged file"""


class Tokenizer(NamedTuple):
    """What the files of a model say about its ids."""

    segmenter: Segmenter
    pieces: dict[int, str]
    pad: int
    eos: int
    unk: int
    bos: int | None
    special: frozenset[int]
    """ids that no text has, except <unk>, and that `join` does not get"""
    tags: tuple[int, ...] = ()
    """languages"""
    tag_form: str = "{}"
    """the tag of a language: "__{}__" """
    side_has_language: bool = False
    """whether a text of either side begins with its language, and no text with that of the other side"""
    begin: tuple[int, ...] = ()
    """ids that every text begins with"""
    marks: tuple[str, ...] = ()
    """what s2sjax calls the tags, if they are no languages: [CLS] and [MASK]"""
    mask_takes_blanks: bool = False
    """whether [MASK] takes the blanks before it"""
    spare: int | None = None
    """ordinary id that becomes id 1 of s2sjax if there is no <s>; None for the lowest"""
    has_pad: bool = True
    """whether `pad` is the model's own token for padding, and not one that stands in for it"""
    prompt: Callable[[str | None, str | None], tuple[int, ...]] | None = None
    """the function from the languages of source and target to the ids that every output begins with"""
    extra: int = 0
    """number of ids after the last of the model, for which it has no rows: those of <pad>, <sos> and <unk>, or none"""


class Folder:
    """The files of a model, by name, and what they say."""

    def __init__(self, files: Mapping[str, bytes], side: str):
        self.files, self.side = files, side
        self.config = self.read("config.json")
        settings = self.read("tokenizer_config.json") if "tokenizer_config.json" in files else {}
        named = self.read("special_tokens_map.json") if "special_tokens_map.json" in files else {}
        self.settings = {**named, **settings}

    @property
    def family(self) -> str:
        model = self.config.get("model_type")
        kind = str(self.settings.get("tokenizer_class") or self.config.get("tokenizer_class") or "")
        kind = kind.removesuffix("Fast").removesuffix("Tokenizer").lower()
        if model == "m2m_100":
            return "m2m_100" if kind == "m2m100" or (kind != "nllb" and "vocab.json" in self.files) else "nllb"
        if model == "mbart":
            demand(
                kind == "mbart50",
                "mBART-25 writes the language after </s>, where s2sjax has nothing: use a model of mBART-50, whose "
                "tokenizer_class in tokenizer_config.json is MBart50Tokenizer",
            )
            return "mbart50"
        if model == "t5" and kind == "byt5":
            return "byt5"
        demand("s2sjax" not in self.config, "config.json is that of a run of s2sjax, which needs no import")
        demand(
            model in MODEL_TYPES,
            f"model_type {model!r} of config.json is not one of the models that can be read: {', '.join(MODEL_TYPES)}",
        )
        return "t5" if model in ("mt5", "umt5") else "encoder" if model in ENCODERS else str(model)

    def bytes(self, name: str) -> bytes:
        demand(
            name in self.files,
            f"{name} is missing: copy it from the original model, or write it with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers",
        )
        return self.files[name]

    def read(self, name: str) -> dict[str, Any]:
        return _parsed(name, self.bytes(name))

    def vocab(self, name: str = "vocab.json") -> dict[str, int]:
        """Reads vocab.json, or target_vocab.json: piece -> id."""
        found = self.read(name)
        ids = {*found.values()} if all(type(index) is int for index in found.values()) else set()
        demand(
            len(ids) == len(found) > 0 and min(ids) >= 0 and max(ids) < LARGEST,
            f"{name} does not have one id for each piece: copy it again from the original model",
        )
        return found

    def tokenizer_json(self) -> TokenizerJson:
        return _read_tokenizer_json(self.bytes("tokenizer.json"), frozenset(self.special_names()))

    def token(self, name: str, default: str | None) -> str | None:
        """The text of a special token, such as "eos_token"."""
        return _content(self.settings[name]) if self.settings.get(name) else default

    def special_names(self) -> set[str]:
        """The texts of all special tokens in the settings."""
        lists = [self.settings.get(f"{kind}_special_tokens") or () for kind in ("additional", "extra")]
        extra = [token for tokens in lists for token in (tokens.values() if isinstance(tokens, dict) else tokens)]
        return {_content(token) for token in [*extra, *filter(None, map(self.settings.get, NAMED))]}


def open_tokenizer(files: Mapping[str, bytes], side: str) -> Tokenizer:
    """Opens the tokenizer of the "source" or the "target". Raises UnreadableError if that is not possible."""
    try:
        folder = Folder(files, side)
        return FAMILIES[folder.family](folder)
    except UnreadableError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):  # no check here knows all nonsense
        raise UnreadableError("the files of the tokenizer are damaged: copy them again") from None


def _parsed(name: str, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError):
        found = None
    demand(isinstance(found, dict), f"{name} is damaged: copy it again from the original model")
    return found


@lru_cache(maxsize=2)  # both sides of a model have the same file, which takes seconds if it is large
def _read_tokenizer_json(content: bytes, names: frozenset[str]) -> TokenizerJson:
    return TokenizerJson(_parsed("tokenizer.json", content), names)


def _content(token: Any) -> str:
    """The text of a special token, which is written as such or with its options."""
    return str(token["content"] if isinstance(token, dict) else token)


# --------------------------------------------------------------------------------------- families


def _marian(folder: Folder) -> Tokenizer:
    two = bool(folder.settings.get("separate_vocabs"))
    demand(
        two or "target_vocab.json" not in folder.files,
        "target_vocab.json is there, but tokenizer_config.json does not say separate_vocabs: copy it again from the "
        "original model, or remove target_vocab.json",
    )
    vocab = folder.vocab("target_vocab.json" if two and folder.side == "target" else "vocab.json")
    tags = [index for piece, index in vocab.items() if piece.startswith(">>") and piece.endswith("<<")]
    pieces = {index: piece for piece, index in vocab.items()}
    name = f"{folder.side}.spm"
    segmenter = SentencePieceModel(folder.bytes(name), name, vocab.get("<unk>", -1), coded=True)
    special = _specials(folder, vocab, eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
    segmenter.numbered(pieces, [*special, *tags])
    return _tokenizer(folder, segmenter, pieces, special, None, tags=tuple(sorted(tags)), tag_form=">>{}<<")


def _m2m100(folder: Folder) -> Tokenizer:
    languages = (WMT21_LANGUAGES if folder.settings.get("language_codes") == "wmt21" else M2M100_LANGUAGES).split()
    vocab = folder.vocab()
    vocab |= {f"__{language}__": len(vocab) + index for index, language in enumerate(languages)}
    pieces = {index: piece for piece, index in vocab.items()}
    name = "sentencepiece.bpe.model"
    segmenter = SentencePieceModel(folder.bytes(name), name, vocab.get("<unk>", -1))
    tags = tuple(vocab[f"__{language}__"] for language in languages)
    special = _specials(folder, vocab, bos_token="<s>", **_USUAL)
    segmenter.numbered(pieces, [*special, *tags])
    return _tokenizer(folder, segmenter, pieces, special, "<s>", tags, "__{}__", side_has_language=True)


def _nllb(folder: Folder) -> Tokenizer:
    demand(
        not folder.settings.get("legacy_behaviour"),
        "legacy_behaviour of tokenizer_config.json writes the language after </s>, where s2sjax has nothing: unset it",
    )
    segmenter = folder.tokenizer_json()
    tags = [index for index in sorted(segmenter.special) if NLLB_LANGUAGE.fullmatch(segmenter.pieces[index])]
    demand(tags, "tokenizer.json has no languages, such as eng_Latn: copy it again from the original model")
    return _of_json(folder, segmenter, "<s>", tags=tuple(tags), side_has_language=True)


def _mbart50(folder: Folder) -> Tokenizer:
    languages = MBART50_LANGUAGES.split()
    if "tokenizer.json" in folder.files:
        json_segmenter = folder.tokenizer_json()
        found = {piece: index for index, piece in json_segmenter.pieces.items()}
        tags = tuple(found[language] for language in languages if language in found)
        demand(tags, "tokenizer.json has no languages, such as en_XX: copy it again from the original model")
        return _of_json(folder, json_segmenter, "<s>", tags=tags, side_has_language=True)
    # The ids of fairseq: <s> <pad> </s> <unk>, SentencePiece's from its fourth piece, the languages, <mask>.
    segmenter = SentencePieceModel(folder.bytes("sentencepiece.bpe.model"), "sentencepiece.bpe.model", 3)
    names = ["<s>", "<pad>", "</s>", "<unk>", *segmenter.names[3:], *languages, "<mask>"]
    tags = tuple(range(len(names) - 1 - len(languages), len(names) - 1))
    special = frozenset([0, 1, 2, 3, len(names) - 1])
    segmenter.numbered(dict(enumerate(names)), [*special, *tags, *(index + 1 for index in segmenter.controls)])
    return _tokenizer(folder, segmenter, segmenter.pieces, special, "<s>", tags, side_has_language=True)


def _bart(folder: Folder) -> Tokenizer:
    return _of_json(folder, folder.tokenizer_json(), "<s>")


def _pegasus(folder: Folder) -> Tokenizer:
    if "tokenizer.json" in folder.files:
        return _of_json(folder, folder.tokenizer_json(), None)
    offset = _count(folder, "offset", PEGASUS_OFFSET)
    segmenter = SentencePieceModel(folder.bytes("spiece.model"), "spiece.model", offset + 2)
    names = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{index}>" for index in range(2, offset))]
    special = frozenset(range(offset + 3))
    segmenter.numbered(dict(enumerate([*names, *segmenter.names[2:]])), special)
    return _tokenizer(folder, segmenter, segmenter.pieces, special, None)


def _t5(folder: Folder) -> Tokenizer:
    if "tokenizer.json" in folder.files:
        return _of_json(folder, folder.tokenizer_json(), None)
    segmenter = SentencePieceModel(folder.bytes("spiece.model"), "spiece.model", 2)
    segmenter.unk = segmenter.processor.unk_id()  # 3 in UMT5, which has <s>
    extra = [f"<extra_id_{index}>" for index in reversed(range(_count(folder, "extra_ids", 100)))]
    size = len(segmenter.names)
    special = frozenset([*segmenter.controls, *range(size, size + len(extra))])
    segmenter.numbered(dict(enumerate([*segmenter.names, *extra])), special)
    return _tokenizer(folder, segmenter, segmenter.pieces, special, None)


def _byt5(folder: Folder) -> Tokenizer:
    names = ["<pad>", "</s>", "<unk>"]
    names += [chr(byte) if 0x20 < byte < 0x7F else f"<0x{byte:02X}>" for byte in range(256)]
    names += [f"<extra_id_{index}>" for index in range(_count(folder, "extra_ids", 125))]
    special = frozenset([0, 1, 2, *range(256 + BYT5_OFFSET, len(names))])
    return _tokenizer(folder, Bytes(), dict(enumerate(names)), special, None)


def _encoder(folder: Folder) -> Tokenizer:
    """BERT and RoBERTa: [CLS] text [SEP], or <s> text </s>. The first token is a tag, which tasks put before a text."""
    is_bert = folder.config["model_type"] == "bert"
    if is_bert and "tokenizer.json" not in folder.files:
        segmenter = TokenizerJson(_wordpiece(folder), folder.special_names())
    else:
        segmenter = folder.tokenizer_json()
    names = "[PAD] [SEP] [UNK] [CLS] [MASK]" if is_bert else "<pad> </s> <unk> <s> <mask>"
    ids = {piece: index for index, piece in segmenter.pieces.items()}
    found = []
    for kind, usual in zip(("pad", "sep", "unk", "cls", "mask"), names.split()):
        token = str(folder.token(f"{kind}_token", usual))
        demand(token in ids, f"the tokenizer has no piece {token!r}, its {kind}_token: copy its files again")
        found.append(ids[token])
    demand(len({*found}) == 5, "the tokenizer uses one token for two of padding, separator, unknown, [CLS] and [MASK]")
    pad, end, unk, cls, mask = found
    demand(
        is_bert or segmenter.template() == ([cls], [end]),
        "tokenizer.json does not put exactly <s> and </s> around a text: only such models can be read",
    )
    special = segmenter.special | {*found}
    placeholders = [index for index, piece in segmenter.pieces.items() if PLACEHOLDER.fullmatch(piece)]
    spare = min({*placeholders} - special, default=max({*segmenter.pieces} - special))
    return Tokenizer(
        segmenter, segmenter.pieces, pad, end, unk, None, special, (cls, mask), marks=(CLS, MASK), spare=spare,
        mask_takes_blanks=mask in segmenter.taking_blanks,
    )  # fmt: skip


def _wordpiece(folder: Folder) -> dict[str, Any]:
    """The tokenizer.json of a BERT that has a vocab.txt instead, a piece in each line."""
    kind = folder.settings.get("tokenizer_class") or folder.config.get("tokenizer_class") or "BertTokenizer"
    demand(
        kind in ("BertTokenizer", "BertTokenizerFast") and folder.settings.get("do_basic_tokenize", True),
        f"vocab.txt of a {kind} that does not split words as BERT does cannot be read: write a tokenizer.json with "
        "AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers",
    )
    lines = folder.bytes("vocab.txt").decode().removesuffix("\n").split("\n")
    vocab = {piece.removesuffix("\r"): index for index, piece in enumerate(lines)}
    option = lambda name, usual: folder.settings.get(name, usual)
    unk, special = str(folder.token("unk_token", "[UNK]")), {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    options = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [piece for piece in vocab if piece in special | folder.special_names()]
    return {
        "version": "1.0",
        "added_tokens": [{"id": vocab[piece], "content": piece, **options} for piece in added],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": option("tokenize_chinese_chars", True),
            "strip_accents": option("strip_accents", None),
            "lowercase": option("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unk,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }


def _gpt2(folder: Folder) -> Tokenizer:
    """GPT-2, whose one special token ends a text. <pad>, <sos> and <unk> come after the last id of the model."""
    eos = str(folder.token("eos_token", "<|endoftext|>"))
    if "tokenizer.json" in folder.files:
        segmenter = folder.tokenizer_json()
    else:
        merges, blank = folder.bytes("merges.txt").decode(), folder.settings.get("add_prefix_space", False)
        segmenter = TokenizerJson(byte_level_bpe(folder.vocab(), merges, blank), folder.special_names() | {eos})
    ids = {piece: index for index, piece in segmenter.pieces.items()}
    demand(eos in ids, f"the tokenizer has no piece {eos!r}, its eos_token: copy its files again")
    demand(segmenter.template() == ([], []), "tokenizer.json puts special tokens around a text, which GPT-2 does not")
    size = folder.config.get("vocab_size")
    demand(isinstance(size, int), f"vocab_size in config.json is {size!r}: it must be the number of embeddings")
    assert isinstance(size, int)
    special = segmenter.special | {ids[eos], size, size + 1, size + 2}
    return Tokenizer(segmenter, segmenter.pieces, size, ids[eos], size + 2, size + 1, special, has_pad=False, extra=3)


def _whisper(folder: Folder) -> Tokenizer:
    segmenter = pretrained_whisper.open_json(folder.read("tokenizer.json"))
    ids = {piece: index for index, piece in segmenter.pieces.items()}
    names = (pretrained_whisper.PAD, pretrained_whisper.END, pretrained_whisper.UNK, pretrained_whisper.START)
    pad, eos, unk, start = (pretrained_whisper.token(ids, name) for name in names)
    generation = folder.read("generation_config.json") if "generation_config.json" in folder.files else {}
    prompt = pretrained_whisper.prompt_of(ids, pretrained_whisper.is_multilingual(folder.config, generation))
    special = segmenter.special
    return Tokenizer(segmenter, segmenter.pieces, pad, eos, unk, start, special, has_pad=False, prompt=prompt)


FAMILIES: dict[str, Callable[[Folder], Tokenizer]] = {
    "marian": _marian, "m2m_100": _m2m100, "nllb": _nllb, "mbart50": _mbart50, "bart": _bart, "pegasus": _pegasus,
    "t5": _t5, "byt5": _byt5, "encoder": _encoder,
    "whisper": _whisper, "gpt2": _gpt2,
}  # fmt: skip
_USUAL = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def _specials(folder: Folder, ids: Mapping[str, int], **defaults: str) -> frozenset[int]:
    """The ids of the special tokens that have one."""
    names = {str(folder.token(name, default)) for name, default in defaults.items()} | folder.special_names()
    return frozenset(ids[name] for name in names if name in ids)


def _of_json(folder: Folder, segmenter: TokenizerJson, bos: str | None, **options: Any) -> Tokenizer:
    """The tokenizer of a tokenizer.json. If a text has no language, the file says what is around it."""
    found = _tokenizer(folder, segmenter, segmenter.pieces, segmenter.special, bos, **options)
    if found.tags:
        return found
    begin, end = segmenter.template()
    demand(
        end == [found.eos] and found.special.issuperset(begin),
        "tokenizer.json does not end a text with exactly the end of a sentence: only such models can be read",
    )
    return found._replace(begin=tuple(begin))


def _tokenizer(
    folder: Folder, segmenter: Segmenter, pieces: dict[int, str], special: frozenset[int], bos: str | None,
    tags: tuple[int, ...] = (), tag_form: str = "{}", side_has_language: bool = False,
) -> Tokenizer:  # fmt: skip
    """A tokenizer with the ids of its named special tokens."""
    ids = {piece: index for index, piece in pieces.items()}
    found = {}
    for name, default in _USUAL.items():
        token = str(folder.token(name, default))
        demand(token in ids, f"the tokenizer has no piece {token!r}, its {name}: copy its files again")
        found[name] = ids[token]
    pad, eos, unk = found["pad_token"], found["eos_token"], found["unk_token"]
    demand(len({pad, eos, unk}) == 3, "the tokenizer uses one token for two of padding, end and unknown")
    start = ids.get(folder.token("bos_token", bos) or "")
    start = None if start in (pad, eos, unk) else start
    special |= {pad, eos, unk} | ({start} if start is not None else set())
    return Tokenizer(segmenter, pieces, pad, eos, unk, start, special, tags, tag_form, side_has_language)


def _count(folder: Folder, name: str, usual: int) -> int:
    """A number of special tokens in tokenizer_config.json."""
    found = folder.settings.get(name)
    found = usual if found is None else found
    demand(
        type(found) is int and 0 <= found <= 10_000,
        f"{name} in tokenizer_config.json is {found!r}: it must be a number of special tokens",
    )
    return found
