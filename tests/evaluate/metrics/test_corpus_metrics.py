"""Scores worked out by hand, the errors a user can make, and the laws that hold for any corpus."""

import re

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from s2sjax.errors import UserError
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult, score, score_by_length, summary

patient = settings(deadline=None)  # a busy machine is not a failure
ALL = ["per", "wer", "cer", "exact", "bleu", "chrf", "ter", "bleu_tokenized"]

HYPOTHESES = [
    "the cat sat on the mat .",
    "he reads a very long book every evening",
    "It's raining again, isn't it?",
]
REFERENCES = [
    ("the cat is sitting on the mat .", "the cat sat on a mat ."),
    ("every evening he reads a long book", "he reads a thick book every evening"),
    ("It is raining again, isn't it?", "Raining again?"),
]


def value(metric, hypotheses, references, line="sentence"):
    return score([metric], hypotheses, references, line)[metric].value


# ------------------------------------------------------------------------------------- error rates


def test_composed_and_decomposed_text_are_equal_but_for_sacrebleu():
    hypotheses, references = ["caf\u00e9 noir"], [("cafe\u0301 noir",)]
    for metric in ("per", "wer", "cer"):
        assert value(metric, hypotheses, references) == 0
    assert value("exact", hypotheses, references) == 100
    assert value("bleu", hypotheses, references) == sacrebleu.corpus_bleu(hypotheses, [["cafe\u0301 noir"]]).score < 100


def test_the_rates_are_ratios_of_sums_not_means_of_ratios():
    # Distances 1 and 0 over lengths 1 and 3: 1/4. The mean of the lines' rates would be 1/2.
    hypotheses, references = ["b", "a b c"], [("a",), ("a b c",)]
    assert value("per", hypotheses, references) == 25.0
    assert value("wer", hypotheses, references) == 25.0
    assert value("cer", hypotheses, references) == pytest.approx(100 / 6, rel=1e-15)
    assert value("exact", hypotheses, references) == 50.0


def test_a_line_is_compared_with_its_closest_reference_and_that_ones_length_counts():
    # one edit from "a b c d", three from "a x y z w": errors 1 over length 4
    assert value("wer", ["a b c"], [("a x y z w", "a b c d")]) == 25.0


def test_of_equally_close_references_the_first_one_counts():
    # "a b" is one edit from "a" (length 1) and one from "a b c" (length 3)
    assert value("wer", ["a b"], [("a", "a b c")]) == 100.0
    assert value("wer", ["a b"], [("a b c", "a")]) == pytest.approx(100 / 3, rel=1e-15)


def test_where_a_line_is_one_word_wer_counts_wrong_words():
    hypotheses = ["K AE1 T", "D AO1", "HH AW1 S"]
    references = [("K AE1 T",), ("D AO1 G", "D AA1 G"), ("HH AW1 S", "HH AW1 Z")]
    assert value("wer", hypotheses, references, line="word") == pytest.approx(100 / 3, rel=1e-15)
    assert value("per", hypotheses, references, line="word") == pytest.approx(100 / 9, rel=1e-15)


def test_blanks_separate_phones_and_words_but_are_characters():
    assert value("per", [" K  AE1 T "], [("K AE1 T",)]) == 0.0
    assert value("wer", [" K  AE1 T "], [("K AE1 T",)], line="word") == 0.0
    assert value("cer", ["ab"], [("a b",)]) == pytest.approx(100 / 3, rel=1e-15)
    assert value("exact", ["a b "], [("a b",)]) == 0.0


def test_characters_are_code_points_in_any_script():
    assert value("cer", ["日本"], [("日本語",)]) == pytest.approx(100 / 3, rel=1e-15)


def test_an_error_rate_may_pass_100():
    assert value("per", ["a b c d"], [("x",)]) == 400.0


@pytest.mark.parametrize("metric", ["per", "wer", "cer"])
def test_empty_references_count_as_one_symbol_together(metric):
    assert value(metric, ["", ""], [("",), ("",)]) == 0.0
    assert value(metric, ["a", ""], [("",), ("",)]) == 100.0


lines = st.text(alphabet="ab ", max_size=5).map(lambda text: " ".join(text.split()))
corpora = st.lists(st.tuples(lines, st.lists(lines, min_size=1, max_size=3).map(tuple)), min_size=1, max_size=4)


@patient
@given(corpora)
def test_a_rate_is_zero_if_and_only_if_every_line_matches(corpus):
    hypotheses, references = zip(*corpus)
    all_match = all(hypothesis in answers for hypothesis, answers in corpus)
    for line in ("sentence", "word"):
        results = score(["per", "wer", "cer", "exact"], hypotheses, references, line)
        assert [results[name].value == 0 for name in ("per", "wer", "cer")] == [all_match] * 3
        assert (results["exact"].value == 100) == all_match
    assert results["wer"].value == pytest.approx(100 - results["exact"].value, abs=1e-12)


@patient
@given(corpora, st.randoms())
def test_the_order_of_the_lines_does_not_matter(corpus, random):
    shuffled = random.sample(corpus, len(corpus))
    first, second = (
        {name: result._replace(terms=()) for name, result in score(ALL[:4], *zip(*each)).items()}
        for each in (corpus, shuffled)
    )
    assert first == second


# --------------------------------------------------------------------------------------- sacreBLEU


