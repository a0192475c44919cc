"""Reads the weights of a Hugging Face folder as parameters of s2sjax.

    imported = load(folder, vocabulary.foreign)
    model = models.build(imported.settings, vocabulary.size, vocabulary.size)
    logits = model.apply({"params": imported.params}, source, target)

The ids of s2sjax are not those of the folder: vocabulary.foreign[i] is the folder's id for our id i.
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.config.models.specs import Tie
from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.files import relative_path
from s2sjax.interop.correspondence import Foreign, Row, export_parameter, import_parameter, put
from s2sjax.interop.families import bart
from s2sjax.interop.families.family import ExportedFamily
from s2sjax.interop.formats import (
    Ids,
    Imported,
    Origin,
    bias_rows,
    bits,
    family_of,
    prefix_of,
    table_row,
    vocabularies_of,
)
from s2sjax.interop.safetensors_files import FLOATS, Tensors, read, read_json


def load(folder: Path | str, foreign: Ids) -> Imported:
    """Reads config.json and the tensors of a folder."""
    folder = Path(folder)
    hf_config = read_json(folder / "config.json")
    family = family_of(hf_config)
    settings = family.settings(hf_config)
    _check_ids(family, hf_config, settings, foreign)
    vocabularies = vocabularies_of(foreign)
    reader = Reader(folder, read(folder))
    prefix = prefix_of(family, reader.tensors)
    shared = np.array_equal(vocabularies["source"], vocabularies["target"])
    tie, tables = _tied_tables(reader, family, hf_config, prefix, shared)
    # Most models have a bias of zeros, which is no parameter: transformers does not train it either.
    biased = family.bias is not None and family.bias in reader.tensors and bool(reader.tensors[family.bias].any())
    settings = config.replace(family.with_tie(settings, tie), output_bias=biased)
    rows = [table_row(settings, role, tables[role], vocabularies) for role in _read_tables(settings)]
    rows += [*bias_rows(settings, family, vocabularies), *family.rows(settings, prefix)]
    for row in rows:
        reader.expect(row)
    reader.check_rest(family, settings, prefix)
    params: dict[str, Any] = {}
    for row in rows:
        value = import_parameter(row, reader.tensors.__getitem__, vocabularies)
        _keep_remainder(reader, row, value, vocabularies)
        put(params, row.ours, value)
    dtypes = {name: reader.tensors.dtype(name) for name in sorted(reader.tensors)}
    most_frequent = Counter(dtypes.values()).most_common(1)[0][0]
    return Imported(settings, params, most_frequent, Origin(family.model_type, hf_config, tie, dtypes, reader.unused))


def _check_ids(
    family: ExportedFamily, hf_config: Mapping[str, Any], settings: config.Transformer, foreign: Ids
) -> None:
    """Raises a UserError unless the ids of the vocabulary are those of config.json."""
    c = family.complete(hf_config)
    require(
        c.get("share_encoder_decoder_embeddings") is not False or isinstance(foreign, tuple),
        "config.json: share_encoder_decoder_embeddings is false, so the model has two vocabularies: give the ids of "
        "both",
    )
    vocabularies = vocabularies_of(foreign)
    require(
        c.get("share_encoder_decoder_embeddings") is False
        or np.array_equal(vocabularies["source"], vocabularies["target"]),
        f"the tokenizer has two vocabularies, and the {family.model_type} model of config.json one for both: the files "
        "are of different models",
    )
    names = {"pad_token_id": PAD, "eos_token_id": EOS}
    for side, ids in vocabularies.items():
        entry = "decoder_vocab_size" if side == "target" and c.get("decoder_vocab_size") else "vocab_size"
        require(
            len(ids) == c[entry] and np.array_equal(np.sort(ids), np.arange(len(ids))),
            f"config.json: {entry} is {c[entry]}, and the vocabulary has {len(ids)} ids: the tokenizer is of another "
            "model",
        )
        started = {"decoder_start_token_id": settings.start_token} if side == "target" else {}
        for name, id in (names | started).items():
            found = int(ids[id])
            require(
                found == c[name],
                f"config.json: {name} is {c[name]}, and that of the tokenizer {found}: correct one of them",
            )


class Reader:
    """Checks the tensors of a folder, and collects those that the model does not use."""

    def __init__(self, folder: Path, tensors: Tensors):
        self.folder = folder
        self.tensors = tensors
        self.used: set[str] = set()
        self.unused: dict[str, np.ndarray] = {}

    def missing(self, name: str) -> str:
        return (
            f"{relative_path(self.folder)}: tensor {name} is missing: config.json is of another model, or the download "
            "was incomplete"
        )

    def expect(self, row: Row) -> None:
        """Raises a UserError unless the tensors of a row exist, in the shape of the settings and with a float dtype."""
        for name in row.names():
            require(name in self.tensors, self.missing(name))
            where, shape, kind = self.tensors.where(name), self.tensors.shape(name), self.tensors.dtype(name)
            require(
                shape == row.shape,
                f"{where} has shape {list(shape)}, but by config.json it should have {list(row.shape)}: the files are "
                "of different models",
            )
            require(
                kind in FLOATS.values(), f"{where} has dtype {kind}: save the model as float32, float16 or bfloat16"
            )
            self.used.add(name)

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors are equal, bit for bit."""
        if one == other:
            return True
        x, y = self.tensors[one], self.tensors[other]
        return x.shape == y.shape and x.dtype == y.dtype and bool(np.array_equal(bits(x), bits(y)))

    def check_rest(self, family: ExportedFamily, settings: config.Transformer, prefix: str) -> None:
        """Keeps the tensors that the model does not use. Raises a UserError for one that it should use."""
        for name in sorted(set(self.tensors) - self.used - set(family.roles(prefix))):
            require(
                name == family.bias or self._is_ignored(name, family, settings, prefix),
                f"{self.tensors.where(name)} has no place in the {family.model_type} model of config.json: the files "
                "are of different models",
            )
            self.unused[name] = self.tensors[name]

    def _is_ignored(self, name: str, family: ExportedFamily, settings: config.Transformer, prefix: str) -> bool:
        """Whether a tensor is the table of sinusoids, or one that transformers ignores."""
        sinusoids = {f"{prefix}{side}.embed_positions.weight" for side in ("encoder", "decoder")}
        if settings.positions != "sinusoidal" or name not in sinusoids:
            return re.fullmatch(family.never_used, name) is not None
        table = self.tensors[name].astype(np.float32)
        usual = bart.sinusoids(len(table), settings.width, settings.sinusoids)
        return table.shape == usual.shape and bool(np.abs(table - usual).max() < 1e-2)  # 2^-8 in bfloat16


