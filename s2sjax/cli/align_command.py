"""The command `s2sjax align`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from s2sjax.cli.commands import messages_to_stderr
from s2sjax.cli.start_jax import start_jax
from s2sjax.errors import UserError


def align(options: argparse.Namespace, fields: list[str]) -> None:
    """Aligns the words of sentence pairs, by a model of its own or by the attention of runs."""
    from s2sjax.align import aligner, gold, link_files

    by_attention = options.run or options.reverse_run
    _check_align(options, bool(by_attention))
    text = link_files.read(options.source, options.target, options.add, options.gold)
    if by_attention:
        aligned = _aligned_by_attention(options, text.pairs)
    else:
        report = lambda line: print(line, file=sys.stderr, flush=True)
        model, agree = options.model or "hmm", options.agree is not False
        aligned = aligner.fit(text.pairs, model, options.iterations or 5, agree, report)
    method = options.direction or options.symmetrize or aligned.default
    lines = (gold.pharaoh(aligned.links_of(number, method)) for number in range(text.size))
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        print(f"wrote {options.out}: {method} links of {text.size:,} sentence pairs")
    else:
        for line in lines:
            print(line)
    if text.gold:
        names = dict.fromkeys([method, *aligned.methods])
        links = {name: [aligned.links_of(number, name) for number in text.scored] for name in names}
        print(gold.table(links, text.gold.gold), file=sys.stdout if options.out else sys.stderr)


def _check_align(options: argparse.Namespace, by_attention: bool) -> None:
    if options.symmetrize and options.direction:
        raise UserError("--symmetrize joins both directions, and --direction is one of them: leave one of these out")
    for name in ("model", "iterations", "agree", "add", "direction"):
        if by_attention and getattr(options, name) not in (None, []):
            raise UserError(f"--{name} does not apply to the attention of a run: leave it out")
    if by_attention and options.symmetrize and not (options.run and options.reverse_run):
        raise UserError("--symmetrize requires both directions: give --run and --reverse-run, or leave it out")
    inputs = [path for path in (options.source, options.target, options.gold, *options.add) if path]
    if options.out and any(Path(options.out).absolute() == Path(path).absolute() for path in inputs):
        raise UserError(f"--out {options.out} is also read: name another file")
    if options.out and Path(options.out).is_dir():
        raise UserError(f"--out {options.out} is a folder: name a file")
    if options.out and not Path(options.out).absolute().parent.is_dir():
        raise UserError(f"--out {options.out}: there is no folder {Path(options.out).parent}: make it, or name another")


def _aligned_by_attention(options: argparse.Namespace, pairs: Sequence[tuple[str, str]]) -> Any:
    """Alignments by the attention of a source-to-target run, a target-to-source run, or both."""
    from s2sjax.align import aligner
    from s2sjax.runs import run

    start_jax()
    with messages_to_stderr():
        forward = run.load(options.run).align(pairs) if options.run else None
        swapped = [(target, source) for source, target in pairs]
        reverse = run.load(options.reverse_run).align(swapped) if options.reverse_run else None
    return aligner.given(forward, reverse and [{(i, j) for j, i in links} for links in reverse])
