"""The whole loop, interrupted, resumed, stopped and failing, on a toy model that learns y = x . w with dropout."""

import json
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training import loop, mesh, optimizers, run_log, train_state
from s2sjax.training.checkpoints.manager import Checkpoints

ROWS = (8, 16)
TRAIN = config.Train(
    steps=10, learning_rate=0.05, warmup_steps=0, evaluate_every=0, save_every=4, log_every=1, clip_norm=0.0
)


def make_batch(step):
    rng = np.random.default_rng(step)
    rows = ROWS[step % 2]
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    return {"x": x, "y": x @ np.arange(4, dtype=np.float32), "example": np.arange(rows, dtype=np.int32) + 100 * step}


def batches(start):
    while True:
        yield start, make_batch(start)
        start += 1


def loss(params, batch, key, step):
    x = batch["x"] * jax.random.bernoulli(key, 0.9, batch["x"].shape)
    return {"loss": (((x @ params["w"] - batch["y"]) ** 2).sum(), jnp.float32(len(x)))}


class Lab:
    """One run folder; `fit` does what a command does: builds everything anew, then trains."""

    def __init__(self, folder):
        self.folder = folder

    def fit(self, train=TRAIN, batches=batches, evaluate=None, best="min", saving=True, **options):
        optimizer = optimizers.optimizer(train)
        self.inits = 0

        def init():
            self.inits += 1
            return train_state.create({"w": jnp.zeros(4)}, optimizer, ema=train.ema > 0)

        template = jax.eval_shape(init)
        self.inits = 0
        step = train_state.make_train_step(loss, optimizer, train, seed=7)
        log = self.log(train)
        self.checkpoints = Checkpoints(self.folder / "checkpoints", train.max_to_keep, best) if saving else None
        try:
            options |= dict(checkpoints=self.checkpoints, evaluate=evaluate, log=log)
            return loop.fit(step, batches, template=template, init=init, train=train, **options)
        finally:
            if saving:
                self.checkpoints.close()

    def log(self, train):
        return run_log.Log(self.folder, train.steps, train.log_every)

    def lines(self, name="metrics.jsonl"):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture(autouse=True, scope="module")
def each_program_is_compiled_once():
    """Caches even programs that compile quickly, because many tests train the same model."""
    option = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, option)
    jax.config.update(option, 0.0)
    yield
    jax.config.update(option, before)


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path / "run")


@pytest.fixture
def other(tmp_path):
    return Lab(tmp_path / "other")


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def acting_at(last, action):
    """Batches that call `action` after `last` steps."""

    def acting(start):
        for step, batch in batches(start):
            if step == last:
                action()
            yield step, batch

    return acting


def preempted_at(last, number=signal.SIGTERM):
    """Batches that send a signal after `last` steps."""
    return acting_at(last, lambda: os.kill(os.getpid(), number))


def scores(*values):
    """An evaluation that returns these errors one after the other, or is interrupted by a signal."""
    remaining = list(values)

    def evaluate(state, step):
        if isinstance(remaining[0], signal.Signals):
            os.kill(os.getpid(), remaining.pop(0))
            raise AssertionError("the evaluation went on")
        return loop.Scores("error", remaining.pop(0), higher_is_better=False)

    return evaluate


def test_n_steps_equal_k_steps_and_a_restart_bit_for_bit(lab, other):
    train = config.replace(TRAIN, ema=0.5, grad_accum_steps=2)
    whole = lab.fit(train)
    assert whole.status == "done" and int(whole.state.step) == 10

    cut = other.fit(train, batches=preempted_at(6))
    assert cut.status == "interrupted" and int(cut.state.step) == 6
    assert other.checkpoints.steps() == [4, 6], "6 is no multiple of save_every"
    resumed = other.fit(train)
    assert resumed.status == "done"
    assert_same(resumed.state, whole.state)
    numbers = [[(line["step"], line["loss"], line["grad_norm"]) for line in a.lines()] for a in (lab, other)]
    assert numbers[0] == numbers[1] and [step for step, *_ in numbers[0]] == list(range(1, 11))


def dying_at(last):
    """Batches that end the run after `last` steps like a kill: nothing is saved, and the log may be ahead."""

    def die():
        raise ConnectionError("the data went away")

    return acting_at(last, die)


def logged(lab):
    """metrics.jsonl without times and device memory."""
    clocked = ("seconds", "tokens_per_second", "device_memory_bytes")
    return [{k: v for k, v in line.items() if not k.endswith(clocked)} for line in lab.lines()]


