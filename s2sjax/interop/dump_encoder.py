"""Writes an encoder that started from an imported BERT or RoBERTa, with its output layer, as a model of transformers.

    hf_config, tensors = dump_encoder(found.settings, params, vocabulary.foreign, found.origin)
    hf_config, tensors = dump_encoder(settings, params, foreign, origin, "ForTokenClassification", ["D", "N"])

The first has the output layers of the original. With unchanged parameters, it is the original, bit for bit. The second
is another class of transformers, with the labels of its output layer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from s2sjax import config
from s2sjax.interop.correspondence import Row
from s2sjax.interop.dump_weights import changed_config, check_dtype, dump_rows, parameter_of, unread_tensors
from s2sjax.interop.families.bert import FAMILIES, POSITIONS, Bert, former_names
from s2sjax.interop.formats import Origin, check_unchanged
from s2sjax.interop.safetensors_files import FLOATS

End = Literal["ForPreTraining", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]
"""end of the name of a class of transformers, which begins with Bert, Roberta or XLMRoberta"""


def dump_encoder(
    settings: config.Transformer, params: Mapping[str, Any], foreign: np.ndarray, origin: Origin,
    end: End | None = None, labels: Sequence[str] = (), dtype: str | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:  # fmt: skip
    """Returns the entries of config.json and the tensors of a model.

    end: the class of transformers; None for the output layers of the original. labels: those of a classifier or a
    tagger. dtype: float32, float16 or bfloat16; None for that of the origin.
    """
    check_dtype(dtype)
    family, size = FAMILIES[origin.model_type], len(foreign)
    complete = family.complete(origin.hf_config)
    imported = family.settings(complete)
    check_unchanged("model.encoder", settings, imported)
    prefix = family.name if end else _prefix(family, origin)
    head = _head(family, settings, size, end, len(labels)) if end else _own_head(family, settings, size, origin)
    params = _as_stored(params, family, settings, origin)
    kinds = family.kinds(settings, len(params["kinds"]), prefix)
    rows = [family.table(settings, size, prefix), *family.rows(settings, prefix), kinds, *head]
    rows = [replace(row, skip=0) for row in rows]
    if end:
        kind = dtype or Counter(each for each in origin.dtypes.values() if each in FLOATS.values()).most_common(1)[0][0]
        tensors = dump_rows(rows, params, {"source": foreign}, None, kind)
    else:
        rows = former_names([*rows, *_repeated(rows, family, origin)], origin.dtypes)
        tensors = dump_rows(rows, params, {"source": foreign}, origin, dtype)
        tensors |= unread_tensors(origin, tensors, dtype)
    entries = {"hidden_dropout_prob": settings.dropout, "type_vocab_size": kinds.shape[0]}
    before = {"hidden_dropout_prob": imported.dropout, "type_vocab_size": complete["type_vocab_size"]}
    changed = {name: value for name, value in entries.items() if value != before[name]}
    changed |= _entries_of_class(family, end, labels) if end else {}
    page = changed_config(origin, changed, dtype)
    if labels:  # these are about the labels of the original
        page = {name: value for name, value in page.items() if name not in ("num_labels", "problem_type")}
    return page, dict(sorted(tensors.items()))


def heads_of(origin: Origin) -> set[str]:
    """Which output layers of an original are read: "words" for masked words, "next" for next sentences."""
    family = FAMILIES[origin.model_type]
    settings = family.settings(origin.hf_config)
    rows = {"words": family.words(settings, 1), "next": family.next_text(settings)}
    read = origin.dtypes.keys() - origin.unused.keys()
    return {
        name for name, each in rows.items()
        if all(tensor in read for row in former_names(each, origin.dtypes) for tensor in row.names())
    }  # fmt: skip


def _prefix(family: Bert, origin: Origin) -> str:
    """The start of the names of the original."""
    return family.name if any(name.startswith(family.name) for name in origin.dtypes) else ""


def _head(family: Bert, settings: config.Transformer, size: int, end: End, labels: int) -> list[Row]:
    """The rows of the output layers of a class."""
    if end == "ForTokenClassification":
        return family.tags(settings, labels)
    if end == "ForSequenceClassification":
        return family.labels(settings, labels)
    words = family.words(settings, size)
    return (
        words if end == "ForMaskedLM" else [*words, *family.pooler(settings, family.name), *family.next_text(settings)]
    )


def _own_head(family: Bert, settings: config.Transformer, size: int, origin: Origin) -> list[Row]:
    """The rows of the output layers that the original has."""
    read, found = origin.dtypes.keys() - origin.unused.keys(), heads_of(origin)
    rows = family.words(settings, size) if "words" in found else []
    rows += family.next_text(settings) if "next" in found else []
    return rows + [row for row in family.pooler(settings, _prefix(family, origin)) if row.theirs[0] in read]


def _repeated(rows: Iterable[Row], family: Bert, origin: Origin) -> list[Row]:
    """The rows of the tensors that repeat a parameter."""
    read, by_path = origin.dtypes.keys() - origin.unused.keys(), {row.ours: row for row in rows}
    there = {name: ours for name, ours in family.aliases.items() if name in read and ours in by_path}
    return [replace(by_path[ours], theirs=(name,)) for name, ours in there.items()]


def _as_stored(params: Mapping[str, Any], family: Bert, settings: config.Transformer, origin: Origin) -> dict[str, Any]:
    """The parameters as a file has them: the vectors of kinds of texts are not among the positions.

    The vector of the first kind is that of the original. RoBERTa has no second kind, and gets one if it was trained.
    """
    prefix = _prefix(family, origin)
    place = next(row for row in family.rows(settings, prefix) if row.ours == POSITIONS)
    whole = lambda row: np.array(origin.unused[f"{row.theirs[0]}[:]"], np.float32)
    positions, kinds = whole(place), whole(family.kinds(settings, 1, prefix))
    real = positions[family.skip :]
    real[:] = _moved(real, real + kinds[0], parameter_of(params, place))
    if "frontend" in params:
        second = np.asarray(params["frontend"]["second"], np.float32)
        if len(kinds) == 2:
            kinds[1] = _moved(kinds[1], kinds[1] - kinds[0], second)
        elif second.any():
            kinds = np.stack([kinds[0], kinds[0] + second])
    encoder = {**params["encoder"], "positions": {**params["encoder"]["positions"], "table": positions}}
    found = {**params, "encoder": encoder, "kinds": kinds}
    if "follows" in params:  # the first label of BERT is the second here
        found["follows"] = {name: np.asarray(leaf)[..., ::-1] for name, leaf in params["follows"].items()}
    return found


def _moved(original: np.ndarray, imported: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """The original, moved as far as training has moved what was computed from it; the same bits if it has not."""
    return np.where(trained == imported, original, original + (trained - imported))


def _entries_of_class(family: Bert, end: End, labels: Sequence[str]) -> dict[str, Any]:
    """The entries of config.json that name a class and its labels."""
    found: dict[str, Any] = {"architectures": [family.class_name(end)]}
    if labels:
        found["id2label"] = {str(number): label for number, label in enumerate(labels)}
        found["label2id"] = {label: number for number, label in enumerate(labels)}
    else:
        found["tie_word_embeddings"] = True
    return found
