"""The same layers in PyTorch, for comparison in `s2sjax bench layers`: cuDNN's LSTM, Conv1d, SDPA, fla's kernels.

Letters: B batch, n sequence length, d width, N heads, D width of a head.

Each layer gets its input in its preferred layout, [B, d, n] for a convolution, without padding to mask. There is no
parallel scan. Restricted attention is FlexAttention, which skips positions outside the window, if compiled; otherwise
it is SDPA with a mask, because PyTorch has no alternative. Recurrences with a matrix state are in fla_layers.py.
"""

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from s2sjax.bench import timing
from s2sjax.bench.layers.layer_types import Point, reach
from s2sjax.bench.peers import torch_device

# PyTorch warns, with a C++ trace, if a kernel lacks a type. Its fallback is what is measured.
warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\b")


class Recurrent(nn.Module):
    def __init__(self, point: Point):
        super().__init__()
        self.lstm = nn.LSTM(point.width, point.width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


def convolution(point: Point) -> nn.Module:
    return nn.Conv1d(point.width, point.width, point.kernel or 1, padding="same")


class Attention(nn.Module):
    """Self-attention with its projections. attend(queries, keys, values), each [B, N, n, D], is its kernel."""

    def __init__(self, point: Point, attend: Callable[..., Tensor] = functional.scaled_dot_product_attention):
        super().__init__()
        d = point.width
        self.query, self.key_value, self.output = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.heads, self.attend = point.heads, attend

    def forward(self, x: Tensor) -> Tensor:
        heads = lambda part: part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, N, n, D]
        keys, values = self.key_value(x).chunk(2, dim=-1)
        attended = self.attend(heads(self.query(x)), heads(keys), heads(values))
        return self.output(attended.transpose(1, 2).flatten(2))


def restricted(point: Point) -> nn.Module:
    """SDPA with the mask of the window."""
    place = torch.arange(point.length, device=torch_device())
    near = (place[:, None] - place).abs() <= (reach(point) or point.length)  # [n, n]
    return Attention(point, partial(functional.scaled_dot_product_attention, attn_mask=near))


def causal(point: Point) -> nn.Module:
    return Attention(point, partial(functional.scaled_dot_product_attention, is_causal=True))


def flexible(point: Point) -> nn.Module:
    """FlexAttention, which computes only the blocks that touch the window. It must be compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    radius = reach(point) or point.length
    near = lambda b, h, query, key: (query - key).abs() <= radius
    window = create_block_mask(near, None, None, point.length, point.length, device=torch_device())
    return Attention(point, partial(flex_attention, block_mask=window))


def with_kernels(point: Point) -> nn.Module:
    """A recurrence with the kernels of flash-linear-attention."""
    if torch_device() != "cuda":
        raise RuntimeError("its kernels need a GPU")
    from s2sjax.bench.layers import fla_layers  # fails if fla is not installed

    return fla_layers.LAYERS[point.layer](point)


KERNELS = ("linear_attention", "retention", "gla", "delta", "gated_delta", "ssd")
"""layers of which flash-linear-attention has kernels"""
EAGER: dict[str, Callable[[Point], nn.Module]] = {
    "recurrent": Recurrent, "convolution": convolution, "attention": Attention, "causal": causal,
    "restricted": restricted, **dict.fromkeys(KERNELS, with_kernels),
}  # fmt: skip
COMPILED = {"convolution": convolution, "attention": Attention, "causal": causal, "restricted": flexible}
"""layers that `torch.compile` can speed up; an LSTM is one call of cuDNN"""


def build(point: Point, backward: bool, compiled: bool) -> timing.Once:
    """Builds a layer with random weights and inputs: forward, or forward and the gradients of input and weights."""
    device, dtype = torch_device(), getattr(torch, point.dtype)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, as in XLA
    layer = (COMPILED if compiled else EAGER)[point.layer](point).to(device, dtype).train(backward)
    run = torch.compile(layer, dynamic=False) if compiled else layer
    shape = point.batch, point.length, point.width
    if point.layer == "convolution":
        shape = point.batch, point.width, point.length
    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=backward)
    gradient = torch.randn(shape, device=device, dtype=dtype)

    def forward() -> Tensor:
        with torch.no_grad():
            return run(x)

    def both() -> tuple[Tensor, tuple[Tensor, ...]]:
        ys = run(x)
        return ys, torch.autograd.grad(ys, [x, *layer.parameters()], gradient)

    wait = (lambda _: torch.cuda.synchronize()) if device == "cuda" else (lambda _: None)
    return timing.repeated(both if backward else forward, wait)
