"""Hybrid models: recurrences and attention in one stack of blocks. The laws of all models hold them too: see zoo.py."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

import s2sjax
from s2sjax import config
from s2sjax.core.mixers import MIXERS
from s2sjax.core.special_tokens import PAD, SOS
from s2sjax.errors import UserError

HYBRIDS = [name for name in zoo.MODELS if name.startswith("hybrid")]


def of(*mixers: str, **options) -> config.Hybrid:
    return config.Hybrid(**zoo.TINY_HYBRID | dict(encoder_layers=1, decoder_layers=1) | options, mixers=mixers)


@zoo.each(HYBRIDS, quick=("hybrid-delta-local",))
def test_steps_and_padding_are_exact_in_float64(name):
    """To 1e-9, where float32 leaves 4e-5 at the sharp parameters: the differences there are rounding."""
    with jax.enable_x64(True):
        model = zoo.Pure(name, sharp=zoo.SHARPNESS, dtype="float64")
        params = jax.tree.map(lambda leaf: leaf.astype(np.float64), model.params)
        model.params = params
        source, target = zoo.batch(np.random.default_rng(3))
        real = (target != PAD)[..., None]
        logits = model.forward(source, target) * real
        assert logits.dtype == np.float64
        steps, _ = model.step_by_step(source, target)
        np.testing.assert_allclose(steps * real, logits, rtol=0, atol=1e-9)
        longer = np.pad(source, ((0, 0), (0, 3))), np.pad(target, ((0, 0), (0, 3)))
        padded = model.forward(*longer)[:, : target.shape[1]]
        np.testing.assert_allclose(padded * real, logits, rtol=0, atol=1e-9)


@zoo.each([*MIXERS, "attention"], argument="mixer", quick=("ssd",))
def test_the_examples_of_a_packed_row_do_not_see_each_other(mixer):
    model = zoo.Pure(of(mixer, directions="both"), tolerance=1e-4)
    rng = np.random.default_rng(0)
    sources, targets = ([rng.integers(4, zoo.VOCABULARY, length) for length in lengths] for lengths in ((4, 3), (3, 5)))
    alone = [model.forward(s[None], t[None])[0] for s, t in zip(sources, targets)]
    row = lambda parts: np.concatenate([*parts, [PAD]])[None]
    segments = lambda parts: row([np.full(len(part), i + 1) for i, part in enumerate(parts)])
    packed = jax.jit(lambda p, *a: model.module.apply(p, *a[:2], False, a[2:]))(
        model.params, row(sources), row(targets), segments(sources), segments(targets)
    )
    np.testing.assert_allclose(packed[0, :-1], np.concatenate(alone), rtol=0, atol=2e-5)


def state_of(model: config.Hybrid, steps: int):
    pure = zoo.Pure(model)
    source, _ = zoo.batch(np.random.default_rng(0))
    memory = jax.eval_shape(pure.encode, pure.params, source)
    return jax.eval_shape(lambda p, m: pure.module.apply(p, m, steps, method="init_state"), pure.params, memory)


def size(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("mixer", [*MIXERS])
def test_the_decoding_state_has_constant_size(mixer):
    assert size(state_of(of(mixer), 8)) == size(state_of(of(mixer), 4096))


def test_only_attention_keeps_a_cache():
    short, long = (state_of(of("attention", decoder_layers=2), steps) for steps in (8, 4096))
    assert size(long) > 100 * size(short)
    model = of("ssd", "local_attention", encoder_layers=2, decoder_layers=2, window=3)
    local = [size(state_of(model, steps)) for steps in (4, 4096)]
    assert local[0] == local[1]


def test_the_pattern_repeats_and_a_decoder_may_have_its_own():
    model = config.Hybrid(mixers=("ssd", "ssd", "attention"), encoder_layers=5, decoder_layers=4)
    assert model.sides() == (("ssd", "ssd", "attention", "ssd", "ssd"), ("ssd", "ssd", "attention", "ssd"))
    own = config.replace(model, decoder_mixers=("gla",), decoder_layers=2)
    assert own.sides()[1] == ("gla", "gla")


def test_directions_alternate_over_the_recurrences_of_an_encoder():
    """With attention between them, every second recurrence reads from the end."""
    model = of("ssd", "attention", directions="alternate", encoder_layers=4, decoder_layers=2)
    layers = zoo.Pure(model).params["params"]["encoder"]
    assert all("backward" not in layers[f"layer_{i}"] for i in range(4))
    both = zoo.Pure(config.replace(model, directions="both")).params["params"]["encoder"]
    assert "backward" in both["layer_0"] and "backward" not in both["layer_1"]
    pure = zoo.Pure(of("ssd", directions="alternate", encoder_layers=1))
    last = [pure.encode(pure.params, np.array([ids]))[0] for ids in ([5, 6, 7], [5, 6, 4])]
    np.testing.assert_allclose(last[0][0, :2], last[1][0, :2], atol=1e-6)  # one layer, which reads forward
    pure = zoo.Pure(of("ssd", directions="both", encoder_layers=1))
    last = [pure.encode(pure.params, np.array([ids]))[0] for ids in ([5, 6, 7], [5, 6, 4])]
    assert np.abs(last[0][0, 0] - last[1][0, 0]).max() > 1e-3


def test_local_attention_and_attention_see_what_they_say():
    """Without a second layer, position 4 of the decoder sees <sos> through attention, and not with a window of 2."""
    for mixer, sees in (("attention", True), ("local_attention", False)):
        pure = zoo.Pure(of(mixer, window=2))
        source, target = np.array([[5, 6]]), np.array([[5, 6, 7, 6, 5]])
        other = np.array([[4, 6, 7, 6, 5]])
        change = np.abs(pure.forward(source, target) - pure.forward(source, other))[0, 4].max()
        assert (change > 1e-4) == sees


@pytest.mark.parametrize(
    "options, named",
    [
        (dict(mixers=()), "model.mixers is empty"),
        (dict(mixers=("lstm",)), "Hybrid.mixers"),
        (
            dict(width=30, heads=4),
            "not divisible by model.heads 4: the heads of a recurrence divide it; try width 32",
        ),
        (dict(head_width=8), "model.head_width 8: the heads of a recurrence divide model.width; set it to 0"),
        (dict(width=6, heads=2, mixers=("attention",)), "must be even for rotary positions"),
        (
            dict(mixers=("ssd", "gla"), encoder_layers=1),
            "model.mixers names 2 mixers for 1 layers: name fewer",
        ),
        (dict(decoder_mixers=("ssd",) * 7), "model.decoder_mixers names 7 mixers for 6 layers"),
        (dict(positions="relative"), "model.positions 'relative'"),
        (dict(mixers=("retention",), width=6, heads=2, positions="none"), "must be even for retention"),
        (dict(adapter_rank=2), "low-rank adapters are for the Transformer"),
        (dict(window=0), "model.window is 0"),
        (dict(short_convolution=0), "model.short_convolution is 0"),
    ],
)
def test_bad_settings_are_refused_by_name(options, named):
    with pytest.raises(UserError, match=named.replace(".", r"\.")):
        config.Hybrid(**options)


def test_settings_concern_the_mixers_that_occur():
    assert config.Hybrid(width=9, heads=3, mixers=("ssd",)).used == {"ssd"}  # 3 features a head: nothing rotates
    assert config.Hybrid(mixers=("local_attention",), decoder_mixers=("ssd",)).used == {"local_attention", "ssd"}


def test_bfloat16_keeps_the_states_in_float32():
    pure = zoo.Pure(of("ssd", "mlstm", encoder_layers=2, decoder_layers=2), dtype="bfloat16")
    source, _ = zoo.batch(np.random.default_rng(0))
    memory = pure.encode(pure.params, source)
    state = pure.init_state(pure.params, memory, 8)
    state, _, _ = pure.step(pure.params, memory, state, np.full(len(source), SOS))
    kinds = {leaf.dtype for layer in state.layers for leaf in jax.tree.leaves(layer.recurrence)}
    assert kinds == {jnp.dtype("float32")}


def test_the_page_on_recurrences():
    """Its program runs, and its table has a row for each recurrence."""
    page = (Path(s2sjax.__file__).parents[1] / "docs" / "recurrences.md").read_text(encoding="utf-8")
    (program,) = re.findall("```python\n(.*?)```", page, re.DOTALL)
    exec(program, {})
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(MIXERS)
