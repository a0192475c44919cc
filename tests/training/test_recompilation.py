"""Nothing is compiled after warm-up: every bucket seen, one evaluation made, one checkpoint saved."""

import jax
import pytest

from s2sjax.config import Data, Luong, Search, Synthetic, Train
from s2sjax.data.batching import batch_plan
from s2sjax.runs import run
from s2sjax.tasks import Translation
from s2sjax.training import run_log

EVERY = 4
EXPERIMENT = Translation(
    "warm",
    data=Data(
        Synthetic("reverse", train=60, dev=4, test=0, length=7, alphabet=4), buckets=((5, 5), (8, 8)), batch_tokens=64
    ),
    model=Luong(width=8, embedding_size=4, layers=1, dropout=0.2),
    train=Train(steps=6 * EVERY, warmup_steps=1, evaluate_every=EVERY, save_every=EVERY, log_every=1),
    search=Search(beam_size=1),
)


@pytest.mark.slow
def test_nothing_is_compiled_once_a_run_is_warm(tmp_path, monkeypatch):
    compiled, shapes, counts = [], [], []
    stream, log = batch_plan.stream, run_log.Log.step

    def recorded(*arguments, **options):
        for step, batch in stream(*arguments, **options):
            shapes.append(batch["source"].shape)
            yield step, batch

    def listen(event, seconds, **_):  # also called for programs in the persistent cache
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    only = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: only)
    monkeypatch.setattr(batch_plan, "stream", recorded)
    monkeypatch.setattr(run_log.Log, "step", lambda *a: (counts.append(len(compiled)), log(*a))[1])
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        run.train(EXPERIMENT, tmp_path)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    # The count of step t was read after step t was dispatched, before its evaluation.
    all_met = max(shapes.index(shape) for shape in set(shapes)) + 1
    warm = max(all_met, EVERY) + 1
    assert len(set(shapes)) == 2 and set(shapes[warm:]) == set(shapes) and warm <= len(shapes) - 2 * EVERY
    assert counts[0] > 0 and counts[warm] == len(compiled), counts
