"""Folders of GPT-2 with random weights, and what transformers computes with them: tests/references/make_gpt2.py."""

import json
from functools import cache
from pathlib import Path

import numpy as np

NAMES = ("gpt2", "released", "untied")


@cache
def stored() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "references" / "gpt2.npz") as file:
        return {name: file[name] for name in file.files}


def lines(name: str) -> list:
    """A list that is stored as JSON: "texts", "prompts", "gpt2/ids", "gpt2/written"."""
    return json.loads(str(stored()[name]))


def write(name: str, parent: Path) -> Path:
    """Writes the folder of a model below `parent`, and returns it."""
    folder = parent / name
    folder.mkdir()
    start = f"{name}/files/"
    for path, content in stored().items():
        if path.startswith(start):
            (folder / path.removeprefix(start)).write_bytes(content.tobytes())
    return folder
