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
from s2sjax.interop import safetensors_files
from s2sjax.runs.folder import PRETRAINED
from s2sjax.runs.pretrained import language_model, original
from s2sjax.runs.run import Run
from s2sjax.tasks.language_model import LanguageModel
from s2sjax.tasks.translation import SIDES, Translation

FORMATS = ("hf", "ctranslate2")


def export(run: Run, out: str | Path, kind: str = "hf", *, dtype: str | None = None) -> Path:
    """Writes the best checkpoint of a run as a folder that other libraries load, and returns the folder.

    kind: hf, for transformers' AutoModelForSeq2SeqLM (AutoModelForCausalLM for a GPT-2), or ctranslate2.
    dtype: float32, float16 or bfloat16, by default that of the imported model, or float32.
    """
    out = config.local_path(out)
    require(kind in FORMATS, f"there is no format {kind!r}: choose from {', '.join(FORMATS)}")
    continues = isinstance(run.experiment, LanguageModel)
    require(
        continues or (isinstance(run.experiment, Translation) and isinstance(run.experiment.model, config.Transformer)),
        f"{run.folder} is a {run.task.model_name}: only a Transformer that translates text can be exported",
    )
    require(kind == "hf" or not continues, f"{run.folder} is a language model, and {kind} is for translation: use hf")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty: give another folder")
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
