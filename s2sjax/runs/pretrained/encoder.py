"""The importer of BERT and RoBERTa: a run of pre-training, whose encoder starts classifiers and taggers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.interop.load_encoder import load_encoder
from s2sjax.runs.pretrained.importer import Imported, Options, buckets
from s2sjax.tasks.pretraining import BertModel, Paragraphs, Pretraining

USE = "fill in [MASK] with s2sjax decode {run}, or start others with s2sjax train FILE --init {run} --init-assets"


def read(folder: Path, name: str, options: Options) -> Imported:
    """Reads a folder as a run of pre-training with this name."""
    vocabulary = PretrainedVocabulary.from_folder(folder, "source", options.source_language, options.target_language)
    require(
        len(options.test) <= 1,
        f"--test has {len(options.test)} files, and an encoder is evaluated on one, with a text in each line: name one",
    )
    found = load_encoder(folder, vocabulary.foreign)
    lengths = buckets(found.settings.max_positions)
    experiment = Pretraining(
        name,
        data=Paragraphs(
            test=options.test[0] if options.test else "",
            text=config.Text(unit="pretrained", normalize="none"),
            buckets=tuple((length,) for length in lengths),
        ),
        model=BertModel(
            found.settings,
            next_weight=1.0 if found.has_next else 0.0,
            activation=found.activation,
            epsilon=found.settings.epsilon,
        ),
        train=config.Train(steps=1),
    )
    task = experiment.task().replace(assets={"text": vocabulary})
    new = jax.tree.map(np.asarray, task.init(jax.random.key(experiment.seed)))
    return Imported(experiment, task.assets, _updated(new, found.params), found.dtype, None, found.remarks, USE)


def _updated(params: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with those that were found; layers that the file does not have keep their initial values."""
    return dict(params) | {
        name: _updated(params.get(name, {}), leaf) if isinstance(leaf, Mapping) else leaf
        for name, leaf in found.items()
    }
