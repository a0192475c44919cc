"""Frozen parameters, and learning rates that decay from layer to layer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from s2sjax import config, models
from s2sjax.core.traced_numbers import Disagree, Number
from s2sjax.errors import UserError
from s2sjax.models import objectives
from s2sjax.training import fine_tuning, mesh, optimizers, train_state
from s2sjax.training.checkpoints.fingerprints import named_leaves
from s2sjax.training.checkpoints.manager import Checkpoints

SHAPES = {
    "source_embedding": {"table": (5, 4)},
    "target_embedding": {"table": (5, 4)},
    "encoder": {"blocks": {"stack": {"kernel": (3, 4, 4), "bias": (3, 4)}}, "final_norm": {"scale": (4,)}},
    "decoder": {"first": {"input": (4, 4)}, "upper_0": {"input": (4, 4)}, "output": {"kernel": (4, 5), "bias": (5,)}},
}
BELOW = {
    "source_embedding/table": 3,
    "target_embedding/table": 2,
    "encoder/blocks/stack/kernel": [2, 1, 0],
    "encoder/blocks/stack/bias": [2, 1, 0],
    "encoder/final_norm/scale": 0,
    "decoder/first/input": 1,
    "decoder/upper_0/input": 0,
    "decoder/output/kernel": 0,
    "decoder/output/bias": 0,
}
"""the number of layers above each parameter"""
FROZEN = ("embedding/", "^decoder/first", "bias$")


def parameters():
    keys = iter(jax.random.split(jax.random.key(0), 9))
    return jax.tree.map(lambda shape: jax.random.normal(next(keys), shape), SHAPES, is_leaf=lambda x: type(x) is tuple)


def flat(tree) -> dict:
    return dict(named_leaves(tree))


def loss(params, batch, key, step):
    """A loss whose gradient with respect to each parameter depends on all of them."""
    leaves = jax.tree.leaves(params)
    each = jax.vmap(lambda x: sum(jnp.sum(jnp.sin(leaf * x + n)) for n, leaf in enumerate(leaves)) ** 2)(batch["x"])
    return {"loss": (jnp.sum(each * batch["weight"]), batch["weight"].sum())}


def batch(index: int) -> dict:
    rng = np.random.default_rng(index)
    return {"x": rng.normal(size=4).astype(np.float32), "weight": np.arange(1, 5, dtype=np.float32)}


def train(**fields) -> config.Train:
    usual = {"learning_rate": 0.01, "warmup_steps": 0, "schedule": "constant", "clip_norm": 0.5, "weight_decay": 0.1}
    return config.Train(**usual | fields)


def start(options: config.Train):
    return train_state.create(parameters(), optimizers.optimizer(options), options.averages)


def steps(options: config.Train, state=None, numbers=range(4)):
    step = jax.jit(train_state.make_train_step(loss, optimizers.optimizer(options), options, seed=3))
    state = start(options) if state is None else state
    for number in numbers:
        state, metrics = step(state, batch(number))
    return state, metrics


def oracle(frozen=(), below=None, decay=1.0, count=4):
    """AdamW in plain Optax on a flat dictionary of the trained parameters, and its global norms."""
    mask = lambda params: {name: leaf.ndim - ("stack" in name) >= 2 for name, leaf in params.items()}
    rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.01, 0.9, 0.98, 1e-9, weight_decay=0.1, mask=mask))
    everything = flat(parameters())
    own = {name: leaf for name, leaf in everything.items() if name not in frozen}
    state, norms = rule.init(own), []
    for number in range(count):
        gradient = jax.grad(lambda own, at: loss({**everything, **own}, at, None, 0)["loss"][0])(own, batch(number))
        gradient = jax.tree.map(lambda g: g / 10, gradient)  # the weight of a batch
        norms.append(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in gradient.values())))
        updates, state = rule.update(gradient, state, own)
        for name, update in updates.items():
            power = np.float32(decay) ** np.array((below or BELOW)[name])
            own[name] = own[name] + update * power.reshape(-1, *[1] * (update.ndim - 1)).astype(np.float32)
    return {**everything, **own}, norms


def assert_close(found, wanted):
    found, wanted = flat(found), flat(wanted)
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


# -------------------------------------------------------------------------------------- frozen


@pytest.mark.parametrize("fields", [{}, {"grad_accum_steps": 2}, {"layer_decay": 0.5}], ids=["", "parts", "decay"])
def test_frozen_parameters_stay_bit_for_bit_and_the_others_are_those_of_an_oracle(fields):
    before = flat(parameters())
    frozen = {name for name in before if "embedding" in name or "first" in name or name.endswith("bias")}
    assert 0 < len(frozen) < len(before)
    state, metrics = steps(train(frozen=FROZEN, ema=0.9, **fields))
    wanted, norms = oracle(frozen, decay=fields.get("layer_decay", 1.0))
    assert_close(state.params, wanted)
    np.testing.assert_allclose(metrics["grad_norm"], norms[-1], rtol=1e-5)
    for name in frozen:
        np.testing.assert_array_equal(flat(state.params)[name], before[name])
        np.testing.assert_array_equal(flat(state.ema)[name], before[name])
    for name in before.keys() - frozen:
        assert (flat(state.params)[name] != before[name]).all() and (flat(state.ema)[name] != before[name]).all()


def test_a_frozen_parameter_may_hold_any_bits():
    """Adding an update of 0 would turn -0.0 into 0.0."""
    options = train(frozen=("^decoder/output/bias",))
    params = parameters()
    params["decoder"]["output"]["bias"] = -jnp.zeros(5)
    state, _ = steps(options, train_state.create(params, optimizers.optimizer(options)))
    assert np.signbit(state.params["decoder"]["output"]["bias"]).all()


@pytest.mark.parametrize("name", ["adamw", "adafactor", "lion", "muon", "sgd", "optax.lamb"])
def test_no_optimizer_keeps_moments_of_frozen_parameters(name):
    options = train(frozen=FROZEN, optimizer=name)
    state, _ = steps(options, numbers=range(1))
    kept = {"/".join(path.split("/")[-2:]) for path, leaf in named_leaves(state.optimizer) if leaf.ndim}
    assert not any("embedding" in path or "first" in path or path.endswith("bias") for path in kept), kept
    assert "upper_0/input" in kept or name == "sgd"
    np.testing.assert_array_equal(state.params["decoder"]["first"]["input"], parameters()["decoder"]["first"]["input"])
    assert (state.params["decoder"]["upper_0"]["input"] != parameters()["decoder"]["upper_0"]["input"]).all()


def test_no_gradient_is_computed_for_frozen_parameters():
    """Their gradient would be a product of their shape."""

    def product(params, batch, key, step):
        hidden = batch["x"] @ params["lower"]
        return {"loss": (jnp.sum(jnp.tanh(hidden @ params["upper"])), jnp.float32(1))}

    params = {"lower": jnp.ones((3, 7)), "upper": jnp.ones((7, 5))}

    def products(**fields):
        options = train(**fields)
        optimizer = optimizers.optimizer(options)
        step = train_state.make_train_step(product, optimizer, options, seed=0)
        return str(jax.make_jaxpr(step)(train_state.create(params, optimizer), {"x": jnp.ones((2, 3))})).count(
            "dot_gen"
        )

    assert (products(), products(frozen=("lower",))) == (5, 3)


def test_the_optimizer_alone_takes_all_gradients_and_gives_updates_of_0():
    """As in a loop of the user's own."""
    params = parameters()
    optimizer = optimizers.optimizer(train(frozen=FROZEN, layer_decay=0.5))
    updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    for name, update in flat(updates).items():
        assert (update == 0).all() == ("embedding" in name or "first" in name or name.endswith("bias")), name


