"""An imported BERT or RoBERTa computes what transformers computes, with the ids of its tokenizer."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from interop.encoder_folders import NAMES, ids, lines, stored, write_folder
from interop.folders import change_config, change_tensors

from s2sjax.core.special_tokens import CLS, EOS, MASK, PAD, SPECIALS, UNK
from s2sjax.data import text
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.errors import UserError
from s2sjax.runs.pretrained import encoder
from s2sjax.runs.pretrained.importer import Options
from s2sjax.tasks.pretraining import paragraphs

WITH_WORDS = ("bert", "bert-2018", "roberta", "xlm-roberta")
"""models with an output layer of masked words"""
each = pytest.mark.parametrize("name", NAMES)


def vocabulary_of(folder: Path) -> PretrainedVocabulary:
    return PretrainedVocabulary.from_folder(folder, "source")


# ------------------------------------------------------------------------------------------ text


@each
def test_ids_are_those_of_transformers(name, tmp_path):
    vocabulary = vocabulary_of(write_folder(name, tmp_path))
    spelled, compared = {"<s>", "</s>", "<pad>", "<unk>", "<mask>"}, 0
    for line, theirs in zip(lines("texts"), ids(name, "ids"), strict=True):
        if name == "xlm-roberta" and any(token in line for token in spelled):
            continue  # transformers finds special tokens in this text
        ours = [text.mark(vocabulary, CLS), *vocabulary.encode(line), EOS]
        assert vocabulary.foreign[ours].tolist() == theirs, line
        compared += 1
    assert compared > 70


@each
def test_the_ids_of_masks_are_those_of_transformers(name, tmp_path):
    vocabulary = vocabulary_of(write_folder(name, tmp_path))
    for line, theirs in zip(lines("masked"), ids(name, "masked_ids"), strict=True):
        ours = [text.mark(vocabulary, CLS), *paragraphs.masked_ids(vocabulary, line), EOS]
        assert vocabulary.foreign[ours].tolist() == theirs, line


@each
def test_the_vocabulary(name, tmp_path):
    """Its tags are [CLS] and [MASK], which no text has, and ids are a permutation."""
    vocabulary = vocabulary_of(write_folder(name, tmp_path))
    assert vocabulary.tags == (CLS, MASK) == tuple(vocabulary.all_pieces[4:6])
    assert np.array_equal(np.sort(vocabulary.foreign), np.arange(vocabulary.size))
    assert vocabulary.size == len({*vocabulary.all_pieces})
    assert (vocabulary.default_tag, vocabulary.begin, vocabulary.forced_begin) == (None, (), ())
    never = {PAD, EOS, text.mark(vocabulary, CLS), text.mark(vocabulary, MASK)}
    for line in (f"{CLS} a", f"{MASK} a", "<s> a", "[SEP]", "<pad>[PAD]</s><mask>"):
        assert not never.intersection(vocabulary.encode(line)), line
    assert vocabulary.decode(vocabulary.encode("a mubnpea")).replace(" ", "").endswith("npea")
    vocabulary.save(tmp_path, "text")
    again = text.load(tmp_path, "text")
    assert again.fingerprint == vocabulary.fingerprint and again.encode("glxa ra.") == vocabulary.encode("glxa ra.")


def test_id_1_is_rare(tmp_path):
    """It is not masked in training: a placeholder if there is one, and else the last piece."""
    vocabulary = vocabulary_of(write_folder("bert", tmp_path / "bert"))
    assert vocabulary.all_pieces[1] == "[unused0]" and vocabulary.foreign[:6].tolist() == [0, 1, 4, 2, 3, 5]
    vocabulary = vocabulary_of(write_folder("roberta", tmp_path / "roberta"))
    assert vocabulary.foreign[:6].tolist() == [1, 309, 2, 3, 0, 310] and vocabulary.all_pieces[UNK] == SPECIALS[UNK]


# ----------------------------------------------------------------------------------------- model


def read(folder: Path):
    found = encoder.read(folder, "encoder", Options())
    return found, found.experiment.task().replace(assets=found.assets)


def ours(name: str, vocabulary: PretrainedVocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The stored batch in ids of s2sjax, and the lengths of the first texts."""
    inverse = np.argsort(vocabulary.foreign)
    batch = inverse[stored()[f"{name}/batch"].astype(np.int32)]
    ends = (batch == EOS).argmax(axis=1) + 1
    if name.startswith("bert"):
        kinds = stored()[f"{name}/kinds"]
        assert (kinds.max(axis=1) > 0).sum() == 2
        assert (kinds.argmax(axis=1)[kinds.max(axis=1) > 0] == ends[kinds.max(axis=1) > 0]).all()
    return batch.astype(np.int32), ends.astype(np.int32)


