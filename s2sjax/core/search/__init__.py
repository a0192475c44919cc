"""Search for the best output of a model that predicts one token at a time.

decoding_loop         the loop that all searches share; greedy search
beam_decoding         beam search
beam_interface        models that advance all beams of a sentence at once
hypotheses            finished outputs, the search tree
constraints           required and forbidden words, repetition
sampling              random outputs: temperature, top-k, nucleus
ensemble              several models as one
continuous_batching   sentences that take the slots of finished ones
top_k                 the k largest entries of long rows
"""

from s2sjax.core.search.beam_decoding import (
    BeamOptions,
    BeamState,
    beam_loop,
    beam_search,
    beam_search_with_tree,
    best_continuations,
    top_k_of_rows,
)
from s2sjax.core.search.decoding_loop import (
    UNCONSTRAINED,
    UNSEEN,
    DecodeState,
    DecodingLoop,
    Penalty,
    Stop,
    advance_some,
    argmax_token,
    decode_loop,
    forced_attention,
    greedy,
    length_penalty,
    limit_of_each,
    run_loop,
    written_at,
)
from s2sjax.core.search.hypotheses import Hypotheses, Tree

__all__ = [
    "UNCONSTRAINED", "UNSEEN", "BeamOptions", "BeamState", "DecodeState", "DecodingLoop", "Hypotheses", "Penalty",
    "Stop", "Tree", "advance_some", "argmax_token", "beam_loop", "beam_search", "beam_search_with_tree",
    "best_continuations", "decode_loop", "forced_attention", "greedy", "length_penalty", "limit_of_each",
    "run_loop", "top_k_of_rows", "written_at",
]  # fmt: skip
