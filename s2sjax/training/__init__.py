"""The runner: one training loop for every model and task.

schedules     step -> learning rate; the optimizer
functions     functions that settings name by import path
state         TrainState and the pure train_step
hosts         multi-process runs
mesh          the device mesh, and the sharding of each parameter
memory        what each device holds, and what a step adds
fingerprints  checksums of sharded arrays
damage        what counts as damage to a checkpoint
transfer      parameters of another run as the start of this one
reading       checkpoints read without Orbax
checkpoints   saved completely or not at all, and verified when read
progress      the progress line, metrics.jsonl, nonfinite.jsonl, samples.txt, TensorBoard
preemption    SIGTERM and Ctrl-C
programs      the train step, compiled for each batch shape in the background
loop          fit: restore, evaluate, save, batch, step, log
"""
