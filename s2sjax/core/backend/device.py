"""Decisions that depend on the device: unrolling, kernels, layouts. All of them are made here.

The device is `target()`, the one that programs are compiled for, which may be absent: see `compile_for`. The decisions
change time and memory, not results.
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
from jaxtyping import Array, Float

FEW_ROWS = 128
"""maximum number of rows of a small product, such as those of a search"""
SHORT = 128
"""maximum number of queries and keys whose scores fit on a GPU's chip: see core/attention/short_sequence_kernel.py"""
ATTENTION = "S2SJAX_ATTENTION"
"""environment variable that forces an attention kernel on every device: xla or cudnn"""
UNROLL = "S2SJAX_UNROLL"
"""environment variable that forces how stacks of blocks are compiled on every device: 1 (a loop) or all (unrolled)"""
COMPILER_MEMORY = 6e9
"""host memory in bytes for each program compiled at once: the step of a base-size model takes 2e9 to 3e9"""

_target: ContextVar[jax.Device | None] = ContextVar("target", default=None)


def target() -> jax.Device:
    """The device that programs are compiled for: the first of this process, unless `compile_for` sets another."""
    return _target.get() or jax.devices()[0]


@contextlib.contextmanager
def compile_for(other: jax.Device) -> Iterator[None]:
    """Context in which programs are traced for another device, which may be absent, such as one of a TPU topology."""
    jax.clear_caches()  # functions that were already traced would not be traced again
    token = _target.set(other)
    try:
        yield
    finally:
        _target.reset(token)
        jax.clear_caches()


def on_cpu() -> bool:
    """Whether programs are compiled for a CPU."""
    return target().platform == "cpu"


_forced_unroll: ContextVar[int | None] = ContextVar("forced_unroll", default=None)


def scan_unroll() -> int:
    """Number of time steps of a recurrence to unroll: 8 are faster on a GPU, while a CPU only compiles longer.

    The TPU compiler estimates as many cycles with 4 as with 8 (GNMT, 64 steps), and takes less time and memory.
    """
    return _forced_unroll.get() or {"cpu": 1, "tpu": 4}.get(target().platform, 8)


def chunk_length() -> int:
    """Number of positions that a recurrence of core/mixers/ computes at once, as matrix products."""
    return {"cpu": 32, "tpu": 128}.get(target().platform, 64)


@contextlib.contextmanager
def force_scan_unroll(steps: int | None) -> Iterator[None]:
    """Context in which recurrences unroll `steps` time steps on every device; None: the device's default."""
    token = _forced_unroll.set(steps)
    try:
        yield
    finally:
        _forced_unroll.reset(token)


def scan_remat(policy: str) -> str:
    """The rematerialization policy of each step of a scan: "products" if all may be saved. See remat.py.

    Memory is slower than arithmetic: recomputing elementwise results takes less time than saving and reading them.
    """
    return "products" if policy == "none" else policy


def block_unroll(depth: int) -> int:
    """Number of blocks of a stack to unroll: all on a GPU, 1 (a loop) on a CPU and a TPU.

    The TPU compiler takes 48 s for the train step of a Transformer-base as a loop, and 181 s for it unrolled (v5e:2x4,
    256 x 64 tokens); docs/pod.md has both.
    """
    forced = os.environ.get(UNROLL)
    return 1 if (forced == "1" if forced else target().platform in ("cpu", "tpu")) else depth


def block_remat(policy: str, unroll: int) -> str:
    """The rematerialization policy of each block of a stack. See remat.py.

    A loop on a TPU saves its values in arrays of all blocks: with the products alone, the train step described in
    `block_unroll` needs 0.9 GB instead of 2.4.
    """
    return "products" if policy == "none" and unroll == 1 and target().platform == "tpu" else policy


def compile_threads() -> int:
    """Number of programs to compile at once in the background: 1 for a CPU, whose compiler uses all cores."""
    if on_cpu():
        return 1
    cores, memory = os.cpu_count() or 1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(4, cores, int(memory / COMPILER_MEMORY)))


def tokens_per_check() -> int:
    """Number of tokens that a search writes between checks whether it is done, which stall an accelerator."""
    return 1 if on_cpu() else 4


def gathers_kv_cache() -> bool:
    """Whether each prefix gathers its own keys and values; an accelerator reads those of all prefixes and masks."""
    return on_cpu()


def reads_table_as_stored(rows: int) -> bool:
    """Whether a product of few rows with a transposed table reads the table as stored: [V, W] @ [W, rows]."""
    return on_cpu() and rows <= FEW_ROWS


def multiplies_rows() -> bool:
    """Whether a product of [B, T, D] should be computed on its rows, [B T, D].

    Otherwise a CPU copies a factor into another layout for the gradient of the matrix. On several devices, the reshape
    would gather the rows of all of them.
    """
    return on_cpu() and jax.sharding.get_abstract_mesh().size <= 1


