"""Plan a training run: its cost on devices that you do not have here. Nothing is executed.

chips.py      figures from data sheets
work.py       the operations of a training step, counted in its jaxpr
predict.py    memory, time and MFU of an experiment on a mesh
report.py     all meshes of N devices, and the recommended one
"""
