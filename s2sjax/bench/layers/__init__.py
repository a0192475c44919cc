"""Times of recurrent, convolutional and attention layers against the length of the sequence.

layer_speed.py     the measurements, their tables, and where a recurrence is faster than attention
points.py          what is measured: a layer at one size, its operations, the rows of the table of layers
layer_types.py     the table of layers, and what they cost; mixer_types.py has the recurrences of core/mixers/
layer_figures.py   time against length, and the roofline
torch_layers.py    the same layers in PyTorch; fla_layers.py has recurrences with the kernels of another library
"""
