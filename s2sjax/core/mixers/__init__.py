"""Layers that mix positions by a recurrence with a state of constant size, in three forms.

layers              the table MIXERS, and the functions that apply a layer to sequences and to single positions
forms               one recurrence as a scan, an associative scan, or products over chunks
chunks              what recurrences with a matrix state share: products within chunks, states between them
chunk_kernels       what the positions of a chunk read, as kernels for NVIDIA GPUs
decayed             linear attention, retention, state-space duality, gated linear attention
delta_rule          the delta rule, with and without decay
mlstm               a matrix state with exponential gates
rg_lru              a vector state with a decay for each feature
slstm               an LSTM with exponential gates
short_convolution   the convolution over the last few positions before a recurrence
initial_values      the initial values of the weights of layers
"""

from s2sjax.core.mixers.forms import Form, Recurrence, implied_attention, run
from s2sjax.core.mixers.layers import MIXERS, Mixer, Sizes, State, apply, draw, start, step

__all__ = [
    "MIXERS", "Form", "Mixer", "Recurrence", "Sizes", "State", "apply", "draw", "implied_attention", "run", "start",
    "step",
]  # fmt: skip
