"""The model of `s2sjax bench decode` in other libraries: `transformers` and CTranslate2, exported by `s2sjax.interop`.

build(size, beam, source [B, S]) makes a peer, which decodes the batch once per call.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from s2sjax import config
from s2sjax.bench import pretrained_models
from s2sjax.bench.peers import Once, torch_device, torch_memory
from s2sjax.data.text.vocabulary import Vocabulary
from s2sjax.interop import ctranslate2_format


class Size(NamedTuple):
    """A model and the searches that it is measured with."""

    model: config.Transformer
    vocabulary: int
    source: int  # tokens per source sentence
    tokens: int  # tokens generated per sentence
    runs: dict[str, tuple[int, int]]  # name -> (beam, batch)
    dtype: str


class Transformers:
    """`generate` with its defaults; with `mode`, a static cache and the forward pass of a token by torch.compile."""

    def __init__(self, s: Size, beam: int, source: np.ndarray, mode: str | None = None):
        import torch

        device = torch_device()
        self._ids = torch.tensor(source, dtype=torch.long, device=device)
        self._shape = len(source), s.tokens + 1
        self._options: dict[str, Any] = {
            "num_beams": beam, "min_new_tokens": s.tokens, "max_new_tokens": s.tokens, "do_sample": False,
        }  # fmt: skip
        with torch_memory(device) as peak:
            self._model = pretrained_models.in_transformers(s.model, s.vocabulary).to(device, getattr(torch, s.dtype))
            if mode is not None:
                self._compile(mode)
            self()
        self.memory = peak.get("bytes")

    def _compile(self, mode: str) -> None:
        import torch

        plain, compiled = self._model.forward, torch.compile(self._model.forward, mode=mode, dynamic=False)

        def forward(*arguments: Any, past_key_values: Any = None, **options: Any) -> Any:
            # The first token fills the cache of the source. As in `generate` itself, only the others are compiled.
            first = not any(past_key_values.is_updated.values())
            if not first:
                torch.compiler.cudagraph_mark_step_begin()
            return (plain if first else compiled)(*arguments, past_key_values=past_key_values, **options)

        self._model.forward = forward
        # `generate` itself compiles for greedy search only.
        self._options |= {"cache_implementation": "static", "disable_compile": True}
        begin = time.perf_counter()
        self()
        self.compile_seconds = time.perf_counter() - begin

    def __call__(self) -> None:
        import torch

        with torch.inference_mode():
            written = self._model.generate(self._ids, attention_mask=torch.ones_like(self._ids), **self._options)
        assert tuple(written.cpu().shape) == self._shape


def ctranslate2(s: Size, beam: int, source: np.ndarray, int8: bool = False) -> Once:
    """The same model in CTranslate2, by `s2sjax.interop`. Its tokens are the ids as words."""
    import ctranslate2

    words = Vocabulary("words", map(str, range(4, s.vocabulary)))
    kind = s.dtype if not int8 else "int8" if s.dtype == "float32" else f"int8_{s.dtype}"
    with tempfile.TemporaryDirectory() as folder:
        params = jax.device_get(pretrained_models.parameters(s.model, s.vocabulary))
        ctranslate2_format.write(Path(folder), s.model, params, words, words)
        device = "cuda" if jax.default_backend() == "gpu" else "cpu"
        # As many threads as XLA uses: one for each core available to this process.
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        translator = ctranslate2.Translator(folder, device=device, compute_type=kind, intra_threads=threads)
    lines = [words.pieces(row) for row in source]
    longest = {"min_decoding_length": s.tokens, "max_decoding_length": s.tokens}

    def once() -> None:
        found = translator.translate_batch(lines, beam_size=beam, max_batch_size=0, **longest)
        assert all(len(each.hypotheses[0]) == s.tokens for each in found)

    return once


PEERS: dict[str, Callable[[Size, int, np.ndarray], Once]] = {
    "transformers": Transformers,
    "transformers, compiled": partial(Transformers, mode="default"),
    "ctranslate2": ctranslate2,
    "ctranslate2 int8": partial(ctranslate2, int8=True),
}
ON_GPU = {"transformers, CUDA graphs": partial(Transformers, mode="reduce-overhead")}
"""further peers on a GPU"""