def test_a_restart_changes_no_bit(tmp_path):
    options = train(frozen=FROZEN, layer_decay=0.7, ema=0.9)
    whole, _ = steps(options)
    half, _ = steps(options, numbers=range(2))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(half, 2)
    checkpoints.wait()
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), half)
    restored, _ = Checkpoints(tmp_path).restore(template)
    jax.tree.map(np.testing.assert_array_equal, steps(options, restored, range(2, 4))[0], whole)


def test_one_device_equals_eight():
    options = train(frozen=FROZEN, layer_decay=0.7, ema=0.9)
    where = mesh.make_mesh(config.Mesh(fsdp=4, data=2))
    sharded = mesh.init_sharded(lambda: start(options), where, (), min_size=1)
    moments = [leaf for path, leaf in named_leaves(sharded.optimizer) if path.endswith("mu/decoder/upper_0/input")]
    assert [leaf.sharding.spec for leaf in moments] == [sharded.params["decoder"]["upper_0"]["input"].sharding.spec]
    assert "fsdp" in moments[0].sharding.spec
    assert_close(steps(options, sharded)[0].params, steps(options)[0].params)


# ---------------------------------------------------------------------------------------- layers


def test_the_update_of_a_layer_is_multiplied_once_for_each_layer_above_it():
    below = fine_tuning.distances({name: leaf.shape for name, leaf in flat(parameters()).items()})
    assert below == BELOW
    params = parameters()
    gradient = jax.tree.map(lambda leaf: leaf + 1, params)
    one, other = (optimizers.optimizer(train(layer_decay=decay)) for decay in (1.0, 0.5))
    plain, scaled = (flat(each.update(gradient, each.init(params), params)[0]) for each in (one, other))
    for name, n in BELOW.items():
        factors = np.reshape(0.5 ** np.array(n), (-1, *[1] * (plain[name].ndim - 1)))  # exact, as powers of two are
        np.testing.assert_array_equal(scaled[name], plain[name] * factors.astype(np.float32), err_msg=name)


