"""Every test sees eight fake CPU devices, full float32 products, and a shared compilation cache."""

import gc
import io
import os
import re
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Eight fake devices on two busy cores may wait long for each other; XLA would end the process after 40 seconds.
patience = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {patience}".strip()
os.environ.setdefault("PJRT_NPROC", "64")  # threads for them all, as s2sjax.cli gives

import jax
import pytest

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


def said_by_us(errors: str) -> str:
    """Standard error without XLA's own log, in which fake devices complain of having to wait for each other."""
    return re.sub(r"^(\[\d+\] )?[IWE]\d{4} \d\d:\d\d:\d\d.*\n", "", errors, flags=re.M)


@pytest.fixture
def call(capsys, monkeypatch):
    """call("decode", folder, stdin=b"...") -> (exit code, standard output, standard error)."""

    from s2sjax import cli

    def command(*arguments, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return command
