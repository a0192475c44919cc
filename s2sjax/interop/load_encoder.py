"""Reads the weights of a BERT or a RoBERTa as parameters of pre-training (tasks/pretraining/bert.py).

    found = load_encoder(folder, vocabulary.foreign)
    found.params["encoder"], found.params["embedding"]      also the output layers, if the file has them

An output layer that differs from that of pre-training, such as a classifier, is left out and named in `remarks`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.special_tokens import PAD
from s2sjax.interop.correspondence import Foreign, Row, import_parameter, put
from s2sjax.interop.families.bert import BUFFERS, FAMILIES, HEADS, POSITIONS, Bert, former_names
from s2sjax.interop.formats import Origin
from s2sjax.interop.load_weights import Reader
from s2sjax.interop.safetensors_files import read, read_json


class ImportedEncoder(NamedTuple):
    """An encoder of a Hugging Face folder."""

    settings: config.Transformer
    params: dict[str, Any]
    """nested parameters in float32, as `tasks.pretraining.bert.Bert` has them, as far as the file has them"""
    dtype: str
    """dtype of most tensors of the files"""
    activation: Any
    """activation of the output layer of masked words"""
    has_words: bool
    """whether the output layer of masked words is among the parameters"""
    has_next: bool
    """whether that of next sentences is"""
    remarks: list[str]
    """lines on what was not taken"""
    origin: Origin
    """what an export needs"""


def load_encoder(folder: Path | str, foreign: np.ndarray) -> ImportedEncoder:
    """Reads config.json and the tensors of a folder. foreign: the folder's id of each id of s2sjax."""
    folder = Path(folder)
    hf_config = read_json(folder / "config.json")
    family = FAMILIES[str(hf_config.get("model_type"))]
    settings, complete = family.settings(hf_config), family.complete(hf_config)
    _check_ids(complete, foreign)
    reader, size = Reader(folder, read(folder)), len(foreign)
    prefix = family.name if any(name.startswith(family.name) for name in reader.tensors) else ""
    table = family.table(settings, size, prefix)
    words, pooler, next_text = (
        family.words(settings, size), family.pooler(settings, prefix), family.next_text(settings)
    )  # fmt: skip
    has_words = _has(reader, words) and _repeats(reader, family.output, table.theirs[0])
    has_next = _has(reader, [*pooler, *next_text])
    rows = [table, *family.rows(settings, prefix)]
    rows += (words if has_words else []) + (pooler if _has(reader, pooler) else []) + (next_text if has_next else [])
    kinds = family.kinds(settings, complete["type_vocab_size"], prefix)
    params = _read_rows(reader, [*rows, kinds], {"source": foreign})
    origin = _origin(reader, family, hf_config, [*rows, kinds])
    first, *others = params.pop("kinds")
    params["encoder"]["positions"]["table"] += first
    params["frontend"] = {"second": others[0] - first if others else np.zeros_like(first)}
    if has_next:  # the first label of BERT is the second here
        params["follows"] = {name: np.ascontiguousarray(leaf[..., ::-1]) for name, leaf in params["follows"].items()}
    remarks = _remarks(reader, family, has_words, has_next)
    dtype = Counter(reader.tensors.dtype(name) for name in reader.used).most_common(1)[0][0]
    activation = family.head_activation(hf_config)
    return ImportedEncoder(settings, params, dtype, activation, has_words, has_next, remarks, origin)


def _check_ids(c: Mapping[str, Any], foreign: np.ndarray) -> None:
    """Raises a UserError unless the ids of the vocabulary are those of config.json."""
    size, found = c["vocab_size"], int(foreign[PAD])
    require(
        len(foreign) == size,
        f"config.json: vocab_size is {size}, and the vocabulary has {len(foreign)} ids: the tokenizer is of another "
        "model",
    )
    require(
        c["pad_token_id"] == found,
        f"config.json: pad_token_id is {c['pad_token_id']}, and that of the tokenizer {found}: correct one of them",
    )


def _names(reader: Reader, rows: Iterable[Row]) -> list[Row]:
    return former_names(rows, reader.tensors)


def _has(reader: Reader, rows: Iterable[Row]) -> bool:
    return all(name in reader.tensors for row in _names(reader, rows) for name in row.names())


def _repeats(reader: Reader, output: str, table: str) -> bool:
    """Whether the output layer is the table. A file that does not have it ties them."""
    return output not in reader.tensors or (table in reader.tensors and reader.same(output, table))


def _read_rows(reader: Reader, rows: Iterable[Row], foreign: Foreign) -> dict[str, Any]:
    """The parameters of rows, nested. Raises a UserError for a tensor that is missing or does not fit."""
    rows = _names(reader, rows)
    for row in rows:
        reader.expect(row)
    params: dict[str, Any] = {}
    for row in rows:
        put(params, row.ours, import_parameter(row, reader.tensors.__getitem__, foreign))
    return params


def _origin(reader: Reader, family: Bert, hf_config: dict[str, Any], rows: Iterable[Row]) -> Origin:
    """What an export needs: the tensors that are not read, and those of positions and kinds, which are added up."""
    tensors, theirs = reader.tensors, {row.ours: row for row in _names(reader, rows)}
    same = lambda name, ours: ours in theirs and reader.same(name, theirs[ours].theirs[0])
    repeated = {name for name, ours in family.aliases.items() if name in tensors and same(name, ours)}
    unused = {name: tensors[name] for name in set(tensors) - reader.used - repeated}
    unused |= {f"{name}[:]": tensors[name] for row in (theirs[POSITIONS], theirs["kinds"]) for name in row.theirs}
    dtypes = {name: tensors.dtype(name) for name in sorted(tensors)}
    return Origin(family.model_type, hf_config, "all", dtypes, unused)


def _remarks(reader: Reader, family: Bert, has_words: bool, has_next: bool) -> list[str]:
    """Lines on the output layers. Raises a UserError for a tensor that the encoder should have read."""
    taken = rf"{re.escape(family.output)}|.*decoder\.bias|{BUFFERS}"
    left = sorted(name for name in set(reader.tensors) - reader.used if not (has_words and re.fullmatch(taken, name)))
    for name in left:
        require(
            re.fullmatch(f"{HEADS}|{BUFFERS}", name) is not None,
            f"{reader.tensors.where(name)} has no place in the {family.model_type} model of config.json: the files are "
            "of different models",
        )
    missing = [what for what, has in (("masked words", has_words), ("next sentences", has_next)) if not has]
    remarks = [f"the file has no output layer of {what}: it is new" for what in missing]
    if not any("pooler" in name for name in reader.used):
        remarks.append("the file has no pooler: it is new")
    other = sorted({name.rpartition(".")[0] for name in left if re.fullmatch(HEADS, name)})
    return remarks + ([f"not taken: {', '.join(other)}"] if other else [])
