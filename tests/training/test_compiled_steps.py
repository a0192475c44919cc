"""Train steps are compiled in the background, with one line per bucket; errors are raised where they are needed."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from s2sjax import config
from s2sjax.core.backend import device
from s2sjax.errors import UserError
from s2sjax.training import loop, multihost, optimizers
from s2sjax.training.loop import Programs
from s2sjax.training.run_log import Log
from s2sjax.training.train_state import create, make_train_step

WAIT = 60  # seconds after which a test fails


def step(state, batch):
    return state._replace(step=state.step + 1), {"loss": batch["source"].mean()}


def batch_of(width):
    return {"source": jnp.ones((2, width))}


@pytest.fixture
def state():
    return create({"weight": jnp.zeros(2)}, optax.sgd(0.1))


@pytest.fixture
def log():
    return Log(None, steps=1, every=1)


class Hold:
    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()


@pytest.fixture
def held(monkeypatch):
    """Makes compilation for batches of these widths wait for `go`. Two programs are compiled at once."""
    holds: dict[int, Hold] = {}
    plain = Programs._compile

    def slow(programs, batch, *rest):
        if hold := holds.get(batch["source"].shape[1]):
            hold.begun.set()
            assert hold.go.wait(WAIT)
        return plain(programs, batch, *rest)

    monkeypatch.setattr(Programs, "_compile", slow)
    monkeypatch.setattr(device, "compile_threads", lambda: 2)
    yield holds
    for hold in holds.values():
        hold.go.set()


def test_two_buckets_with_an_unknown_option_are_compiled_with_one_note(state, log, capsys, monkeypatch):
    monkeypatch.setattr(device, "_dropped", set())
    programs = Programs(step, state, compiler_options={"xla_cpu_invented": "1"})
    programs.prepare([batch_of(3), batch_of(4)], log)
    state, _ = programs(state, batch_of(3), log)
    assert programs(state, batch_of(4), log)[0].step == 2
    out = capsys.readouterr().out
    note = f"JAX {jax.__version__} does not accept the compiler option xla_cpu_invented: compiling without it\n"
    assert out.count(note) == 1
    for width in (3, 4):
        assert out.count(f"compiled the train step for batches of source 2x{width} in ") == 1
    assert len(programs.seconds) == 2
    assert out.count("the device holds parameters") in (1, 2), "again where a later program needs more"


def test_a_bucket_does_not_wait_for_another_one(state, log, held, capsys):
    held[3] = Hold()
    programs = Programs(step, state)
    programs.prepare([batch_of(3), batch_of(4)], log)
    for _ in range(3):
        state, _ = programs(state, batch_of(4), log)
    assert "source 2x3" not in capsys.readouterr().out, "it is not said to be compiled"
    held[3].go.set()
    state, _ = programs(state, batch_of(3), log)
    assert state.step == 4 and "batches of source 2x3 in" in capsys.readouterr().out


def test_no_process_begins_before_all_have_compiled(state, log, monkeypatch):
    """One process may find its programs in the cache while another compiles until a collective times out."""
    waited = []
    programs = Programs(step, state)
    monkeypatch.setattr(multihost, "is_multiprocess", lambda: True)
    monkeypatch.setattr(multihost, "wait_for_all", lambda what: waited.append((what, len(programs.seconds))))
    programs.prepare([batch_of(3), batch_of(4)], log)
    assert waited == [("compile", 2)]


def test_buckets_are_compiled_in_the_order_of_use_and_what_is_not_begun_is_forgotten(state, log, held, monkeypatch):
    monkeypatch.setattr(device, "compile_threads", lambda: 1)
    held[4] = Hold()
    programs = Programs(step, state)
    programs.prepare([batch_of(width) for width in (3, 4, 5)], log)
    programs(state, batch_of(3), log)
    assert held[4].begun.wait(WAIT)
    programs.close()  # 4 is being compiled, 5 waits for it
    futures = [future for _, future in programs._compiling.values()]
    assert [future.cancelled() for future in futures] == [False, True]
    held[4].go.set()
    assert futures[0].result(WAIT).seconds > 0


def test_a_run_ends_without_waiting_for_a_compilation(held, capsys):
    """The run ends with an error before the other bucket is needed; a SIGTERM or lost patience are similar."""
    held[9] = Hold()

    def broken(start):
        yield 0, {"source": np.ones((2, 4), np.float32)}
        raise UserError("the data ends here")

    with pytest.raises(UserError, match="the data ends here"):
        fit(broken, [batch_of(4), batch_of(9)])
    assert "source 2x9" not in capsys.readouterr().out


def test_an_error_is_raised_where_its_program_is_needed(state, log, capsys):
    def picky(state, batch):
        if batch["source"].shape[1] == 3:
            raise UserError("three is too narrow")
        return step(state, batch)

    programs = Programs(picky, state)
    programs.prepare([batch_of(3), batch_of(4)], log)
    for _ in range(2):
        state, _ = programs(state, batch_of(4), log)
    with pytest.raises(UserError, match="three is too narrow"):
        programs(state, batch_of(3), log)
    assert "source 2x3" not in capsys.readouterr().out


@pytest.mark.parametrize("failures", [1, 2])
def test_an_error_of_the_compiler_is_final_only_when_nothing_runs_beside_it(state, log, capsys, monkeypatch, failures):
    remaining = ["RESOURCE_EXHAUSTED: out of memory\nwhile autotuning"] * failures
    plain = Programs._compile

    def exhausted(*arguments):
        if remaining:
            raise jax.errors.JaxRuntimeError(remaining.pop())
        return plain(*arguments)

    monkeypatch.setattr(Programs, "_compile", exhausted)
    programs = Programs(step, state)
    programs.prepare([batch_of(3)], log)
    if failures == 2:
        with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
            programs(state, batch_of(3), log)
    else:
        assert programs(state, batch_of(3), log)[0].step == 1
    line = "compiling the train step for batches of source 2x3 failed (RESOURCE_EXHAUSTED: out of memory): trying once"
    assert capsys.readouterr().out.count(line) == 1


def test_several_processes_compile_all_programs_before_the_first_step(state, log, capsys, monkeypatch):
    monkeypatch.setattr(multihost, "is_multiprocess", lambda: True)
    programs = Programs(step, state)
    programs.prepare([batch_of(3), batch_of(4)], log)
    assert len(programs.seconds) == 2 == capsys.readouterr().out.count("compiled the train step")


# ------------------------------------------------------------------------------------ the whole loop

TRAIN = config.Train(steps=6, learning_rate=0.05, warmup_steps=0, evaluate_every=0, log_every=1, clip_norm=0.0)


def loss(params, batch, key, step):
    x = batch["source"] * jax.random.bernoulli(key, 0.9, batch["source"].shape)
    return {"loss": (((x.sum(1) * params["w"] - 1) ** 2).sum(), jnp.float32(len(x)))}


def alternating(start):
    """Batches of width 3 and 4 in turn."""
    for number in range(start, TRAIN.steps):
        rng = np.random.default_rng(number)
        yield number, {"source": rng.normal(size=(2, 3 + number % 2)).astype(np.float32)}


def fit(batches, shapes):
    optimizer = optimizers.optimizer(TRAIN)
    init = lambda: create({"w": jnp.float32(0)}, optimizer)
    train_step = make_train_step(loss, optimizer, TRAIN, seed=7)
    return loop.fit(train_step, batches, template=jax.eval_shape(init), init=init, train=TRAIN, shapes=shapes).state


def test_the_result_does_not_depend_on_when_a_program_is_ready(held):
    """Programs are compiled on demand, or ahead of time; the second one is ready after the first step."""
    plain = fit(alternating, ())
    held[4] = Hold()

    def releasing(start):
        for number, batch in alternating(start):
            if number == 1:
                held[4].go.set()
            yield number, batch

    jax.tree.map(np.testing.assert_array_equal, fit(releasing, [batch_of(3), batch_of(4)]), plain)
