"""Captions of pictures: learning, BLEU, decoding of paths, and user errors."""

import math

import jax
import numpy as np
import pytest
from PIL import Image

from s2sjax import config
from s2sjax.config import Luong, Pair, RNNsearch, Search, Text, Train, Transformer
from s2sjax.data import text
from s2sjax.errors import UserError
from s2sjax.evaluate.prediction.translator import Output
from s2sjax.models.families.identity import Identity
from s2sjax.runs import run
from s2sjax.tasks import Captioning
from s2sjax.tasks.captioning import picture_figure
from s2sjax.tasks.captioning.captioned_pictures import Picture, Squares
from s2sjax.tasks.captioning.picture_grid import Grid
from s2sjax.tasks.captioning.settings import CaptionData, CaptionEvaluate, CaptionModel, PictureChanges

SMALL = Captioning(
    "small",
    data=CaptionData(Squares(train=64, dev=8, test=8), Text(unit="words"), buckets=((12,),), batch_tokens=384),
    model=CaptionModel(
        Grid(channels=(8, 16), groups=4),
        Pair(Identity(16), RNNsearch(width=16, embedding_size=16, dropout=0.0)),
        attention_penalty=0.1,
    ),
    train=Train(steps=60, learning_rate=1e-2, warmup_steps=10, evaluate_every=0, save_every=60, log_every=30),
    search=Search(beam_size=2, max_length=12),
    evaluate=CaptionEvaluate(drawn=2),
)


def message(function) -> str:
    with pytest.raises(UserError) as caught:
        function()
    return str(caught.value)


@pytest.fixture(scope="module")
def task():
    found = SMALL.task()
    return found.replace(assets=found.learn_assets(found.read()))


@pytest.mark.slow
def test_one_to_many_image_captioning_show_attend_and_tell(tmp_path, monkeypatch, capsys):
    """A model learns colours and positions in unseen pictures, draws its attention, and decodes paths of pictures."""
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])
    trained, _ = run.train(SMALL, tmp_path / "run")
    found = run.evaluate(trained)
    assert found.results["bleu_4"].value > 80 and "nrefs:2" in found.results["bleu_4"].signature
    assert [path.name for path in run.show(trained) if path.name == "attention.png"]
    folder = tmp_path / "pictures"
    folder.mkdir()
    examples = Squares(test=2).examples("test")
    for number, example in enumerate(examples):
        Image.fromarray(example.pixels).save(folder / f"{number}.png")
    opened = run.load(tmp_path / "run")
    outputs = opened.decode([str(folder / f"{number}.png") for number in range(2)])
    assert [str(output) for output in outputs] == [str(output) for output in opened.decode(examples)]
    sampled = config.Sampling(count=2)
    assert len(opened.decode(examples, beam_size=1, sampling=sampled)) == 2


def test_bleu_of_each_order_by_hand(task):
    """One picture: 3 of 4 words, 1 of 3 pairs and no triple are in its references, the closest of which has 4 words."""
    example = Picture(np.zeros((1, 1, 3), np.uint8), ("a dog runs fast", "one brown dog"), "x")
    found = task.metrics([example] * 2, [Output("a dog brown cat", 0, 0, [])] * 2)
    assert found["bleu_1"].value == pytest.approx(75)
    assert found["bleu_2"].value == pytest.approx(100 * math.sqrt(0.75 / 3))
    assert found["bleu_3"].value == found["bleu_4"].value == 0
    assert next(iter(found)) == "bleu_4" and str(found["bleu_2"]) == "BLEU-2 50.00" and task.higher_is_better
    assert "tok:none|smooth:none" in found["bleu_1"].signature


def test_every_caption_is_a_row_that_shares_its_picture(task):
    examples = task.examples("dev")
    columns = task.columns(examples)
    assert len(columns.lengths) == 16 and len(columns.dense["picture"].values) == 8
    batch = columns.batch(np.array([2, 3]), (12,))
    np.testing.assert_array_equal(batch["picture"][0], batch["picture"][1])
    assert [task.target.decode(ids) for ids in batch["target"]] == list(examples[1].captions)
    abstract = task.abstract_batch((12,), 2)
    assert {name: (array.shape, array.dtype) for name, array in abstract.items()} == {
        name: (array.shape, array.dtype) for name, array in batch.items()
    }


