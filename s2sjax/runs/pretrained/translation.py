"""The importer of encoder-decoders, Marian, BART, mBART, M2M100 and NLLB, Pegasus, T5, and their export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from s2sjax import config, interop
from s2sjax.config import require
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.data.text.vocabulary import AnyVocabulary
from s2sjax.interop import generation
from s2sjax.runs.pretrained.importer import Exported, Imported, Options, buckets
from s2sjax.runs.run import Run
from s2sjax.tasks.translation import SIDES, Translation

DIVIDED = (
    "transformers 5 divides the logits of this model by the square root of its width; s2sjax does not, as in training"
)
"""what an import says about a UMT5 that does not scale the input of its output layer"""


def read(folder: Path, name: str, options: Options) -> Imported:
    """Reads a folder as a run of translation with this name."""
    languages = options.source_language, options.target_language
    vocabularies = {side: PretrainedVocabulary.from_folder(folder, side, *languages) for side in SIDES}  # type: ignore[arg-type]
    source, target = vocabularies.values()
    found = interop.load(folder, (source.foreign, target.foreign))
    shared = source.all_pieces == target.all_pieces
    require(
        shared or not found.settings.ties_embeddings,
        f"{folder}: the tokenizer has two vocabularies, and the model one table for both: the files are of different "
        "models",
    )
    search, remarks = generation.search_settings(folder, found.settings, bool(target.forced_begin))
    text = config.Text(unit="pretrained", normalize="none")
    lengths = buckets(found.settings.max_positions)
    data = config.Data(
        corpus=config.TextFiles(test=options.test), source=text, target=text, shared=shared,
        buckets=tuple((length, length) for length in lengths),
    )  # fmt: skip
    experiment = Translation(
        name, data=data, model=found.settings, search=search, evaluate=config.Evaluate(metrics=("bleu", "chrf")),
        train=config.Train(steps=1),
    )  # fmt: skip
    if found.origin.model_type == "umt5" and not found.settings.scale_output:
        remarks.append(DIVIDED)
    return Imported(experiment, vocabularies, found.params, found.dtype, found.origin, remarks)


def vocabularies(run: Run) -> tuple[AnyVocabulary, AnyVocabulary]:
    """The vocabularies of source and target. Raises a UserError for a run that no format can hold."""
    require(
        type(run.experiment.model) is config.Transformer,
        f"{run.folder} is a {run.task.model_name}: only a Transformer that translates text can be exported",
    )
    for side in SIDES:
        require(
            not getattr(run.experiment.data, side).spelling.on,
            f"{run.folder} computes word vectors from characters (data.{side}.spelling), which no format can hold",
        )
    source, target = (run.task.assets.get(side, run.task.assets["target"]) for side in SIDES)
    return source, target


def dump(run: Run, params: Any, origin: interop.Origin | None, dtype: str | None) -> Exported:
    """The entries of config.json and the tensors of a run."""
    both = vocabularies(run)
    ids_of = lambda one: one.foreign if isinstance(one, PretrainedVocabulary) else np.arange(one.size)
    source, target = map(ids_of, both)
    foreign = target if both[0].all_pieces == both[1].all_pieces else (source, target)
    return Exported(*interop.dump(run.experiment.model, params, foreign, origin, dtype=dtype))
