"""Examples in memory: pairs or mappings, stored in the run folder; anything else is rejected in one line."""

import pytest
from conftest import refused

from s2sjax import config, tasks
from s2sjax.data.corpora import memory_reader, readers
from s2sjax.tasks.classification.settings import LabelData
from s2sjax.tasks.tagging.settings import TagData, TaggerModel


def test_each_corpus_of_a_mixture_is_kept(tmp_path):
    corpora = tuple(config.InMemory(train=[(word, word)], test=[("a", "b")]) for word in ("one", "two"))
    mixture = config.Mixture((*corpora, config.Synthetic()), tags=("<1>", "<2>", "<3>"))
    memory_reader.save(mixture, tmp_path)
    memory_reader.save(mixture, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3  # equal splits share a file
    opened = memory_reader.load(config.from_json(config.to_json(mixture)), tmp_path)
    assert opened == mixture
    assert [example.source for example in readers.load(opened, "train")][:2] == ["<1> one", "<2> two"]


def test_pairs_in_memory_may_have_any_shape_and_any_character():
    rows = [("a", "b"), ["a", ["b", "c"]], readers.Example("tab\there", ("new\nline", "\u2028")), ("a", "b", "c")]
    corpus = config.InMemory(train=iter(rows), dev=zip("ab", "cd"))
    assert [(e.source, e.targets) for e in readers.load(corpus, "train")] == [
        ("a", ("b",)), ("a", ("b", "c")), ("tab\there", ("new\nline", "\u2028")), ("a", ("b", "c")),
    ]  # fmt: skip
    assert [readers.has(corpus, split) for split in ("train", "dev", "test")] == [True, True, False]
    assert config.from_json(config.to_json(corpus)) == corpus
    assert config.replace(corpus, dev=[]) != corpus


EN_DE = [{"en": "a dog", "de": "ein Hund", "id": 7}, {"en": "a cat", "de": "eine Katze", "id": 8}]


@pytest.mark.parametrize(
    "rows, names, pairs",
    [
        (EN_DE, {"source": "en", "target": "de"}, [("a dog", "ein Hund"), ("a cat", "eine Katze")]),
        (iter(EN_DE), {"source": "de", "target": "en"}, [("ein Hund", "a dog"), ("eine Katze", "a cat")]),
        (
            [{"id": n, "translation": row} for n, row in enumerate(EN_DE)],
            {"source": "translation.en", "target": "translation.de"},
            [("a dog", "ein Hund"), ("a cat", "eine Katze")],
        ),
        ([{"a.b": "x", "c": ["y", "z"]}], {"source": "a.b", "target": "c"}, [("x", ["y", "z"])]),
        ([{"x": "a", "y": "b", "z": "c"}], {"source": "x", "target": ("z", "y")}, [("a", "c", "b")]),
        (
            [{"tokens": ["the", "dog"], "ner": ["O", "B-x"], "intent": "bark"}],
            {"source": "tokens", "target": ("ner", "intent")},
            [("the dog", "O B-x", "bark")],
        ),
        ([(["the", "dog"], ["O", "B-x"])], {}, [("the dog", "O B-x")]),
        ([{"x": "a", "y": 1, "z": [0, 2]}], {"source": "x", "target": ("y", "z")}, [("a", "1", "0", "2")]),
    ],
)
def test_rows_may_be_mappings_whose_columns_are_named(rows, names, pairs):
    corpus, plain = config.InMemory(train=rows, **names), config.InMemory(train=pairs)
    assert corpus.train == plain.train and corpus.train.rows == plain.train.rows
    assert config.from_json(config.to_json(corpus)) == corpus
    assert config.replace(corpus, dev=[]) == corpus


def test_every_task_that_reads_memory_reads_mappings():
    rows = [{"x": ["a", "b"], "y": ["X", "Y"], "z": "p"}, {"x": ["b"], "y": ["Y"], "z": "q"}]
    tagged = TagData(config.InMemory(train=rows, source="x", target=("y", "z")))
    assert tasks.Tagging("tags", data=tagged, model=TaggerModel(intent=1.0)).task().read() == [
        (("a", "b"), ("X", "Y"), "p"), (("b",), ("Y",), "q"),
    ]  # fmt: skip
    corpus = config.InMemory(train=rows, source="x", target="z")
    labelled = tasks.Classification("labels", data=LabelData(corpus)).task().read()
    assert [(example.source, example.label) for example in labelled] == [("a b", "p"), ("b", "q")]
    pairs = tasks.Translation("pairs", data=config.Data(corpus)).task().read()
    assert [(example.source, example.targets) for example in pairs] == [("a b", ("p",)), ("b", ("q",))]


def test_a_run_on_mappings_opens_again(tmp_path):
    corpus = config.InMemory(train=EN_DE, dev=EN_DE, source="en", target="de")
    memory_reader.save(corpus, tmp_path)
    opened = memory_reader.load(config.from_json(config.to_json(corpus)), tmp_path)
    assert opened == corpus and opened.train.rows == corpus.train.rows


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"train": EN_DE},
            "InMemory.train, example 1 has the columns en, de, id: name them, as in source='en', target='de'",
        ),
        (
            {"train": [{"translation": EN_DE[0]}]},
            "InMemory.train, example 1 has the columns translation.en, translation.de, translation.id: name them, "
            "as in source='translation.en', target='translation.de'",
        ),
        (
            {"train": EN_DE, "dev": [{"en": "a"}], "source": "en", "target": "de"},
            "InMemory.dev, example 1 has no column 'de', it has en: did you mean 'en'?",
        ),
        (
            {"train": [{"translation": "a"}], "source": "translation.en", "target": "de"},
            "InMemory.train, example 1 has no column 'translation.en', it has translation: did you mean 'translation'?",
        ),
        (
            {"train": EN_DE, "source": "id", "target": "en"},
            "InMemory.train, example 1: the column 'id' is 7: it must be a text, or a list of texts",
        ),
        (
            {"train": [{"en": None, "de": "b"}], "source": "en", "target": "de"},
            "InMemory.train, example 1: the column 'en' is None: it must be a text, or a list of texts",
        ),
        (
            {"train": [{"en": "a", "de": []}], "source": "en", "target": "de"},
            "InMemory.train, example 1: the column 'de' is []: it must be a text, or a list of texts",
        ),
        (
            {"train": {"en": ["a"], "de": ["b"]}, "source": "en", "target": "de"},
            "InMemory.train is a mapping of en, de: give a list of rows, one for each example",
        ),
        ({"train": EN_DE, "source": "en"}, "InMemory.target is empty and source is 'en': name both columns, or none"),
        ({"train": EN_DE, "target": "en"}, "InMemory.source is empty and target is 'en': name both columns, or none"),
        ({"train": [{"a", "b"}]}, "InMemory.train, example 1 is {'"),
        ({"train": [{}]}, "InMemory.train, example 1 has no columns: give (source, target) pairs of strings"),
    ],
)
def test_mappings_are_never_read_as_the_names_of_their_columns(fields, message):
    found = refused(lambda: config.InMemory(**fields))
    assert found.startswith(message) and len(found) < 250


@pytest.mark.parametrize(
    "train, message",
    [
        ("train.tsv", "InMemory.train is 'train.tsv': give (source, target) pairs of strings, or use config.TextFiles"),
        (5, "InMemory.train is 5: give (source, target) pairs"),
        (["ab"], "InMemory.train, example 1 is 'ab': give (source, target) pairs"),
        ([("a", "b"), ("a",)], "InMemory.train, example 2 is ('a',): give (source, target) pairs"),
        ([("a", 1)], "InMemory.train, example 1 is ('a', 1): give (source, target) pairs"),
        ([("a", [])], "InMemory.train, example 1 is ('a', []): give (source, target) pairs"),
        ([("a", "x" * 999, 3)], "InMemory.train, example 1 is ('a', 'xxx"),
        ([("a", "\ud800")], "InMemory.train, example 1 is not text (surrogates not allowed): correct it"),
    ],
)
def test_what_are_no_pairs_is_refused_in_few_words(train, message):
    found = refused(lambda: config.InMemory(train=train))
    assert found.startswith(message) and len(found) < 200
    assert len(refused(lambda: config.Data(corpus=[("a", "b")] * 10_000))) < 400
