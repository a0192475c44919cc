"""Properties of the named models, found by tracing them, without computation or compilation.

facts(NAMED["character"].config, 74, 78)     -> Facts(weights=702030, attention=False, parallel=False)
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from s2sjax import config
from s2sjax.models.registry import build

POSITIONS = 13  # no model has this number of layers, so a scan of this length is a scan over time


class Facts(NamedTuple):
    """Properties of a model."""

    weights: int
    attention: bool
    parallel: bool
    """whether training computes all positions at once, without a scan over time"""


def facts(model: config.ModelConfig, source_size: int, target_size: int) -> Facts:
    """Traces a model with vocabularies of these sizes and returns its properties."""
    module = build(model, source_size, target_size)
    ids, token = jax.ShapeDtypeStruct((1, POSITIONS), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    trained, shapes = jax.make_jaxpr(module.init_with_output, return_shape=True)(key, ids, ids)
    params: Any = shapes[1]

    def attention(params, source, token):
        apply: Any = partial(module.apply, params)
        memory = apply(source, method="encode")
        return apply(memory, apply(memory, 1, method="init_state"), token, method="step")[2]

    return Facts(
        weights=sum(leaf.size for leaf in jax.tree.leaves(params)),
        attention=jax.eval_shape(attention, params, ids, token) is not None,
        parallel=all(equation.params.get("length") != POSITIONS for equation in equations(trained.jaxpr)),
    )


def equations(program) -> Iterator:
    """All equations of a traced program, including those inside scans and calls."""
    for equation in program.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def table(source_size: int, target_size: int) -> str:
    """Formats a table with one line per named model."""
    rows: list[tuple[str, ...]] = [
        ("name", "paper", "family", "vocabulary", "weights", "attention", "parallel", "description")
    ]
    for name, (model, paper, description, own) in NAMED.items():
        sizes = own or (source_size, target_size)
        weights, attention, parallel = facts(model, *sizes)
        answers = ["yes" if answer else "no" for answer in (attention, parallel)]
        if config.encoder_and_decoder(model)[1].attends_own_position:
            answers[0] = "aligned"  # position t of the target reads position t of the source
        vocabulary = f"{sizes[0]:,} -> {sizes[1]:,}"
        rows.append((name, paper, config.model_name(model), vocabulary, f"{weights:,}", *answers, description))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [text.rjust(width) if i == 4 else text.ljust(width) for i, (text, width) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


class Named(NamedTuple):
    """A model at the size of its paper."""

    config: config.ModelConfig
    paper: str
    description: str
    sizes: tuple[int, int] | None = None
    """vocabulary sizes, if the paper fixes them"""


NAMED: dict[str, Named] = {
    "cho": Named(config.Cho(width=1000, embedding_size=100, readout_width=500, dropout=0.0),
        "Cho et al. 2014", "GRU; the source as one vector, which every decoder step reads"),
    "sutskever": Named(config.Sutskever(width=1000, embedding_size=1000, layers=4, dropout=0.0),
        "Sutskever et al. 2014", "deep LSTM, source reversed; the decoder starts from the final encoder states"),
    "character": Named(config.Sutskever(width=256, embedding_size=0, layers=1, reverse=False, dropout=0.0),
        "Sutskever et al. 2014", "one LSTM layer on one-hot characters", sizes=(74, 78)),
    "rnnsearch": Named(config.RNNsearch(width=1000, embedding_size=620, readout_width=500, dropout=0.0),
        "Bahdanau et al. 2014", "bidirectional GRU encoder, GRU decoder with additive attention"),
    "luong": Named(config.Luong(width=1000, embedding_size=1000, layers=4, reverse=True, dropout=0.2),
        "Luong et al. 2015", "deep LSTM with attention and input feeding"),
    "luong_local": Named(
        config.Luong(width=1000, embedding_size=1000, layers=4, reverse=True, window="predictive", radius=10,
                     dropout=0.2),
        "Luong et al. 2015", "as luong, with attention to 10 words on either side of a predicted position"),
    "rctm": Named(config.RCTM(dropout=0.0),
        "Kalchbrenner and Blunsom 2013", "convolutional encoder, plain RNN decoder"),
    "convs2s": Named(
        config.ConvS2S(
            embedding_size=512,
            encoder_layers=((512, 3),) * 10 + ((768, 3),) * 3 + ((2048, 1),) * 2,
            decoder_layers=((512, 3),) * 10 + ((768, 3),) * 3 + ((2048, 1),) * 2,
            max_length=1024,
        ),
        "Gehring et al. 2017", "gated convolutions, attention in every decoder layer"),
    "lstm_dense": Named(config.LSTMDense(width=186, embedding_size=26, decoder_layers=0, dropout=0.0),
        "Graves and Schmidhuber 2005", "bidirectional LSTM; each position is classified separately"),
    "dense_dense": Named(config.DenseDense(width=80, embedding_size=0, decoder_layers=0, dropout=0.0),
        "Sejnowski and Rosenberg 1987", "NETtalk: a window of 7 letters, one hidden layer"),
    "gnmt_4": Named(config.GNMT(width=1024, embedding_size=1024, layers=4, dropout=0.2),
        "Wu et al. 2016", "residual LSTM; the lowest decoder layer computes the attention of all layers"),
    "gnmt_8": Named(config.GNMT(width=1024, embedding_size=1024, layers=8, dropout=0.2),
        "Wu et al. 2016", "as gnmt_4, with 8 layers"),
    "transformer_base": Named(config.Transformer(), "Vaswani et al. 2017", "self-attention, all positions in parallel"),
    "transformer_big": Named(config.Transformer(width=1024, heads=16, feedforward=4096, dropout=0.3),
        "Vaswani et al. 2017", "as transformer_base, twice as wide"),
    "retnet_base": Named(config.Hybrid(mixers=("retention",), feedforward=1408),
        "Sun et al. 2023", "as transformer_base, with retention instead of self-attention"),
    "gla_base": Named(config.Hybrid(mixers=("gla",), feedforward=1408),
        "Yang et al. 2023", "as transformer_base, with gated linear attention instead of self-attention"),
    "griffin_base": Named(config.Hybrid(mixers=("rg_lru", "rg_lru", "local_attention"), feedforward=1408),
        "De et al. 2024", "as transformer_base, with two RG-LRU layers for each layer of local attention"),
    "mamba2_base": Named(config.Hybrid(mixers=("ssd",), feedforward=1408),
        "Dao and Gu 2024", "as transformer_base, with state-space duality instead of self-attention"),
    "xlstm_base": Named(config.Hybrid(mixers=("mlstm",) * 5 + ("slstm",), feedforward=1408),
        "Beck et al. 2024", "as transformer_base, with five mLSTM layers and one sLSTM layer"),
    "gated_deltanet_base": Named(config.Hybrid(mixers=("gated_delta",), feedforward=1408),
        "Yang et al. 2024", "as transformer_base, with the gated delta rule instead of self-attention"),
    "transformer_rnnsearch": Named(config.Pair(config.Transformer(), config.RNNsearch(width=512, embedding_size=512)),
        "Chen et al. 2018", "Transformer encoder, GRU decoder with attention"),
    "rnnsearch_transformer": Named(
        config.Pair(config.RNNsearch(width=256, embedding_size=512), config.Transformer(), bridge="identity"),
        "Chen et al. 2018", "bidirectional GRU encoder, Transformer decoder"),
}  # fmt: skip
