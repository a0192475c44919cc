"""Language models of recurrences and local attention: a text in segments equals the whole text, for every mixer."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config
from s2sjax.config import Mesh, PlainText, Train
from s2sjax.core import mixers
from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.data.text import text_streams
from s2sjax.errors import UserError
from s2sjax.runs import run
from s2sjax.tasks import LanguageModel
from s2sjax.tasks.language_model import language_models, local_attention
from s2sjax.tasks.language_model.settings import HybridLM, PerplexityEvaluate
from s2sjax.tasks.language_model.task import Line
from s2sjax.testing.task_laws import verify_task

TEXT = str(Path(__file__).with_name("text.txt"))
LINES = [" ".join(line.split()) for line in Path(TEXT).read_text().splitlines()]
TINY = dict(width=8, heads=2, feedforward=8, state_width=4, window=3)
MODELS = {
    "delta": HybridLM(**TINY, layers=2, mixers=("gated_delta", "local_attention")),
    "griffin": HybridLM(**TINY, layers=2, mixers=("rg_lru", "local_attention"), positions="none", norm="post"),
    "ssd": HybridLM(**TINY, layers=1, mixers=("ssd",), tie=False, output_bias=False),
    "xlstm": HybridLM(**TINY, layers=2, mixers=("mlstm", "slstm"), normalization="layer", biases=True, gated=False),
    "gla": HybridLM(**TINY, layers=2, mixers=("gla", "delta"), short_convolution=1),
    "retention": HybridLM(**TINY, layers=2, mixers=("retention", "linear_attention"), activation="gelu"),
}
WORDS, LENGTH, ROWS = 17, 12, 4
each_model = zoo.each(MODELS, quick=("delta",))


def test_every_mixer_occurs():
    used = {kind for model in MODELS.values() for kind in model.mixers}
    assert used == {*mixers.MIXERS, "local_attention"}


@cache
def made(name, dtype="float32", remat="none"):
    """A model and random parameters."""
    model = MODELS[name]
    module = language_models.build(model, WORDS, LENGTH, dtype, remat)
    init = lambda key: module.init(key, jnp.ones((1, 1), jnp.int32), language_models.start(model, 1, jnp.dtype(dtype)))
    return module, jax.jit(init)(jax.random.key(0))


@cache
def compiled(name, method):
    module, params = made(name)
    return jax.jit(lambda *arrays: module.apply(params, *arrays, method=method))


def start(name, rows=ROWS):
    return language_models.start(MODELS[name], rows, jnp.float32)


def in_segments(name, ids, sizes, carry):
    """The logits of all positions, and the last state."""
    parts = []
    for part in np.split(ids, np.cumsum(sizes)[:-1], axis=1):
        logits, carry = compiled(name, "__call__")(part, carry)
        parts.append(np.asarray(logits))
    return np.concatenate(parts, axis=1), carry


TEXTS = np.random.default_rng(1).integers(EOS, WORDS, (ROWS, LENGTH + 1)).astype(np.int32)
BEGINS, ENDS = np.array([0, 2, 5, 0]), np.array([12, 12, 9, 3])
"""the texts lie between these positions of the segments, with padding before and after: as in a stream of an evaluation
with `context`, and in one that ends early"""


@each_model
def test_a_text_in_segments_equals_the_whole_text(name):
    """In three segments of four, of which some are padding at one end, at both ends, or everywhere, and in two of six.

    The tokens after it show that the last states are the same, too.
    """
    place = np.arange(LENGTH)
    within = np.clip(place - BEGINS[:, None], 0, LENGTH - 1)
    real = (BEGINS[:, None] <= place) & (place < ENDS[:, None])
    shifted = np.where(real, np.take_along_axis(TEXTS, within, axis=1), PAD)
    lengths = ENDS - BEGINS
    whole = np.where(place < lengths[:, None], TEXTS[:, :-1], PAD)
    wanted, last = compiled(name, "__call__")(whole, start(name))
    wanted, after = np.asarray(wanted), compiled(name, "advance")(last, TEXTS[:, -1])[1]
    for sizes in ((4, 4, 4), (6, 6)):
        found, carry = in_segments(name, shifted, sizes, start(name))
        for row, (begin, length) in enumerate(zip(BEGINS, lengths)):
            np.testing.assert_allclose(found[row, begin : begin + length], wanted[row, :length], atol=1e-5)
        np.testing.assert_allclose(compiled(name, "advance")(carry, TEXTS[:, -1])[1], after, atol=1e-5)
    counts = [s.position if isinstance(s, mixers.State) else s.read for s in carry]
    wanted_counts = [lengths if isinstance(s, mixers.State) else np.minimum(lengths, 3) for s in carry]
    np.testing.assert_array_equal(counts, wanted_counts)


@each_model
def test_one_token_at_a_time_equals_the_whole_text(name):
    """After prompts of different lengths, one of them empty; rows of a batch do not influence each other."""
    wanted, _ = compiled(name, "__call__")(TEXTS[:, :-1], start(name))
    lengths = np.array([4, 0, 3, 1])
    state = compiled(name, "begin")(np.where(np.arange(4) < lengths[:, None], TEXTS[:, :4], PAD))
    for t in range(8):
        state, logits = compiled(name, "advance")(state, TEXTS[np.arange(ROWS), lengths + t])
        np.testing.assert_allclose(logits[:, EOS:], wanted[np.arange(ROWS), lengths + t], atol=1e-5)
        assert (np.asarray(logits)[:, :EOS] < -1e8).all()
    others = np.concatenate([TEXTS[:1], (TEXTS[1:] - EOS + 1) % (WORDS - EOS) + EOS])[:, :-1]
    found = np.asarray(compiled(name, "__call__")(others, start(name))[0])
    np.testing.assert_array_equal(found[0], wanted[0])
    assert (np.abs(found[1:] - wanted[1:]).max(axis=(1, 2)) > 1e-3).all()


@cache
def gradients(name, remat="none"):
    """The gradients of the loss of a second segment: of the parameters, and of the carry's floats; without dropout."""
    module, params = made(name, remat=remat)
    _, carry = in_segments(name, TEXTS[:, :4], (4,), start(name))
    floats, tree = jax.tree.flatten(carry)
    is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in floats]

    @jax.jit
    def loss(params, some):
        some = iter(some)
        leaves = [next(some) if it else leaf for it, leaf in zip(is_float, floats)]
        nats, _ = module.apply(params, TEXTS[:, 4:8], TEXTS[:, 5:9], jax.tree.unflatten(tree, leaves), method="nats")
        return nats.sum()

    return jax.grad(loss, argnums=(0, 1))(params, [leaf for it, leaf in zip(is_float, floats) if it])


