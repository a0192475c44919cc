"""Decoding with s2sjax and with the same model in `transformers` and CTranslate2, alternating in one run.

All do the same work: they decode random ids with random weights of the same sizes, and generate exactly `tokens` tokens
per sentence. Throughput counts the tokens of the best hypothesis, not of every prefix in the beam. The other libraries
are in decode_peers.py, each with its default and its fastest settings.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from s2sjax import config, models
from s2sjax.bench import peers, pretrained_models, result_files, timing
from s2sjax.bench.decode import decode_peers
from s2sjax.bench.decode.decode_peers import Size
from s2sjax.bench.result_files import Column, milliseconds, percent, ratio, si
from s2sjax.bench.train_speed import default_size
from s2sjax.core.backend import quantization
from s2sjax.evaluate.prediction.search_programs import search_batch
from s2sjax.evaluate.prediction.word_constraints import WordConstraints
from s2sjax.files import readable_size

SIZES = {
    "small": Size(
        config.Transformer(width=256, heads=4, feedforward=1024, encoder_layers=3, decoder_layers=3, dropout=0.0),
        8000, 32, 32, {"beam 5, batch 16": (5, 16), "beam 5, batch 1": (5, 1)}, "float32",
    ),
    "base": Size(
        config.Transformer(width=512, heads=8, feedforward=2048, dropout=0.0),
        32000, 64, 64,
        {"beam 5, batch 64": (5, 64), "beam 5, batch 1": (5, 1), "greedy, batch 512": (1, 512)}, "bfloat16",
    ),
}  # fmt: skip
PRETRAINED = {
    name: Size(
        config.replace(model, dropout=0.0), vocabulary, 32, 32,
        {"beam 5, batch 64": (5, 64), "beam 5, batch 1": (5, 1)}, "bfloat16",
    )
    for name, (model, vocabulary) in pretrained_models.MODELS.items()
}  # fmt: skip
"""pretrained models; float32 on a CPU"""
OURS: dict[str, quantization.Precision] = {"s2sjax": "trained", "s2sjax int8": "int8"}
COLUMNS = (
    Column("library", "", 36, "  {}".format),
    Column("tokens_per_second", "tokens/s", 10, si),
    Column("seconds", "ms/batch", 10, milliseconds),
    Column("spread", "spread", 8, percent),
    Column("memory", "memory", 10, readable_size),
    Column("compile_seconds", "compile s", 11, "{:.1f}".format),
    Column("ratio", "s2sjax is faster by", 21, ratio),
    Column("ratio_int8", "s2sjax int8 by", 16, ratio),
)


def bench(
    size: str | None = None, rounds: int = 5, only: Sequence[str] = (), out: Path | None = None,
    model: str | None = None,
) -> None:  # fmt: skip
    """Prints the rows of each search and writes decode.csv and decode.json. The default size depends on the device.

    model: a row of PRETRAINED instead of a size.
    """
    size = model or size or default_size()
    s = {**SIZES, **PRETRAINED}[size]
    if model and jax.default_backend() == "cpu":
        s = s._replace(dtype="float32")
    runs = peers.select(s.runs, only, "search")
    environment = result_files.environment()
    if out:
        result_files.open_folder(out)
    c, shape = s.model, f"{s.source} -> {s.tokens} tokens, {s.dtype}"
    layers = f"{c.encoder_layers}+{c.decoder_layers}"
    print(
        f"{size}: Transformer {c.width}, {layers}, {s.vocabulary} words, {shape}, {result_files.describe(environment)}"
    )
    remarks = peers.remarks(size)
    for remark in remarks:
        print(remark)
    print(result_files.heading(COLUMNS), flush=True)
    rows: list[dict[str, Any]] = []
    for name, (beam, batch) in runs.items():
        print(name, flush=True)
        found, reasons = _measure(s, beam, batch, rounds)
        peers.free()
        rows += [{"size": size, "search": name, **row} for row in found]
        result_files.show(COLUMNS, found, reasons)
        if out:  # after each search, so that an interrupted run keeps its measurements
            written = result_files.write(out, "decode", rows, environment=environment, remarks=remarks)
    if out:
        print("wrote " + ", ".join(map(str, written)))


def _measure(s: Size, beam: int, batch: int, rounds: int) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The row of each library, ours first, and the reasons why libraries were left out."""
    source = np.random.default_rng(0).integers(4, s.vocabulary, (batch, s.source)).astype(np.int32)
    ours = {name: Decoder(s, beam, source, kind) for name, kind in OURS.items()}
    plain, int8 = OURS
    others = decode_peers.PEERS | (decode_peers.ON_GPU if jax.default_backend() == "gpu" else {})
    builders: dict[str, Callable[[], peers.Once]] = {int8: lambda: ours[int8]}
    builders |= {name: partial(build, s, beam, source) for name, build in others.items()}
    spans, reasons, decoders = peers.alternate(ours[plain], builders, rounds, peers.seconds)
    rows = []
    for name, each in spans.items():
        timed = timing.Timing.of(each)
        rows.append({
            "library": name, "beam": beam, "batch": batch, "dtype": s.dtype,
            **timed.fields(), "tokens_per_second": batch * s.tokens / timed.median,
            "memory": getattr(decoders[name], "memory", None),
            "compile_seconds": getattr(decoders[name], "compile_seconds", None),
            "ratio": None if name == plain else peers.ratio(each, spans[plain]),
            "ratio_int8": None if name == int8 or int8 not in spans else peers.ratio(each, spans[int8]),
        })  # fmt: skip
    return rows, reasons


class Decoder:
    """The program that `s2sjax decode` runs, with <eos> forbidden before the last token."""

    def __init__(self, s: Size, beam: int, source: np.ndarray, kind: quantization.Precision):
        module = models.build(s.model, s.vocabulary, s.vocabulary, s.dtype)
        params = pretrained_models.parameters(s.model, s.vocabulary)
        if kind == "trained" and s.dtype == "bfloat16":
            kind = "bfloat16"
        options = config.Search(beam_size=beam, max_length=s.tokens, min_length=s.tokens, precision=kind)
        rows = len(source)
        search = partial(search_batch, (module,), options, WordConstraints(), slots=rows)
        inputs = source, np.zeros((rows, 0), np.int32), np.arange(rows, dtype=np.int32)
        self._arguments = quantization.stored((params,), kind), *map(jax.device_put, inputs)
        self._tokens = s.tokens
        with timing.without_cache():
            begin = time.perf_counter()
            self._program = jax.jit(search).lower(*self._arguments).compile()
            self.compile_seconds = time.perf_counter() - begin
        self.memory = timing.peak_memory(self._program)

    def __call__(self) -> None:
        found = jax.device_get(self._program(*self._arguments)[0])
        assert (found.lengths[:, 0] == self._tokens).all()
