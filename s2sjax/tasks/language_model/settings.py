"""Settings of language models: the three kinds of models, the continuation of prompts, and the evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from s2sjax.config.adapters import EVERYTHING_ELSE
from s2sjax.config.evaluation import EvaluationSettings
from s2sjax.config.models.hybrid_settings import Hybrid, MixerName
from s2sjax.config.models.recurrent_settings import CellName
from s2sjax.config.models.transformer_settings import Transformer
from s2sjax.config.settings import at_least, require, settings


@settings
class RecurrentLM:
    """A stack of recurrent layers, which keeps its state from one segment to the next.

    The options of Merity et al. 2017 (AWD-LSTM) are off by default; the names in parentheses are theirs.
    """

    embedding_size: int = 0
    """width of the word vectors; 0: half of `width`, between 32 and 400"""
    width: int = 0
    """width of the states; with tied weights, the last layer is as wide as the embedding; 0: half the square root of
    the number of training tokens, between 64 and 1150"""
    layers: int = 0
    """number of recurrent layers; 0: one if `width` is below 256, two if it is below 650, else three"""
    cell: CellName = "lstm"
    """recurrent cell: see s2sjax/core/recurrence/cells.py"""
    tie: bool = True
    """whether word vectors and output layer share one table (Press and Wolf 2017)"""
    dropout: float = 0.0
    """dropout rate between layers (dropouth)"""
    input_dropout: float = 0.0
    """dropout rate of the word vectors (dropouti)"""
    output_dropout: float = 0.0
    """dropout rate of the last layer's states (dropout)"""
    word_dropout: float = 0.0
    """dropout rate of whole words, all their occurrences in a segment (dropoute)"""
    variational_dropout: bool = True
    """whether all steps of a segment share one dropout mask (Gal and Ghahramani 2016)"""
    weight_drop: float = 0.0
    """dropout rate of the recurrent weights, one mask per segment (wdrop)"""
    activation_penalty: float = 0.0
    """strength of the activation regularisation (alpha)"""
    temporal_penalty: float = 0.0
    """strength of the temporal activation regularisation (beta)"""

    def resolve_defaults(self, tokens: int) -> RecurrentLM:
        """Replaces sizes of 0 by those that suit a training text of this many tokens."""
        width = self.width or min(max(round(tokens**0.5 / 2 / 16) * 16, 64), 1150)
        embedding = self.embedding_size or min(max(width // 2, 32), 400)
        return replace(
            self, embedding_size=embedding, width=width, layers=self.layers or 1 + (width >= 256) + (width >= 650)
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the states, one for each layer."""
        return (self.width,) * (self.layers - 1) + (self.embedding_size if self.tie else self.width,)

    def __post_init__(self):
        at_least(0, self, "model", "embedding_size", "width", "layers", "activation_penalty", "temporal_penalty")
        for name in ("dropout", "input_dropout", "output_dropout", "word_dropout", "weight_drop"):
            require(0 <= getattr(self, name) < 1, f"model.{name} is {getattr(self, name)}: it must be in [0, 1)")
        require(
            self.weight_drop == 0 or self.cell not in ("mingru", "minlstm"),
            f"model.weight_drop drops weights from state to state, and {self.cell} has none: set it to 0",
        )


@settings
class TransformerLM:
    """A Transformer decoder without cross-attention. Each segment is read independently."""

    width: int = 256
    """width of the residual stream"""
    heads: int = 4
    """number of attention heads, which divide `width`"""
    feedforward: int = 1024
    """width of the inner layer of a block"""
    layers: int = 4
    """number of blocks"""
    norm: Literal["post", "pre"] = "pre"
    """place of the layer norm: after each sub-layer, or before it"""
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "rotary"
    """kind of position encoding: see s2sjax/core/attention/position_encodings.py"""
    tie: bool = True
    """whether word vectors and output layer share one table"""
    dropout: float = 0.1
    """dropout rate"""
    word_dropout: float = 0.0
    """dropout rate of whole words, all their occurrences in a segment"""
    max_length: int = 0
    """number of learned positions; 0 for `data.steps`"""
    head_width: int = 0
    """width of a head; 0 for `width` / `heads`"""
    activation: Literal["relu", "gelu", "gelu_tanh", "swish"] = "relu"
    """activation of the feed-forward networks; gelu_tanh is the approximation of gelu by tanh"""
    gated: bool = False
    """whether the feed-forward networks are gated: W_2 (activation(W_3 x) * W_1 x) (Shazeer 2020)"""
    normalization: Literal["layer", "rms"] = "layer"
    """kind of norm: layer norm, or RMS norm, which does not subtract the mean and has no bias"""
    epsilon: float = 1e-6
    """number that the norms add to the variance"""
    biases: bool = True
    """whether attention and feed-forward networks have biases"""
    scale_embedding: bool = True
    """whether token embeddings are multiplied by the square root of their width"""
    output_bias: bool = True
    """whether the logits have a bias"""
    adapter_rank: int = 0
    """rank of the low-rank adapters of all matrices of the blocks; training then changes only the adapters (LoRA, Hu et
    al. 2021); 0 for none"""
    adapter_scale: float = 1.0
    """multiplier of the low-rank adapters"""

    frozen_by_adapters: ClassVar = EVERYTHING_ELSE

    def blocks(self, steps: int) -> Transformer:
        """Settings of the blocks for segments of this length."""
        return Transformer(
            width=self.width, heads=self.heads, feedforward=self.feedforward, encoder_layers=self.layers,
            decoder_layers=self.layers, norm=self.norm, positions=self.positions, max_length=self.max_length or steps,
            dropout=self.dropout, head_width=self.head_width, activation=self.activation, gated=self.gated,
            normalization=self.normalization, epsilon=self.epsilon, biases=self.biases,
            scale_embedding=self.scale_embedding, adapter_rank=self.adapter_rank, adapter_scale=self.adapter_scale,
        )  # fmt: skip

    @property
    def max_positions(self) -> int | None:
        """The most tokens that it can read at once; None if `data.steps` decides."""
        return self.max_length or None if self.positions == "learned" else None

    def __post_init__(self):
        at_least(1, self, "model", "layers")
        at_least(0, self, "model", "max_length")
        require(0 <= self.word_dropout < 1, f"model.word_dropout is {self.word_dropout}: it must be in [0, 1)")
        self.blocks(1)  # checks the rest


@settings
class HybridLM:
    """Blocks as in the Transformer, whose self-attention is replaced by a recurrence or by local attention: linear
    attention, retention, the delta rule, Mamba-2, Griffin, xLSTM. Its state has constant size, and it keeps it from one
    segment to the next."""

    width: int = 256
    """width of the residual stream"""
    heads: int = 4
    """number of heads of each mixer, which divide `width`"""
    feedforward: int = 1024
    """width of the inner layer of a block"""
    layers: int = 4
    """number of blocks"""
    mixers: tuple[MixerName, ...] = ("gated_delta",)
    """mixer of each layer: local_attention, or a recurrence of s2sjax/core/mixers/layers.py; the pattern repeats up to
    the last layer"""
    short_convolution: int = 4
    """positions of the short convolution before a recurrence; 1 for its own position alone"""
    state_width: int = 64
    """number of rows of the state of ssd; those of other recurrences follow from `width` and `heads`"""
    expand: int = 2
    """ratio of the inner width of ssd to `width`"""
    window: int = 128
    """number of positions before its own that local_attention sees, those of earlier segments included"""
    positions: Literal["rotary", "none"] = "rotary"
    """kind of position encoding of local_attention; recurrences need none"""
    norm: Literal["post", "pre"] = "pre"
    """place of the norm: after each sub-layer, or before it"""
    tie: bool = True
    """whether word vectors and output layer share one table"""
    dropout: float = 0.1
    """dropout rate"""
    word_dropout: float = 0.0
    """dropout rate of whole words, all their occurrences in a segment"""
    activation: Literal["relu", "gelu", "gelu_tanh", "swish"] = "swish"
    """activation of the feed-forward networks; gelu_tanh is the approximation of gelu by tanh"""
    gated: bool = True
    """whether the feed-forward networks are gated: W_2 (activation(W_3 x) * W_1 x) (Shazeer 2020)"""
    normalization: Literal["layer", "rms"] = "rms"
    """kind of norm: layer norm, or RMS norm, which does not subtract the mean and has no bias"""
    epsilon: float = 1e-6
    """number that the norms add to the variance"""
    biases: bool = False
    """whether attention and feed-forward networks have biases"""
    scale_embedding: bool = True
    """whether token embeddings are multiplied by the square root of their width"""
    output_bias: bool = True
    """whether the logits have a bias"""

    def blocks(self) -> Hybrid:
        """Settings of the blocks."""
        return Hybrid(
            width=self.width, heads=self.heads, feedforward=self.feedforward, encoder_layers=self.layers,
            decoder_layers=self.layers, mixers=self.mixers, short_convolution=self.short_convolution,
            state_width=self.state_width, expand=self.expand, window=self.window, positions=self.positions,
            norm=self.norm, dropout=self.dropout, activation=self.activation, gated=self.gated,
            normalization=self.normalization, epsilon=self.epsilon, biases=self.biases,
            scale_embedding=self.scale_embedding,
        )  # fmt: skip

    def __post_init__(self):
        at_least(1, self, "model", "width", "heads", "layers")
        require(0 <= self.word_dropout < 1, f"model.word_dropout is {self.word_dropout}: it must be in [0, 1)")
        require(
            self.width % self.heads == 0,
            f"model.width {self.width} is not divisible by model.heads {self.heads}: "
            f"try width {self.heads * max(1, round(self.width / self.heads))}",
        )
        require(
            "attention" not in self.mixers,
            "model.mixers has attention, whose state would grow with the text: use local_attention, which sees "
            "model.window positions",
        )
        require(
            len(self.mixers) <= self.layers,
            f"model.mixers names {len(self.mixers)} mixers for {self.layers} layers: name fewer, or raise model.layers",
        )
        self.blocks()  # checks the rest


@settings
class Continuation:
    """Sampling of continuations: see core/search/sampling.py. The same prompts and the same seed give the same text."""

    max_length: int = 40
    """maximum number of tokens to write; the end of the line ends the text"""
    temperature: float = 1.0
    """softmax temperature: below 1 sharpens the distribution, above 1 flattens it; 0 takes the most likely token"""
    top_k: int = 0
    """number of most likely tokens to sample from; 0: all"""
    top_p: float = 1.0
    """least total probability of the tokens to sample from, the most likely first"""
    min_p: float = 0.0
    """least probability of the tokens to sample from, as a fraction of the highest"""
    seed: int = 0
    """random seed"""
    after_eos: bool = True
    """whether a prompt is read after <eos>, as every line of a text is; an empty one always is"""

    def __post_init__(self):
        at_least(1, self, "search", "max_length")
        at_least(0, self, "search", "temperature", "top_k", "seed")
        require(0 < self.top_p <= 1, f"search.top_p is {self.top_p}: it must be above 0 and at most 1")
        require(0 <= self.min_p <= 1, f"search.min_p is {self.min_p}: it must be from 0 to 1")


@settings
class PerplexityEvaluate(EvaluationSettings):
    """Evaluation by perplexity. Every token of the text counts, line ends included."""

    streams: int = 1
    """number of streams that a model with a state reads in parallel; 1 reads the text from beginning to end"""
    context: int = 0
    """tokens read before those that are scored: by each stream except the first, or at least by each window of a
    Transformer"""
    dev_examples: int = 1_000_000
    """number of dev lines evaluated during training, starting with the first"""
    samples: int = 0
    """number of dev lines shown at each evaluation"""

    def __post_init__(self):
        at_least(1, self, "evaluate", "streams", "dev_examples")
        at_least(0, self, "evaluate", "context", "samples")
