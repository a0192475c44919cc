"""The whole translator, the dictionary and fertilities, on an artificial language whose translation is known."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from s2sjax import align
from s2sjax.errors import UserError
from s2sjax.evaluate import metrics
from s2sjax.statistical import Dictionary, PhraseTranslator, Search, fertility

NOUNS = {f"n{k}": f"noun{k}" for k in range(8)}
ADJECTIVES = {f"a{k}": f"adjective{k}" for k in range(4)}
VERBS = {"v0": "verb0", "v1": "verb1", "v2": "verb2 up"}


def sentence(rng):
    """The subject and the verb, twice. Articles have no translation, adjectives come last, v2 is two words."""
    source, target = [], []
    for _ in range(2):
        noun, adjective, verb = (rng.choice(list(words)) for words in (NOUNS, ADJECTIVES, VERBS))
        source += [*["the"] * rng.randrange(2), adjective, noun, verb]
        target += [NOUNS[noun], ADJECTIVES[adjective], VERBS[verb]]
    return " ".join(source), " ".join(target)


@pytest.fixture(scope="module")
def text():
    rng = random.Random(0)
    return [sentence(rng) for _ in range(150)], [sentence(rng) for _ in range(25)]


@pytest.fixture(scope="module")
def translator(text):
    return PhraseTranslator.train(text[0])


def bleu(translator, pairs):
    outputs = translator.translate([source for source, _ in pairs])
    return metrics.score(["bleu_tokenized"], outputs, [(target,) for _, target in pairs])["bleu_tokenized"].value


def test_phrases_translate_what_words_and_the_dictionary_cannot(text, translator):
    train, dev = text
    assert bleu(translator, dev) > 95 > 60 > bleu(Dictionary.learn(train), dev)
    words = PhraseTranslator.train(train, longest=1)
    assert bleu(Dictionary.learn(train), dev) < bleu(words, dev) < bleu(translator, dev)
    assert bleu(replace(translator, search=Search(distortion=0)), dev) <= bleu(translator, dev)


def test_tuning_does_not_lower_bleu_and_repeats_itself(text, translator):
    train, dev = text
    sources, references = zip(*dev)
    said = []
    poor = PhraseTranslator.train(train, longest=1)
    tuned = poor.tune(sources, references, rounds=3, n=20, report=said.append)
    assert bleu(tuned, dev) >= bleu(poor, dev)
    assert said[0] == f"tune 1/3  BLEU {bleu(poor, dev):.2f}"
    assert poor.tune(sources, references, rounds=3, n=20).weights == tuned.weights


def test_two_translators_of_the_same_text_say_the_same(text, translator):
    again = PhraseTranslator.train(text[0])
    lines = [source for source, _ in text[1]]
    assert again.translate(lines) == translator.translate(lines)
    assert again.nbest(lines[0], 5) == translator.nbest(lines[0], 5)


def test_an_alignment_can_be_given(text, translator):
    aligned = align.fit(text[0])
    given = PhraseTranslator.train(text[0], aligned=aligned)
    assert given.nbest(text[1][0][0], 3) == translator.nbest(text[1][0][0], 3)
    with pytest.raises(UserError, match="aligned has 150 pairs, but there are 149: align the same pairs"):
        PhraseTranslator.train(text[0][1:], aligned=aligned)


def test_empty_lines_stay_empty_and_new_words_are_copied(translator):
    assert translator.translate(["", " ", "xyz"]) == ["", "", "xyz"]
    assert "xyz" in translator.translate(["the a1 xyz v1"])[0].split()
    assert Dictionary({"a": "b"}).translate(["", "a xyz"]) == ["", "b xyz"]


def test_the_best_translation_comes_first_and_all_differ(translator, text):
    found = translator.nbest(text[1][0][0], 10)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    assert len({h.words for h in found}) == len(found) == 10


def test_bad_input_is_one_line(translator):
    with pytest.raises(UserError, match="no sentence pair has words on both sides: there is nothing to learn from"):
        PhraseTranslator.train([])
    with pytest.raises(UserError, match="2 sources but 1 references: give one for each"):
        translator.tune(["a", "b"], ["c"])
    with pytest.raises(UserError, match="there are no sentences to tune the weights on"):
        translator.tune([], [])


def test_the_dictionary_can_leave_out_silent_words(text):
    train, _ = text
    plain, silent = Dictionary.learn(train), Dictionary.learn(train, model="hmm", silent=True)
    assert plain.entries["n3"] == "noun3" and silent.silent == {"the"}
    assert silent.translate(["the a1 n3 v0"]) == ["adjective1 noun3 verb0"]


def test_fertilities_are_the_shares_of_link_counts():
    table = fertility.count(["zum haus", "zum"], [{(0, 0), (0, 1), (1, 2)}, {(0, 0)}])
    assert table == {"zum": {1: 0.5, 2: 0.5}, "haus": {1: 1.0}}
    assert fertility.mean(table, "zum") == 1.5 and fertility.mean(table, "new") == 1
    assert fertility.best(table, "zum") == 1 == fertility.best(table, "new")
    assert fertility.show(table, ["zum"], most=2) == (
        "         0      1      2   mean\nzum   0.00   0.50   0.50   1.50"
    )


def test_fertilities_find_words_that_become_none_or_two(text):
    train, _ = text
    links = align.fit(train, "ibm1", agree=False).links("forward")
    table = fertility.count((source for source, _ in train), links)
    assert fertility.best(table, "the") == 0 and fertility.best(table, "v2") == 2 and fertility.best(table, "n1") == 1
    assert all(sum(row.values()) == pytest.approx(1) for row in table.values())


def test_the_program_of_the_page_runs(capsys):
    page = Path(__file__).parents[2] / "docs/systems/statistical.md"
    (program,) = re.findall("```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    exec(program, {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "['the book is small', '']" and printed[-1] == "['a book']"
