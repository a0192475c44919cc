"""Low-rank adapters alone, in the format of PEFT, beside the model that they were trained for.

    PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(original), folder)

A matrix W [outputs, inputs] of transformers becomes W + lora_alpha / r * B A, with A [r, inputs] and B [outputs, r].
Ours is x (K + adapter_scale * A B) with the transposed shapes, and A is shared by the matrices that are concatenated
in K.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.interop.correspondence import Row
from s2sjax.interop.formats import FAMILIES

START = "base_model.model."
"""start of the names of PEFT"""


def dump_adapters(
    settings: config.Transformer, params: Mapping[str, Any], model_type: str, original: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns adapter_config.json and the tensors of the adapters. original: name of the model without adapters."""
    family = FAMILIES[model_type]
    tensors: dict[str, np.ndarray] = {}
    modules: set[str] = set()
    for row in family.rows(settings, family.prefix):
        if not row.ours.endswith("/kernel") or "/blocks/" not in row.ours:
            continue
        for module, a, b in _of_row(row, params):
            modules.add(module.rpartition(".")[2])
            tensors[f"{START}{module}.lora_A.weight"] = a
            tensors[f"{START}{module}.lora_B.weight"] = b
    page = {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM",
        "base_model_name_or_path": original,
        "r": settings.adapter_rank,
        "lora_alpha": settings.adapter_rank * float(settings.adapter_scale),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(modules),
    }
    return page, dict(sorted(tensors.items()))


def _of_row(row: Row, params: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The name of each matrix of a kernel, and its A and B."""
    group: Any = params
    for name in row.ours.split("/")[:-1]:
        group = group[name]
    for layer, (a, b) in enumerate(zip(group["adapter_a"], group["adapter_b"])):
        parts = np.split(np.asarray(b, np.float32) / np.float32(row.factor), len(row.theirs), axis=-1)
        for name, part in zip(row.theirs, parts):
            module = name.format(layer).removesuffix(".weight")
            yield module, np.ascontiguousarray(np.asarray(a, np.float32).T), np.ascontiguousarray(part.T)


def check(settings: config.Transformer) -> None:
    """Raises a UserError for a model without adapters."""
    require(settings.adapter_rank > 0, "the run has no low-rank adapters: train it with model.adapter_rank above 0")
