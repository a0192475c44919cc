"""Marian, BART, mBART, M2M-100 (NLLB), Pegasus and Blenderbot: one Transformer, with the differences of `FAMILIES`.

|            | norm | positions                   | norm of embeddings | bias of the logits |
|------------|------|-----------------------------|--------------------|--------------------|
| marian     | post | sinusoidal                  | no                 | yes                |
| bart       | post | learned, from row 2         | yes                | yes                |
| mbart      | pre  | learned, from row 2         | yes                | yes                |
| m2m_100    | pre  | sinusoidal of tensor2tensor | no                 | no                 |
| pegasus    | pre  | sinusoidal                  | no                 | yes                |
| blenderbot | pre  | learned                     | no                 | yes                |

Their norms add 1e-5 to the variance, and no entry of config.json changes it. An export of a model with the usual 1e-6
of s2sjax is therefore not exact: a norm of vectors with variance v changes by a factor of 1 - 4.5e-6 / v.

Marian's files can have two embeddings and an output layer of their own. Those of the others have them since
transformers 5; transformers 4 would read one table for all, so a model with `tie` "output" or "none" requires 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from s2sjax import config
from s2sjax.interop.correspondence import Row, dense, norm
from s2sjax.interop.families.family import (
    Difference,
    ExportedFamily,
    activation,
    decoder_start,
    differing,
    equal,
    foreign_activation,
    special_ids,
)

EPSILON = 1e-5


@dataclass(frozen=True)
class Bart(ExportedFamily):
    """One of these models."""

    norm: Literal["post", "pre"]
    positions: Literal["sinusoidal", "learned"]
    norm_embedding: bool = False
    tensor2tensor: bool = False
    """whether positions have the rates of tensor2tensor, from the number after <pad>"""
    skip: int = 0
    """number of rows before the first position"""
    has_bias: bool = True
    """whether the logits have a bias"""

    prefix: ClassVar[str] = "model."
    never_used: ClassVar[str] = r".*(coder\.version|embed_positions\.weights)"

    @property
    def bias(self) -> str | None:
        return "final_logits_bias" if self.has_bias else None

    def settings(self, c: Mapping[str, Any]) -> config.Transformer:
        c = self.complete(c)
        return config.Transformer(
            width=c["d_model"],
            heads=equal(c, "encoder_attention_heads", "decoder_attention_heads"),
            feedforward=equal(c, "encoder_ffn_dim", "decoder_ffn_dim"),
            encoder_layers=c["encoder_layers"],
            decoder_layers=c["decoder_layers"],
            activation=activation(c["activation_function"], "activation_function"),
            norm=self.norm,
            epsilon=EPSILON,
            norm_embedding=self.norm_embedding,
            positions=self.positions,
            sinusoids="tensor2tensor" if self.tensor2tensor else "vaswani",
            first_position=c["pad_token_id"] + 1 if self.tensor2tensor else 0,
            max_length=c["max_position_embeddings"],
            scale_embedding=c["scale_embedding"],
            tie="all" if not self.separate(c) else "output" if "head" not in self.separate(c) else "none",
            output_bias=self.has_bias,
            decoder_start=decoder_start(c, self.model_type),
            dropout=c["dropout"],
        )

    def separate(self, c: Mapping[str, Any]) -> set[str]:
        untied = c.get("tie_word_embeddings") is False
        if self.model_type == "marian" and c.get("share_encoder_decoder_embeddings") is False:
            return {"encoder", "decoder", "head"} if untied else {"encoder", "decoder"}
        return {"encoder", "decoder", "head"} if untied else set()

    def hf_config(
        self, settings: config.Transformer, sizes: tuple[int, int], foreign: np.ndarray, dtype: str
    ) -> dict[str, Any]:
        s = settings
        both: dict[str, tuple] = {"layers": (s.encoder_layers, s.decoder_layers), "ffn_dim": (s.feedforward,) * 2}
        both |= {"attention_heads": (s.heads,) * 2, "layerdrop": (0.0, 0.0)}
        of_side = {
            f"{side}_{name}": pair[i] for name, pair in both.items() for i, side in enumerate(("encoder", "decoder"))
        }
        of_marian = {"decoder_vocab_size": sizes[1], "share_encoder_decoder_embeddings": s.tie == "all"}
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "is_encoder_decoder": True,
            "vocab_size": sizes[0],
            **(of_marian if self.model_type == "marian" else {}),
            "d_model": s.width,
            **of_side,
            "activation_function": foreign_activation(s.activation),
            "dropout": s.dropout,
            "attention_dropout": 0.0,
            "activation_dropout": s.dropout,
            "max_position_embeddings": s.max_length if self.positions == "learned" else max(1024, s.max_length),
            "scale_embedding": s.scale_embedding,
            "tie_word_embeddings": s.tie == "all" or (s.tie == "output" and self.model_type == "marian"),
            **special_ids(s, foreign),
            **({"encoder_no_repeat_ngram_size": 0} if self.model_type == "blenderbot" else {}),
            "use_cache": True,
            "dtype": dtype,
        }

    def rows(self, settings: config.Transformer, prefix: str) -> list[Row]:
        s = settings
        rows = []
        for side, layers in (("encoder", s.encoder_layers), ("decoder", s.decoder_layers)):
            ours, theirs = f"{side}/blocks/stack", f"{prefix}{side}.layers.{{}}"
            attentions = {"attention": "self_attn", "cross": "encoder_attn"}
            for mine, name in list(attentions.items())[: 2 if side == "decoder" else 1]:
                parts = {"query": ("q",), "key_value": ("k", "v"), "output": ("out",)}
                for part, letters in parts.items():
                    names = tuple(f"{theirs}.{name}.{letter}_proj" for letter in letters)
                    rows += dense(f"{ours}/{mine}/{part}", names, s.width, s.width, layers)
                rows += norm(f"{ours}/around_{mine}/norm", f"{theirs}.{name}_layer_norm", s.width, layers)
            rows += dense(f"{ours}/feedforward/inner", (f"{theirs}.fc1",), s.width, s.feedforward, layers)
            rows += dense(f"{ours}/feedforward/outer", (f"{theirs}.fc2",), s.feedforward, s.width, layers)
            rows += norm(f"{ours}/around_feedforward/norm", f"{theirs}.final_layer_norm", s.width, layers)
            if s.norm_embedding:
                rows += norm(f"{side}/positions/norm", f"{prefix}{side}.layernorm_embedding", s.width)
            if s.norm == "pre":
                rows += norm(f"{side}/final_norm", f"{prefix}{side}.layer_norm", s.width)
            if s.positions == "learned":
                shape = (s.max_length + self.skip, s.width)
                name = f"{prefix}{side}.embed_positions.weight"
                rows.append(Row(f"{side}/positions/table", (name,), shape, skip=self.skip))
        return rows

    def differences(self, settings: config.Transformer) -> list[Difference]:
        s = settings
        allowed = {
            "norm": (self.norm,), "positions": (self.positions,), "norm_embedding": (self.norm_embedding,),
            "normalization": ("layer",), "gated": (False,), "biases": (True,), "join_positions": ("sum",),
            "window": (0,),
            "scale_output": (False,), "sinusoids": ("tensor2tensor" if self.tensor2tensor else "vaswani",),
            "first_position": (s.first_position if self.tensor2tensor else 0,),
        }  # fmt: skip
        found = differing(s, allowed)
        if s.attention_width != s.width:
            found.append(Difference("head_width", s.head_width, str(s.width // s.heads)))
        if s.epsilon > 2 * EPSILON:
            found.append(Difference("epsilon", s.epsilon, repr(EPSILON)))
        if not self.has_bias and s.output_bias is not False and (s.output_bias or s.tie in ("none", "embeddings")):
            found.append(Difference("output_bias", s.output_bias, "False"))
        return found

    def fixed_tensors(self, settings: config.Transformer, prefix: str, size: int) -> dict[str, np.ndarray]:
        """A bias of zeros, and the sinusoids of Pegasus."""
        tensors = {self.bias: np.zeros((1, size), np.float32)} if self.bias else {}
        if self.model_type == "pegasus":
            table = sinusoids(max(1024, settings.max_length), settings.width, settings.sinusoids).astype(np.float32)
            tensors |= {f"{prefix}{side}.embed_positions.weight": table for side in ("encoder", "decoder")}
        return tensors


def sinusoids(count: int, width: int, kind: str) -> np.ndarray:
    """The table of sinusoidal positions in float64: [count, width]."""
    half = width // 2
    rates = 10000.0 ** -(np.arange(half) / (max(half - 1, 1) if kind == "tensor2tensor" else half))
    angles = np.arange(count)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


DEFAULTS = {
    "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16,
    "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "max_position_embeddings": 1024,
    "activation_function": "gelu", "dropout": 0.1, "scale_embedding": False,
}  # fmt: skip
"""entries that are equal for most of the families"""
_FAIRSEQ = {"vocab_size": 50265, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_MARIAN = {"vocab_size": 58101, "pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100} | {
    "decoder_vocab_size": None, "bos_token_id": None,
}  # fmt: skip
_BART, _MBART = {**_FAIRSEQ, "decoder_start_token_id": 2}, {**_FAIRSEQ, "decoder_start_token_id": None}
_M2M = _BART | {"activation_function": "relu", "scale_embedding": True, "vocab_size": 128112}
_PEGASUS = {"vocab_size": 50265, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
_BLENDERBOT = {
    "vocab_size": 8008, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "d_model": 2560, "encoder_layers": 2, "decoder_layers": 24, "encoder_attention_heads": 32,
    "decoder_attention_heads": 32, "encoder_ffn_dim": 10240, "decoder_ffn_dim": 10240, "max_position_embeddings": 128,
}  # fmt: skip


def _family(model_type: str, architecture: str, norm: Any, positions: Any, defaults: dict, **options: Any) -> Bart:
    return Bart(model_type, architecture, {**DEFAULTS, **defaults}, norm, positions, **options)


_LEARNED: dict[str, Any] = {"norm_embedding": True, "skip": 2}
FAMILIES = (
    _family("marian", "MarianMTModel", "post", "sinusoidal", _MARIAN),
    _family("pegasus", "PegasusForConditionalGeneration", "pre", "sinusoidal", _PEGASUS),
    _family("blenderbot", "BlenderbotForConditionalGeneration", "pre", "learned", _BLENDERBOT),
    _family("bart", "BartForConditionalGeneration", "post", "learned", _BART, **_LEARNED),
    _family("mbart", "MBartForConditionalGeneration", "pre", "learned", _MBART, **_LEARNED),
    _family("m2m_100", "M2M100ForConditionalGeneration", "pre", "sinusoidal", _M2M, tensor2tensor=True, has_bias=False),
)
