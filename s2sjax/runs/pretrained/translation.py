"""The importer of encoder-decoders: Marian, BART, mBART, M2M100 and NLLB, Pegasus, T5 and its relatives."""

from __future__ import annotations

from pathlib import Path

from s2sjax import config, interop
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.interop import generation
from s2sjax.runs.pretrained.importer import Imported, Options, buckets
from s2sjax.tasks.translation import SIDES, Translation


def read(folder: Path, name: str, options: Options) -> Imported:
    """Reads a folder as a run of translation with this name."""
    languages = options.source_language, options.target_language
    vocabularies = {side: PretrainedVocabulary.from_folder(folder, side, *languages) for side in SIDES}  # type: ignore[arg-type]
    target = vocabularies["target"]
    found = interop.load(folder, target.foreign)
    search, remarks = generation.search_settings(folder, found.settings, bool(target.forced_begin))
    text = config.Text(unit="pretrained", normalize="none")
    lengths = buckets(found.settings.max_positions)
    data = config.Data(
        corpus=config.TextFiles(test=options.test), source=text, target=text, shared=True,
        buckets=tuple((length, length) for length in lengths),
    )  # fmt: skip
    experiment = Translation(
        name, data=data, model=found.settings, search=search, evaluate=config.Evaluate(metrics=("bleu", "chrf")),
        train=config.Train(steps=1),
    )  # fmt: skip
    return Imported(experiment, vocabularies, found.params, found.dtype, found.origin, remarks)
