"""The tasks, a folder each. See task.py for their interface, and docs/extending.md to add your own.

task.py       the class that an experiment file instantiates, and the `Task` that its method `task()` returns
settings.py   the settings of its data, model and evaluation
and the data, models, metrics and figures that no other task uses. Translation, whose parts are shared, is one file.
signal_task.py, text_generation.py and vocabulary_transfer.py are shared by several tasks.

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

from s2sjax.tasks.captioning.task import Captioning
from s2sjax.tasks.classification.task import Classification
from s2sjax.tasks.language_model.task import LanguageModel
from s2sjax.tasks.pretraining.task import Pretraining
from s2sjax.tasks.recognition.task import Recognition
from s2sjax.tasks.regression.task import Regression
from s2sjax.tasks.tagging.task import Tagging
from s2sjax.tasks.task import Task
from s2sjax.tasks.transcription.task import Transcription
from s2sjax.tasks.translation import Translation

__all__ = [
    "TASKS", "Captioning", "Classification", "LanguageModel", "Pretraining", "Recognition", "Regression", "Tagging",
    "Task", "Transcription", "Translation",
]  # fmt: skip

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
