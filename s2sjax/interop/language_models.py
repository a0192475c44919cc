"""The weights of a GPT-2 folder as parameters of a language model (tasks/language_model), and back.

    found = load_language_model(folder, vocabulary.foreign)
    hf_config, tensors = dump_language_model(found.settings, params, vocabulary.foreign, found.origin)

The vocabulary has ids beyond those of the folder: <pad>, <sos> and <unk>, which the model never writes, and of which
only <pad> is read, where it changes nothing. Their vectors are zeros here, and an export leaves them out.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.special_tokens import EOS
from s2sjax.interop.correspondence import Row, import_parameter, put
from s2sjax.interop.dump_weights import changed_config, check_dtype, dump_rows, unread_tensors
from s2sjax.interop.families.gpt2 import FAMILY
from s2sjax.interop.formats import Imported, Origin, prefix_of, require_format
from s2sjax.interop.load_weights import Reader, _tied_tables
from s2sjax.interop.safetensors_files import read, read_json

TABLES = {"decoder": "embedding/table", "head": "output/table"}
"""the parameters over the vocabulary, by the role of their tensors"""


def load_language_model(folder: Path | str, foreign: np.ndarray) -> Imported:
    """Reads config.json and the tensors of a folder. foreign: the folder's id of each id of s2sjax."""
    folder = Path(folder)
    hf_config = read_json(folder / "config.json")
    settings, size = FAMILY.settings(hf_config), FAMILY.complete(hf_config)["vocab_size"]
    _check_ids(hf_config, foreign)
    reader = Reader(folder, read(folder))
    prefix = prefix_of(FAMILY, reader.tensors)
    tie, names = _tied_tables(reader, FAMILY, hf_config, prefix)
    settings = config.replace(settings, tie=tie)
    tables, rows = _tables(settings, names, size), FAMILY.rows(settings, prefix)
    for row in (*tables, *rows):
        reader.expect(row)
    reader.check_rest(FAMILY, settings, prefix)
    more = np.zeros((len(foreign) - size, settings.width), np.float32)
    whole = lambda name: np.concatenate([reader.tensors[name].astype(np.float32), more])
    params: dict[str, Any] = {}
    for row in tables:
        put(params, row.ours, import_parameter(row, whole, {"target": foreign}))
    for row in rows:
        put(params, row.ours, import_parameter(row, reader.tensors.__getitem__, {}))
    attention = params["blocks"]["stack"]["attention"]
    attention |= _split(attention.pop("query_key_value"), settings.width)
    dtypes = {name: reader.tensors.dtype(name) for name in sorted(reader.tensors)}
    most_frequent = Counter(dtypes[name] for name in reader.used).most_common(1)[0][0]
    origin = Origin(FAMILY.model_type, hf_config, tie, dtypes, reader.unused)
    return Imported(settings, params, most_frequent, origin)


def dump_language_model(
    settings: config.Transformer, params: Mapping[str, Any], foreign: np.ndarray, origin: Origin,
    dtype: str | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:  # fmt: skip
    """Returns the entries of config.json and the tensors of a model that was imported, or fine-tuned from one.

    dtype: float32, float16 or bfloat16; None for that of the origin. With the unchanged parameters of an imported
    model, all is as in the original, bit for bit.
    """
    check_dtype(dtype)
    require_format(FAMILY.model_type, FAMILY.differences(settings))
    size = FAMILY.complete(origin.hf_config)["vocab_size"]
    prefix, ties = prefix_of(FAMILY, origin.dtypes), settings.tie == "all"
    roles = FAMILY.roles(prefix)._asdict()
    tables = _tables(settings, roles, len(foreign))
    if ties and origin.tie == "all" and roles["head"] in origin.dtypes:
        tables.append(replace(tables[0], theirs=(roles["head"],)))
    stack = dict(params["blocks"]["stack"])
    stack["attention"] = stack["attention"] | {"query_key_value": _join(stack["attention"])}
    params = {**params, "blocks": {"stack": stack}}
    tensors = dump_rows([*tables, *FAMILY.rows(settings, prefix)], params, {"target": foreign}, origin, dtype)
    tensors |= {name: tensors[name][:size] for row in tables for name in row.theirs}
    tensors |= unread_tensors(origin, tensors, dtype)
    return _exported_config(settings, origin, size, dtype), dict(sorted(tensors.items()))


def _check_ids(hf_config: Mapping[str, Any], foreign: np.ndarray) -> None:
    """Raises a UserError unless the ids of the vocabulary are those of config.json."""
    c = FAMILY.complete(hf_config)
    require(
        len(foreign) >= c["vocab_size"] and c["eos_token_id"] == foreign[EOS],
        f"config.json: eos_token_id is {c['eos_token_id']} of {c['vocab_size']} ids, and that of the tokenizer "
        f"{foreign[EOS]}: the tokenizer is of another model",
    )


def _tables(settings: config.Transformer, names: Mapping[str, str], size: int) -> list[Row]:
    """The rows of the embedding and of an output layer with a matrix of its own, over `size` ids."""
    roles = ["decoder"] if settings.tie == "all" else ["decoder", "head"]
    return [Row(TABLES[role], (names[role],), (size, settings.width), vocabulary="target") for role in roles]


def _split(joined: Mapping[str, np.ndarray], width: int) -> dict[str, dict[str, np.ndarray]]:
    """Splits the parameters of queries, keys and values: [.., 3W] -> [.., W] and [.., 2W]."""
    query, key_value = {}, {}
    for name, leaf in joined.items():
        query[name], key_value[name] = (np.ascontiguousarray(part) for part in np.split(leaf, [width], axis=-1))
    return {"query": query, "key_value": key_value}


def _join(attention: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The inverse of `_split`."""
    query, key_value = attention["query"], attention["key_value"]
    return {name: np.concatenate([query[name], key_value[name]], axis=-1) for name in query}


def _exported_config(settings: config.Transformer, origin: Origin, size: int, dtype: str | None) -> dict[str, Any]:
    """The entries of the origin, with those that the settings have changed since."""
    imported = config.replace(FAMILY.settings(origin.hf_config), tie=origin.tie)
    sizes, ids = (size, size), np.arange(size)
    before, after = (FAMILY.hf_config(each, sizes, ids, dtype or "float32") for each in (imported, settings))
    changed = {name: value for name, value in after.items() if value != before[name]}
    return changed_config(origin, changed, dtype)