@pytest.mark.parametrize("end", zoo.first(1, ["kill", "SIGTERM", "more steps"]))
def test_the_log_of_a_resumed_run_is_that_of_an_unbroken_one(lab, other, end):
    """Each mean is over 3 steps; the runs end within the second and the third mean."""
    train = config.replace(TRAIN, steps=10, schedule_steps=10, log_every=3, save_every=2, evaluate_every=4)
    error = lambda state, step: loop.Scores("error", 1 / step, higher_is_better=False)
    lab.fit(train, evaluate=error)
    for last in (5, 7):
        if end == "SIGTERM":
            assert other.fit(train, preempted_at(last), error).status == "interrupted"
        elif end == "kill":
            with pytest.raises(ConnectionError):
                other.fit(train, dying_at(last), error)
        else:
            shorter = config.replace(train, steps=last)
            other.fit(shorter, evaluate=lambda state, step: None if step % 4 else error(state, step))
    other.fit(train, evaluate=error)
    assert [(line["step"], "score" in line) for line in logged(lab)] == [
        *((3, False), (4, True), (6, False), (8, True), (9, False), (10, False), (10, True)),
    ]
    assert logged(other) == logged(lab)
    fast = [line["tokens_per_second"] * line["seconds"] for line in other.lines() if "score" not in line]
    assert fast == pytest.approx([32, 40, 32, 16]), "what was done before the restart counts with its time"


def test_an_evaluation_that_is_made_again_is_logged_once(lab, monkeypatch):
    """The run is killed after the evaluation of step 4 is logged and before its score is saved."""
    train = config.replace(TRAIN, steps=4, evaluate_every=4, save_every=100)
    assert lab.fit(train, evaluate=scores(signal.SIGTERM)).status == "interrupted"
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Checkpoints, "save", lambda *_: 1 / 0)
        lab.fit(train, evaluate=scores(2.0))
    lab.fit(train, evaluate=scores(2.0))
    assert [line["step"] for line in lab.lines() if "score" in line] == [4]


def test_a_resumed_run_does_not_build_the_initial_state(lab):
    """There is never more than one state in memory."""
    lab.fit(config.replace(TRAIN, steps=4))
    assert lab.inits == 1
    resumed = lab.fit(config.replace(TRAIN, steps=6))
    assert lab.inits == 0 and int(resumed.state.step) == 6


