"""One device equals eight: the matrices of a toy Transformer block, split in every way."""

import functools
import itertools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import mesh_utils
from jax.sharding import PartitionSpec as P

from s2sjax import config
from s2sjax.data.batching.batch_plan import Plan, make_batch
from s2sjax.errors import UserError
from s2sjax.training import mesh, optimizers, train_state

TRAIN = config.Train(warmup_steps=0, learning_rate=0.01, schedule="constant", ema=0.9, weight_decay=0.01)
OPTIMIZER = optimizers.optimizer(TRAIN)
RULES = (("in/kernel", (None, "tensor")), ("in/bias", ("tensor",)), ("out/kernel", ("tensor", None)))


def init():
    keys = jax.random.split(jax.random.key(0))
    params = {
        "in": {"kernel": jax.random.normal(keys[0], (16, 64)) / 4, "bias": jnp.zeros(64)},
        "out": {"kernel": jax.random.normal(keys[1], (64, 16)) / 8},
    }
    return train_state.create(params, OPTIMIZER, ema=True)


def loss(params, batch, key, step):
    hidden = jax.nn.relu(batch["x"] @ params["in"]["kernel"] + params["in"]["bias"])
    hidden = hidden * jax.random.bernoulli(key, 0.8, hidden.shape)
    error = (hidden @ params["out"]["kernel"] - batch["x"]) ** 2 * batch["weight"][:, None]
    return {"loss": (error.sum(), batch["weight"].sum())}


def batch(index):
    rng = np.random.default_rng(index)
    return {"x": rng.normal(size=(16, 16)).astype(np.float32), "weight": np.arange(16, dtype=np.float32)}


def train(devices, shape, rules, grad_accum_steps=1):
    where = mesh.make_mesh(shape, devices)
    current = mesh.init_sharded(init, where, rules, min_size=1)
    options = config.replace(TRAIN, grad_accum_steps=grad_accum_steps)
    step = jax.jit(train_state.make_train_step(loss, OPTIMIZER, options, seed=3))
    for index in range(3):
        current, metrics = step(current, mesh.global_batch(batch(index), where))
    return current, metrics


@functools.cache
def one_device(grad_accum_steps):
    return train(jax.devices()[:1], config.Mesh(), (), grad_accum_steps)


@pytest.mark.parametrize("grad_accum_steps", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    "shape, rules",
    [
        (config.Mesh(), ()),
        (config.Mesh(fsdp=8), ()),
        (config.Mesh(tensor=8), RULES),
        (config.Mesh(data=2, fsdp=2, tensor=2), RULES),
    ],
    ids=["data", "fsdp", "tensor", "all three"],
)
def test_one_device_equals_eight(shape, rules, grad_accum_steps):
    one, numbers = one_device(grad_accum_steps)
    eight, eight_numbers = train(jax.devices(), shape, rules, grad_accum_steps)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=0), eight, one)
    np.testing.assert_allclose(eight_numbers["loss"], numbers["loss"], rtol=1e-5)


def test_micro_batches_leave_every_row_on_its_device():
    where = mesh.make_mesh(config.Mesh())
    rows = mesh.global_batch(np.arange(16, dtype=np.int32), where)
    program = jax.jit(lambda x: train_state._split(x, 2)).lower(rows).compile()
    assert not re.search("all-to-all|all-gather|collective-permute", program.as_text())
    np.testing.assert_array_equal(program(rows), [range(0, 16, 2), range(1, 16, 2)])


