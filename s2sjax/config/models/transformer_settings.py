"""Settings of the Transformer."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.models.specs import AttentionWindow, DecoderSpec, EncoderSpec, ModelSettings, Tie
from s2sjax.config.settings import at_least, must_be, require, settings
from s2sjax.core.special_tokens import EOS, PAD, SOS


@settings
class Transformer(ModelSettings):
    """Vaswani et al. 2017: self-attention, all positions in parallel."""

    width: int = 512
    """width of the residual stream"""
    heads: int = 8
    """number of attention heads, each of width `width` / `heads`"""
    feedforward: int = 2048
    """width of the hidden layer of the feed-forward networks"""
    encoder_layers: int = 6
    """number of encoder blocks"""
    decoder_layers: int = 6
    """number of decoder blocks"""
    head_width: int = 0
    """width of a head; 0 for `width` / `heads`"""
    activation: Literal["relu", "gelu", "gelu_tanh", "swish"] = "relu"
    """activation of the feed-forward networks; gelu_tanh is the approximation of gelu by tanh"""
    gated: bool = False
    """whether the feed-forward networks are gated: W_2 (activation(W_3 x) * W_1 x) (Shazeer 2020)"""
    norm: Literal["post", "pre"] = "post"
    """position of the norm: after each sub-layer, as published, or before it"""
    normalization: Literal["layer", "rms"] = "layer"
    """kind of norm: layer norm, or RMS norm, which does not subtract the mean and has no bias"""
    epsilon: float = 1e-6
    """number that the norms add to the variance"""
    norm_embedding: bool = False
    """whether to normalize the embeddings after their positions are added"""
    biases: bool = True
    """whether attention and feed-forward networks have biases"""
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "sinusoidal"
    """kind of position encoding: see s2sjax/core/attention/position_encodings.py"""
    join_positions: Literal["sum", "concat"] = "sum"
    """use of sinusoidal or learned positions: added to the embedding, or concatenated and projected to `width`"""
    share_positions: bool = True
    """whether the layers of a stack share one table of relative positions, as in T5, or each layer has its own, as in
    UMT5"""
    sinusoids: Literal["vaswani", "tensor2tensor"] = "vaswani"
    """rates of sinusoidal positions: as published, or as in Tensor2Tensor, where the slowest is exactly 1 / 10000"""
    first_position: int = 0
    """number of the first sinusoidal position"""
    max_length: int = 512
    """maximum sequence length for learned positions"""
    window: int = 0
    """reach of self-attention to either side, in positions; 0 for no limit"""
    tie: Tie = "output"
    """tied matrices: target embedding and output layer (output), both embeddings (embeddings), or all three; the last
    two need a shared vocabulary"""
    scale_embedding: bool = True
    """whether token embeddings are multiplied by the square root of their width"""
    scale_output: bool = False
    """whether the input of the output layer is divided by the square root of its width"""
    output_bias: bool | None = None
    """whether the logits have a bias; None for one exactly if the output layer is a matrix of its own"""
    decoder_start: Literal["sos", "pad", "eos"] = "sos"
    """special token that the decoder reads first"""
    dropout: float = 0.1
    """dropout rate"""
    adapter_rank: int = 0
    """rank of the low-rank adapters of all matrices of the blocks; training then changes only the adapters (LoRA, Hu et
    al. 2021); 0 for none"""
    adapter_scale: float = 1.0
    """multiplier of the low-rank adapters"""

    @property
    def embedding_size(self) -> int:  # type: ignore[override]
        return self.width

    @property
    def attention_width(self) -> int:
        """The width of all heads together."""
        return self.heads * self.head_width if self.head_width else self.width

    @property
    def rotates(self) -> bool:
        """Whether attention rotates its queries and keys."""
        return self.positions == "rotary"

    @property
    def start_token(self) -> int:
        return {"sos": SOS, "pad": PAD, "eos": EOS}[self.decoder_start]

    @property
    def takes_segments(self) -> bool:  # type: ignore[override]
        return self.window == 0

    @property
    def max_positions(self) -> int | None:
        return self.max_length if self.positions == "learned" else None

    @property
    def attention_window(self) -> AttentionWindow:
        return AttentionWindow("window", self.window, False, "0")

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.width)

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(self.width)

    def __post_init__(self):
        at_least(1, self, "model", "width", "heads", "feedforward", "encoder_layers", "decoder_layers", "max_length")
        at_least(0, self, "model", "window", "head_width", "first_position", "adapter_rank")
        must_be("above 0", self, "model", "epsilon")
        must_be("in [0, 1)", self, "model", "dropout")
        require(
            self.head_width > 0 or self.width % self.heads == 0,
            f"model.width {self.width} is not divisible by model.heads {self.heads}: "
            f"try width {self.heads * max(1, round(self.width / self.heads))}, or set model.head_width",
        )
        require(
            self.positions != "sinusoidal" or self.width % 2 == 0,
            f"model.width {self.width} must be even for sinusoidal positions",
        )
        of_head = (
            f"head_width {self.head_width}" if self.head_width else f"width {self.width} / model.heads {self.heads}"
        )
        require(
            not self.rotates or self.attention_width // self.heads % 2 == 0,
            f"model.{of_head} must be even for rotary positions",
        )
        require(
            self.join_positions == "sum" or self.positions in ("sinusoidal", "learned"),
            f"model.join_positions '{self.join_positions}' requires one vector per position: "
            f"set model.positions to sinusoidal or learned, not {self.positions}",
        )
        require(
            self.share_positions or self.positions == "relative",
            "model.share_positions False applies to relative positions: set model.positions to relative, or leave it "
            "out",
        )
        for name, usual in (("sinusoids", "vaswani"), ("first_position", 0)):
            value = getattr(self, name)
            require(
                value == usual or self.positions == "sinusoidal",
                f"model.{name} {value} applies to sinusoidal positions: set model.positions to sinusoidal, or leave it "
                "out",
            )