def test_training_with_layer_decay_equals_an_oracle():
    assert_close(steps(train(layer_decay=0.8))[0].params, oracle(decay=0.8)[0])


@pytest.mark.parametrize("decay", [0.5, 0.65, 0.9])
def test_the_decay_can_be_an_argument_of_the_program(decay):
    params = parameters()
    gradient = jax.tree.map(lambda leaf: leaf + 1, params)
    found = jax.jit(
        lambda value: fine_tuning.scale_by_layer(Number(value, (decay,))).update(gradient, optax.EmptyState(), params)
    )(decay)[0]
    wanted = fine_tuning.scale_by_layer(decay).update(gradient, optax.EmptyState(), params)[0]
    for name, update in flat(found).items():
        np.testing.assert_allclose(update, flat(wanted)[name], rtol=1e-6, err_msg=name)


def test_runs_with_and_without_decay_have_programs_of_their_own():
    with pytest.raises(Disagree) as caught:
        optimizers.optimizer(config.with_numbers(train(), {"layer_decay": Number(jnp.float32(0.5), (1.0, 0.5))}))
    assert caught.value.answers == (True, False)


MODEL_LAYERS = {
    "transformer-post": {"source_embedding/table": 2, "target_embedding/table": 2},
    "transformer-shared": {"target_embedding/table": 2, "decoder/blocks/stack/cross/query/kernel": [1, 0]},
    "transformer-pre-learned": {"encoder/positions/table": 2, "decoder/final_norm/scale": 0, "decoder/output/bias": 0},
    "sutskever-shared": {"target_embedding/table": 2, "encoder/stack/forward_0/input": 1},
    "gnmt": {
        "encoder/lowest/backward_0/input": 2, "encoder/upper/forward_1/input": 0, "decoder/lowest/input": 2,
        "decoder/upper_0/input": 1, "decoder/attention/query": 0,
    },
    "luong-peephole-zoneout-project": {"encoder/stack/joins_0_1/kernel": 1, "decoder/combine/kernel": 0},
    "rnnsearch": {"decoder/cell/input": 0, "target_embedding/table": 1, "decoder/readout/kernel": 0},
    "convs2s-uneven": {
        "encoder/blocks_0/convolution/kernel": 2, "encoder/enter/kernel": 3, "decoder/attentions_0/ask/kernel": 1,
    },
    "lstm-dense": {"source_embedding/table": 1, "decoder/inner_0/kernel": 0},
}  # fmt: skip


