"""The model of `s2sjax bench decode` in other libraries: MarianMT of `transformers`, and the same in CTranslate2.

build(size, beam, source [B, S]) makes a peer, which decodes the batch once per call.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from s2sjax import config
from s2sjax.bench.peers import Once, torch_device


class Size(NamedTuple):
    """A model and the searches that it is measured with."""

    model: config.Transformer
    vocabulary: int
    source: int  # tokens per source sentence
    tokens: int  # tokens generated per sentence
    runs: dict[str, tuple[int, int]]  # name -> (beam, batch)
    dtype: str


def _marian(s: Size) -> Any:
    """MarianMT with random weights of the same sizes. Its decoder starts with <pad>."""
    os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # measure the compile times of a first run
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    c = s.model
    settings = MarianConfig(
        vocab_size=s.vocabulary, decoder_vocab_size=s.vocabulary, d_model=c.width,
        encoder_layers=c.encoder_layers, decoder_layers=c.decoder_layers,
        encoder_attention_heads=c.heads, decoder_attention_heads=c.heads,
        encoder_ffn_dim=c.feedforward, decoder_ffn_dim=c.feedforward, activation_function="relu",
        max_position_embeddings=512, pad_token_id=s.vocabulary - 1, eos_token_id=0, forced_eos_token_id=0,
        decoder_start_token_id=s.vocabulary - 1, scale_embedding=True, dropout=0.0,
    )  # fmt: skip
    return MarianMTModel(settings).eval()


class Transformers:
    """`generate` with its defaults; with `mode`, a static cache and the forward pass of a token by torch.compile."""

    def __init__(self, s: Size, beam: int, source: np.ndarray, mode: str | None = None):
        import torch

        device = torch_device()
        self._model = _marian(s).to(device, getattr(torch, s.dtype))
        self._ids = torch.tensor(source, dtype=torch.long, device=device)
        self._shape = len(source), s.tokens + 1
        self._options: dict[str, Any] = {
            "num_beams": beam, "min_new_tokens": s.tokens, "max_new_tokens": s.tokens, "do_sample": False,
        }  # fmt: skip
        if mode is not None:
            self._compile(mode)

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
    """The same MarianMT, converted to CTranslate2. Its vocabulary is <eos>, <unk>, and the ids as words."""
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    spec = MarianMTLoader().get_model_spec(_marian(s))
    words = ["</s>", "<unk>", *map(str, range(2, s.vocabulary - 1))]  # the loader removes <pad>
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token = "</s>", "<unk>", "</s>"
    spec.validate()
    spec.optimize(quantization=None)
    kind = s.dtype if not int8 else "int8" if s.dtype == "float32" else f"int8_{s.dtype}"
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        device = "cuda" if jax.default_backend() == "gpu" else "cpu"
        # As many threads as XLA uses: one for each core available to this process.
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        translator = ctranslate2.Translator(folder, device=device, compute_type=kind, intra_threads=threads)
    lines = [[str(token) for token in np.minimum(row, s.vocabulary - 2)] for row in source]
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
