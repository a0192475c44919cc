"""Folders of BERT and RoBERTa for the tests, made of the stored files of transformers."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import references

NAMES = ("bert", "bert-2018", "bert-plain", "roberta", "roberta-classifier", "xlm-roberta")


@cache
def stored() -> dict[str, np.ndarray]:
    with np.load(Path(references.__file__).with_name("encoders.npz")) as file:
        return {name: file[name] for name in file.files}


def write_folder(name: str, folder: Path) -> Path:
    """Writes the files that transformers saved."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, value in stored().items():
        case, _, file = key.partition("/")
        if case == name and "." in file:
            (folder / file).write_bytes(value.tobytes())
    return folder


def lines(name: str) -> list[str]:
    return json.loads(stored()[name].tobytes())


def ids(name: str, key: str) -> list[list[int]]:
    return [[index for index in row if index >= 0] for row in stored()[f"{name}/{key}"].tolist()]
