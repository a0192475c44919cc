"""Predict a Fibonacci number from the 20 before it: a plain RNN with two units, with and without attention.

Commands  s2sjax train experiments/fibonacci.py                            11 weights: 8 + 3
          s2sjax train experiments/fibonacci.py --model.attention True --out runs/fibonacci-attention
                                                                           33 weights: 8 + 22 + 3
Hardware  two ARM cores, no accelerator; 13 s of CPU a run
Score     test MSE of values scaled to [0, 1] by these commands, seeds 8 to 15, on which nothing was tuned:
          without attention  1.57e-5 1.36e-5 1.32e-5 1.37e-5 1.39e-5 1.33e-5 1.41e-5 1.27e-5    mean 1.38e-5
          with attention     1.46e-5 1.22e-5 1.21e-5 1.16e-5 0.98e-5 1.01e-5 0.77e-5 2.24e-5    mean 1.26e-5,
          lower for 7 of 8

Few windows have values far from 0, so few batches have large gradients: Adam needs a long memory (b2 0.999). Which of
the two models is better depends on the settings: docs/systems/labels.md lists those that were tried.
"""

from s2sjax.config import Train
from s2sjax.tasks import Regression
from s2sjax.tasks.regression import Fibonacci, SeriesEvaluate, SeriesModel, Windows

experiment = Regression(
    name="fibonacci",
    data=Windows(Fibonacci(1200), steps=20, split="spread", scale="range", batch_tokens=160),
    model=SeriesModel(width=2, cell="rnn", attention=False, output="tanh", residual=False),
    train=Train(
        steps=3000,
        learning_rate=3e-2,
        warmup_steps=100,
        b2=0.999,
        log_every=500,
        evaluate_every=500,
        save_every=500,
        clip_norm=0.0,
    ),
    evaluate=SeriesEvaluate(metrics=("mse", "mae"), samples=2),
)
