"""The names that the packages of the core list in `__all__` exist."""

import importlib

import pytest

from s2sjax import core


@pytest.mark.parametrize(
    "package", ["", *(f".{name}" for name in core.__all__ if name not in ("special_tokens", "tables"))]
)
def test_all_of_a_package(package):
    names: dict = {}
    exec(f"from s2sjax.core{package} import *", names)
    module = importlib.import_module(f"s2sjax.core{package}")
    assert set(module.__all__) <= names.keys()
    assert len(set(module.__all__)) == len(module.__all__)
