"""Plain text, as the start of other tasks (BERT)."""

from s2sjax.tasks.pretraining.settings import BertEvaluate, BertModel, Paragraphs
from s2sjax.tasks.pretraining.task import MASKS, Line, MaskedPrediction, Pretraining, PretrainingTask
