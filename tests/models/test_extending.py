"""A cell, a score and a model that the library does not have, defined here as a user would define them."""

import argparse
import textwrap
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, layers, models
from s2sjax.cli import overrides
from s2sjax.core import attention
from s2sjax.core.recurrence import cells
from s2sjax.errors import UserError
from s2sjax.models import encoder_decoder, objectives
from s2sjax.models.encoder_decoder import EncoderOutput, masked_mean, output_layer
from s2sjax.models.families.luong import LuongDecoder
from s2sjax.testing import model_laws
from s2sjax.training import mesh as meshes
from s2sjax.training.optimizers import optimizer
from s2sjax.training.train_state import create, make_train_step

SMALL = dict(width=8, embedding_size=6, dropout=0.0)


def _leaky(weights, carry, projected, h):
    """h = h' / 2 + tanh(W_h h' + W_x x + b) / 2."""
    return (carry[0] / 2 + jnp.tanh(cells.preactivations(weights, projected, h)) / 2,)


LEAKY = cells.Cell(("candidate",), 1, lambda d, h: {"input": (d, h), "state": (h, h), "bias": (h,)}, _leaky)
NEGATIVE_DISTANCE = attention.AttentionScore(
    lambda q, m, a: {"memory": (m, q)},
    lambda weights, memory: memory @ weights["memory"],
    lambda weights, state: state,
    lambda weights, query, keys: -jnp.sum((keys - query[None]) ** 2, axis=-1),
)


@pytest.fixture
def extended(monkeypatch):
    monkeypatch.setitem(cells.CELLS, "leaky", LEAKY)
    monkeypatch.setitem(attention.SCORES, "distance", NEGATIVE_DISTANCE)


def assert_steps_equal_teacher_forcing(model):
    model_laws.steps_equal_teacher_forcing(zoo.Pure(model, sharp=zoo.SHARPNESS))


@pytest.mark.parametrize(
    "make",
    [
        lambda: config.RNNsearch(**SMALL, cell="leaky", score="distance"),
        lambda: config.GNMT(**SMALL, layers=2, score="dot"),
    ],
)
def test_a_row_of_a_table_is_all_that_a_cell_or_a_score_needs(make, extended):
    assert_steps_equal_teacher_forcing(make())


def on_the_command_line(settings, *arguments, help=False):
    known = argparse.Namespace(help=help, parser=argparse.ArgumentParser(), command="train")
    return overrides.override(known, settings, list(arguments))


def test_the_command_line_takes_the_names_of_the_table(extended):
    assert on_the_command_line(config.Luong(), "--cell", "leaky", "--score", "distance").cell == "leaky"
    assert on_the_command_line(config.GNMT(), "--score", "dot").score == "dot"


def test_the_command_line_refuses_other_names(extended):
    with pytest.raises(UserError, match=r"invalid choice 'leeky'.*'leaky'"):
        on_the_command_line(config.Luong(), "--cell", "leeky")


def test_the_command_line_shows_the_names(extended, capsys):
    with pytest.raises(SystemExit):
        on_the_command_line(config.Luong(), help=True)
    shown = capsys.readouterr().out
    assert "leaky" in shown
    assert "distance" in shown


def test_a_configuration_refuses_other_names():
    with pytest.raises(UserError, match=r"^Luong.cell is 'leaky': it must be one of 'rnn', 'lstm'"):
        config.Luong(cell="leaky")
    with pytest.raises(UserError, match=r"^GNMT.score is 3: it must be one of 'dot'"):
        config.GNMT(score=3)


@pytest.mark.parametrize("score", ["dot", "scaled_dot", "cosine"])
def test_a_score_that_does_not_fit_is_refused(score):
    with pytest.raises(UserError, match=f"^model.score '{score}' compares vectors of one width, but the state has"):
        config.RNNsearch(score=score)
    with pytest.raises(UserError, match=r"^model.coverage requires the additive score"):
        config.RNNsearch(score="general", coverage=True)


# ----------------------------------------------------------------------------------- a model


class BagEncoder(nn.Module):
    """The mean of the vectors."""

    config: "Bag"
    inputs: int
    dtype: jnp.dtype
    remat_policy: str = "none"

    def setup(self):
        self.project = layers.Dense(self.inputs, self.config.width, self.dtype)

    def __call__(self, xs, mask, train, segments=None):
        states = self.project(xs)
        return EncoderOutput(states, mask, ((masked_mean(states, mask),),))


