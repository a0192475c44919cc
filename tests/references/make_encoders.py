"""transformers' side of the tests of imported encoders: BERT and RoBERTa, written to encoders.npz beside this file.

    pip install torch==2.13.0 transformers==5.23.0 safetensors tokenizers sentencepiece protobuf
    python tests/references/make_encoders.py

Each case is a tiny model with random weights and a tokenizer of random words, so that no test needs transformers. It
has the files of a folder, and:

texts       random Unicode texts; `ids` are those of transformers, special tokens included, padded with -1
masked      texts with [MASK]; `masked_ids` are those of transformers
batch       ids of transformers of padded rows with one and two texts, `kinds` their kinds, `mask` what is no padding
states      the last hidden states of the batch
words       the logits of the first READ words of the batch, if the model has that output layer
follows     the logits of next sentences
"""

import io
import json
import os
import random
import sys
import tempfile
from functools import partial
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers

from references.make_tokenizers import FAIRSEQ, LINES, SPM, WORDS, draw_text

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
}  # fmt: skip
BERT_SPECIALS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
READ = 3
ARRAYS: dict[str, np.ndarray] = {}
RNG = random.Random(5)
TEXTS = ["", " ", "a", " a", "[CLS] a", "a [MASK]", "<s> a", "a<mask>", *(draw_text(RNG, WORDS) for _ in range(120))]
MASKED = [
    f"{a} [MASK] {b}." if at % 3 else f"[MASK] {a}, {b} [MASK]" for at, (a, b) in enumerate(zip(WORDS[:30], WORDS[30:]))
]


def bert_vocab(lower: bool) -> dict[str, int]:
    trained = tokenizers.BertWordPieceTokenizer(lowercase=lower)
    trained.train_from_iterator(LINES, 240, special_tokens=BERT_SPECIALS, show_progress=False, limit_alphabet=60)
    return trained.get_vocab()


def bert(folder: Path, lower: bool = True):
    tokenizer = transformers.BertTokenizer(bert_vocab(lower), do_lower_case=lower)
    tokenizer.save_pretrained(folder)
    return transformers.BertConfig, tokenizer


def old_bert(folder: Path):
    """A folder as of 2018: vocab.txt, and a config.json with few entries."""
    vocab = bert_vocab(False)
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in sorted(vocab, key=vocab.get)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    return transformers.BertConfig, transformers.BertTokenizer.from_pretrained(folder)


def roberta(folder: Path, strips: bool = True):
    """strips: whether <mask> takes the blank before it, as in the published models."""
    trained = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trained.train_from_iterator(LINES, 310, special_tokens=special, show_progress=False)
    saved = json.loads(trained.to_str())["model"]
    vocab = {**saved["vocab"], "<mask>": len(saved["vocab"])}
    mask = transformers.AddedToken("<mask>", lstrip=strips)
    tokenizer = transformers.RobertaTokenizer(vocab, [tuple(pair) for pair in saved["merges"]], mask_token=mask)
    tokenizer.save_pretrained(folder)
    return transformers.RobertaConfig, tokenizer


def xlm_roberta(folder: Path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        **{**SPM, **FAIRSEQ, "vocab_size": 250, "normalization_rule_name": "identity"},
    )
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    tokenizer = transformers.XLMRobertaTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "sentencepiece.bpe.model").unlink()
    return transformers.XLMRobertaConfig, tokenizer


def redraw(model: torch.nn.Module) -> None:
    """Draws all parameters, biases and norms included. Numbers of bfloat16 make smaller files."""
    numbers = np.random.default_rng(4)
    for name, value in model.named_parameters():
        drawn = numbers.normal(size=value.shape)
        drawn = 1 + drawn / 4 if "norm" in name.lower() and "weight" in name else drawn / np.sqrt(value.shape[-1])
        value.data = torch.tensor(drawn).bfloat16().float()


