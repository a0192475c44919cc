"""Parameters from another run, matched by name and shape, and row by row where vocabularies differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training import mesh
from s2sjax.training.checkpoints import transfer
from s2sjax.training.checkpoints.transfer import Rows


def shapes(tree):
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), tree, is_leaf=lambda x: type(x) is tuple
    )


def test_names_and_shapes_decide():
    mine = shapes({"a": (2, 3), "b": {"kernel": (3, 3), "bias": (3,)}, "table": (3, 2), "words": (4,)})
    theirs = shapes({"a": (2, 4), "b": {"kernel": (3, 3), "scale": (3,)}, "table": (2, 2), "words": (4,)})
    rows = {"table": Rows(0, np.array([1, -1, 0])), "words": None}
    found = transfer.match(mine, theirs, rows)
    assert found.taken == {"b/kernel": None, "table": rows["table"]}
    assert found.new == {"a": (2, 3), "b/bias": (3,), "words": (4,)}
    assert found.left == {"a": (2, 4), "b/scale": (3,), "words": (4,)}
    assert found.describe("runs/base", 20) == [
        "initialised from runs/base, checkpoint of step 20: 2 of 5 parameters taken",
        "  rows of words that both vocabularies have: table 2 of 3",
        "  new: a (2, 3), b/bias (3,), words (4,)",
        "  not used: a (2, 4), b/scale (3,), words (4,)",
    ]
    new = {"a": jnp.zeros((2, 3)), "b": {"kernel": jnp.zeros((3, 3)), "bias": jnp.zeros(3)}, "table": jnp.zeros((3, 2))}
    old = {"a": jnp.ones((2, 4)), "b": {"kernel": jnp.ones((3, 3))}, "table": jnp.array([[1.0, 2], [3, 4]])}
    merged = transfer.merge(found, new | {"words": jnp.zeros(4)}, old | {"words": jnp.ones(4)})
    np.testing.assert_array_equal(merged["table"], [[3, 4], [0, 0], [1, 2]])
    assert merged["b"]["kernel"].all() and not merged["b"]["bias"].any()
    assert not merged["a"].any() and not merged["words"].any()


def test_rows_of_the_last_axis():
    found = transfer.match(shapes({"out": (2, 3)}), shapes({"out": (2, 2)}), {"out": Rows(1, np.array([0, -1, 1]))})
    merged = transfer.merge(found, {"out": jnp.zeros((2, 3))}, {"out": jnp.array([[1.0, 2], [3, 4]])})
    np.testing.assert_array_equal(merged["out"], [[1, 0, 2], [3, 0, 4]])


def test_nothing_in_common_is_an_error_that_says_why():
    found = transfer.match(shapes({"a": (2,)}), shapes({"b": (3,)}), {})
    with pytest.raises(
        UserError, match=r"nothing of runs/base fits: it has b \(3,\); this model has a \(2,\): use a mod"
    ):
        transfer.require_some(found, "runs/base")


def test_each_device_reads_only_what_it_will_hold():
    where = mesh.make_mesh(config.Mesh(fsdp=8))
    mine = mesh.with_shardings(shapes({"a": (8, 3), "b": (16, 8)}), where, min_size=1)
    theirs = shapes({"a": (8, 3), "b": (8, 8), "c": (64, 128)})
    found = transfer.template(transfer.match(mine, theirs, {}), theirs, mine)
    assert found["a"].sharding == mine["a"].sharding
    assert found["c"].sharding.spec == jax.sharding.PartitionSpec(None, "fsdp")
