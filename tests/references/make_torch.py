"""PyTorch's side of the parity tests: its weights, inputs and outputs, written to torch.npz beside this file.

    pip install torch==2.13.0 numpy
    python tests/references/make_torch.py

The tests read torch.npz (see tests/references/__init__.py), so that they need no PyTorch. Every array is named
"case/name"; weights have PyTorch's names and layout.
"""

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

ROWS, TIME, INPUTS, WIDTH, HEADS = 3, 6, 4, 6, 2
LENGTHS = torch.tensor([6, 4, 1])
CASES = {}


def case(name: str, **arrays) -> None:
    for key, value in arrays.items():
        CASES[f"{name}/{key}"] = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def redraw(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Random weights, biases included; of the two biases of a recurrent layer the second is zero."""
    with torch.no_grad():
        for seed, (name, value) in enumerate(module.named_parameters()):
            value.copy_(torch.zeros_like(value) if name.startswith("bias_hh") else draw(100 + seed, *value.shape) / 2)
    return dict(module.named_parameters())


def convolutions() -> None:
    xs = draw(0, ROWS, TIME, INPUTS)
    for width, dilation in [(1, 1), (2, 1), (3, 1), (4, 1), (3, 2)]:
        weight, bias = draw(1, 5, INPUTS, width), draw(2, 5)
        padded = functional.pad(xs.transpose(1, 2), ((width - 1) * dilation, 0))  # causal
        ys = functional.conv1d(padded, weight, bias, dilation=dilation).transpose(1, 2)
        case(f"conv1d-{width}-{dilation}", weight=weight, bias=bias, xs=xs, ys=ys)
    case("glu", xs=xs, ys=functional.glu(xs))
    kernel, length = draw(3, 3, INPUTS, 5), draw(4, 1, 1, 5).abs()
    case("weight_norm", direction=kernel, length=length, kernel=torch._weight_norm(kernel, length, 2))


def attentions() -> None:
    query, memory = draw(5, WIDTH), draw(6, 5, WIDTH)
    case("cosine", query=query, memory=memory, scores=functional.cosine_similarity(query[None], memory, dim=1))

    queries, keys, values = draw(7, ROWS, HEADS, 4, 3), draw(8, ROWS, HEADS, 5, 3), draw(9, ROWS, HEADS, 5, 3)
    mask = torch.tensor(np.random.default_rng(10).random((ROWS, 4, 5)) < 0.6)
    mask[..., 0] = True  # an empty row is not defined
    bias = draw(11, 1, HEADS, 4, 5)
    for name, added in (("plain", torch.zeros_like(bias)), ("biased", bias)):
        masked = torch.where(mask[:, None], added, -torch.inf)
        ys = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=masked)
        case(f"heads-{name}", queries=queries, keys=keys, values=values, mask=mask, bias=added, ys=ys)

    heads = [draw(seed, 2, HEADS, 9, 3) for seed in (12, 13, 14)]
    module = torch.nn.MultiheadAttention(8, HEADS, batch_first=True)
    weights, x = redraw(module), draw(15, 2, TIME, 8)
    case("self_attention", x=x, **weights)
    for causal in (False, True):
        ys = functional.scaled_dot_product_attention(*heads, attn_mask=band(9, 2, causal))
        case(f"band-{causal}", **dict(zip(("queries", "keys", "values"), heads)), ys=ys)
        for window in (0, 2):
            ys = module(x, x, x, attn_mask=~band(TIME, window or TIME, causal))[0]
            case(f"self_attention-{window}-{causal}", ys=ys)


def band(length: int, radius: int, causal: bool) -> torch.Tensor:
    distance = torch.arange(length) - torch.arange(length)[:, None]
    return (distance.abs() <= radius) & ((distance <= 0) | (not causal))


def recurrences() -> None:
    """Two directions on packed sentences: outputs, last carries, and gradients of all squared outputs."""
    for name, kind in (("rnn", torch.nn.RNN), ("lstm", torch.nn.LSTM), ("gru_after", torch.nn.GRU)):
        module = kind(2, 3, batch_first=True, bidirectional=True)
        weights, xs = redraw(module), draw(16, ROWS, TIME, 2)
        if name == "gru_after":  # where the second bias of the candidate is not the first
            with torch.no_grad():
                for suffix in ("", "_reverse"):
                    weights[f"bias_hh_l0{suffix}"][-3:] = draw(17, 3)
        begin = [draw(18 + part, 2, ROWS, 3) for part in range(2 if name == "lstm" else 1)]
        ys, last = packed(module, xs, tuple(begin) if name == "lstm" else begin[0])
        (ys**2).sum().backward()
        gradients = {f"d_{key}": value.grad for key, value in weights.items()}
        last = last if name == "lstm" else (last,)
        carries = {f"begin_{i}": one for i, one in enumerate(begin)} | {f"last_{i}": one for i, one in enumerate(last)}
        case(name, xs=xs, ys=ys, lengths=LENGTHS, **weights, **gradients, **carries)

    module = torch.nn.LSTM(INPUTS, WIDTH // 2, num_layers=2, batch_first=True, bidirectional=True)
    weights, xs = redraw(module), draw(20, ROWS, TIME, INPUTS)
    ys, (hidden, cell) = packed(module, xs)
    case("lstm_stack", xs=xs, ys=ys, lengths=LENGTHS, last_0=hidden, last_1=cell, **weights)

    # Every step reads a word and the same vector of a sentence.
    module = torch.nn.RNN(6 + 8, 8, batch_first=True)
    weights, words, sentence = redraw(module), draw(21, 1, 4, 6), draw(22, 1, 8)
    states, _ = module(torch.cat([words, sentence[:, None].expand(1, 4, 8)], dim=-1))
    case("rnn_fed_a_sentence", words=words, sentence=sentence, states=states, **weights)


def packed(module, xs, *begin):
    sentences = torch.nn.utils.rnn.pack_padded_sequence(xs, LENGTHS, batch_first=True)
    ys, last = module(sentences, *begin)
    return torch.nn.utils.rnn.pad_packed_sequence(ys, batch_first=True, total_length=TIME)[0], last


if __name__ == "__main__":
    convolutions()
    attentions()
    recurrences()
    np.savez_compressed(Path(__file__).with_name("torch.npz"), **CASES)
