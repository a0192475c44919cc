"""The compilation cache of `s2sjax.train` and `s2sjax.load`: on, unless the user has set another or none."""

import subprocess
import sys

import jax
import pytest
from conftest import child_environment
from jax.experimental.compilation_cache import compilation_cache

import s2sjax
from s2sjax import config, tasks
from s2sjax.errors import UserError
from s2sjax.runs import run

EXPERIMENT = tasks.Translation(
    "letters",
    data=config.Data(
        config.InMemory(train=[("ab", "ba"), ("c", "c")], test=[("b", "b")]), buckets=((4, 4),), batch_tokens=16
    ),
    model=config.Luong(width=4, embedding_size=4, layers=1),
    train=config.Train(steps=1, evaluate_every=0),
)


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """A process without a cache setting, in which all programs are cached, however fast they compile."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    yield tmp_path / "cache/s2sjax"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def seen_by_the_cache(kind: str):
    seen: list[str] = []
    listen = lambda event, **_: seen.append(event) if event.endswith(f"/{kind}") else None
    jax.monitoring.register_event_listener(listen)
    yield seen
    jax.monitoring.unregister_event_listener(listen)


@pytest.fixture
def hits():
    """Programs that were found in the cache."""
    yield from seen_by_the_cache("cache_hits")


@pytest.fixture
def misses():
    """Programs that were compiled."""
    yield from seen_by_the_cache("cache_misses")


@pytest.mark.slow
def test_another_seed_and_learning_rate_compile_nothing(own_cache, hits, misses, tmp_path):
    train = config.replace(EXPERIMENT.train, steps=2, evaluate_every=2)
    corpus = config.InMemory(train=[("ab", "ba"), ("c", "c")], dev=[("b", "b")], test=[("a", "a")])
    first = config.replace(EXPERIMENT, train=train, data=config.replace(EXPERIMENT.data, corpus=corpus))
    other = config.replace(train, learning_rate=3e-3, warmup_steps=50, clip_norm=0.5, label_smoothing=0.0)
    jax.clear_caches()  # else the cache lacks what earlier tests have compiled
    run.train(first, tmp_path / "one")
    assert len(misses) > 3
    jax.clear_caches()  # as in a new process
    misses.clear(), hits.clear()
    run.train(config.replace(first, seed=1, train=other), tmp_path / "two")
    assert (misses, len(hits) > 3) == ([], True)


@pytest.mark.slow
def test_what_python_trains_and_decodes_is_compiled_once_and_for_all(own_cache, hits, tmp_path):
    jax.jit(lambda x: x + 1)(1)  # as in a notebook that has already compiled something
    counts = []
    for folder in ("one", "two"):  # the second as in a new process
        jax.clear_caches()
        hits.clear()
        s2sjax.train(EXPERIMENT, tmp_path / folder)
        trained = len(hits)
        s2sjax.load(tmp_path / folder).decode("ab")
        counts.append((trained, len(hits) - trained))
    programs = {path.name for path in own_cache.glob("jit_*-cache")}
    assert any(name.startswith("jit_train_step") for name in programs), programs
    assert counts[1][0] > counts[0][0] and counts[1][1] > counts[0][1], counts


def open_nothing():
    with pytest.raises(UserError, match="is not a run folder"):
        s2sjax.load("nowhere")


def test_a_cache_that_nobody_has_set_is_that_of_the_commands(own_cache):
    open_nothing()
    assert jax.config.jax_compilation_cache_dir == str(own_cache)


@pytest.mark.parametrize("mine", ["/a/cache", ""], ids=["another", "none"])
def test_what_the_user_has_set_stays(own_cache, mine):
    jax.config.update("jax_compilation_cache_dir", mine)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 7.0)
    open_nothing()
    assert jax.config.jax_compilation_cache_dir == mine
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 7.0


def test_a_cache_that_the_user_has_switched_off_stays_off(own_cache):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        open_nothing()
        jax.jit(lambda x: x + 2)(1)
        assert not own_cache.exists()
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


def test_importing_s2sjax_changes_nothing():
    program = (
        "import sys, s2sjax; assert 'jax' not in sys.modules\n"
        "import s2sjax.runs.run, jax; assert jax.config.jax_compilation_cache_dir is None"
    )
    environment = child_environment()
    del environment["JAX_COMPILATION_CACHE_DIR"]
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
