"""Recurrences in PyTorch with the Triton kernels of flash-linear-attention, the package `fla`, which needs a GPU.

The projections, convolutions, norms and gates around each kernel are those of s2sjax/core/mixers/layers.py.

Letters: B batch, n sequence length, d width, N heads, D width of a head.
"""

import torch
from fla.modules import FusedRMSNormGated, RMSNorm, RotaryEmbedding, ShortConvolution
from fla.ops.delta_rule import chunk_delta_rule
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from fla.ops.gla import chunk_gla
from fla.ops.linear_attn import chunk_linear_attn
from fla.ops.retention import chunk_retention
from fla.ops.simple_gla import chunk_simple_gla
from torch import Tensor, nn
from torch.nn import functional

from s2sjax.bench.layers.mixer_types import sizes
from s2sjax.bench.layers.points import Point
from s2sjax.core.mixers.layers import LOW_RANK


class Mixer(nn.Module):
    """Queries, keys and values of N heads, and the projection of what is read. Subclasses run a kernel between them."""

    def __init__(self, point: Point, keys: int | None = None):
        super().__init__()
        d, self.heads = point.width, point.heads
        keys = keys or d
        self.query, self.key, self.value = linear(d, keys), linear(d, keys), linear(d, d)
        self.output = linear(d, d)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))  # [B, n, N, D]

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class LinearAttention(Mixer):
    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.projected(x)
        y = chunk_linear_attn(functional.elu(query) + 1, functional.elu(key) + 1, value, scale=1.0, normalize=True)[0]
        return self.output(y.flatten(2))


class Gated(Mixer):
    """With an output gate: W_O (norm(y) * swish(W x))."""

    def __init__(self, point: Point, keys: int | None = None):
        super().__init__(point, keys)
        self.gate = linear(point.width, point.width)
        self.norm = FusedRMSNormGated(point.width // point.heads)

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        return self.output(self.norm(y, self.split(self.gate(x))).flatten(2))


class Retention(Gated):
    def __init__(self, point: Point):
        super().__init__(point)
        self.rotate = RotaryEmbedding(point.width // point.heads)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.projected(x)
        query, key = self.rotate(query, key)
        return self.gated(chunk_retention(query, key, value)[0], x)


class GatedLinearAttention(Gated):
    def __init__(self, point: Point):
        keys = max(1, point.width // point.heads // 2) * point.heads
        super().__init__(point, keys)
        self.decay = nn.Sequential(linear(point.width, LOW_RANK), nn.Linear(LOW_RANK, keys))

    def forward(self, x: Tensor) -> Tensor:
        decay = functional.logsigmoid(self.decay(x).float()) / LOW_RANK
        return self.gated(chunk_gla(*self.projected(x), self.split(decay))[0], x)


class Delta(Mixer):
    def __init__(self, point: Point):
        super().__init__(point)
        d, taps = point.width, sizes(point).taps
        self.convolutions = nn.ModuleList(ShortConvolution(d, taps, activation="silu") for _ in range(3))
        self.beta = linear(d, point.heads)
        self.norm = RMSNorm(d // point.heads)

    def convolved(self, x: Tensor) -> list[Tensor]:
        projections = (self.query, self.key, self.value)
        return [self.split(conv(project(x))[0]) for conv, project in zip(self.convolutions, projections)]

    def forward(self, x: Tensor) -> Tensor:
        beta = self.beta(x).sigmoid()
        y = chunk_delta_rule(*self.convolved(x), beta, scale=1.0, use_qk_l2norm_in_kernel=True)[0]
        return self.output(self.norm(y).flatten(2))


class Times(nn.Module):
    """dt = softplus(W x + b) of each head, and the logarithm of the decay, -exp(A) dt."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.time, self.rate = nn.Linear(width, heads), nn.Parameter(torch.rand(heads))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        time = functional.softplus(self.time(x).float())
        return time, -self.rate.float().exp() * time


class GatedDelta(Delta):
    def __init__(self, point: Point):
        super().__init__(point)
        self.times, self.gate = Times(point.width, point.heads), linear(point.width, point.width)
        self.norm = FusedRMSNormGated(point.width // point.heads)

    def forward(self, x: Tensor) -> Tensor:
        decay, beta = self.times(x)[1], self.beta(x).sigmoid()
        y = chunk_gated_delta_rule(*self.convolved(x), decay, beta, scale=1.0, use_qk_l2norm_in_kernel=True)[0]
        return self.output(self.norm(y, self.split(self.gate(x))).flatten(2))


class StateSpaceDuality(nn.Module):
    """Mamba-2, whose heads share queries and keys. The kernel takes them for each head."""

    def __init__(self, point: Point):
        super().__init__()
        s = sizes(point)
        self.inner, self.heads, self.state = s.expand * s.width, s.expand * s.heads, s.state
        mixed = self.inner + 2 * s.state
        self.input, self.gate, self.output = (
            linear(s.width, mixed), linear(s.width, self.inner), linear(self.inner, s.width)
        )  # fmt: skip
        self.convolution = ShortConvolution(mixed, s.taps, activation="silu")
        self.times = Times(s.width, self.heads)
        self.skip, self.norm = nn.Parameter(torch.ones(self.heads)), nn.Parameter(torch.ones(self.inner))

    def forward(self, x: Tensor) -> Tensor:
        value, key, query = self.convolution(self.input(x))[0].split((self.inner, self.state, self.state), dim=-1)
        value = value.unflatten(-1, (self.heads, -1))
        query, key = (part[:, :, None].expand(-1, -1, self.heads, -1) for part in (query, key))
        time, decay = self.times(x)
        scaled = (value * time[..., None]).to(value.dtype)
        y = chunk_simple_gla(query, key, scaled, decay, scale=1.0)[0] + self.skip[:, None] * value
        gated = y.flatten(2) * functional.silu(self.gate(x))
        return self.output(functional.rms_norm(gated, (self.inner,), self.norm))


LAYERS = {
    "linear_attention": LinearAttention, "retention": Retention, "gla": GatedLinearAttention, "delta": Delta,
    "gated_delta": GatedDelta, "ssd": StateSpaceDuality,
}  # fmt: skip
