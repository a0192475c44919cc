"""Every test sees eight fake CPU devices, full float32 products, and a shared compilation cache.

`make test-gpu` runs a few of them on a GPU instead: one device, and compiled as users compile.
"""

import gc
import io
import os
import re
import secrets
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
ON_GPU = os.environ["JAX_PLATFORMS"] == "cuda"
# Eight fake devices on two busy cores may wait long for each other; XLA would end the process after 40 seconds.
FLAGS = [
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",
    "--xla_cpu_parallel_codegen_split_count=1",  # other tests have the other cores
]
# The newest code generator runs faster and compiles longer. Newer versions have no other.
HAS_OLD_GENERATOR = version("jaxlib").startswith("0.10.")
if HAS_OLD_GENERATOR:
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
if FLAGS[0] not in os.environ.get("XLA_FLAGS", ""):  # a worker's parent has set them
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]).strip()
os.environ.setdefault("PJRT_NPROC", "64")  # threads for them all, as s2sjax.cli.main gives
# In the environment, so that the processes that tests start use the same cache.
CACHE = os.environ.get("S2SJAX_TEST_CACHE", Path(tempfile.gettempdir()) / "s2sjax-test-cache")
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
# Which code may be executed is remembered here, not in the home of who runs the tests.
os.environ["XDG_STATE_HOME"] = os.environ.get("S2SJAX_TEST_STATE") or tempfile.mkdtemp(prefix="s2sjax-test-state-")
os.environ["S2SJAX_TEST_STATE"] = os.environ["XDG_STATE_HOME"]
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
if not ON_GPU:  # tests compile more than they compute, and so do the processes that they start
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

import hypothesis
import jax
import jaxtyping
import numpy as np
import pytest
from xdist.scheduler import LoadScopeScheduling

if ON_GPU:
    jax.config.update("jax_default_matmul_precision", "highest")  # its products of float32 have ten bits otherwise
else:
    jax.config.update("jax_num_cpu_devices", 8)

# The shapes and dtypes that these modules annotate are checked at every call. As in JAX, NumPy's arrays will do.
CHECKED = ("attention", "recurrence", "nn", "losses", "search", "chains", "signals", "backend.matmul")
jaxtyping.Array = jax.Array | np.ndarray | np.generic
jaxtyping.install_import_hook([f"s2sjax.core.{name}" for name in CHECKED], "typechecking.checked")

RANDOM = os.environ.get("S2SJAX_TEST_RANDOM") == "1"
"""Whether seeds are drawn: `make test-all` sets it. Everywhere else each run tests the same cases."""


def seed_of(usual: int) -> int:
    """The usual seed; with `make test-all` another one each time, which is shown when the test fails."""
    seed = secrets.randbelow(2**31) if RANDOM else usual
    print(f"seed {seed}")
    return seed


hypothesis.settings.register_profile("tests", derandomize=not RANDOM, deadline=None, database=None)
hypothesis.settings.load_profile("tests")

LONGEST = (
    "test_pod.py", "test_task_laws.py", "test_notebooks.py", "test_docs.py", "test_extending.py", "test_cli.py",
    "test_failures.py", "test_loop.py", "test_translator.py",
)  # fmt: skip
"""Files that take minutes: the workers begin with them, so that none ends long after the others."""


def group_of(nodeid: str) -> str:
    """The model that a test is about, else its file: tests of one group share what is built and compiled.

    tests/models/test_laws.py::test_empty_rows_are_finite[luong] -> luong
    """
    from zoo import MODELS

    file, _, test = nodeid.partition("::")
    parameters = test.partition("[")[2].removesuffix("]")
    named = [m for m in MODELS if f"-{parameters}-".find(f"-{m}-") >= 0]
    return max(named, key=len) if named else file.rpartition("/")[2]


def pytest_collection_modifyitems(items):
    from zoo import MODELS

    first = {group: number for number, group in enumerate((*LONGEST, *MODELS))}
    groups = {item: group_of(item.nodeid) for item in items}
    items.sort(key=lambda item: (first.get(groups[item], len(first)), groups[item]))


class ByGroup(LoadScopeScheduling):
    """Tests of one group follow each other on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config, log):
    return ByGroup(config, log)


MAPS = Path("/proc/self/maps")


def pytest_runtest_teardown():
    """Every compiled program takes some hundred memory maps, and a process may have 65,530: XLA crashes at the next."""
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
        gc.collect()


def said_by_us(errors: str) -> str:
    """Standard error without XLA's own log, in which fake devices complain of having to wait for each other."""
    return re.sub(r"^(\[\d+\] )?[IWE]\d{4} \d\d:\d\d:\d\d.*\n", "", errors, flags=re.M)


def child_environment(**extra: str) -> dict[str, str]:
    """Of a process that imports what this one does."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | extra


def refused(action) -> str:
    """The one line of the UserError that an action must raise."""
    from s2sjax.errors import UserError

    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(autouse=True, scope="module")
def explicit_ranks(request):
    """In core, layers and models, arrays of different ranks broadcast only where the code says so: `x[:, None]`."""
    tested = request.path.relative_to(Path(__file__).parent).parts[0]
    with jax.numpy_rank_promotion("raise" if tested in ("core", "layers", "models") else "allow"):
        yield


needs_eight_devices = pytest.mark.skipif(ON_GPU, reason="needs eight fake devices of a CPU")


@pytest.fixture
def call(capsys, monkeypatch):
    """call("decode", folder, stdin=b"...") -> (exit code, standard output, standard error)."""

    from s2sjax.cli import main

    def command(*arguments, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = 0
        try:
            main.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return command
