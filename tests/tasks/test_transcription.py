"""Frames to labels by an attention decoder: learning, columns, and user errors."""

import jax
import numpy as np
import pytest

from s2sjax import config
from s2sjax.config import RNNsearch, Search, Train, Transformer
from s2sjax.data.signals.handwritten_digits import Patterns
from s2sjax.data.signals.signal_examples import Signal, Strings
from s2sjax.errors import UserError
from s2sjax.runs import run
from s2sjax.tasks import Transcription
from s2sjax.tasks.recognition import spikes
from s2sjax.tasks.recognition.settings import Augment, LabelledSignals, RecognitionEvaluate
from s2sjax.tasks.transcription import time_figure
from s2sjax.tasks.transcription.settings import SpellerModel

SMALL = Transcription(
    "small",
    data=LabelledSignals(
        Patterns(Strings(train=300, dev=10, test=40, longest=3), labels=3, width=4),
        Augment(noise=0.1),
        ngram=0,
        buckets=((20, 4),),
        batch_tokens=768,
    ),
    model=SpellerModel(RNNsearch(width=16, embedding_size=8, dropout=0.0), stack=2),
    train=Train(steps=200, learning_rate=1e-2, warmup_steps=10, evaluate_every=0, save_every=200, log_every=50),
    search=Search(beam_size=2, max_length=6),
    evaluate=RecognitionEvaluate(drawn=2),
)


def message(function) -> str:
    with pytest.raises(UserError) as caught:
        function()
    return str(caught.value)


@pytest.mark.slow
def test_listen_attend_and_spell(tmp_path, monkeypatch):
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])
    trained, _ = run.train(SMALL, tmp_path)
    found = run.evaluate(trained)
    assert found.results["ler"].value < 15
    assert [path.name for path in run.show(trained) if path.name == "attention.png"]
    numbers = " ".join(str(x) for x in SMALL.data.corpus.examples("test")[0].frames.ravel())
    assert set(str(run.load(tmp_path).decode(numbers)).split()) <= {"0", "1", "2"}


def test_columns_are_frames_and_labels_with_their_end():
    task = SMALL.task()
    task = task.replace(assets=task.learn_assets(task.read()))
    examples = task.examples("dev")
    batch = task.columns(examples).batch(np.array([0, 1]), (20, 4))
    assert [task.target.decode(ids).split() for ids in batch["target"]] == [list(e.labels) for e in examples[:2]]
    assert batch["frames_lengths"].tolist() == [len(example.frames) for example in examples[:2]]
    abstract = task.abstract_batch((20, 4), 2)
    assert {name: array.shape for name, array in abstract.items()} == {n: array.shape for n, array in batch.items()}
    unwritten = task.columns_with(examples, None)
    assert (unwritten.lengths[:, 1] == 1).all()


def test_what_cannot_work_is_refused():
    assert "set data.ngram 0" in message(lambda: Transcription("x", data=LabelledSignals()))
    short = Transformer(width=8, heads=2, positions="learned", max_length=8)
    assert "positions that are read, 10" in message(lambda: config.replace(SMALL, model=SpellerModel(short, stack=2)))
    limited = config.replace(SMALL, model=SpellerModel(config.replace(short, max_length=10), stack=2)).task()
    line = " ".join(["0"] * 4 * 21)
    assert "line 1 has 21 frames, the model reads at most 20" in message(lambda: limited.example_of(line, "line 1"))
    assert "already reads four frames" in message(lambda: SpellerModel(stack=2, channels=2))

    class Blank(Patterns):
        alphabet = ("a b",)

    task = config.replace(SMALL, data=config.replace(SMALL.data, corpus=Blank())).task()
    assert "which contains blanks" in message(lambda: task.learn_assets([Signal(np.zeros((1, 4)), (), "x")]))


def test_the_figure_of_time_has_frames_and_weights_of_each_label(monkeypatch):
    drawn = []
    monkeypatch.setattr(spikes, "save", lambda figure, path: drawn.append(figure))
    weights = np.array([[0.9, 0.1, 0.0], [0.0, 0.2, 0.8]])
    one = time_figure.FrameAttention(np.arange(24.0).reshape(6, 4), ["1", "<eos>"], weights, 2, "x  ->  1")
    time_figure.draw("unused", [one, one])
    frames, looks, *_ = panels = drawn[0].axes
    assert len(panels) == 4 and frames.get_title(loc="left") == "x  ->  1"
    np.testing.assert_array_equal(frames.images[0].get_array(), one.frames.T)
    np.testing.assert_array_equal(looks.images[0].get_array(), weights)
    assert [label.get_text() for label in looks.get_yticklabels()] == ["1", "<eos>"]
    assert looks.images[0].get_extent() == [0, 6, 2, 0]  # three places of two frames
