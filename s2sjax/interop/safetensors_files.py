"""Reads and writes the safetensors files of a Hugging Face folder: one file, or several with an index.

Only safetensors are read, which cannot contain code. A file that is not what it claims to be raises a UserError of one
line, which names the file and the tensor.
"""

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from s2sjax.config.settings import require
from s2sjax.errors import UserError, one_line
from s2sjax.files import naming, relative_path, replace_file

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
OTHERS = {
    "F64": "float64", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""dtypes of tensors that a model does not use, such as numbers of positions"""


class Tensors(Mapping[str, np.ndarray]):
    """The tensors of a folder by their names. Each is read when it is asked for, in the dtype of the file."""

    def __init__(self, folder: Path, file_of: dict[str, Path], opened: dict[Path, Any]):
        self.folder = folder
        self._file_of = file_of
        self._opened = opened

    def __getitem__(self, name: str) -> np.ndarray:
        kind = self.dtype(name)
        require(
            kind in FLOATS.values() or kind in OTHERS.values(),
            f"{self.where(name)} has dtype {kind}: save the model as float32, float16 or bfloat16",
        )
        return self._opened[self._file_of[name]].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def where(self, name: str) -> str:
        """The file and the name of a tensor, for error messages."""
        return f"{relative_path(self._file_of[name])}: tensor {name}"

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """The dtype of a tensor as NumPy spells it; that of safetensors if NumPy has none."""
        found = self._slice(name).get_dtype()
        return {**FLOATS, **OTHERS}.get(found, found)

    def _slice(self, name: str) -> Any:
        return self._opened[self._file_of[name]].get_slice(name)


def read(folder: Path) -> Tensors:
    """Opens the tensors of a folder: model.safetensors, or the files that model.safetensors.index.json names."""
    if (folder / ONE_FILE).is_file():
        opened = {folder / ONE_FILE: _open(folder / ONE_FILE)}
        return Tensors(folder, dict.fromkeys(opened[folder / ONE_FILE].keys(), folder / ONE_FILE), opened)
    if (folder / INDEX).is_file():
        return _read_shards(folder)
    pickles = sorted(path.name for path in folder.glob("*.bin")) + sorted(path.name for path in folder.glob("*.h5"))
    require(
        not pickles,
        f"{relative_path(folder)} has {', '.join(pickles[:1])}, but no {ONE_FILE}, and s2sjax reads only safetensors: "
        "convert it with its class in transformers, CLASS.from_pretrained(DIR).save_pretrained(DIR)",
    )
    raise UserError(f"{relative_path(folder)} has no {ONE_FILE}: name the folder of a model of transformers")


def _read_shards(folder: Path) -> Tensors:
    index = folder / INDEX
    weight_map: Any = read_json(index).get("weight_map")
    require(
        isinstance(weight_map, dict) and all(isinstance(name, str) for name in weight_map.values()),
        f"{relative_path(index)} has no weight_map of tensors and files: download it again",
    )
    opened: dict[Path, Any] = {}
    for tensor, name in weight_map.items():
        require(
            Path(name).name == name and name.endswith(".safetensors") and "\\" not in name and "\0" not in name,
            f"{relative_path(index)}: tensor {tensor} is in {name!r}, which is not a safetensors file of this folder",
        )
        path = folder / name
        require(path.is_file(), f"{relative_path(path)} with tensor {tensor} is missing: download it again")
        if path not in opened:
            opened[path] = _open(path)
    file_of = {tensor: folder / name for tensor, name in weight_map.items()}
    found = {(tensor, path) for path, file in opened.items() for tensor in file.keys()}  # noqa: SIM118, not a dict
    for tensor, path in sorted(found ^ set(file_of.items())):
        place = "is not in it" if (tensor, path) not in found else f"is not in {INDEX}"
        raise UserError(f"{relative_path(path)}: tensor {tensor} {place}: download both files again")
    return Tensors(folder, file_of, opened)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file with one JSON object."""
    require(path.is_file(), f"{relative_path(path)} is missing: name the folder of a model of transformers")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{relative_path(path)} is not JSON: {one_line(error)}") from error
    require(isinstance(value, dict), f"{relative_path(path)} is not a JSON object: download it again")
    return value


def _open(path: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise UserError("reading safetensors requires a package: pip install 's2sjax[pretrained]'") from error
    try:
        return safe_open(path, "numpy")
    except SafetensorError as error:
        reason = _first_wrong_tensor(path) or one_line(error)
        raise UserError(f"{relative_path(path)} is damaged: {reason}; download it again") from error


def _first_wrong_tensor(path: Path) -> str:
    """Names the first tensor that contradicts its file, which has a size, a header and the data; "" if none is found.

    It only explains an error of the library: it allocates no more than the file has, and trusts nothing.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if start.startswith(b"version "):
            return "it is a pointer of Git LFS"
        if length > size - 8:
            return ""
        try:
            header = json.loads(file.read(length))
            spans = sorted((*entry["data_offsets"], name) for name, entry in header.items() if name != "__metadata__")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return ""
    data, place = size - 8 - length, 0
    for begin, end, name in spans:
        if not place == begin <= end <= data:
            return f"tensor {name} is at bytes {begin} to {end} of {data}, but should begin at {place}"
        place = end
    return ""


def write(
    folder: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None,
    shard_bytes: float = 5e9,
) -> list[Path]:  # fmt: skip
    """Writes tensors as transformers does: one file, or several with an index if they exceed `shard_bytes`.

    The files are complete when they get their names. Returns their paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    present = sorted(path.name for path in folder.glob("model*.safetensors*"))
    require(not present, f"{relative_path(folder)} already has {', '.join(present[:1])}: name another folder")
    shards = _shards(tensors, shard_bytes)
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    names = names if len(shards) > 1 else [ONE_FILE]
    for name, shard in zip(names, shards):
        write_file(folder / name, {tensor: tensors[tensor] for tensor in shard}, metadata)
    if len(shards) > 1:
        total = sum(array.nbytes for array in tensors.values())
        weight_map = {tensor: name for name, shard in zip(names, shards) for tensor in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        replace_file(folder / INDEX, json.dumps(index, indent=2) + "\n")
    return [folder / name for name in names]


def write_file(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Writes one file, which is complete when it gets its name."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    content = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    with naming(path):
        draft.touch()
        mode = draft.stat().st_mode  # that of any new file: save_file lets only its owner read
        try:
            save_file(content, draft, dict(metadata or {"format": "pt"}))
        except SafetensorError as error:
            draft.unlink(missing_ok=True)
            raise UserError(f"{relative_path(path)} cannot be written ({one_line(error)}): free some space") from None
        draft.chmod(mode)
    os.replace(draft, path)


def _shards(tensors: Mapping[str, np.ndarray], shard_bytes: float) -> list[list[str]]:
    """The names of the tensors of each file, in alphabetical order: as many in a file as `shard_bytes` allows."""
    shards: list[list[str]] = [[]]
    size = 0
    for name in sorted(tensors):
        nbytes = tensors[name].nbytes
        if shards[-1] and size + nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += nbytes
    return shards
