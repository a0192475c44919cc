"""T5 (v1.0, v1.1 and FLAN), mT5, ByT5 and UMT5: pre-LN with RMS norms, relative positions, and no biases.

The layers of a stack share one table of relative positions; in UMT5, each layer has its own.

T5 does not divide the scores of attention by the square root of the head width. Ours does: the query kernels are
multiplied by it when they are read, and divided when they are written.

What tells v1.0 from v1.1 is in the tensors: v1.0 has one table for the embeddings and the output layer, v1.1 has an
output layer of its own. transformers 5 writes tie_word_embeddings true for both, so the tensors are compared. A UMT5
scales the input of the output layer exactly if that is the embedding. transformers 5 scales it always: it divides the
logits of a UMT5 with an output layer of its own, such as Google's, by the square root of the width. transformers 4
does not, and neither did the training of these models.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.config.models.specs import Tie
from s2sjax.core.attention import position_encodings
from s2sjax.interop.correspondence import Row, dense, norm
from s2sjax.interop.families.family import (
    Difference,
    ExportedFamily,
    activation,
    decoder_start,
    differing,
    foreign_activation,
    special_ids,
)

GATED = {"relu": "gated-relu", "gelu": "gated-gelu_python", "gelu_tanh": "gated-gelu", "swish": "gated-silu"}
"""the entry feed_forward_proj of a gated activation; "gated-gelu" is the approximation by tanh"""


@dataclass(frozen=True)
class T5(ExportedFamily):
    """T5, mT5 or UMT5. ByT5 is a T5 with another tokenizer."""

    never_used: ClassVar[str] = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"

    def settings(self, c: Mapping[str, Any]) -> config.Transformer:
        c = self.complete(c)
        for name, value in (
            ("relative_attention_num_buckets", position_encodings.BUCKETS),
            ("relative_attention_max_distance", position_encodings.FURTHEST),
        ):
            require(
                c[name] == value,
                f"config.json: {name} is {c[name]}, and that of s2sjax is {value}: such a model cannot be imported",
            )
        kind, gated = self._activation(c)
        width, heads, head_width = c["d_model"], c["num_heads"], c["d_kv"]
        return config.Transformer(
            width=width,
            heads=heads,
            head_width=0 if heads * head_width == width else head_width,
            feedforward=c["d_ff"],
            encoder_layers=c["num_layers"],
            decoder_layers=c["num_layers"] if c["num_decoder_layers"] is None else c["num_decoder_layers"],
            activation=kind,
            gated=gated,
            norm="pre",
            normalization="rms",
            epsilon=c["layer_norm_epsilon"],
            biases=False,
            positions="relative",
            share_positions=self.shares_positions,
            tie="embeddings" if c["tie_word_embeddings"] is False else "all",
            scale_embedding=False,
            scale_output=self._scales_output(c),
            output_bias=False,
            decoder_start=decoder_start(c, self.model_type),
            dropout=c["dropout_rate"],
        )

    @property
    def shares_positions(self) -> bool:
        return self.model_type != "umt5"

    def with_tie(self, settings: config.Transformer, tie: Tie) -> config.Transformer:
        scales = settings.scale_output and (self.model_type != "umt5" or tie == "all")
        return config.replace(settings, tie=tie, scale_output=scales)

    def _activation(self, c: Mapping[str, Any]) -> tuple[Any, bool]:
        """The activation, and whether it is gated."""
        entry = c["feed_forward_proj"]
        known = {value: name for name, value in GATED.items()} | {"gated-gelu_new": "gelu_tanh", "gated-swish": "swish"}
        found = (known[entry], True) if entry in known else (activation(entry, "feed_forward_proj"), False)
        for name, value in (("dense_act_fn", found[0]), ("is_gated_act", found[1])):
            given = c.get(name)
            given = activation(given, name) if name == "dense_act_fn" and given is not None else given
            require(
                given is None or given == value,
                f"config.json: {name} {c.get(name)!r} contradicts feed_forward_proj {entry!r}: correct one of them",
            )
        return found

    def _scales_output(self, c: Mapping[str, Any]) -> bool:
        """transformers 5 has an entry of its own; before, an output layer with a matrix of its own was not scaled."""
        if self.model_type == "mt5":
            return False
        return bool(c.get("scale_decoder_outputs", c["tie_word_embeddings"] is not False))

    def separate(self, c: Mapping[str, Any]) -> set[str]:
        return {"head"}

    def written_roles(self, settings: config.Transformer) -> list[str]:
        # An output layer that equals the embedding and is not scaled is written too: older versions require it.
        return ["shared"] if settings.tie == "all" and settings.scale_output else ["shared", "head"]

    def hf_config(
        self, settings: config.Transformer, sizes: tuple[int, int], foreign: np.ndarray, dtype: str
    ) -> dict[str, Any]:
        s = settings
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "is_encoder_decoder": True,
            "vocab_size": sizes[1],
            "d_model": s.width,
            "d_kv": s.attention_width // s.heads,
            "d_ff": s.feedforward,
            "num_layers": s.encoder_layers,
            "num_decoder_layers": s.decoder_layers,
            "num_heads": s.heads,
            "relative_attention_num_buckets": position_encodings.BUCKETS,
            "relative_attention_max_distance": position_encodings.FURTHEST,
            "dropout_rate": s.dropout,
            "layer_norm_epsilon": s.epsilon,
            "feed_forward_proj": GATED[s.activation] if s.gated else foreign_activation(s.activation),
            "tie_word_embeddings": s.tie == "all" and s.scale_output,
            **({"scale_decoder_outputs": s.scale_output} if self.model_type == "t5" else {}),
            **special_ids(s, foreign),
            "use_cache": True,
            "dtype": dtype,
        }

    def rows(self, settings: config.Transformer, prefix: str) -> list[Row]:
        s = settings
        inner = s.attention_width
        rows = []
        for side, layers in (("encoder", s.encoder_layers), ("decoder", s.decoder_layers)):
            stack, block = f"{side}/blocks/stack", f"{side}.block.{{}}.layer"
            attentions = [("attention", f"{block}.0", "SelfAttention")]
            attentions += [("cross", f"{block}.1", "EncDecAttention")] if side == "decoder" else []
            for mine, layer, name in attentions:
                query = dense(f"{stack}/{mine}/query", (f"{layer}.{name}.q",), s.width, inner, layers, bias=False)
                rows += [_scaled(row, math.sqrt(inner // s.heads)) for row in query]
                both = (f"{layer}.{name}.k", f"{layer}.{name}.v")
                rows += dense(f"{stack}/{mine}/key_value", both, s.width, inner, layers, bias=False)
                rows += dense(f"{stack}/{mine}/output", (f"{layer}.{name}.o",), inner, s.width, layers, bias=False)
                rows += norm(f"{stack}/around_{mine}/norm", f"{layer}.layer_norm", s.width, layers, bias=False)
            last = f"{block}.{len(attentions)}"
            names = {"gate": "wi_0", "inner": "wi_1"} if s.gated else {"inner": "wi"}
            for mine, name in names.items():
                wide = (f"{last}.DenseReluDense.{name}",)
                rows += dense(f"{stack}/feedforward/{mine}", wide, s.width, s.feedforward, layers, bias=False)
            narrow = (f"{last}.DenseReluDense.wo",)
            rows += dense(f"{stack}/feedforward/outer", narrow, s.feedforward, s.width, layers, bias=False)
            rows += norm(f"{stack}/around_feedforward/norm", f"{last}.layer_norm", s.width, layers, bias=False)
            rows += norm(f"{side}/final_norm", f"{side}.final_layer_norm", s.width, bias=False)
            relative, shape = "SelfAttention.relative_attention_bias.weight", (position_encodings.BUCKETS, s.heads)
            if s.share_positions:
                rows.append(Row(f"{side}/positions/relative", (f"{side}.block.0.layer.0.{relative}",), shape))
            else:
                rows.append(Row(f"{stack}/attention/relative", (f"{block}.0.{relative}",), shape, layers))
        return rows

    def differences(self, settings: config.Transformer) -> list[Difference]:
        s = settings
        allowed = {
            "norm": ("pre",), "normalization": ("rms",), "positions": ("relative",), "biases": (False,), "window": (0,),
            "norm_embedding": (False,), "scale_embedding": (False,), "tie": ("all", "embeddings"),
            "share_positions": (self.shares_positions,),
            "scale_output": {"t5": (True, False), "umt5": (s.tie == "all",)}.get(self.model_type, (False,)),
        }  # fmt: skip
        found = differing(s, allowed)
        if s.output_bias or (s.output_bias is None and s.tie != "all"):
            found.append(Difference("output_bias", s.output_bias, "False"))
        return found


def _scaled(row: Row, factor: float) -> Row:
    return Row(row.ours, row.theirs, row.shape, row.layers, row.transpose, factor=factor)


DEFAULTS = {
    "d_model": 512, "d_kv": 64, "num_decoder_layers": None, "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6,
    "tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
    "decoder_start_token_id": 0,
}  # fmt: skip
"""entries that are equal for all"""
_T5 = {"vocab_size": 32128, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "feed_forward_proj": "relu"}
_MT5 = {"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"}

FAMILIES = (
    T5("t5", "T5ForConditionalGeneration", {**DEFAULTS, **_T5}),
    T5("mt5", "MT5ForConditionalGeneration", {**DEFAULTS, **_MT5}),
    T5("umt5", "UMT5ForConditionalGeneration", {**DEFAULTS, **_MT5}),
)