def test_bleu_chrf_and_ter_are_sacrebleus_own():
    streams = list(zip(*REFERENCES))
    results = score(["bleu", "chrf", "ter"], HYPOTHESES, REFERENCES)
    assert results["bleu"].value == sacrebleu.corpus_bleu(HYPOTHESES, streams).score
    assert results["chrf"].value == sacrebleu.corpus_chrf(HYPOTHESES, streams).score
    assert results["ter"].value == sacrebleu.corpus_ter(HYPOTHESES, streams).score
    assert [results[name].label for name in results] == ["BLEU", "chrF2", "TER"]
    version = sacrebleu.__version__
    assert results["bleu"].signature == f"nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"


def test_bleu_worked_out_by_hand():
    # 5 of 6 words, 4 of 5 pairs, 3 of 4 triples, 2 of 3 fours are right; no brevity penalty:
    # (5/6 * 4/5 * 3/4 * 2/3)^(1/4) = (1/3)^(1/4)
    result = score(["bleu"], ["a b c d e x"], [("a b c d e f",)])["bleu"]
    assert result.value == pytest.approx(100 * (1 / 3) ** 0.25, rel=1e-12)


def test_lines_may_have_different_numbers_of_references():
    uneven = [REFERENCES[0], REFERENCES[1][:1], REFERENCES[2]]
    streams = [[answers[0] for answers in uneven], [uneven[0][1], None, uneven[2][1]]]
    result = score(["bleu"], HYPOTHESES, uneven)["bleu"]
    assert result.value == sacrebleu.corpus_bleu(HYPOTHESES, streams).score
    assert result.value < score(["bleu"], HYPOTHESES, REFERENCES)["bleu"].value
    assert "nrefs:var|" in result.signature


def test_legacy_bleu_takes_the_tokens_as_they_are_does_not_smooth_and_says_so():
    result = score(["bleu_tokenized"], ["a b c d, e"], [("a b c d , e",)])["bleu_tokenized"]
    assert result.value == 0.0  # "d," is no token of the reference, so no four tokens in a row match
    assert score(["bleu"], ["a b c d, e"], [("a b c d , e",)])["bleu"].value == pytest.approx(100, rel=1e-12)
    assert result.label == "legacy tokenised BLEU (not comparable)"
    assert "tok:none|smooth:none" in result.signature


def test_which_way_is_up():
    results = score(ALL, HYPOTHESES, REFERENCES)
    better = {name for name, result in results.items() if result.higher_is_better}
    assert better == {"exact", "bleu", "chrf", "bleu_tokenized"}
    assert list(results) == [result.name for result in results.values()] == ALL
    assert {result.examples for result in results.values()} == {3}


# ---------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "wrong, right", [("blue", "bleu"), ("PER", "per"), ("chrf2", "chrf"), ("exact_match", "exact")]
)
def test_a_misspelt_metric_is_answered_with_the_nearest_one(wrong, right):
    with pytest.raises(UserError, match=f"unknown metric '{wrong}': did you mean '{right}'"):
        score([wrong], ["a"], [("a",)])


@pytest.mark.parametrize(
    "hypotheses, references, message",
    [
        (["a", "b"], [("a",)], "2 hypotheses but 1 lines of references"),
        ([], [], "no lines to score"),
        (["a", "b"], [("a",), ()], "line 2 has no reference"),
        (["a", "b"], [("a",), "b"], "references of line 2 are a string"),
    ],
)
def test_lines_that_cannot_be_scored_are_refused(hypotheses, references, message):
    with pytest.raises(UserError, match=message):
        score(["per"], hypotheses, references)


# ----------------------------------------------------------------------------- buckets and reports


def test_buckets_by_source_length_hold_every_line_once():
    hypotheses, references = ["a", "b", "c", "d"], [("a",), ("x",), ("c",), ("d",)]
    buckets = score_by_length("exact", hypotheses, references, lengths=[10, 3, 11, 37], bounds=(10, 20, 30))
    assert [(low, high, r.value, r.examples) for low, high, r in buckets] == [
        (0, 10, 50.0, 2),
        (11, 20, 100.0, 1),
        (31, 37, 100.0, 1),  # no line from 21 to 30: no bucket
    ]


def test_buckets_refuse_missing_lengths_and_falling_ends():
    with pytest.raises(UserError, match="1 source lengths for 2 hypotheses"):
        score_by_length("exact", ["a", "b"], [("a",), ("b",)], lengths=[1])
    with pytest.raises(UserError, match=re.escape("bounds is (20, 10)")):
        score_by_length("exact", ["a"], [("a",)], lengths=[1], bounds=(20, 10))


RESULTS = {
    "per": MetricResult("per", 7.9312, False, None, 6012, "PER"),
    "bleu": MetricResult("bleu", 27.312, True, "nrefs:1|case:mixed", 6012, "BLEU", "{:.2f}"),
    "wer": MetricResult("wer", 33.1, False, None, 6012, "WER"),
}


def test_the_summary_prints_a_signature_with_every_sacrebleu_score():
    assert summary(RESULTS, noun="word").splitlines() == [
        "PER 7.93%  WER 33.10%  on 6,012 words",
        "BLEU 27.31  on 6,012 words  nrefs:1|case:mixed",
    ]
    assert summary(score(["exact"], ["a"], [("a",)])) == "exact 100.00%  on 1 sentence"
