"""Parameters in fewer bits."""

import jax.numpy as jnp
import numpy as np

from s2sjax.core.precision import Quantised, restored, stored

RNG = np.random.default_rng(0)
PARAMS = {
    "dense": {"kernel": RNG.normal(size=(16, 8)) * np.logspace(-3, 3, 8), "bias": RNG.normal(size=8)},
    "blocks": {"kernel": RNG.normal(size=(2, 16, 8))},
    "embedding": {"table": RNG.normal(size=(20, 4)) * np.logspace(-3, 3, 20)[:, None]},
    "empty": {"kernel": np.zeros((3, 2))},
}
PARAMS = {name: {key: jnp.float32(leaf) for key, leaf in part.items()} for name, part in PARAMS.items()}


def test_an_int8_entry_is_off_by_at_most_half_a_scale():
    """Each column of a matrix has its own scale, each row of an embedding table, each layer of a stack."""
    quantised = stored(PARAMS, "int8")
    whole = restored(quantised)
    for name, key, axis in (("dense", "kernel", -2), ("blocks", "kernel", -2), ("embedding", "table", -1)):
        before, after = np.asarray(PARAMS[name][key]), np.asarray(whole[name][key])
        assert quantised[name][key].numbers.dtype == jnp.int8
        scale = np.abs(before).max(axis, keepdims=True) / 127
        assert (np.abs(before - after) <= scale * 0.5001).all()
        assert np.abs(before - after).max() > 0
        np.testing.assert_allclose(np.abs(after).max(axis), np.abs(before).max(axis), rtol=1e-6)
    np.testing.assert_array_equal(whole["dense"]["bias"], PARAMS["dense"]["bias"])
    np.testing.assert_array_equal(whole["empty"]["kernel"], 0)
    assert not isinstance(quantised["dense"]["bias"], Quantised)


def test_bfloat16_rounds_and_trained_leaves_alone():
    rounded = stored(PARAMS, "bfloat16")["dense"]["kernel"]
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded.astype(jnp.float32), PARAMS["dense"]["kernel"], rtol=2**-8)
    assert stored(PARAMS, "trained") is PARAMS
    assert restored(stored(PARAMS, "float32"))["dense"]["kernel"] is PARAMS["dense"]["kernel"]
