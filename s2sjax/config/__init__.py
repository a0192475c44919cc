"""The settings of an experiment, as nested frozen dataclasses.

An experiment file builds one experiment of a task (s2sjax/tasks); the command line overrides any field by its dotted
name (`--model.width 256`). A combination that cannot work raises an error when it is built.
"""

from __future__ import annotations

import dataclasses

from s2sjax.config.convolutional import RCTM, ConvS2S, DenseDense, LSTMDense
from s2sjax.config.data import Cmudict, Corpus, Data, Mixture, Prepared, Spelling, Synthetic, Text, TextFiles, Tfds
from s2sjax.config.evaluation import Evaluate, EvaluationSettings, Metric, PredictionSettings
from s2sjax.config.experiment import Experiment
from s2sjax.config.labels import LabelData, LabelEvaluate, LabelledFrames, LabelledText, LabelModel
from s2sjax.config.language import Continuation, PerplexityEvaluate, PlainText, RecurrentLM, TransformerLM
from s2sjax.config.memory import InMemory
from s2sjax.config.models import GNMT, CellName, Cho, Luong, RNNsearch, Sutskever, Transformer
from s2sjax.config.pair import Family, ModelConfig, Pair, encoder_and_decoder, model_name
from s2sjax.config.paths import FilePath, local_path, relative_path, resolve_paths, without_folders
from s2sjax.config.pretraining import BertEvaluate, BertModel, Paragraphs
from s2sjax.config.search import Sampling, Search
from s2sjax.config.serialize import from_json, kind_of, to_json
from s2sjax.config.settings import at_least, check_buckets, require, settings
from s2sjax.config.specs import Carries, DecoderSpec, EncoderSpec, ModelSettings, RecurrentSpec
from s2sjax.config.tagging import TagData, TagEvaluate, TaggedFiles, TaggerModel
from s2sjax.config.training import SIZED_BY_DATA, Mesh, ScheduledSampling, Softmax, Train

replace = dataclasses.replace
