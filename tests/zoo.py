"""The list that a model joins to be held to every law of the contract."""

import contextlib
import dataclasses
from functools import cache

import jax
import numpy as np
import pytest
from conftest import HAS_OLD_GENERATOR

from s2sjax import config
from s2sjax.core.recurrence import cells
from s2sjax.testing.model_laws import SHARPNESS, VOCABULARY, PureModel  # noqa: F401
from s2sjax.testing.model_laws import random_batch as batch  # noqa: F401
from s2sjax.testing.model_laws import random_parameters as parameters  # noqa: F401

TINY = dict(width=8, embedding_size=6, dropout=0.2)
TINY_TRANSFORMER = dict(width=8, heads=2, feedforward=16, encoder_layers=2, decoder_layers=2, dropout=0.2)
TINY_HYBRID = TINY_TRANSFORMER | dict(state_width=4)
# Laws hold for the true gradient; how `scale_gradient` departs from it is tested in models/families/test_convs2s.py.
TINY_CONVS2S = dict(embedding_size=6, max_length=16, dropout=0.2, scale_gradient=False)
CONVS2S = config.ConvS2S(**TINY_CONVS2S, encoder_layers=((8, 3), (8, 3)), decoder_layers=((8, 3), (8, 3)))

MODELS: dict[str, config.ModelConfig] = {
    "cho": config.Cho(**TINY),
    "cho-lstm-tanh-tied": config.Cho(**TINY, cell="lstm", readout="tanh", tie="output"),
    "sutskever-reversed": config.Sutskever(**TINY),
    "sutskever-shared": config.Sutskever(width=8, embedding_size=8, share=True, tie="all", dropout=0.2),
    "character": config.Sutskever(width=8, embedding_size=0, layers=1, reverse=False, dropout=0.2),
    "rnnsearch": config.RNNsearch(**TINY),
    "rnnsearch-one-hot": config.RNNsearch(width=8, embedding_size=0, readout_width=4, dropout=0.2),
    "rnnsearch-lstm-tanh-deep": config.RNNsearch(**TINY, cell="lstm", readout="tanh", encoder_layers=2),
    "rnnsearch-coverage": config.RNNsearch(**TINY, coverage=True),
    "luong": config.Luong(**TINY),
    "luong-unfed-bidirectional": config.Luong(**TINY, input_feeding=False, bidirectional=True, score="additive"),
    "luong-gru-dot-residual": config.Luong(**TINY, cell="gru", score="dot", residual=True, layers=3),
    "luong-reversed-tied": config.Luong(width=8, embedding_size=8, reverse=True, tie="all", dropout=0.2),
    "luong-rnn-scaled": config.Luong(**TINY, cell="rnn", score="scaled_dot", layers=1),
    "gnmt": config.GNMT(**TINY, layers=3),
    "gnmt-gru-tied": config.GNMT(
        width=8, embedding_size=8, cell="gru", layers=2, attention_size=4, tie="output", dropout=0.2
    ),
    "rnnsearch-mingru-variational": config.RNNsearch(**TINY, cell="mingru", variational_dropout=True),
    "luong-peephole-zoneout-project": config.Luong(
        **TINY, cell="lstm_peephole", zoneout=0.1, bidirectional=True, join="project"
    ),
    "luong-unfed-minlstm-mean": config.Luong(
        **TINY, cell="minlstm", input_feeding=False, bidirectional=True, join="mean", widths=(4, 8), zoneout=0.1
    ),
    "luong-norm-variational": config.Luong(**TINY, cell="lstm_norm", variational_dropout=True, recurrent_init="glorot"),
    "luong-cosine": config.Luong(**TINY, score="cosine", layers=1),
    "luong-local-monotonic": config.Luong(**TINY, window="monotonic", radius=1),
    "luong-local-predictive-unfed": config.Luong(**TINY, window="predictive", radius=2, input_feeding=False),
    "transformer-post": config.Transformer(**TINY_TRANSFORMER),
    "transformer-pre-learned": config.Transformer(
        **TINY_TRANSFORMER, norm="pre", positions="learned", max_length=16, tie="none"
    ),
    "transformer-shared": config.Transformer(**TINY_TRANSFORMER, tie="all"),
    "convs2s": CONVS2S,
    "convs2s-uneven": config.ConvS2S(
        **TINY_CONVS2S, weight_norm=False, encoder_layers=((6, 3), (8, 2), (4, 1)), decoder_layers=((4, 2), (8, 4))
    ),
    "cnn-rnn": config.RCTM(**TINY),
    "cnn-rnn-gated-max": config.RCTM(**TINY, kernels=(3, 3), activation="gated", residual=True, pool="max", cell="gru"),
    "lstm-dense": config.LSTMDense(**TINY),
    "dense-dense": config.DenseDense(**TINY, window=3),
    "dense-dense-one-hot": config.DenseDense(width=8, embedding_size=0, window=5, decoder_layers=0, dropout=0.2),
    "pair-transformer-rnnsearch": config.Pair(config.Transformer(**TINY_TRANSFORMER), config.RNNsearch(**TINY)),
    "pair-bigru-transformer": config.Pair(
        config.RNNsearch(**TINY), config.Transformer(**TINY_TRANSFORMER), bridge="linear"
    ),
    "pair-cnn-luong": config.Pair(config.RCTM(**TINY), config.Luong(**TINY)),
    "pair-cnn-convs2s": config.Pair(config.RCTM(**TINY), CONVS2S),
    "pair-convs2s-dense": config.Pair(CONVS2S, config.DenseDense(**TINY)),
    "pair-transformer-sutskever": config.Pair(config.Transformer(**TINY_TRANSFORMER), config.Sutskever(**TINY)),
    "pair-bigru-luong": config.Pair(config.RNNsearch(**TINY), config.Luong(**TINY), bridge="linear"),
    "transformer-rotary": config.Transformer(**TINY_TRANSFORMER, positions="rotary"),
    "transformer-relative-pre": config.Transformer(**TINY_TRANSFORMER, norm="pre", positions="relative"),
    "transformer-window": config.Transformer(**TINY_TRANSFORMER, window=2),
    "transformer-t5": config.Transformer(
        **TINY_TRANSFORMER,
        head_width=3,
        norm="pre",
        normalization="rms",
        biases=False,
        positions="relative",
        tie="all",
        scale_embedding=False,
        scale_output=True,
        decoder_start="pad",
    ),
    "transformer-t5-gated": config.Transformer(
        **TINY_TRANSFORMER,
        head_width=6,
        activation="gelu_tanh",
        gated=True,
        norm="pre",
        normalization="rms",
        epsilon=1e-3,
        biases=False,
        positions="relative",
        tie="embeddings",
        scale_embedding=False,
        output_bias=False,
        decoder_start="pad",
    ),
    "transformer-umt5": config.Transformer(
        **TINY_TRANSFORMER,
        head_width=6,
        activation="gelu_tanh",
        gated=True,
        norm="pre",
        normalization="rms",
        biases=False,
        positions="relative",
        share_positions=False,
        tie="embeddings",
        scale_embedding=False,
        output_bias=False,
        decoder_start="pad",
    ),
    "transformer-adapters": config.Transformer(**TINY_TRANSFORMER, adapter_rank=2, adapter_scale=0.5),
    "transformer-bart": config.Transformer(
        **TINY_TRANSFORMER,
        activation="gelu",
        norm_embedding=True,
        positions="learned",
        max_length=16,
        tie="all",
        scale_embedding=False,
        output_bias=True,
        decoder_start="eos",
    ),
    "transformer-nllb": config.Transformer(
        **TINY_TRANSFORMER,
        activation="swish",
        norm="pre",
        sinusoids="tensor2tensor",
        first_position=2,
        tie="output",
        output_bias=True,
        decoder_start="eos",
    ),
    "hybrid-ssd-attention": config.Hybrid(**TINY_HYBRID, mixers=("ssd", "attention")),
    "hybrid-delta-local": config.Hybrid(
        **TINY_HYBRID, mixers=("gated_delta", "local_attention"), directions="alternate", window=2
    ),
    "hybrid-xlstm": config.Hybrid(**TINY_HYBRID, mixers=("mlstm", "slstm"), norm="post", tie="all"),
    "hybrid-griffin-retention": config.Hybrid(**TINY_HYBRID, mixers=("rg_lru", "retention"), positions="sinusoidal"),
    "hybrid-gla-linear": config.Hybrid(
        **TINY_HYBRID, mixers=("gla", "delta"), decoder_mixers=("linear_attention", "delta"), short_convolution=1
    ),
    "pair-hybrid-luong": config.Pair(config.Hybrid(**TINY_HYBRID), config.Luong(**TINY)),
    "pair-bigru-hybrid": config.Pair(config.RNNsearch(**TINY), config.Hybrid(**TINY_HYBRID, mixers=("ssd",))),
}


