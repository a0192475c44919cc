"""What other implementations compute: small arrays, beside the scripts that made them."""

import json
from pathlib import Path

import numpy as np


def of_pytorch(case: str) -> dict[str, np.ndarray]:
    """The arrays of one case of make_torch.py, by their names."""
    with np.load(Path(__file__).with_name("torch.npz")) as file:
        return {name.removeprefix(f"{case}/"): file[name] for name in file.files if name.startswith(f"{case}/")}


def of_generate() -> tuple[tuple[np.ndarray, np.ndarray], dict[str, dict], dict[str, dict[str, np.ndarray]]]:
    """The two tables of make_generate.py, the arguments of each case, and the arrays of each case."""
    with np.load(Path(__file__).with_name("generate.npz")) as file:
        arguments = json.loads(str(file["cases"]))
        names = [(*name.rpartition("/"), name) for name in file.files if "/" in name]
        found: dict[str, dict[str, np.ndarray]] = {name: {} for name in arguments}
        for case, _, key, name in names:
            found[case][key] = file[name]
        return (file["by_token"], file["by_position"]), arguments, found


def of_transformers(case: str) -> dict[str, np.ndarray]:
    """The arrays of one case of make_pretrained.py, by their names: "imported/bart" has logits, config.json, ..."""
    with np.load(Path(__file__).with_name("pretrained.npz")) as file:
        return {name.removeprefix(f"{case}/"): file[name] for name in file.files if name.startswith(f"{case}/")}
