"""BERT: both losses, padding, lines to fill in, user errors; and other tasks that start from it."""

from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from s2sjax import config
from s2sjax.config import Data, InMemory, Luong, Spelling, Text, Train, Transformer
from s2sjax.core.special_tokens import CLS, EOS, MASK
from s2sjax.data import text
from s2sjax.errors import UserError
from s2sjax.runs import folder, run, train_run
from s2sjax.tasks import Classification, Pretraining, Tagging, Translation
from s2sjax.tasks.classification.settings import LabelData, LabelModel
from s2sjax.tasks.pretraining.settings import BertModel, Paragraphs
from s2sjax.tasks.tagging.settings import TagData, TaggerModel
from s2sjax.training import mesh as meshes
from s2sjax.training.run_log import Log

FILE = str(Path(__file__).with_name("text.txt"))
ENCODER = Transformer(width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1, norm="pre", dropout=0.0)
BERT = Pretraining(
    "bert",
    data=Paragraphs(FILE, FILE, text=Text("words"), buckets=((12,), (16,)), batch_tokens=48),
    model=BertModel(ENCODER, mask_rate=0.3),
    train=Train(steps=2, warmup_steps=1, evaluate_every=0, save_every=2, log_every=2),
)


def task_of(experiment=BERT):
    task = experiment.task()
    return task.replace(assets=task.learn_assets(task.read()))


@pytest.fixture(scope="module")
def task():
    return task_of()


@pytest.fixture(scope="module")
def params(task):
    drawn = jax.jit(task.init)(jax.random.key(1))
    return jax.tree.map(lambda leaf: leaf + 0.1, drawn)


def error_of(call):
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------------------------------- losses


@pytest.mark.slow
def test_the_loss_is_of_masked_positions_alone_and_of_next_sentences(task, params):
    """Compared with all positions one by one: only masked ones count, each with the label of its line."""
    batch = task.columns(task.read()).batch(np.array([0, 3, -1]), (12,))
    masks = jax.random.key(5)
    found = jax.jit(task._losses)(params, batch, masks)
    masked = task._mask(masks, batch)
    places = np.broadcast_to(np.arange(12), (3, 12))
    guesses = jax.jit(task.module.apply)({"params": params}, masked.ids, batch["first"], places)
    words, follows = jax.nn.log_softmax(guesses.words), jax.nn.log_softmax(guesses.follows)
    of_words, of_next, count = 0.0, 0.0, 0
    for row in (0, 1):
        for place in masked.positions[row][masked.counts[row]].tolist():
            of_words -= words[row, place, batch["source"][row, place]]
            of_next -= follows[row, batch["follows"][row]]
            count += 1
    assert count == found["loss"][1] == found["word_loss"][1] > 2 and found["next_loss"][1] == 2
    np.testing.assert_allclose(found["word_loss"][0], of_words, rtol=1e-5)
    np.testing.assert_allclose(found["loss"][0], of_words + of_next, rtol=1e-5)


@pytest.mark.slow
def test_padding_and_neighbours_change_no_loss(task, params):
    columns, loss = task.columns(task.read()), jax.jit(partial(task._losses, masks=jax.random.key(5)))
    total = lambda rows, width: loss(params, columns.batch(np.array(rows), (width,)))
    alone, other = total([2, -1], 16), total([4, -1], 16)
    both = total([4, 2], 12)
    for name in both:
        for part in (0, 1):
            np.testing.assert_allclose(both[name][part], alone[name][part] + other[name][part], rtol=1e-5)
    assert all(np.isfinite(value) and value == 0 for pair in total([-1, -1], 12).values() for value in pair)


@pytest.mark.slow
def test_the_second_text_has_a_vector_of_its_own_and_the_first_is_read_as_one_text(task, params):
    ids = np.array([[4, 6, 7, EOS, 8, EOS]])
    encode = lambda first: task.module.apply({"params": params}, ids, np.array([first]), method="encode")
    assert np.abs(encode(4) - encode(6)).max() > 1e-3
    assert np.array_equal(encode(6), encode(9))


@pytest.mark.slow
def test_scores_are_those_of_the_evaluation_loss_and_do_not_change(task, params):
    examples = task.examples("dev")
    outputs = task.predictor()(params, examples)
    scores = task.metrics(examples, outputs)
    assert list(scores) == ["perplexity", "nats", "accuracy", "next"]
    assert outputs[2:4] == task.predictor()(params, examples[2:4])  # the same words are masked, whatever the others
    columns = task.dev_columns(examples)
    sums = jax.jit(task.evaluation_loss())(params, columns.batch(np.arange(len(examples)), (16,)))
    np.testing.assert_allclose(scores["nats"].value, sums["word_loss"][0] / sums["word_loss"][1], rtol=1e-5)
    np.testing.assert_allclose(np.log(scores["perplexity"].value), scores["nats"].value, rtol=1e-6)
    right = [(output.follows > 0.5) == example.follows for example, output in zip(examples, outputs)]
    assert scores["next"].value == pytest.approx(100 * np.mean(right))
    assert "words, follows 0." in task.show(examples[0], outputs[0])


