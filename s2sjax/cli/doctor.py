"""Prints versions, devices, and how to install what is missing.

Dependencies are imported inside the functions, so that the command works in a broken installation.
"""

import importlib.metadata
import os
import platform
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from s2sjax.cli.start_jax import find_devices_quietly
from s2sjax.version import __version__

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
EXTRAS = {
    "gpu": "NVIDIA GPUs",
    "tpu": "TPUs; plan --compile without one",
    "g2p": "the dictionary of experiments/g2p.py",
    "audio": "recordings, as in spoken_digits.py",
    "sklearn": "the digits of sklearn_digits.py",
    "pictures": "photos, as in flickr8k.py",
    "frames": "frames and Parquet files",
    "datasets": "Hugging Face datasets",
    "pretrained": "models of Hugging Face",
    "gcs": "run folders in Google Cloud Storage",
    "s3": "run folders in S3",
    "beam": "prepare --beam",
    "wandb": "train --log wandb",
    "mlflow": "train --log mlflow",
    "notebooks": "executing the notebooks",
    "docs": "building the site, make docs",
    "dev": "tests and linters",
}
"""purpose of each extra of pyproject.toml"""


class Requirement(NamedTuple):
    """One line of a list of dependencies: "jax[tpu]>=0.10"."""

    text: str
    name: str
    extras: tuple[str, ...]
    least: str  # the oldest sufficient version; "" for any version

    @classmethod
    def parse(cls, text: str) -> "Requirement":
        name = re.match(r"[\w.-]+", text)
        inside = re.search(r"\[([^]]*)\]", text)
        least = re.search(r"[>=]=\s*([\d.]*\d)", text)
        assert name, text
        extras = tuple(inside[1].replace(" ", "").split(",")) if inside else ()
        return cls(text.strip(), name[0], extras, least[1] if least else "")


def report(start_jax: Callable[[], Path]) -> None:
    """Prints the report. `start_jax` returns the compilation cache directory."""
    print(f"s2sjax {__version__}, Python {platform.python_version()} on {platform.machine()}")
    devices, failure = _devices()
    try:
        required, extras = requirements()
    except importlib.metadata.PackageNotFoundError:
        print("s2sjax is not installed, and there is no pyproject.toml with its requirements: install it with pip")
    else:
        _print_packages(required)
        _print_extras(extras, devices[0].platform if devices else "")
    if not devices:
        print(f"JAX finds no device ({failure}): pip install --upgrade jax, or set JAX_PLATFORMS=cpu")
        return
    _print_devices(devices)
    print("compilation cache:", start_jax())


# ------------------------------------------------------------------------------------- packages


def requirements() -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """The dependencies of s2sjax, and those of each extra.

    In a source tree they are read from pyproject.toml, because the metadata may be older than the code.
    """
    if PYPROJECT.is_file() and (project := tomllib.loads(PYPROJECT.read_text())["project"])["name"] == "s2sjax":
        plain = _parsed(project["dependencies"])
        extras = {name: _parsed(lines) for name, lines in project["optional-dependencies"].items()}
    else:
        plain, extras = _metadata("s2sjax")

    def expanded(extra: str) -> Iterator[Requirement]:  # an extra may name others: "s2sjax[g2p]"
        for each in extras[extra]:
            yield from (part for name in each.extras for part in expanded(name)) if each.name == "s2sjax" else (each,)

    return plain, {name: list(expanded(name)) for name in extras}


def _parsed(lines: Sequence[str]) -> list[Requirement]:
    return [Requirement.parse(line) for line in lines]


def _metadata(package: str) -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """The dependencies of an installed package, and those of each extra."""
    plain: list[Requirement] = []
    extras: dict[str, list[Requirement]] = {}
    for line in importlib.metadata.requires(package) or ():
        text, _, marker = line.partition(";")
        extra = re.search(r"extra *== *['\"]([\w-]+)", marker)
        (extras.setdefault(extra[1], []) if extra else plain).append(Requirement.parse(text))
    return plain, extras


