"""Sentences and frames to labels: every pooling, padding, user errors, and the commands."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config
from s2sjax.config import InMemory, Luong, RNNsearch, Train
from s2sjax.errors import UserError
from s2sjax.models.families.ngram_cnn import NGrams
from s2sjax.runs import run
from s2sjax.tasks import Classification
from s2sjax.tasks.classification.classifier import Classifier
from s2sjax.tasks.classification.settings import LabelData, LabelledFrames, LabelModel
from s2sjax.tasks.classification.task import Prediction

TINY = dict(width=6, embedding_size=4, dropout=0.0)
PAIRS = [("good film", "1"), ("bad film", "0"), ("a good one", "1"), ("so bad", "0")]
SMALL = Classification(
    "small", data=LabelData(InMemory(train=PAIRS, dev=PAIRS), buckets=((4,), (8,))), model=LabelModel()
)
ENCODERS = {
    "recurrent": RNNsearch(**TINY),
    "ngrams": NGrams(embedding_size=4, kernels=(1, 2, 3), filters=2, dropout=0.0),
    "stacked": Luong(**TINY, layers=2, bidirectional=True),
    "convolutional": config.ConvS2S(embedding_size=4, encoder_layers=((4, 3),), max_length=16, dropout=0.0),
    "transformer": config.Transformer(width=8, heads=2, feedforward=8, encoder_layers=1, dropout=0.0),
}
CASES = {f"{encoder}-{pooling}": (ENCODERS[encoder], pooling) for encoder, pooling in (
    ("ngrams", "max"), ("recurrent", "attention"), ("recurrent", "final"), ("recurrent", "mean"), ("stacked", "final"),
    ("convolutional", "mean"), ("convolutional", "attention"), ("transformer", "mean"), ("transformer", "attention"),
    ("transformer", "first"), ("transformer", "pooler"),
)}  # fmt: skip


RARE = ("recurrent-attention", "recurrent-mean", "stacked-final", "convolutional-attention", "transformer-mean")


def error_of(call):
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@zoo.each(CASES, quick=("ngrams-max",), rare=RARE)
def test_many_to_one_sentence_classification_by_final_state_mean_and_learned_query_attention(name):
    """Padding and neighbours change no logits, a row of padding is finite, and attention is a distribution."""
    encoder, pooling = CASES[name]
    module = Classifier(encoder, 3, pooling, queries=2 if pooling == "attention" else 1, size=9)
    ids = np.array([[4, 5, 6, 2, 0], [7, 2, 0, 0, 0], [0, 0, 0, 0, 0]])
    params = jax.jit(module.init)(jax.random.key(0), ids)
    apply = jax.jit(module.apply)
    found = apply(params, ids)
    assert found.logits.shape == (3, 3) and np.isfinite(found.logits).all()
    longer = apply(params, np.pad(ids[[1, 0, 2]], ((0, 0), (0, 3))))
    np.testing.assert_allclose(longer.logits[:2], found.logits[1::-1], atol=1e-5)
    if pooling == "attention":
        assert found.attention.shape == (3, 2, 5)
        np.testing.assert_allclose(found.attention[:2].sum(-1), 1, atol=1e-6)
        assert not found.attention[ids[:, None].repeat(2, 1) == 0].any()
    else:
        assert found.attention is None


def test_the_pooler_is_a_dense_layer_with_tanh_over_the_first_state():
    ids, module = np.array([[4, 5, 2, 0]]), Classifier(ENCODERS["transformer"], 2, "pooler", size=9)
    params = jax.jit(module.init)(jax.random.key(0), ids)
    read = lambda module, ids: module.encoder(*module.frontend(ids), False).states
    first = np.asarray(module.apply(params, ids, method=read))[0, 0]
    pooler, output = params["params"]["pooler"], params["params"]["output"]
    pooled = np.tanh(first @ pooler["kernel"] + pooler["bias"])
    expected = pooled @ output["kernel"] + output["bias"]
    np.testing.assert_allclose(module.apply(params, ids).logits[0], expected, atol=1e-6)


@pytest.mark.slow
def test_final_state_is_the_last_one_and_mean_and_max_are_what_they_say():
    ids = np.array([[4, 5, 2, 0]])
    encoder = Luong(width=6, embedding_size=4, layers=1, dropout=0.0)
    modules = {pooling: Classifier(encoder, 2, pooling, size=9) for pooling in ("final", "mean", "max")}
    params = jax.jit(modules["final"].init)(jax.random.key(0), ids)
    output = params["params"]["output"]
    read = lambda module, ids: module.encoder(*module.frontend(ids), False).states
    states = jax.jit(lambda params: modules["final"].apply(params, ids, method=read))(params)
    real = np.asarray(states)[0, :3]
    for pooling, pooled in {"final": real[-1], "mean": real.mean(0), "max": real.max(0)}.items():
        found = jax.jit(modules[pooling].apply)(params, ids).logits[0]
        np.testing.assert_allclose(found, pooled @ output["kernel"] + output["bias"], atol=1e-6)


def test_what_is_read_of_an_embedding_before_training_has_the_deviation_asked_for():
    module = Classifier(NGrams(embedding_size=32, kernels=(1,), filters=1), 2, "mean", initial=0.25, size=500)
    params = jax.jit(module.init)(jax.random.key(0), jnp.ones((1, 1), jnp.int32))["params"]
    read = np.asarray(params["embedding"]["table"]) * 32**0.5  # see `layers.Embedding.scale`
    assert abs(float(read.std()) - 0.25) < 0.01


@pytest.mark.parametrize(
    "build, message",
    [
        (
            lambda: LabelModel(NGrams(), "final"),
            "model.pooling final takes the last state of a recurrent encoder, and NGrams has none: set mean, max or "
            "attention",
        ),
        (lambda: LabelModel(pooling="mean", queries=2), "model.queries and model.attention_width apply to pooling"),
        (lambda: LabelModel(dropout=1.0), "model.dropout is 1.0: it must be in [0, 1)"),
        (lambda: LabelModel(initial=0.0), "model.initial is 0.0: it must be above 0"),
        (
            lambda: LabelData(buckets=((8,), (4,))),
            "data.buckets is ((8,), (4,)): give lengths of at least 1, from short",
        ),
        (
            lambda: config.replace(SMALL, model=LabelModel(config.ConvS2S(max_length=6), "mean")),
            "model.encoder.max_length 6 is shorter than the last of data.buckets, 8: raise it",
        ),
        (
            lambda: config.replace(SMALL, train=Train(softmax=config.Softmax(samples=2))),
            "train.softmax applies to translation, and a classification",
        ),
        (
            lambda: SMALL.task().learn_assets(SMALL.task().read()[:1]),
            "all training examples have the label '1': give examples of two or more labels",
        ),
        (lambda: NGrams(kernels=()), "model.encoder.kernels is (): give at least one width of 1 or more"),
    ],
)
def test_what_cannot_work_is_refused(build, message):
    assert error_of(build).startswith(message)


def learned(experiment):
    task = experiment.task()
    return task.replace(assets=task.learn_assets(task.read()))


def test_a_line_that_cannot_be_read_is_refused():
    task = learned(SMALL)
    assert task.example_of(" good  film ", "line 1").source == "good  film"
    assert error_of(lambda: task.example_of("  ", "line 2")).startswith("line 2 is empty: write a text")
    assert error_of(lambda: task.example_of("a " * 128, "line 3")) == (
        "line 3 has 129 positions, the model reads at most 128: shorten it"
    )
    unseen = config.replace(SMALL, data=LabelData(InMemory(train=PAIRS, dev=[("a", "7")])))
    message = "dev example 1: label '7' does not occur in the training data: use 0, 1"
    assert error_of(lambda: learned(SMALL).columns(unseen.task().examples("dev"))) == message


@pytest.mark.slow
def test_an_ensemble_takes_the_mean_of_the_probabilities():
    task = learned(config.replace(SMALL, model=LabelModel(ENCODERS["ngrams"], "mean", initial=1.0)))
    params = [jax.jit(task.init)(jax.random.key(seed)) for seed in (0, 1)]
    examples = task.examples("dev")
    both = task.predictor(others=[task])(params, examples)
    each = [task.predictor()(one, examples) for one in params]
    for found, one, other in zip(both, *each, strict=True):
        assert isinstance(found, Prediction) and str(found) == found.label
        for name in "01":
            mean = (one.probabilities[name] + other.probabilities[name]) / 2
            assert abs(found.probabilities[name] - mean) < 1e-6
        assert found.probability == max(found.probabilities.values())


@pytest.mark.slow
def test_the_commands_on_text(call, tmp_path, monkeypatch):
    """A run learns its training examples; it is then evaluated, decoded and compared, and figures are drawn."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{'good' if n % 3 else 'bad'} film {n}\t{'yes' if n % 3 else 'no'}\n" for n in range(60)]
    (tmp_path / "train.tsv").write_text("".join(lines))
    (tmp_path / "page.py").write_text(
        "from s2sjax.config import Text, Train\n"
        "from s2sjax.models.families.ngram_cnn import NGrams\n"
        "from s2sjax.tasks.classification import Classification, LabelData, LabelModel, LabelledText\n"
        "experiment = Classification('films',\n"
        "    data=LabelData(LabelledText('.', dev_percent=20.0), Text('words', min_count=2), buckets=((4,),),\n"
        "                   batch_tokens=64),\n"
        "    model=LabelModel(NGrams(embedding_size=8, kernels=(1,), filters=8), initial=1.0),\n"
        "    train=Train(steps=30, warmup_steps=1, learning_rate=2e-2, evaluate_every=30, log_every=30))\n"
    )
    code, out, err = call("train", "page.py")
    assert (code, err) == (0, ""), err
    assert "films: NGrams + attention with" in out and "accuracy 100.00%  macro F1 100.00%" in out
    assert all((tmp_path / "runs/films" / name).is_file() for name in ("confusion.png", "attention.png"))
    code, out, err = call("decode", "runs/films", stdin=b"good film 99\na bad film\n" + b"good " * 9 + b"\n")
    assert (code, out, err) == (0, "yes\nno\nyes\n", "")
    outputs = [json.loads(line) for line in next((tmp_path / "runs/films").rglob("outputs.jsonl")).open()]
    assert all(row["hypothesis"] == row["references"][0] and 0.5 < row["probability"] <= 1 for row in outputs)
    code, out, err = call("compare", "runs/films", "runs/films")
    assert code == 0 and "not tested, because it is not a sum over examples: macro F1 100.00% (A)" in out
    code, out, err = call("decode", "runs/films", "--also", "runs/films", stdin=b"bad film\n")
    assert (code, out, err) == (0, "no\n", "")
    code, out, err = call("decode", "runs/films", stdin=b"good film\n\nbad film\n")
    assert (code, out) == (2, "yes\n\nno\n") and err.startswith("error: standard input, line 2 is empty")


