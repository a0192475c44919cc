"""Restoring returns exactly what was saved, of this step or, with a message, of an older one, whatever the damage."""

import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training import mesh
from s2sjax.training.checkpoints import fast_reader
from s2sjax.training.checkpoints.fingerprints import fingerprint, fingerprint_on_host
from s2sjax.training.checkpoints.manager import Checkpoints
from s2sjax.training.checkpoints.store import CheckpointStore
from s2sjax.training.loop import Best, restore_or_init
from s2sjax.training.train_state import TrainState, create


def state_at(step, shape=(16, 4), ema=False, optimizer=None) -> TrainState:
    """A state whose numbers depend on its step."""
    values = jnp.arange(shape[0] * shape[1], dtype=jnp.float32).reshape(shape) + 1000 * step
    made = create({"net": {"kernel": values}}, optimizer or optax.sgd(0.1), ema)
    return made._replace(step=jnp.int32(step), ema=None if made.ema is None else {"net": {"kernel": values + 0.5}})


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture
def open_folder(tmp_path):
    """Opens the checkpoints of one folder any number of times, and closes them all."""
    opened = []

    def open_again(**options):
        opened.append(Checkpoints(tmp_path / "checkpoints", **options))
        return opened[-1]

    yield open_again
    for checkpoints in opened:
        checkpoints.close()


# ------------------------------------------------------------------------------ without damage


@pytest.mark.parametrize("ema", [False, True])
def test_a_state_comes_back_whole_also_in_another_process(open_folder, ema):
    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    checkpoints = open_folder()
    assert checkpoints.restore(state_at(0, ema=ema, optimizer=adam)) is None
    saved = state_at(7, ema=ema, optimizer=adam)
    checkpoints.save(saved, 7, notes={"best": 0.25})
    checkpoints.wait()
    restored, step = open_folder().restore(state_at(0, ema=ema, optimizer=adam))
    assert step == 7 and checkpoints.notes(7) == {"best": 0.25}
    assert_same(restored, saved)
    params, step = open_folder(read_only=True).restore_params()
    assert step == 7
    assert_same(params, saved.ema if ema else saved.params)


def test_a_carry_comes_back_and_is_kept_only_where_there_is_one(open_folder, tmp_path):
    carry = ((jnp.full((8, 2), 3.0), jnp.full((8, 2), 4.0, jnp.bfloat16)),)
    checkpoints, saved = open_folder(keep=9), state_at(7)._replace(carry=carry)
    checkpoints.save(saved, 7)
    checkpoints.save(state_at(8), 8)
    checkpoints.wait()
    template = state_at(0)._replace(carry=jax.tree.map(jnp.zeros_like, carry))
    assert_same(open_folder().restore(template, 7)[0], saved)
    assert_same(open_folder().restore(state_at(0), 8)[0], state_at(8))
    names = [path for path in checkpoints.header(8)["leaves"] if "carry" in path]
    assert not names and any("rest/carry" in path for path in checkpoints.header(7)["leaves"])


def test_a_donated_state_is_saved_as_it_was(open_folder):
    """The step after a save overwrites the arrays while they are still being written in the background."""
    advance = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 1, s), donate_argnums=0)
    checkpoints = open_folder(keep=9)
    for step in (1, 2, 3):
        current = state_at(step, shape=(512, 256))
        checkpoints.save(current, step)
        advance(current)
    checkpoints.wait()
    for step in (1, 2, 3):
        assert_same(checkpoints.restore(state_at(0, shape=(512, 256)), step)[0], state_at(step, shape=(512, 256)))


def test_the_newest_and_the_best_are_kept(open_folder):
    scores = {10: 0.5, 20: 0.9, 30: None, 40: 0.9, 50: float("nan"), 60: 0.1}
    checkpoints = open_folder(keep=2, best="max")
    for step, score in scores.items():
        checkpoints.save(state_at(step), step, score)
    checkpoints.wait()
    assert checkpoints.steps() == [20, 50, 60] and checkpoints.best_step() == 20
    again = open_folder(keep=2, best="max")
    assert again.best_step() == 20
    assert_same(again.restore(state_at(0), again.best_step())[0], state_at(20))
    assert again.restore_params()[1] == 20 and again.restore(state_at(0))[1] == 60
    assert open_folder(keep=2, best="min").best_step() == 60


def test_checkpoints_of_other_code_are_neither_the_best_nor_averaged(open_folder):
    checkpoints, template = open_folder(keep=5, best="max"), state_at(0).params
    for step, score in ((1, 0.9), (2, 0.5), (3, 0.6)):
        notes = {"best": Best(0.9, 1, step - 1, step)._asdict()}
        checkpoints.save(state_at(step), step, score, notes)
    checkpoints.wait()
    opened = lambda since: open_folder(keep=5, best="max", read_only=True, since=since)
    assert [opened(since).restore_params(template)[1] for since in (0, 1, 2, 3)] == [1, 3, 3, 3]
    assert opened(1).restore_average(2, template)[1] == 3
    with pytest.raises(UserError, match="there are 1 readable checkpoints"):
        opened(2).restore_average(2, template)
    bests = [restore_or_init(state_at(0), lambda: None, opened(since))[2] for since in (0, 3)]
    assert bests == [Best(0.9, 1, 2, 3), Best(evaluated=3)]


