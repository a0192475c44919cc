"""Low-rank adapters: only they are trained, predictions use merged matrices, and other runs start from these."""

import jax
import numpy as np
import pytest

import s2sjax
from s2sjax import config, interop
from s2sjax.errors import UserError
from s2sjax.runs import folder, pretrained
from s2sjax.tasks.translation import Translation
from s2sjax.training.checkpoints.fingerprints import named_leaves

TINY = config.Transformer(width=16, heads=2, feedforward=32, encoder_layers=1, decoder_layers=2, dropout=0.0, tie="all")
DATA = config.Data(config.Synthetic("reverse", 64, 8, 0, length=3, alphabet=3), shared=True, buckets=((8, 8),))
LINES = ["abc", "ca", "b"]


def experiment(name: str, steps: int, **fields) -> Translation:
    train = config.Train(steps=steps, warmup_steps=0, learning_rate=1e-2, evaluate_every=0, log_every=1)
    return Translation(name, data=DATA, **{"train": train, **fields})


def stored(run) -> dict[str, np.ndarray]:
    """The parameters of the newest checkpoint, as they are stored."""
    template = jax.eval_shape(run.task.init, jax.random.key(0))
    params, _ = folder.checkpoints(run.folder, run.task, read_only=True).restore_params(template)
    return {path: np.asarray(leaf) for path, leaf in named_leaves(params)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return s2sjax.train(experiment("base", 3, model=TINY), tmp_path_factory.mktemp("runs") / "base")


@pytest.fixture(scope="module")
def tuned(base):
    """Trained from `base` with adapters of rank 2, as by --model.adapter_rank 2."""
    model = config.replace(TINY, adapter_rank=2, adapter_scale=0.5)
    return s2sjax.train(experiment("tuned", 3, model=model, init=str(base.folder)), base.folder.parent / "tuned")


def test_only_the_adapters_are_trained(base, tuned):
    before, after = stored(base), stored(tuned)
    adapters = {path for path in after if path.endswith(("adapter_a", "adapter_b"))}
    assert after.keys() - adapters == before.keys() and len(adapters) == 2 * (
        5 + 8
    )  # matrices of an encoder and a decoder block
    for path in before:
        np.testing.assert_array_equal(after[path], before[path])
    assert all(np.abs(after[path]).max() > 0 for path in adapters)
    sizes = jax.tree.map(np.size, tuned.params()[0])
    assert sum(jax.tree.leaves(sizes)) == sum(leaf.size for leaf in before.values())


def test_the_log_says_how_many_weights_are_trained(base, tuned, capsys):
    total, own = (sum(leaf.size for leaf in stored(run).values()) for run in (tuned, base))
    longer = config.replace(tuned.experiment, train=config.replace(tuned.experiment.train, frozen=()))
    s2sjax.train(longer, tuned.folder)
    assert f"Transformer with {total:,} weights, {total - own:,} of them trained, on" in capsys.readouterr().out


def test_predictions_are_those_of_the_trained_parameters(base, tuned):
    unmerged = tuned.task.translator().score(_nested(stored(tuned)), [(line, line[::-1]) for line in LINES])
    merged = tuned.score([(line, line[::-1]) for line in LINES])
    original = base.score([(line, line[::-1]) for line in LINES])
    np.testing.assert_allclose([one for one, _ in merged], [one for one, _ in unmerged], atol=1e-5)
    assert np.abs(np.subtract([one for one, _ in merged], [one for one, _ in original])).max() > 1e-3


def _nested(leaves: dict[str, np.ndarray]) -> dict:
    tree: dict = {}
    for path, leaf in leaves.items():
        *parts, last = path.split("/")
        node = tree
        for part in parts:
            node = node.setdefault(part, {})
        node[last] = jax.numpy.asarray(leaf)
    return tree


def test_adapters_of_nothing_are_refused(tmp_path):
    model = config.replace(TINY, adapter_rank=2)
    with pytest.raises(UserError, match="there is no run whose parameters they adapt: set init of the experiment"):
        s2sjax.train(experiment("new", 1, model=model), tmp_path / "new")
    assert not (tmp_path / "new" / "config.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("rank, scale", [(0, 1.0), (3, 0.5), (2, 5.0)])
def test_a_run_that_starts_from_adapters_starts_from_the_merged_matrices(tuned, rank, scale, tmp_path):
    model = config.replace(TINY, adapter_rank=rank, adapter_scale=scale)
    train = config.Train(steps=1, warmup_steps=0, learning_rate=1e-12, evaluate_every=0)
    new = s2sjax.train(experiment("new", 1, model=model, train=train, init=str(tuned.folder)), tmp_path / "new")
    expected = {path: np.asarray(leaf) for path, leaf in named_leaves(tuned.params()[0])}
    found = {path: np.asarray(leaf) for path, leaf in named_leaves(new.params()[0])}
    assert found.keys() == expected.keys()
    for path in found:
        np.testing.assert_allclose(found[path], expected[path], atol=1e-6)


@pytest.mark.slow
def test_resuming_and_exporting(base, tuned, tmp_path):
    model = config.replace(TINY, adapter_rank=2, adapter_scale=0.5)
    longer = experiment("tuned", 4, model=model, init=str(base.folder))
    run = s2sjax.train(config.replace(longer, train=config.replace(longer.train, schedule_steps=3)), tuned.folder)
    assert run.params()[1] == 4 and run.experiment.train.frozen
    out = pretrained.export(run, tmp_path / "out")
    target = run.task.assets["target"]
    again = interop.load(out, np.arange(target.size))
    merged = {path: np.asarray(leaf) for path, leaf in named_leaves(run.params()[0])}
    for path, leaf in named_leaves(again.params):
        np.testing.assert_allclose(leaf, merged[path], atol=1e-6)
