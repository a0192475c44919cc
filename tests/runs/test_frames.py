"""Runs the program of docs/data.md on frames, and tests its statements about runs."""

import inspect
import re
from pathlib import Path

import jax
import pyarrow as pa
import pytest
from conftest import refused

import s2sjax
from s2sjax import config, tasks
from s2sjax.config import Data, Frame, FrameFiles, PlainText
from s2sjax.data.corpora import readers
from s2sjax.data.signals.frame_signals import FrameSignals
from s2sjax.tasks.captioning import CaptionData, FramePictures
from s2sjax.tasks.classification import LabelData
from s2sjax.tasks.pretraining import Paragraphs
from s2sjax.tasks.recognition import LabelledSignals
from s2sjax.tasks.regression import FrameSeries, Windows
from s2sjax.tasks.tagging import TagData

PAGE = (Path(s2sjax.__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
DATA = (
    CaptionData, Data, Frame, FramePictures, FrameSeries, FrameSignals, LabelData, LabelledSignals, Paragraphs,
    PlainText, TagData, Windows,
)  # fmt: skip
COLUMNS = "en de text label tokens tags intent degrees audio phones image caption"


def test_the_table_names_every_task_and_its_settings():
    """Each kind of experiment takes the settings in the last column, with a frame and with files."""
    rows = re.findall(r"^\| (`[A-Z]\w+`(?:, `\w+`)*) \|.*\| `(.*)` \|$", PAGE.split("| task | source")[1], re.M)
    known = {kind.__name__: kind for kind in DATA} | {"df": pa.table({name: ["x"] for name in COLUMNS.split()})}
    listed = [(name, code) for names, code in rows for name in re.findall(r"\w+", names)]
    for name, code in listed:
        for corpus in (code, code.replace("Frame(df, ", "FrameFiles(('x.parquet',), ")):
            data = eval(corpus, known | {"FrameFiles": FrameFiles})
            data = config.replace(data, ngram=0) if name == "Transcription" else data
            assert getattr(tasks, name)("x", data=data).data == data
    experiments = {
        name for name, kind in vars(tasks).items() if inspect.isclass(kind) and issubclass(kind, config.Experiment)
    }
    assert {name for name, _ in listed} == experiments - {"Experiment", "SearchExperiment"}


@pytest.mark.slow
def test_the_page_runs_and_a_run_keeps_its_frames(tmp_path, monkeypatch):
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    (program,) = re.findall("```python\n(# frames.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "data.md", "exec"), names)
    experiment, folder = names["experiment"], tmp_path / "runs/backwards"
    files, frame = names["files"], experiment.data.corpus
    assert readers.load(files, "train") == readers.load(frame, "train")
    assert readers.load(files, "dev") == readers.load(frame, "dev")
    opened = s2sjax.load(folder)
    assert [example.source for example in opened.task.examples("test")] == names["words"][110:]
    assert opened.experiment.data == experiment.data
    df = names["df"]
    same = config.replace(frame, train=pa.table(df.slice(0, 110).to_pydict()), test=df.slice(110))  # read again
    s2sjax.train(config.replace(experiment, data=config.replace(experiment.data, corpus=same)), folder)
    other = config.replace(frame, train=df.slice(1, 110))
    changed = config.replace(experiment, data=config.replace(experiment.data, corpus=other))
    found = refused(lambda: s2sjax.train(changed, folder))
    assert "contains another experiment: its data.corpus.train is '110 examples, sha256" in found
