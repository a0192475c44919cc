"""Reads the weights of a Whisper as parameters of transcription (tasks/transcription).

found = load_whisper(folder, vocabulary.foreign)
found.params["source_frontend"], found.params["encoder"]
"""

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.special_tokens import EOS, SOS
from s2sjax.interop.correspondence import Row, import_parameter, put
from s2sjax.interop.families import bart, whisper
from s2sjax.interop.formats import Origin, prefix_of
from s2sjax.interop.load_weights import Reader
from s2sjax.interop.safetensors_files import read, read_json

NEVER_USED = r".*embed_positions\.weight|proj_out\.weight"
"""tensors that may remain: a table of sinusoids, and the embedding under its other name"""


class ImportedWhisper(NamedTuple):
    """A Whisper of a Hugging Face folder."""

    settings: config.Pair
    params: dict[str, Any]
    """nested parameters in float32, as the encoder-decoder of transcription has them"""
    features: int
    """number of features of a frame"""
    frames: int
    """number of frames that the encoder reads"""
    dtype: str
    """dtype of most tensors of the files"""
    origin: Origin
    """what an export needs"""


def load_whisper(folder: Path | str, foreign: np.ndarray) -> ImportedWhisper:
    """Reads config.json and the tensors of a folder. foreign: the folder's id of each id of s2sjax."""
    folder = Path(folder)
    hf_config = read_json(folder / "config.json")
    _check_ids(whisper.FAMILY.complete(hf_config), foreign)
    reader = Reader(folder, read(folder))
    prefix = prefix_of(whisper.FAMILY, reader.tensors)
    settings, sizes = whisper.settings_of(hf_config, _has_sinusoids(reader, hf_config, prefix))
    table = whisper.table_row(settings, prefix, len(foreign))
    params: dict[str, Any] = {}
    for row in (table, *whisper.rows(settings, sizes.features, prefix)):
        _expect(reader, row)
        put(params, row.ours, import_parameter(row, partial(_tensor, reader, row.shape), {"target": foreign}))
    _check_rest(reader, table.theirs[0])
    dtype = Counter(reader.tensors.dtype(name) for name in reader.used).most_common(1)[0][0]
    dtypes = {name: reader.tensors.dtype(name) for name in sorted(reader.tensors)}
    unused = {name: reader.tensors[name] for name in dtypes if name not in (whisper.OUTPUT, *reader.used)}
    origin = Origin(whisper.FAMILY.model_type, hf_config, "all", dtypes, unused)
    return ImportedWhisper(settings, params, sizes.features, whisper.STRIDE * sizes.places, dtype, origin)


def _check_ids(c: dict[str, Any], foreign: np.ndarray) -> None:
    """Raises a UserError unless the ids of the vocabulary are those of config.json."""
    require(
        len(foreign) == c["vocab_size"],
        f"config.json: vocab_size is {c['vocab_size']}, and the vocabulary has {len(foreign)} ids: the tokenizer is of "
        "another model",
    )
    for name, id in (("eos_token_id", EOS), ("decoder_start_token_id", SOS)):
        found = int(foreign[id])
        require(
            found == c[name],
            f"config.json: {name} is {c[name]}, and that of the tokenizer {found}: correct one of them",
        )


def _has_sinusoids(reader: Reader, hf_config: dict[str, Any], prefix: str) -> bool:
    """Whether the positions of the encoder are sinusoids, up to rounding; if not, the table is taken as it is."""
    settings, sizes = whisper.settings_of(hf_config, False)
    name, width = f"{prefix}{whisper.PLACES}", settings.encoder.embedding_size
    _expect(reader, Row("", (name,), (sizes.places, width)))
    reader.used.discard(name)
    table = reader.tensors[name].astype(np.float32)
    bar = 1e-2 if reader.tensors.dtype(name) == "bfloat16" else 1e-3
    return bool(np.abs(table - bart.sinusoids(sizes.places, width, "tensor2tensor")).max() < bar)


def _expect(reader: Reader, row: Row) -> None:
    """Raises a UserError unless the tensors of a row exist, but for the biases that no file has."""
    absent = [name for name in row.theirs if name.endswith(whisper.WITHOUT_BIAS)]
    present = tuple(name for name in row.theirs if name not in absent)
    reader.expect(Row(row.ours, present, row.shape, row.layers))


def _tensor(reader: Reader, shape: tuple[int, ...], name: str) -> np.ndarray:
    return np.zeros(shape, np.float32) if name.endswith(whisper.WITHOUT_BIAS) else reader.tensors[name]


def _check_rest(reader: Reader, table: str) -> None:
    """Raises a UserError for a tensor that the model should have read."""
    for name in sorted(set(reader.tensors) - reader.used):
        require(
            re.fullmatch(NEVER_USED, name) is not None,
            f"{reader.tensors.where(name)} has no place in the whisper model of config.json: the files are of "
            "different models",
        )
        require(
            name != whisper.OUTPUT or reader.same(name, table),
            f"{reader.tensors.where(name)} differs from {table}: a model whose output layer is not its embedding "
            "cannot be imported",
        )
