"""What depends on the device: unrolling, kernels, layouts. Every such decision is made here, under a name.

The device is the one that is compiled for, `target()`, which need not be one of this machine: see `compile_for`.
The results are the same whatever is decided; only the time differs.
"""

import contextlib
import os
import platform
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

FEW_ROWS = 128
"""rows of a product that count as few: those of a search"""
SHORT = 128
"""queries, and keys, whose scores fit on a GPU's chip: for s2sjax/core/short.py"""
ATTENTION = "S2SJAX_ATTENTION"
"""a variable of the environment: xla or cudnn, to use that attention whatever the device"""
UNROLL = "S2SJAX_UNROLL"
"""a variable of the environment: 1 or all, to compile a stack of blocks as a loop or unrolled, whatever the device"""
COMPILER_MEMORY = 6e9
"""bytes of the host for each program that is compiled at once: a base-size step takes two or three"""


_target: ContextVar[jax.Device | None] = ContextVar("target", default=None)


def target() -> jax.Device:
    """The device that is compiled for: the first one of this process, unless `compile_for` names another."""
    return _target.get() or jax.devices()[0]


@contextlib.contextmanager
def compile_for(other: jax.Device) -> Iterator[None]:
    """What is traced inside is for a device that need not be here, such as one of a topology of TPUs."""
    jax.clear_caches()  # a function that was traced before would be taken as it is
    token = _target.set(other)
    try:
        yield
    finally:
        _target.reset(token)
        jax.clear_caches()


def on_cpu() -> bool:
    return target().platform == "cpu"


_forced_unroll: ContextVar[int | None] = ContextVar("forced_unroll", default=None)


def scan_unroll() -> int:
    """Time steps of a recurrence that are compiled as one: a GPU gains from 8, a CPU only compiles longer.

    For a TPU the compiler estimates as many cycles with 4 as with 8 (GNMT, 64 steps), and takes less time and memory.
    """
    return _forced_unroll.get() or {"cpu": 1, "tpu": 4}.get(target().platform, 8)


@contextlib.contextmanager
def force_scan_unroll(steps: int | None) -> Iterator[None]:
    """What is traced inside unrolls this many time steps, whatever the device; None: as the device prefers."""
    token = _forced_unroll.set(steps)
    try:
        yield
    finally:
        _forced_unroll.reset(token)


def scan_remat(policy: str) -> str:
    """What each step of a scan saves, see s2sjax/core/remat.py, where all may be saved.

    Memory is slower than arithmetic, and JAX saves a step's products with their factors: fewer arrays, computed again,
    take less time.
    """
    return "products" if policy == "none" else policy


def block_unroll(depth: int) -> int:
    """Blocks of a stack that are compiled as one: a GPU runs all of them unrolled, a CPU and a TPU one after the other.

    The TPU compiler takes 48 s for the train step of a Transformer-base as a loop, and 181 s for it unrolled (v5e:2x4,
    256 x 64 tokens); docs/pod.md has both.
    """
    forced = os.environ.get(UNROLL)
    return 1 if (forced == "1" if forced else target().platform in ("cpu", "tpu")) else depth


def block_remat(policy: str, unroll: int) -> str:
    """What each block of a stack saves, see s2sjax/core/remat.py, where all may be saved.

    A loop on a TPU writes what it saves into arrays of all blocks: with the products alone the train step above needs
    0.9 GB instead of 2.4.
    """
    return "products" if policy == "none" and unroll == 1 and target().platform == "tpu" else policy


def compile_threads() -> int:
    """Programs that are compiled at once, while others run. For a CPU one: its compiler takes all cores by itself."""
    if on_cpu():
        return 1
    cores, memory = os.cpu_count() or 1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(4, cores, int(memory / COMPILER_MEMORY)))


def tokens_per_check() -> int:
    """Tokens that a search writes before it checks whether all sentences are done: the check stalls an accelerator."""
    return 1 if on_cpu() else 4


def gathers_kv_cache() -> bool:
    """Whether each prefix gathers its own keys and values; an accelerator reads all of them and masks the others'."""
    return on_cpu()


def reads_table_as_stored(rows: int) -> bool:
    """Whether a product of a few rows with a transposed table reads the table as it is stored: [V, W] @ [W, rows]."""
    return on_cpu() and rows <= FEW_ROWS


def multiplies_rows() -> bool:
    """Whether a product of [B, T, D] is best computed of its rows, [B T, D].

    For the gradient of the matrix, a CPU would otherwise copy one of the factors into another layout. Where devices
    split the rows, those of all of them would be gathered.
    """
    return on_cpu() and jax.sharding.get_abstract_mesh().size <= 1


