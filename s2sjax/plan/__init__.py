"""Plans a training run: predicts its cost on devices that are not available here. Nothing is executed.

chips.py      figures from data sheets
work.py       the operations of a training step, counted in its jaxpr
predict.py    memory, time and MFU of an experiment on a mesh
report.py     all meshes of N devices, and the recommended one

With the TPU compiler, which needs no TPU:

topologies.py         slices of TPU pods
compiled.py           the programs of an experiment, compiled for a slice
hlo.py                collectives and padding of a compiled program, read from its HLO
compiled_report.py    the report on the compiled programs, next to the prediction
records.py            errors of past predictions; compiled.jsonl is the table of docs/pod.md
"""