@each_model
def test_gradients_reach_every_parameter_and_the_state_before_a_segment(name):
    of_params, of_carry = gradients(name)
    for path, leaf in jax.tree_util.tree_leaves_with_path(of_params):
        assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0, jax.tree_util.keystr(path)
    assert all(np.isfinite(leaf).all() for leaf in of_carry)
    assert sum(bool(np.any(leaf)) for leaf in of_carry) >= len(MODELS[name].mixers)


@pytest.mark.slow
def test_remat_changes_no_gradient():
    first, again = gradients("delta"), gradients("delta", "layers")
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(first))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * scale), again, first)


@each_model
def test_bfloat16_keeps_the_dtypes_of_the_state(name):
    """What sums over time is float32. A segment's state has the shapes and dtypes that the next one takes."""
    module, params = made(name, "bfloat16")
    carry = language_models.start(MODELS[name], 2, jnp.bfloat16)
    kinds = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    apply = lambda method, *arrays: jax.eval_shape(lambda *a: module.apply(params, *a, method=method), *arrays)
    logits, after = apply("__call__", TEXTS[:2, :4], carry)
    stepped, _ = apply("advance", carry, TEXTS[:2, 0])
    assert logits.dtype == jnp.float32 and kinds(after) == kinds(carry) == kinds(stepped)
    assert all(leaf.size for leaf in jax.tree.leaves(carry)), "checkpoints cannot hold empty arrays"
    for state in carry:
        if isinstance(state, mixers.State):
            assert {leaf.dtype for leaf in jax.tree.leaves(state.recurrence)} == {jnp.dtype("float32")}