def multiplies_int8() -> bool:
    """Whether int8 products are faster than float ones: on a CPU, by a factor of 3 or more."""
    return on_cpu()


def reduces_together() -> bool:
    """Whether several sums over one array should be computed in one pass; on a CPU, that loop is not vectorised."""
    return not on_cpu()


def attention_kernel(
    queries: Float[Array, "B T N D"], keys: Float[Array, "B S N D"]
) -> Literal["short", "cudnn", "xla"]:
    """The attention kernel for queries and keys.

    The kernels of core/attention/short_sequence_kernel.py, else cuDNN's flash attention, if the device and the shapes
    allow them; otherwise XLA's. Of these, cuDNN's is not for scores with a bias.
    """
    forced, first = os.environ.get(ATTENTION), target()
    width, longest = queries.shape[-1], max(queries.shape[1], keys.shape[1])
    if queries.dtype not in (jnp.bfloat16, jnp.float16) or splits_sequences():
        return "xla"
    if not forced and runs_short_attention(first) and longest <= SHORT and width in (16, 32, 64):
        return "short"
    # cuDNN's gradient requires even lengths.
    even = queries.shape[1] % 2 == keys.shape[1] % 2 == 0
    return "cudnn" if even and width % 8 == 0 and width <= 128 and runs_flash_attention(first) else "xla"


def runs_short_attention(device: jax.Device) -> bool:
    """Whether core/attention/short_sequence_kernel.py runs: on Hopper, where it was measured.

    Other GPUs have less on-chip memory.
    """
    return int(_compute_capability(device)) == 9


def runs_flash_attention(device: jax.Device) -> bool:
    """Whether cuDNN's flash attention runs: on NVIDIA GPUs since Ampere, so not on a T4, nor on AMD GPUs."""
    forced = os.environ.get(ATTENTION)
    return forced == "cudnn" if forced else _compute_capability(device) >= 8


def splits_sequences() -> bool:
    """Whether the mesh has a context axis, for which only XLA's kernels are split: see s2sjax/training/mesh.py."""
    return "context" in jax.sharding.get_abstract_mesh().axis_names


def runs_triton(device: jax.Device) -> bool:
    """Whether core/attention/decode_kernel.py runs: on NVIDIA GPUs since Ampere. Other devices use XLA's kernels."""
    return _compute_capability(device) >= 8


def _compute_capability(device: jax.Device) -> float:
    """The compute capability: 8.0 for NVIDIA's Ampere, 7.5 for a T4; 0 for other makers, such as AMD's "gfx942"."""
    capability = str(getattr(device, "compute_capability", ""))
    return float(capability) if capability.replace(".", "").isdecimal() else 0.0


def compiler_options() -> dict[str, Any] | None:
    """XLA compiler options for a train step, or None."""
    if _compute_capability(target()):
        # For the small products of a recurrent step, cuBLAS is faster than Triton (RNNsearch 1024 on an H200: 26.2 ms a
        # step against 30.8); for others it is as fast. Tuning Triton's would take a third of the compilation time.
        return {"xla_gpu_enable_triton_gemm": False}
    if not on_cpu():
        return None
    # Only XLA's CPU compiler drops the barriers that keep recomputation in the backward pass.
    options: dict[str, Any] = {"xla_disable_hlo_passes": "cse_barrier_expander"}
    if platform.machine() in ("aarch64", "arm64"):
        # On ARM, XLA's own fusions are faster than its CPU library's for the small products of a recurrent step.
        options["xla_cpu_experimental_ynn_fusion_type"] = ""
    return options


_dropped: set[str] = set()
_lock = threading.Lock()


def compile_with(lowered: Any, options: dict[str, Any] | None, note: Callable[[str], None] = print) -> Any:
    """Compiles with the options that this version of JAX accepts; reports the others to `note`, one line each.

    Options make a program faster, not different: a run must not fail because XLA has renamed or removed one.
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
    """Turns on the persistent compilation cache, unless the user has configured it, and returns its folder.

    JAX reads JAX_COMPILATION_CACHE_DIR and jax.config; an empty string turns the cache off.
    """
    options: Any = jax.config
    if options.jax_compilation_cache_dir is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        options.update("jax_compilation_cache_dir", str(home / "s2sjax"))
        if options.jax_persistent_cache_min_compile_time_secs == 1.0:  # JAX's own default
            options.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    # A cache that cannot be written, or that a killed process left incomplete, costs only time.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    return Path(options.jax_compilation_cache_dir)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context that hides standard error: libtpu writes to it when loaded on a machine without a TPU."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