def test_parameters_are_born_where_the_table_says_and_the_optimizer_follows():
    where = mesh.make_mesh(config.Mesh(data=2, fsdp=2, tensor=2))
    table = mesh.shardings(jax.eval_shape(init), where, RULES, min_size=128)
    expected = {"in": {"kernel": P("fsdp", "tensor"), "bias": P("tensor")}, "out": {"kernel": P("tensor", "fsdp")}}
    moments = table.optimizer[1][0]
    for tree in (table.params, table.ema, moments.mu, moments.nu):
        assert jax.tree.map(lambda s: s.spec, tree) == expected
    assert table.step.spec == P() and moments.count.spec == P()
    born = jax.jit(init, out_shardings=table)()
    assert born.params["in"]["kernel"].addressable_shards[0].data.shape == (8, 32)
    placed = jax.device_put(init(), table)
    jax.tree.map(np.testing.assert_array_equal, placed, born)
    assert placed.ema["out"]["kernel"].sharding == table.ema["out"]["kernel"]


def test_fsdp_takes_the_largest_dimension_that_divides_and_leaves_small_parameters_whole():
    where = mesh.make_mesh(config.Mesh(fsdp=8))
    shapes = {"wide": (16, 64), "odd": (63, 16), "small": (8,), "none": (3, 500)}
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    specs = jax.tree.map(lambda s: s.spec, mesh.shardings(shapes, where, min_size=100))
    assert specs["wide"] == P(None, "fsdp") and specs["odd"] == P(None, "fsdp")
    assert not any(specs["small"]) and not any(specs["none"])


def test_a_carry_is_split_by_its_rows():
    where = mesh.make_mesh(config.Mesh(data=2, fsdp=4))
    carried = jax.eval_shape(lambda: init()._replace(carry=(jnp.zeros((8, 64)), jnp.zeros((16, 3)))))
    assert [leaf.spec for leaf in mesh.shardings(carried, where, min_size=1).carry] == [mesh.ROWS, mesh.ROWS]


def test_state_can_be_donated_from_the_first_step_on():
    where = mesh.make_mesh(config.Mesh())
    step = jax.jit(train_state.make_train_step(loss, OPTIMIZER, TRAIN, seed=3), donate_argnums=0)
    current, _ = step(mesh.init_sharded(init, where), mesh.global_batch(batch(0), where))
    assert int(current.step) == 1


@pytest.mark.parametrize(
    "shape, words",
    [
        (config.Mesh(fsdp=3), "fsdp 3 x tensor 1 = 3, but there are 8 devices: .* 1, 2, 4, 8"),
        (config.Mesh(data=2, tensor=2), "= 4 devices, but there are 8: set train.mesh.data to 4"),
        (config.Mesh(data=0), "train.mesh.data is 0"),
        (config.Mesh(tensor=-1), "train.mesh.tensor is -1"),
        (config.Mesh(tensor=2, context=3), "fsdp 1 x tensor 2 x context 3 = 6, but there are 8 devices"),
        (config.Mesh(data=1, context=4), "1 x 1 x 1 x 4 = 4 devices, but there are 8: set train.mesh.data to 2"),
        (config.Mesh(context=0), "train.mesh.context is 0"),
    ],
)
def test_a_mesh_that_does_not_fit_says_what_would(shape, words):
    with pytest.raises(UserError, match=words):
        mesh.make_mesh(shape)


class FakeDevice(SimpleNamespace):
    __hash__ = object.__hash__


