"""Every test sees eight fake CPU devices, full float32 products, and a shared compilation cache."""

import gc
import os
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)
CACHE = os.environ.get("S2SJAX_TEST_CACHE", Path(tempfile.gettempdir()) / "s2sjax-test-cache")
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

MAPS = Path("/proc/self/maps")


def pytest_runtest_teardown():
    """Every compiled program takes some hundred memory maps, and a process may have 65,530: XLA crashes at the next."""
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
        gc.collect()
