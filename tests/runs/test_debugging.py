"""`s2sjax train FILE --debug`: a few steps without jit, with NaN checks that name the layer."""

import os
import re

import jax.numpy as jnp
import pytest
import zoo
from cli.test_cli import PAGE
from tasks.test_task_laws import EXPERIMENTS

from s2sjax.core.backend import device
from s2sjax.core.recurrence import cells
from s2sjax.errors import UserError
from s2sjax.runs import debugging

RNN = cells.CELLS["rnn"]


@pytest.fixture
def page(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text(PAGE)
    return "page.py"


@pytest.mark.slow
def test_three_steps_are_trained_and_nothing_is_written(call, page):
    code, out, err = call("train", page, "--debug")
    lines = out.splitlines()
    assert (code, err, len(lines)) == (0, "", 5)
    assert lines[0] == "tiny: Luong, debugging 3 steps without jit on one device"
    assert all(re.fullmatch(rf"step {n}: loss \d\.\d+, \d+\.\d s", lines[n]) for n in (1, 2, 3))
    assert lines[4] == "debugging is finished: no NaN in 3 steps; nothing was written"
    assert os.listdir() == [page] and device.ATTENTION not in os.environ


def test_options_that_do_not_apply_are_refused(call, page):
    for option in (["--out", "x"], ["--init", "x"], ["--distributed"], ["--accept-code"]):
        error = call("train", page, "--debug", *option)[2]
        assert (
            error == f"error: --debug trains new parameters on one device and writes nothing: leave out {option[0]}\n"
        )


@pytest.mark.parametrize("pass_, line", [("", 1), ("gradient of the ", 2)])
def test_a_nan_is_found_in_its_layer(monkeypatch, pass_, line):
    def update(weights, carry, projected, h):
        bad = jnp.log(-1 - jnp.square(h)) if pass_ == "" else 0 * h
        return RNN.update(weights, carry, projected + jnp.sqrt(bad), h)

    monkeypatch.setitem(cells.CELLS, "rnn", RNN._replace(update=update))
    experiment = zoo.config.replace(
        EXPERIMENTS["translation"], model=zoo.config.replace(EXPERIMENTS["translation"].model, cell="rnn")
    )
    part, number = "decoder" if pass_ else "encoder", update.__code__.co_firstlineno + line
    where = rf"in the {pass_}layer {part}\S* \(test_debugging.py line {number}, in update\)"
    with pytest.raises(UserError, match=rf"^step 1: invalid value \(nan\) encountered in \w+ {where}$"):
        debugging.debug(experiment, print)


@zoo.each(EXPERIMENTS, quick=(), rare=EXPERIMENTS)
def test_every_task_can_be_debugged(name, capsys):
    debugging.debug(EXPERIMENTS[name], print)
    assert "debugging is finished: no NaN in 3 steps" in capsys.readouterr().out
