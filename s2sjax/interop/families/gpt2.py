"""GPT-2: a decoder without an encoder, pre-LN, with learned positions and a tied output layer without a bias.

Its kernels are stored as [inputs, outputs], as ours, and those of queries, keys and values as one tensor: here they are
the row `attention/query_key_value`, which `interop.language_models` splits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.interop.correspondence import Row, norm
from s2sjax.interop.families.family import (
    Difference,
    ExportedFamily,
    Roles,
    activation,
    differing,
    foreign_activation,
)

SCORES: dict[str, Any] = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
FIXED: dict[str, Any] = SCORES | {"add_cross_attention": False}
"""entries of config.json that must have these values"""


@dataclass(frozen=True)
class GPT2(ExportedFamily):
    """GPT-2, as settings of the blocks of a language model: `decoder_layers` of them."""

    prefix: ClassVar[str] = "transformer."
    never_used: ClassVar[str] = r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)"
    """masks of causal attention, which older versions of transformers have stored"""

    def settings(self, c: Mapping[str, Any]) -> config.Transformer:
        c = self.complete(c)
        for name, value in FIXED.items():
            require(
                c[name] == value,
                f"config.json: {name} is {str(c[name]).lower()}, which s2sjax does not have: such a model cannot be "
                "imported",
            )
        return config.Transformer(
            width=c["n_embd"],
            heads=c["n_head"],
            feedforward=4 * c["n_embd"] if c["n_inner"] is None else c["n_inner"],
            encoder_layers=c["n_layer"],
            decoder_layers=c["n_layer"],
            activation=activation(c["activation_function"], "activation_function"),
            norm="pre",
            epsilon=c["layer_norm_epsilon"],
            positions="learned",
            max_length=c["n_positions"],
            scale_embedding=False,
            tie="embeddings" if c["tie_word_embeddings"] is False else "all",
            output_bias=False,
            decoder_start="eos",
            dropout=c["resid_pdrop"],
        )

    def separate(self, c: Mapping[str, Any]) -> set[str]:
        return {"head"} if c.get("tie_word_embeddings") is False else set()

    def roles(self, prefix: str) -> Roles:
        table = f"{prefix}wte.weight"
        return Roles(table, table, table, "lm_head.weight")

    def hf_config(
        self, settings: config.Transformer, sizes: tuple[int, int], foreign: np.ndarray, dtype: str
    ) -> dict[str, Any]:
        s = settings
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "vocab_size": sizes[1],
            "n_embd": s.width,
            "n_head": s.heads,
            "n_inner": s.feedforward,
            "n_layer": s.decoder_layers,
            "n_positions": s.max_length,
            "activation_function": "gelu_new" if s.activation == "gelu_tanh" else foreign_activation(s.activation),
            "layer_norm_epsilon": s.epsilon,
            "resid_pdrop": s.dropout,
            "tie_word_embeddings": s.tie == "all",
            "dtype": dtype,
        }

    def rows(self, settings: config.Transformer, prefix: str) -> list[Row]:
        s, layers, ours, theirs = settings, settings.decoder_layers, "blocks/stack", f"{prefix}h.{{}}"
        rows = []
        for mine, name, inputs, outputs in (
            ("attention/query_key_value", "attn.c_attn", s.width, 3 * s.width),
            ("attention/output", "attn.c_proj", s.width, s.width),
            ("feedforward/inner", "mlp.c_fc", s.width, s.feedforward),
            ("feedforward/outer", "mlp.c_proj", s.feedforward, s.width),
        ):
            rows.append(Row(f"{ours}/{mine}/kernel", (f"{theirs}.{name}.weight",), (inputs, outputs), layers))
            rows.append(Row(f"{ours}/{mine}/bias", (f"{theirs}.{name}.bias",), (outputs,), layers))
        for mine, name in (("attention", "ln_1"), ("feedforward", "ln_2")):
            rows += norm(f"{ours}/around_{mine}/norm", f"{theirs}.{name}", s.width, layers)
        rows += norm("final_norm", f"{prefix}ln_f", s.width)
        return [*rows, Row("positions/table", (f"{prefix}wpe.weight",), (s.max_length, s.width))]

    def differences(self, settings: config.Transformer) -> list[Difference]:
        s = settings
        allowed = {
            "norm": ("pre",), "normalization": ("layer",), "positions": ("learned",), "biases": (True,),
            "gated": (False,), "scale_embedding": (False,), "output_bias": (False,),
        }  # fmt: skip
        found = differing(s, allowed)
        if s.attention_width != s.width:
            found.append(Difference("head_width", s.head_width, str(s.width // s.heads)))
        return found


FAMILY = GPT2("gpt2", "GPT2LMHeadModel", {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
    "activation_function": "gelu_new", "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    "eos_token_id": 50256, "add_cross_attention": False, **SCORES,
})  # fmt: skip
