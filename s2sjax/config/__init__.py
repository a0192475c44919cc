"""The settings of an experiment, as nested frozen dataclasses.

An experiment file builds one experiment of a task (s2sjax/tasks); the command line overrides any field by its dotted
name (`--model.width 256`). A combination that cannot work raises an error when it is built.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from s2sjax import former_names
from s2sjax.config.data import (
    Cmudict,
    Corpus,
    Data,
    Mixture,
    PlainText,
    Prepared,
    Spelling,
    Synthetic,
    Text,
    TextFiles,
    Tfds,
)
from s2sjax.config.evaluation import Evaluate, EvaluationSettings, Metric, PredictionSettings
from s2sjax.config.experiment import Experiment
from s2sjax.config.frames import Frame, FrameFiles, Tabular
from s2sjax.config.in_memory import InMemory
from s2sjax.config.models.convolutional_settings import RCTM, ConvS2S
from s2sjax.config.models.dense_settings import DenseDense, LSTMDense
from s2sjax.config.models.hybrid_settings import Hybrid, MixerName
from s2sjax.config.models.pair import Family, ModelConfig, Pair, encoder_and_decoder, model_name
from s2sjax.config.models.recurrent_settings import GNMT, CellName, Cho, Luong, RNNsearch, Sutskever
from s2sjax.config.models.specs import Carries, DecoderSpec, EncoderSpec, ModelSettings, RecurrentSpec
from s2sjax.config.models.transformer_settings import Transformer
from s2sjax.config.numbers import argument, numbers, traced, with_numbers
from s2sjax.config.paths import AnyPath, FilePath, missing_data, require_data, resolve_paths, without_folders
from s2sjax.config.search import Sampling, Search
from s2sjax.config.serialize import from_json, kind_of, to_json
from s2sjax.config.settings import at_least, check_buckets, mapped, parts, require, settings
from s2sjax.config.training import SIZED_BY_DATA, Mesh, ScheduledSampling, Softmax, Train
from s2sjax.files import as_path, local_path, relative_path

replace = dataclasses.replace


def __getattr__(name: str) -> Any:
    """Settings of tasks that were here in version 0.1, also for `from s2sjax.config import *`."""
    return former_names.star(globals()) if name == "__all__" else former_names.setting(name)
