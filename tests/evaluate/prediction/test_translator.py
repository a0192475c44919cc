"""Decodes a corpus with every option, on a tiny model with random weights, and checks the effect on the text."""

import gc
import weakref

import jax
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.config import Sampling, Search
from s2sjax.core.backend import quantization
from s2sjax.core.special_tokens import EOS
from s2sjax.data.text.vocabulary import Vocabulary
from s2sjax.errors import UserError
from s2sjax.evaluate.figures import attention_maps, search_tree_layout
from s2sjax.evaluate.prediction import minimum_bayes_risk
from s2sjax.evaluate.prediction.line_notes import Notes
from s2sjax.evaluate.prediction.translator import Output, Translator

LETTERS = "abcdef"
LINES = ["abc", "fade", "", "c", "decade", "bad", "faced"]


@pytest.fixture(scope="module")
def text():
    return Vocabulary("characters", LETTERS)


@pytest.fixture(scope="module")
def weights(text):
    """Two models with peaked distributions, and their parameters."""
    made = []
    for name in ("transformer-post", "luong"):
        module = models.build(zoo.MODELS[name], text.size, text.size)
        pure = zoo.Pure(name, vocabulary=text.size, sharp=3.0)
        made.append((module, pure.params["params"]))
    return made


USUAL = {"beam_size": 3, "max_ratio": 1.0, "forbidden_words": ("<unk>",)}  # <unk> is not read again as it is written


def translator(weights, text, rows=8, buckets=(8,), **options) -> Translator:
    return Translator(weights[0][0], text, text, Search(**USUAL | options), buckets, rows)


def texts(outputs):
    return [[output.text for output in best] for best in outputs]


@pytest.mark.slow
def test_batch_order_and_bucket_change_nothing(weights, text):
    """Also of lines longer than all buckets, which have fewer slots: only their best, since the third best is a tie."""
    params = weights[0][1]
    long = ["facedecadebadcab"[:length] for length in range(9, 15)]
    found = lambda outputs: [best if len(best[0]) < 17 else best[:1] for best in texts(outputs)]
    together = found(translator(weights, text, buckets=(4, 8), nbest=3).decode(params, LINES + long))
    assert [len(best) for best in together] == [3, 3, 1, 3, 3, 3, 3] + [1] * 6
    other = translator(weights, text, rows=1, buckets=(16,), nbest=3)
    assert [found(other.decode(params, [line]))[0] for line in LINES + long] == together
    backwards = translator(weights, text, rows=5, nbest=3).decode(params, (LINES + long)[::-1])
    assert found(backwards) == together[::-1]
    assert together[2] == [""]


@pytest.mark.slow
def test_samples_are_reproducible_whatever_the_batch(weights, text):
    params, sampling = weights[0][1], Sampling(count=3, seed=5)
    together = texts(translator(weights, text, sampling=sampling, nbest=3).decode(params, LINES))
    again = translator(weights, text, rows=1, sampling=sampling, nbest=3)
    alone = [texts(again.decode(params, [line], first=number))[0] for number, line in enumerate(LINES)]
    assert alone == together
    other = config.replace(sampling, seed=6)
    assert texts(translator(weights, text, sampling=other, nbest=3).decode(params, LINES)) != together


@pytest.mark.slow
def test_prefixes_and_words(weights, text):
    params = weights[0][1]
    prefixes = ["f", "ab", "", "", "dd", "c", "e"]
    for best, prefix, line in zip(translator(weights, text).decode(params, LINES, prefixes), prefixes, LINES):
        assert best[0].text.startswith(prefix) or not line
    options = dict(
        prefix="b", forbidden_words=("a", "cc", "<unk>"), required_words=("fd",), min_length=6, no_repeat_ngram_size=3
    )
    for (best,), line in zip(translator(weights, text, **options).decode(params, LINES), LINES):
        if line:
            assert best.text.startswith("b")
            assert "fd" in best.text
            assert "a" not in best.text
            assert "cc" not in best.text
            assert len(best.ids) >= 6
            threes = [best.text[i : i + 3] for i in range(len(best.text) - 2)]
            assert len(threes) == len(set(threes))


