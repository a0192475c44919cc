"""Frames to labels: predictions, scores, random changes, and user errors."""

import json
from functools import partial

import jax
import numpy as np
import pytest

from s2sjax import config
from s2sjax.config import DenseDense, RNNsearch, Train, Transformer
from s2sjax.core.chains import ctc
from s2sjax.core.chains.ctc_prefix_search import prefix_search
from s2sjax.data.signals.handwritten_digits import Patterns
from s2sjax.data.signals.signal_examples import Signal, Strings
from s2sjax.errors import UserError
from s2sjax.evaluate.prediction.batched_apply import Batched
from s2sjax.tasks import Recognition
from s2sjax.tasks.recognition.label_model import LabelModel
from s2sjax.tasks.recognition.recognizer import Recognizer
from s2sjax.tasks.recognition.settings import (
    Augment,
    LabelledSignals,
    LabelSearch,
    RecognitionEvaluate,
    RecognizerModel,
)
from s2sjax.tasks.recognition.task import Transcript

SMALL = Recognition(
    "small",
    data=LabelledSignals(Patterns(Strings(train=12, dev=3, test=3, longest=2), labels=3, width=2), buckets=((12, 2),)),
    model=RecognizerModel(DenseDense(width=4, embedding_size=0, window=3, dropout=0.0), stack=2),
)


def message(function) -> str:
    with pytest.raises(UserError) as caught:
        function()
    return str(caught.value)


@pytest.fixture(scope="module")
def task():
    found = SMALL.task()
    return found.replace(assets=found.learn_assets(found.read()))


def test_rates_of_labels_and_sequences(task):
    frames = np.zeros((3, 2), np.float32)
    examples = [Signal(frames, ("1", "2", "2"), "a"), Signal(frames, ("0",), "b"), Signal(frames, ("1",), "c")]
    outputs = [Transcript(("1", "2"), 0.0), Transcript(("0",), 0.0), Transcript(("2", "1"), 0.0)]
    found = task.metrics(examples, outputs)
    assert found["ler"].value == pytest.approx(100 * (1 + 0 + 1) / 5) and found["ser"].value == pytest.approx(200 / 3)
    assert str(found["ler"]) == "LER 40.00%" and not task.higher_is_better
    for result in found.values():
        assert result.value == pytest.approx(sum(a for a, _ in result.terms) / sum(b for _, b in result.terms))
    assert task.show(examples[0], outputs[0]) == "a  ->  1 2  (1 2 2)"
    assert task.record(examples[0], outputs[0])["references"] == ["1 2 2"]


def test_the_settings_of_older_runs_are_read():
    stored = {"kind": "s2sjax.tasks.recognition:LabelEvaluate", "drawn": 2}
    assert config.from_json(stored) == RecognitionEvaluate(drawn=2)


