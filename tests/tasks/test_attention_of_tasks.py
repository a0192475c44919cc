"""`run.attention` and `run.attention_heads`: for every task that reads text, by layer and head."""

from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import refused

from s2sjax import config
from s2sjax.config import InMemory
from s2sjax.runs.run import Run
from s2sjax.tasks import Classification, LanguageModel, Pretraining, Tagging, Translation
from s2sjax.tasks.classification.settings import LabelData, LabelModel
from s2sjax.tasks.language_model.settings import HybridLM, TransformerLM
from s2sjax.tasks.pretraining.settings import BertModel, Paragraphs
from s2sjax.tasks.tagging.settings import TagData, TaggerModel

TRANSFORMER = config.Transformer(
    width=8, heads=2, feedforward=8, encoder_layers=2, decoder_layers=1, dropout=0.0, positions="learned", max_length=16
)
TEXT = str(Path(__file__).with_name("text.txt"))
SENTENCES = [("the cat sleeps", "X Y Z"), ("the dog", "X Y")]
LINE = "the cat sleeps"
PAIRS = [("abc", "cba"), ("ab", "ba"), ("cab", "bac")]
EXPERIMENTS = {
    "words": (
        Tagging(
            "t",
            data=TagData(InMemory(SENTENCES, SENTENCES), buckets=((4,),)),
            model=TaggerModel(TRANSFORMER, spelling_width=2),
        ),
        ["the", "cat", "sleeps"],
    ),
    "subwords": (
        Tagging(
            "t",
            data=TagData(InMemory(SENTENCES, SENTENCES), text=config.Text("subwords", size=24), buckets=((12,),)),
            model=TaggerModel(TRANSFORMER),
        ),
        "subwords",
    ),
    "labels": (
        Classification(
            "c",
            data=LabelData(InMemory([(s, "ab"[n]) for n, (s, _) in enumerate(SENTENCES)]), buckets=((6,),)),
            model=LabelModel(TRANSFORMER),
        ),
        ["the", "cat", "sleeps", "<eos>"],
    ),
    "pretraining": (
        Pretraining(
            "p",
            data=Paragraphs(TEXT, TEXT, text=config.Text("words"), buckets=((12,),)),
            model=BertModel(TRANSFORMER),
        ),
        ["[CLS]", "the", "cat", "<unk>", "<eos>"],
    ),
    "language model": (
        LanguageModel("l", data=config.PlainText(TEXT, TEXT, steps=8), model=TransformerLM(width=8, heads=2, layers=2)),
        ["<eos>", "the", "cat", "<unk>"],
    ),
    "local language model": (
        LanguageModel(
            "l",
            data=config.PlainText(TEXT, TEXT, steps=8),
            model=HybridLM(width=8, heads=2, layers=2, mixers=("rg_lru", "local_attention"), window=2),
        ),
        ["<eos>", "the", "cat", "<unk>"],
    ),
}


def untrained(experiment, monkeypatch) -> Run:
    task = experiment.task()
    task = task.replace(assets=task.learn_assets(task.read()))
    params = jax.jit(task.init)(jax.random.key(0))
    monkeypatch.setattr(Run, "_restored", lambda self: params)
    return Run("nowhere", task)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_tasks_that_read_text_show_their_self_attention(name, monkeypatch):
    experiment, pieces = EXPERIMENTS[name]
    run = untrained(experiment, monkeypatch)
    side, other = ("decoder", "encoder") if "language" in name else ("encoder", "decoder")
    found = run.attention_heads(LINE, side)
    if pieces == "subwords":
        assert "".join(found.source[:-1]).replace("▁", " ").strip() == LINE and found.source[-1] == "<eos>"
    else:
        assert found.source == pieces
    layers, T = ([2] if "local" in name else [1, 2]), len(found.source)
    assert found.layers == layers and found.weights.shape == (len(layers), 2, T, T)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)
    assert (found.weights[0] == 0).any() == ("language" in name)
    one = run.attention(LINE, side, layer=2, head=1)
    np.testing.assert_array_equal(one.weights, found.weights[-1, 0])
    np.testing.assert_allclose(run.attention(LINE, side).weights, found.weights.mean((0, 1)), rtol=1e-6)
    assert f"has no {other}" in refused(lambda: run.attention(LINE, other))
    assert "layer is 3: this attention has the layers" in refused(lambda: run.attention(LINE, side, layer=3))
    if "local" not in name:  # its text has no end
        assert "the line" in refused(lambda: run.attention("the " * 50, side))


def test_a_translation_has_three_attentions(monkeypatch, tmp_path):
    """The mean of cross-attention is the map without a layer, and the decoder attends to what it has read."""
    experiment = Translation("t", data=config.Data(InMemory(PAIRS), buckets=((8, 8),)), model=TRANSFORMER)
    run = untrained(experiment, monkeypatch)
    cross, encoder, decoder = (run.attention_heads("abca", of) for of in ("cross", "encoder", "decoder"))
    output = run.nbest(["abca"])[0][0]
    target = run.task.assets["target"].pieces(output.ids)
    assert (cross.source, cross.target) == ([*"abca", "<eos>"], target)
    assert encoder.source == encoder.target == [*"abca", "<eos>"]
    assert decoder.source == decoder.target == ["<sos>", *target[:-1]]
    assert cross.weights.shape[:2] == decoder.weights.shape[:2] == (1, 2) and encoder.weights.shape == (2, 2, 5, 5)
    mean = run.attention("abca")
    np.testing.assert_allclose(cross.weights.mean((0, 1)), mean.weights, atol=1e-6)
    np.testing.assert_array_equal(decoder.weights, np.tril(decoder.weights))
    for found in (cross, encoder, decoder):
        np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)
    assert encoder.save(tmp_path / "encoder.svg").read_text().count("source") > 4
    assert decoder._repr_png_().startswith(b"\x89PNG")
    assert "head is 0: this attention has the heads 1, 2, choose one of them" in refused(
        lambda: run.attention("abca", "decoder", head=0)
    )


def test_the_language_models_of_recurrences_have_none(monkeypatch):
    experiment = config.replace(EXPERIMENTS["language model"][0], model=HybridLM(width=8, heads=2, mixers=("rg_lru",)))
    message = refused(lambda: untrained(experiment, monkeypatch).attention(LINE, "decoder"))
    assert message.startswith("this model has no self-attention in its decoder: choose another model")