@pytest.mark.slow
def test_the_score_of_an_output_is_the_score_of_its_pair(weights, text):
    """With constraints that forbid, with groups, and drawn at random: `score` gives it the same log-probability."""
    params = weights[0][1]
    drawn = Sampling(count=2, top_k=2)
    for options in (dict(forbidden_words=("a", "<unk>"), groups=3), dict(sampling=drawn), dict(repetition_penalty=2.0)):
        maker = translator(weights, text, **options)
        written = [(line, best[0]) for line, best in zip(LINES, maker.decode(params, LINES)) if line]
        scores = maker.score(params, [(line, output.text) for line, output in written])
        for (_, output), (log_prob, tokens) in zip(written, scores):
            assert tokens == len(output.ids)
            assert output.log_prob == pytest.approx(log_prob, abs=1e-4)


@zoo.each(["log", "linear"], "mean", quick=(), rare=("linear",))
def test_an_ensemble_writes_what_both_models_hold_likely(weights, text, mean):
    modules, params = zip(*weights)
    both = Translator(modules, text, text, Search(**USUAL, ensemble=mean), (8,), 8)
    written = [(line, best[0]) for line, best in zip(LINES, both.decode(params, LINES)) if line]
    for (_, output), (log_prob, _) in zip(written, both.score(params, [(line, o.text) for line, o in written])):
        assert output.log_prob == pytest.approx(log_prob, abs=1e-4)
    twice = Translator([modules[0]] * 2, text, text, Search(**USUAL, ensemble=mean), (8,), 8)
    alone = translator(weights, text).decode(params[0], LINES)
    assert texts(twice.decode([params[0]] * 2, LINES)) == texts(alone)


@pytest.mark.slow
def test_alignment_points_at_source_pieces(weights, text):
    maker = translator(weights, text)
    outputs = [best[0] for best in maker.decode(weights[0][1], LINES)]
    maps = maker.attention(weights[0][1], LINES, outputs)
    for line, output, pairs, (_, _, attention) in zip(LINES, outputs, maker.align(weights[0][1], LINES, outputs), maps):
        assert [target for _, target in pairs] == (list(range(len(output.text))) if line else [])
        assert all(0 <= source < len(line) for source, _ in pairs)
        assert attention.shape == (len(output.text) + 1, len(line) + 1)  # <eos>
        np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)
        if line:
            np.testing.assert_array_equal([s for s, _ in pairs], attention[:-1, :-1].argmax(-1))
    ids = [[text.encode(line) for line in lines] for lines in (LINES, ["bad"] * len(LINES))]
    forced = dict(maker.attention_of(weights[0][1], *ids))
    assert sorted(forced) == [index for index, line in enumerate(LINES) if line]
    ((_, _, attention),) = maker.attention(weights[0][1], ["decade"], [Output("bad", 0, 0, [*ids[1][0], EOS])])
    np.testing.assert_allclose(forced[LINES.index("decade")], attention[:-1, :-1], atol=1e-5)


def test_mbr_puts_the_middle_first(weights, text):
    assert minimum_bayes_risk.expected_utilities(["abcd", "abce", "xyz"], "edit") == pytest.approx(
        [1.75 / 3, 1.75 / 3, 1 / 3]
    )
    assert [index for index, _ in minimum_bayes_risk.order(["xyz", "abcd", "abce", "abcd"], "chrf")] == [1, 2, 0]
    sampling = Sampling(count=6, mbr="chrf")
    for best in translator(weights, text, sampling=sampling, nbest=6).decode(weights[0][1], LINES):
        assert len({output.text for output in best}) == len(best)
        assert [output.score for output in best] == sorted((output.score for output in best), reverse=True)


@pytest.mark.slow
def test_the_tree_is_drawn(weights, text, tmp_path):
    maker = translator(weights, text, beam_size=4, nbest=2, groups=2)
    tree, found = maker.tree(weights[0][1], "fade")
    every = search_tree_layout.nodes(tree)
    ends = {search_tree_layout.sentence(every, number): node for number, node in enumerate(every) if node.ended}
    for tokens, length, log_prob in zip(found.tokens.tolist(), found.lengths, found.log_probs):
        assert ends[tuple(tokens[:length])].log_prob == pytest.approx(float(log_prob), abs=1e-4)
    attention_maps.search_tree(tmp_path / "tree.png", tree, found, text.pieces)
    assert (tmp_path / "tree.png").stat().st_size > 5000
    with pytest.raises(UserError, match="only beam search has a tree"):
        translator(weights, text, beam_size=1).tree(weights[0][1], "fade")