@pytest.mark.slow
def test_frames_of_a_speaker(tmp_path):
    rng = np.random.default_rng(0)
    frames = lambda label: "\t".join(
        f"{x:.3f} {label + y:.3f}" for x, y in rng.normal(size=(rng.integers(2, 7), 2)) / 4
    )
    (tmp_path / "train.tsv").write_text("".join(f"{n % 2}\t{frames(n % 2)}\n" for n in range(60)))
    experiment = Classification(
        "frames",
        data=LabelData(LabelledFrames(str(tmp_path), dev_percent=20.0), buckets=((8,),), batch_tokens=64),
        model=LabelModel(Luong(width=8, embedding_size=0, layers=1, cell="gru", dropout=0.0), "final", dropout=0.0),
        train=Train(steps=60, warmup_steps=1, learning_rate=2e-2, evaluate_every=60, log_every=60),
    )
    trained, _ = run.train(experiment, tmp_path / "run")
    assert run.evaluate(trained).results["accuracy"].value >= 90
    opened = run.load(tmp_path / "run")
    assert opened.decode("0.1 0.9\t0.0 1.2").label == "1"
    assert error_of(lambda: opened.decode("1 2 3")) == "line 1 has frames of 3 numbers: write 2 in each frame"
    assert "frames  ->  " in opened.task.show(opened.task.examples("dev")[0], opened.decode("0.1 0.9"))
