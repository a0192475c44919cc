"""Predict a Fibonacci number from the 20 before it: a plain RNN with two units, with and without attention.

Commands  s2sjax train experiments/fibonacci.py                            11 weights: 8 + 3
          s2sjax train experiments/fibonacci.py --model.attention True --out runs/fibonacci-attention
                                                                           33 weights: 8 + 22 + 3
"""

from s2sjax.config import Train
from s2sjax.tasks import Regression
from s2sjax.tasks.regression import Fibonacci, Score, SeriesModel, Windows

experiment = Regression(
    name="fibonacci",
    data=Windows(Fibonacci(1200), steps=20, tokens=160),
    model=SeriesModel(width=2, cell="rnn", attention=False),
    train=Train(
        steps=3000, learning_rate=1e-2, warmup=100, log_every=500, evaluate_every=500, save_every=500, clip=0.0
    ),
    evaluate=Score(metrics=("mse", "mae"), samples=2),
)