def test_columns_have_normalised_frames_and_ids_from_one(task):
    examples = task.read()
    batch = task.columns(examples).batch(np.array([3, -1]), (12, 2))
    count = len(examples[3].frames)
    assert batch["frames"].shape == (2, 12, 2) and batch["frames_lengths"].tolist() == [count, 0]
    labels = [int(label) + 1 for label in examples[3].labels]
    assert batch["labels"].tolist() == [[*labels, *[0] * (2 - len(labels))], [0, 0]]
    everything = np.concatenate([task.assets["features"].apply(example.frames) for example in examples])
    np.testing.assert_allclose(everything.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(everything.std(0), 1, atol=1e-5)


def test_sequences_too_short_for_their_labels_are_remarked(task):
    frames = lambda count: np.zeros((count, 2), np.float32)
    short = [Signal(frames(4), ("1", "1"), ""), Signal(frames(5), ("1", "1"), ""), Signal(frames(1), ("1", "2"), "")]
    assert task.remarks(short) == [
        "2 training sequences have fewer frames than their labels need, so they have no effect"
    ]
    assert task.remarks(short[1:2]) == []


@pytest.mark.slow
def test_predictions_are_those_of_the_searches(task):
    """Greedy search, and prefix beam search with a language model; also for a long example."""
    params = task.init(jax.random.key(0))
    examples = [*task.examples("test"), task.example_of(" ".join(["1 -1 0 2"] * 10), "line 1")]  # 20 frames
    apply = lambda params, batch: task.module.apply({"params": params}, batch["frames"], batch["frames_lengths"])
    batched = Batched(apply, [(12,)], 4)
    found = [jax.nn.log_softmax(logits[:n]) for logits, n in batched(params, task.columns(examples, labelled=False))]
    assert len(found[-1]) == 10
    for output, log_probs in zip(task.predictor()(params, examples), found):
        assert task.labels.ids(output.labels) == ctc.collapse(np.argmax(log_probs, -1).tolist())
        assert output.score == pytest.approx(float(log_probs.max(-1).sum()), rel=1e-4)
    now = task.replace(config.replace(SMALL, search=LabelSearch(beam_size=4, language_weight=0.5, bonus=0.3)))
    options = {"width": 4, "room": 10, "model": now.labels.language_model, "weight": 0.5, "bonus": 0.3}
    best = jax.jit(partial(prefix_search, **options))(found[-1], 10)
    (output,) = now.predictor()(params, examples[-1:])
    assert task.labels.ids(output.labels) == best.labels[0][: best.length[0]].tolist()
    assert output.score == pytest.approx(float(best.score[0]), rel=1e-4)
    assert task.settings_text() == "greedy" and now.settings_text() == "beam 4"


@pytest.mark.slow
def test_random_changes_depend_on_seed_step_and_example_alone(task):
    """The loss of two examples is the sum of the losses of each, in any row, at the same step."""
    changing = config.replace(SMALL, data=config.replace(SMALL.data, augment=Augment(speed=0.3, pitch=0.3, noise=0.5)))
    now = task.replace(changing)
    params, columns, loss = now.init(jax.random.key(0)), now.columns(now.read()), jax.jit(now.loss())
    value = lambda rows, step: loss(params, columns.batch(np.array(rows), (12, 2)), jax.random.key(step), step)["loss"]
    together, alone = value([4, 7], 3), [value([7, -1], 3), value([-1, 4], 3)]
    np.testing.assert_allclose(together, np.sum(alone, axis=0), rtol=1e-5)
    assert abs(value([4, 7], 4)[0] - together[0]) > 1e-3


@pytest.mark.parametrize(
    "build, expected",
    [
        (lambda: LabelSearch(bonus=1.0), "search.language_weight and search.bonus apply to prefix beam search: set"),
        (lambda: LabelledSignals(buckets=()), "data.buckets is empty"),
        (lambda: Augment(speed=1.5), "data.augment.speed is 1.5: it must be below 1"),
        (lambda: RecognizerModel(stack=2, channels=8), "model.channels already reads four frames as one"),
        (lambda: Augment(time_masks=2), "data.augment.time_masks is 2 and time_width 0: set both, or neither"),
        (lambda: RecognizerModel(stack=0), "model.stack is 0: it must be at least 1"),
        (lambda: Recognition("x", train=Train(label_smoothing=0.1)), "train.label_smoothing applies to translation"),
        (
            lambda: Recognition(
                "x", data=LabelledSignals(ngram=0), search=LabelSearch(beam_size=2, language_weight=1.0)
            ),
            "search.language_weight requires a language model: set data.ngram above 0",
        ),
        (
            lambda: Recognition("x", model=RecognizerModel(Transformer(positions="learned", max_length=8))),
            "model.encoder.max_length 8 is shorter than the last of data.buckets, 64: raise it",
        ),
        (
            lambda: LabelModel.of("abc", [], 14),
            "data.ngram 14 needs a table of 4^14 numbers for 3 labels: lower it",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(build, expected):
    assert message(build).startswith(expected)


PAGE = """
from s2sjax.config import DenseDense, Train
from s2sjax.data.signals import Strings
from s2sjax.data.signals.handwritten_digits import Patterns
from s2sjax.tasks.recognition import *

experiment = Recognition(
    'digits',
    data=LabelledSignals(
        Patterns(Strings(train=60, dev=6, test=6, longest=2), labels=2, width=3, frames=2), buckets=((8, 2),),
        batch_tokens=200,
    ),
    model=RecognizerModel(DenseDense(width=16, embedding_size=0, window=3, dropout=0.0)),
    train=Train(steps=60, learning_rate=2e-2, warmup_steps=5, evaluate_every=60, save_every=60),
    evaluate=RecognitionEvaluate(drawn=2),
)
"""


@pytest.mark.slow
def test_train_evaluate_and_decode(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text(PAGE)
    code, out, err = call("train", "page.py")
    assert (code, err) == (0, "") and "DenseDense encoder and CTC with" in out
    assert (tmp_path / "runs/digits/spikes.png").stat().st_size > 10_000
    results = json.loads((tmp_path / "runs/digits/evaluations/test-step60-greedy/results.json").read_text())
    assert results["metrics"]["ler"]["value"] == 0  # it has learned
    code, out, err = call("evaluate", "runs/digits", "--search.beam_size", 4, "--search.language_weight", 0.1)
    assert (code, err) == (0, "") and "test, checkpoint of step 60, beam 4:" in out and "LER 0.00%" in out

    example = Patterns(Strings(longest=2), labels=2, width=3, frames=2).examples("test")[0]
    line = " ".join(f"{value:.4f}" for value in example.frames.reshape(-1))
    code, out, err = call("decode", "runs/digits", stdin=f"{line}\n".encode())
    assert (code, out, err) == (0, " ".join(example.labels) + "\n", "")
    code, out, err = call("decode", "runs/digits", stdin=f"1 2\n{line}\n".encode())
    assert (code, out) == (2, "\n" + " ".join(example.labels) + "\n")  # the other line is answered
    assert "line 1 has 2 numbers: write 3 numbers for each frame, separated by blanks\n" in err


@pytest.mark.slow
@pytest.mark.parametrize("model", [{"channels": 2, "normalize": True}, {"stack": 3}])
def test_padding_and_neighbours_change_no_logits(model):
    """Other buckets and other rows, whatever is in the padding."""
    module = Recognizer(DenseDense(width=4, embedding_size=3, window=3), 5, 4, **model)
    rng = np.random.default_rng(0)
    frames, lengths = rng.normal(size=(2, 9, 5)).astype(np.float32), np.array([7, 9])
    params = module.init(jax.random.key(0), frames, lengths)
    apply = jax.jit(module.apply)
    logits, found = apply(params, frames, lengths)
    assert found.tolist() == [-(-n // (3 if "stack" in model else 4)) for n in (7, 9)]
    wider = np.concatenate([frames, 9 * rng.normal(size=(2, 4, 5))], axis=1).astype(np.float32)[:1]
    wider[:, 7:9] = 9
    np.testing.assert_allclose(apply(params, wider, lengths[:1])[0][0, : found[0]], logits[0, : found[0]], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", [Transformer(width=8, heads=2, feedforward=8, encoder_layers=1), RNNsearch(width=4)])
def test_every_family_reads_frames(task, family):
    """Shapes alone; in bfloat16 too, where logits and loss stay float32."""
    model = RecognizerModel(family, channels=2, normalize=True)
    now = task.replace(config.replace(SMALL, model=model, train=Train(dtype="bfloat16")))
    params = jax.eval_shape(now.init, jax.random.key(0))
    batch = now.abstract_batch((12, 2), 4)
    loss = lambda params, batch: now.loss()(params, batch, jax.random.key(0), 0)["loss"][0]
    assert jax.eval_shape(loss, params, batch).dtype == np.float32
    gradient = jax.eval_shape(jax.grad(loss), params, batch)
    assert jax.tree.map(lambda leaf: leaf.shape, gradient) == jax.tree.map(lambda leaf: leaf.shape, params)