def without_dropout(model: config.ModelConfig) -> config.ModelConfig:
    if isinstance(model, config.Pair):
        return config.replace(model, encoder=without_dropout(model.encoder), decoder=without_dropout(model.decoder))
    return config.replace(model, dropout=0.0)


def widened(model: config.ModelConfig, width: int) -> config.ModelConfig:
    """A model of the zoo of another width: for fsdp and tensor meshes, which split it, and for kernels."""
    if isinstance(model, config.Pair):
        return config.replace(model, encoder=widened(model.encoder, width), decoder=widened(model.decoder, width))
    if isinstance(model, config.ConvS2S):
        layers = ((width, 3), (width, 3))
        return config.replace(model, embedding_size=width, encoder_layers=layers, decoder_layers=layers)
    options = {"width": width, "embedding_size": width, "attention_size": width, "feedforward": 2 * width, "widths": ()}
    has = {field.name for field in dataclasses.fields(model)}
    return config.replace(model, **{name: value for name, value in options.items() if name in has})


TOLERANCES = {name: 1e-4 for name in MODELS if "hybrid" in name}
"""Recurrences divide by sums that can be near 0, and their gates are products of several products: rounding in float32
grows to 4e-5 at the sharp parameters. That these models follow the laws to 1e-9 in float64 is tested in
models/families/test_hybrid.py."""


