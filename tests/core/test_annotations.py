"""The annotations of the core are checked in tests: see tests/conftest.py."""

import subprocess
import sys

import jax.numpy as jnp
import jaxtyping
import pytest
from conftest import child_environment

from s2sjax.core import attention


def test_a_wrong_shape_is_refused():
    with pytest.raises(jaxtyping.TypeCheckError, match="mask"):
        attention.masked_softmax(jnp.zeros((2, 3)), jnp.ones((2, 4), bool))


def test_a_wrong_dtype_is_refused():
    with pytest.raises(jaxtyping.TypeCheckError, match="mask"):
        attention.masked_softmax(jnp.zeros((2, 3)), jnp.ones((2, 3)))


def test_implicit_broadcasting_is_refused():
    with pytest.raises(ValueError, match="rank"):
        jnp.zeros((2, 3)) + jnp.zeros(3)


def test_users_need_no_beartype():
    """Without the hook, nothing is checked and beartype is not imported."""
    program = """
import sys
sys.modules["beartype"] = None
import jax.numpy as jnp
from s2sjax.core import attention, losses, recurrence, search
print(attention.masked_softmax(jnp.zeros((2, 2)), jnp.ones((1, 2), bool)).shape)
"""
    ran = subprocess.run([sys.executable, "-c", program], env=child_environment(), capture_output=True, text=True)
    assert ran.stdout == "(2, 2)\n", ran.stderr
