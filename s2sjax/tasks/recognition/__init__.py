"""Frames to a shorter sequence of labels, by CTC."""

from s2sjax.tasks.recognition.settings import (
    Augment,
    FrameModel,
    LabelledSignals,
    LabelSearch,
    RecognitionEvaluate,
    RecognizerModel,
)
from s2sjax.tasks.recognition.task import Recognition, RecognitionTask