def fake_slices(platform, slices=2, size=4, **others):
    """Devices of slices of size 2 x size / 2, listed in turns."""
    return [
        FakeDevice(
            id=n, platform=platform, device_kind="TPU v6 lite" if platform == "tpu" else "fake", core_on_chip=0,
            slice_index=n % slices, process_index=n % slices, coords=(n // slices % 2, n // slices // 2, 0), **others
        )
        for n in range(slices * size)
    ]  # fmt: skip


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
@pytest.mark.parametrize("slices", [2, 3])
def test_data_crosses_slices_and_fsdp_and_tensor_stay_within_one(platform, slices):
    fakes = fake_slices(platform, slices)
    for fsdp, tensor in [(1, 1), (2, 1), (4, 1), (1, 4), (2, 2)]:
        made = mesh.make_mesh(config.Mesh(fsdp=fsdp, tensor=tensor), fakes)
        inside = 4 // (fsdp * tensor)
        index = np.vectorize(lambda device: device.slice_index)(made.devices)
        np.testing.assert_array_equal(index, np.repeat(np.arange(slices), inside)[:, None, None] + np.zeros_like(index))
        hybrid = mesh_utils.create_hybrid_device_mesh(
            (inside, fsdp, tensor), (slices, 1, 1), fakes, allow_split_physical_axes=True
        )
        np.testing.assert_array_equal(made.devices, hybrid)


@pytest.mark.parametrize("shape", [config.Mesh(fsdp=8), config.Mesh(fsdp=2, tensor=4), config.Mesh(tensor=3)], ids=str)
def test_a_mesh_that_does_not_fit_in_a_slice_says_what_would(shape):
    words = "but the 2 slices have 4 devices each, and only data may cross slices: the product must be one of 1, 2, 4$"
    with pytest.raises(UserError, match=words):
        mesh.make_mesh(shape, fake_slices("tpu"))


def test_fsdp_and_tensor_cross_hosts_of_gpus_only_if_they_must():
    made = mesh.make_mesh(config.Mesh(fsdp=4, tensor=2), fake_slices("gpu"))
    assert made.devices.shape == (1, 4, 2) and len(set(made.devices.flat)) == 8
    with pytest.raises(UserError, match=r"but there are 8 devices: .* one of 1, 2, 4, 8$"):
        mesh.make_mesh(config.Mesh(tensor=3), fake_slices("gpu"))


def test_a_gpu_that_knows_no_slice_belongs_to_its_process_and_processes_may_differ_in_size():
    fakes = [
        FakeDevice(id=n, platform="gpu", device_kind="fake", process_index=process)
        for n, process in enumerate([0, 0, 1, 1, 1, 1])
    ]
    made = mesh.make_mesh(config.Mesh(fsdp=2), fakes)
    assert [[device.id for device in row] for row in made.devices[..., 0]] == [[0, 1], [2, 3], [4, 5]]
    assert mesh.make_mesh(config.Mesh(fsdp=6), fakes).devices.shape == (1, 6, 1)


@pytest.mark.parametrize("platform", ["tpu", "cpu"])
def test_on_one_slice_the_order_is_that_of_jax(platform):
    """Whatever its processes; on a CPU also if JAX numbers slices."""
    fakes = fake_slices(platform, 1, 8) if platform == "tpu" else fake_slices(platform)
    for shape in factorisations(8):
        alone = mesh_utils.create_device_mesh(shape, fakes, allow_split_physical_axes=True)
        np.testing.assert_array_equal(mesh.make_mesh(config.Mesh(*shape), fakes).devices, alone)


@pytest.mark.parametrize("shape, rules", [
    (config.Mesh(fsdp=4), ()), (config.Mesh(tensor=4), RULES), (config.Mesh(fsdp=2, tensor=2), RULES),
], ids=["fsdp", "tensor", "all three"])  # fmt: skip
def test_one_device_equals_two_slices_of_four(shape, rules, monkeypatch):
    monkeypatch.setattr(mesh, "slice_of", lambda device: device.id % 2)
    one, numbers = one_device(2)
    eight, eight_numbers = train(jax.devices(), shape, rules, 2)
    assert [device.id for device in mesh.make_mesh(shape).devices.flat] == [0, 2, 4, 6, 1, 3, 5, 7]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=0), eight, one)
    np.testing.assert_allclose(eight_numbers["loss"], numbers["loss"], rtol=1e-5)


class NumberedRows:
    """Columns whose batches contain the numbers of their rows."""

    def batch(self, rows, bucket, epoch=0):
        return {"example": rows, "wide": np.stack([rows * 10 + place for place in range(bucket[0])], 1)}


def factorisations(count, axes=3):
    """Every mesh shape data x fsdp x tensor (x context) with this many devices."""
    sizes = [n for n in range(1, count + 1) if count % n == 0]
    return [shape for shape in itertools.product(sizes, repeat=axes) if np.prod(shape) == count]


