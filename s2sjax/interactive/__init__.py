"""Figures that move: HTML with a small program, for notebooks and web pages. They need no kernel and no network.

interactive.decoding(source, target, attention)     the decoder, step by step, with its attention
interactive.beam_search(run.tree(line))             a beam search, frame by frame
interactive.gates(tokens, {"forget": values})       the gates of a recurrent cell over time
interactive.heads(source, target, weights)          the heads of a Transformer side by side
interactive.receptive_fields(length, layers)        what one output sees, hop by hop
interactive.edit_distance(reference, hypothesis)    the table of the edit distance, cell by cell
interactive.frames(figures)                         Matplotlib figures as a film

A notebook displays the figure that a cell returns; `save` writes it as a page.

attention_figures.py    decoding, heads
search_figures.py       beam_search
network_figures.py      gates, receptive_fields
table_figures.py        edit_distance
picture_figures.py      frames
figure.py               Figure: the HTML that all of them return
static/                 the program. The report and live input share its attention and its trees
"""

from s2sjax.interactive.attention_figures import decoding as decoding
from s2sjax.interactive.attention_figures import heads as heads
from s2sjax.interactive.figure import Figure as Figure
from s2sjax.interactive.network_figures import Convolution as Convolution
from s2sjax.interactive.network_figures import Recurrence as Recurrence
from s2sjax.interactive.network_figures import SelfAttention as SelfAttention
from s2sjax.interactive.network_figures import gates as gates
from s2sjax.interactive.network_figures import receptive_fields as receptive_fields
from s2sjax.interactive.picture_figures import frames as frames
from s2sjax.interactive.search_figures import beam_search as beam_search
from s2sjax.interactive.table_figures import edit_distance as edit_distance