def test_a_preempted_run_saves_also_after_a_resume(open_folder, monkeypatch):
    import orbax.checkpoint as ocp

    first = open_folder()
    first.save(state_at(1), 1)
    first.wait()
    monkeypatch.setattr(ocp.CheckpointManager, "reached_preemption", lambda self, step: True)
    again = open_folder()
    again.save(state_at(2), 2)
    again.wait()
    assert again.steps() == [1, 2]


def test_saved_on_eight_devices_and_restored_on_one_on_four_and_on_eight_otherwise(open_folder):
    where = mesh.make_mesh(config.Mesh(data=1, fsdp=8))
    saved = jax.device_put(state_at(5), mesh.shardings(state_at(5), where, min_size=1))
    assert len(saved.params["net"]["kernel"].sharding.device_set) == 8
    checkpoints = open_folder()
    checkpoints.save(saved, 5)
    checkpoints.wait()
    four = mesh.make_mesh(config.Mesh(data=2, tensor=2), jax.devices()[:4])
    templates = [
        state_at(0),
        jax.device_put(state_at(0), mesh.shardings(state_at(0), four, (("kernel", (None, "tensor")),))),
        jax.device_put(state_at(0), mesh.shardings(state_at(0), mesh.make_mesh(config.Mesh()))),
    ]
    for template in templates:
        restored, _ = checkpoints.restore(template)
        assert_same(restored, state_at(5))
        assert restored.params["net"]["kernel"].sharding == template.params["net"]["kernel"].sharding


def test_a_fingerprint_sees_every_bit_and_every_place_but_not_the_devices():
    values = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
    spread = NamedSharding(mesh.make_mesh(config.Mesh()), P("data"))
    whole = int(fingerprint(jnp.array(values)))
    assert whole == int(fingerprint(jax.device_put(values, spread)))
    swapped = values.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    last_bit = values.copy()
    last_bit.view(np.uint32)[15, 5] ^= 1
    zero = np.zeros((2, 2), np.float32)
    for one, other in ((values, swapped), (values, last_bit), (zero, -zero)):
        assert int(fingerprint(jnp.array(one))) != int(fingerprint(jnp.array(other)))
    for dtype in (jnp.bfloat16, jnp.int8, jnp.bool_, jnp.int32):
        assert int(fingerprint(jnp.ones(3, dtype))) != int(fingerprint(jnp.zeros(3, dtype)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int8, jnp.bool_, jnp.uint32, jnp.int16])
def test_the_host_computes_the_same_fingerprint_block_by_block(dtype):
    values = (np.random.default_rng(1).normal(size=(3, 5, 7)) * 3).astype(dtype)
    for array in (values, values[1:, ::2], values[0, 0, 0], values[:0]):
        assert fingerprint_on_host(np.asarray(array), block=8) == int(fingerprint(jnp.asarray(array)))


@pytest.mark.parametrize("ema", [False, True])
def test_parameters_are_read_without_orbax_and_by_orbax_alike(open_folder, monkeypatch, ema):
    checkpoints = open_folder()
    checkpoints.save(state_at(5, ema=ema), 5)
    checkpoints.wait()
    four = mesh.make_mesh(config.Mesh(data=2, tensor=2), jax.devices()[:4])
    template = jax.device_put(state_at(0), mesh.shardings(state_at(0), four, (("kernel", (None, "tensor")),))).params

    def restored():
        (params, step), (plain, _) = (open_folder(read_only=True).restore_params(tree) for tree in (template, None))
        assert step == 5 and params["net"]["kernel"].sharding == template["net"]["kernel"].sharding
        assert_same(params, plain)
        return params

    with monkeypatch.context() as patch:
        for name in ("_restore_arrays", "_open"):
            patch.setattr(CheckpointStore, name, None)
        quick = restored()
    monkeypatch.setattr(fast_reader, "read_arrays", lambda *_: None)
    assert_same(restored(), quick)
    assert_same(quick, state_at(5, ema=ema).ema if ema else state_at(5).params)


# ------------------------------------------------------------------------------- another model


