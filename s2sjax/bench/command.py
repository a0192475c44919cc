"""The command `s2sjax bench NAME`: its benchmarks and their options."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

from s2sjax.errors import UserError, nearest

BENCHMARKS = ("layers", "train", "decode", "sweep", "data", "serve")
_OF_LAYERS = (
    "layers", "lengths", "widths", "batch", "kernel", "radius", "form", "chunk", "unroll", "heads", "remat",
    "compile_torch",
)  # fmt: skip
OPTIONS = dict.fromkeys(_OF_LAYERS, ("layers",)) | {
    "run": ("serve",), "size": ("train", "decode", "sweep"), "only": ("train", "decode", "sweep"),
    "out": ("layers", "train", "decode", "sweep"), "dtype": ("layers", "sweep"), "members": ("sweep",),
    "model": ("train", "decode"), "tokens": ("decode",), "mixers": ("decode",),
}  # fmt: skip
"""benchmarks to which each option belongs"""


def bench(options: argparse.Namespace, start_jax: Callable[..., object]) -> None:
    """Checks the options and runs the benchmark."""
    if options.subject not in BENCHMARKS:
        near = nearest(options.subject, BENCHMARKS)
        raise UserError(f"there is no benchmark {options.subject!r}: did you mean {near!r}?")
    if options.rounds < 1:
        raise UserError(f"--rounds is {options.rounds}: it must be at least 1")
    for name, owners in OPTIONS.items():
        if getattr(options, name) and options.subject not in owners:
            owner = " and ".join(filter(None, [", ".join(owners[:-1]), owners[-1]]))
            raise UserError(f"--{name.replace('_', '-')} is an option of bench {owner}: leave it out")
    if options.size and options.model:
        raise UserError("--size and --model both choose what is measured: leave one of them out")
    if options.tokens and options.model:
        raise UserError("--tokens compares models of s2sjax, not that of --model: leave one of them out")
    if options.mixers and not options.tokens:
        raise UserError("--mixers needs the numbers of tokens: add them, as in --tokens 64 512 4096")
    start_jax(shares_device=True)
    if options.subject == "layers":
        from s2sjax.bench.layers import layer_speed

        return layer_speed.bench(layer_speed.settings(options))
    if options.subject == "serve":
        from s2sjax.bench import serve_speed

        if not options.run:
            raise UserError("bench serve measures a run: name it, as in s2sjax bench serve --run runs/g2p")
        return serve_speed.bench(options.run, options.rounds)
    from s2sjax.bench import data_speed, sweep_speed, train_speed
    from s2sjax.bench.decode import decode_speed

    if options.subject == "data":
        return data_speed.bench(options.rounds)
    given = options.size, options.rounds, options.only, Path(options.out or f"runs/bench/{options.subject}")
    if options.subject == "sweep":
        return sweep_speed.bench(*given, options.members or (), options.dtype)
    if options.tokens:
        from s2sjax.bench.decode import decode_growth

        return decode_growth.bench(*given, tuple(itertools.chain(*options.tokens)), options.mixers or ())
    if options.subject == "decode":
        return decode_speed.bench(*given, options.model)
    return train_speed.bench(*given, options.model)
