"""Attention: scores of a query against keys, multi-head attention, and what they are built from.

scores                  dot, additive and other scores; attention of one query, a batch or all steps
multi_head_attention    multi-head attention over whole sequences
local_window            the window of local attention (Luong et al. 2015)
sliding_window          multi-head attention within a band
position_encodings      sinusoidal, rotary and relative positions
kv_cache                keys and values of the steps so far
decode_kernel           a kernel for one query a row: decoding
short_sequence_kernel   a kernel for short sequences: training
"""

from s2sjax.core.attention.multi_head_attention import attend_heads, fused_multi_head, multi_head, same_segment
from s2sjax.core.attention.scores import (
    SCORES,
    AttentionScore,
    Weights,
    add_coverage,
    attend,
    attend_all,
    attend_batch,
    masked_softmax,
    pool,
    unit,
)

Score = AttentionScore  # its name in version 0.1

__all__ = [
    "SCORES", "AttentionScore", "Weights", "add_coverage", "attend", "attend_all", "attend_batch", "attend_heads",
    "fused_multi_head", "masked_softmax", "multi_head", "pool", "same_segment", "unit",
]  # fmt: skip
