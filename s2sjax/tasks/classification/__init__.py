"""A sequence to one label."""

from s2sjax.tasks.classification.settings import (
    LabelData,
    LabelEvaluate,
    LabelledFrames,
    LabelledText,
    LabelModel,
    Pooling,
)
from s2sjax.tasks.classification.task import Classification, ClassificationTask, Prediction, evaluation_loss