def test_another_model_is_told_by_its_first_differing_parameter(open_folder):
    checkpoints = open_folder()
    checkpoints.save(state_at(3), 3)
    checkpoints.wait()
    with pytest.raises(UserError, match=r"params/net/kernel as float32\(16, 4\), .* as float32\(8, 4\)"):
        checkpoints.restore(state_at(0, shape=(8, 4)))
    with pytest.raises(UserError, match=r"has no ema/net/kernel, shape \(16, 4\)"):
        checkpoints.restore(state_at(0, ema=True))
    with pytest.raises(UserError, match=r"has params/net/kernel, shape \(16, 4\), which this model lacks"):
        checkpoints.restore_params({})
    with pytest.raises(UserError, match=r"no checkpoint of step 4 .* there are \[3\]"):
        checkpoints.restore(state_at(0), step=4)


def test_decoding_without_a_checkpoint_says_train_first(tmp_path):
    with pytest.raises(UserError, match=r"there is no checkpoint in .*nowhere: train first"):
        Checkpoints(tmp_path / "nowhere", read_only=True).restore_params()
    assert not (tmp_path / "nowhere").exists()


# --------------------------------------------------------------------------------- with damage


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


@pytest.mark.slow
def test_a_flipped_byte_in_any_file_is_never_loaded(open_folder, tmp_path, capsys):
    checkpoints = open_folder(keep=2)
    for step in (20, 30):
        checkpoints.save(state_at(step), step)
    checkpoints.close()
    newest = tmp_path / "checkpoints" / "30"
    files = sorted(path for path in newest.rglob("*") if path.is_file() and path.stat().st_size > 0)
    fell_back = set()
    for path in files:
        original = path.read_bytes()
        flip(path)
        restored, step = open_folder(read_only=True).restore(state_at(0))
        assert_same(restored, state_at(step))
        if step == 20:
            told = capsys.readouterr()
            assert "checkpoint of step 30 is damaged (" in told.out and told.out.count("\n") == 1 and not told.err
            fell_back.add(path.relative_to(newest).parts[0])
        path.write_bytes(original)
    assert {"params", "rest", "notes"} <= fell_back
    assert open_folder(read_only=True).restore(state_at(0))[1] == 30, "mended again"


@pytest.mark.parametrize(
    "harm", [lambda path: os.truncate(path, path.stat().st_size // 2), os.remove], ids=["torn", "lost"]
)
def test_a_torn_or_lost_file_means_an_older_checkpoint_which_training_then_goes_on_from(
    open_folder, tmp_path, capsys, harm
):
    checkpoints = open_folder(keep=2)
    for step in (20, 30):
        checkpoints.save(state_at(step), step, notes={"step": step})
    checkpoints.close()
    data = sorted((tmp_path / "checkpoints" / "30" / "params").rglob("d/*"))
    assert data
    for path in data:
        harm(path)
    checkpoints = open_folder(keep=2)
    restored, step = checkpoints.restore(state_at(0))
    assert step == 20 and checkpoints.notes(step) == {"step": 20}
    assert_same(restored, state_at(20))
    told = capsys.readouterr().out
    assert told.startswith("checkpoint of step 30 is damaged (") and told.endswith("): falling back to step 20\n")
    assert told.count("\n") == 1
    for step in (25, 30):
        checkpoints.save(state_at(step), step)
    checkpoints.close()
    again = open_folder()
    assert again.steps() == [25, 30]
    assert (again.folder / "30.damaged" / "rest").is_dir(), "set aside, not deleted"
    assert_same(again.restore(state_at(0))[0], state_at(30))


# ----------------------------------------------------------------------------------- the average


@pytest.mark.parametrize("ema", [False, True])
def test_the_average_is_the_mean_of_the_newest(open_folder, ema):
    checkpoints = open_folder(keep=3, best="max")
    for step, score in ((10, 9.0), (20, 0.0), (30, 1.0), (41, 2.0)):
        checkpoints.save(state_at(step, ema=ema), step, score)
    checkpoints.wait()
    params, step = open_folder(read_only=True).restore_average(3)
    kept = [state_at(each, ema=ema) for each in (20, 30, 41)]
    expected = np.mean([(each.ema if ema else each.params)["net"]["kernel"] for each in kept], axis=0, dtype=np.float64)
    assert step == 41
    np.testing.assert_allclose(params["net"]["kernel"], expected, rtol=1e-7)


def test_too_few_to_average_is_refused_and_a_damaged_one_does_not_count(open_folder, capsys):
    checkpoints = open_folder(keep=3)
    for step in (1, 2, 3):
        checkpoints.save(state_at(step), step)
    checkpoints.wait()
    with pytest.raises(UserError) as caught:
        checkpoints.restore_average(4)
    assert str(caught.value) == (
        f"there are 3 readable checkpoints in {checkpoints.folder}, but 4 are to be averaged: "
        "average fewer, or train with a higher train.max_to_keep"
    )
    shutil.rmtree(checkpoints.folder / "3" / "params")
    params, step = open_folder(read_only=True).restore_average(2)
    assert step == 2 and "checkpoint of step 3 is damaged" in capsys.readouterr().out
    np.testing.assert_allclose(params["net"]["kernel"][0, 0], 1500)
