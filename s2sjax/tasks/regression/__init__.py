"""A series to numbers."""

from s2sjax.tasks.regression.settings import (
    CsvSeries,
    Fibonacci,
    FrameSeries,
    Series,
    SeriesEvaluate,
    SeriesModel,
    Waves,
    Windows,
)
from s2sjax.tasks.regression.task import LABELS, LARGEST, Estimate, Regression, RegressionTask, Scale, Window