def test_lines_of_steps_that_are_run_again_are_cut(lab):
    """The run dies at step 7 with a checkpoint of step 4: steps 5 and 6 run again and are logged again."""
    with pytest.raises(ConnectionError):
        lab.fit(batches=dying_at(7))
    before = lab.lines()
    assert [line["step"] for line in before] == [1, 2, 3, 4, 5, 6]
    with open(lab.folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "lo')
    lab.fit()
    assert [line["step"] for line in lab.lines()] == list(range(1, 11))
    assert [line["loss"] for line in lab.lines()[:6]] == [line["loss"] for line in before]


def test_a_finished_run_returns_at_once_with_its_state(lab, capsys):
    def untouchable(start):
        raise AssertionError("a finished run needs no data")

    first = lab.fit()
    again = lab.fit(batches=untouchable)
    assert again.status == "done" and "already done: 10 steps" in capsys.readouterr().out
    assert_same(again.state, first.state)


def test_the_order_of_the_loop_and_one_program_a_bucket(lab, monkeypatch, capsys):
    """Step t is dispatched before the metrics of t - 1 are read, except before an evaluation or a save."""
    events = []

    def told(start):
        for step, batch in batches(start):
            events.append(f"batch {step}")
            yield step, batch

    def evaluate(state, step):
        events.append(f"evaluate {int(state.step)}")
        return loop.Scores("error", 1.0 / step, higher_is_better=False)

    save, log = Checkpoints.save, run_log.Log.step
    monkeypatch.setattr(Checkpoints, "save", lambda *a, **k: (events.append(f"save {a[2]}"), save(*a, **k))[1])
    monkeypatch.setattr(run_log.Log, "step", lambda *a: (events.append(f"log {a[1]}"), log(*a))[1])
    train = config.replace(TRAIN, steps=5, save_every=2, evaluate_every=4)
    lab.fit(train, batches=told, evaluate=evaluate, shapes=[make_batch(0), make_batch(1)])
    assert events == [
        *("batch 0", "batch 1", "log 1", "log 2", "save 2"),
        *("batch 2", "batch 3", "log 3", "log 4", "evaluate 4", "save 4"),
        *("batch 4", "log 5", "evaluate 5", "save 5"),
    ]
    lines = lab.lines()
    assert capsys.readouterr().out.count("compiled the train step for batches of x ") == len(ROWS)
    assert lines[0]["compile_seconds"] > 0 and "compile_seconds" not in lines[1]
    assert lines[0]["device_memory_bytes"] > 0 and "device_memory_bytes" not in lines[-2]
    assert lab.checkpoints.best_step() == 5


def test_programs_are_made_ahead_of_time_and_only_for_new_shapes():
    optimizer = optimizers.optimizer(TRAIN)
    log = run_log.Log(None, 10, 10)
    current = train_state.create({"w": jnp.zeros(4)}, optimizer)
    programs = loop.Programs(train_state.make_train_step(loss, optimizer, TRAIN, seed=7), current)
    programs.prepare([make_batch(0)], log)
    for step in range(4):
        current, _ = programs(current, make_batch(step), log)
    assert len(programs.seconds) == 2 and all(seconds > 0 for seconds in programs.seconds.values())


@pytest.mark.slow
def test_four_devices_go_through_the_loop_and_two_resume_what_one_would_have_done(lab, other):
    def fit(lab, devices, steps, shape):
        train = config.replace(TRAIN, steps=steps, schedule="constant", grad_accum_steps=2)
        optimizer = optimizers.optimizer(train)
        where = mesh.make_mesh(shape, jax.devices()[:devices])
        create = lambda: train_state.create({"w": jnp.zeros(4)}, optimizer)
        template = mesh.abstract_state(create, where, min_size=1)
        init = lambda: mesh.init_sharded(create, where, min_size=1)
        step = train_state.make_train_step(loss, optimizer, train, seed=7)
        checkpoints = Checkpoints(lab.folder)
        options = dict(template=template, init=init, train=train, mesh=where, shapes=[make_batch(0)])
        result = loop.fit(step, batches, checkpoints=checkpoints, **options)
        checkpoints.close()
        return result.state

    alone = fit(other, 1, 4, config.Mesh())
    fit(lab, 4, 2, config.Mesh(fsdp=2))
    spread = fit(lab, 2, 4, config.Mesh())
    assert len(spread.params["w"].sharding.device_set) == 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), spread, alone)


def test_patience_runs_out_survives_a_restart_and_the_best_is_kept(lab, capsys):
    train = config.replace(TRAIN, steps=40, save_every=2, evaluate_every=2, patience=3, max_to_keep=1)

    cut = lab.fit(train, evaluate=scores(5.0, 3.0, 4.0, signal.SIGTERM))
    # step 2: 5, step 4: 3 (best), step 6: 4; the SIGTERM at step 8 leaves its evaluation to the next run
    assert cut.status == "interrupted" and cut.best == loop.Best(3.0, 4, 1, 6)
    assert lab.checkpoints.steps() == [4, 8]
    stopped = lab.fit(train, evaluate=scores(3.0, float("nan"), 0.0))
    assert stopped.status == "stopped" and stopped.best == loop.Best(3.0, 4, 3, 10)
    assert lab.checkpoints.steps() == [4, 10] and lab.checkpoints.best_step() == 4
    capsys.readouterr()
    again = lab.fit(train, evaluate=scores())
    assert again.status == "stopped" and "already done: 10 steps" in capsys.readouterr().out
    evaluations = [(line["step"], line["error"]) for line in lab.lines() if "score" in line]
    assert evaluations == [(2, 5.0), (4, 3.0), (6, 4.0), (8, 3.0), (10, None)]


def test_an_evaluation_made_up_for_is_not_made_twice_though_it_was_no_better(lab):
    """A SIGTERM postponed the evaluation of step 4; the next run made it and was killed before its next save."""
    train = config.replace(TRAIN, steps=8, evaluate_every=2, save_every=100)
    assert lab.fit(train, evaluate=scores(1.0, signal.SIGTERM)).status == "interrupted"
    with pytest.raises(ConnectionError):
        lab.fit(train, batches=dying_at(4), evaluate=scores(2.0))
    done = lab.fit(train, evaluate=scores(3.0, 4.0))
    assert done.best == loop.Best(1.0, 2, 3, 8)
    assert [line["step"] for line in lab.lines() if "score" in line] == [2, 4, 6, 8]


