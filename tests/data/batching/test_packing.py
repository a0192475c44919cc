"""Packing: every pair occurs once, in one row, and does not affect its neighbours in the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st

from s2sjax import config, models
from s2sjax.config import Data, Luong, Mixture, Prepared, RNNsearch, Synthetic, Transformer
from s2sjax.core.attention import position_encodings
from s2sjax.core.attention.multi_head_attention import fused_multi_head, multi_head, same_segment
from s2sjax.core.special_tokens import EOS, PAD, SOS
from s2sjax.data import pairs as textpairs
from s2sjax.data import prepare
from s2sjax.data.batching import batch_plan, packing
from s2sjax.data.examples import Example
from s2sjax.data.text.vocabulary import Vocabulary
from s2sjax.errors import UserError
from s2sjax.models import objectives
from s2sjax.models.encoder_decoder import shift_right
from s2sjax.tasks import Translation

ROW = (9, 8)
LETTERS = Vocabulary("characters", "abc")
examples_of = st.lists(
    st.tuples(st.text("abc", max_size=9), st.lists(st.text("abc", max_size=9), min_size=1, max_size=2)), max_size=30
)


def packed_of(examples):
    pairs = textpairs.encode([Example("a", ("b",)), *examples], LETTERS, LETTERS)
    return pairs, packing.Packed(pairs, ROW)


def unpacked(batch, side):
    """{(row, segment): ids} of a batch."""
    found = {}
    for row, (ids, segments) in enumerate(zip(batch[side], batch[f"{side}_segments"])):
        assert np.array_equal(ids != PAD, segments > 0)
        for segment in range(1, segments.max(initial=0) + 1):
            places = np.flatnonzero(segments == segment)
            assert len(places) == places[-1] - places[0] + 1  # in one piece
            found[row, segment] = ids[places].tolist()
    return found


# ----------------------------------------------------------------------------------------- rows


def test_the_worked_example():
    assert packing.pack(np.array([(3, 2), (2, 2), (4, 1), (1, 1)]), (6, 6)).tolist() == [0, 0, 1, 0]
    assert packing.pack(np.array([(6, 6)] * 3), (6, 6)).tolist() == [0, 1, 2]
    assert packing.pack(np.array([(1, 6), (1, 1)]), (6, 6)).tolist() == [0, 1]  # the target alone can fill it
    assert packing.pack(np.array([(1, 3), (4, 2), (2, 1)]), (8, 4)).tolist() == [0, 1, 0]
    assert packing.pack(np.zeros((0, 2), int), (6, 6)).tolist() == []


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 7)), max_size=60))
def test_no_row_holds_more_than_it_can(lengths):
    lengths = np.array(lengths, int).reshape(-1, 2)
    rows = packing.pack(lengths, (12, 7))
    assert set(rows.tolist()) == set(range(len(set(rows.tolist()))))
    used = np.array([lengths[rows == row].sum(0) for row in range(rows.max(initial=-1) + 1)]).reshape(-1, 2)
    assert np.all(used <= (12, 7))


@settings(deadline=None, max_examples=50)
@given(examples_of)
def test_every_pair_is_in_one_row_whole(rows):
    pairs, packed = packed_of([Example(source, tuple(targets)) for source, targets in rows])
    batch = packed.batch(np.arange(len(packed.lengths)), ROW)
    sources, targets = unpacked(batch, "source"), unpacked(batch, "target")
    assert sources.keys() == targets.keys()
    fits = np.flatnonzero(np.all(pairs.lengths <= ROW, axis=1))
    plain = pairs.batch(fits, ROW)
    expected = [
        ([*filter(None, source.tolist())], [*filter(None, target.tolist())], int(example))
        for source, target, example in zip(plain["source"], plain["target"], plain["example"])
    ]
    found = [(sources[key], targets[key], int(batch["example"][key[0], key[1] - 1])) for key in sources]
    assert sorted(found) == sorted(expected) and len(fits) == (batch["example"] >= 0).sum()
    assert packed.left_out == len(pairs.lengths) - len(fits)


def test_rows_of_padding_and_rows_in_any_order():
    _, packed = packed_of([Example("ab" * (n % 4), ("c" * (n % 6),)) for n in range(20)])
    whole = packed.batch(np.arange(4), ROW)
    some = packed.batch(np.array([2, -1, 0]), ROW)
    for name in whole:
        assert some[name].dtype == np.int32
        assert np.array_equal(some[name][[0, 2]], whole[name][[2, 0]])
        assert np.all(some[name][1] == (-1 if name == "example" else 0))
        assert np.all(packed.batch(np.array([-1, -1]), ROW)[name] == (-1 if name == "example" else 0))


def test_packing_wastes_less_than_buckets():
    corpus = Synthetic("copy", train=2000, length=30, alphabet=5)
    waste = {}
    for packing_too in (False, True):
        data = Data(corpus, buckets=((16, 16), (32, 32), (64, 64)), batch_tokens=2048, packing=packing_too)
        pairs, plan = pairs_and_plan(data)
        made = [batch_plan.make_batch(pairs, plan, step) for step in range(plan.steps_per_epoch)]
        waste[packing_too] = np.mean(np.concatenate([batch["source"].ravel() == PAD for batch in made]))
        examples = np.concatenate([batch["example"].ravel() for batch in made])
        assert sorted(examples[examples >= 0].tolist()) == list(range(2000))
    assert waste[True] < 0.2 < waste[False]


def pairs_and_plan(data):
    train = textpairs.read(data)
    pairs = textpairs.make_columns(data, train, *textpairs.vocabularies(data, train), seed=0)
    return pairs, textpairs.make_plan(data, pairs, seed=0, multiple=2)


def test_prepared_and_mixed_corpora_are_packed_alike(tmp_path):
    parts = tuple(Synthetic(task, train=60, dev=0, test=0, length=5, alphabet=3) for task in ("copy", "sort"))
    data = Data(Mixture(parts, weights=(3, 1)), buckets=((20, 20),), batch_tokens=160, packing=True)
    prepare.prepare(data, tmp_path / "made")
    raw, made = (
        pairs_and_plan(config.replace(data, corpus=c)) for c in (data.corpus, Prepared(str(tmp_path / "made")))
    )
    for step in range(12):
        left, right = batch_plan.make_batch(*raw, step), batch_plan.make_batch(*made, step)
        assert left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)
        for example in left["example"]:
            assert len({int(number) // 60 for number in example[example >= 0]}) <= 1  # a row never mixes corpora


# --------------------------------------------------------------------------------------- models


def test_positions_begin_anew_with_each_segment():
    segments = jnp.array([[1, 1, 1, 2, 2, 0], [1, 2, 3, 0, 0, 0]])
    assert position_encodings.within(segments).tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 0, 0, 1, 2]]
    target = jnp.array([[5, 6, EOS, 7, EOS, PAD]])
    assert shift_right(target, segments[:1]).tolist() == [[SOS, 5, 6, SOS, 7, SOS]]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_segments_is_the_definition(causal):
    rng = np.random.default_rng(0)
    queries, keys, values = (rng.normal(size=(2, 6, 2, 4)).astype(np.float32) for _ in range(3))
    asked, seen = (
        jnp.array([[1, 1, 2, 2, 3, 0], [1, 1, 1, 1, 1, 1]]),
        jnp.array([[1, 2, 2, 2, 0, 0], [1, 1, 1, 2, 2, 2]]),
    )
    mask = same_segment(asked, seen)
    for bias in (None, rng.normal(size=(1, 2, 6, 6)).astype(np.float32)):
        definition = multi_head(queries, keys, values, mask & jnp.tri(6, dtype=bool) if causal else mask, bias)
        fused = fused_multi_head(queries, keys, values, mask=mask, causal=causal, bias=bias)
        np.testing.assert_allclose(fused, definition, atol=1e-6)


transformers = zoo.each(
    {name: model for name, model in zoo.MODELS.items() if isinstance(model, Transformer) and not model.window},
    quick=(),
    rare=("transformer-post", "transformer-pre-learned", "transformer-shared", "transformer-relative-pre"),
)


@transformers
def test_packed_equals_unpacked_in_loss_and_gradients(name):
    """The same pairs, one per row, and several per row in another order."""
    words = Vocabulary("characters", "abc")  # the vocabulary of the zoo: 7
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abc"), rng.integers(0, 5))) for _ in range(20)]
    pairs = textpairs.encode([Example(s, (t,)) for s, t in zip(texts[:10], texts[10:])], words, words)
    packed = packing.Packed(pairs, ROW)
    assert packed.max_pairs >= 3
    module = models.build(zoo.MODELS[name], words.size, words.size)
    plain = pairs.batch(np.arange(10), ROW)
    params = zoo.parameters(module)["params"]  # sharper ones have ill-conditioned gradients: see models/test_laws.py

    @jax.jit
    def loss_and_gradients(params, batch):
        def total(params):
            still = _Still(module)
            (loss, weight) = objectives.loss(still, 0.1, params, batch, jax.random.key(0))["loss"]
            return loss, weight

        return jax.value_and_grad(total, has_aux=True)(params)

    (loss, weight), gradients = loss_and_gradients(params, plain)
    (other, same), others = loss_and_gradients(params, packed.batch(np.arange(len(packed.lengths)), ROW))
    assert weight == same == pairs.lengths[:, 1].sum()
    np.testing.assert_allclose(loss / weight, other / weight, rtol=1e-5)
    for left, right in zip(jax.tree.leaves(gradients), jax.tree.leaves(others)):
        np.testing.assert_allclose(left / weight, right / weight, atol=2e-6)
    assert max(float(abs(leaf).max()) for leaf in jax.tree.leaves(gradients)) > 0.1


class _Still:
    """A module without dropout, because the dropped units depend on their positions."""

    def __init__(self, module):
        self.module = module

    def apply(self, variables, source, target, train, segments, rngs, method):
        return self.module.apply(variables, source, target, False, segments, method=method)


LOCAL = config.Hybrid(mixers=("ssd", "local_attention"))


@pytest.mark.parametrize("model", [Luong(), RNNsearch(), config.ConvS2S(), config.Pair(), LOCAL], ids=config.model_name)
def test_a_model_that_would_mix_the_examples_of_a_row_is_refused_by_name(model):
    with pytest.raises(UserError) as caught:
        Translation("x", data=Data(packing=True), model=model)
    mixing = next(side for side in config.encoder_and_decoder(model) if type(side) is not Transformer)
    assert str(caught.value) == (
        "data.packing requires a model that keeps the examples of a row apart: a Transformer, or a Hybrid without "
        f"local_attention; this {type(mixing).__name__} does not: unset it"
    )
