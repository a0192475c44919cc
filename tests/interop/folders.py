"""Folders of Hugging Face for the tests of s2sjax.interop, made of the stored files of transformers."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from references import of_transformers
from references.pretrained_cases import foreign_ids

from s2sjax import interop, models
from s2sjax.interop import safetensors_files

IMPORTED = (
    "marian", "bart", "bart-bfloat16", "bart-untied", "mbart", "m2m_100", "pegasus", "blenderbot", "t5", "t5-v1.1",
    "t5-inexact", "mt5", "umt5", "umt5-untied", "marian-two",
)  # fmt: skip
FILES = ("config.json", "model.safetensors")


@cache
def stored(name: str) -> dict[str, np.ndarray]:
    return of_transformers(f"imported/{name}")


def hf_config(name: str) -> dict[str, Any]:
    return json.loads(stored(name)["config.json"].tobytes())


def write_folder(name: str, folder: Path) -> Path:
    """Writes the files that transformers saved."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        (folder / file).write_bytes(stored(name)[file].tobytes())
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> Path:
    """Changes a folder's tensors in place."""
    found = safetensors_files.read(folder)
    tensors = {name: found[name] for name in found}
    del found
    change(tensors)
    (folder / FILES[1]).unlink()
    safetensors_files.write(folder, tensors)
    return folder


def change_config(folder: Path, **entries: Any) -> Path:
    """Changes entries of config.json; those that are `...` are taken out."""
    page = json.loads((folder / FILES[0]).read_text()) | entries
    page = {name: value for name, value in page.items() if value is not ...}
    (folder / FILES[0]).write_text(json.dumps(page))
    return folder


def load(name: str, folder: Path) -> interop.Imported:
    return interop.load(write_folder(name, folder), foreign_ids(hf_config(name)))


def sizes(name: str) -> tuple[int, int]:
    """The sizes of the vocabularies of source and target."""
    page = hf_config(name)
    return page["vocab_size"], page.get("decoder_vocab_size") or page["vocab_size"]


def build(settings: Any, *sizes: int) -> Any:
    return models.build(settings, *(sizes if len(sizes) == 2 else sizes * 2))


def add_aliases(tensors: dict[str, np.ndarray]) -> None:
    """Adds the tables that are tied under all names that files have."""
    for name in ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"):
        tensors[name] = tensors["model.shared.weight"]
