"""A classifier: an encoder of any family, pooled into one vector, and a dense layer over labels.

Letters: B batch, S source positions, F features of a frame, H width of the states, K queries, L labels.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers, models
from s2sjax.core.nn.pooling import query_pool
from s2sjax.models.encoder_decoder import EncoderOutput, masked_mean, self_attention_of
from s2sjax.models.families.rctm import masked_max
from s2sjax.models.frontends import Frames, Tokens, token_embedding, word_dropout
from s2sjax.tasks.classification.settings import Pooling


class Labelling(NamedTuple):
    """Scores of the labels, and the attention of the pooling."""

    logits: Array  # [B, L] float32
    attention: Array | None  # [B, K, S] if the pooling is attention


class Classifier(nn.Module):
    """Computes logits = W_o pool(encoder(x)) + b_o.

    Reads ids [B, S], or frames [B, S, F] and their lengths [B]. The pooled vector is the final state of the top layer,
    the state h of the first position ([CLS] of BERT), BERT's tanh(W h + b), the mean or the maximum of all states, or
    the concatenated context vectors of learned queries.
    """

    family: config.Family
    labels: int
    pooling: Pooling = "mean"
    queries: int = 1
    """number of queries of attention pooling"""
    attention_width: int = 0
    """width A of `core.nn.pooling.query_pool`; 0 for the width of the states"""
    dropout: float = 0.0
    """dropout rate of the pooled vector"""
    initial: float = 1.0
    """initial standard deviation of the embedding"""
    word_dropout: float = 0.0
    """fraction of the words that training replaces by <unk>"""
    size: int = 0
    """size of the vocabulary; 0 for frames"""
    features: int = 0
    """number of features of a frame; 0 for ids"""
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"
    spelling: layers.Spelling | None = None

    def setup(self):
        # `encoder/` and `embedding/` are top-level, as in other tasks: see training/checkpoints/transfer.py.
        family, states = self.family, self.family.encoder_spec.states
        self.frontend: Any
        if self.features:
            self.frontend = Frames(self.features, family.embedding_size, self.dtype)
        else:
            self.embedding = token_embedding(
                self.size, family.embedding_size, self.dtype, self.spelling, self.initial, family.scale_embedding
            )
            self.frontend = Tokens(self.embedding)
        self.encoder = models.build_encoder(family, self.frontend.width, self.dtype, self.remat_policy)
        width, A = states, self.attention_width or states
        if self.pooling == "attention":
            shapes = {"kernel": (states, A), "bias": (A,), "query": (A, self.queries)}
            self.attention = layers.Weights(shapes, self.dtype)
            width = self.queries * states
        elif self.pooling == "pooler":  # a name that pre-training has too
            self.pooler = layers.Dense(states, states, self.dtype)
        elif self.pooling == "final":
            carries = family.encoder_spec.carries
            assert carries is not None, "LabelModel checks this"
            width = carries.widths[-1]
        self.output = layers.Dense(width, self.labels, self.dtype)

    def __call__(self, source: Array, lengths: Array | None = None, train: bool = False) -> Labelling:
        if lengths is not None:
            xs, mask = self.frontend(source, lengths)
        else:
            xs, mask = self.frontend(word_dropout(self, source, self.word_dropout, train))
        pooled, attention = self._pooled(self.encoder(xs, mask, train))
        pooled = layers.dropout(self, pooled, self.dropout, train)
        return Labelling(self.output.logits(pooled), attention)

    def self_attention_heads(self, source: Array) -> dict[int, Array]:
        """The weights of self-attention of each layer for ids [B, S]: [B, N, S, S]."""
        return self_attention_of(self.encoder, *self.frontend(source))

    def _pooled(self, memory: EncoderOutput) -> tuple[Array, Array | None]:
        match self.pooling:
            case "final":
                return memory.final[-1][0], None
            case "first":
                return memory.states[:, 0], None
            case "pooler":
                return jnp.tanh(self.pooler(memory.states[:, 0])), None
            case "mean":
                return masked_mean(memory.states, memory.mask), None
            case "max":
                return masked_max(memory.states, memory.mask), None
            case _:
                return query_pool(self.attention(), memory.states, memory.mask)
