"""Examples from TensorFlow Datasets, read from array records without TensorFlow.

    corpus = config.Tfds("ted_hrlr_translate/pt_to_en", source="pt", target="en")
    download(corpus)                    once; `s2sjax prepare` does this
    stream(corpus, "train")             Example("olá", ("hello",)) ...

TFDS imports TensorFlow only for other file formats, pipelines, community datasets and Google Cloud Storage, none of
which are used here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.data.examples import Example, Split
from s2sjax.errors import UserError

BLOCK = 1024
"""number of records per read"""


def stream(corpus: config.Tfds, split: Split) -> Iterator[Example]:
    """Yields the examples of a split in the order of the records, without those that lack a source or a target."""
    require(bool(getattr(corpus, split)), f"data.corpus.{split} is empty: set it to a split of {corpus.name}")
    records = _source(corpus, split)
    for first in range(0, len(records), BLOCK):
        for record in records.__getitems__(list(range(first, min(first + BLOCK, len(records))))):
            targets = tuple(_texts(record, corpus, "target"))
            if targets:
                for source in _texts(record, corpus, "source"):
                    yield Example(source, targets)


def download(corpus: config.Tfds) -> None:
    """Downloads a dataset and stores it as array records, unless it is already there."""
    builder = _builder(corpus)
    if not builder.is_prepared():
        settings = _package().download.DownloadConfig(try_download_gcs=False)
        builder.download_and_prepare(file_format="array_record", download_config=settings)


def _source(corpus: config.Tfds, split: Split) -> Any:
    """The records of a split, accessed by index."""
    builder = _builder(corpus)
    if not builder.is_prepared():
        folder = f", data_dir={corpus.data_dir!r}" if corpus.data_dir else ""
        raise UserError(
            f"{corpus.name} is not in {builder.data_path.parent}: download it once with `s2sjax prepare FILE` or "
            f'python -c "import tensorflow_datasets as tfds; '
            f"tfds.builder('{corpus.name}'{folder}).download_and_prepare(file_format='array_record')\""
        )
    file_format = builder.info.file_format.value
    if file_format != "array_record":
        raise UserError(
            f"{corpus.name} was prepared as {file_format}, which needs TensorFlow: delete {builder.data_path} and "
            "prepare it again with file_format='array_record'"
        )
    name = getattr(corpus, split)
    whole = re.split(r"[\[+]", name)[0].strip()
    if whole not in builder.info.splits:
        known = ", ".join(builder.info.splits)
        raise UserError(f"{corpus.name} has no split {whole!r}: set data.corpus.{split} to one of {known}")
    try:
        return builder.as_data_source(split=name)
    except (ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{corpus.name} has no split {name!r} ({reason}): change data.corpus.{split}") from None


def _builder(corpus: config.Tfds) -> Any:
    """The TFDS builder of a dataset, from its code or its files."""
    tfds = _package()
    from tensorflow_datasets.core.registered import DatasetNotFoundError

    dataset, _, variant = corpus.name.partition("/")
    try:
        return tfds.builder(corpus.name, **({"data_dir": corpus.data_dir} if corpus.data_dir else {}))
    except DatasetNotFoundError:
        near = _near(dataset, tfds.list_builders(with_community_datasets=False))
        raise UserError(f"TensorFlow Datasets {tfds.__version__} has no {dataset!r}: did you mean {near}?") from None
    except ValueError as error:
        known = list(getattr(tfds.builder_cls(dataset), "builder_configs", {}))
        if variant and known and variant not in known:
            near = _near(variant, known)
            raise UserError(f"{dataset} has no configuration {variant!r}: did you mean {near}?") from None
        raise UserError(f"{corpus.name}: {' '.join(str(error).split())[:300]}: correct data.corpus.name") from None


def _near(name: str, names: list[str]) -> str:
    return " or ".join(map(repr, difflib.get_close_matches(name, names, n=3, cutoff=0.0)))


def _package() -> Any:
    try:
        import tensorflow_datasets  # imported here: it takes a second
    except ImportError:
        raise UserError("tensorflow-datasets is not installed: pip install tensorflow-datasets") from None
    return tensorflow_datasets


# ------------------------------------------------------------------------------------- features


def _texts(record: Any, corpus: config.Tfds, side: str) -> list[str]:
    """The one or more texts of a feature.

    {"pt": b"sim"}, "pt" -> ["sim"]         {"answers": {"text": [b"a", b"b"]}}, "answers.text" -> ["a", "b"]
    """
    path, value = getattr(corpus, side), record
    for name in path.split("."):
        if isinstance(value, Mapping) and set(value) == {"language", "translation"}:  # a variable set of languages
            value = [text for language, text in zip(*value.values(), strict=True) if _decoded(language) == name]
        elif isinstance(value, Mapping) and name in value:
            value = value[name]
        else:
            known = ", ".join(value) if isinstance(value, Mapping) else "no nested features"
            raise UserError(f"{corpus.name} has no feature {path!r}: set data.corpus.{side}; it has {known}")
    texts = list(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, bytes | str) else [value]
    if not all(isinstance(text, bytes | str) for text in texts):
        raise UserError(f"{corpus.name}: the feature {path!r} is not text: set data.corpus.{side} to a text feature")
    return [_decoded(text) for text in texts]


def _decoded(text: bytes | str) -> str:
    return text.decode() if isinstance(text, bytes) else text
