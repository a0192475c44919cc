"""Training: one loop for every model and task.

loop              fit: restore, evaluate, save, batch, step, log
train_state       TrainState and the pure train_step
optimizers        the optimizer, and step -> learning rate
fine_tuning       frozen parameters, and a learning rate for each layer
mesh              the device mesh, and the sharding of each parameter
multihost         runs of several processes
compiled_steps    the train step, compiled for each batch shape in the background
checkpoints/      saved completely or not at all, and verified when read
run_log           the progress line, metrics.jsonl, nonfinite.jsonl, samples.txt
loggers           TensorBoard, Weights & Biases, MLflow
goodput           what the wall clock of a run is spent on
profiling         a trace of some steps
preemption        SIGTERM and Ctrl-C
device_memory     what each device holds, and what a step adds
jax_settings      JAX settings of the caller, for threads
heartbeat         a line after ten seconds without output
"""
