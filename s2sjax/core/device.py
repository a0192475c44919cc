"""What depends on the device: unrolling, kernels, layouts. Every such decision is made here, under a name.

The results are the same whatever is decided; only the time differs.
"""

import os
import threading
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

FEW_ROWS = 128
"""rows of a product that count as few: those of a search"""
ATTENTION = "S2SJAX_ATTENTION"
"""a variable of the environment: xla or cudnn, to use that attention whatever the device"""
UNROLL = "S2SJAX_UNROLL"
"""a variable of the environment: 1 or all, to compile a stack of blocks as a loop or unrolled, whatever the device"""
COMPILER_MEMORY = 6e9
"""bytes of the host for each program that is compiled at once: a base-size step takes two or three"""


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def scan_unroll() -> int:
    """Time steps of a recurrence that are compiled as one: accelerators gain from 8, a CPU only compiles longer."""
    return 1 if on_cpu() else 8


def block_unroll(depth: int) -> int:
    """Blocks of a stack that are compiled as one: accelerators run all of them unrolled."""
    forced = os.environ.get(UNROLL)
    return 1 if (forced == "1" if forced else on_cpu()) else depth


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


def attention_kernel(queries: Array) -> Literal["cudnn", "xla"]:
    """cuDNN's flash attention where the device and the shapes allow it, XLA's elsewhere: queries [..., D]."""
    half = queries.dtype in (jnp.bfloat16, jnp.float16)
    width = queries.shape[-1]
    return "cudnn" if half and width % 8 == 0 and width <= 128 and runs_flash_attention(jax.devices()[0]) else "xla"


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
    if not on_cpu():
        return None
    return {
        # XLA's own fusions are faster on the small products of a recurrent step than those of its newest CPU library.
        "xla_cpu_experimental_ynn_fusion_type": "",
        # A CPU alone drops the barriers that keep recomputation for the backward pass from moving into the forward one.
        "xla_disable_hlo_passes": "cse_barrier_expander",
    }


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