def test_the_state_of_local_attention_does_not_depend_on_how_far_the_text_is():
    """Read twice, a text longer than the window leaves the same keys: positions count from the segment."""
    rows, reach = 2, 3
    rng = np.random.default_rng(0)
    heads = [rng.normal(size=(rows, 8, 2, 4)).astype(np.float32) for _ in range(3)]
    position = []
    rotate = lambda x, place: position.append(place) or x
    empty, mask = local_attention.start(rows, reach, 2, 4, jnp.float32), np.ones((rows, 8), bool)
    first, past = local_attention.attend(*heads, empty, mask, rotate)
    second, again = local_attention.attend(*heads, past, mask, rotate)
    np.testing.assert_array_equal(past.keys, heads[1][:, -reach:])
    jax.tree.map(np.testing.assert_array_equal, past, again)
    np.testing.assert_allclose(first[:, reach:], second[:, reach:], atol=1e-6)
    assert np.abs(first[:, :reach] - second[:, :reach]).max() > 1e-3
    assert min(np.min(each) for each in position) == -reach and max(np.max(each) for each in position) == 7


@pytest.mark.slow
def test_each_option_changes_the_logits_or_the_parameters():
    base = config.replace(MODELS["delta"], positions="none")

    def shapes(model):
        module = language_models.build(model, WORDS, LENGTH, "float32", "none")
        init = lambda key: module.init(key, TEXTS[:1, :1], language_models.start(model, 1, jnp.float32))
        return jax.tree.map(np.shape, jax.eval_shape(init, jax.random.key(0)))

    ssd = config.replace(base, mixers=("ssd",))
    for model, field, value in [
        *((base, *pair) for pair in {
            "mixers": ("ssd",), "short_convolution": 2, "feedforward": 4, "layers": 3, "normalization": "layer",
            "biases": True, "gated": False, "tie": False, "output_bias": False, "norm": "post", "heads": 4,
        }.items()),
        (ssd, "state_width", 3), (ssd, "expand", 3),
    ]:  # fmt: skip
        assert shapes(config.replace(model, **{field: value})) != shapes(model), field
    params = made("delta")[1]

    @cache
    def logits(model):
        module = language_models.build(model, WORDS, LENGTH, "float32", "none")
        carry = language_models.start(model, 1, jnp.float32)
        return np.asarray(jax.jit(module.apply)(params, TEXTS[:1, :6], carry)[0])

    for field, value in {
        "positions": "rotary", "window": 2, "activation": "relu", "epsilon": 0.5, "scale_embedding": False,
    }.items():  # fmt: skip
        assert np.abs(logits(config.replace(base, **{field: value})) - logits(base)).max() > 1e-4, field


# ------------------------------------------------------------------------------------------ the task

TRAIN = Train(steps=6, learning_rate=1e-2, warmup_steps=2, evaluate_every=2, save_every=2, schedule="constant")
EXPERIMENT = LanguageModel(
    "hybrid", data=PlainText(TEXT, TEXT, batch_size=8, steps=4), evaluate=PerplexityEvaluate(streams=4),
    model=config.replace(MODELS["delta"], mixers=("ssd", "local_attention"), dropout=0.2, word_dropout=0.1),
    train=TRAIN,
)  # fmt: skip


@cache
def prepared(name, **fields):
    """A task with its vocabulary and its initial parameters."""
    data = PlainText(TEXT, TEXT, batch_size=2, steps=8)
    task = LanguageModel("small", data=data, model=MODELS[name], **fields).task()
    task = task.replace(assets=task.learn_assets(LINES))
    return task, jax.jit(task.init)(jax.random.key(0))


@zoo.each(["xlstm", "delta"], quick=("xlstm",))
def test_a_stream_that_starts_again_starts_from_the_initial_state(name):
    """The state of an xLSTM begins with other numbers than zeros. The other stream keeps its state."""
    task, params = prepared(name)
    ids, _ = text_streams.encode(task.vocabulary, LINES)
    batch = text_streams.Segments(ids, 2, 8).batch(np.array([0, 1]), (8,))
    loss = jax.jit(task.loss())
    dirty = jax.tree.map(lambda leaf: leaf + 1, task.carry(2))
    both = [loss(params, batch, jax.random.key(0), 0, carry)[0]["loss"][0] for carry in (task.carry(2), dirty)]
    assert batch["start"].all() and float(both[0]) == float(both[1])
    goes_on = batch | {"start": np.array([True, False])}
    assert float(loss(params, goes_on, jax.random.key(0), 0, dirty)[0]["loss"][0]) != float(both[0])


