"""Parameter counts of the named models equal those of the papers, checked by shapes."""

import jax
import jax.numpy as jnp
import pytest
import zoo

from s2sjax import config, models
from s2sjax.errors import UserError
from s2sjax.layers import parameters
from s2sjax.models.named_models import NAMED


def shapes(model: config.ModelConfig, source_size: int, target_size: int) -> dict:
    one = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    module = models.build(model, source_size, target_size)
    return jax.eval_shape(module.init, jax.random.key(0), one, one)["params"]


def count(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("model", [config.Transformer(positions="learned"), config.Luong()])
def test_shapes_are_known_without_tracing_initial_values(model, monkeypatch):
    plain = shapes(model, 50, 60)
    drawn = lambda *_: pytest.fail("an initial value was traced")
    with parameters.shapes_only(), monkeypatch.context() as patched:
        patched.setattr(jax.random, "normal", drawn)
        patched.setattr(jax.random, "uniform", drawn)
        found = shapes(model, 50, 60)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), found) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), plain
    )


def test_character_sequence_to_sequence():
    """74 source and 78 target characters, one-hot, into an LSTM of 256."""
    params = shapes(NAMED["character"].config, 74, 78)
    assert params.keys() == {"encoder", "decoder"}  # no embedding
    assert count(params["encoder"]) == 338_944
    assert count(params["decoder"]["layer_0"]) == 343_040
    assert count(params["decoder"]["output"]) == 20_046
    assert count(params) == 702_030


def test_sutskever_has_384_million_of_which_64_are_recurrent():
    """Section 3.4: 160,000 source and 80,000 target words, a softmax over these; 32M of each LSTM's."""
    params = shapes(NAMED["sutskever"].config, 160_000, 80_000)
    output = params["decoder"].pop("output")
    recurrent = [count(params["encoder"]), count(params["decoder"])]
    assert recurrent == [4 * 4 * (1000 + 1000 + 1) * 1000] * 2
    assert round(recurrent[0] / 1e6) == 32
    assert round((count(params) + count(output)) / 1e6) == 384


def formula(width: int, feedforward: int, vocabulary: int, layers: int = 6) -> int:
    """Weights of a Transformer whose three embeddings are one."""
    attention = 4 * (width + 1) * width
    dense = (width + 1) * feedforward + (feedforward + 1) * width
    encoder, decoder = attention + dense + 2 * 2 * width, 2 * attention + dense + 3 * 2 * width
    return layers * (encoder + decoder) + vocabulary * width


@pytest.mark.parametrize("name, millions, bar", [("transformer_base", 65, 0.03), ("transformer_big", 213, 0.01)])
def test_transformer_base_and_big(name, millions, bar):
    """Table 3 of the paper, at its 37,000 shared tokens: 63.1M and 214.2M where it prints 65 and 213."""
    model = config.replace(NAMED[name].config, tie="all")
    weights = count(shapes(model, 37_000, 37_000))
    assert weights == formula(model.width, model.feedforward, 37_000)
    assert weights / 1e6 == pytest.approx(millions, rel=bar)


def test_a_layer_more_costs_a_transformer_what_the_paper_prints():
    """Rows (C) of its table 3: 36, 50, 65 and 80 million for 2, 4, 6 and 8 layers; rounded, so each within 1."""
    depths = (2, 4, 6, 8)
    each = [
        count(shapes(config.Transformer(encoder_layers=n, decoder_layers=n, tie="all"), 37_000, 37_000)) / 1e6
        for n in depths
    ]
    for printed, more, less in zip((14, 15, 15), each[1:], each):
        assert more - less == pytest.approx(printed, abs=1)


# --------------------------------------------------------------------------------------- tying

TIED = {
    "cho": (config.Cho, dict(width=8, embedding_size=6)),
    "sutskever": (config.Sutskever, dict(width=6, embedding_size=6)),
    "rnnsearch": (config.RNNsearch, dict(width=8, embedding_size=6)),
    "luong": (config.Luong, dict(width=6, embedding_size=6)),
    "gnmt": (config.GNMT, dict(width=6, embedding_size=6)),
    "rctm": (config.RCTM, dict(width=6, embedding_size=6)),
    "convs2s": (config.ConvS2S, dict(embedding_size=6, weight_norm=False)),
    "transformer": (config.Transformer, dict(width=6, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1)),
}


@pytest.mark.parametrize("kind, options", zoo.first(3, TIED.values()), ids=TIED)
def test_what_is_tied_is_counted_once(kind, options):
    """`output` saves the output layer and its bias; `all` also saves the source embedding."""
    free, output, every = (shapes(kind(**options, tie=tie), 10, 10) for tie in ("none", "output", "all"))
    assert count(free) - count(output) == 10 * 6 + 10
    assert count(output) - count(every) == 10 * 6
    assert "output" not in output["decoder"]
    assert "source_embedding" not in every


def test_two_vocabularies_cannot_be_one_embedding():
    with pytest.raises(UserError, match=r"model\.tie 'all' requires a shared vocabulary, but the source has 9 entries"):
        models.build(config.Transformer(tie="all"), 9, 10)


def test_one_stack_reads_and_writes():
    """With `share` the decoder has no cells; with all embeddings tied, it has no matrices at all."""
    options = dict(width=6, embedding_size=6, layers=2)
    apart = shapes(config.Sutskever(**options), 10, 10)
    shared = shapes(config.Sutskever(**options, share=True), 10, 10)
    assert count(apart) - count(shared) == count(apart["encoder"])
    one = shapes(config.Sutskever(**options, share=True, tie="all"), 10, 10)
    assert one.keys() == {"target_embedding", "encoder"}
