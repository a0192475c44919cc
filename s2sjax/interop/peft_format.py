"""Low-rank adapters alone, in the format of PEFT, beside the model that they were trained for.

    PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(original), folder)

A matrix W [outputs, inputs] of transformers becomes W + lora_alpha / r * B A, with A [r, inputs] and B [outputs, r].
Ours is x (K + adapter_scale * A B) with the transposed shapes, and A is shared by the matrices that are concatenated
in K. GPT-2 concatenates queries with keys and values, which have adapters of their own here: both together have twice
the rank, A = [A_q A_kv] and B with B_q and B_kv on its diagonal.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.interop.correspondence import Row
from s2sjax.interop.families import gpt2
from s2sjax.interop.families.family import ExportedFamily
from s2sjax.interop.formats import FAMILIES

START = "base_model.model."
"""start of the names of PEFT"""


def dump_adapters(
    settings: config.Transformer, params: Mapping[str, Any], model_type: str, original: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns adapter_config.json and the tensors of the adapters. original: name of the model without adapters."""
    continues = model_type == gpt2.FAMILY.model_type
    family: ExportedFamily = gpt2.FAMILY if continues else FAMILIES[model_type]
    tensors: dict[str, np.ndarray] = {}
    modules: set[str] = set()
    for row in family.rows(settings, family.prefix):
        if not row.ours.endswith("/kernel") or "blocks/" not in row.ours:
            continue
        for module, a, b in _of_row(row, params):
            modules.add(module.rpartition(".")[2])
            tensors[f"{START}{module}.lora_A.weight"] = a
            tensors[f"{START}{module}.lora_B.weight"] = b
    rank, alpha = settings.adapter_rank, settings.adapter_rank * float(settings.adapter_scale)
    page: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if continues else "SEQ_2_SEQ_LM",
        "base_model_name_or_path": original,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": continues,
        "inference_mode": True,
        "target_modules": sorted(modules),
    }
    if continues:
        page |= {"rank_pattern": {"c_attn": 2 * rank}, "alpha_pattern": {"c_attn": 2 * alpha}}
    return page, dict(sorted(tensors.items()))


def _of_row(row: Row, params: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The name of each matrix of a kernel, and its A and B."""
    for layer, (a, b) in enumerate(zip(*_adapter(params, row.ours.removesuffix("/kernel")))):
        parts = np.split(b / np.float32(row.factor), len(row.theirs), axis=-1)
        for name, part in zip(row.theirs, parts):
            module = name.format(layer).removesuffix(".weight")
            yield module, np.ascontiguousarray(a.T), np.ascontiguousarray(part.T)


def _adapter(params: Mapping[str, Any], path: str) -> tuple[np.ndarray, np.ndarray]:
    """A and B of all layers: [layers, inputs, r] and [layers, r, outputs]."""
    parent, _, last = path.rpartition("/")
    if last == "query_key_value":
        (a, b), (c, d) = (_adapter(params, f"{parent}/{name}") for name in ("query", "key_value"))
        b, d = np.pad(b, ((0, 0), (0, 0), (0, d.shape[-1]))), np.pad(d, ((0, 0), (0, 0), (b.shape[-1], 0)))
        return np.concatenate([a, c], axis=-1), np.concatenate([b, d], axis=-2)
    group: Any = params
    for name in path.split("/"):
        group = group[name]
    return np.asarray(group["adapter_a"], np.float32), np.asarray(group["adapter_b"], np.float32)


def check(settings: config.Transformer) -> None:
    """Raises a UserError for a model without adapters."""
    require(settings.adapter_rank > 0, "the run has no low-rank adapters: train it with model.adapter_rank above 0")
