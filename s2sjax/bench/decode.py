"""Decoding with s2sjax and with the same model in `transformers` and CTranslate2, alternating in one run.

Each decodes random ids with random weights of the same sizes, and generates exactly `tokens` tokens per sentence, so
the work is the same. Throughput counts the tokens of the best hypothesis, not of every prefix in the beam.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import config, models
from s2sjax.bench.peers import Once, alternate, torch_device
from s2sjax.core import constraints, search


class Size(NamedTuple):
    model: config.Transformer
    vocabulary: int
    source: int  # tokens per source sentence
    tokens: int  # tokens generated per sentence
    runs: tuple[tuple[int, int], ...]  # (beam, batch)
    dtype: str


SIZES = {
    "small": Size(
        config.Transformer(width=256, heads=4, feedforward=1024, encoder_layers=3, decoder_layers=3, dropout=0.0),
        8000, 32, 32, ((5, 16), (5, 1)), "float32",
    ),
    "base": Size(
        config.Transformer(width=512, heads=8, feedforward=2048, dropout=0.0),
        32000, 64, 64, ((5, 64), (5, 1), (1, 512)), "bfloat16",
    ),
}  # fmt: skip


def bench(size: str = "small", rounds: int = 5) -> None:
    """Prints one line per library: tokens/s, seconds per batch, and how many times faster s2sjax is."""
    s = SIZES[size]
    device = jax.devices()[0].device_kind
    shape = f"width {s.model.width}, {s.vocabulary} words, {s.source} -> {s.tokens} tokens, {s.dtype}"
    print(f"{size}: {shape}, on {device}")
    print(f"{'':24}{'tokens/s':>10}{'seconds':>10}{'s2sjax is faster by':>21}")
    peers: dict[str, Callable[[Size, int, np.ndarray], Once]]
    peers = {"transformers": _transformers, "ctranslate2": partial(_ctranslate2, kind=s.dtype),
             "ctranslate2 int8": partial(_ctranslate2, kind="int8")}  # fmt: skip
    for beam, rows in s.runs:
        print(f"beam {beam}, batch {rows}", flush=True)
        source = np.random.default_rng(0).integers(4, s.vocabulary, (rows, s.source)).astype(np.int32)
        builders = {name: partial(build, s, beam, source) for name, build in peers.items()}
        spans, reasons = alternate(_ours(s, beam, source), builders, rounds, _seconds)
        for name, each in spans.items():
            ratio = statistics.median(theirs / mine for theirs, mine in zip(each, spans["s2sjax"]))
            faster = "" if name == "s2sjax" else f"{ratio:20.2f}x"
            seconds = statistics.median(each)
            print(f"  {name:22}{rows * s.tokens / seconds:10,.0f}{seconds:10.3f}{faster}", flush=True)
        for name, why in reasons.items():
            print(f"  {name:22}left out: {why}", flush=True)


def _seconds(decode: Once) -> float:
    begin = time.perf_counter()
    decode()
    return time.perf_counter() - begin


def _ours(s: Size, beam: int, source: np.ndarray) -> Once:
    """The program of `s2sjax decode`, with <eos> forbidden before the last token."""
    module = models.build(s.model, s.vocabulary, s.vocabulary, s.dtype)
    params = jax.jit(module.init)(jax.random.key(0), source[:1], source[:1])["params"]
    if s.dtype == "bfloat16":
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)

    @jax.jit
    def decode(params: Any, source: jax.Array):
        apply = partial(module.apply, {"params": params})
        memory: Any = apply(source, method="encode")
        limit = jnp.full(len(source), s.tokens)
        common: dict[str, Any] = {"penalty": "mean", "constraint": constraints.at_least(limit)}
        arguments = module.beams(params, memory), apply(memory, s.tokens, method="start"), limit, s.tokens
        if beam == 1:
            return search.greedy(*arguments, **common)
        return search.beam_search(*arguments, width=beam, **common)

    on_device = jnp.asarray(source)

    def once() -> None:
        found = jax.device_get(decode(params, on_device))
        assert (found.lengths[:, 0] == s.tokens).all()

    return once


# ------------------------------------------------------------------------------------- other libraries


def _marian(s: Size):
    """MarianMT of the same sizes with random weights. <pad> starts its decoder."""
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


def _transformers(s: Size, beam: int, source: np.ndarray) -> Once:
    import torch

    device = torch_device()
    model = _marian(s).to(device, getattr(torch, s.dtype))
    ids = torch.tensor(source, dtype=torch.long, device=device)
    options = {"num_beams": beam, "min_new_tokens": s.tokens, "max_new_tokens": s.tokens, "do_sample": False}

    def once() -> None:
        with torch.inference_mode():
            written = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert written.shape == (len(source), s.tokens + 1)

    return once


def _ctranslate2(s: Size, beam: int, source: np.ndarray, kind: str) -> Once:
    """The same MarianMT, converted. The vocabulary is <eos>, <unk>, and the ids as words."""
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    spec = MarianMTLoader().get_model_spec(_marian(s))
    words = ["</s>", "<unk>", *map(str, range(2, s.vocabulary - 1))]  # the loader removes <pad>
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token = "</s>", "<unk>", "</s>"
    spec.validate()
    spec.optimize(quantization=None)
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        device = "cuda" if jax.default_backend() == "gpu" else "cpu"
        translator = ctranslate2.Translator(folder, device=device, compute_type=kind, intra_threads=os.cpu_count() or 1)
    lines = [[str(token) for token in np.minimum(row, s.vocabulary - 2)] for row in source]
    longest = {"min_decoding_length": s.tokens, "max_decoding_length": s.tokens}

    def once() -> None:
        found = translator.translate_batch(lines, beam_size=beam, max_batch_size=0, **longest)
        assert all(len(each.hypotheses[0]) == s.tokens for each in found)

    return once
