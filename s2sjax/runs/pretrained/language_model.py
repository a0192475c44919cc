"""The importer of GPT-2, as a run of a language model, and its export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s2sjax import config, interop
from s2sjax.config import require
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.interop import generation
from s2sjax.interop.language_models import dump_language_model, load_language_model
from s2sjax.runs.pretrained.importer import Exported, Imported, Options
from s2sjax.runs.run import Run
from s2sjax.tasks.language_model import Continuation, LanguageModel, PerplexityEvaluate, TransformerLM

SHARED = (
    "width", "heads", "feedforward", "norm", "positions", "dropout", "max_length", "head_width", "activation", "gated",
    "normalization", "epsilon", "biases", "scale_embedding", "output_bias",
)  # fmt: skip
"""settings that a language model has in common with other Transformers"""
IGNORED: Mapping[str, Any] = {
    "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "num_beams": 1, "typical_p": 1.0, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "min_length": 0, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
"""settings of `generate` that a language model does not have, and their usual values"""

USE = "continue lines with s2sjax decode {run}"


def read(folder: Path, name: str, options: Options) -> Imported:
    """Reads a folder as a run of a language model with this name."""
    require(
        len(options.test) <= 1,
        f"--test has {len(options.test)} files, and a language model is evaluated on one, with a text in each line: "
        "name one",
    )
    vocabulary = PretrainedVocabulary.from_folder(folder, "target", options.source_language, options.target_language)
    found = load_language_model(folder, vocabulary.foreign)
    blocks = found.settings
    model = TransformerLM(
        layers=blocks.decoder_layers, tie=blocks.tie == "all", **{field: getattr(blocks, field) for field in SHARED}
    )
    search, remarks = _continuation(generation.read_settings(folder))
    data = config.PlainText(
        test=options.test[0] if options.test else "", unit="pretrained", steps=blocks.max_length, batch_size=1
    )
    experiment = LanguageModel(
        name, data=data, model=model, search=search, train=config.Train(steps=1), evaluate=PerplexityEvaluate()
    )
    return Imported(experiment, {"target": vocabulary}, found.params, found.dtype, found.origin, remarks, USE)


def _continuation(page: Mapping[str, Any]) -> tuple[Continuation, list[str]]:
    """The settings of `generate` for continuations, and lines on what was not taken."""
    generation.check(page)
    number = lambda name, usual: usual if page.get(name) is None else page[name]
    fields: dict[str, Any] = {"temperature": 0.0}
    if page.get("do_sample"):
        fields = {
            "temperature": float(number("temperature", 1.0)), "top_k": int(number("top_k", 50)),
            "top_p": float(number("top_p", 1.0)), "min_p": float(number("min_p", 0.0)),
        }  # fmt: skip
    if page.get("max_new_tokens"):
        fields["max_length"] = int(page["max_new_tokens"]) + 1  # ours counts <eos>
    remarks = [
        f"{name} {page[name]} of generate is not taken: a language model has no such setting"
        for name, usual in IGNORED.items()
        if page.get(name) not in (usual, None, [])
    ]
    return Continuation(**fields, after_eos=False), remarks


def dump(run: Run, params: Any, origin: interop.Origin | None, dtype: str | None) -> Exported:
    """The entries of config.json and the tensors of a run. Raises a UserError for a model that was not imported."""
    experiment, model = run.experiment, run.experiment.model
    require(
        isinstance(model, TransformerLM) and origin is not None,
        "only a language model that was imported, or fine-tuned from one, can be exported: no format of transformers "
        "has other vocabularies",
    )
    assert origin is not None
    settings = config.replace(
        model.blocks(experiment.data.steps), tie="all" if model.tie else "embeddings", output_bias=model.output_bias
    )
    return Exported(*dump_language_model(settings, params, run.task.assets["target"].foreign, origin, dtype))
