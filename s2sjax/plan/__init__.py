"""Plan a training run: its cost on devices that you do not have here. Nothing is executed.

chips.py      figures from data sheets
work.py       the operations of a training step, counted in its jaxpr
predict.py    memory, time and MFU of an experiment on a mesh
report.py     all meshes of N devices, and the recommended one

With the TPU compiler, which needs no TPU:

topologies.py         slices of TPU pods
compiled.py           the programs of an experiment, compiled for a slice
hlo.py                what a compiled program says of itself: collectives, padding
compiled_report.py    all of it, next to the prediction
records.py            how far predictions were off; compiled.jsonl is the table of docs/pod.md
"""
