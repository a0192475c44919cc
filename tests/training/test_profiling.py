"""A trace of some steps: it has the steps that were asked for, and never ends the training."""

import gzip
import json
import re
from collections import Counter

import jax
import pytest
from training.test_loop import TRAIN, Lab, assert_same, preempted_at, scores

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training import profiling


class Traced(Lab):
    """A run folder whose trainings trace the steps 4 to 6."""

    def fit(self, train=TRAIN, steps=(4, 6), **options):
        log = super().log(train)
        self.log = lambda _: log
        return super().fit(train, profile=profiling.Profile(steps, self.folder, log), **options)

    def traces(self):
        files = sorted(self.folder.glob("profile/**/perfetto_trace.json.gz"))
        return [json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] for path in files]


@pytest.fixture
def lab(tmp_path):
    return Traced(tmp_path / "run")


def test_the_trace_has_the_steps_with_their_input_evaluation_and_checkpoint(lab, capsys):
    train = config.replace(TRAIN, evaluate_every=6)
    traced = lab.fit(train, evaluate=scores(1.0, 1.0))
    (events,) = lab.traces()
    names = Counter(event.get("name") for event in events)
    assert [names[name] for name in ("train", "input", "evaluate", "save")] == [3, 3, 1, 2]
    numbers = {int(event["args"]["step_num"]) for event in events if event.get("name") == "train"}
    assert numbers == {4, 5, 6}
    assert list(lab.folder.glob("profile/plugins/profile/*/*.xplane.pb")), "XProf reads it"
    told = capsys.readouterr().out
    assert re.search(r"\nsteps 4 to 6 took [\d.,]+ ms: steps [\d.]+ ms, .*evaluating [\d.]+ ms, saving [\d.]+ ms", told)
    assert f"xprof --logdir {lab.folder}/profile\n" in told and "https://ui.perfetto.dev" in told
    untraced = Lab(lab.folder.parent / "other").fit(train, evaluate=scores(1.0, 1.0))
    assert_same(traced.state, untraced.state)


def test_a_run_that_ends_within_the_steps_writes_what_there_is(lab, capsys):
    assert lab.fit(batches=preempted_at(5)).status == "interrupted"
    assert len(lab.traces()) == 1 and "\nsteps 4 to 5 took " in capsys.readouterr().out
    lab.fit()
    assert "--profile 4:6: nothing is traced, because the run continues after step 5\n" in capsys.readouterr().out
    assert len(lab.traces()) == 1


def test_a_run_that_continues_before_the_first_step_traces_them(lab):
    lab.fit(config.replace(TRAIN, steps=3), steps=(40, 60))
    lab.fit()
    assert len(lab.traces()) == 1


@pytest.mark.parametrize("where", ["start_trace", "stop_trace"])
def test_a_trace_that_fails_does_not_end_the_training(lab, monkeypatch, capsys, where):
    real = jax.profiler.stop_trace

    def fails(*_, **__):
        if where == "stop_trace":
            real()
        raise RuntimeError("no profiler\nhere")

    monkeypatch.setattr(jax.profiler, where, fails)
    assert lab.fit().status == "done"
    told = [line for line in capsys.readouterr().out.splitlines() if "trace" in line]
    assert told == ["--profile: no profiler here: the training goes on without a trace"]


def test_each_process_has_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("jax.process_index", lambda: 1)
    assert profiling.Profile((1, 2), tmp_path, None)._folder == tmp_path / "profile/process-1"


@pytest.mark.parametrize("steps, total", [((5, 5), 0), ((6, 5), 10), ((0, 5), 10), ((5, 11), 10)])
def test_wrong_steps_are_refused(steps, total):
    with pytest.raises(UserError, match=f"--profile is {steps[0]}:{steps[1]}"):
        profiling.check(steps, total)
    profiling.check(None, total)
    profiling.check((5, 10), 10)
    profiling.check((5, 11), 0)  # the number of steps is not known yet
