"""The same models written in PyTorch, and their training step, for comparison in `s2sjax bench train`.

Shapes, dropout, label smoothing, clipping and Adam are those of s2sjax. Where they must differ, PyTorch does less work:
its recurrent encoders read padding like words, which is cheaper for cuDNN than packed sequences.

Letters: B batch, S source positions, T target positions, E embedding, H width, N heads, D width of a head.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # measure the compile times of a first run

import torch
from torch import Tensor, nn
from torch.nn import functional

from s2sjax import config
from s2sjax.bench import peers, pretrained_models
from s2sjax.core.special_tokens import PAD

if TYPE_CHECKING:
    from s2sjax.bench.train_speed import Case

# For example: this CPU has no bfloat16; the weights of an RNN are copies (which cuDNN gathers in 0.1 ms).
warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\b|s2sjax\.bench\.torch_peers")


class Dropout(nn.Dropout):
    """Dropout that runs no kernel at a rate of 0."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.p else x


class Peer(nn.Module):
    """Base class of the models."""

    compiled: tuple[str, ...] = ("loss",)
    """methods that torch.compile compiles; cuDNN's layers are not compiled"""

    def __init__(self, dropout: float, vocabulary: int, embedding_size: int):
        super().__init__()
        self.drop = Dropout(dropout)
        self.source = nn.Embedding(vocabulary, embedding_size)
        self.target = nn.Embedding(vocabulary, embedding_size)

    def loss(self, source: Tensor, inputs: Tensor, target: Tensor, smoothing: float) -> Tensor:
        return cross_entropy(self(source, inputs), target, smoothing)


