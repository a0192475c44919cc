"""The compiled train steps: one line on each bucket, and on each compiler option that this JAX does not know."""

import jax
import jax.numpy as jnp
import optax

from s2sjax.core import device
from s2sjax.training.loop import Programs
from s2sjax.training.progress import Log
from s2sjax.training.state import create


def test_two_buckets_with_an_unknown_option_are_compiled_with_one_note(capsys, monkeypatch):
    monkeypatch.setattr(device, "_dropped", set())
    step = lambda state, batch: (state._replace(step=state.step + 1), {"loss": batch["source"].mean()})
    state = create({"weight": jnp.zeros(2)}, optax.sgd(0.1))
    log = Log(None, steps=1, every=1)
    programs = Programs(step, state, compiler_options={"xla_cpu_invented": "1"})
    programs.prepare([{"source": jnp.ones((2, width))} for width in (3, 4)], log)
    out = capsys.readouterr().out
    note = f"JAX {jax.__version__} does not accept the compiler option xla_cpu_invented: compiling without it\n"
    assert out.count(note) == 1
    for width in (3, 4):
        assert f"compiled the train step for batches of source 2x{width} in " in out
    assert programs(state, {"source": jnp.ones((2, 3))}, log)[0].step == 1
    assert len(programs.seconds) == 2
