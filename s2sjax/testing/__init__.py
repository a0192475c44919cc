"""Laws that every model and every task of s2sjax keeps, to test your own with.

    from s2sjax.testing import verify_model, verify_task

    def test_my_model():
        verify_model(MyModel(width=16))

    def test_my_task():
        verify_task(experiment)

laws          `LawError`, and how a law is written
model_laws    what training and search require of an encoder-decoder
task_laws     what training and evaluation require of a task
"""

from s2sjax.testing.laws import LawError, Report
from s2sjax.testing.model_laws import verify_model
from s2sjax.testing.task_laws import verify_task