def cross_entropy(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    flat = logits.flatten(0, 1).float()
    return functional.cross_entropy(flat, target.flatten(), ignore_index=PAD, label_smoothing=smoothing)


# ---------------------------------------------------------------------------------- recurrent


@torch.compiler.disable
def recurrent(layers: nn.RNNBase, xs: Tensor, carry: Any = None) -> Any:
    """layers(xs, carry) in autocast's type. Autocast itself would run cuDNN's recurrent layers in float16."""
    device = xs.device.type
    if not torch.is_autocast_enabled(device):
        return layers(xs, carry)
    dtype = torch.get_autocast_dtype(device)
    if carry is None:
        rows = layers.num_layers * (2 if layers.bidirectional else 1), len(xs), layers.hidden_size
        zero = xs.new_zeros(rows, dtype=dtype)
        carry = (zero, zero) if isinstance(layers, nn.LSTM) else zero
    carry = tuple(part.to(dtype) for part in carry) if isinstance(carry, tuple) else carry.to(dtype)
    weights = [weight.to(dtype) for weight in layers.parameters()]
    options = True, layers.num_layers, layers.dropout, layers.training, layers.bidirectional, True
    with torch.autocast(device, enabled=False):
        if isinstance(layers, nn.LSTM):
            states, hidden, cell = torch.lstm(xs.to(dtype), carry, weights, *options)  # type: ignore[attr-defined]
            return states, (hidden, cell)
        return torch.gru(xs.to(dtype), carry, weights, *options)  # type: ignore[attr-defined]


class Luong(Peer):
    """LSTM encoder and decoder, general attention over all steps at once (no input feeding)."""

    def __init__(self, c: config.Luong, vocabulary: int):
        super().__init__(c.dropout, vocabulary, c.embedding_size)
        self.both_ways = c.bidirectional
        between: dict[str, Any] = {"batch_first": True, "dropout": c.dropout if c.layers > 1 else 0.0}
        width = c.width // 2 if c.bidirectional else c.width
        self.encoder = nn.LSTM(c.embedding_size, width, c.layers, bidirectional=c.bidirectional, **between)
        self.decoder = nn.LSTM(c.embedding_size, c.width, c.layers, **between)
        self.general = nn.Linear(c.width, c.width, bias=False)
        self.combine = nn.Linear(2 * c.width, c.width, bias=False)
        self.output = nn.Linear(c.width, vocabulary)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        states, final = recurrent(self.encoder, self.drop(self.source(source)))
        if self.both_ways:
            final = tuple(torch.cat([part[0::2], part[1::2]], dim=-1) for part in final)
        states = self.drop(states)
        queries = self.drop(recurrent(self.decoder, self.drop(self.target(inputs)), final)[0])
        scores = queries @ self.general(states).transpose(1, 2)  # [B, T, S]
        alpha = scores.float().masked_fill(source[:, None] == PAD, -1e9).softmax(-1)
        context = alpha.to(states.dtype) @ states
        return self.output(self.drop(torch.tanh(self.combine(torch.cat([context, queries], dim=-1)))))


class RNNsearch(Peer):
    """Bidirectional GRU encoder; at each step additive attention, then a GRU cell; maxout readout.

    torch.compile gets a single step and the readout. All steps as one program take minutes to compile.
    """

    compiled = ("step", "read_out")

    def __init__(self, c: config.RNNsearch, vocabulary: int):
        super().__init__(c.dropout, vocabulary, c.embedding_size)
        self.encoder = nn.GRU(c.embedding_size, c.width, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(c.width, c.width)
        self.memory = nn.Linear(2 * c.width, c.width, bias=False)
        self.query = nn.Linear(c.width, c.width, bias=False)
        self.vector = nn.Linear(c.width, 1, bias=False)
        self.cell = nn.GRUCell(c.embedding_size + 2 * c.width, c.width)
        self.readout = nn.Linear(3 * c.width + c.embedding_size, 2 * c.embedding_size)
        self.output = nn.Linear(c.embedding_size, vocabulary)

    def step(self, states: Tensor, keys: Tensor, padded: Tensor, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.vector(torch.tanh(keys + self.query(state)[:, None]))[..., 0].float()  # [B, S]
        alpha = scores.masked_fill(padded, -1e9).softmax(-1)
        context = (alpha[:, None].to(states.dtype) @ states)[:, 0]
        return self.cell(torch.cat([x, context], dim=-1), state), context

    def read_out(self, seen: Tensor, target: Tensor, smoothing: float) -> Tensor:
        hidden = self.drop(torch.maximum(*self.readout(seen).chunk(2, dim=-1)))
        return cross_entropy(self.output(hidden), target, smoothing)

    def loss(self, source: Tensor, inputs: Tensor, target: Tensor, smoothing: float) -> Tensor:
        states, final = recurrent(self.encoder, self.drop(self.source(source)))
        states, padded, state = self.drop(states), source == PAD, torch.tanh(self.bridge(final[1]))
        keys, embedded, new, contexts = self.memory(states), self.drop(self.target(inputs)).to(states.dtype), [], []
        for t in range(inputs.shape[1]):
            state, context = self.step(states, keys, padded, embedded[:, t], state)
            new.append(state)
            contexts.append(context)
        seen = torch.cat([torch.stack(new, dim=1), embedded, torch.stack(contexts, dim=1)], dim=-1)
        return self.read_out(seen, target, smoothing)


# -------------------------------------------------------------------------------- Transformer


class Attention(nn.Module):
    """Scaled dot-product attention by PyTorch's fused kernels. Self-attention has one product for q, k and v."""

    def __init__(self, c: config.Transformer, cross: bool):
        super().__init__()
        self.heads, self.cross = c.heads, cross
        self.query = nn.Linear(c.width, c.width if cross else 3 * c.width)
        self.key_value = nn.Linear(c.width, 2 * c.width) if cross else None
        self.output = nn.Linear(c.width, c.width)

    def _split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Splits [B, T, parts * W] into parts of [B, N, T, D]."""
        return x.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None, causal: bool = False):
        if self.key_value is None or memory is None:
            heads = self._split(self.query(x), 3)
        else:
            heads = *self._split(self.query(x), 1), *self._split(self.key_value(memory), 2)
        attended = functional.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=causal)
        return self.output(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Self-attention, cross-attention in a decoder, and the feed-forward layer, each with a residual connection."""

    def __init__(self, c: config.Transformer, decoder: bool):
        super().__init__()
        self.drop, self.pre = Dropout(c.dropout), c.norm == "pre"
        self.attention = Attention(c, cross=False)
        self.cross = Attention(c, cross=True) if decoder else None
        self.inner = nn.Linear(c.width, c.feedforward)
        self.outer = nn.Linear(c.feedforward, c.width)
        self.norms = nn.ModuleList(nn.LayerNorm(c.width, eps=1e-6) for _ in range(3 if decoder else 2))

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor | None = None) -> Tensor:
        """mask [B, 1, 1, S]: mask of source positions that are not padding. Decoder self-attention is causal."""
        cross = self.cross
        if cross is None:
            parts = [lambda h: self.attention(h, mask=mask)]
        else:
            parts = [lambda h: self.attention(h, causal=True), lambda h: cross(h, memory, mask)]
        parts.append(lambda h: self.outer(self.drop(functional.relu(self.inner(h)))))
        for part, norm in zip(parts, self.norms, strict=True):
            # Autocast leaves norms in float32. The residual stream keeps the type of the products, as in s2sjax.
            x = x + self.drop(part(norm(x))) if self.pre else norm(x + self.drop(part(x))).to(x.dtype)
        return x


class Transformer(Peer):
    def __init__(self, c: config.Transformer, vocabulary: int):
        super().__init__(c.dropout, vocabulary, c.width)
        self.scale = c.width**0.5
        for table in (self.source, self.target):  # the target's is also the output layer
            nn.init.normal_(table.weight, std=c.width**-0.5)
        self.encoder = nn.ModuleList(Block(c, decoder=False) for _ in range(c.encoder_layers))
        self.decoder = nn.ModuleList(Block(c, decoder=True) for _ in range(c.decoder_layers))
        last = lambda: nn.LayerNorm(c.width, eps=1e-6) if c.norm == "pre" else nn.Identity()
        self.encoder_norm, self.decoder_norm = last(), last()
        angles = torch.arange(1024)[:, None] * 10000.0 ** (-torch.arange(0, c.width, 2) / c.width)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], dim=-1))

    def _embed(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        x = table(ids) * self.scale + self.positions[: ids.shape[1]]
        device = x.device.type
        return self.drop(x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        mask = (source != PAD)[:, None, None]
        memory = self._embed(self.source, source)
        for block in self.encoder:
            memory = block(memory, mask)
        memory, x = self.encoder_norm(memory), self._embed(self.target, inputs)
        for block in self.decoder:
            x = block(x, mask, memory)
        return functional.linear(self.decoder_norm(x), self.target.weight)


class Pretrained(nn.Module):
    """A model of `transformers`, with the dropout of s2sjax: none on the weights of attention."""

    compiled = ("loss",)

    def __init__(self, c: config.Transformer, vocabulary: int):
        super().__init__()
        self.model = pretrained_models.in_transformers(c, vocabulary)
        for module in self.model.modules():
            if isinstance(module.__dict__.get("dropout"), float) and "Attention" in type(module).__name__:
                module.dropout = 0.0

    def loss(self, source: Tensor, inputs: Tensor, target: Tensor, smoothing: float) -> Tensor:
        read = {"input_ids": source, "attention_mask": source != PAD, "decoder_input_ids": inputs}
        return cross_entropy(self.model(**read, use_cache=False).logits, target, smoothing)


PEERS: dict[type, type] = {config.Luong: Luong, config.RNNsearch: RNNsearch, config.Transformer: Transformer}


# ------------------------------------------------------------------------------------ training


class Mode(NamedTuple):
    """A way to run the training step."""

    compiled: bool = False
    """whether to use torch.compile"""
    graph: bool = False
    """whether to replay the step as one CUDA graph: forward and backward pass, clipping and update"""
    onednn: bool = True
    """whether to use oneDNN's kernels on a CPU"""


ARM = platform.machine() in ("aarch64", "arm64")
"""whether this is an ARM CPU, where PyTorch is faster without oneDNN; only the faster mode is compiled, to save time"""
MODES = {
    "cuda": {
        "PyTorch eager": Mode(),
        "PyTorch eager, CUDA graph": Mode(graph=True),
        "PyTorch compiled": Mode(compiled=True),
        "PyTorch compiled, CUDA graph": Mode(compiled=True, graph=True),
    },
    "cpu": {
        "PyTorch eager": Mode(),
        "PyTorch eager, no oneDNN": Mode(onednn=False),
        f"PyTorch compiled{', no oneDNN' * ARM}": Mode(compiled=True, onednn=not ARM),
    },
}


class Trainer:
    """Training steps with Adam on one batch, as in s2sjax: forward, loss, backward, clip, update.

    `compile_seconds` is the time of the first step if it is compiled; `memory` is the peak in bytes on a GPU.
    """

    def __init__(
        self, case: Case, source: np.ndarray, target: np.ndarray, train: config.Train, device: str, mode: Mode
    ):  # fmt: skip
        self.train, self.device, self.onednn = train, device, mode.onednn
        torch.manual_seed(0)
        start = config.encoder_and_decoder(case.model)[1].start_token
        if device == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32, as in XLA
        with peers.torch_memory(device) as peak:
            peer = Pretrained if case.pretrained else PEERS[type(case.model)]
            self.model = peer(case.model, case.vocabulary).to(device).train()
            fused: dict[str, Any] = {"fused": True, "capturable": device == "cuda"}
            self.optimizer = torch.optim.Adam(self.model.parameters(), train.learning_rate, (0.9, 0.98), 1e-9, **fused)
            self.source = torch.as_tensor(source, device=device).long()
            self.target = torch.as_tensor(target, device=device).long()
            self.inputs = functional.pad(self.target[:, :-1], (1, 0), value=start)
            if mode.compiled:
                for name in self.model.compiled:
                    setattr(self.model, name, torch.compile(getattr(self.model, name), dynamic=False))
            begin = time.perf_counter()
            self()
            self.compile_seconds = time.perf_counter() - begin if mode.compiled else None
            self()
        self.memory, self.held = peak.get("bytes"), peak.get("held", 0)

    def __call__(self, steps: int = 1) -> None:
        """Runs steps. Reads the loss, and so waits for the device, only after the last one."""
        with contextlib.nullcontext() if self.onednn else torch.backends.mkldnn.flags(enabled=False):
            for _ in range(steps):
                loss = self.step()
        _check(loss)

    def step(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        half = self.train.dtype == "bfloat16"
        with torch.autocast(self.device, torch.bfloat16) if half else contextlib.nullcontext():
            loss = self.model.loss(self.source, self.inputs, self.target, self.train.label_smoothing)
        loss.backward()
        if self.train.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.train.clip_norm)
        self.optimizer.step()
        return loss.detach()


class Graph:
    """The step of a trainer as a CUDA graph, recorded once and replayed, so that no kernel waits for Python."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.compile_seconds = trainer, trainer.compile_seconds
        with peers.torch_memory("cuda") as peak:
            side = torch.cuda.Stream()  # PyTorch requires a warm-up on a side stream
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    trainer.step()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            # Threads of JAX may use the GPU meanwhile: only this thread must be restricted to recordable calls.
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.loss = trainer.step()
            self()
        self.memory = trainer.held + peak["bytes"]

    def __call__(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.graph.replay()
        _check(self.loss)


def _check(loss: Tensor) -> None:
    if not math.isfinite(value := loss.item()):
        raise ArithmeticError(f"its loss is {value}")
