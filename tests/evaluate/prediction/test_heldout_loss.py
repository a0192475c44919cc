"""The dev loss equals that of teacher forcing for all devices, batches and options of training."""

from functools import partial

import jax
import numpy as np
import pytest

from s2sjax.config import Data, Luong, Mesh, Softmax, Synthetic, Train
from s2sjax.core.special_tokens import PAD
from s2sjax.data.examples import Example
from s2sjax.evaluate.prediction import batched_apply
from s2sjax.evaluate.prediction.heldout_loss import DevLoss
from s2sjax.tasks import Regression, Task, Translation
from s2sjax.tasks.regression.settings import Fibonacci, Windows
from s2sjax.training import mesh as meshes

BUCKETS = ((4, 4), (8, 8))
SENTENCES = [
    Example("abc", ("cba", "a reference that is not used")), Example("a", ("a",)), Example("abcabca", ("acbacba",)),
    Example("", ("",)), Example("cc", ("bbbbb",)), Example("bcbcb", ("bcbcb",)), Example("b", ("c",)),
]  # fmt: skip
TOO_LONG = Example("abcabcab", ("b",))


@pytest.fixture(scope="module")
def text():
    """A task with everything that training adds to the loss, and its initial parameters."""
    experiment = Translation(
        "text",
        data=Data(Synthetic("reverse", train=64, length=4, alphabet=3), buckets=BUCKETS, batch_tokens=24),
        model=Luong(width=8, embedding_size=4, layers=1, dropout=0.5),
        train=Train(softmax=Softmax(samples=5)),
    )
    task = experiment.task()
    task = task.replace(assets=task.learn_assets(task.read()))
    return task, jax.jit(task.init)(jax.random.key(3))


def dev_loss(task, examples, mesh=None, loss=None):
    data = task.experiment.data
    columns = task.dev_columns(examples)
    return DevLoss(loss or task.evaluation_loss(), columns, data.buckets, data.batch_tokens, mesh, task.has_perplexity)


def tracing(task):
    """The shapes that are compiled, and the loss that adds them."""
    traced = []

    def loss(params, batch):
        traced.append(batch["source"].shape)
        return task.evaluation_loss()(params, batch)

    return traced, loss


def test_few_examples_share_one_program(text):
    task, params = text
    traced, loss = tracing(task)
    dev_loss(task, SENTENCES, loss=loss)(params)
    assert traced == [(1, 8)]


@pytest.fixture(scope="module")
def measured(text):
    """The dev metrics of the sentences, without one that is too long. Compiled once per bucket."""
    task, params = text
    traced, loss = tracing(task)
    measure = dev_loss(task, [*SENTENCES, TOO_LONG], loss=loss)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched_apply, "COMPILATION", 0)
        first = measure(params)
    assert measure.left_out == 1
    assert measure(jax.tree.map(lambda leaf: leaf * 0, params)) != first == measure(params)
    assert sorted(traced) == [(1, 8), (3, 4)], "24 tokens a batch, one program a bucket for all evaluations"
    return first


def test_it_is_the_mean_over_tokens_of_the_first_references(text, measured):
    task, params = text
    batch = task.dev_columns(SENTENCES).batch(np.arange(len(SENTENCES)), (8, 8))
    apply = jax.jit(partial(task.module.apply, {"params": params}))
    logits = np.asarray(apply(batch["source"], batch["target"]))
    real = batch["target"] != PAD
    likelihood = jax.nn.log_softmax(logits)[np.arange(7)[:, None], np.arange(8), batch["target"]]
    loss = -np.sum(likelihood, where=real) / real.sum()
    right = np.sum(logits.argmax(-1) == batch["target"], where=real)
    assert real.sum() == sum(len(example.targets[0]) + 1 for example in SENTENCES)
    assert list(measured) == ["dev_loss", "dev_perplexity", "dev_accuracy"]
    np.testing.assert_allclose(measured["dev_loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(measured["dev_perplexity"], np.exp(loss), rtol=1e-5)
    np.testing.assert_allclose(measured["dev_accuracy"], 100 * right / real.sum(), rtol=1e-6)


def test_one_device_equals_eight(text, measured):
    task, params = text
    mesh = meshes.make_mesh(Mesh(fsdp=4))
    split = jax.device_put(params, meshes.shardings(params, mesh, min_size=16))
    assert dev_loss(task, SENTENCES, mesh)(split) == pytest.approx(measured, rel=1e-5)


def test_if_nothing_fits_there_is_nothing(text):
    task, params = text
    nothing = dev_loss(task, [TOO_LONG])
    assert nothing.left_out == 1 and nothing(params) == {}


def test_of_a_regression_it_is_the_squared_error():
    task = Regression("series", data=Windows(Fibonacci(60), steps=4, batch_tokens=16)).task()
    task = task.replace(assets=task.learn_assets(task.read()))
    params, examples = task.init(jax.random.key(0)), task.examples("dev")
    found = dev_loss(task, examples)(params)
    assert found.keys() == {"dev_loss"}
    mse = task.metrics(examples, task.predictor()(params, examples))["mse"].value
    np.testing.assert_allclose(found["dev_loss"], mse, rtol=1e-5)


def test_a_task_need_not_have_one():
    assert Task.evaluation_loss(None) is None