def test_words_that_are_not_in_the_vocabulary_are_refused(weights, text):
    with pytest.raises(UserError, match=r"search\.required_words: 'xyz' is not in the target vocabulary"):
        translator(weights, text, required_words=("xyz",))
    unknown = translator(weights, text, forbidden_words=("<unk>",)).decode(weights[0][1], LINES)
    assert not any("<unk>" in best[0].text for best in unknown)
    with pytest.raises(UserError, match="the prefix 'xyz' is not in the target vocabulary: choose another"):
        translator(weights, text).decode(weights[0][1], ["abc"], prefixes=["xyz"])


def test_wishes_that_contradict_each_other_are_refused(weights, text):
    with pytest.raises(
        UserError, match=r"'a' is in both search\.required_words and search\.forbidden_words: remove it from one"
    ):
        translator(weights, text, required_words=("a",), forbidden_words=("a",))
    for options in (dict(prefix="abc"), dict(required_words=("ab", "c"))):
        with pytest.raises(UserError, match=r"needs 3 tokens plus <eos>, but search\.max_length is 3: raise"):
            translator(weights, text, max_length=3, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(groups=3), "search.groups 3 does not divide search.beam_size 4: try 3"),
        (dict(beam_size=1, coverage=0.2), "search.coverage 0.2 requires beam search: raise search.beam_size above 1"),
        (dict(groups=2, sampling=Sampling(count=2)), "search.groups 2 requires beam search: set search.sampling.count"),
        (dict(min_length=9, max_length=8), "search.min_length 9 is above search.max_length 8: lower it"),
        (dict(min_ratio=3.0), "search.min_ratio 3.0 is above search.max_ratio 2.0: lower it"),
        (dict(repetition_penalty=0.0), "search.repetition_penalty is 0.0: it must be above 0"),
        (dict(nbest=3, sampling=Sampling(count=2)), "search.nbest 3 is not from 1 to search.sampling.count 2: raise"),
        (dict(sampling=dict(mbr="chrf")), "search.sampling.mbr chrf compares samples"),
        (dict(sampling=dict(top_p=0.0)), "search.sampling.top_p is 0.0"),
        (dict(sampling=dict(temperature=0.0)), "search.sampling.temperature is 0.0: it must be above 0"),
    ],
)  # fmt: skip
def test_combinations_that_cannot_work_are_refused_by_name(options, message):
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        if isinstance(options.get("sampling"), dict):
            options = options | {"sampling": Sampling(**options["sampling"])}
        Search(**options)


def test_stop_rules_are_of_beam_search_alone(weights, text):
    """Greedy search and samples end at <eos>, so that settings with another rule can become theirs."""
    lines = ["abc", "ca", "bbbb"]
    for stop, one in (("heuristic", dict(beam_size=1)), ("never", dict(sampling=Sampling(count=3)))):
        plain, other = (translator(weights, text, **options) for options in (one, one | {"stop": stop}))
        assert texts(other.decode(weights[0][1], lines)) == texts(plain.decode(weights[0][1], lines))
        Search(**one, stop="first")


def test_learned_positions_bound_what_is_read_and_written(text):
    """A large search.max_ratio is bounded by the positions of the model; a larger search.max_length is refused."""
    name = "transformer-pre-learned"  # sixteen positions
    learned = [(models.build(zoo.MODELS[name], text.size, text.size), None)]
    params = zoo.Pure(name, vocabulary=text.size, sharp=3.0).params["params"]
    generous = translator(learned, text, max_ratio=4.0, beam_size=1, min_length=16)
    (outputs,) = generous.decode(params, ["abc"])
    assert len(outputs[0].ids) == 16
    with pytest.raises(UserError, match=r"model\.max_length is 16: learned positions cannot address 17"):
        translator(learned, text, max_length=17).decode(params, ["abc"])
    notes = Notes()
    assert texts(generous.decode(params, ["a" * 16], notes=notes)) == texts(generous.decode(params, ["a" * 15]))
    assert notes.report() == ["1 of 1 line is longer than 16 tokens (model.max_length) and was cut: line 1"]


# ------------------------------------------------------------------- long lines and unknown characters