# ---------------------------------------------------------------------------------- lines, mistakes


@pytest.mark.slow
def test_masks_are_filled_and_the_rest_of_a_line_stays(task, params):
    lines = [task.example_of(line, "line 1") for line in (f"the {MASK} sat  on ☃", f"{MASK} {MASK}")]
    first, second = task.predictor()(params, lines)
    words = {*task.vocabulary.all_pieces[6:]}
    assert first.startswith("the ") and first.endswith(" sat on ☃") and first.split()[1] in words
    assert len(second.split()) == 2 and {*second.split()} <= words


def test_a_line_that_cannot_be_filled_is_refused(task):
    assert error_of(lambda: task.example_of("the cat", "line 2")) == (
        "line 2 has no [MASK]: write one in place of each word to fill in"
    )
    assert "line 3: each [MASK] must be a separate word" in error_of(
        lambda: task.example_of("[MASK][MASK] cat", "line 3")
    )
    assert "positions, the model reads at most 256" in error_of(lambda: task.example_of("[MASK] " * 300, "line 4"))


def test_settings_and_files_that_cannot_work_are_refused(tmp_path):
    for changes, words in (
        (dict(train=Train(label_smoothing=0.1)), "train.label_smoothing applies to translation"),
        (dict(model=BertModel(config.replace(ENCODER, positions="learned", max_length=8))), "max_length 8 is shorter"),
    ):
        assert words in error_of(lambda changes=changes: config.replace(BERT, **changes))
    for build in (
        lambda: BertModel(mask_rate=1.0),
        lambda: BertModel(Luong(embedding_size=0)),
        lambda: BertModel(next_weight=-1.0),
        lambda: Paragraphs(buckets=((2,),)),
        lambda: Paragraphs(text=Text("subwords", sampling=0.1)),
    ):
        error_of(build)
    (tmp_path / "short.txt").write_text("one\ntwo words\n")
    short = config.replace(BERT, data=config.replace(BERT.data, train=str(tmp_path / "short.txt")))
    assert "has 1 lines of two words or more: at least 2 are needed" in error_of(short.task().read)
    missing = config.replace(BERT, data=config.replace(BERT.data, train="none.txt", origin="a data set"))
    assert "there is no file none.txt (text, one sentence a line) of a data set" in error_of(missing.task().read)


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_text_of_unknown_words_alone_is_refused_before_training(tmp_path, split):
    """A line with one known word masks it, so that no score is over 0 words."""
    (tmp_path / "other.txt").write_text("xx yy\nzz ww\n")
    other = config.replace(BERT, data=config.replace(BERT.data, **{split: str(tmp_path / "other.txt")}))
    assert error_of(lambda: run.train(other, tmp_path / "run")) == (
        f"{tmp_path}/other.txt has no word of the training text, so that none can be masked: "
        f"give a text in its language, or unset data.{split}"
    )
    (tmp_path / "other.txt").write_text("xx yy\nzz the\n")
    known = task_of(other)
    known.check_examples(split, known.examples(split))


# -------------------------------------------------------------------------------------- transfer


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> run.Run:
    """A run with one checkpoint, that of step 2."""
    path = tmp_path_factory.mktemp("bert") / "run"
    made = run.Run(path, folder.start_task(BERT, path, BERT.task().read()))
    checkpoints = made.checkpoints()
    checkpoints.save(train_run.initial_state(made.task, meshes.make_mesh(config.Mesh())), 2, notes={"best": {}})
    checkpoints.wait()
    return made


def started(path, experiment, base, adopt=True):
    """The task of a new run, and its initial parameters."""
    task = experiment.task()
    made = folder.start_task(experiment, path, task.read(), assets=base.task.assets if adopt else None)
    state = train_run.initial_state(
        made, meshes.make_mesh(config.Mesh()), source=train_run.Source(base.folder, base.task), log=Log(None, 1, 1)
    )
    return made, jax.device_get(state.params)


PAIRS = [("the cat sat", "1"), ("a dog saw", "0"), ("new words", "1")]
LABELS = Classification(
    "labels",
    data=LabelData(InMemory(train=PAIRS, dev=PAIRS), buckets=((8,),)),
    model=LabelModel(ENCODER, "first", dropout=0.0),
)
IDS = np.array([[4, 6, 8, 7, EOS, 0]])


def encoded(task, params, ids):
    """The encoder's states, for any task with `frontend` and `encoder`."""
    read = lambda module, ids: module.encoder(*module.frontend(ids), False).states
    return task.module.apply({"params": params}, ids, method=read)


@pytest.fixture(scope="module")
def states(base):
    of_bert = base.task.module.apply({"params": base.params()[0]}, IDS, np.array([5]), method="encode")
    return np.asarray(of_bert)[:, :5]