class Pure(PureModel):
    """A model of the zoo by its name, or by its settings: see s2sjax/testing/model_laws.py."""

    def __init__(self, name, *arguments, **options):
        tolerance = TOLERANCES.get(name, 1e-5) if isinstance(name, str) else 1e-5
        super().__init__(MODELS.get(name, name), *arguments, **{"tolerance": tolerance} | options)


@cache
def build(name: str) -> Pure:
    """Models are built and compiled once a process: that is what takes the time."""
    return Pure(name, sharp=SHARPNESS)


AS_USERS_COMPILE = {"xla_cpu_use_fusion_emitters": True} if HAS_OLD_GENERATOR else None


@contextlib.contextmanager
def optimized():
    """With XLA's optimisations; with AS_USERS_COMPILE what is compiled is what users compile: see tests/conftest.py."""
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


FAMILIES = {type(model): name for name, model in reversed(MODELS.items())}.values()
"""One model of each family, for the laws that cost the most to check."""
KINDS = ("luong", "transformer-post", "convs2s")
"""Models that training runs in different ways: .ci/run takes these for laws of training, `make test-all` all."""


def check_shares(counts, expected) -> None:
    """Counts of draws against their probabilities, each within four standard deviations of its own."""
    counts, expected = np.asarray(counts), np.asarray(expected)
    spread = np.sqrt(expected * (1 - expected) / counts.sum())
    np.testing.assert_array_less(np.abs(counts / counts.sum() - expected), 4 * spread)


QUICK = ("luong", "transformer-post")

COMBINATIONS = {
    "rnnsearch-one-hot", "rnnsearch-lstm-tanh-deep", "luong-reversed-tied", "gnmt-gru-tied", "transformer-shared",
    "dense-dense-one-hot", "pair-bigru-transformer", "pair-cnn-luong", "pair-cnn-convs2s", "pair-convs2s-dense",
    "pair-transformer-sutskever", "pair-hybrid-luong", "pair-bigru-hybrid",
}  # fmt: skip
"""Models whose options all occur in other ones, which .ci/run takes: `make test-all` takes these too."""


def each(names, argument="name", quick=QUICK, rare=()):
    """A test for each name: a few models in `make test`, the others in .ci/run, the rare ones in `make test-all`."""

    def marks(name):
        return () if name in quick else pytest.mark.exhaustive if name in rare else pytest.mark.slow

    return pytest.mark.parametrize(argument, [pytest.param(name, marks=marks(name)) for name in names])


def first(count: int, cases, most: int | None = None):
    """The first cases are in `make test`, the others in .ci/run, those after the first `most` in `make test-all`."""
    cases = [case if isinstance(case, tuple) else (case,) for case in cases]
    most = len(cases) if most is None else most
    marks = [()] * count + [pytest.mark.slow] * (most - count) + [pytest.mark.exhaustive] * (len(cases) - most)
    return [pytest.param(*case, marks=mark) for case, mark in zip(cases, marks)]


def each_cell(names=tuple(cells.CELLS)):
    """A test for each cell; the variants of the first ones are slow, where a test costs much to compile."""
    return each(names, quick=("rnn", "lstm", "gru", "minlstm"))