def batch(size: int, pad: int, mark: int, end: int, two: bool) -> tuple[np.ndarray, np.ndarray]:
    """Ids and kinds [B, S] of rows with one text and, in some, a second one."""
    random_ids = np.random.default_rng(3)
    rows, kinds = [], []
    for first, second in [(4, 0), (3, 4), (1, 0), (2, 2), (8, 0)]:
        ordinary = [*set(range(size)) - {pad, mark, end}]
        one, other = (random_ids.choice(ordinary, count).tolist() for count in (first, second))
        rows.append([mark, *one, end, *([*other, end] if second else [])])
        kinds.append([0] * (first + 2) + [int(two)] * (second + 1 if second else 0))
    longest = max(map(len, rows))
    fill = lambda each, value: np.array([[*row, *[value] * (longest - len(row))] for row in each])
    return fill(rows, pad), fill(kinds, 0)


def case(name: str, make, kind: str, **options) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name
        config_class, tokenizer = make(folder)
        settings = config_class(
            **SIZES, vocab_size=len(tokenizer) + options.pop("extra", 0), pad_token_id=tokenizer.pad_token_id, **options
        )
        model = getattr(transformers, kind)(settings)
        redraw(model)
        model.eval().save_pretrained(folder)
        if make is old_bert:
            rename_norms(folder)
        pad, mark, end = tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id
        ids, kinds = batch(settings.vocab_size, pad, mark, end, settings.type_vocab_size == 2)
        for file in FILES:
            if (folder / file).exists():
                store(name, file, np.frombuffer((folder / file).read_bytes(), np.uint8))
        mask = ids != pad
        tensors = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": kinds}
        with torch.no_grad():
            found = model(**{key: torch.tensor(value) for key, value in tensors.items()}, output_hidden_states=True)
        store(name, "states", found.hidden_states[-1].numpy())
        for ours, theirs in (
            ("words", "logits"),
            ("words", "prediction_logits"),
            ("follows", "seq_relationship_logits"),
        ):
            if kind.endswith(("MaskedLM", "PreTraining")) and theirs in found:
                store(name, ours, found[theirs].numpy()[:, :READ])
    for ours, value in (("batch", ids), ("kinds", kinds), ("mask", mask)):
        store(name, ours, value.astype(np.int16))
    store(name, "ids", padded([tokenizer(text, split_special_tokens=True)["input_ids"] for text in TEXTS]))
    spelled = [text.replace("[MASK]", tokenizer.mask_token) for text in MASKED]
    store(name, "masked_ids", padded([tokenizer(text)["input_ids"] for text in spelled]))


def rename_norms(folder: Path) -> None:
    """Gives the norms the names of 2018, gamma and beta."""
    from safetensors.numpy import load_file, save_file

    new = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    found = load_file(folder / "model.safetensors")
    for before, after in new.items():
        found = {name.replace(before, after): value for name, value in found.items()}
    save_file(found, folder / "model.safetensors", {"format": "pt"})


def padded(rows: list[list[int]]) -> np.ndarray:
    longest = max(map(len, rows))
    return np.array([[*row, *[-1] * (longest - len(row))] for row in rows], np.int16)


def store(name: str, key: str, value: np.ndarray) -> None:
    ARRAYS[f"{name}/{key}"] = value


if __name__ == "__main__":
    bert_sizes = {"max_position_embeddings": 14}
    case("bert", bert, "BertForPreTraining", **bert_sizes)
    case("bert-2018", old_bert, "BertForPreTraining", **bert_sizes)
    case("bert-plain", lambda folder: bert(folder, False), "BertModel", extra=7, hidden_act="relu", **bert_sizes)
    roberta_sizes = {"max_position_embeddings": 16, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    case("roberta", roberta, "RobertaForMaskedLM", **roberta_sizes)
    case("roberta-classifier", partial(roberta, strips=False), "RobertaForSequenceClassification", **roberta_sizes)
    case("xlm-roberta", xlm_roberta, "XLMRobertaForMaskedLM", **roberta_sizes)
    ARRAYS["texts"], ARRAYS["masked"] = (np.frombuffer(json.dumps(each).encode(), np.uint8) for each in (TEXTS, MASKED))
    np.savez_compressed(HERE / "encoders.npz", **ARRAYS)
