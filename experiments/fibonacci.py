"""Predict a Fibonacci number from the 20 before it: a plain RNN with two units, with and without attention.

Commands  s2sjax train experiments/fibonacci.py                            11 weights: 8 + 3
          s2sjax train experiments/fibonacci.py --model.attention True --out runs/fibonacci-attention
                                                                           33 weights: 8 + 22 + 3
Hardware  2 ARM cores, no accelerator; about half a minute each
Score     test MSE of values scaled to [0, 1], for --seed 0, 1, 2, 3:
          without attention  6.3e-6  2.2e-5  6.4e-6  5.5e-6
          with attention     1.3e-3  1.9e-5  2.3e-6  1.2e-6       lower for three of four seeds
"""

from s2sjax.config import Train
from s2sjax.tasks import Regression
from s2sjax.tasks.regression import Fibonacci, SeriesEvaluate, SeriesModel, Windows

experiment = Regression(
    name="fibonacci",
    data=Windows(Fibonacci(1200), steps=20, tokens=160),
    model=SeriesModel(width=2, cell="rnn", attention=False),
    train=Train(
        steps=3000, learning_rate=1e-2, warmup=100, log_every=500, evaluate_every=500, save_every=500, clip=0.0
    ),
    evaluate=SeriesEvaluate(metrics=("mse", "mae"), samples=2),
)
