"""Plans a training run: predicts its cost on devices that are not available here. Nothing is executed.

chips.py           figures from data sheets
jaxpr_costs.py     the operations of a training step, counted in its jaxpr
cost_model.py      memory, time and MFU of an experiment on a mesh
mesh_report.py     all meshes of N devices, and the recommended one

With the TPU compiler, which needs no TPU:

tpu_slices.py        slices of TPU pods
tpu_programs.py      the programs of an experiment, compiled for a slice
hlo.py               collectives and padding of a compiled program, read from its HLO
tpu_report.py        the report on the compiled programs, next to the prediction
recorded_errors.py   errors of past predictions; compiled.jsonl is the table of docs/pod.md
"""