def multiplies_int8() -> bool:
    """Whether products of int8 are faster than those of floats: on a CPU, by 3 times and more."""
    return on_cpu()


def reduces_together() -> bool:
    """Whether several sums over one array are best computed in one pass; a CPU's loops then lose their vectors."""
    return not on_cpu()


def attention_kernel(queries: Array, keys: Array) -> Literal["short", "cudnn", "xla"]:
    """What computes an attention without a bias: queries [B, T, N, D], keys [B, S, N, D].

    The kernels of s2sjax/core/short.py, else cuDNN's flash attention, where the device and the shapes allow them; XLA's
    elsewhere.
    """
    forced, first = os.environ.get(ATTENTION), target()
    width, longest = queries.shape[-1], max(queries.shape[1], keys.shape[1])
    if queries.dtype not in (jnp.bfloat16, jnp.float16):
        return "xla"
    if not forced and runs_short_attention(first) and longest <= SHORT and width in (16, 32, 64):
        return "short"
    # cuDNN's gradient requires even lengths.
    even = queries.shape[1] % 2 == keys.shape[1] % 2 == 0
    return "cudnn" if even and width % 8 == 0 and width <= 128 and runs_flash_attention(first) else "xla"


def runs_short_attention(device: jax.Device) -> bool:
    """Whether s2sjax/core/short.py runs: on Hopper, where it was measured; other chips have less memory."""
    return int(_compute_capability(device)) == 9


def runs_flash_attention(device: jax.Device) -> bool:
    """Whether cuDNN's flash attention runs: on NVIDIA's GPUs from Ampere on, so not on a T4, and not on AMD's."""
    forced = os.environ.get(ATTENTION)
    return forced == "cudnn" if forced else _compute_capability(device) >= 8


def runs_triton(device: jax.Device) -> bool:
    """Whether s2sjax/core/fused.py runs: on NVIDIA's GPUs from Ampere on; elsewhere XLA's own kernels do."""
    return _compute_capability(device) >= 8


def _compute_capability(device: jax.Device) -> float:
    """8.0 for NVIDIA's Ampere, 7.5 for a T4; 0 for all that is not NVIDIA's: AMD's is "gfx942"."""
    capability = str(getattr(device, "compute_capability", ""))
    return float(capability) if capability.replace(".", "").isdecimal() else 0.0


def compiler_options() -> dict[str, Any] | None:
    """How a train step is best compiled."""
    if _compute_capability(target()):
        # cuBLAS has faster products than Triton for the small ones of a recurrent step (RNNsearch 1024 on an H200: 26.2
        # ms a step against 30.8) and as fast ones for the others; and Triton's take a third of the compilation to tune.
        return {"xla_gpu_enable_triton_gemm": False}
    if not on_cpu():
        return None
    # A CPU alone drops the barriers that keep recomputation for the backward pass from moving into the forward one.
    options: dict[str, Any] = {"xla_disable_hlo_passes": "cse_barrier_expander"}
    if platform.machine() in ("aarch64", "arm64"):
        # There XLA's own fusions are faster on the small products of a recurrent step than those of its CPU library.
        options["xla_cpu_experimental_ynn_fusion_type"] = ""
    return options


_dropped: set[str] = set()
_lock = threading.Lock()


def compile_with(lowered: Any, options: dict[str, Any] | None, note: Callable[[str], None] = print) -> Any:
    """lowered.compile(options), without those that this version of JAX refuses; `note` gets one line on each.

    They make a program faster, not different: an option that XLA has renamed or removed must not end a run.
    """
    while True:
        accepted = {name: value for name, value in (options or {}).items() if name not in _dropped}
        try:
            return lowered.compile(compiler_options=accepted or None)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            refused = {name for name in accepted if name in str(error)}
            if "option" not in str(error) or not refused:
                raise
        with _lock:  # two programs may be compiled at once
            for name in sorted(refused - _dropped):
                note(f"JAX {jax.__version__} does not accept the compiler option {name}: compiling without it")
            _dropped.update(refused)


def use_compilation_cache() -> Path:
    """Keeps compiled programs between processes, unless the user has named another folder or wants none; the folder.

    JAX reads the folder of JAX_COMPILATION_CACHE_DIR and jax.config, where an empty one is none.
    """
    options: Any = jax.config
    if options.jax_compilation_cache_dir is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        options.update("jax_compilation_cache_dir", str(home / "s2sjax"))
        if options.jax_persistent_cache_min_compile_time_secs == 1.0:  # JAX's own default
            options.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    # A cache that cannot be written, or was cut short by a kill, costs time and nothing else.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    return Path(options.jax_compilation_cache_dir)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what libtpu writes to standard error while it is loaded on a machine without a TPU."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