def _tied_tables(
    reader: Reader, family: ExportedFamily, hf_config: Mapping[str, Any], prefix: str, shared: bool = True
) -> tuple[Tie, dict[str, str]]:
    """Which of the tables over the vocabulary are equal, and the name of the tensor of each role.

    Files have one, several or all of the tables that are tied. Those that config.json ties must be equal.
    shared: whether source and target have one vocabulary. Tables over different vocabularies are not tied.
    """
    roles = family.roles(prefix)
    separate = family.separate(hf_config)
    present = [name for name in roles if name in reader.tensors]
    require(bool(present), reader.missing(roles.shared))
    tied = [name for role, name in roles._asdict().items() if role not in separate and name in present]
    for name in tied[1:]:
        require(
            reader.same(tied[0], name),
            f"{reader.tensors.where(name)} differs from {tied[0]}, but config.json ties them: set tie_word_embeddings "
            "to false if they are meant to differ",
        )
    first = lambda *names: next(name for name in (*names, *present) if name in present)
    encoder = first(*([roles.encoder] if "encoder" in separate else []), roles.shared)
    decoder = first(*([roles.decoder] if "decoder" in separate else []), roles.shared)
    head = first(roles.head, decoder) if "head" in separate else decoder
    if roles.shared in present and not reader.same(roles.shared, decoder):
        reader.unused[roles.shared] = reader.tensors[roles.shared]
    require(shared or encoder != decoder, reader.missing(roles.encoder if decoder == roles.decoder else roles.decoder))
    embeddings, output = shared and reader.same(encoder, decoder), reader.same(head, decoder)
    tie: Tie = ("all" if output else "embeddings") if embeddings else ("output" if output else "none")
    return tie, {"encoder": encoder, "decoder": decoder, "head": head}


def _read_tables(settings: config.Transformer) -> list[str]:
    """The roles whose tensors are parameters of their own."""
    return ["decoder"] + ["encoder"] * (not settings.ties_embeddings) + ["head"] * (not settings.ties_output)


def _keep_remainder(reader: Reader, row: Row, value: np.ndarray, vocabularies: Foreign) -> None:
    """Keeps what a parameter does not have of its tensors: skipped rows, and the errors of an inexact factor.

    A factor that is no power of two is not exact in float32: (x * f) / f may differ from x in the last bit. The
    difference is added again at export; for a parameter that was trained on, that is a rounding error.
    """
    if row.skip:
        for name in row.names():
            reader.unused[f"{name}[:{row.skip}]"] = reader.tensors[name][: row.skip]
    if row.factor == 1 or np.log2(row.factor) % 1 == 0:
        return
    for name, again in export_parameter(row, value, vocabularies, lambda name: None):
        stored = reader.tensors[name]
        ulps = bits(stored) - bits(again.astype(stored.dtype))
        if ulps.any():
            reader.unused[f"{name}[ulps]"] = ulps.astype(np.int8)