@pytest.mark.parametrize("higher", [True, False])
def test_better_means_strictly_better_and_never_nan(higher):
    sign = 1 if higher else -1
    best = loop.Best()
    for step, value in enumerate([float("nan"), 1.0, 1.0, float("nan"), 2.0], start=1):
        best = loop.judge(best, loop.Scores("score", sign * value, higher), step)
        assert best.step == (0, 2, 2, 2, 5)[step - 1] and best.waited == (1, 0, 1, 2, 0)[step - 1]


def poisoned(*bad):
    """Batches whose loss is not finite at the steps `bad`."""

    def poisoned_batches(start):
        for step, batch in batches(start):
            yield step, batch | {"y": batch["y"] * np.float32("nan")} if step in bad else batch

    return poisoned_batches


def test_non_finite_steps_are_told_and_several_in_a_row_end_the_run(lab, capsys):
    train = config.replace(TRAIN, max_skipped=3)
    done = lab.fit(train, batches=poisoned(2, 3, 5), saving=False)
    assert int(done.state.skipped_total) == 3 and int(done.state.skipped) == 0
    assert "step 4: the loss or its gradient is not finite: skipped, 2 in a row" in capsys.readouterr().out
    assert all(line["loss"] is None for line in lab.lines() if line["step"] in (3, 4, 6))
    with pytest.raises(UserError) as caught:
        lab.fit(train, batches=poisoned(2, 3, 4), saving=False)
    assert str(caught.value) == (
        "3 non-finite steps in a row, the last one step 5: check the examples in "
        f"{lab.folder / 'nonfinite.jsonl'}, or lower train.learning_rate or train.clip_norm"
    )


def test_no_host_ends_the_pod_before_the_skipped_step_is_written(lab, monkeypatch):
    """The first host that exits ends the others."""
    written = []
    monkeypatch.setattr(loop.multihost, "wait_for_all", lambda what: written.extend(lab.lines("nonfinite.jsonl")))
    with pytest.raises(UserError, match="1 non-finite steps in a row"):
        lab.fit(config.replace(TRAIN, max_skipped=1), batches=poisoned(2), saving=False)
    assert [line["step"] for line in written] == [3]


def test_skipped_steps_are_kept_with_their_examples_once_each(lab):
    """Steps 6 and 7 are skipped; the run ends at step 8 and resumes from the checkpoint of step 4."""
    train = config.replace(TRAIN, max_skipped=3)
    with pytest.raises(UserError, match="3 non-finite steps in a row"):
        lab.fit(train, batches=poisoned(1, 5, 6, 7))
    assert [line["step"] for line in lab.lines("nonfinite.jsonl")] == [2, 6, 7, 8]
    lab.fit(train, batches=poisoned(5, 6))
    lines = lab.lines("nonfinite.jsonl")
    assert [line["step"] for line in lines] == [2, 6, 7]
    assert lines[1] == {"step": 6, "loss": "nan", "grad_norm": "nan", "examples": list(range(500, 516))}


def test_without_a_folder_the_examples_are_in_the_message_and_padding_is_not_among_them(capsys):
    def few(start):
        for step, batch in poisoned(0)(start):
            yield step, batch | {"example": np.where(batch["example"] < 3, batch["example"], -1)}

    train = config.replace(TRAIN, max_skipped=1)
    optimizer = optimizers.optimizer(train)
    init = lambda: train_state.create({"w": jnp.zeros(4)}, optimizer)
    step = train_state.make_train_step(loss, optimizer, train, seed=7)
    with pytest.raises(UserError, match=r"the last one step 1: check examples 0, 1, 2, or lower"):
        loop.fit(step, few, template=jax.eval_shape(init), init=init, train=train)


def test_the_examples_of_all_processes_are_kept(lab, monkeypatch):
    """Each process has its own rows; here those of the other process are a hundred higher."""
    gather = lambda own, tiled: np.concatenate([own, np.where(own < 0, own, own + 100)])
    monkeypatch.setattr("jax.experimental.multihost_utils.process_allgather", gather)
    monkeypatch.setattr("jax.process_count", lambda: 2)
    metrics = {"loss": (np.float32("inf"), np.float32(8)), "grad_norm": np.float32(2), "skipped": np.int32(1)}
    log = run_log.Log(lab.folder, 10, 1)
    log.start(0)
    loop.log_step(3, metrics, lambda: loop._examples({"example": np.array([4, 5, -1])}), train=TRAIN, log=log)
    log.close()
    (line,) = lab.lines("nonfinite.jsonl")
    assert line == {"step": 3, "loss": "inf", "grad_norm": 2.0, "examples": [4, 5, 104, 105]}


