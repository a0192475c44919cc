"""The commands `s2sjax import` and `s2sjax export`: models of other libraries, in and out."""

from __future__ import annotations

import argparse
from functools import partial

from s2sjax.cli.start_jax import start_jax


def import_run(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.runs import pretrained

    start_jax()
    pretrained.import_pretrained(
        options.folder, options.run, source_language=options.source_language, target_language=options.target_language,
        test=options.test, say=partial(print, flush=True),
    )  # fmt: skip


def export_run(options: argparse.Namespace, fields: list[str]) -> None:
    from s2sjax.runs import pretrained
    from s2sjax.runs.run import load

    run = load(options.run)
    start_jax()
    print(f"wrote {pretrained.export(run, options.folder, options.format, dtype=options.dtype)}")
