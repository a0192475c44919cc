"""Pre-training on plain text (BERT, Devlin et al. 2019): masked words and next sentences.

The encoder and the word embedding of a run start those of other tasks: `s2sjax train FILE --init RUN --init-assets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.config import require, settings
from s2sjax.core import losses
from s2sjax.core.losses.word_masking import Masked, mask_words
from s2sjax.core.special_tokens import CLS, MASK, PAD, SPECIALS
from s2sjax.data import text
from s2sjax.data.batching.columns import AnyColumns, Bucket, Columns, Ragged
from s2sjax.data.data_notes import Sides
from s2sjax.data.text import text_streams
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult, mean_result
from s2sjax.evaluate.prediction import perplexity
from s2sjax.evaluate.prediction.batched_apply import Batched
from s2sjax.evaluate.prediction.heldout_loss import EvaluationLoss
from s2sjax.tasks.pretraining import paragraphs
from s2sjax.tasks.pretraining.bert import Bert, Guesses
from s2sjax.tasks.pretraining.paragraphs import Pair, Parts
from s2sjax.tasks.pretraining.settings import BertEvaluate, BertModel, Paragraphs
from s2sjax.tasks.task import Assets, EncoderTask, Predictor, Task, abstract, apply_model, check_positions, only_row
from s2sjax.tasks.vocabulary_transfer import source_vocabulary, word_rows
from s2sjax.training.checkpoints.transfer import Rows
from s2sjax.training.train_state import Loss

MASKS = 12
"""number of the random stream that masks words"""


@settings
class Pretraining(config.Experiment):
    """An experiment that pre-trains an encoder on plain text."""

    _: KW_ONLY
    data: Paragraphs = Paragraphs()
    model: BertModel = field(default_factory=BertModel)
    evaluate: BertEvaluate = BertEvaluate()

    # The location of the text may change, its fingerprint may not.
    init_fields: ClassVar = ("model", "data.text")
    offered_fields: ClassVar = ("model.encoder", "data.text")
    free_fields: ClassVar = (
        "data.train", "data.dev", "data.test", "data.origin", "evaluate.dev_examples", "evaluate.samples",
        "evaluate.batch_size",
    )  # fmt: skip

    def task(self) -> PretrainingTask:
        return PretrainingTask(self)

    def __post_init__(self):
        self.check_name()
        self.refuse_train("pre-training", "label_smoothing", "r_drop", "scheduled_sampling", "softmax")
        check_positions(self.model.encoder, self.data.buckets[-1][0])


class Line(NamedTuple):
    """A line with words to fill in."""

    text: str


class MaskedPrediction(NamedTuple):
    """Predictions for a pair: its masked words, and whether the second text follows the first."""

    nats: float
    words: int
    correct: int
    follows: float
    """probability that the second text follows"""

    def __str__(self) -> str:
        return f"{self.correct} of {self.words} words, follows {self.follows:.2f}"


class PretrainingTask(EncoderTask):
    """Lines of text to their masked words. Asset: the vocabulary `text`, which has [CLS] and [MASK]."""

    noun = "line"
    higher_is_better = False
    experiment: Pretraining

    @property
    def vocabulary(self) -> text.AnyVocabulary:
        return self.assets["text"]

    # ------------------------------------------------------------------------------------ data

    def _lines(self, split: str) -> list[Parts]:
        """The lines of a split that are long enough to be cut in two."""
        lines, name = text_streams.read_split(self.experiment.data, split)  # type: ignore[arg-type]
        found = [parts for parts in map(paragraphs.split, lines) if parts]
        require(len(found) > 1, f"{name} has {len(found)} lines of two words or more: at least 2 are needed")
        return found

    def read(self) -> list[Parts]:
        return self._lines("train")

    def examples(self, split: str) -> list[Pair]:
        return paragraphs.pairs(self._lines(split))

    def example_of(self, line: str, where: str) -> Line:
        line = " ".join(line.split())
        count, ids = line.count(MASK), paragraphs.masked_ids(self.vocabulary, line)
        require(count > 0, f"{where} has no {MASK}: write one in place of each word to fill in")
        found = ids.count(text.mark(self.vocabulary, MASK))
        require(found == count, f"{where}: each {MASK} must be a separate word: put blanks around it")
        length, most = len(ids) + 2, self.longest
        require(length <= most, f"{where} has {length} positions, the model reads at most {most}: shorten it")
        return Line(line)

    def blank_example(self) -> Line:
        return Line(MASK)

    def fingerprint(self, data: Sequence[Parts]) -> str:
        return text_streams.fingerprint("\t".join(parts) for parts in data)

    def sides(self, split: str, examples: Any) -> Iterable[Sides]:
        """The lines of a split, because the pairs of dev and test are made of them."""
        return (Sides(" ".join(parts)) for parts in (examples if split == "train" else self._lines(split)))

    def check_examples(self, split: str, examples: Any) -> None:
        """Raises if dev or test has no word to mask."""
        if split == "train":
            return
        shown = self.dev_sample(examples, self.experiment.evaluate.dev_examples) if split == "dev" else examples
        ids = self.dev_columns(shown).ragged["source"]
        name = getattr(self.experiment.data, split) or f"the {split} text"
        assert isinstance(ids, Ragged)
        require(
            bool((ids.flat >= len(SPECIALS) + len(self.vocabulary.tags)).any()),
            f"{name} has no word of the training text, so that none can be masked: "
            f"give a text in its language, or unset data.{split}",
        )

    def learn_assets(self, data: Sequence[Parts]) -> Assets:
        lines = (" ".join(parts) for parts in data)
        return {"text": text.build(self.experiment.data.text, lines, (CLS, MASK))}

    def adopt_assets(self, data: Sequence[Parts], assets: Assets) -> Assets:
        found = assets.get("text")
        require(
            isinstance(found, text.AnyVocabulary) and {CLS, MASK} <= {*found.tags},
            f"the other run has no vocabulary with {CLS} and {MASK} to take: leave out --init-assets",
        )
        return {"text": found}

    def columns(self, data: Sequence[Parts]) -> AnyColumns:
        return paragraphs.Lines.of(self.vocabulary, data, self.experiment.order_seed)

    def dev_columns(self, examples: Sequence[Pair]) -> Columns:
        return paragraphs.pair_columns(self.vocabulary, examples, self.longest)

    def describe(self, columns: Any, plan: Any) -> list[str]:
        first, *others = super().describe(columns, plan)
        return [f"{first}, {len(columns.ids.flat) - 1:,} tokens, vocabulary {self.vocabulary.size:,}", *others]

    # ----------------------------------------------------------------------------------- model

    @property
    def model_name(self) -> str:
        return f"BERT of a {type(self.experiment.model.encoder).__name__} encoder"

    @property
    def module(self) -> Bert:
        e, m = self.experiment, self.experiment.model
        dtype = jnp.dtype(e.train.dtype)
        return Bert(m.encoder, self.vocabulary.size, m.initial, dtype, e.train.remat, m.activation, m.epsilon)

    def init(self, key: Array) -> Any:
        one = jnp.ones((1, 1), jnp.int32)
        return self.module.init(key, one, one[0], 0 * one)["params"]

    def _mask(self, key: Array, batch: Mapping[str, Array]) -> Masked:
        """Masks words as a function of (key, example), independent of the other rows."""
        vocabulary = self.vocabulary
        first = len(SPECIALS) + len(vocabulary.tags)
        options = (self.experiment.model.mask_rate, text.mark(vocabulary, MASK), first, vocabulary.size)
        keys = jax.vmap(partial(jax.random.fold_in, key))(batch["example"])
        return jax.vmap(lambda key, ids: mask_words(key, ids, *options))(keys, batch["source"])

    def _guesses(
        self, params: Any, batch: Mapping[str, Any], masks: Array, key: Array | None = None
    ) -> tuple[Guesses, Array, Array]:
        """The predictions of a batch, the masked words [B, K], and which of them count; dropout if there is a key."""
        masked = self._mask(masks, batch)
        guesses = apply_model(self.module, params, masked.ids, batch["first"], masked.positions, key=key)
        return guesses, jnp.take_along_axis(batch["source"], masked.positions, axis=1), masked.counts

    def _losses(self, params: Any, batch: Mapping[str, Any], masks: Array, key: Array | None = None) -> Any:
        """Sums over masked words of -log p(word) - weight * log p(follows) of their line."""
        guesses, words, counts = self._guesses(params, batch, masks, key)
        of_words = losses.cross_entropy(guesses.words, words, counts)
        of_lines = -jax.nn.log_softmax(guesses.follows)[jnp.arange(len(words)), batch["follows"]]  # [B]
        hidden = jnp.sum(counts, axis=1).astype(of_lines.dtype)
        total = of_words[0] + self.experiment.model.next_weight * jnp.sum(hidden * of_lines)
        is_line = (batch["source"][:, 0] != PAD).astype(of_lines.dtype)
        lines = jnp.sum(is_line * of_lines), jnp.sum(is_line)
        return {"loss": (total, of_words[1]), "word_loss": of_words, "next_loss": lines}

    def loss(self, columns: AnyColumns | None = None) -> Loss:
        seed = self.experiment.order_seed

        def loss(params: Any, batch: dict[str, Array], key: Array, step: Array) -> dict[str, losses.Total]:
            # A function of (seed, step, example); not of `key`, which differs by micro-batch.
            masks = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), MASKS)
            return self._losses(params, batch, masks, key)

        return loss

    def evaluation_loss(self) -> EvaluationLoss:
        return lambda params, batch: self._losses(params, batch, jax.random.key(MASKS))

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        each = {name: ((rows,), np.int32) for name in ("first", "follows", "example")}
        return abstract(source=((rows, *bucket), np.int32), **each)

    def transfer_rows(self, other: Task) -> dict[str, Rows | None]:
        """Maps the table and the biases of words."""
        axes = {"embedding/table": 0, "word_bias": 0}
        return word_rows(self.vocabulary, source_vocabulary(other.assets), axes)

    # ----------------------------------------------------------------------------- predictions

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        """Predicts the masked words of pairs, and fills in the words of lines."""
        require(not others, "pre-training has no ensembles: name one run")
        data, rows = self.experiment.data, self.experiment.evaluate.batch_size
        guess = Batched(self._guess, data.buckets, rows, mesh, self.longest)
        fill = Batched(self._fill, data.buckets, 8, mesh, self.longest)  # the logits of all positions

        def predict(params: Any, examples: Sequence[Any]) -> list[Any]:
            if examples and isinstance(examples[0], Line):
                return self._filled(examples, fill(params, self._line_columns(examples)))
            found = guess(params, self.dev_columns(examples))
            return [
                MaskedPrediction(float(nats), int(n), int(right), float(follows)) for nats, n, right, follows in found
            ]

        return predict

    def encoder_input(self, line: str) -> tuple[list[str], tuple[Any, ...]]:
        batch = only_row(self._line_columns([Line(" ".join(line.split()))]))
        ids, most = batch["source"][0], self.longest
        require(len(ids) <= most, f"the line has {len(ids)} positions, the model reads at most {most}: shorten it")
        return self.vocabulary.pieces(ids), (batch["source"], batch["first"])

    def _guess(self, params: Any, batch: Mapping[str, Any]) -> tuple[Array, ...]:
        """[B] each: nats of the masked words, their number, those correct, probability that the text follows."""
        found, words, counts = self._guesses(params, batch, jax.random.key(MASKS))
        right = (jnp.argmax(found.words, axis=-1) == words) & counts
        nats = -losses.log_likelihood(found.words, words, counts)
        return nats, counts.sum(1), right.sum(1), jax.nn.softmax(found.follows)[:, 1]

    def _fill(self, params: Any, batch: Mapping[str, Any]) -> Array:
        """[B, S]: the best word for each position."""
        ids = batch["source"]
        places = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        found = apply_model(self.module, params, ids, batch["first"], places)
        first = len(SPECIALS) + len(self.vocabulary.tags)
        return first + jnp.argmax(found.words[..., first:], axis=-1)

    def _line_columns(self, examples: Sequence[Line]) -> Columns:
        cls, encode = text.mark(self.vocabulary, CLS), paragraphs.masked_ids
        source = Ragged.of_ids([[cls, *encode(self.vocabulary, line.text)] for line in examples])
        first, numbers = source.lengths.astype(np.int32), np.arange(len(examples), dtype=np.int32)
        return Columns({"source": source}, {"first": first, "follows": 0 * first}, numbers, (len(examples),))

    def _filled(self, examples: Sequence[Line], best: Sequence[np.ndarray]) -> list[str]:
        mask, found = text.mark(self.vocabulary, MASK), []
        for line, ids in zip(examples, best):
            read = [0, *paragraphs.masked_ids(self.vocabulary, line.text)]  # [CLS] is at position 0
            words = [int(ids[place]) for place, token in enumerate(read) if token == mask]
            found.append(paragraphs.filled(line.text, paragraphs.spelled(self.vocabulary, words)))
        return found

    def metrics(self, examples: Sequence[Pair], outputs: Sequence[MaskedPrediction]) -> dict[str, MetricResult]:
        """Perplexity and accuracy of the masked words, and accuracy of next sentences."""
        words = sum(output.words for output in outputs)
        signature = f"unit:{self.vocabulary.unit}|vocabulary:{self.vocabulary.size}|words:{words}"
        nats = [perplexity.LineNats(output.nats, output.words) for output in outputs]
        right = [(100.0 * output.correct, float(output.words)) for output in outputs]
        follows = [
            (100.0 * ((output.follows > 0.5) == example.follows), 1.0) for example, output in zip(examples, outputs)
        ]
        return perplexity.results(nats, False, signature) | {
            "accuracy": mean_result("accuracy", "masked-word accuracy", right, signature),
            "next": mean_result("next", "next-sentence accuracy", follows),
        }

    def show(self, example: Pair, output: MaskedPrediction) -> str:
        verdict = (
            "✓" if (output.follows > 0.5) == example.follows else "(it does)" if example.follows else "(it does not)"
        )
        return f"{example.first} | {example.second}  ->  {output} {verdict}"

    def record(self, example: Pair, output: MaskedPrediction) -> dict[str, Any]:
        source = f"{example.first}\t{example.second}"
        return {"source": source, "hypothesis": str(output), "references": ["follows" if example.follows else "random"]}
