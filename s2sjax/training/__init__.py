"""Training: one loop for every model and task.

schedules     step -> learning rate; the optimizer
functions     functions that settings name by import path
state         TrainState and the pure train_step
hosts         multi-process runs
mesh          the device mesh, and the sharding of each parameter
memory        what each device holds, and what a step adds
fingerprints  checksums of sharded arrays
damage        detection of damaged checkpoints
transfer      initial parameters from another run
reading       reads checkpoints without Orbax
checkpoint_store
              writes checkpoints completely or not at all, and verifies what is read
checkpoints   which are kept, which is the best, which are damaged
heartbeat     a line after ten seconds without output
progress      the progress line, metrics.jsonl, nonfinite.jsonl, samples.txt, TensorBoard
preemption    SIGTERM and Ctrl-C
settings      JAX settings of the caller, for threads
programs      the train step, compiled for each batch shape in the background
loop          fit: restore, evaluate, save, batch, step, log
"""
