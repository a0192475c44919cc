"""What depends on the device: which kernels run where, and compiler options that come and go."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from s2sjax.core import attention
from s2sjax.core.backend import device


def gpu(capability):
    return [SimpleNamespace(platform="gpu", compute_capability=capability)]


@pytest.mark.parametrize(
    ("capability", "dtype", "width", "length", "kernel"),
    [
        ("9.0", "bfloat16", 64, 128, "short"),
        ("9.0", "float16", 16, 1, "short"),
        ("9.0", "bfloat16", 128, 128, "cudnn"),
        ("8.0", "bfloat16", 64, 128, "cudnn"),
        ("9.0", "bfloat16", 64, 130, "cudnn"),
        ("9.0", "bfloat16", 64, 131, "xla"),  # an odd length
        ("8.0", "float16", 128, 200, "cudnn"),
        ("12.0", "bfloat16", 8, 2, "cudnn"),
        ("9.0", "float32", 64, 1, "xla"),
        ("9.0", "bfloat16", 36, 1, "xla"),
        ("9.0", "bfloat16", 256, 1, "xla"),
        ("7.5", "bfloat16", 64, 1, "xla"),  # a T4
        ("gfx942", "bfloat16", 64, 1, "xla"),  # ROCm
    ],
)
def test_each_attention_only_where_it_runs(monkeypatch, capability, dtype, width, length, kernel):
    monkeypatch.setattr(jax, "devices", lambda *_: gpu(capability))
    one, many = jnp.zeros((1, 2, 1, width), dtype), jnp.zeros((1, length, 1, width), dtype)
    assert device.attention_kernel(one, many) == device.attention_kernel(many, one) == kernel


def test_the_environment_goes_first(monkeypatch):
    queries = jnp.zeros((1, 2, 1, 64), jnp.bfloat16)
    monkeypatch.setattr(jax, "devices", lambda *_: gpu("9.0"))
    for kernel in ("xla", "cudnn"):
        monkeypatch.setenv(device.ATTENTION, kernel)
        assert device.attention_kernel(queries, queries) == kernel
    monkeypatch.setattr(jax, "devices", lambda *_: gpu("7.5"))
    assert device.attention_kernel(queries, queries) == "cudnn"
    exact = queries.astype(jnp.float32)
    assert device.attention_kernel(exact, exact) == "xla"


@pytest.mark.parametrize("capability", ["7.5", "gfx942"])
def test_bfloat16_attention_on_an_old_gpu_is_that_of_xla(monkeypatch, capability):
    """As on a CPU: what differs between the devices is only what the device says of itself."""
    queries = jax.random.normal(jax.random.key(0), (2, 3, 2, 8), jnp.bfloat16)
    lengths = jnp.array([3, 2])
    expected = attention.fused_multi_head(queries, queries, queries, lengths)
    monkeypatch.setattr(jax, "devices", lambda *_: gpu(capability))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = attention.fused_multi_head(queries, queries, queries, lengths)
    assert jnp.array_equal(found, expected)


def test_an_option_that_jax_does_not_know_is_dropped_with_one_note(monkeypatch):
    monkeypatch.setattr(device, "_dropped", set())
    lowered = jax.jit(lambda x: x + 1).lower(jnp.zeros(3))
    options = {"xla_cpu_invented": True, "xla_backend_optimization_level": "0", "xla_also_invented": "a"}
    notes = []
    for _ in range(2):
        program = device.compile_with(lowered, options, notes.append)
        assert program(jnp.ones(3)).tolist() == [2, 2, 2]
    assert sorted(notes) == [
        f"JAX {jax.__version__} does not accept the compiler option {name}: compiling without it"
        for name in ("xla_also_invented", "xla_cpu_invented")
    ]


@pytest.mark.parametrize(("capability", "products"), [("9.0", {"xla_gpu_enable_triton_gemm": False}), ("gfx942", None)])
def test_the_options_of_a_gpu_are_those_of_nvidia(monkeypatch, capability, products):
    monkeypatch.setattr(jax, "devices", lambda *_: gpu(capability))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert device.compiler_options() == products


def test_the_options_of_today_are_all_accepted():
    notes = []
    lowered = jax.jit(lambda x: x + 1).lower(jnp.zeros(3))
    device.compile_with(lowered, device.compiler_options(), notes.append)
    assert notes == []


def test_another_error_is_not_taken_for_an_unknown_option():
    class Broken:
        def compile(self, compiler_options):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory while running xla_here")

    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"):
        device.compile_with(Broken(), {"xla_here": 1}, print)
