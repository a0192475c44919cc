"""TensorFlow Datasets without TensorFlow: a dataset made here, prepared as array records, read by its name."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from s2sjax import config
from s2sjax.data.corpora import readers
from s2sjax.data.examples import Example
from s2sjax.errors import UserError


class SmallTalk(tfds.core.GeneratorBasedBuilder):
    """Two languages: a translation, or two texts with several answers, or languages that vary."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in ("pt_to_en", "question", "many")]  # noqa: RUF012

    def _info(self):
        features = {
            "pt_to_en": tfds.features.Translation(languages=("pt", "en")),
            "question": tfds.features.FeaturesDict(
                {
                    "question": tfds.features.Text(),
                    "answers": {"text": tfds.features.Sequence(tfds.features.Text())},
                    "number": tfds.features.Scalar(np.int64),
                }
            ),
            "many": tfds.features.FeaturesDict(
                {"translations": tfds.features.TranslationVariableLanguages(languages=("pt", "en", "de"))}
            ),
        }
        return tfds.core.DatasetInfo(builder=self, features=features[self.builder_config.name])

    def _split_generators(self, manager):
        return {"train": self._generate_examples(20), "validation": self._generate_examples(3)}

    def _generate_examples(self, count):
        for n in range(count):
            yield (
                n,
                {
                    "pt_to_en": {"pt": f"olá {n}", "en": f"hello {n}"},
                    "question": {"question": f"{n}?", "answers": {"text": [f"{n}!", f"{n}."][: n % 3]}, "number": n},
                    "many": {
                        "translations": {"pt": f"olá {n}", "en": [f"hello {n}", f"hi {n}"]} if n % 2 else {"de": "x"}
                    },
                }[self.builder_config.name],
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("tfds"))
    for variant in ("pt_to_en", "question", "many"):
        readers.tfds.download(config.Tfds(f"small_talk/{variant}", data_dir=path))
    return path


def corpus(folder, variant="pt_to_en", **fields):
    return config.Tfds(f"small_talk/{variant}", data_dir=folder, **fields)


def error_of(corpus, split="train"):
    with pytest.raises(UserError) as caught:
        readers.load(corpus, split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ----------------------------------------------------------------------------------- examples


def test_a_translation_is_read_by_its_languages(folder):
    train = readers.load(corpus(folder), "train")
    assert sorted(train) == sorted(Example(f"olá {n}", (f"hello {n}",)) for n in range(20))
    assert len(readers.load(corpus(folder), "dev")) == 3
    turned = readers.load(corpus(folder, source="en", target="pt"), "train")
    assert turned == [Example(example.targets[0], (example.source,)) for example in train]


def test_a_part_of_a_split_is_a_split(folder):
    most, rest = corpus(folder, train="train[:90%]"), corpus(folder, train="train[90%:]")
    parts = [readers.load(part, "train") for part in (most, rest)]
    assert [len(part) for part in parts] == [18, 2]
    assert parts[0] + parts[1] == readers.load(corpus(folder), "train")


def test_several_answers_are_several_references_and_none_is_no_example(folder):
    found = readers.load(corpus(folder, "question", source="question", target="answers.text"), "train")
    assert len(found) == 13 and {len(example.targets) for example in found} == {1, 2}
    assert Example("5?", ("5!", "5.")) in found and not any(example.source == "3?" for example in found)


def test_languages_that_vary_are_found_where_they_are(folder):
    found = readers.load(corpus(folder, "many", source="translations.pt", target="translations.en"), "dev")
    assert found == [Example("olá 1", ("hello 1", "hi 1"))]


# ------------------------------------------------------------------------------------- errors


def test_an_unknown_dataset_names_its_neighbours():
    message = error_of(config.Tfds("ted_hrlrtranslate/pt_to_en"))
    assert "has no 'ted_hrlrtranslate': did you mean 'ted_hrlr_translate'" in message


def test_an_unknown_configuration_names_its_neighbours(folder):
    assert error_of(corpus(folder, "pt_to_em")).startswith(
        "small_talk has no configuration 'pt_to_em': did you mean 'pt_to_en'"
    )


def test_a_dataset_not_prepared_says_the_command_that_prepares_it(tmp_path):
    message = error_of(corpus(str(tmp_path)))
    assert message.startswith(f"small_talk/pt_to_en is not in {tmp_path}")
    assert "s2sjax prepare FILE" in message
    assert f"tfds.builder('small_talk/pt_to_en', data_dir='{tmp_path}').download_and_prepare(" in message


@pytest.mark.parametrize(
    "fields, split, words",
    [
        ({"dev": "validatoin"}, "dev", "has no split 'validatoin': set data.corpus.dev to one of train, validation"),
        ({"test": ""}, "test", "data.corpus.test is empty: set it to a split of small_talk/pt_to_en"),
        ({"train": "train[:90"}, "train", "has no split 'train[:90'"),
        ({"source": "fr"}, "train", "has no feature 'fr': set data.corpus.source; it has en, pt"),
    ],
)
def test_what_a_dataset_does_not_have_is_named(folder, fields, split, words):
    assert words in error_of(corpus(folder, **fields), split)


def test_a_feature_that_is_no_text_is_named(folder):
    for feature in ("number", "answers"):
        message = error_of(corpus(folder, "question", source=feature, target="answers.text"))
        assert (
            message
            == f"small_talk/question: the feature {feature!r} is not text: set data.corpus.source to a text feature"
        )


# -------------------------------------------------------------------------------- no TensorFlow


def test_neither_preparing_nor_reading_imports_tensorflow(tmp_path):
    """In a separate process, in which no other test has imported TensorFlow."""
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import small\n"
        "from s2sjax import config\n"
        "from s2sjax.data.corpora import readers\n"
        f"corpus = config.Tfds('small', data_dir={str(tmp_path / 'data')!r})\n"
        "readers.tfds.download(corpus)\n"
        "print(readers.load(corpus, 'train')[0].targets, 'tensorflow' in sys.modules)\n"
    )
    (tmp_path / "small.py").write_text(
        "import tensorflow_datasets as tfds\n"
        "class Small(tfds.core.GeneratorBasedBuilder):\n"
        "    VERSION = tfds.core.Version('1.0.0')\n"
        "    def _info(self):\n"
        "        return tfds.core.DatasetInfo(builder=self, features=tfds.features.Translation(('pt', 'en')))\n"
        "    def _split_generators(self, manager):\n"
        "        return {'train': self._generate_examples()}\n"
        "    def _generate_examples(self):\n"
        "        yield 0, {'pt': 'sim', 'en': 'yes'}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("\n('yes',) False\n"), done.stderr


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert error_of(config.Tfds()) == "tensorflow-datasets is not installed: pip install tensorflow-datasets"
