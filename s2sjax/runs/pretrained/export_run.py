"""Writes a run as a folder that other libraries load."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from s2sjax import config, interop
from s2sjax.config import adapters, require
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.errors import UserError
from s2sjax.files import is_free, local_draft, replace_file
from s2sjax.interop import peft_format, safetensors_files
from s2sjax.runs import folder
from s2sjax.runs.folder import PRETRAINED
from s2sjax.runs.pretrained import encoder, language_model, original, translation, whisper
from s2sjax.runs.pretrained.importer import Exported
from s2sjax.runs.run import Run
from s2sjax.tasks import Classification, LanguageModel, Pretraining, Tagging, Transcription, Translation
from s2sjax.tasks.language_model import TransformerLM

FORMATS = ("hf", "ctranslate2", "peft")
EXPORTERS: Mapping[type, Callable[[Run, Any, interop.Origin | None, str | None], Exported]] = {
    Translation: translation.dump,
    LanguageModel: language_model.dump,
    Pretraining: encoder.dump,
    Classification: encoder.dump,
    Tagging: encoder.dump,
    Transcription: whisper.dump,
}
"""the exporter of each kind of experiment"""


def export(run: Run, out: str | Path, kind: str = "hf", *, dtype: str | None = None) -> Path:
    """Writes the best checkpoint of a run as a folder that other libraries load, and returns the folder.

    kind: hf, for transformers, ctranslate2, or peft for low-rank adapters alone. dtype: float32, float16 or bfloat16,
    by default that of the imported model, or float32.
    """
    out = config.as_path(out)
    require(kind in FORMATS, f"there is no format {kind!r}: choose from {', '.join(FORMATS)}")
    dump = next((each for of, each in EXPORTERS.items() if isinstance(run.experiment, of)), None)
    if dump is None:
        raise UserError(
            f"{run.folder} is a {run.task.model_name}: only Transformers that translate text, and runs that start from "
            "an imported model, can be exported"
        )
    for each, kinds, what in (
        ("ctranslate2", Translation, "translation"),
        ("peft", Translation | LanguageModel, "translation and language models"),
    ):
        require(
            kind != each or isinstance(run.experiment, kinds),
            f"{run.folder} is a {run.task.model_name}, and {kind} is for {what}: use hf",
        )
    require(is_free(out), f"{out} exists and is not empty: give another folder")
    with local_draft(out, "adapter_config.json" if kind == "peft" else "config.json") as draft:
        _write(run, draft, kind, dtype, dump)
    return out


def _write(
    run: Run, out: Path, kind: str, dtype: str | None,
    dump: Callable[[Run, Any, interop.Origin | None, str | None], Exported],
) -> None:  # fmt: skip
    """Writes the files of a format."""
    if kind == "peft":
        return _export_adapters(run, out)
    params = jax.tree.map(np.asarray, run.params()[0])
    if kind == "ctranslate2":
        from s2sjax.interop import ctranslate2_format

        vocabularies = translation.vocabularies(run)
        ctranslate2_format.write(out, run.experiment.model, params, *vocabularies, dtype or "float32")
        return None
    vocabulary = _pretrained_vocabulary(run)
    origin = original.read(run.folder / PRETRAINED) if vocabulary else None
    files = dict(vocabulary.files) if vocabulary else {}
    page, tensors = dump(run, params, origin, dtype)
    safetensors_files.write(out, tensors)
    for name, content in (files | {"config.json": (json.dumps(page, indent=2) + "\n").encode()}).items():
        replace_file(out / name, content)
    return None


def _pretrained_vocabulary(run: Run) -> PretrainedVocabulary | None:
    """The vocabulary whose files an export has."""
    found = (run.task.assets.get(name) for name in ("target", "text"))
    return next((each for each in found if isinstance(each, PretrainedVocabulary)), None)


def _without_adapters(experiment: Any) -> str:
    """The run that the adapters were first trained for: a run with the same adapters may have continued them."""
    settings = lambda model: (getattr(model, "adapter_rank", 0), getattr(model, "adapter_scale", 0))
    try:
        before = folder.read_experiment(config.as_path(experiment.init))
    except UserError:  # it is gone
        return str(experiment.init)
    continued = before.init and settings(before.model) == settings(experiment.model)
    return _without_adapters(before) if continued else str(experiment.init)


def _export_adapters(run: Run, out: Path) -> None:
    """Writes adapter_config.json and adapter_model.safetensors. The folder of the model without them is the user's."""
    settings, target = run.experiment.model, run.task.assets["target"]
    if isinstance(settings, TransformerLM):
        settings = settings.blocks(run.experiment.data.steps)
    peft_format.check(settings)
    found = original.read(run.folder / PRETRAINED) if isinstance(target, PretrainedVocabulary) else None
    if found is None:
        raise UserError(f"{run.folder} does not start from an imported model, to which its adapters belong: use hf")
    require(
        adapters.freezes_all_others(run.experiment),
        f"{run.folder} has trained more than its adapters, because train.frozen is set: use hf",
    )
    template = jax.eval_shape(run.task.init, jax.random.key(0))
    params, _ = run.checkpoints(read_only=True).restore_params(template)
    page, tensors = peft_format.dump_adapters(settings, params, found.model_type, _without_adapters(run.experiment))
    safetensors_files.write_file(out / "adapter_model.safetensors", tensors)
    replace_file(out / "adapter_config.json", json.dumps(page, indent=2) + "\n")