class BagDecoder(nn.Module):
    """logits = W tanh(c + U y_{t-1}), c the mean of the source."""

    config: "Bag"
    embedding: layers.Embedding
    dtype: jnp.dtype
    remat_policy: str = "none"
    parallel: ClassVar = True

    def setup(self):
        self.project = layers.Dense(self.embedding.width, self.config.width, self.dtype)
        self.output = output_layer(self.config, self.embedding, self.config.width, self.dtype)

    def prepare(self, memory):
        return memory.final[0][0]

    def init_state(self, memory, steps):
        return jnp.zeros(len(memory), jnp.int32)

    def step(self, memory, state, token, train=False):
        return state, self.output.logits(jnp.tanh(memory + self.project(self.embedding(token)))), None

    def hidden(self, memory, inputs, mask, train, segments=None):
        return jnp.tanh(memory[:, None] + self.project(self.embedding(inputs)))


@config.settings
class Bag(config.ModelSettings):
    encoder_type = BagEncoder
    decoder_type = BagDecoder
    width: int = 8
    embedding_size: int = 6
    tie: Literal["all", "output", "none"] = "none"
    dropout: float = 0.0

    @property
    def encoder_spec(self):
        return config.EncoderSpec(self.width, config.Carries("rnn", (self.width,)))

    @property
    def decoder_spec(self):
        return config.DecoderSpec(None, config.Carries("rnn", (self.width,)))


def test_a_configuration_brings_its_modules():
    assert_steps_equal_teacher_forcing(Bag())


def test_the_model_in_the_docstring_of_the_contract_runs_both_ways():
    text, names = encoder_decoder.__doc__, dict(vars(encoder_decoder))
    code = text[text.index("    class CopyEncoder") : text.index("The configuration's")]
    exec(textwrap.dedent(code), names)
    assert_steps_equal_teacher_forcing(names["Mean"]())


def test_a_capability_that_is_not_declared_has_the_default():
    assert not encoder_decoder.capability(BagDecoder, "has_beam_step")
    assert not encoder_decoder.capability(nn.Module, "parallel")
    assert encoder_decoder.capability(BagDecoder, "parallel")


def test_it_joins_the_decoders_and_encoders_of_the_library():
    assert_steps_equal_teacher_forcing(config.Pair(Bag(), config.Luong(**SMALL, layers=1)))
    assert_steps_equal_teacher_forcing(config.Pair(config.Luong(**SMALL, layers=1), Bag()))


def test_a_class_derived_from_a_family_has_the_modules_and_rules_of_that_family():
    @config.settings
    class Narrow(config.Luong):
        width: int = 8

    assert models.build(Narrow(), 7, 7).decoder_type is LuongDecoder
    assert models.tensor_rules(Narrow()) == models.tensor_rules(config.Luong())


def test_a_class_without_modules_is_refused():
    @config.settings
    class Nothing(config.ModelSettings):
        embedding: int = 4
        tie: str = "none"

    with pytest.raises(UserError, match=r"^model Nothing has no encoder_type: set it on the class"):
        models.build(Nothing(), 7, 7)


def test_it_trains_on_a_tensor_mesh():
    """Without rules its parameters are whole over the tensor axis; the loss of one step is that of one device."""
    module, train = models.build(Bag(), 7, 7), config.Train(learning_rate=1e-2)
    source, target = zoo.batch(np.random.default_rng(0), rows=16)
    assert models.tensor_rules(Bag()) == ()

    def loss(mesh):
        init = lambda key: create(module.init(key, source, target)["params"], optimizer(train))
        state = meshes.init_sharded(init, mesh, models.tensor_rules(Bag()), jax.random.key(0), min_size=1)
        step = make_train_step(objectives.choose(module, train), optimizer(train), train, seed=0)
        batch = meshes.global_batch({"source": source, "target": target}, mesh)
        with jax.set_mesh(mesh):
            return jax.jit(step)(state, batch)[1]["loss"]

    one = meshes.make_mesh(config.Mesh(), jax.devices()[:1])
    np.testing.assert_allclose(loss(meshes.make_mesh(config.Mesh(data=1, fsdp=4, tensor=2))), loss(one), rtol=1e-5)
