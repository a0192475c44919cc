"""Scale on paper: what training would cost on devices that are not here. Nothing is executed.

chips.py      what the data sheets say
work.py       the operations of a training step, counted in its traced program
predict.py    memory, time and MFU of an experiment on a mesh
report.py     all meshes of N devices, and which of them to take
"""
