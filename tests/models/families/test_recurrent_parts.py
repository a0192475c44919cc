"""Recurrent encoder-decoders with every cell: what the laws of the zoo hold for a few, held for all."""

import jax
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.core.recurrence import cells
from s2sjax.core.special_tokens import PAD

SOURCE, TARGET = zoo.batch(np.random.default_rng(1))
TINY = dict(width=4, embedding_size=3, dropout=0.2, variational_dropout=True, zoneout=0.1)
FAMILIES = {
    "rnnsearch": config.RNNsearch,
    "luong": config.Luong,
    "luong-unfed": lambda **options: config.Luong(**options, input_feeding=False),
}

every_cell = pytest.mark.parametrize("cell", cells.CELLS)
every_family = pytest.mark.parametrize("family", FAMILIES)


@zoo.each(cells.CELLS, "cell", quick=("rnn", "lstm", "gru", "minlstm"))
@every_family
def test_every_cell_fits_every_decoder(family, cell):
    """Shapes alone: while learning, and one step of search."""
    module = models.build(FAMILIES[family](**TINY, cell=cell), zoo.VOCABULARY, zoo.VOCABULARY)
    params = jax.eval_shape(module.init, jax.random.key(0), SOURCE, TARGET)
    learn = lambda params, key: module.apply(params, SOURCE, TARGET, train=True, rngs={"dropout": key})
    assert jax.eval_shape(learn, params, jax.random.key(1)).shape == (*TARGET.shape, zoo.VOCABULARY)

    def one_step(params):
        memory = module.apply(params, SOURCE, method="encode")
        state = module.apply(params, memory, 1, method="init_state")
        after, logits, _ = module.apply(params, memory, state, TARGET[:, 0], method="step")
        return state, after, logits

    before, after, logits = jax.eval_shape(one_step, params)
    assert jax.tree.map(lambda leaf: leaf.shape, before) == jax.tree.map(lambda leaf: leaf.shape, after)
    assert logits.shape == (len(SOURCE), zoo.VOCABULARY)


@every_cell
@zoo.each(["rnnsearch", "luong-unfed"], quick=(), rare=("luong-unfed",))
def test_every_cell_decodes_as_it_learnt(name, cell, monkeypatch):
    """Step by step equals teacher forced, with zoneout's expectation in both."""
    monkeypatch.setitem(zoo.MODELS, "this", FAMILIES[name](**TINY, cell=cell))
    model = zoo.Pure("this", sharp=1.5)
    real = (TARGET != PAD)[..., None]
    np.testing.assert_allclose(
        model.forward(SOURCE, TARGET) * real, model.step_by_step(SOURCE, TARGET)[0] * real, atol=1e-5
    )
