"""The oil temperature of an electricity transformer in the next hour, from the last day (ETTh1, Zhou et al. 2021).

Command   s2sjax train experiments/etth1.py
Data      s2sjax data get ett: ETTh1_train_val.csv, train on the first 8,640 hours, dev on the next 2,880
Hardware  1 ARM core, no accelerator; about a minute of CPU time
Score     dev MSE 0.00992 after 1,000 steps, seed 0; persistence 0.01017

The mean squared error is that of values scaled by the mean and the standard deviation of the training hours. The
persistence forecast, which is the current value, is scored for comparison.
"""

from s2sjax.config import Train
from s2sjax.tasks import Regression
from s2sjax.tasks.regression import CsvSeries, SeriesEvaluate, SeriesModel, Windows

experiment = Regression(
    name="etth1",
    data=Windows(
        CsvSeries("data:ett/ETTh1_train_val.csv", "OT", origin="ETTh1 (Zhou et al. 2021)"),
        steps=24,
        dev_percent=25.0,
        test_percent=0.0,
        split="time",
        scale="deviation",
        batch_tokens=24 * 64,
    ),
    model=SeriesModel(width=32, cell="gru", attention=True, output="linear", residual=True),
    train=Train(steps=1000, learning_rate=3e-3, warmup_steps=100, log_every=100, evaluate_every=1000, save_every=1000),
    evaluate=SeriesEvaluate(metrics=("mse", "mae", "persistence"), dev_examples=5000, samples=2),
)
