"""Safetensors are read as they were written; a bad file is one line that names the file and the tensor."""

import json
import re
import struct

import ml_dtypes
import numpy as np
import pytest

from s2sjax.errors import UserError
from s2sjax.interop import safetensors_files

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1, -0.0, 3], ml_dtypes.bfloat16),
    "c": np.ones((4, 1), np.float16),
    "d": np.array([7], np.int64),
}


def expect_tensors(found) -> None:
    assert set(found) == set(TENSORS) and len(found) == len(TENSORS)
    for name, value in TENSORS.items():
        assert found[name].dtype == value.dtype and found[name].tobytes() == value.tobytes()
        assert found.shape(name) == value.shape and found.dtype(name) == value.dtype.name


def test_tensors_are_read_as_they_were_written(tmp_path):
    [path] = safetensors_files.write(tmp_path, TENSORS | {"a": np.asfortranarray(TENSORS["a"])})
    assert path.name == "model.safetensors" and [path] == list(tmp_path.iterdir())
    expect_tensors(safetensors_files.read(tmp_path))
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_large_models_have_several_files(tmp_path):
    paths = safetensors_files.write(tmp_path, TENSORS, shard_bytes=30)
    assert [path.name for path in paths] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 24 + 6 + 8 + 8}
    assert index["weight_map"] == {"a": paths[0].name, "b": paths[0].name, "c": paths[1].name, "d": paths[1].name}
    expect_tensors(safetensors_files.read(tmp_path))


def test_files_are_not_overwritten(tmp_path):
    safetensors_files.write(tmp_path, TENSORS)
    with pytest.raises(UserError, match=r"already has model\.safetensors: name another folder"):
        safetensors_files.write(tmp_path, TENSORS, shard_bytes=10)


def expect_error(folder, *parts: str) -> None:
    with pytest.raises(UserError) as error:
        dict(safetensors_files.read(folder))
    assert "\n" not in str(error.value)
    for part in parts:
        assert re.search(part, str(error.value)), (part, str(error.value))


def test_pickles_are_refused(tmp_path):
    expect_error(tmp_path, r"has no model\.safetensors: name the folder")
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    expect_error(tmp_path, r"has pytorch_model\.bin", r"from_pretrained\(DIR\)\.save_pretrained\(DIR\)")


def change_header(folder, change) -> None:
    """Rewrites the header of a file."""
    [path] = safetensors_files.write(folder, {"a": TENSORS["a"], "c": TENSORS["c"]})
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    changed = change(header) or header
    text = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


HEADERS = {
    "beyond the end": (lambda h: h["c"].update(data_offsets=[24, 99999]), "tensor c is at bytes 24 to 99999 of 32"),
    "overlap": (lambda h: h["c"].update(data_offsets=[8, 16]), "tensor c is at bytes 8 to 16 of 32"),
    "backwards": (lambda h: h["c"].update(data_offsets=[24, 8]), "tensor c is at bytes 24 to 8 of 32"),
    "wrong size": (lambda h: h["c"].update(shape=[5]), "damaged"),
    "overflow": (lambda h: h["c"].update(shape=[2**40, 2**40]), "damaged"),
    "negative": (lambda h: h["c"].update(shape=[-4]), "damaged"),
    "unknown dtype": (lambda h: h["c"].update(dtype="X9"), "damaged"),
    "a list": (lambda h: b"[1, 2]", "damaged"),
    "no JSON": (lambda h: b"{bad", "damaged"),
    "no text": (lambda h: b"\xff\xfe", "damaged"),
    "deep": (lambda h: b"[" * 100_000, "damaged"),
    "dtype of eight bits": (lambda h: h["c"].update(dtype="F8_E4M3", shape=[8]), "tensor c has dtype F8_E4M3"),
}


@pytest.mark.parametrize("change, named", HEADERS.values(), ids=HEADERS)
def test_a_malicious_header_is_one_line(change, named, tmp_path):
    change_header(tmp_path, change)
    expect_error(tmp_path, r"model\.safetensors", named)


@pytest.mark.parametrize("kept", [0, 3, 8, 50, -1, -9])
def test_a_truncated_file_is_one_line(kept, tmp_path):
    [path] = safetensors_files.write(tmp_path, TENSORS)
    path.write_bytes(path.read_bytes()[:kept])
    expect_error(tmp_path, r"model\.safetensors is damaged", "tensor" if kept < 0 else "download it again")


@pytest.mark.parametrize("length", [2**63 + 5, 2**40, 200])
def test_the_length_of_a_header_is_not_trusted(length, tmp_path):
    [path] = safetensors_files.write(tmp_path, {"c": TENSORS["c"]})
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    expect_error(tmp_path, r"model\.safetensors is damaged")


def test_a_pointer_of_git_lfs_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    expect_error(tmp_path, "it is a pointer of Git LFS; download it again")


def shards(folder) -> dict:
    safetensors_files.write(folder, TENSORS, shard_bytes=30)
    return json.loads((folder / "model.safetensors.index.json").read_text())


INDICES = {
    "outside": (lambda page: page["weight_map"].update(d="../model.safetensors"), r"tensor d is in '\.\./model"),
    "absolute": (lambda page: page["weight_map"].update(d="/etc/x.safetensors"), "tensor d is in '/etc/x"),
    "pickle": (lambda page: page["weight_map"].update(d="pytorch_model.bin"), "tensor d is in 'pytorch_model.bin'"),
    "missing file": (lambda page: page["weight_map"].update(d="x.safetensors"), "with tensor d is missing"),
    "missing tensor": (
        lambda page: page["weight_map"].update(e="model-00001-of-00002.safetensors"), "tensor e is not in it"
    ),
    "unnamed tensor": (lambda page: page["weight_map"].pop("b"), r"tensor b is not in model\.safetensors\.index\.json"),
    "wrong file": (lambda page: page["weight_map"].update(d="model-00001-of-00002.safetensors"), "tensor d is not in"),
    "no map": (lambda page: page.pop("weight_map"), "has no weight_map"),
    "numbers": (lambda page: page["weight_map"].update(d=3), "has no weight_map"),
}  # fmt: skip


@pytest.mark.parametrize("change, named", INDICES.values(), ids=INDICES)
def test_an_index_names_files_of_its_folder(change, named, tmp_path):
    page = shards(tmp_path)
    change(page)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(page))
    expect_error(tmp_path, named)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_an_index_is_one_object(text, tmp_path):
    shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    expect_error(tmp_path, r"index\.json is not")