@zoo.each(zoo.MODELS, quick=MODEL_LAYERS)
def test_the_layers_of_every_model_are_known(name):
    module, ids = models.build(zoo.MODELS[name], 7, 7), jnp.ones((1, 2), jnp.int32)
    shapes = {path: leaf.shape for path, leaf in named_leaves(jax.eval_shape(module.init, jax.random.key(0), ids, ids))}
    shapes = {path.removeprefix("params/"): shape for path, shape in shapes.items()}
    below = fine_tuning.distances(shapes)
    for path, n in MODEL_LAYERS.get(name, {}).items():
        assert below[path] == n, path
    sides = {path.partition("/")[0] for path in shapes if "embedding" not in path} - {"bridge"}
    for side in sides:  # every side has a top layer, and no layer twice as far from it as there are layers
        found = {each for path, n in below.items() if path.startswith(f"{side}/") for each in np.ravel(n)}
        assert found == set(range(len(found))), (side, found)


@zoo.each(("transformer-pre-learned", "luong"), quick=())
@pytest.mark.parametrize("objective", [{"label_smoothing": 0.1}, {"label_smoothing": 0.1, "r_drop": 2.0}])
def test_smoothing_and_averages_stay_finite_in_a_real_model(name, objective):
    options = train(frozen=("^encoder/", "embedding"), layer_decay=0.5, ema=0.9, **objective)
    module, optimizer = models.build(zoo.MODELS[name], 8, 8), optimizers.optimizer(options)
    source, target = zoo.batch(np.random.default_rng(0), rows=4, vocabulary=8)
    params = zoo.parameters(module)["params"]
    state = train_state.create(params, optimizer, ema=True)
    step = jax.jit(train_state.make_train_step(objectives.choose(module, options), optimizer, options, seed=0))
    for _ in range(3):
        state, metrics = step(state, {"source": source, "target": target})
    for leaf in jax.tree.leaves((state, metrics)):
        assert np.isfinite(leaf).all()
    for path, leaf in named_leaves(params):
        moved = (flat(state.params)[path] != leaf).any(), (flat(state.ema)[path] != leaf).any()
        assert moved == ((False, False) if path.startswith("encoder/") or "embedding" in path else (True, True)), path


# -------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"frozen": ("encodr/",)}, "train.frozen 'encodr/' matches no parameter: correct it; there are decoder/first/"),
        ({"frozen": ("^encoder/", "x")}, "train.frozen 'x' matches no parameter: correct it; there are"),
        ({"frozen": ("",)}, "train.frozen matches all parameters, so that nothing is learned: leave out a pattern"),
        ({"frozen": ("^(enc|dec)", "embedding")}, "train.frozen matches all parameters"),
        ({"frozen": ("enc(",)}, "train.frozen 'enc(' is no regular expression (missing ), unterminated subpattern"),
        ({"frozen": "encoder"}, "Train.frozen is 'encoder': it must be a tuple of a string, write ('encoder',)"),
        ({"layer_decay": 0.0}, "train.layer_decay is 0.0: it must be above 0 and at most 1"),
        ({"layer_decay": 1.5}, "train.layer_decay is 1.5: it must be above 0 and at most 1"),
    ],
)
def test_a_mistake_is_named_with_what_would_do(fields, words):
    with pytest.raises(UserError) as caught:
        start(train(**fields))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_without_layers_has_no_layer_decay():
    optimizer = optimizers.optimizer(train(layer_decay=0.5))
    with pytest.raises(UserError, match=r"requires layers with known names.*and this model has table, weights: set it"):
        optimizer.init({"table": jnp.ones(3), "weights": jnp.ones(3)})


@runs(max_examples=200)
@given(st.lists(st.text("^$()[]*+?|\\.abcdeno/_ 0", max_size=8), max_size=3), st.floats() | st.integers())
def test_no_setting_gives_another_error(patterns, decay):
    """Either it works, or it is a mistake of the user, explained in one line."""
    try:
        options = config.Train(frozen=tuple(patterns), layer_decay=decay)
        state = jax.eval_shape(optimizers.optimizer(options).init, SHAPED)
    except UserError as error:
        assert "\n" not in str(error) and "train." in str(error).lower()
    else:
        kept = {
            path for path in flat(SHAPED) if not any(map(lambda p, at=path: fine_tuning.re.search(p, at), patterns))
        }
        moments = {path.partition("/mu/")[2] for path, _ in named_leaves(state) if "/mu/" in path}
        assert moments == kept


SHAPED = jax.eval_shape(parameters)
