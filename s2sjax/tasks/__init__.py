"""The tasks, one file each. See task.py for their interface, and docs/extending.md to add your own.

Each file has the settings class that an experiment file instantiates, and the `Task` that its method `task()` returns
to the runner.

experiment = tasks.Translation("mine", data=..., model=...)      text to text
experiment = tasks.Regression("series", data=..., model=...)     a series to numbers
experiment = tasks.Classification("topics", data=..., model=...) a sequence to a label
experiment = tasks.Tagging("tags", data=..., model=...)          words to one tag each
experiment = tasks.Recognition("digits", data=..., model=...)    frames to a shorter sequence of labels (CTC)
experiment = tasks.LanguageModel("text", data=..., model=...)    text to its continuation
experiment = tasks.Pretraining("bert", data=..., model=...)      plain text to parameters that start other tasks
experiment = tasks.Captioning("photos", data=..., model=...)     a picture to a caption
experiment = tasks.Transcription("digits", data=..., model=...)  frames to labels, by an attention decoder
"""

from s2sjax.tasks.captioning import Captioning
from s2sjax.tasks.classification import Classification
from s2sjax.tasks.language_model import LanguageModel
from s2sjax.tasks.pretraining import Pretraining
from s2sjax.tasks.recognition import Recognition
from s2sjax.tasks.regression import Regression
from s2sjax.tasks.tagging import Tagging
from s2sjax.tasks.task import Task
from s2sjax.tasks.transcription import Transcription
from s2sjax.tasks.translation import Translation

__all__ = [
    "TASKS",
    "Captioning",
    "Classification",
    "LanguageModel",
    "Pretraining",
    "Recognition",
    "Regression",
    "Tagging",
    "Task",
    "Transcription",
    "Translation",
]

TASKS = {
    "translation": Translation,
    "regression": Regression,
    "classification": Classification,
    "tagging": Tagging,
    "recognition": Recognition,
    "language_model": LanguageModel,
    "pretraining": Pretraining,
    "captioning": Captioning,
    "transcription": Transcription,
}
"""the experiment class of each task"""
