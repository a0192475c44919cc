"""Imports a folder of Hugging Face as a run folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from s2sjax import config
from s2sjax.config import require
from s2sjax.files import in_storage, is_free, local_copy, local_draft
from s2sjax.interop.safetensors_files import read_json
from s2sjax.runs import folder, lock
from s2sjax.runs.pretrained import encoder, language_model, original, translation, whisper
from s2sjax.runs.pretrained.importer import Imported, Options
from s2sjax.runs.run import Run
from s2sjax.tasks.task import Task
from s2sjax.training.checkpoints import folders
from s2sjax.training.checkpoints.fingerprints import named_leaves
from s2sjax.training.train_state import TrainState

IMPORTERS: Mapping[str, Callable[[Path, str, Options], Imported]] = {
    "gpt2": language_model.read,
    "bert": encoder.read,
    "roberta": encoder.read,
    "xlm-roberta": encoder.read,
    "whisper": whisper.read,
}
"""the importer of each model_type of config.json; others are encoder-decoders, or refused"""


def import_pretrained(
    source: str | Path,
    out: str | Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    test: Sequence[str | Path] = (),
    say: Callable[[str], None] = print,
) -> Run:
    """Imports a folder of Hugging Face as a run, and returns it.

    source: a folder with config.json, model.safetensors and the files of the tokenizer. out: the run folder to write.
    source_language, target_language: codes of a model of many languages, such as eng_Latn; they can be changed for each
    line. test: text files to evaluate on, as of `config.TextFiles`. say: prints a line.
    """
    there, out = config.as_path(source), config.as_path(out)
    require(there.is_dir(), f"{there} is not a folder: name one with config.json and model.safetensors")
    free = is_free(out)
    require(free or not folder.has_checkpoint(out), f"{out} is a run already: give another folder")
    require(free, f"{out} exists and is not empty: give another folder")
    paths = tuple(str(config.local_path(path).absolute()) for path in test)
    options = Options(source_language, target_language, paths)
    with local_copy(there) as local:
        kind = read_json(local / "config.json").get("model_type")
        read = IMPORTERS.get(str(kind), translation.read)
        found = read(local, re.sub(r"[^\w.-]", "-", out.absolute().name), options)
    with _draft(out) as draft:
        task = _write(draft, found)
    weights = sum(leaf.size for leaf in jax.tree.leaves(found.params))
    say(f"imported {kind}: {weights:,} weights, stored as {found.dtype}")
    for line in found.remarks:
        say(f"  {line}")
    say(f"wrote {out}: {found.use.format(run=out)}")
    return Run(out, task)


@contextlib.contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """A local folder, which becomes `out` at the end of the block."""
    if in_storage(out):
        with local_draft(out, folder.CONFIG) as draft:
            yield draft
            for checkpoint in folders.found(draft / "checkpoints"):
                (checkpoint / folders.MARKER).touch()
        return
    draft = out.absolute().with_name(f".{out.absolute().name}.partial")
    shutil.rmtree(draft, ignore_errors=True)  # left by an import that was interrupted
    yield draft
    out.parent.mkdir(parents=True, exist_ok=True)
    os.replace(draft, out)


def _write(out: Path, found: Imported) -> Task:
    """Writes the run folder, and returns its task."""
    with lock.held(out):
        task = folder.start_task(found.experiment, out, [], learned=found.assets)
        _check_parameters(task, found.params)
        params, zero = jax.tree.map(jnp.asarray, found.params), jnp.int32(0)
        checkpoints = folder.checkpoints(out, task)
        checkpoints.save(TrainState(zero, params, (), None, zero, zero), 0)
        checkpoints.close()
        original.keep(out / folder.PRETRAINED, found.origin)
    return task


def _check_parameters(task: Any, params: Any) -> None:
    """Raises unless the parameters have the names and shapes of the model: a fault of the importer."""
    wanted = {path: leaf.shape for path, leaf in named_leaves(jax.eval_shape(task.init, jax.random.key(0)))}
    there = {path: leaf.shape for path, leaf in named_leaves(params)}
    for path in sorted(wanted.keys() | there.keys()):
        if wanted.get(path) != there.get(path):
            raise ValueError(f"the imported {path} is {there.get(path)} instead of {wanted.get(path)}")
