"""The importer of BERT and RoBERTa, a run of pre-training, and the export of all that starts from one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from s2sjax import config, interop
from s2sjax.config import require
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.interop.dump_encoder import End, dump_encoder, heads_of
from s2sjax.interop.families import bert
from s2sjax.interop.load_encoder import load_encoder
from s2sjax.runs import folder as run_folder
from s2sjax.runs.pretrained import original
from s2sjax.runs.pretrained.importer import Exported, Imported, Options, buckets
from s2sjax.runs.run import Run
from s2sjax.tasks import Classification, Tagging
from s2sjax.tasks.pretraining import BertModel, Paragraphs, Pretraining
from s2sjax.tasks.tagging.tagged_sentences import labels_of

USE = 'fill in [MASK] with s2sjax decode {run}, or start an experiment from it with init="{run}"'


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
    return Imported(experiment, task.assets, _updated(new, found.params), found.dtype, found.origin, found.remarks, USE)


def _updated(params: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with those that were found; layers that the file does not have keep their initial values."""
    return dict(params) | {
        name: _updated(params.get(name, {}), leaf) if isinstance(leaf, Mapping) else leaf
        for name, leaf in found.items()
    }


def dump(run: Run, params: Any, origin: interop.Origin | None, dtype: str | None) -> Exported:
    """The entries of config.json and the tensors of a run. Raises a UserError for an encoder that was not imported."""
    original.check(origin, run.task.assets.get("text"), run.folder)
    require(
        origin is not None and origin.model_type in bert.FAMILIES,
        f"{run.folder} does not start from an imported BERT or RoBERTa: no format of transformers has its vocabulary",
    )
    assert origin is not None
    experiment = run.experiment
    end, labels = (
        _of_classifier(run) if isinstance(experiment, Classification)
        else _of_tagger(run) if isinstance(experiment, Tagging)
        else (_of_pretraining(run, origin), [])
    )  # fmt: skip
    foreign = run.task.assets["text"].foreign
    return Exported(*dump_encoder(experiment.model.encoder, params, foreign, origin, end, labels, dtype))


def _of_classifier(run: Run) -> tuple[End, list[str]]:
    pooling = run.experiment.model.pooling
    require(
        pooling == "pooler",
        f"{run.folder} has model.pooling {pooling}, and the classifiers of transformers read the first state through a "
        "dense layer with tanh: train it with model.pooling pooler",
    )
    return "ForSequenceClassification", list(run.task.assets["labels"].names)


def _of_tagger(run: Run) -> tuple[End, list[str]]:
    model = run.experiment.model
    for name, value in (("crf", model.crf), ("intent", model.intent)):
        require(
            not value,
            f"{run.folder} has model.{name} {value}, and the taggers of transformers score each word alone: train it "
            f"without model.{name}",
        )
    return "ForTokenClassification", labels_of(run.task.assets["tags"])


def _of_pretraining(run: Run, origin: interop.Origin) -> End | None:
    """The class of a run of pre-training; None for that of the original, if it has the layers that were trained."""
    model, family = run.experiment.model, bert.FAMILIES[origin.model_type]
    for name, mine, theirs in (
        ("activation", model.activation, family.head_activation(origin.hf_config)),
        ("epsilon", model.epsilon, family.settings(origin.hf_config).epsilon),
    ):
        require(
            mine == theirs,
            f"model.{name} is {mine!r}, and {theirs!r} in the imported model: such a model cannot be exported",
        )
    there = heads_of(origin)
    if run_folder.read_config(run.folder)["init"] is None:
        return None
    has_next = "next" in there or (model.next_weight > 0 and origin.model_type == "bert")
    trained = {"words", "next"} if has_next else {"words"}
    return None if trained == there else "ForPreTraining" if has_next else "ForMaskedLM"