def test_signals_are_as_before_after_the_loop_and_a_second_one_is_not_caught(lab):
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def preempt():
        os.kill(os.getpid(), signal.SIGTERM)
        seen.append(signal.getsignal(signal.SIGTERM))

    assert lab.fit(batches=acting_at(2, preempt)).status == "interrupted"
    assert seen == [signal.SIG_DFL] and signal.getsignal(signal.SIGTERM) == before


def test_a_sigterm_cuts_an_evaluation_short_and_saves(lab):
    """An evaluation may take minutes, but the sender of a SIGTERM waits only seconds."""
    train = config.replace(TRAIN, steps=8, evaluate_every=4, save_every=100)

    cut = lab.fit(train, evaluate=scores(signal.SIGTERM))
    assert cut.status == "interrupted" and lab.checkpoints.steps() == [4]
    done = lab.fit(train, evaluate=scores(1.0, 2.0))
    assert done.status == "done" and done.best == loop.Best(1.0, 4, 1, 8), "the evaluation was made up for"


def test_a_sigterm_cuts_compiling_short(lab, monkeypatch):
    monkeypatch.setattr(loop.Programs, "wait", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    cut = lab.fit()
    assert cut.status == "interrupted" and int(cut.state.step) == 0
    monkeypatch.setattr(loop.Programs, "wait", lambda *_: pytest.fail("it compiles after the signal"))
    assert lab.fit(batches=preempted_at(0)).status == "interrupted"


# -------------------------------------------------------------------------------------- Ctrl-C


@pytest.fixture
def keyboard():
    """Handles SIGINT as in a terminal or a notebook; background jobs ignore it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "as before the loop"
    signal.signal(signal.SIGINT, former)


def test_a_ctrl_c_saves_and_the_next_run_goes_on_bit_for_bit(lab, other, keyboard, capsys):
    whole = lab.fit()
    capsys.readouterr()
    with pytest.raises(KeyboardInterrupt):
        other.fit(batches=preempted_at(6, signal.SIGINT))
    out = capsys.readouterr().out
    assert out.endswith(
        "saving step 6; a second Ctrl-C ends at once\n"
        "interrupted: saved step 6; run the same command again to continue\n"
    )
    assert other.checkpoints.steps() == [4, 6]
    assert_same(other.fit().state, whole.state)


def test_a_second_ctrl_c_ends_at_once(lab, keyboard):
    def press_twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it went on")

    with pytest.raises(KeyboardInterrupt) as caught:
        lab.fit(batches=acting_at(5, press_twice))
    assert type(caught.value) is KeyboardInterrupt and lab.checkpoints.steps() == [4]


def test_a_ctrl_c_cuts_an_evaluation_and_compiling_short(lab, keyboard, monkeypatch, capsys):
    train = config.replace(TRAIN, steps=8, evaluate_every=4, save_every=100)
    with pytest.raises(KeyboardInterrupt):
        lab.fit(train, evaluate=lambda state, step: os.kill(os.getpid(), signal.SIGINT))
    assert lab.checkpoints.steps() == [4]
    monkeypatch.setattr(loop.Programs, "wait", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        lab.fit(train, evaluate=scores(1.0))
    assert lab.checkpoints.steps() == [4] and "interrupted: saved step 4;" in capsys.readouterr().out


def test_a_ctrl_c_before_the_first_step_promises_nothing(lab, keyboard, monkeypatch, capsys):
    monkeypatch.setattr(loop.Programs, "wait", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        lab.fit()
    assert capsys.readouterr().out == "interrupted: run the same command again to continue\n"


def test_a_ctrl_c_in_a_pod_stops_all_processes_at_one_step(lab, keyboard, monkeypatch):
    """Ctrl-C becomes a SIGTERM, which JAX passes to all processes: here, to stop two steps later."""
    told = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr("jax.experimental.multihost_utils.reached_preemption_sync_point", lambda step: step == 7)
    kill = os.kill

    def note(pid, number):
        told.append(number)
        if number == signal.SIGINT:
            kill(pid, number)

    monkeypatch.setattr(os, "kill", note)
    with pytest.raises(KeyboardInterrupt):
        lab.fit(batches=preempted_at(5, signal.SIGINT))
    assert told == [signal.SIGINT, signal.SIGTERM] and lab.checkpoints.steps() == [4, 7]


def test_a_job_in_the_background_still_ignores_ctrl_c(lab):
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert lab.fit(batches=preempted_at(5, signal.SIGINT)).status == "done"
    finally:
        signal.signal(signal.SIGINT, former)