@pytest.mark.slow
def test_a_long_line_is_cut_and_changes_no_other(weights, text):
    """Applies to sources and targets; the limit is four times the longest bucket, or search.max_source."""
    params, notes = weights[0][1], Notes()
    lines = ["fade", "abcdef" * 1000, "bad"]
    maker = translator(weights, text, beam_size=1, max_length=8)
    outputs = texts(maker.decode(params, lines, first=6, notes=notes))
    assert outputs == texts(maker.decode(params, ["fade", ("abcdef" * 6)[:31], "bad"]))
    assert notes.report() == ["1 of 3 lines is longer than 32 tokens (search.max_source) and was cut: line 8"]
    with pytest.warns(UserWarning, match=r"lines longer than 12 tokens \(search\.max_source\) were cut"):
        translator(weights, text, beam_size=1, max_length=8, max_source=12).decode(params, ["a" * 12])

    notes = Notes()
    pairs = [("bad", "fade"), ("bad", "ab" * 5000), ("c" * 9000, "abc")]
    scores = maker.score(params, pairs, notes=notes)
    assert [tokens for _, tokens in scores] == [5, 32, 4]
    assert scores[0][0] == pytest.approx(maker.score(params, pairs[:1])[0][0], abs=1e-5)
    assert notes.report() == ["2 of 3 lines are longer than 32 tokens (search.max_source) and were cut: lines 2 and 3"]


def test_what_a_vocabulary_does_not_have_is_counted(weights, text):
    notes, maker = Notes(), translator(weights, text, beam_size=1, max_length=4)
    maker.decode(weights[0][1], ["bad", "", "böse", "fade!!"], notes=notes)
    maker.decode(weights[0][1], ["Bad"], first=4, notes=notes)
    several = (
        "3 of 5 lines contain characters the model has never seen, such as 'ö', 's', '!' and 'B': lines 3, 4 and 5"
    )
    assert notes.report() == [several]
    notes = Notes()
    maker.score(weights[0][1], [("bad", "fade"), ("bad", "Fade")], notes=notes)
    assert notes.report() == ["1 of 2 lines contains characters the model has never seen, such as 'F': line 2"]
    many = Notes()
    many.lines = 9000
    many.add_cut(range(1, 9000), "8 tokens")
    several = "8,999 of 9,000 lines are longer than 8 tokens and were cut"
    assert many.report() == [f"{several}: lines 1, 2, 3, 4, 5 and 8,994 more"]


# ------------------------------------------------------------------------------ parameters in fewer bits


@pytest.mark.parametrize("kind", zoo.first(1, ["bfloat16", "int8"]))
def test_parameters_are_converted_once_and_freed_with_their_own(weights, text, kind, monkeypatch):
    converted = []
    stored = quantization.stored
    monkeypatch.setattr(quantization, "stored", lambda *given: converted.append(stored(*given)) or converted[-1])
    maker = translator(weights, text, beam_size=1, max_length=2, precision=kind)
    params = jax.tree.map(lambda leaf: leaf + 0, weights[0][1])
    for line in ("bad", "fade"):
        maker.decode(params, [line])
        maker.score(params, [(line, "ab")])
    assert len(converted) == 1
    first = weakref.ref(jax.tree.leaves(converted.pop())[0])
    assert first() is not None
    del params  # as training does after each evaluation
    gc.collect()
    assert first() is None
    maker.decode(weights[0][1], ["bad"])
    assert len(converted) == 1


@pytest.mark.slow
@pytest.mark.parametrize("limited", ["encoder", "decoder"])
def test_only_the_positions_of_the_decoder_bound_the_output(text, limited):
    learned, other = zoo.MODELS["transformer-pre-learned"], zoo.MODELS["luong"]
    pair = config.Pair(learned, other) if limited == "encoder" else config.Pair(other, learned)
    module = models.build(pair, text.size, text.size)
    ids = np.ones((1, 1), np.int32)
    params = jax.jit(module.init)(jax.random.key(0), ids, ids)["params"]
    generous = translator([(module, None)], text, max_ratio=4.0, beam_size=1, min_length=22)
    (outputs,) = generous.decode(params, ["abc"])
    assert len(outputs[0].ids) == (16 if limited == "decoder" else 26)


# ------------------------------------------------------------------------- models without attention


def test_what_is_made_of_attention_is_refused_where_there_is_none(weights, text):
    """A single model, or a member of an ensemble; everything else works."""
    blind = models.build(zoo.MODELS["cho"], text.size, text.size)
    for modules in (blind, [weights[0][0], blind]):
        with pytest.raises(
            UserError, match=r"search\.coverage 0\.2 requires a model with attention, and this model has none: set"
        ):
            Translator(modules, text, text, Search(beam_size=3, coverage=0.2), (8,), 8)
        maker = Translator(modules, text, text, Search(**USUAL), (8,), 8)
        assert not maker.attends
        with pytest.raises(UserError, match="an attention map requires a model with attention"):
            maker.attention(None, ["abc"], [None])
        with pytest.raises(UserError, match="an alignment requires a model with attention"):
            maker.align(None, ["abc"], [None])
