"""Settings of language models: the text, the two kinds of models, how they continue a text, how they are judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from s2sjax.config.evaluation import EvaluationSettings
from s2sjax.config.models import CellName, Transformer
from s2sjax.config.paths import FilePath
from s2sjax.config.settings import at_least, require, settings


@settings
class PlainText:
    """Text files, UTF-8, plain or .gz, one sentence or paragraph a line; every line, also a blank one, ends with <eos>.

    The training text is cut into `rows` streams, which are read side by side, `steps` tokens at a time.
    """

    train: FilePath = ""
    """file of the training text"""
    dev: FilePath = ""
    """file of the text that is evaluated during training"""
    test: FilePath = ""
    """file of the text that is evaluated at the end"""
    origin: str = ""
    """what the files are and where they come from, for the error if one is missing"""
    unit: Literal["words", "characters"] = "words"
    """what one token is; words are separated by blanks, and of several blanks in a row one is a character"""
    min_count: int = 1
    """tokens that occur less often become <unk>"""
    rows: int = 20
    """streams of the training text: rows of a batch"""
    steps: int = 70
    """tokens of a row: what the gradient goes back through, and what a Transformer sees"""
    shift: bool = True
    """begin each epoch at another place of the text, so that its segments are other ones"""
    prefetch: int = 4
    """batches made ahead by Grain's threads"""

    @property
    def buckets(self) -> tuple[tuple[int], ...]:
        return ((self.steps,),)

    @property
    def tokens(self) -> int:
        """of a batch"""
        return self.rows * self.steps

    def __post_init__(self):
        at_least(1, self, "data", "rows", "steps", "min_count")
        at_least(0, self, "data", "prefetch")


@settings
class RecurrentLM:
    """A stack of recurrent layers, which keeps its state from one segment to the next.

    The options of Merity et al. 2017 (AWD-LSTM) are off by default; the names of their program are in parentheses.
    """

    embedding: int = 0
    """width of the word vectors; 0 for half of `width`, from 32 to 400"""
    width: int = 0
    """width of the states of every layer; if the weights are tied, the last one is as wide as the embedding; 0 for half
    the square root of the number of training tokens, from 64 to 1150"""
    layers: int = 0
    """recurrent layers; 0 for one with states narrower than 256, two below 650, else three"""
    cell: CellName = "lstm"
    """how a state moves: see s2sjax/core/cells.py"""
    tie: bool = True
    """one table for word vectors and output layer (Press and Wolf 2017)"""
    dropout: float = 0.0
    """between layers (dropouth)"""
    input_dropout: float = 0.0
    """of the word vectors (dropouti)"""
    output_dropout: float = 0.0
    """of the last layer's states (dropout)"""
    word_dropout: float = 0.0
    """of whole words of the embedding: all occurrences in a segment (dropoute)"""
    variational: bool = True
    """one mask of dropout for all steps of a segment, instead of one a step (Gal and Ghahramani 2016)"""
    weight_drop: float = 0.0
    """dropout of the weights from state to state, one mask a segment (wdrop)"""
    activation_penalty: float = 0.0
    """strength of the activation regularisation (alpha)"""
    temporal_penalty: float = 0.0
    """strength of the temporal activation regularisation (beta)"""

    def resolve_defaults(self, tokens: int) -> RecurrentLM:
        """With sizes for a training text of that many tokens, where they are 0."""
        width = self.width or min(max(round(tokens**0.5 / 2 / 16) * 16, 64), 1150)
        embedding = self.embedding or min(max(width // 2, 32), 400)
        return replace(
            self, embedding=embedding, width=width, layers=self.layers or 1 + (width >= 256) + (width >= 650)
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the states of each layer."""
        return (self.width,) * (self.layers - 1) + (self.embedding if self.tie else self.width,)

    def __post_init__(self):
        at_least(0, self, "model", "embedding", "width", "layers", "activation_penalty", "temporal_penalty")
        for name in ("dropout", "input_dropout", "output_dropout", "word_dropout", "weight_drop"):
            require(0 <= getattr(self, name) < 1, f"model.{name} is {getattr(self, name)}: it must be in [0, 1)")
        require(
            self.weight_drop == 0 or self.cell not in ("mingru", "minlstm"),
            f"model.weight_drop drops weights from state to state, and {self.cell} has none: set it to 0",
        )


@settings
class TransformerLM:
    """The decoder of a Transformer without its cross attention. Each segment is read by itself."""

    width: int = 256
    """of the residual stream"""
    heads: int = 4
    """attention heads; they share `width`"""
    feedforward: int = 1024
    """width of the inner layer of a block"""
    layers: int = 4
    """blocks"""
    norm: Literal["post", "pre"] = "pre"
    """layer norm after each sub-layer, or before it"""
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "rotary"
    """kind of position encoding: see s2sjax/core/positions.py"""
    tie: bool = True
    """one table for word vectors and output layer"""
    dropout: float = 0.1
    """dropout rate"""
    word_dropout: float = 0.0
    """of whole words of the embedding: all occurrences in a segment"""

    def blocks(self, steps: int) -> Transformer:
        """The settings of the blocks, for segments of this length."""
        return Transformer(
            width=self.width, heads=self.heads, feedforward=self.feedforward, encoder_layers=self.layers,
            decoder_layers=self.layers, norm=self.norm, positions=self.positions, max_length=steps,
            dropout=self.dropout,
        )  # fmt: skip

    def __post_init__(self):
        at_least(1, self, "model", "layers")
        require(0 <= self.word_dropout < 1, f"model.word_dropout is {self.word_dropout}: it must be in [0, 1)")
        self.blocks(1)  # checks the rest


@settings
class Continuation:
    """How a prompt is continued: see s2sjax/core/sampling.py. The same prompts and the same seed give the same text."""

    max_length: int = 40
    """tokens that are written at most; the end of the line ends the text"""
    temperature: float = 1.0
    """below 1 sharpens the distribution, above 1 flattens it; 0 takes the most likely token"""
    top_k: int = 0
    """sample only from the k most likely tokens; 0 for all"""
    top_p: float = 1.0
    """sample only from the smallest set of tokens with at least this total probability"""
    min_p: float = 0.0
    """sample only from tokens with at least this fraction of the highest probability"""
    seed: int = 0
    """random seed"""

    def __post_init__(self):
        at_least(1, self, "search", "max_length")
        at_least(0, self, "search", "temperature", "top_k", "seed")
        require(0 < self.top_p <= 1, f"search.top_p is {self.top_p}: it must be above 0 and at most 1")
        require(0 <= self.min_p <= 1, f"search.min_p is {self.min_p}: it must be from 0 to 1")


@settings
class PerplexityEvaluate(EvaluationSettings):
    """Every token of the text counts, line ends included."""

    streams: int = 1
    """of a recurrent model: 1 reads the text from beginning to end, the state kept; more are read side by side"""
    context: int = 0
    """tokens read before those that count: by each stream but the first; by each window of a Transformer at least"""
    lines: int = 1_000_000
    """dev lines evaluated during training, from the first on"""
    samples: int = 0
    """dev lines shown at each evaluation"""

    def __post_init__(self):
        at_least(1, self, "evaluate", "streams", "lines")
        at_least(0, self, "evaluate", "context", "samples")
