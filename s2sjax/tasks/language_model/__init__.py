"""Text, one token after the other."""

from s2sjax.tasks.language_model.settings import Continuation, HybridLM, PerplexityEvaluate, RecurrentLM, TransformerLM
from s2sjax.tasks.language_model.task import PROMPTS, SHORTEST, LanguageModel, LanguageModelTask, Line, Prompt
