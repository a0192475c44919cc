"""The same models written in PyTorch, for comparison in `s2sjax bench train`.

Letters: B batch, S source positions, T target positions, E embedding, H width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from s2sjax import config


class Luong(nn.Module):
    """Bidirectional LSTM encoder, LSTM decoder, general attention over all steps at once (no input feeding)."""

    def __init__(self, c: config.Luong, vocabulary: int):
        super().__init__()
        half = c.width // 2
        self.source = nn.Embedding(vocabulary, c.embedding)
        self.target = nn.Embedding(vocabulary, c.embedding)
        self.encoder = nn.LSTM(c.embedding, half, c.layers, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(c.embedding, c.width, c.layers, batch_first=True)
        self.general = nn.Linear(c.width, c.width, bias=False)
        self.combine = nn.Linear(2 * c.width, c.width, bias=False)
        self.output = nn.Linear(c.width, vocabulary)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        states, final = self.encoder(self.source(source))
        carry = tuple(torch.cat([part[0::2], part[1::2]], dim=-1) for part in final)
        queries, _ = self.decoder(self.target(inputs), carry)
        scores = queries @ self.general(states).transpose(1, 2)  # [B, T, S]
        context = scores.masked_fill(source[:, None] == 0, -1e9).softmax(-1) @ states
        return self.output(torch.tanh(self.combine(torch.cat([context, queries], dim=-1))))


class RNNsearch(nn.Module):
    """Bidirectional GRU encoder; at each step additive attention, then a GRU cell; maxout readout."""

    def __init__(self, c: config.RNNsearch, vocabulary: int):
        super().__init__()
        self.source = nn.Embedding(vocabulary, c.embedding)
        self.target = nn.Embedding(vocabulary, c.embedding)
        self.encoder = nn.GRU(c.embedding, c.width, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(c.width, c.width)
        self.memory = nn.Linear(2 * c.width, c.width, bias=False)
        self.query = nn.Linear(c.width, c.width, bias=False)
        self.vector = nn.Linear(c.width, 1, bias=False)
        self.cell = nn.GRUCell(c.embedding + 2 * c.width, c.width)
        self.readout = nn.Linear(3 * c.width + c.embedding, 2 * c.embedding)
        self.output = nn.Linear(c.embedding, vocabulary)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        states, final = self.encoder(self.source(source))
        keys, padded = self.memory(states), source == 0
        state, embedded, seen = torch.tanh(self.bridge(final[1])), self.target(inputs), []
        for t in range(inputs.shape[1]):
            scores = self.vector(torch.tanh(keys + self.query(state)[:, None]))[..., 0]
            alpha = scores.masked_fill(padded, -1e9).softmax(-1)
            context = (alpha[:, None] @ states)[:, 0]
            state = self.cell(torch.cat([embedded[:, t], context], dim=-1), state)
            seen.append(torch.cat([state, embedded[:, t], context], dim=-1))
        hidden = self.readout(torch.stack(seen, dim=1))
        return self.output(torch.maximum(*hidden.chunk(2, dim=-1)))


class Transformer(nn.Module):
    """The Transformer layers of PyTorch, with tied output embeddings."""

    def __init__(self, c: config.Transformer, vocabulary: int):
        super().__init__()
        options: dict[str, Any] = {"dropout": c.dropout, "batch_first": True, "norm_first": c.norm == "pre"}
        self.source = nn.Embedding(vocabulary, c.width)
        self.target = nn.Embedding(vocabulary, c.width)
        encoder = nn.TransformerEncoderLayer(c.width, c.heads, c.feedforward, **options)
        decoder = nn.TransformerDecoderLayer(c.width, c.heads, c.feedforward, **options)
        self.encoder = nn.TransformerEncoder(encoder, c.encoder_layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, c.decoder_layers)
        self.positions = nn.Parameter(torch.zeros(1024, c.width), requires_grad=False)

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        padded = source == 0
        memory = self.encoder(self.source(source) + self.positions[: source.shape[1]], src_key_padding_mask=padded)
        length = inputs.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=inputs.device).triu(1)
        x = self.target(inputs) + self.positions[:length]
        x = self.decoder(x, memory, tgt_mask=causal, memory_key_padding_mask=padded, tgt_is_causal=True)
        return functional.linear(x, self.target.weight)


PEERS = {config.Luong: Luong, config.RNNsearch: RNNsearch, config.Transformer: Transformer}


class Trainer:
    """One Adam step per call, like the s2sjax training step: forward, loss, backward, clip, update."""

    def __init__(self, c: config.ModelConfig, vocabulary: int, source, target, device: str, compiled: bool):
        self.model = PEERS[type(c)](c, vocabulary).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.source = torch.as_tensor(source, device=device).long()
        self.target = torch.as_tensor(target, device=device).long()
        self.inputs = functional.pad(self.target[:, :-1], (1, 0), value=1)
        self.forward = torch.compile(self.model) if compiled else self.model

    def step(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.forward(self.source, self.inputs)
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), self.target.flatten(), ignore_index=0)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()
