"""Versions, devices, and how to install what is missing."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from s2sjax import __version__


def report(start_jax: Callable[[], Path]) -> None:
    """Prints the report. `start_jax` returns the compilation cache directory."""
    print(f"s2sjax {__version__}, Python {platform.python_version()} on {platform.machine()}")
    for name, extra in _requirements():
        version = _version(name)
        if not extra:
            print(f"{name} {version}" if version else f"{name} is MISSING: pip install {name}")
        elif extra == "g2p":
            print(
                f"{name} {version}" if version else f'{name} is not installed (optional): pip install "s2sjax[{extra}]"'
            )
    try:
        import jax

        devices = jax.devices()
    except (ImportError, RuntimeError) as error:
        print(
            f"JAX finds no device ({' '.join(str(error).split())}): pip install --upgrade jax, or set JAX_PLATFORMS=cpu"
        )
        return
    print(f"{len(devices)} {devices[0].platform} device(s): {devices[0].device_kind}, {os.cpu_count()} CPU cores")
    if devices[0].platform == "cpu":
        print('no accelerator is used: for an NVIDIA GPU pip install "s2sjax[gpu]", on a TPU pip install "s2sjax[tpu]"')
    print("compilation cache:", start_jax())


def _requirements() -> Iterator[tuple[str, str]]:
    """(package, the extra that requires it or "") from the metadata of s2sjax."""
    named = importlib.metadata.requires("s2sjax") if _version("s2sjax") else None  # None: s2sjax is not installed
    for line in named or ():
        extra = re.search(r"extra == ['\"](\w+)", line)
        yield re.split(r"[^\w.-]", line)[0], extra[1] if extra else ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
