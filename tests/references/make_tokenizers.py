"""The tokenizers of transformers for the tests of pretrained vocabularies: tiny ones of each family, of random words.

    pip install transformers==5.23.0 sentencepiece protobuf
    python tests/references/make_tokenizers.py

Writes tokenizers.tar.xz beside this file, so that the tests need no transformers: the folder of each tokenizer, and
cases.json with what transformers makes of random Unicode texts.

Special tokens are off in texts (split_special_tokens). Unigram models of a tokenizer.json find them all the same: there
the ids are those of the SentencePiece model that the tokenizer was made from, which never does.
"""

import io
import json
import os
import random
import tarfile
import tempfile
from pathlib import Path

import sentencepiece
import tokenizers
import transformers

transformers.logging.set_verbosity_error()
LETTERS = {
    "abcdefghijklmnopqrstuvwxyzäöüéñß": 160, "абвгдежзиклмнопрстуя": 30, "αβγδεικλμνοπρστω": 15,
    "日本語中文字大小人山川水火": 30, "ابتجدرسعفقكلمنهوي": 20,
}  # fmt: skip
STRANGE = [
    "é", "e\u0301", "ﬁ", "\uff21", "ｶﾞ", "\u200b", "\u200d", "\u200e", "\u202e", "\ufeff", "\u00ad", "🙂", "日本", "語 ",
    "👩\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "مرحبا", "שלום", "नमस्ते", "ไทย", "\t", "\n", "\r", "\x00", "\x01", "\x1f",
    "\x7f", "\x85", "\xa0", "\u2028", "\u2029", "\u3000", "\u2009", "▁", "▁▁", " ", "  ", "   ", "...", "…", "''", "“",
    "—", "'s", "don't", "12,345.67", "½", "²", "ẞ", "İ", "\u0131", "\ufffd", "\ufffe", "\U000e0041", "\U0010ffff",
    "가각", "\u1100\u1161",
]  # fmt: skip
SPELLED = [
    "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<extra_id_0>", "<extra_id_99>", "<mask_1>", "<mask_2>", "<unk_2>",
    "__de__", "deu_Latn", "de_DE", ">>fra<<", ">>zzz<<", "<0x41>", "<eos>", "<sos>",
]  # fmt: skip
SPM = {"model_type": "unigram", "vocab_size": 300, "character_coverage": 0.9995, "num_threads": 1, "minloglevel": 3}
FAIRSEQ = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}


def draw_words(rng: random.Random) -> list[str]:
    return ["".join(rng.choices(letters, k=rng.randint(1, 7))) for letters, n in LETTERS.items() for _ in range(n)]


def draw_line(rng: random.Random, words: list[str]) -> str:
    """A line to train on: words of very different frequency, some with a capital, punctuation, or a bracket."""
    line = []
    for _ in range(rng.randint(1, 12)):
        word = words[min(int(rng.expovariate(0.02)), len(words) - 1)]
        forms = [word] * 20 + [word.capitalize()] * 5 + [f"({word})", f"<{word}>", f"</{word}_", f"{rng.random():.3f}"]
        line.append(rng.choice(forms) + rng.choice(["", "", "", "", "", *",.!?;:"]))
    return " ".join(line)


def draw_text(rng: random.Random, words: list[str]) -> str:
    """A text to encode: words, strange characters, special tokens, and any character at all."""
    parts = []
    for _ in range(rng.randint(1, 8)):
        anything = chr(
            rng.choice([rng.randrange(32, 592), rng.randrange(592, 0xD800), rng.randrange(0x1F300, 0x1F700)])
        )
        word, spelled = rng.choice(words), rng.choice(SPELLED)
        blanks = [rng.choice(["", " "]) for _ in range(3)]
        kinds = [word + blanks[0], rng.choice(STRANGE), f"{blanks[1]}{spelled}{blanks[2]}", anything]
        parts += rng.choices(kinds, [40, 38, 14, 8])
    return "".join(parts)


RNG = random.Random(0)
WORDS = draw_words(RNG)
LINES = [draw_line(RNG, WORDS) for _ in range(800)]
TEXTS = ["", " ", "  ", "a", " a", "a ", "▁", *SPELLED, *(draw_text(RNG, WORDS) for _ in range(175))]
CASES: list[dict] = []


