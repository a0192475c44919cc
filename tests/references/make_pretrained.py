"""transformers' side of the tests of s2sjax.interop: its files and logits, written to pretrained.npz beside this file.

    pip install torch==2.13.0 transformers==5.23.0 safetensors
    python tests/references/make_pretrained.py

Two kinds of cases, of tiny models with random weights, so that no test needs transformers:

imported    the files that transformers saved, a padded batch, and its logits
exported    a Transformer of s2sjax that `dump` has written and transformers has loaded: the logits, and a digest of the
            files. Its parameters are drawn with NumPy, as the tests do.
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

import numpy as np
import torch
import transformers

from references.pretrained_cases import EXPORTED, draw_parameters, foreign_ids, own_foreign
from s2sjax.interop import dump, safetensors_files
from s2sjax.interop.formats import vocabularies_of

ARRAYS: dict[str, np.ndarray] = {}
SIZES = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 12,
}  # fmt: skip
T5 = {
    "vocab_size": 40, "d_model": 16, "d_kv": 4, "num_heads": 3, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3,
    "decoder_start_token_id": 0,
}  # fmt: skip
MARIAN = SIZES | {
    "pad_token_id": 39,
    "decoder_start_token_id": 39,
    "activation_function": "swish",
    "scale_embedding": True,
}
MODELS = {
    "marian": transformers.MarianConfig(**MARIAN),
    "bart": transformers.BartConfig(**SIZES),
    "bart-bfloat16": transformers.BartConfig(**SIZES),
    "bart-untied": transformers.BartConfig(**SIZES, tie_word_embeddings=False),
    "mbart": transformers.MBartConfig(**SIZES, decoder_start_token_id=2, scale_embedding=True),
    "m2m_100": transformers.M2M100Config(**SIZES),
    "pegasus": transformers.PegasusConfig(**SIZES, scale_embedding=True),
    "blenderbot": transformers.BlenderbotConfig(**SIZES),
    "t5": transformers.T5Config(**T5),
    "t5-v1.1": transformers.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    # The heads of t5-3b and t5-11b are 128 wide, whose square root is no float: 8 has such a root too.
    "t5-inexact": transformers.T5Config(**(T5 | {"d_kv": 8})),
    "mt5": transformers.MT5Config(**T5),
    "umt5": transformers.UMT5Config(**T5),
    "umt5-untied": transformers.UMT5Config(**T5),
    "marian-two": transformers.MarianConfig(
        **(MARIAN | {"vocab_size": 44}), decoder_vocab_size=40, share_encoder_decoder_embeddings=False
    ),
}


def redraw(model: torch.nn.Module, seed: int) -> None:
    """Draws all parameters, biases and norms included; the positions that are no parameters stay."""
    random = np.random.default_rng(seed)
    fixed = [
        module.weight
        for module in model.modules()
        if "Sinusoidal" in type(module).__name__ and hasattr(module, "weight")
    ]
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if any(value is table for table in fixed) or name.endswith("embed_positions.weights"):
                continue
            drawn = random.normal(size=value.shape)
            drawn = 1 + drawn / 4 if "norm" in name and name.endswith("weight") else drawn / np.sqrt(value.shape[-1])
            value.copy_(torch.tensor(drawn.astype(np.float32)))


def batch(seed: int, sizes: tuple[int, int], lengths: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets in ids of s2sjax, with <pad> at the end of each row: all ordinary ids occur."""
    random = np.random.default_rng(seed)
    rows = [[random.integers(3, size, length) for size, length in zip(sizes, pair)] for pair in lengths]
    pad = lambda row, length: np.pad(row, (0, length - len(row)))
    longest = [max(pair[i] for pair in lengths) for i in (0, 1)]
    return tuple(np.stack([pad(row[i], longest[i]) for row in rows]) for i in (0, 1))


def logits_of(folder: Path, source: np.ndarray, target: np.ndarray, source_foreign, target_foreign) -> np.ndarray:
    """Teacher-forced logits [B, T, V], in the order of our ids."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if "umt5-untied" in folder.name:  # transformers 5 sets it true, and 4 as the file says
        model.config.tie_word_embeddings = False
    start = model.config.decoder_start_token_id
    forced = np.pad(target_foreign[target][:, :-1], ((0, 0), (1, 0)), constant_values=start)
    with torch.no_grad():
        done = model.eval()(
            input_ids=torch.tensor(source_foreign[source]).long(),
            attention_mask=torch.tensor(source != 0).long(),
            decoder_input_ids=torch.tensor(forced).long(),
        )
    return done.logits.numpy()[..., target_foreign].astype(np.float32)


def imported(name: str, settings: transformers.PretrainedConfig, folder: Path, seed: int) -> None:
    model = transformers.AutoModelForSeq2SeqLM.from_config(settings)
    if name in ("t5-v1.1", "mt5", "umt5-untied"):
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.shared.weight))
    redraw(model, seed)
    (model.bfloat16() if name.endswith("bfloat16") else model).save_pretrained(folder)
    both = vocabularies_of(foreign_ids(json.loads((folder / "config.json").read_text()))).values()
    lengths = [(5, 6), (7, 4), (1, 1), (3, 7)] if name not in ("t5", "umt5") else [(140, 140), (7, 4)]
    source, target = batch(seed, tuple(map(len, both)), lengths)
    for file in ("config.json", "model.safetensors"):
        ARRAYS[f"imported/{name}/{file}"] = np.frombuffer((folder / file).read_bytes(), np.uint8)
    ARRAYS[f"imported/{name}/source"] = source.astype(np.uint8)
    ARRAYS[f"imported/{name}/target"] = target.astype(np.uint8)
    ARRAYS[f"imported/{name}/logits"] = logits_of(folder, source, target, *both)


def exported(name: str, folder: Path) -> None:
    settings, sizes = EXPORTED[name]
    source_foreign, target_foreign = foreign = own_foreign(sizes)
    hf_config, tensors = dump(settings, draw_parameters(settings, sizes), foreign)
    [path] = safetensors_files.write(folder, tensors)
    (folder / "config.json").write_text(json.dumps(hf_config))
    source, target = batch(7, (min(sizes),) * 2, [(5, 6), (9, 4), (1, 1)])
    ARRAYS[f"exported/{name}/digest"] = np.array(hashlib.sha256(path.read_bytes()).hexdigest())
    ARRAYS[f"exported/{name}/config.json"] = np.array(json.dumps(hf_config))
    ARRAYS[f"exported/{name}/source"], ARRAYS[f"exported/{name}/target"] = source, target
    ARRAYS[f"exported/{name}/logits"] = logits_of(folder, source, target, source_foreign, target_foreign)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for seed, (name, settings) in enumerate(MODELS.items()):
            imported(name, settings, Path(temporary) / name, seed)
        for name in EXPORTED:
            exported(name, Path(temporary) / f"exported-{name}")
    np.savez_compressed(HERE / "pretrained.npz", **ARRAYS)
