"""Words to tags, one for each word."""

from s2sjax.tasks.tagging.settings import TagData, TagEvaluate, TaggedFiles, TaggerModel, TagMetric
from s2sjax.tasks.tagging.task import VOCABULARY_PATHS, Tagged, Tagging, TaggingTask