def train(path: Path, lines: list[str], **options) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **{**SPM, **options})
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write(folder: Path, **files: dict) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def case(folder: Path, tokenizer, side="source", languages=(None, None), tags=(), spm=None, offset=0) -> None:
    """Stores what the tokenizer of a folder makes of all texts.

    spm, offset: the SentencePiece model of a unigram tokenizer.json, and how far its ids are from those of the model.
    """
    special, blank = tokenizer.all_special_tokens, tokenizer.convert_tokens_to_ids("\u2581")
    ids, decoded = [], []
    for text in TEXTS:
        put = {"text_target": text} if side == "target" else {"text": text}
        found = tokenizer(**put, split_special_tokens=True)["input_ids"]
        if spm and any(token in text for token in special):
            begin = found[: len(tokenizer("")["input_ids"]) - 1]
            # transformers 5 keeps a blank at the end, and separates words at U+0085: there are no ids to compare with.
            same = found[-2] != blank and "\x85" not in text
            found = [*begin, *split(tokenizer, spm, offset, text), found[-1]] if same else None
        ids.append(found)
        kept = [index for index in found or () if index not in tags]  # s2sjax drops all tags; Marian's are not special
        decoded.append(tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False))
    CASES.append({"folder": folder.name, "side": side, "languages": languages, "ids": ids, "decoded": decoded})


def case_of_sentencepiece(folder: Path, tokenizer, languages=(None, None), *, spm, offset=0) -> None:
    """Stores what the SentencePiece model of a folder without a tokenizer.json makes of all texts.

    transformers 5 converts it to a tokenizer.json. That has the same ids, except that it finds special tokens in text,
    and keeps a blank at the end, and separates words at U+0085. It keeps blanks before and after <unk> when decoding.
    """
    blank = tokenizer.convert_tokens_to_ids("\u2581")
    ids, decoded = [], []
    for text in TEXTS:
        *begin, end = tokenizer("")["input_ids"]
        found = [*begin, *split(tokenizer, spm, offset, text), end]
        theirs = tokenizer(text)["input_ids"]
        kept = theirs[:-2] if theirs[-2:-1] == [blank] else theirs[:-1]
        odd = "\x85" in text or any(token in text for token in tokenizer.all_special_tokens)
        assert odd or found[:-1] in (kept, theirs[:-1]), (text, theirs, found)
        ids.append(found)
        decoded.append(tokenizer.decode(found, skip_special_tokens=True, clean_up_tokenization_spaces=False).strip())
    CASES.append({"folder": folder.name, "side": "source", "languages": languages, "ids": ids, "decoded": decoded})


def split(tokenizer, spm: sentencepiece.SentencePieceProcessor, offset: int, text: str) -> list[int]:
    """The ids of SentencePiece, as those of a tokenizer."""
    unk = spm.unk_id()
    return [tokenizer.unk_token_id if index == unk else index + offset for index in spm.encode(text)]


