"""The runner: one host loop that knows no architecture.

schedules    step -> learning rate; the optimizer
state        TrainState and the pure train_step
hosts        several processes as one program
mesh         named devices, and where each parameter lives on them
memory       what each device holds, and what a step adds
checkpoints  saved whole or not at all, and checked when read
progress     the progress line, metrics.jsonl, nonfinite.jsonl, samples.txt, TensorBoard
loop         fit: restore, evaluate, save, batch, step, log
"""
