"""Writes a run as a folder that other libraries load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from s2sjax import config, interop
from s2sjax.config import require
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.data.text.vocabulary import AnyVocabulary
from s2sjax.errors import UserError
from s2sjax.files import replace_file
from s2sjax.interop import peft_format, safetensors_files
from s2sjax.runs.folder import PRETRAINED
from s2sjax.runs.pretrained import language_model, original
from s2sjax.runs.run import Run
from s2sjax.tasks.language_model import LanguageModel
from s2sjax.tasks.translation import SIDES, Translation

FORMATS = ("hf", "ctranslate2", "peft")


def export(run: Run, out: str | Path, kind: str = "hf", *, dtype: str | None = None) -> Path:
    """Writes the best checkpoint of a run as a folder that other libraries load, and returns the folder.

    kind: hf, for transformers' AutoModelForSeq2SeqLM (AutoModelForCausalLM for a GPT-2), ctranslate2, or peft for
    low-rank adapters alone. dtype: float32, float16 or bfloat16, by default that of the imported model, or float32.
    """
    out = config.local_path(out)
    require(kind in FORMATS, f"there is no format {kind!r}: choose from {', '.join(FORMATS)}")
    continues = isinstance(run.experiment, LanguageModel)
    require(
        continues or (isinstance(run.experiment, Translation) and type(run.experiment.model) is config.Transformer),
        f"{run.folder} is a {run.task.model_name}: only a Transformer that translates text can be exported",
    )
    for side in SIDES if not continues else ():
        require(
            not getattr(run.experiment.data, side).spelling.on,
            f"{run.folder} computes word vectors from characters (data.{side}.spelling), which no format can hold",
        )
    require(kind == "hf" or not continues, f"{run.folder} is a language model, and {kind} is for translation: use hf")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty: give another folder")
    if kind == "peft":
        return _export_adapters(run, out)
    params = jax.tree.map(np.asarray, run.params()[0])
    source, target = (run.task.assets.get(side, run.task.assets["target"]) for side in SIDES)
    if kind == "ctranslate2":
        from s2sjax.interop import ctranslate2_format

        return ctranslate2_format.write(out, run.experiment.model, params, source, target, dtype or "float32")
    origin, files = None, {}
    if isinstance(target, PretrainedVocabulary):
        origin, files = original.read(run.folder / PRETRAINED), dict(target.files)
    if isinstance(run.experiment, LanguageModel):
        page, tensors = language_model.dump(run.experiment, params, target, origin, dtype)
    else:
        foreign = _foreign_ids(source, target)
        page, tensors = interop.dump(run.experiment.model, params, foreign, origin, dtype=dtype)
    safetensors_files.write(out, tensors)
    for name, content in (files | {"config.json": (json.dumps(page, indent=2) + "\n").encode()}).items():
        replace_file(out / name, content)
    return out


def _foreign_ids(source: AnyVocabulary, target: AnyVocabulary) -> Any:
    """The ids that an export has for ours: those of the original, or our own."""
    ids = [one.foreign if isinstance(one, PretrainedVocabulary) else np.arange(one.size) for one in (source, target)]
    return ids[1] if source.all_pieces == target.all_pieces else tuple(ids)


def _export_adapters(run: Run, out: Path) -> Path:
    """Writes adapter_config.json and adapter_model.safetensors. The folder of the model without them is the user's."""
    settings, target = run.experiment.model, run.task.assets["target"]
    peft_format.check(settings)
    found = original.read(run.folder / PRETRAINED) if isinstance(target, PretrainedVocabulary) else None
    if found is None:
        raise UserError(f"{run.folder} does not start from an imported model, to which its adapters belong: use hf")
    template = jax.eval_shape(run.task.init, jax.random.key(0))
    params, _ = run.checkpoints(read_only=True).restore_params(template)
    page, tensors = peft_format.dump_adapters(settings, params, found.model_type, str(run.experiment.init))
    safetensors_files.write_file(out / "adapter_model.safetensors", tensors)
    replace_file(out / "adapter_config.json", json.dumps(page, indent=2) + "\n")
    return out
