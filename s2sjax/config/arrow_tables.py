"""Tables of other libraries, read through Apache Arrow: a batch of rows at a time, without copies of the table.

    table = open_frame("Frame.train", df, ("en", "de"))       pandas, Polars, pyarrow, Hugging Face datasets
    table = open_parquet("train.parquet")
    for batch in table.batches(("en", "de")):                 a pyarrow.Array of each column
    fingerprint(table, ("en", "de"))                          number of rows, SHA-256 of the Arrow buffers

A column of a column is named with a dot, "translation.en". The class labels of Hugging Face datasets, numbers in Arrow,
become their names.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from s2sjax.config.settings import require
from s2sjax.errors import UserError, nearest
from s2sjax.files import as_path, in_storage

ROWS = 1024
"""number of rows of a batch"""
HUGGING_FACE = b"huggingface"
"""key of the schema's metadata under which `datasets` describes its features, also in Parquet files"""


def arrow() -> Any:
    """The package pyarrow, which is imported only where it is used."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError:
        what = "pyarrow, which reads frames and Parquet files, is not installed"
        raise UserError(f"{what}: pip install pyarrow") from None
    return pyarrow


class Table(NamedTuple):
    """A table that is read in batches, any number of times."""

    name: str
    """name for errors"""
    schema: Any
    read: Callable[[list[str]], Iterable[Any]]
    """record batches of some of its columns"""

    def batches(self, columns: Sequence[str]) -> Iterator[list[Any]]:
        """The arrays of the columns, of at most `ROWS` rows each."""
        paths = [self._path(column) for column in columns]
        names = [_class_names(self.schema, path) for path in paths]
        for batch in self.read(list(dict.fromkeys(path[0] for path in paths))):
            yield [self._array(batch, path, each) for path, each in zip(paths, names)]

    def check(self, columns: Sequence[str]) -> None:
        """Raises if there is no such column."""
        for column in columns:
            self._path(column)

    def _path(self, column: str) -> tuple[str, ...]:
        """("translation", "en") for "translation.en", unless a column has that very name."""
        pa, known = arrow(), self.schema.names
        for name in (each for each in known if column == each or column.startswith(f"{each}.")):
            inner = column[len(name) + 1 :]
            twice = f"{self.name} has {known.count(name)} columns {name!r}: give each its own name"
            require(known.count(name) == 1, twice)
            kind = self.schema.field(name).type
            path = inner.split(".") if inner else []
            for part in path:
                kind = kind.field(part).type if pa.types.is_struct(kind) and _has(kind, part) else None
            if kind is not None:
                return (name, *path)
        columns = list(_leaves(self.schema))
        require(bool(columns), f"{self.name} has no columns: give a frame with named columns")
        raise UserError(missing_column(self.name, column, columns))

    def _array(self, batch: Any, path: Sequence[str], names: Sequence[str]) -> Any:
        pa, (first, *rest) = arrow(), path
        found = batch.column(first)
        for part in rest:
            found = pa.compute.struct_field(found, part)
        try:
            return plain_types(_with_names(found, names) if names else found)
        except (pa.ArrowInvalid, pa.ArrowIndexError, pa.ArrowNotImplementedError) as error:
            raise UserError(f"{self.name}: the column {'.'.join(path)!r} is damaged ({error}): correct it") from None


def missing_column(where: str, column: str, columns: Sequence[str]) -> str:
    """The error about a column that a table does not have."""
    if not columns:
        return f"{where} has no columns: give a frame with named columns"
    listed = f"{', '.join(columns[:6])}{', ...' if len(columns) > 6 else ''}"
    return f"{where} has no column {column!r}, it has {listed}: did you mean {nearest(column, columns)!r}?"


def _has(kind: Any, name: str) -> bool:
    return [kind.field(index).name for index in range(kind.num_fields)].count(name) == 1


def _leaves(fields: Iterable[Any], prefix: str = "") -> Iterator[str]:
    """The names of all columns, of columns of columns with dots."""
    for field in fields:
        if arrow().types.is_struct(field.type):
            inner = [field.type.field(index) for index in range(field.type.num_fields)]
            yield from _leaves(inner, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


# -------------------------------------------------------------------------------------- opening


def open_frame(name: str, frame: Any, columns: Sequence[str]) -> Table:
    """Opens a frame of another library, of which only these columns are converted to Arrow if they are not yet."""
    pa, kind = arrow(), f"{type(frame).__module__.partition('.')[0]} {type(frame).__name__}"
    if hasattr(frame, "features") and hasattr(frame, "with_format"):  # a datasets.Dataset, perhaps with indices
        require(hasattr(frame, "num_rows"), f"{name} is streamed ({kind}): load it without streaming=True")
        return Table(name, frame.features.arrow_schema, lambda wanted: _of_dataset(frame, wanted))
    require(not hasattr(frame, "collect"), f"{name} is not computed yet ({kind}): give its result, .collect()")
    table = frame
    if not isinstance(frame, pa.Table):
        known = getattr(frame, "columns", None)
        arrow_stream = hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "iloc")  # iloc: an older pandas
        arrow_stream = arrow_stream and not isinstance(frame, type)
        remedy = "give a frame of pandas, Polars, pyarrow or datasets"
        if not arrow_stream:
            raise UserError(f"{name} is {frame!r:.60}: {remedy}, or use config.InMemory for rows")
        if known is not None and all(isinstance(each, str) for each in known):
            wanted = {column: [each for each in known if f"{column}.".startswith(f"{each}.")] for column in columns}
            for column, there in wanted.items():
                require(bool(there), missing_column(name, column, list(known)))
            frame = frame[list(dict.fromkeys(chain(*wanted.values())))] if columns else frame
        try:
            pandas = sys.modules.get("pandas")
            if pandas and isinstance(frame, pandas.DataFrame):  # without its index, which may not be one type
                table = pa.Table.from_pandas(frame, preserve_index=False)
            else:
                table = pa.table(frame)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{name} cannot be read as an Arrow table ({reason}): give its columns one type") from None
    return Table(name, table.schema, lambda wanted: table.select(wanted).to_batches(max_chunksize=ROWS))


def _of_dataset(dataset: Any, columns: list[str]) -> Iterator[Any]:
    """The batches of a Hugging Face dataset: slices of its memory-mapped table, or gathered by its indices."""
    for table in dataset.select_columns(columns).with_format("arrow").iter(ROWS):
        yield from table.to_batches()


def open_parquet(path: str, name: str, setting: str) -> Table:
    """Opens a Parquet file, whose rows are decoded a batch at a time. `setting` is the field that names it."""
    pa = arrow()
    import pyarrow.parquet

    opened = lambda: as_path(path).open("rb") if in_storage(path) else path
    try:
        schema = pyarrow.parquet.read_schema(opened())
    except (OSError, pa.ArrowInvalid) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise UserError(f"{name} cannot be read ({reason}): correct {setting}") from None

    def read(columns: list[str]) -> Iterator[Any]:
        try:
            with pyarrow.parquet.ParquetFile(opened(), memory_map=True) as file:
                yield from file.iter_batches(ROWS, columns=columns)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{name} is damaged ({' '.join(str(error).split())[:120]}): copy it again") from None

    return Table(name, schema, read)


def write_parquet(table: Table, columns: Sequence[str], path: str) -> None:
    """Writes some columns, under their dotted names."""
    pa = arrow()
    import pyarrow.parquet

    writer = None
    try:
        for arrays in table.batches(columns):
            batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
            writer = writer or pyarrow.parquet.ParquetWriter(path, batch.schema, compression="zstd")
            writer.write_batch(batch)
    finally:
        if writer:
            writer.close()


# --------------------------------------------------------------------------------------- arrays


def plain_types(array: Any) -> Any:
    """An array without extension types and views, for which Arrow has fewer functions; the others unchanged."""
    pa = arrow()
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain_types(array.storage)
    if kind in (pa.string_view(), pa.binary_view()):
        return array.cast(pa.large_string() if kind == pa.string_view() else pa.large_binary())
    if pa.types.is_run_end_encoded(kind):
        return plain_types(pa.compute.run_end_decode(array))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return plain_types(pa.array(array.to_pylist(), pa.large_list(kind.value_type)))  # not cast: it loses rows
    if pa.types.is_dictionary(kind):
        words = array.dictionary
        plain = plain_types(words)
        return array if plain is words else pa.DictionaryArray.from_arrays(array.indices, plain)
    if _is_list(kind):
        return with_values(array, plain_types)
    if pa.types.is_struct(kind):
        parts = [array.field(index) for index in range(kind.num_fields)]
        plain = list(map(plain_types, parts))
        if all(new is old for new, old in zip(plain, parts)):
            return array
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(plain, names, mask=array.is_null())
    return array


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def with_values(array: Any, change: Callable[[Any], Any]) -> Any:
    """Lists with other values: those of this slice only, not all of the table that it is cut from."""
    pa, kind = arrow(), array.type
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        new = change(values)
        return array if new is values else pa.FixedSizeListArray.from_arrays(new, size, mask=array.is_null())
    first = array.offsets[0].as_py()
    values = array.values.slice(first, array.offsets[len(array)].as_py() - first)
    new = change(values)
    if new is values:
        return array
    offsets = pa.compute.subtract(array.offsets, pa.scalar(first, array.offsets.type))
    known = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return known.from_arrays(offsets, new, mask=array.is_null() if array.null_count else None)


def _class_names(schema: Any, path: Sequence[str]) -> list[str]:
    """The names of the classes of a column, or of its lists; empty if it has none.

    {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}, "tags": {"feature": {"names": ...}, "_type": "List"}}
    """
    try:
        feature = json.loads((schema.metadata or {})[HUGGING_FACE])["info"]["features"]
        for part in path:
            feature = feature[part]
        feature = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
        return feature["names"] if feature["_type"] == "ClassLabel" else []
    except (KeyError, TypeError, ValueError, AttributeError):  # another kind of feature
        return []


def _with_names(array: Any, names: Sequence[str]) -> Any:
    """Replaces numbers of classes by their names, as a dictionary: the numbers are not copied. -1 becomes null."""
    pa = arrow()
    if _is_list(array.type):
        return with_values(array, lambda values: _with_names(values, names))
    if not pa.types.is_integer(array.type):
        return array
    if len(array) and pa.compute.min(array).as_py() is not None and pa.compute.min(array).as_py() < 0:
        array = pa.compute.if_else(pa.compute.less(array, 0), None, array)
    return pa.DictionaryArray.from_arrays(array, pa.array(names))


def values(array: Any) -> Iterator[Any]:
    """The rows of an array as Python values, lists of numbers as NumPy arrays."""
    pa = arrow()
    kind = array.type
    inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
    if not any(check(inner) for check in (pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary)) and (
        inner is kind or not pa.types.is_floating(inner)
    ):
        return iter(array.to_pylist())  # at most `ROWS` small values
    return map(_value, array)


def _value(scalar: Any) -> Any:
    pa = arrow()
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(each) for name, each in scalar.items()}
    if isinstance(scalar, pa.ListScalar):
        numbers = pa.types.is_primitive(scalar.values.type) and not scalar.values.null_count
        return scalar.values.to_numpy(zero_copy_only=False) if numbers else [_value(each) for each in scalar.values]
    return scalar.as_py()


# --------------------------------------------------------------------------------- fingerprints


def fingerprint(table: Table, columns: Sequence[str]) -> tuple[int, str]:
    """The number of rows, and the SHA-256 of the buffers of these columns.

    It depends on the values alone, not on how Arrow stores them: on batches, offsets, the widths of numbers, or the
    kind of strings. So the same data gives the same fingerprint in pandas, Polars, datasets and Parquet.
    """
    pa, rows, hashes = arrow(), 0, defaultdict[str, Any](hashlib.sha256)
    for arrays in table.batches(columns):
        rows += len(arrays[0])
        for column, array in zip(columns, arrays):
            try:
                _update(hashes, column, array)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                what = f"{table.name}: the column {column!r} has the type {array.type!s:.80}, which cannot be read"
                raise UserError(f"{what}: make it text, numbers, or lists of them") from None
    total = hashlib.sha256()
    for name in sorted(hashes):
        total.update(json.dumps([name, hashes[name].hexdigest()]).encode())
    return rows, total.hexdigest()


def _update(hashes: dict[str, Any], name: str, array: Any) -> None:
    """Adds the buffers of an array to one hash for each kind of content: nulls, lengths, bytes or numbers."""
    pa = arrow()
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    hashes[f"{name} valid"].update(array.is_valid().cast(pa.uint8()).to_numpy().tobytes())
    if array.null_count:
        array = array.drop_null()
    if pa.types.is_struct(kind):
        for index, part in enumerate(array.flatten()):
            _update(hashes, f"{name}.{kind.field(index).name}", part)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pa.compute.list_value_length(array).cast(pa.int64())
        hashes[f"{name} lengths"].update(lengths.to_numpy().tobytes())
        _update(hashes, f"{name}[]", array.flatten())
    elif any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string,
                                       pa.types.is_binary, pa.types.is_large_binary)):  # fmt: skip
        _update_bytes(hashes, name, array)
    elif not pa.types.is_null(kind):
        wide = pa.float64() if pa.types.is_floating(kind) else pa.int64()
        array = array.cast(pa.uint8()) if pa.types.is_boolean(kind) else array
        numbers = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
        if numbers:  # of unsigned numbers, those above 2^63 wrap around
            hashes[name].update(np.ascontiguousarray(array.cast(wide, safe=False).to_numpy()))
        elif pa.types.is_fixed_size_binary(kind):
            _update_bytes(hashes, name, array.cast(pa.binary()))
        else:  # times and decimals, as text
            _update_bytes(hashes, name, array.cast(pa.large_string()))


def _update_bytes(hashes: dict[str, Any], name: str, array: Any) -> None:
    pa = arrow()
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        return
    places = np.frombuffer(offsets, np.int64 if large else np.int32)[array.offset : array.offset + len(array) + 1]
    hashes[f"{name} lengths"].update(np.diff(places).astype(np.int64))
    if data is not None:
        hashes[f"{name} bytes"].update(memoryview(data)[int(places[0]) : int(places[-1])])