@pytest.mark.slow
@pytest.mark.parametrize("streams, context", [(1, 0), (3, 0), (3, 60)])
def test_evaluation_carries_the_state(streams, context):
    """With a context longer than the text before it, a stream reads as if it were the only one."""
    task, params = prepared("delta", evaluate=PerplexityEvaluate(streams=streams, context=context))
    scored = task.predictor()(params, [Line(line) for line in LINES])
    ids, _ = text_streams.encode(task.vocabulary, LINES)
    inputs, nats = np.concatenate([[EOS], ids[:-1]]), jax.jit(lambda *a: task.module.apply(*a, method="nats"))
    length = -(-len(ids) // streams)
    begins = [0] if context else range(0, len(ids), length)
    size = len(ids) if context else length
    total = 0.0
    for begin in begins:
        part = slice(begin, begin + size)
        pad = lambda x: np.pad(x[part], (0, size - len(x[part])))[None]  # noqa: B023
        total += float(nats({"params": params}, pad(inputs), pad(ids), task.carry(1))[0].sum())
    np.testing.assert_allclose(sum(line.nats for line in scored), total, rtol=1e-5)


@pytest.fixture
def one_device(monkeypatch):
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])


def changed(**train):
    return config.replace(EXPERIMENT, train=config.replace(TRAIN, **train))


def params_of(trained):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.device_get(trained[1].state))]


@pytest.mark.slow
def test_a_restart_changes_no_bit(tmp_path, one_device):
    """The restart is in the middle of an epoch, with dropout; the carry is part of the checkpoint."""
    straight = params_of(run.train(EXPERIMENT, tmp_path / "straight"))
    run.train(changed(steps=4), tmp_path / "restarted")
    restarted = params_of(run.train(EXPERIMENT, tmp_path / "restarted"))
    assert all(np.array_equal(a, b) for a, b in zip(straight, restarted, strict=True))


@pytest.mark.slow
def test_one_device_equals_eight(tmp_path, request):
    experiment = changed(evaluate_every=0, steps=3)
    eight = params_of(run.train(changed(evaluate_every=0, steps=3, mesh=Mesh(data=2, fsdp=4)), tmp_path / "eight"))
    request.getfixturevalue("one_device")
    one = params_of(run.train(experiment, tmp_path / "one"))
    for a, b in zip(eight, one, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_the_laws_of_tasks_hold():
    verify_task(EXPERIMENT)


@pytest.mark.slow
def test_it_learns_a_line_by_heart(tmp_path, one_device):
    """A line that is repeated becomes certain, and is continued by a run that is opened again."""
    line, text = "one two three two one", tmp_path / "text.txt"
    text.write_text(f"{line}\n" * 40)
    experiment = LanguageModel(
        "line", data=PlainText(str(text), str(text), batch_size=4, steps=11),
        model=HybridLM(16, 2, 16, 2, mixers=("gated_delta", "local_attention"), window=4, dropout=0.0),
        train=Train(steps=150, learning_rate=1e-2, warmup_steps=10, evaluate_every=0, save_every=150),
        search=config.replace(EXPERIMENT.search, temperature=0.0),
    )  # fmt: skip
    run.train(experiment, tmp_path / "run")
    trained = run.load(tmp_path / "run")
    assert run.evaluate(trained)["perplexity"].value < 1.1
    assert trained.decode("one two") == line


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: HybridLM(mixers=("ssd", "attention")), "model.mixers has attention, whose state would grow"),
        (lambda: HybridLM(mixers=("ssd",) * 5), "model.mixers names 5 mixers for 4 layers: name fewer, or raise"),
        (lambda: HybridLM(mixers=()), "model.mixers is empty: name at least one"),
        (lambda: HybridLM(width=10, heads=4), "model.width 10 is not divisible by model.heads 4: try width 8"),
        (lambda: HybridLM(heads=0), "model.heads is 0: it must be at least 1"),
        (lambda: HybridLM(window=0), "model.window is 0: it must be at least 1"),
        (lambda: HybridLM(layers=0), "model.layers is 0: it must be at least 1"),
        (lambda: HybridLM(word_dropout=1.0), "model.word_dropout is 1.0: it must be in [0, 1)"),
        (lambda: HybridLM(dropout=1.0), "model.dropout is 1.0: it must be in [0, 1)"),
        (lambda: HybridLM(mixers=("sssd",)), "mixers"),
        (
            lambda: prepared("delta")[0].plan(prepared("delta")[0].columns(LINES), 4),
            "data.batch_size 2 streams cannot be split",
        ),
    ],
)
def test_what_cannot_work_is_refused(build, message):
    with pytest.raises(UserError) as caught:
        build()
    assert message in str(caught.value)
