"""The list that a model joins to be held to every law of the contract."""

import contextlib
import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import HAS_OLD_GENERATOR

from s2sjax import config, models
from s2sjax.core import losses, search
from s2sjax.core.recurrence import cells
from s2sjax.core.special_tokens import EOS, PAD, SOS

TINY = dict(width=8, embedding_size=6, dropout=0.2)
TINY_TRANSFORMER = dict(width=8, heads=2, feedforward=16, encoder_layers=2, decoder_layers=2, dropout=0.2)
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
}


def without_dropout(model: config.ModelConfig) -> config.ModelConfig:
    if isinstance(model, config.Pair):
        return config.replace(model, encoder=without_dropout(model.encoder), decoder=without_dropout(model.decoder))
    return config.replace(model, dropout=0.0)


VOCABULARY = 7  # the four specials and three words


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


class Pure:
    """A model as the pure functions that everything else uses, compiled, with random parameters."""

    def __init__(self, name, vocabulary: int = VOCABULARY, sharp: float = 1.0, dtype="float32", options=None):
        """name: of a model of the zoo, or its settings."""
        jit = partial(jax.jit, compiler_options=options)
        self.module = models.build(MODELS.get(name, name), vocabulary, vocabulary, dtype)
        self.params = parameters(self.module, sharp)
        method = lambda name: partial(self.module.apply, method=name)
        self._gradient = jit(jax.grad(self.loss, has_aux=True))
        self._forward = jit(self.module.apply)
        self._search = jit(self._find, static_argnums=2, static_argnames=("width", "nbest", "penalty", "alpha"))
        self.encode = jit(method("encode"))
        self.start = jit(method("start"), static_argnums=2)
        self.step = jit(method("step"))

    def loss(self, params, source, target):
        """The mean cross-entropy of the real tokens, and the logits."""
        logits = self.module.apply(params, source, target)
        total, weight = losses.cross_entropy(logits, target, target != PAD)
        return total / jnp.maximum(weight, 1), logits

    # Both from one compiled program a shape.
    def gradient(self, source, target, scale=1.0):
        """At the parameters times `scale`."""
        return self._gradient(jax.tree.map(lambda leaf: leaf * scale, self.params), source, target)[0]

    def logits(self, source, target):
        return np.asarray(self._gradient(self.params, source, target)[1])

    def forward(self, source, target):
        """The logits, where no gradient is needed: quicker to compile."""
        return np.asarray(self._forward(self.params, source, target))

    def decode(self, source, limit: int, **options) -> search.Hypotheses:
        """Beam search, or greedy where no width is given."""
        return jax.tree.map(np.asarray, self._search(self.params, source, limit, **options))

    def _find(self, params, source, limit, **options):
        apply = partial(self.module.apply, params)
        memory = apply(source, method="encode")
        state = apply(memory, limit, method="start")
        limits = jnp.full(len(source), limit)
        search_with = search.beam_search if options else search.greedy
        return search_with(self.module.beams(params["params"], memory), state, limits, limit, **options)


def parameters(module, sharp: float = 1.0):
    """Random ones, biases included; a model's own initial ones are slow to compile.

    An untrained model is nearly indifferent between tokens; `sharp` gives it opinions.
    """
    rng, ids = np.random.default_rng(0), np.ones((2, 3), np.int32)

    def draw(path, leaf):
        values, name = rng.normal(size=leaf.shape), path[-1].key
        if name.endswith(("bias", "shift", "scale", "length")):
            values = values / 10 + name.endswith(("scale", "length"))
        else:
            values = values / np.sqrt(leaf.shape[-2:][0])
        return (values * sharp).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(module.init, jax.random.key(0), ids, ids))


@cache
def build(name: str) -> Pure:
    """Models are built and compiled once a process: that is what takes the time."""
    return Pure(name, sharp=1.5)


AS_USERS_COMPILE = {"xla_cpu_use_fusion_emitters": True} if HAS_OLD_GENERATOR else None


@contextlib.contextmanager
def optimized():
    """With XLA's optimisations; with AS_USERS_COMPILE what is compiled is what users compile: see tests/conftest.py."""
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


def batch(rng: np.random.Generator, rows=4, source=5, target=5, vocabulary=VOCABULARY):
    """Random ids [rows, source], [rows, target]: lengths differ, <eos> ends each row, <pad> fills the rest."""

    def side(length):
        ids = rng.integers(4, vocabulary, (rows, length))
        ends = rng.integers(0, length, rows)
        position = np.arange(length)
        ids = np.where(position < ends[:, None], ids, PAD)
        ids[np.arange(rows), ends] = EOS
        return ids.astype(np.int32)

    return side(source), side(target)


def step_by_step(model: Pure, source, target):
    """The logits of `target` [B, T, V] by T single steps."""
    memory = model.encode(model.params, source)
    state = model.start(model.params, memory, target.shape[1])
    previous, logits = np.full(len(source), SOS), []
    for t in range(target.shape[1]):
        state, now, _ = model.step(model.params, memory, state, previous)
        logits.append(now)
        previous = target[:, t]
    return np.stack(logits, 1)


FAMILIES = {type(model): name for name, model in reversed(MODELS.items())}.values()
"""One model of each family, for the laws that cost the most to check."""
KINDS = ("luong", "rnnsearch", "transformer-post", "convs2s")
"""Models that training runs in different ways: .ci/run takes these for laws of training, `make test-all` all."""


def check_shares(counts, expected) -> None:
    """Counts of draws against their probabilities, each within four standard deviations of its own."""
    counts, expected = np.asarray(counts), np.asarray(expected)
    spread = np.sqrt(expected * (1 - expected) / counts.sum())
    np.testing.assert_array_less(np.abs(counts / counts.sum() - expected), 4 * spread)


QUICK = ("luong", "transformer-post")


def each(names, argument="name", quick=QUICK, rare=()):
    """A test for each name: a few models in `make test`, the others in .ci/run, the rare ones in `make test-all`."""

    def marks(name):
        return () if name in quick else pytest.mark.exhaustive if name in rare else pytest.mark.slow

    return pytest.mark.parametrize(argument, [pytest.param(name, marks=marks(name)) for name in names])


def first(count: int, cases):
    """The first cases are in `make test`, the others in .ci/run."""
    cases = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=() if number < count else pytest.mark.slow) for number, case in enumerate(cases)]


def each_cell(names=tuple(cells.CELLS)):
    """A test for each cell; the variants of the first ones are slow, where a test costs much to compile."""
    return each(names, quick=("rnn", "lstm", "gru", "minlstm"))