PODS = [(processes, devices) for processes in range(1, 5) for devices in range(1, 5)]


@pytest.mark.parametrize("processes, devices", PODS, ids=[f"{p}x{d}" for p, d in PODS])
@pytest.mark.parametrize("order", ["by process", "in turns", "shuffled", "slices"])
def test_every_device_of_every_pod_gets_the_rows_that_its_sharding_says(processes, devices, order, monkeypatch):
    """The batches of all processes form one global array, for every mesh; processes may share rows, or split them."""
    fakes = [
        FakeDevice(id=n, process_index=n // devices, platform="cpu", device_kind="fake", slice_index=0)
        for n in range(processes * devices)
    ]
    if order == "slices":  # each process is one
        monkeypatch.setattr(mesh, "slice_of", lambda device: device.process_index)
    if order in ("in turns", "slices"):
        fakes.sort(key=lambda one: one.id % devices)
    elif order == "shuffled":
        fakes = [fakes[n] for n in np.random.default_rng(0).permutation(len(fakes))]
    for data, fsdp, tensor, context in factorisations(len(fakes), axes=4):
        if order == "slices" and devices % (fsdp * tensor * context):
            continue
        where = mesh.make_mesh(config.Mesh(data, fsdp, tensor, context), fakes)
        plan = Plan(np.full((30, 1), 2), [(6,)], tokens=36, seed=0, multiple=data * fsdp)
        whole = make_batch(NumberedRows(), plan, 1)
        seen = {}
        for process in range(processes):

            def place(shape, sharding, rows_of, process=process):
                indices = sharding.devices_indices_map(shape)
                return {one: rows_of(index) for one, index in indices.items() if one.process_index == process}

            monkeypatch.setattr("jax.process_index", lambda process=process: process)
            monkeypatch.setattr("jax.make_array_from_callback", place)
            own = make_batch(NumberedRows(), plan, 1, mesh.row_shards(where, process), data * fsdp)
            for name, held in mesh.global_batch(own, where).items():
                seen.setdefault(name, {}).update(held)
        for name, array in whole.items():
            divides = context > 1 and name == "wide" and 6 % context == 0
            spec = P(*mesh.ROWS, "context") if divides else mesh.ROWS
            indices = jax.sharding.NamedSharding(where, spec).devices_indices_map(array.shape)
            assert seen[name].keys() == indices.keys()
            for one, index in indices.items():
                np.testing.assert_array_equal(seen[name][one], array[index])


@pytest.mark.parametrize(
    "rules, words",
    [
        ((("in/kernal", (None, "tensor")),), "'in/kernal' matches no parameter"),
        (((".*", ()), ("in/bias", ("tensor",))), "'in/bias' matches no parameter"),
        ((("in/bias", (None, "tensor")),), r"names 2 dimensions, but in/bias has shape \(64,\)"),
        ((("in/bias", ("model",)),), "in/bias names the axis 'model': the axes are data, fsdp, tensor"),
    ],
)
def test_a_rule_that_cannot_hold_is_named(rules, words):
    with pytest.raises(UserError, match=words):
        mesh.shardings(jax.eval_shape(init), mesh.make_mesh(config.Mesh(tensor=2)), rules)


def test_a_dimension_that_does_not_divide_is_named():
    shapes = {"out": {"kernel": jax.ShapeDtypeStruct((64, 10), jnp.float32)}}
    with pytest.raises(UserError, match=r"out/kernel .* dimension 1, 10, .* train.mesh.tensor 4"):
        mesh.shardings(shapes, mesh.make_mesh(config.Mesh(tensor=4)), (("out", ("tensor",)),))


def test_rows_that_do_not_divide_are_an_error():
    with pytest.raises(UserError, match="12 rows cannot be split over 8 devices"):
        mesh.global_batch({"x": np.zeros((12, 3))}, mesh.make_mesh(config.Mesh()))