def t5(root: Path) -> None:
    """T5 as SentencePiece alone and as a tokenizer.json; the latter for a model with more rows than pieces."""
    plain = write(root / "t5-spm", config={"model_type": "t5", "vocab_size": 512, "pad_token_id": 0, "eos_token_id": 1})
    write(plain, tokenizer_config={"tokenizer_class": "T5Tokenizer", "extra_ids": 100})
    spm = train(plain / "spiece.model", LINES, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    tokenizer = transformers.T5Tokenizer.from_pretrained(plain)
    case_of_sentencepiece(plain, tokenizer, spm=spm)
    folder = write(root / "t5", config={"model_type": "mt5", "vocab_size": 448})
    tokenizer.save_pretrained(folder)
    case(folder, transformers.AutoTokenizer.from_pretrained(folder), spm=spm)


def umt5(root: Path) -> None:
    """UMT5, whose SentencePiece has <s> before <unk>: transformers 5 takes <s> for <unk>, and 4 does not."""
    plain = write(root / "umt5-spm", config={"model_type": "umt5", "vocab_size": 448})
    write(plain, tokenizer_config={"tokenizer_class": "T5Tokenizer", "extra_ids": 100})
    spm = train(plain / "spiece.model", LINES, pad_id=0, eos_id=1, bos_id=2, unk_id=3)
    folder = write(root / "umt5", config={"model_type": "umt5", "vocab_size": 448})
    transformers.T5Tokenizer.from_pretrained(plain).save_pretrained(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    write(folder, tokenizer=content | {"model": content["model"] | {"unk_id": spm.unk_id()}})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    case_of_sentencepiece(plain, tokenizer, spm=spm)
    case(folder, tokenizer, spm=spm)


def pegasus(root: Path) -> None:
    plain = write(root / "pegasus-spm", config={"model_type": "pegasus", "vocab_size": 403})
    write(plain, tokenizer_config={"tokenizer_class": "PegasusTokenizer"})
    spm = train(plain / "spiece.model", LINES, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    tokenizer = transformers.PegasusTokenizer.from_pretrained(plain)
    case_of_sentencepiece(plain, tokenizer, spm=spm, offset=103)
    folder = write(root / "pegasus", config={"model_type": "pegasus", "vocab_size": 403})
    tokenizer.save_pretrained(folder)
    case(folder, transformers.AutoTokenizer.from_pretrained(folder), spm=spm, offset=103)


def mbart50(root: Path) -> None:
    config, languages = {"model_type": "mbart", "vocab_size": 354}, ("de_DE", "fr_XX")
    plain = write(root / "mbart50-spm", config=config, tokenizer_config={"tokenizer_class": "MBart50Tokenizer"})
    spm = train(plain / "sentencepiece.bpe.model", LINES, **FAIRSEQ)
    options = dict(zip(("src_lang", "tgt_lang"), languages))
    tokenizer = transformers.MBart50Tokenizer.from_pretrained(plain, **options)
    case_of_sentencepiece(plain, tokenizer, languages, spm=spm, offset=1)
    folder = write(root / "mbart50", config=config)
    tokenizer.save_pretrained(folder)
    tokenizer = transformers.MBart50Tokenizer.from_pretrained(folder, **options)
    for side in ("source", "target"):
        case(folder, tokenizer, side, languages, spm=spm, offset=1)


def nllb(root: Path) -> None:
    """NLLB: byte-pair encoding, whose merges are those of SentencePiece."""
    folder, languages = (
        write(root / "nllb", config={"model_type": "m2m_100", "vocab_size": 520}),
        ("deu_Latn", "fra_Latn"),
    )
    codes = transformers.models.nllb.tokenization_nllb.FAIRSEQ_LANGUAGE_CODES
    with tempfile.TemporaryDirectory() as draft:
        write(Path(draft), tokenizer_config={"tokenizer_class": "NllbTokenizer"})
        train(Path(draft) / "sentencepiece.bpe.model", LINES, model_type="bpe", **FAIRSEQ)
        transformers.NllbTokenizer.from_pretrained(draft, extra_special_tokens=codes).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, src_lang=languages[0], tgt_lang=languages[1])
    for side in ("source", "target"):
        case(folder, tokenizer, side=side, languages=languages)


def m2m100(root: Path) -> None:
    """M2M-100: vocab.json has another order than SentencePiece, and not all of its pieces."""
    folder, languages = root / "m2m100", ("de", "fr")
    spm = train(folder / "sentencepiece.bpe.model", LINES, model_type="bpe", **FAIRSEQ)
    pieces = [spm.id_to_piece(index) for index in range(3, 290)]
    random.Random(1).shuffle(pieces)
    vocab = {piece: index for index, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}
    tags = [
        f"__{language}__"
        for language in transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
    ]
    write(folder, vocab=vocab, config={"model_type": "m2m_100", "vocab_size": len(vocab) + 108})
    write(folder, tokenizer_config={"tokenizer_class": "M2M100Tokenizer", "additional_special_tokens": tags})
    options = dict(zip(("src_lang", "tgt_lang"), languages))
    tokenizer = transformers.M2M100Tokenizer.from_pretrained(folder, **options)
    for side in ("source", "target"):
        case(
            folder, tokenizer, side=side, languages=languages, tags=[tokenizer.get_lang_id(each) for each in languages]
        )


def marian(root: Path) -> None:
    """Marian: two SentencePiece models over one vocab.json, of which either lacks some pieces; two languages."""
    folder = root / "marian"
    source = train(folder / "source.spm", LINES[:400], unk_id=1, eos_id=0, bos_id=-1, pad_id=-1)
    target = train(folder / "target.spm", LINES[400:], unk_id=1, eos_id=0, bos_id=-1, pad_id=-1, vocab_size=280)
    names = {spm.id_to_piece(index) for spm in (source, target) for index in range(2, spm.get_piece_size() - 5)}
    pieces = [*sorted(names), ">>deu<<", ">>fra<<"]
    random.Random(2).shuffle(pieces)
    vocab = {piece: index for index, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    write(
        folder, vocab=vocab, config={"model_type": "marian", "vocab_size": len(vocab), "pad_token_id": len(vocab) - 1}
    )
    write(folder, tokenizer_config={"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "roa"})
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    for side in ("source", "target"):
        case(folder, tokenizer, side=side, tags=[vocab[">>deu<<"], vocab[">>fra<<"]])


def marian_two(root: Path) -> None:
    """Marian with a vocabulary of each side; the language codes are in that of the source."""
    folder, files = root / "marian-two", {}
    rng = random.Random(3)
    for side, name, codes in (("source", "vocab", [">>deu<<", ">>fra<<"]), ("target", "target_vocab", [])):
        content = (root / "marian" / f"{side}.spm").read_bytes()
        spm = sentencepiece.SentencePieceProcessor(model_proto=content)
        pieces = [*(spm.id_to_piece(index) for index in range(2, spm.get_piece_size() - 5)), *codes]
        rng.shuffle(pieces)
        pieces += [f"unused {index}" for index in range(300 - len(pieces))]
        files[name] = {piece: index for index, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
        folder.mkdir(exist_ok=True)
        (folder / f"{side}.spm").write_bytes(content)
    sizes = {"vocab_size": 303, "decoder_vocab_size": 303, "pad_token_id": 302}
    write(folder, **files, config={"model_type": "marian", **sizes, "share_encoder_decoder_embeddings": False})
    write(folder, tokenizer_config={"tokenizer_class": "MarianTokenizer", "separate_vocabs": True})
    tokenizer, vocab = transformers.MarianTokenizer.from_pretrained(folder), files["vocab"]
    # transformers decodes only targets.
    tokenizer.decoder, tokenizer.spm_target = {index: piece for piece, index in vocab.items()}, tokenizer.spm_source
    case(folder, tokenizer, tags=[vocab[">>deu<<"], vocab[">>fra<<"]])
    case(folder, transformers.MarianTokenizer.from_pretrained(folder), side="target")


def bart(root: Path) -> None:
    """BART, whose model has one row less than its tokenizer: <mask> has none, as in facebook/bart-large-cnn."""
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES, 400, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False)
    saved = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in saved["merges"]]
    vocab = {**saved["vocab"], "<mask>": len(saved["vocab"])}
    folder = write(root / "bart", config={"model_type": "bart", "vocab_size": len(vocab) - 1})
    write(folder, generation_config={"forced_bos_token_id": 0})
    transformers.BartTokenizer(vocab, merges).save_pretrained(folder)
    case(folder, transformers.AutoTokenizer.from_pretrained(folder))
    case(folder, transformers.AutoTokenizer.from_pretrained(folder), side="target")


def byt5(root: Path) -> None:
    folder = write(root / "byt5", config={"model_type": "t5", "vocab_size": 384})
    transformers.ByT5Tokenizer().save_pretrained(folder)
    case(folder, transformers.AutoTokenizer.from_pretrained(folder))


def mbart25(root: Path) -> None:
    """mBART-25, which s2sjax refuses."""
    folder = write(root / "mbart25", config={"model_type": "mbart", "vocab_size": 500})
    write(folder, tokenizer_config={"tokenizer_class": "MBartTokenizer"})


def archive(root: Path, path: Path) -> None:
    """Writes the folders and the cases, without times and users."""
    (root / "cases.json").write_text(json.dumps({"texts": TEXTS, "cases": CASES}))
    with tarfile.open(path, "w:xz", preset=9) as file:
        for each in sorted(root.rglob("*")):
            info = tarfile.TarInfo(str(each.relative_to(root)))
            if each.is_file():
                info.size = each.stat().st_size
                with each.open("rb") as content:
                    file.addfile(info, content)


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as temporary:
        for make in (t5, pegasus, mbart50, nllb, m2m100, marian, bart, byt5, mbart25, umt5, marian_two):
            make(Path(temporary))
            print(make.__name__)
        archive(Path(temporary), Path(__file__).with_name("tokenizers.tar.xz"))
