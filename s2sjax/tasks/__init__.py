"""One file a kind of problem. See task.py for what a task brings to the runner, docs/extending.md to add your own.

Each file has a settings class, of which an experiment file builds one, and the `Task` that the settings return by
their method `task()`, which the runner uses.

experiment = tasks.Translation("mine", data=..., model=...)      text to text
experiment = tasks.Regression("series", data=..., model=...)     a series to numbers
experiment = tasks.LanguageModel("text", data=..., model=...)    what follows a text
"""

from s2sjax.tasks.language_model import LanguageModel
from s2sjax.tasks.regression import Regression
from s2sjax.tasks.task import Task
from s2sjax.tasks.translation import Translation

__all__ = ["TASKS", "LanguageModel", "Regression", "Task", "Translation"]

TASKS = {"translation": Translation, "regression": Regression, "language_model": LanguageModel}
"""the experiments of each task that comes with s2sjax"""
