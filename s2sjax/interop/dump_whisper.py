"""Writes the parameters of transcription as the tensors and the config.json of the Whisper that they started from.

    hf_config, tensors = dump_whisper(found.settings, found.params, vocabulary.foreign, found.origin)

With unchanged parameters, they are the original ones, bit for bit.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from s2sjax import config
from s2sjax.interop.dump_weights import changed_config, check_dtype, dump_rows, unread_tensors
from s2sjax.interop.families import whisper
from s2sjax.interop.formats import Origin, check_unchanged, prefix_of


def dump_whisper(
    settings: config.Pair, params: Mapping[str, Any], foreign: np.ndarray, origin: Origin, dtype: str | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the entries of config.json and the tensors.

    dtype: float32, float16 or bfloat16; None for that of the origin.
    """
    check_dtype(dtype)
    prefix = prefix_of(whisper.FAMILY, origin.dtypes)
    imported, sizes = whisper.settings_of(origin.hf_config, f"{prefix}{whisper.PLACES}" in origin.unused)
    for side in ("encoder", "decoder"):
        check_unchanged(f"model.network.{side}", getattr(settings, side), getattr(imported, side))
    table = whisper.table_row(settings, prefix, len(foreign))
    rows = [table, *whisper.rows(settings, sizes.features, prefix)]
    rows += [replace(table, theirs=(whisper.OUTPUT,))] if whisper.OUTPUT in origin.dtypes else []
    tensors = dump_rows(rows, params, {"target": foreign}, origin, dtype)
    tensors = {name: value for name, value in tensors.items() if not name.endswith(whisper.WITHOUT_BIAS)}
    tensors |= unread_tensors(origin, tensors, dtype)
    before, after = imported.decoder.dropout, settings.decoder.dropout
    changed = {} if before == after else {"dropout": after}
    return changed_config(origin, changed, dtype), dict(sorted(tensors.items()))