def problem(requirement: Requirement) -> str:
    """The problem with a requirement: "MISSING", "TOO OLD", or "" for none."""
    version = _version(requirement.name)
    if version is None:
        return "MISSING"
    if requirement.least and _numbers(version) < _numbers(requirement.least):
        return "TOO OLD"
    return "MISSING" if any(problem(part) == "MISSING" for part in _of_extras(requirement)) else ""


def _of_extras(requirement: Requirement) -> list[Requirement]:
    """The requirements of the extras of a requirement: "jax[tpu]" -> libtpu and others."""
    extras = _metadata(requirement.name)[1] if requirement.extras else {}
    return [part for extra in requirement.extras for part in extras.get(extra, ())]


def _numbers(version: str) -> list[int]:
    """The numbers of a release, without trailing zeros: "0.12.0rc1" -> 0 12."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _install(wanted: Sequence[Requirement]) -> str:
    return "pip install " + " ".join(f'"{each.text}"' for each in wanted)


def _print_packages(required: Sequence[Requirement]) -> None:
    found = [(each, problem(each)) for each in required]
    for each, wrong in found:
        need = f"{wrong}: {each.least} or newer is required" if wrong else ""
        print(f"  {each.name:22}{_version(each.name) or '-':12}{need}".rstrip())
    wanted = [each for each, wrong in found if wrong]
    print(f"to install what is missing or too old: {_install(wanted)}" if wanted else "no dependency is missing")


def _print_extras(extras: dict[str, list[Requirement]], used: str) -> None:
    """Prints the extras. used: platform of JAX's devices, whose extra is not needed: another plugin may provide it."""
    print("optional:")
    for name, required in extras.items():
        missing = [] if name == used else [each for each in required if problem(each)]
        state = f"not installed: {_install(missing)}" if missing else "installed"
        print(f"  {name:11}{EXTRAS.get(name, ''):39}{state}")


# -------------------------------------------------------------------------------------- devices


def _devices() -> tuple[list[Any], str]:
    """The devices of JAX, and the reason if there are none."""
    try:
        import jax

        find_devices_quietly()
        return jax.devices(), ""
    except Exception as error:  # a plugin may raise anything
        return [], " ".join(str(error).split())


def _print_devices(devices: Sequence[Any]) -> None:
    first = devices[0]
    count = f"{len(devices)} {first.platform} device{'s' if len(devices) > 1 else ''}"
    print(f"{count}: {first.device_kind}, {os.cpu_count()} CPU cores")
    if first.platform == "cpu" and Path("/dev/nvidiactl").exists():
        print("this machine has an NVIDIA GPU that JAX does not use: install the extra gpu as shown above")
    print("attention:", _attention(first))
    print("blocks of a Transformer:", _blocks())


def _attention(first: Any) -> str:
    """The implementation of attention that a Transformer uses."""
    from s2sjax.core.backend import device

    forced = f" ({device.ATTENTION} is set)" if os.environ.get(device.ATTENTION) else ""
    if device.runs_flash_attention(first):
        short = not forced and device.runs_short_attention(first)
        ours = f"one kernel of s2sjax up to {device.SHORT} tokens, then " if short else ""
        return f"{ours}cuDNN's flash attention in bfloat16, XLA's in float32{forced}"
    if forced or first.platform != "gpu":
        return f"XLA's{forced}"
    capability = getattr(first, "compute_capability", "none")
    return f"XLA's: cuDNN's flash attention requires compute capability 8.0, this GPU has {capability}"


def _blocks() -> str:
    """The way in which a stack of blocks is compiled."""
    from s2sjax.core.backend import device

    forced = f" ({device.UNROLL} is set)" if os.environ.get(device.UNROLL) else ""
    return ("compiled as a loop" if device.block_unroll(2) == 1 else "compiled unrolled") + forced
