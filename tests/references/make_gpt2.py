"""GPT-2 of transformers for the tests of language models: tiny ones with random weights, and what they compute.

    pip install torch==2.13.0 transformers==5.23.0 safetensors tokenizers
    python tests/references/make_gpt2.py

Writes gpt2.npz beside this file, so that the tests need no transformers. Of each model: the files of its folder, texts
and their ids, a batch and its logits, and the greedy continuations of some texts by `generate`.

gpt2       as transformers 5 saves it
released   as in the folder of the released GPT-2: names without "transformer.", masks of attention among the tensors,
           vocab.json and merges.txt in the place of tokenizer.json; float16
untied     an output layer of its own, other sizes, a token for padding, and more rows than the tokenizer has pieces
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.numpy import load_file, save_file

from references.make_pretrained import redraw
from references.make_tokenizers import LINES, SPELLED, STRANGE, TEXTS

ARRAYS: dict[str, np.ndarray] = {}
END, POSITIONS, WRITTEN = "<|endoftext|>", 24, 8
SIZES = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": POSITIONS}
MODELS = {
    "gpt2": SIZES,
    "released": SIZES | {"n_layer": 1, "n_head": 4},
    "untied": SIZES | {
        "n_inner": 24, "activation_function": "silu", "tie_word_embeddings": False, "layer_norm_epsilon": 1e-4,
    },
}  # fmt: skip
FUZZED = [*TEXTS, *STRANGE, *(f"a {END}{each}" for each in SPELLED), END, f" {END} ", "a  b", "  a b ", "\ta\n\nb"]
PROMPTS = ["a", "the house", " blau und", "日本語", "it's 12,345 and", "x" * 6]


def tokenizer_of(name: str) -> transformers.PreTrainedTokenizerBase:
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES, 340, special_tokens=[END] if name == "untied" else [], show_progress=False)
    saved = json.loads(trained.to_str())["model"]
    vocab = saved["vocab"] if name == "untied" else {**saved["vocab"], END: len(saved["vocab"])}
    options = {"pad_token": "[PAD]"} if name == "untied" else {}
    return transformers.GPT2Tokenizer(vocab, [tuple(pair) for pair in saved["merges"]], **options)


def released(folder: Path) -> None:
    """Changes the files of a folder to those of the released GPT-2."""
    tensors = load_file(folder / "model.safetensors")
    plain = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    plain["h.0.attn.bias"] = np.tril(np.ones((1, 1, POSITIONS, POSITIONS), np.float32))
    save_file(plain, folder / "model.safetensors", {"format": "pt"})
    saved = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(saved["vocab"]))
    lines = [pair if isinstance(pair, str) else " ".join(pair) for pair in saved["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines]) + "\n")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


def made(name: str, folder: Path, seed: int) -> None:
    tokenizer = tokenizer_of(name)
    end = tokenizer.eos_token_id
    size = len(tokenizer) + (5 if name == "untied" else 0)
    sampled = {"do_sample": True, "top_p": 0.9} if name == "released" else {}
    settings = transformers.GPT2Config(**MODELS[name], vocab_size=size, bos_token_id=end, eos_token_id=end)
    model = transformers.GPT2LMHeadModel(settings).eval()
    redraw(model, seed)
    if name == "untied":  # some outputs end
        model.lm_head.weight.data[end] = 1.05 * model.lm_head.weight.data[150]
    for key, value in sampled.items():
        setattr(model.generation_config, key, value)
    (model.half() if name == "released" else model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if name == "released":
        released(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    ids = [tokenizer(text, split_special_tokens=True)["input_ids"] for text in FUZZED]
    random = np.random.default_rng(seed)
    batch = random.integers(0, size, (2, 16))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(batch)).logits.numpy()
        written = [continuation(model, tokenizer, text, end) for text in PROMPTS]
    for path in sorted(folder.iterdir()):
        ARRAYS[f"{name}/files/{path.name}"] = np.frombuffer(path.read_bytes(), np.uint8)
    ARRAYS[f"{name}/ids"] = np.array(json.dumps(ids))
    ARRAYS[f"{name}/batch"], ARRAYS[f"{name}/logits"] = batch.astype(np.int16), logits.astype(np.float32)
    ARRAYS[f"{name}/written"] = np.array(json.dumps(written))


def continuation(model: torch.nn.Module, tokenizer: transformers.PreTrainedTokenizerBase, text: str, end: int):
    read = tokenizer(text, return_tensors="pt")
    found = model.generate(**read, max_new_tokens=WRITTEN, do_sample=False, pad_token_id=end)[0].tolist()
    return found[: found.index(end)] if end in found else found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for seed, name in enumerate(MODELS):
            made(name, Path(temporary) / name, seed)
    ARRAYS["texts"], ARRAYS["prompts"] = np.array(json.dumps(FUZZED)), np.array(json.dumps(PROMPTS))
    np.savez_compressed(HERE / "gpt2.npz", **ARRAYS)