@pytest.mark.slow
def test_changes_are_of_seed_step_and_example(task):
    augmented = config.replace(SMALL, data=config.replace(SMALL.data, augment=PictureChanges(0.3, 0.5, 0.2)))
    task = augmented.task().replace(assets=task.assets)
    batch = task.columns(task.examples("dev")).batch(np.array([0, 1, 2]), (12,))
    at = lambda batch, step: np.asarray(task.augmented(batch, step)["picture"])
    alone = {name: array[1:2] for name, array in batch.items()}
    np.testing.assert_allclose(at(batch, 3)[1], at(alone, 3)[0], atol=1e-3)
    assert not np.allclose(at(batch, 3), at(batch, 4), atol=1)


def test_combinations_that_cannot_work_are_refused():
    network = lambda decoder, **more: config.replace(
        SMALL, model=CaptionModel(network=Pair(Identity(16), decoder), **more)
    )
    assert "does not give: set it to 0" in message(
        lambda: network(Transformer(width=16, heads=2), attention_penalty=1.0)
    )
    network(Luong(width=16, embedding_size=16), attention_penalty=1.0)
    assert "requires a source of words" in message(lambda: network(Luong(width=16, embedding_size=16, tie="all")))
    assert "one word for each position" in message(lambda: network(config.DenseDense(width=8, embedding_size=8)))
    assert "search.max_length 0 derives" in message(lambda: config.replace(SMALL, search=Search()))
    assert "search.nbest applies to translation" in message(
        lambda: config.replace(SMALL, search=Search(max_length=12, nbest=2))
    )
    small = Transformer(width=16, heads=2, positions="learned", max_length=10)
    assert "search.max_length, 12" in message(lambda: network(small))
    assert "data.augment.flip is 2" in message(lambda: PictureChanges(flip=2.0))
    assert "train.softmax" in message(
        lambda: config.replace(SMALL, train=config.replace(SMALL.train, softmax=config.Softmax(samples=5)))
    )


def test_the_figure_of_a_caption_has_a_picture_for_each_word_bright_where_it_looks(monkeypatch):
    drawn = []
    monkeypatch.setattr(picture_figure, "save", lambda figure, path: drawn.append(figure))
    weights = np.array([[0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 1.0]])
    one = picture_figure.CaptionAttention(np.full((8, 8, 3), 9, np.uint8), ["a", "dog"], weights, "a dog")
    picture_figure.draw("unused", [one])
    plain, *words = drawn[0].axes
    assert [panel.get_title() for panel in words] == ["a", "dog"] and len(plain.images) == 1
    shades = [panel.images[1].get_array()[..., 3] for panel in words]
    np.testing.assert_allclose(shades, [np.zeros((2, 2)), [[0.85, 0.85], [0.85, 0.0]]], atol=1e-6)


def test_words_keep_their_vectors_in_another_vocabulary(task):
    """--init matches rows by word, even if both vocabularies have the same size."""
    pieces = task.target.all_pieces
    others = [*pieces[4:][::-1][1:], "circle"]  # another word in place of the last one
    other = task.replace(assets={"target": text.Vocabulary("words", others)})
    assert other.target.size == task.target.size
    rows = task.transfer_rows(other)
    assert {path.split("/")[0] for path in rows} == {"target_embedding", "decoder"}
    for found in rows.values():
        theirs = [other.target.all_pieces[n] if n >= 0 else None for n in found.of]
        assert theirs == [*pieces[:-1], None]
    assert task.transfer_rows(task) == {} and task.adopt_assets([], other.assets) == other.assets


def test_samples_of_a_picture_depend_on_its_name_alone(task):
    examples = task.examples("dev")[:3]
    whole, last = (task.columns_with(some, None).example for some in (examples, examples[2:]))
    assert len({*whole.tolist()}) == 3 and whole[2] == last[0] and (whole >= 0).all()


def test_runs_of_an_ensemble_read_alike(task):
    corpus = config.replace(SMALL.data.corpus, size=2 * SMALL.data.corpus.size)
    larger = task.replace(config.replace(SMALL, data=config.replace(SMALL.data, corpus=corpus)))
    task.check_ensemble(task)
    assert "an ensemble requires runs with equal inputs" in message(lambda: task.check_ensemble(larger))