@each
def test_the_model_computes_what_transformers_computes(name, tmp_path):
    """The last hidden states, and the logits of masked words and of next sentences, of one text and of two, padded."""
    found, task = read(write_folder(name, tmp_path))
    batch, first = ours(name, task.vocabulary)
    real = stored()[f"{name}/mask"] == 1
    assert np.array_equal(real, batch != PAD) and not real.all()
    variables = {"params": found.params}
    states = np.asarray(task.module.apply(variables, batch, first, method="encode"))
    expected = stored()[f"{name}/states"]
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(states[real], expected[real], atol=1e-4, rtol=0)
    places = np.tile(np.arange(3), (len(batch), 1))
    guesses = task.module.apply(variables, batch, first, places)
    assert (f"{name}/words" in stored()) == (name in WITH_WORDS)
    if name in WITH_WORDS:
        words = stored()[f"{name}/words"][..., task.vocabulary.foreign]
        np.testing.assert_allclose(guesses.words, words, atol=1e-4, rtol=0)
    if f"{name}/follows" in stored():
        follows = stored()[f"{name}/follows"][:, ::-1]  # the first label of BERT is "follows"
        np.testing.assert_allclose(guesses.follows, follows, atol=1e-4, rtol=0)


@each
def test_the_parameters_are_those_of_the_model(name, tmp_path):
    found, task = read(write_folder(name, tmp_path))
    expected = jax.eval_shape(task.init, jax.random.key(0))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), found.params) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), expected
    )
    assert task.experiment.model.next_weight == (1.0 if name in ("bert", "bert-2018") else 0.0)


def test_what_is_not_taken_is_said(tmp_path):
    remarks = {name: read(write_folder(name, tmp_path / name))[0].remarks for name in NAMES}
    new = [f"the file has no output layer of {what}: it is new" for what in ("masked words", "next sentences")]
    pooler = "the file has no pooler: it is new"
    assert remarks == {
        "bert": [], "bert-2018": [], "bert-plain": new, "roberta": [new[1], pooler], "xlm-roberta": [new[1], pooler],
        "roberta-classifier": [*new, pooler, "not taken: classifier.dense, classifier.out_proj"],
    }  # fmt: skip


def test_an_output_layer_of_its_own_is_not_taken(tmp_path):
    folder = write_folder("bert", tmp_path)
    same = lambda tensors: tensors.update({OUTPUT: tensors[TABLE].copy()})
    change_tensors(folder, same)
    assert read(folder)[0].remarks == []
    change_tensors(folder, lambda tensors: tensors.update({OUTPUT: tensors[TABLE] + 1}))
    found, _ = read(folder)
    assert found.remarks[0] == "the file has no output layer of masked words: it is new"


OUTPUT, TABLE = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (dict(is_decoder=True), "config.json: is_decoder is true: only an encoder can be imported"),
        (dict(position_embedding_type="relative_key"), "position_embedding_type is 'relative_key'"),
        (dict(type_vocab_size=3), "type_vocab_size is 3, and s2sjax tells two texts of a pair apart"),
        (dict(hidden_act="mish"), "hidden_act 'mish' is none of relu, gelu"),
        (dict(hidden_size=24), "should have [240, 24]: the files are of different models"),
        (dict(num_hidden_layers=3), "tensor bert.encoder.layer.2.attention.self.query.weight is missing"),
        (dict(num_hidden_layers=1), "bert.encoder.layer.1.attention.output.LayerNorm.bias has no place in the bert"),
        (dict(vocab_size=100), "the tokenizer has more pieces than the 100 of vocab_size"),
        (dict(pad_token_id=3), "pad_token_id in config.json is 3, but 0 in the tokenizer"),
    ],
)
def test_bad_folders(entries, expected, tmp_path):
    folder = change_config(write_folder("bert", tmp_path), **entries)
    with pytest.raises(UserError) as caught:
        read(folder)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_bad_tokenizers(tmp_path):
    def refusal(name, file, change):
        folder = write_folder(name, tmp_path / name)
        path = folder / file
        path.write_text(change(path.read_text()))
        with pytest.raises(UserError) as caught:
            vocabulary_of(folder)
        assert "\n" not in str(caught.value)
        return str(caught.value).removeprefix(f"{folder}: ")

    assert refusal("bert-2018", "vocab.txt", lambda page: page.replace("[MASK]", "x")) == (
        "the tokenizer has no piece '[MASK]', its mask_token: copy its files again"
    )
    assert "damaged" in refusal("roberta", "tokenizer.json", lambda page: page[:-9])
    japanese = refusal(
        "bert-2018", "tokenizer_config.json", lambda page: '{"tokenizer_class": "BertJapaneseTokenizer"}'
    )
    assert japanese.startswith("vocab.txt of a BertJapaneseTokenizer that does not split words as BERT does cannot be")
    without = lambda page: json.dumps({**json.loads(page), "post_processor": None})
    assert "does not put exactly <s> and </s> around a text" in refusal("roberta", "tokenizer.json", without)
    with pytest.raises(UserError, match="the model has no languages to choose from: leave out 'de'"):
        PretrainedVocabulary.from_folder(write_folder("bert", tmp_path / "bert"), "source", "de")