@pytest.mark.slow
def test_pre_training_and_transfer_to_classification(base, states, tmp_path, capsys):
    task, params = started(tmp_path / "new", LABELS, base)
    said = capsys.readouterr().out
    assert "initialised from" in said and "new: output/" in said
    assert "not used: " in said and "follows/bias (2,)" in said and "embedding/table" not in said.split("not used")[1]
    np.testing.assert_allclose(encoded(task, params, IDS)[:, :5], states, atol=1e-6)
    vocabulary = task.assets["text"]
    assert vocabulary.fingerprint == base.task.vocabulary.fingerprint
    row = task.columns(task.read()).batch(np.array([0]), (8,))["source"][0]
    assert row[0] == text.mark(vocabulary, CLS) and row[4] == EOS  # read as BERT reads one text
    logits = task.module.apply({"params": params}, row[None]).logits
    first = encoded(task, params, row[None])[:, 0]
    np.testing.assert_allclose(logits, first @ params["output"]["kernel"] + params["output"]["bias"], atol=1e-5)


@pytest.mark.slow
def test_pre_training_and_transfer_to_classification_with_words_of_its_own(base, tmp_path, capsys):
    task, params = started(tmp_path / "new", LABELS, base, adopt=False)
    assert "embedding/table 10 of 12" in capsys.readouterr().out  # 4 special ids, 6 words; "new" and "words" are not
    mine, theirs = task.assets["text"].all_pieces, base.task.vocabulary.all_pieces
    table = base.params()[0]["embedding"]["table"]
    for index, piece in enumerate(mine):
        if piece in theirs:
            np.testing.assert_array_equal(params["embedding"]["table"][index], table[theirs.index(piece)])


@pytest.mark.slow
def test_pre_training_and_transfer_to_tagging(base, states, tmp_path, capsys):
    rows = [("the cat sat", "D N V"), ("a bird saw", "D N V")]
    model = TaggerModel(ENCODER, Spelling(on=False), spelling_width=4)
    data = TagData(InMemory(train=rows, dev=rows), min_count=1)
    task, params = started(tmp_path / "new", Tagging("tags", data=data, model=model), base)
    words, theirs = task.assets["words"].all_pieces, base.task.vocabulary.all_pieces
    assert {*theirs} - {CLS, MASK} <= {*words} and "bird" in words
    said = capsys.readouterr().out
    assert f"frontend/words/table {len(words) - 1} of {len(words)}" in said
    assert "embedding/table" not in said.split("not used")[1]
    ids = np.array([[words.index(theirs[index]) for index in IDS[0, 1:4]]])
    read = lambda module, ids: module.encoder(*module.frontend(ids, None), False).states
    found = task.module.apply({"params": params}, ids, method=read)
    plain = base.task.module.apply({"params": base.params()[0]}, IDS[:, 1:4], np.array([3]), method="encode")
    np.testing.assert_allclose(found, plain, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("tie", ["output", pytest.param("none", marks=pytest.mark.exhaustive)])
def test_pre_training_and_transfer_to_translation(base, states, tmp_path, capsys, tie):
    rows = [("the cat sat", "die Katze sass"), ("a dog saw", "ein Hund sah")]
    data = Data(InMemory(train=rows, dev=rows), Text("words"), Text("words"), buckets=((8, 8),))
    task, params = started(tmp_path / "new", Translation("to", data=data, model=config.replace(ENCODER, tie=tie)), base)
    assert task.source.fingerprint == base.task.vocabulary.fingerprint and "Katze" in task.target.all_pieces
    size = task.source.size
    assert f"source_embedding/table {size} of {size}" in capsys.readouterr().out
    np.testing.assert_allclose(encoded(task, params, IDS)[:, :5], states, atol=1e-6)
    assert task.predictor()(params, task.examples("dev"))  # a line needs no tag


@pytest.mark.slow
def test_a_run_started_from_bert_continues_with_the_same_command(base, tmp_path):
    path = tmp_path / "new"
    for _ in range(2):  # the second finds the files that the first wrote before its first checkpoint
        made = folder.start_task(LABELS, path, LABELS.task().read(), assets=base.task.assets)
    assert made.assets["text"].fingerprint == base.task.vocabulary.fingerprint


@pytest.mark.slow
def test_words_are_found_among_subwords():
    lines = ["the package is a small package.", "the small one is a package."] * 10
    subwords = text.build(Text("subwords", size=40), lines, (CLS, MASK))
    words = text.build(Text("words"), ["the package of ."])
    rows, pieces = text.rows_in(words, subwords), subwords.all_pieces
    assert rows is not None and rows[:4].tolist() == [0, 1, 2, 3]
    for word, row in zip(words.all_pieces[4:], rows[4:]):
        there = f"▁{word}" if f"▁{word}" in pieces else word
        assert row == (pieces.index(there) if there in pieces else -1)
    assert rows[words.all_pieces.index(".")] == pieces.index(".") and "▁the" in pieces
    assert text.rows_in(subwords, words) is None
