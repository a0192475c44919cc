"""Any encoder with any decoder: what the bridge between them does, and that each two can be joined."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.config import Carries, DecoderSpec, EncoderSpec
from s2sjax.errors import UserError
from s2sjax.models.encoder_decoder import Bridge, EncoderOutput

ROWS, TIME = 3, 4
MASK = np.arange(TIME) < np.array([4, 2, 0])[:, None]


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def memory_of(given: EncoderSpec, parts: int) -> EncoderOutput:
    widths = given.carries.widths if given.carries else ()
    final = tuple(tuple(draw(10 * i + j, ROWS, width) for j in range(parts)) for i, width in enumerate(widths))
    return EncoderOutput(draw(99, ROWS, TIME, given.states), MASK, final)


def crossed(kind: str, given: EncoderSpec, asked: DecoderSpec, parts: int = 1):
    """(memory, its other side, the bridge's parameters)."""
    bridge, memory = Bridge(kind, given, asked), memory_of(given, parts)
    shapes = jax.eval_shape(bridge.init, jax.random.key(0), memory)
    variables = jax.tree.map(lambda leaf: draw(leaf.size, *leaf.shape), shapes)
    return memory, bridge.apply(variables, memory), variables.get("params", {})


# -------------------------------------------------------------------------------------- the bridge


def test_identity_changes_nothing_and_has_no_weights():
    given = EncoderSpec(5, Carries("lstm", (4, 4)))
    memory, other, params = crossed("identity", given, DecoderSpec(5, given.carries), parts=2)
    assert params == {}
    jax.tree.map(np.testing.assert_array_equal, other, memory)


@pytest.mark.parametrize("kind, curve", [("linear", lambda x: x), ("tanh", np.tanh)])
def test_each_carry_is_a_map_of_the_one_at_its_height(kind, curve):
    """Three layers under two, counted from the top: the lowest of the three is left out."""
    given, asked = EncoderSpec(5, Carries("gru", (4, 4, 6))), DecoderSpec(5, Carries("gru", (3, 2)))
    memory, other, params = crossed(kind, given, asked)
    np.testing.assert_array_equal(other.states, memory.states)
    assert params.keys() == {"carries_0_0", "carries_1_0"}
    for layer in (0, 1):
        dense = params[f"carries_{layer}_0"]
        by_hand = curve(memory.final[layer + 1][0] @ dense["kernel"] + dense["bias"])
        np.testing.assert_allclose(other.final[layer][0], by_hand, atol=1e-5)


def test_a_decoder_with_more_layers_and_carries_takes_what_there_is_again():
    """One GRU under two LSTMs: all four carries are maps, each its own, of the one state."""
    given, wanted = EncoderSpec(5, Carries("gru", (4,))), DecoderSpec(None, Carries("lstm", (3, 3)))
    _, other, params = crossed("linear", given, wanted)
    assert [[part.shape for part in carry] for carry in other.final] == [[(ROWS, 3)] * 2] * 2
    assert {params[name]["kernel"].shape for name in params} == {(4, 3)}
    assert len(params) == 4


def test_an_encoder_without_carries_gives_the_mean_of_its_states():
    memory, other, params = crossed("linear", EncoderSpec(5), DecoderSpec(5, Carries("gru", (3,))))
    dense = params["carries_0_0"]
    means = np.stack([memory.states[0].mean(0), memory.states[1, :2].mean(0), np.zeros(5)])  # the last row is empty
    np.testing.assert_allclose(other.final[0][0], means @ dense["kernel"] + dense["bias"], atol=1e-5)


def test_states_are_mapped_where_the_widths_differ_and_no_carry_is_made_for_who_has_none():
    memory, other, params = crossed("tanh", EncoderSpec(5, Carries("gru", (4,))), DecoderSpec(6))
    assert params.keys() == {"states"}
    np.testing.assert_allclose(other.states, memory.states @ params["states"]["kernel"], atol=1e-5)


# ---------------------------------------------------------------------------------------- the pairs

SINGLE = [name for name in zoo.FAMILIES if not isinstance(zoo.MODELS[name], config.Pair)]


@zoo.each(SINGLE, quick=(), rare=set(SINGLE) - set(zoo.KINDS))
def test_every_encoder_joins_every_decoder(name):
    """Checks only shapes."""
    ids, token = jnp.ones((2, 5), jnp.int32), jnp.ones(2, jnp.int32)
    for encoder in SINGLE:
        pair = config.Pair(config.replace(zoo.MODELS[encoder], **unshared(encoder)), zoo.MODELS[name])
        module = models.build(pair, 7, 9)
        logits, params = jax.eval_shape(module.init_with_output, jax.random.key(0), ids, ids)
        assert logits.shape == (2, 5, 9)

        def one_step(params, module=module):
            memory = module.apply(params, ids, method="encode")
            return module.apply(
                params, memory, module.apply(params, memory, 3, method="init_state"), token, method="step"
            )

        _, logits, attention = jax.eval_shape(one_step, params)
        assert logits.shape == (2, 9)
        assert (attention is not None) == module.attends == (pair.decoder.decoder_spec.states is not None)
        assert_rules_match(pair, params)


def unshared(name: str) -> dict:
    return {"share": False} if zoo.MODELS[name].share else {}


# --------------------------------------------------------------------------- facts of both sides


def test_the_longest_sequence_is_that_of_the_side_with_fewer_positions():
    learned = config.Transformer(width=8, heads=2, positions="learned", max_length=12)
    assert models.build(learned, 7, 7).longest_source == 12
    assert models.build(zoo.CONVS2S, 7, 7).longest_target == 16
    pair = models.build(config.Pair(zoo.CONVS2S, learned), 7, 7)
    assert (pair.longest_source, pair.longest_target) == (16, 12)
    assert models.build(config.Luong(), 7, 7).longest_source is None


def test_packed_rows_are_refused_where_a_side_does_not_keep_their_examples_apart():
    ids = jnp.ones((1, 4), jnp.int32)
    pair = config.Pair(zoo.MODELS["transformer-post"], zoo.MODELS["luong"])
    for model in (zoo.MODELS["luong"], pair, zoo.MODELS["transformer-window"]):
        module = models.build(model, 7, 7)
        with pytest.raises(UserError, match=r"does not keep the examples of a packed row apart: unset data.packing"):
            jax.eval_shape(module.init, jax.random.key(0), ids, ids, False, (ids, ids))


# ------------------------------------------------------------------------------------ tensor meshes


def assert_rules_match(model, variables):
    """Every rule of a tensor mesh finds a parameter: one that does not would be refused when training begins."""
    leaves = jax.tree_util.tree_leaves_with_path(variables["params"])
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    for pattern, _ in models.tensor_rules(model):
        assert any(re.search(pattern, path) for path in paths), pattern


@zoo.each(zoo.MODELS)
def test_every_rule_of_a_tensor_mesh_finds_a_parameter(name):
    module, ids = models.build(zoo.MODELS[name], 7, 7), jnp.ones((2, 5), jnp.int32)
    assert_rules_match(zoo.MODELS[name], jax.eval_shape(module.init, jax.random.key(0), ids, ids))
