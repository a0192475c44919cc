"""Language models: a carried state equals one pass; regularisation acts in training alone; prompts."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config
from s2sjax.config import PlainText, Train
from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.data.text import text_streams
from s2sjax.errors import UserError
from s2sjax.runs import run
from s2sjax.tasks import LanguageModel
from s2sjax.tasks.language_model import language_models
from s2sjax.tasks.language_model.settings import Continuation, HybridLM, PerplexityEvaluate, RecurrentLM, TransformerLM
from s2sjax.tasks.language_model.task import Line, Prompt

TEXT = str(Path(__file__).with_name("text.txt"))
LINES = [" ".join(line.split()) for line in Path(TEXT).read_text().splitlines()]
RECURRENT = RecurrentLM(embedding_size=4, width=6, layers=2)
TRANSFORMER = TransformerLM(width=8, heads=2, feedforward=8, layers=2)
HYBRID = HybridLM(width=8, heads=2, feedforward=8, layers=2, mixers=("gated_delta", "local_attention"), window=3)


@cache
def made(model, **fields):
    """A task with its vocabulary, its initial parameters, and the ids of the text."""
    data = PlainText(TEXT, TEXT, batch_size=2, steps=8)
    task = LanguageModel("small", data=data, model=model, **fields).task()
    task = task.replace(assets=task.learn_assets(LINES))
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    return task, params, text_streams.encode(task.vocabulary, LINES)[0]


@cache
def compiled(task, method, *static):
    def run(params, key, *arrays):
        return task.module.apply({"params": params}, *arrays, *static, method=method, rngs={"dropout": key})

    return jax.jit(run)


def apply(task, params, method, *arrays, train=()):
    return compiled(task, method, *train)(params, jax.random.key(0), *arrays)


def test_the_loss_of_segments_with_a_carry_is_that_of_the_text_in_one_pass():
    task, params, ids = made(RECURRENT)
    loss = jax.jit(task.loss())
    whole = text_streams.Segments(ids, 1, len(ids)).batch(np.array([0]), (len(ids),))
    total, tokens = loss(params, whole, jax.random.key(0), 0)["loss"]
    carry, parts = task.carry(1), []
    columns = text_streams.Segments(ids, 1, 8)
    for segment in range(columns.segments):
        sums, carry = loss(params, columns.batch(np.array([segment]), (8,)), jax.random.key(0), 0, carry)
        parts.append(sums["loss"])
    assert sum(int(weight) for _, weight in parts) == int(tokens) == len(ids)
    np.testing.assert_allclose(sum(float(part) for part, _ in parts), total, rtol=1e-5)


@pytest.mark.slow
def test_evaluation_carries_the_state_from_line_to_line():
    task, params, ids = made(RECURRENT)
    inputs = np.concatenate([[EOS], ids[:-1]])
    total = float(apply(task, params, "nats", inputs[None], ids[None], task.carry(1))[0].sum())
    scored = task.predictor()(params, [Line(line) for line in LINES])
    np.testing.assert_allclose(sum(line.nats for line in scored), total, rtol=1e-5)
    assert [line.tokens for line in scored] == [len(line.split()) + 1 for line in LINES]


@pytest.mark.slow
def test_a_stream_that_starts_again_starts_from_zero():
    task, params, ids = made(RECURRENT)
    batch = text_streams.Segments(ids, 2, 8).batch(np.array([0, 1]), (8,))
    dirty = jax.tree.map(lambda leaf: leaf + 1, task.carry(2))
    loss = jax.jit(task.loss())
    sums, _ = loss(params, batch, jax.random.key(0), 0, dirty)
    assert float(sums["loss"][0]) == float(loss(params, batch, jax.random.key(0), 0)["loss"][0])


@pytest.mark.parametrize("model", [RECURRENT, TRANSFORMER], ids=["recurrent", "transformer"])
@pytest.mark.slow
def test_one_token_at_a_time_equals_all_positions(model):
    task, params, ids = made(model)
    inputs = np.stack([ids[:8], ids[8:16]])
    logits, _ = apply(task, params, "__call__", inputs, language_models.start(model, 2, jnp.float32))
    prefix = np.where(np.arange(8) < [[3], [0]], inputs, PAD)  # prefixes of three tokens and of none
    state = apply(task, params, "begin", prefix)
    for t in range(5):
        tokens = np.array([inputs[0, 3 + t], inputs[1, t]])
        state, now = apply(task, params, "advance", state, tokens)
        assert now.shape == (2, task.vocabulary.size) and (np.asarray(now)[:, :EOS] < -1e8).all()
        np.testing.assert_allclose(now[:, EOS:], [logits[0, 3 + t], logits[1, t]], atol=1e-5)


OPTIONS = {
    "sinusoidal": {"positions": "sinusoidal", "norm": "post", "activation": "gelu"},
    "learned": {"positions": "learned", "max_length": 12, "tie": False, "head_width": 6},
    "relative": {"positions": "relative", "scale_embedding": False, "output_bias": False},
    "gated": {"normalization": "rms", "gated": True, "activation": "swish", "biases": False, "epsilon": 1e-3},
}


@zoo.each(list(OPTIONS), quick=["relative"], rare=("sinusoidal", "gated"))
def test_the_cache_of_a_transformer_gives_the_logits_of_all_positions(name):
    """Also if the window slides: row 0 begins with six tokens of eight, row 1 with two."""
    task, params, ids = made(config.replace(TRANSFORMER, **OPTIONS[name]))
    rows = np.stack([ids[:14], ids[14:28]])
    state = apply(task, params, "begin", np.where(np.arange(6) < [[6], [2]], rows[:, :6], PAD))
    for t in range(4):
        last = np.array([6 + t, 2 + t])
        state, now = apply(task, params, "advance", state, rows[[0, 1], last])
        for row, end in enumerate(last + 1):
            seen = rows[row, max(0, end - 8) : end]
            wanted, _ = apply(task, params, "__call__", np.pad(seen, (0, 8 - len(seen)))[None], ())
            np.testing.assert_allclose(now[row, EOS:], wanted[0, len(seen) - 1], atol=1e-5)


def test_each_option_of_a_transformer_changes_the_logits_or_the_parameters():
    tree = lambda model: jax.tree.map(np.shape, made(model)[1])
    logits = lambda model: apply(*made(model)[:2], "__call__", made(model)[2][None, :8], ())[0]
    usual = config.replace(TRANSFORMER, positions="learned")
    for field, value in {
        "activation": "gelu", "gated": True, "normalization": "rms", "epsilon": 0.5, "biases": False, "head_width": 6,
        "scale_embedding": False, "output_bias": False, "max_length": 9,
    }.items():  # fmt: skip
        model = config.replace(usual, **{field: value})
        assert tree(model) != tree(usual) or np.abs(logits(model) - logits(usual)).max() > 1e-3, field
    gelus = [logits(config.replace(usual, activation=name)) for name in ("gelu", "gelu_tanh")]
    assert 1e-7 < np.abs(gelus[0] - gelus[1]).max() < 1e-1


def test_a_text_of_subwords():
    data = PlainText(TEXT, TEXT, unit="subwords", size=28, batch_size=2, steps=8)
    task = LanguageModel("small", data=data, model=RECURRENT).task()
    lines = task.read()
    task = task.replace(assets=task.learn_assets(lines))
    vocabulary = task.vocabulary
    assert vocabulary.unit == "subwords" and vocabulary.size == 28 and vocabulary.spare == ()
    ids, offsets = text_streams.encode(vocabulary, lines)
    decoded = [vocabulary.decode(ids[a:b]) for a, b in pairwise(offsets)]
    assert lines == LINES and all(found == line for found, line in zip(decoded, lines) if "<unk>" not in line)
    assert task.epoch(lines) == -(-sum(len(line) // 4 + 1 for line in lines) // 16), "an estimate"
    with pytest.raises(UserError, match="a pretrained vocabulary comes with its model"):
        LanguageModel("x", data=config.replace(data, unit="pretrained")).task().learn_assets(lines)


@pytest.mark.exhaustive
def test_windows_of_a_transformer_have_the_nats_of_their_own_context():
    task, params, ids = made(TRANSFORMER, evaluate=PerplexityEvaluate(context=7))
    nats = sum(line.nats for line in task.predictor()(params, [Line(line) for line in LINES]))
    inputs = np.concatenate([[EOS], ids[:-1]])
    expected = 0.0
    for end in range(1, len(ids) + 1):  # every token by itself, with seven before it
        begin = max(0, end - 8)
        pad = lambda part: np.pad(part, (0, 8 - len(part)))[None]
        found, _ = apply(task, params, "nats", pad(inputs[begin:end]), pad(ids[begin:end]), ())
        expected += float(found[0, end - begin - 1])
    np.testing.assert_allclose(nats, expected, rtol=1e-5)


def test_perplexity_of_a_uniform_model_is_the_number_of_words():
    task, params, _ = made(RECURRENT)
    lines = [Line(line) for line in [*LINES, "unheard words count too"]]
    results = task.metrics(lines, task.predictor()(jax.tree.map(jnp.zeros_like, params), lines))
    words = len({word for line in LINES for word in line.split()} | {"<eos>"})
    assert results["perplexity"].value == pytest.approx(words)
    tokens = sum(len(line.text.split()) + 1 for line in lines)
    assert results["perplexity"].signature == f"unit:words|vocabulary:{words}|tokens:{tokens}"


# --------------------------------------------------------------------------------- regularisation

NOISE = {
    "weight_drop": 0.5, "dropout": 0.5, "input_dropout": 0.5, "output_dropout": 0.5, "word_dropout": 0.5,
    "activation_penalty": 2.0, "temporal_penalty": 1.0,
}  # fmt: skip
OTHERS = [name for name in NOISE if name != "weight_drop"] + ["word_dropout of a Transformer"]


@zoo.each(["weight_drop", *OTHERS], quick=(), rare=OTHERS)
def test_regularisation_changes_training_and_leaves_evaluation(name):
    """This includes weight drop: DropConnect leaves the weights whole in evaluation."""
    field, _, transformer = name.partition(" ")
    base = config.replace(TRANSFORMER, dropout=0.0) if transformer else RECURRENT
    (plain, params, ids), (noisy, _, _) = made(base), made(config.replace(base, **{field: NOISE[field]}))
    lines = [Line(line) for line in LINES]
    assert plain.predictor()(params, lines) == noisy.predictor()(params, lines)
    batch = text_streams.Segments(ids, 2, 8).batch(np.array([0, 1]), (8,))
    loss = {task: jax.jit(task.loss()) for task in (plain, noisy)}
    total = lambda task, key: float(loss[task](params, batch, jax.random.key(key), 0)["loss"][0])
    assert total(plain, 0) != total(noisy, 0)
    draws = field not in ("activation_penalty", "temporal_penalty")
    assert (total(noisy, 0) != total(noisy, 1)) == draws and total(noisy, 0) == total(noisy, 0)


@pytest.mark.slow
def test_penalties_are_added_to_the_mean_cross_entropy():
    task, params, ids = made(config.replace(RECURRENT, activation_penalty=2.0, temporal_penalty=0.5))
    batch = text_streams.Segments(ids, 2, 8).batch(np.array([0, 1]), (8,))
    sums = jax.jit(task.loss())(params, batch, jax.random.key(0), 0)
    states = np.asarray(apply(task, params, "hidden", batch["inputs"], task.carry(2), train=(False,)).plain)
    penalty = 2.0 * np.mean(states**2) + 0.5 * np.mean((states[:, 1:] - states[:, :-1]) ** 2)
    mean = {name: float(total / weight) for name, (total, weight) in sums.items()}
    np.testing.assert_allclose(mean["loss"], mean["cross_entropy"] + penalty, rtol=1e-5)


@pytest.mark.slow
def test_a_variational_mask_is_the_same_at_every_step():
    for variational in (True, False):
        model = config.replace(RECURRENT, output_dropout=0.5, variational_dropout=variational)
        task, params, ids = made(model)
        found = apply(task, params, "hidden", ids[None, :8], task.carry(1), train=(True,))
        kept = np.asarray(found.states)[0] != 0  # [T, W]
        assert (kept == kept[0]).all() == variational and 0 < kept.mean() < 1
        np.testing.assert_allclose(found.states[0][kept], 2 * found.plain[0][kept], rtol=1e-6)


# ----------------------------------------------------------------------------------------- prompts


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", [RECURRENT, TRANSFORMER, HYBRID], ids=["recurrent", "transformer", "hybrid"])
def test_prompts_are_continued(model):
    task, params, _ = made(model, search=Continuation(max_length=5, temperature=0.0))
    prompts = [Prompt("the cat"), Prompt(""), Prompt("the zebra sat on the mat and the dog saw the cat")]
    greedy = task.predictor()(params, prompts)
    assert greedy[0].startswith("the cat") and greedy[2].startswith("the <unk> sat on")
    state, token, written = apply(task, params, "begin", np.array([[PAD]])), EOS, []
    while len(written) < 4 and (token != EOS or not written):  # by hand, from an empty prompt; the fifth is <eos>
        state, logits = apply(task, params, "advance", state, np.array([token]))
        token = int(np.argmax(logits[0]))
        written.append(token)
    assert task.vocabulary.decode(written) == greedy[1]
    one, _, _ = made(model, search=Continuation(max_length=5, top_k=1))
    assert one.predictor()(params, prompts) == greedy
    assert task.predictor()(params, prompts[2:]) == greedy[2:], "neighbours change nothing"


@pytest.mark.slow
def test_samples_follow_the_seed_the_prompt_and_its_line():
    task, params, _ = made(RECURRENT, search=Continuation(max_length=12, seed=1))
    other, _, _ = made(RECURRENT, search=Continuation(max_length=12, seed=2))
    prompts = [Prompt("the cat", f"line {number}") for number in range(4)]
    found = task.predictor()(params, prompts)
    assert found == task.predictor()(params, prompts) and len(set(found)) > 1
    assert found != other.predictor()(params, prompts)
    assert task.predictor()(params, [Prompt("a dog", "line 9"), *prompts])[1:] == found


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: RecurrentLM(weight_drop=1.0), "model.weight_drop is 1.0: it must be in [0, 1)"),
        (lambda: RecurrentLM(cell="mingru", weight_drop=0.1), "model.weight_drop drops weights from state to state"),
        (lambda: TransformerLM(width=10, heads=4), "model.width 10 is not divisible by model.heads 4"),
        (lambda: TransformerLM(max_length=-1), "model.max_length is -1: it must be at least 0"),
        (
            lambda: LanguageModel("x", model=TransformerLM(positions="learned", max_length=9)),
            "data.steps 70 is more than model.max_length 9",
        ),
        (lambda: PlainText(batch_size=0), "data.batch_size is 0: it must be at least 1"),
        (lambda: Continuation(top_p=0.0), "search.top_p is 0.0: it must be above 0"),
        (
            lambda: LanguageModel("x", train=Train(label_smoothing=0.1)),
            "train.label_smoothing applies to translation",
        ),
        (
            lambda: LanguageModel("x", model=TRANSFORMER, evaluate=PerplexityEvaluate(context=70)),
            "evaluate.context 70 leaves no token of data.steps 70",
        ),
        (
            lambda: LanguageModel("x", model=TRANSFORMER, evaluate=PerplexityEvaluate(streams=2)),
            "evaluate.streams is 2: a Transformer keeps no state",
        ),
        (
            lambda: made(RECURRENT)[0].plan(made(RECURRENT)[0].columns(LINES), 4),
            "data.batch_size 2 streams cannot be split",
        ),
        (lambda: made(RECURRENT)[0].columns([""]), f"{TEXT} has 1 tokens, fewer than data.batch_size 2"),
        (lambda: LanguageModel("x").task().read(), "data.train is empty: name a text file"),
        (lambda: made(RECURRENT)[0].predictor(None, [made(RECURRENT)[0]]), "a language model has no ensembles"),
    ],
)
def test_what_cannot_work_is_refused(build, message):
    with pytest.raises(UserError) as caught:
        build()
    assert str(caught.value).startswith(message)


LEARNERS = ["next word", "next character", "next word of a Transformer"]


@zoo.each(LEARNERS, quick=(), rare=LEARNERS[1:])
def test_a_language_model_is_a_decoder_alone_that_learns(name, tmp_path, monkeypatch):
    """A line that is repeated becomes certain."""
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])
    line, text = "one two three two one", tmp_path / "text.txt"
    text.write_text(f"{line}\n" * 40)
    model = TransformerLM(16, 2, 16, 1, dropout=0.0) if "Transformer" in name else RecurrentLM(16, 16, 1)
    unit = "characters" if "character" in name else "words"
    experiment = LanguageModel(
        "line", data=PlainText(str(text), str(text), unit=unit, batch_size=4, steps=11), model=model,
        train=Train(steps=150, learning_rate=3e-2, warmup_steps=10, evaluate_every=0, save_every=150),
        search=Continuation(temperature=0.0), evaluate=PerplexityEvaluate(context=6),
    )  # fmt: skip
    trained, _ = run.train(experiment, tmp_path / "run")
    assert run.evaluate(trained)["perplexity"].value < 1.1
    assert trained.decode("one two") == line


@pytest.mark.exhaustive
def test_the_commands(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text(
        "from s2sjax.config import PlainText, Train\nfrom s2sjax.tasks import LanguageModel\n"
        "from s2sjax.tasks.language_model import RecurrentLM\n"
        f"experiment = LanguageModel('lm', data=PlainText({TEXT!r}, {TEXT!r}, batch_size=8, steps=4),\n"
        "    model=RecurrentLM(4, 6, 1), train=Train(steps=4, evaluate_every=2, save_every=2), show=('the cat',))\n"
    )
    code, out, err = call("train", "page.py")
    assert (code, err) == (0, "")
    assert "53 training tokens of 14 types, line ends included, 8 streams, 2 steps an epoch" in out
    assert "state carried:" in out and "unit:words|vocabulary:14|tokens:53" in out and "the cat  ->  the cat" in out
    code, out, err = call("decode", "runs/lm", "--search.max_length", 3, stdin=b"the cat\n\nzebra dog\n")
    assert (code, err, len(out.splitlines())) == (0, "", 3) and out.splitlines()[2].startswith("<unk> dog")
    code, out, _ = call("evaluate", "runs/lm", "--evaluate.streams", 2, "--evaluate.context", 3)
    assert code == 0 and "state carried in 2 streams with context 3:" in out
    code, out, _ = call("compare", "runs/lm", "runs/lm")
    assert code == 0 and "nats per token" in out
    for arguments, message in (
        (("train", "page.py", "--data.train", "gone.txt", "--out", "x"), "error: there is no file gone.txt"),
        (
            ("train", "page.py", "--data.batch_size", 3, "--out", "x"),
            "error: data.batch_size 3 streams cannot be split among 8",
        ),
        (("evaluate", "runs/lm", "--split", "test"), "error: data.test is empty"),
        (("decode", "runs/lm", "--search.top_p", 2), "error: search.top_p is 2.0: it must be above 0 and at most 1"),
    ):
        code, out, err = call(*arguments, stdin=b"the\n")
        assert code == 2 and err.startswith(message), err
    assert not (tmp_path / "x" / "config.json").exists()
