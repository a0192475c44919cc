"""Words to one tag each: parts of speech, named entities, slots; optionally with an intent for the whole sentence.

A word is represented by its embedding and its characters, or by its subwords, as BERT reads them. The encoder of any
family reads the sentence, and a dense layer predicts the tag of each word, from the state of its first subword.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.config import require, settings
from s2sjax.core import losses
from s2sjax.core.special_tokens import SPECIALS
from s2sjax.data import text
from s2sjax.data.assets import sha256
from s2sjax.data.batching.batch_plan import Plan
from s2sjax.data.batching.columns import AnyColumns, Bucket
from s2sjax.data.data_notes import Sides
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult
from s2sjax.evaluate.prediction.batched_apply import Batched
from s2sjax.evaluate.prediction.heldout_loss import EvaluationLoss
from s2sjax.models.frontends import SpelledWords
from s2sjax.tasks.tagging import tag_metrics, tagged_sentences
from s2sjax.tasks.tagging.settings import TagData, TagEvaluate, TaggerModel
from s2sjax.tasks.tagging.tagged_sentences import Sentence
from s2sjax.tasks.tagging.tagger import Scores, Tagger, best_tags, tag_loss
from s2sjax.tasks.task import Assets, EncoderTask, Predictor, Task, abstract, apply_model, check_positions, only_row
from s2sjax.tasks.vocabulary_transfer import source_vocabulary, word_rows
from s2sjax.training import multihost
from s2sjax.training.checkpoints.transfer import Rows
from s2sjax.training.train_state import Loss


@settings
class Tagging(config.Experiment):
    """An experiment that gives each word of a sentence a tag."""

    _: KW_ONLY
    data: TagData = TagData()
    model: TaggerModel = field(default_factory=TaggerModel)
    evaluate: TagEvaluate = TagEvaluate()

    # The location of the data may change, its fingerprint may not.
    init_fields: ClassVar = ("model", "data.lower", "data.min_count", "data.text")
    free_fields: ClassVar = (
        "data.corpus.folder", "data.corpus.origin", "evaluate.dev_examples", "evaluate.samples", "evaluate.batch_size",
    )  # fmt: skip

    def __post_init__(self):
        self.check_name()
        self.refuse_train("a tagger", "r_drop", "scheduled_sampling", "softmax")
        require(
            self.train.label_smoothing == 0 or not self.model.crf,
            "train.label_smoothing smooths single tags, and model.crf scores whole sequences: use one of them",
        )
        require(
            self.model.intent > 0 or "intent" not in self.evaluate.metrics,
            "evaluate.metrics has the intent, and with model.intent 0 it is not learned: set it above 0",
        )
        check_positions(self.model.encoder, self.data.buckets[-1][0])
        if self.data.text.unit == "words":
            self.model.check_width()

    def task(self) -> TaggingTask:
        return TaggingTask(self)


class Tagged(NamedTuple):
    """Prediction for a sentence. As a string: the tags, then a tab and the intent if there is one."""

    tags: tuple[str, ...]
    intent: str = ""

    def __str__(self) -> str:
        return " ".join(self.tags) + (f"\t{self.intent}" if self.intent else "")


class TaggingTask(EncoderTask):
    """Sentences to tags. Assets: vocabularies `words` and `characters`, or `text` of subwords; `tags`, `intents`."""

    noun = "sentence"
    higher_is_better = True
    experiment: Tagging

    def labels(self, name: str) -> list[str]:
        """The known `tags` or `intents`; none if intents are not learned."""
        return tagged_sentences.labels_of(self.assets[name]) if name in self.assets else []

    # ------------------------------------------------------------------------------------ data

    def examples(self, split: str) -> list[Sentence]:
        return tagged_sentences.read(self.experiment.data.corpus, split, self.experiment.model.intent > 0)  # type: ignore[arg-type]

    def example_of(self, line: str, where: str) -> Sentence:
        words = tagged_sentences.split_words(line)
        self._check_length(words, where)
        return Sentence(words, ())

    def blank_example(self) -> Sentence:
        return Sentence(("a",), ())

    @property
    def reads_subwords(self) -> bool:
        return self.experiment.data.text.unit != "words"

    def _check_length(self, words: Sequence[str], where: str) -> None:
        most = self.experiment.model.encoder.max_positions
        if most is None:
            return
        length = int(self.columns([Sentence(tuple(words), ())]).lengths[0, 0]) if self.reads_subwords else len(words)
        unit = "subwords, with [CLS] and <eos>" if self.reads_subwords else "words"
        require(
            length <= most,
            f"{where} has {length} {unit}, more than model.encoder.max_length {most} can address: shorten it",
        )

    def fingerprint(self, data: Sequence[Sentence]) -> str:
        rows = ((" ".join(each.words), " ".join(each.tags), each.intent, "\n") for each in data)
        return sha256("\t".join(row).encode() for row in rows)

    def remarks(self, data: Sequence[Sentence]) -> list[str]:
        found = []
        with_intent = sum(sentence.intent != "" for sentence in data)
        if with_intent and not self.experiment.model.intent:
            found.append(f"{with_intent:,} sentences have an intent, which is not learned: set model.intent above 0")
        of_sentence = {"tags": lambda sentence: sentence.tags}
        if self.experiment.model.intent:
            of_sentence["intents"] = lambda sentence: (sentence.intent,)
        for split in filter(self.has, ("dev", "test")):
            sentences = self.examples(split)
            for name, labels in of_sentence.items():
                new = sorted({x for s in sentences for x in labels(s)} - {x for s in data for x in labels(s)})
                shown = ", ".join(new[:5]) + (", ..." if len(new) > 5 else "")
                if new:
                    found.append(f"{name} of {split} that are not in train count as wrong: {shown}")
        return found

    def sides(self, split: str, examples: Sequence[Sentence]) -> Iterable[Sides]:
        return (Sides(" ".join(each.words), (f"{' '.join(each.tags)}\t{each.intent}",)) for each in examples)

    def learn_assets(self, data: Sequence[Sentence]) -> Assets:
        d = self.experiment.data
        of_words = config.Text("words", "nfkc_lower" if d.lower else "nfc", min_count=d.min_count)
        lines = [" ".join(sentence.words) for sentence in data]
        if self.reads_subwords:
            return {"text": text.build(d.text, lines), **self._learn_labels(data)}
        return {
            "words": text.build(of_words, lines),
            "characters": text.build(config.Text("characters"), ("".join(sentence.words) for sentence in data)),
            **self._learn_labels(data),
        }

    def _learn_labels(self, data: Sequence[Sentence]) -> Assets:
        found = {"tags": tagged_sentences.label_vocabulary(tag for sentence in data for tag in sentence.tags)}
        if self.experiment.model.intent:
            found["intents"] = tagged_sentences.label_vocabulary(sentence.intent for sentence in data)
        return found

    def adopt_assets(self, data: Sequence[Sentence], assets: Assets) -> Assets:
        """Takes all assets of another tagger, subwords, or adds the words of another task's source vocabulary."""
        if self.reads_subwords:
            return self._adopt_subwords(data, assets)
        needed = self.learn_assets(data)
        if "words" not in assets and (read := source_vocabulary(assets)) is not None:
            return {**needed, "words": tagged_sentences.with_words_of(needed["words"], read)}
        self._check_vocabularies(needed, assets)
        return {name: assets[name] for name in needed}

    def _adopt_subwords(self, data: Sequence[Sentence], assets: Assets) -> Assets:
        """Takes the subwords of a run of any task; those of a tagger with its tags and intents."""
        found, unit, labels = source_vocabulary(assets), self.experiment.data.text.unit, self._learn_labels(data)
        there = "no source vocabulary" if found is None else f"a vocabulary of {found.unit}"
        require(
            found is not None and found.unit == unit,
            f"the other run has {there}, and data.text.unit is {unit}: make them equal, or leave out --init-assets",
        )
        if "tags" in assets:
            self._check_vocabularies(labels, assets)
            labels = {name: assets[name] for name in labels}
        return {"text": found, **labels}

    def _check_vocabularies(self, needed: Assets, assets: Assets) -> None:
        """Raises unless another tagger has vocabularies that fit, and knows all labels."""
        for name, mine in needed.items():
            theirs = assets.get(name)
            require(
                isinstance(theirs, text.Vocabulary) and theirs.normalize == mine.normalize,
                f"the other run has no vocabulary of {name} that fits: leave out --init-assets",
            )
            new = set(tagged_sentences.labels_of(mine)) - set(tagged_sentences.labels_of(assets[name]))
            require(
                name in ("words", "characters") or not new,
                f"the other run does not know the {name} {', '.join(sorted(new)[:5])}: leave out --init-assets",
            )

    columns_use_seed = False

    def columns(self, data: Sequence[Sentence]) -> AnyColumns:
        if self.reads_subwords:
            return tagged_sentences.subword_columns(data, self.assets["text"], self.assets)
        return tagged_sentences.columns(data, self.assets, self.experiment.model.spelling.length)

    def dev_columns(self, examples: Sequence[Sentence]) -> AnyColumns:
        """Leaves out sentences with a tag or an intent that training does not have: their loss is infinite."""
        tags, intents = set(self.labels("tags")), set(self.labels("intents"))
        return self.columns([s for s in examples if tags.issuperset(s.tags) and (not intents or s.intent in intents)])

    def describe(self, columns: AnyColumns, plan: Plan) -> list[str]:
        names = {"text": "subwords"}
        sizes = [
            f"{len(tagged_sentences.labels_of(asset)):,} {names.get(name, name)}" for name, asset in self.assets.items()
        ]
        first, *others = super().describe(columns, plan)
        return [first, ", ".join(sizes), *others]

    # ----------------------------------------------------------------------------------- model

    @property
    def model_name(self) -> str:
        return f"{config.model_name(self.experiment.model.encoder)} tagger"

    @property
    def module(self) -> Tagger:
        m, train = self.experiment.model, self.experiment.train
        dtype = jnp.dtype(train.dtype)
        counts = len(self.labels("tags")), len(self.labels("intents"))
        make = partial(Tagger, m.encoder, dropout=m.dropout, use_crf=m.crf, dtype=dtype, remat_policy=train.remat)
        if self.reads_subwords:
            size = self.assets["text"].size
            return make(None, *counts, size=size, initial=m.initial, word_dropout=m.word_dropout)
        frontend = SpelledWords(
            self.assets["words"].size, self.assets["characters"].size, m.encoder.embedding_size, m.spelling_width,
            m.spelling if m.spelling.on else None, m.word_dropout, m.initial, dtype, m.encoder.scale_embedding,
            parent=None,
        )  # fmt: skip
        return make(frontend, *counts)

    def init(self, key: Array) -> Any:
        one = jnp.ones((1, 2), jnp.int32)
        spelt = jnp.ones((1, 2, self.experiment.model.spelling.length + 2), jnp.int32)
        return self.module.init(key, one, one if self.reads_subwords else spelt)["params"]

    def _losses(self, scores: Scores, batch: Mapping[str, Any], smoothing: float = 0.0) -> dict[str, losses.Total]:
        """Sums of -log p(tags) - weight * log p(intent), and the number of words."""
        label = lambda name: jnp.maximum(batch[name] - len(SPECIALS), 0)  # 0 in padding
        of_tags = tag_loss(scores, label("tags"), smoothing)
        if scores.intents is None:
            return {"loss": of_tags}
        of_intents = losses.cross_entropy(scores.intents, label("intent"), scores.mask[:, 0], smoothing)
        total = of_tags[0] + self.experiment.model.intent * of_intents[0]
        return {"loss": (total, of_tags[1]), "intent_loss": of_intents}

    def loss(self, columns: AnyColumns | None = None) -> Loss:
        module, smoothing = self.module, self.experiment.train.label_smoothing
        return lambda params, batch, key, step: self._losses(_scores(module, params, batch, key), batch, smoothing)

    def evaluation_loss(self) -> EvaluationLoss:
        module = self.module
        return lambda params, batch: self._losses(_scores(module, params, batch), batch)

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        shape = (rows, *bucket)
        intent = {"intent": ((rows,), np.int32)} if "intents" in self.assets else {}
        if self.reads_subwords:
            return abstract(**{name: (shape, np.int32) for name in ("source", "starts", "tags")}, **intent)
        spelt = (*shape, self.experiment.model.spelling.length + 2)
        return abstract(words=(shape, np.int32), characters=(spelt, np.int32), tags=(shape, np.int32), **intent)

    def transfer_rows(self, other: Task) -> dict[str, Rows | None]:
        """Maps the parameters of words, characters, tags and intents where the vocabularies differ."""
        found: dict[str, Rows | None] = {}
        for name, paths in VOCABULARY_PATHS.items():
            mine, theirs = self.assets.get(name), other.assets.get(name)
            if mine is None:
                continue
            if name == "text":
                found |= word_rows(mine, source_vocabulary(other.assets), paths)
                continue
            if name == "words" and theirs is None:  # the other task reads text
                found |= word_rows(mine, source_vocabulary(other.assets), paths, name="embedding/table")
                continue
            for path, rows in word_rows(mine, theirs, paths).items():
                if rows and name in ("tags", "intents"):  # their rows exclude the special ids
                    rows = rows._replace(of=np.maximum(rows.of[len(SPECIALS) :] - len(SPECIALS), -1))
                found[path] = rows
        return found

    # ----------------------------------------------------------------------------- predictions

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        """The predictor, made once for each mesh, so that training, evaluation and figures share compiled programs."""
        require(not others, "a tagger has no ensembles: name one run")
        return self.once(self._make_predictor, mesh)

    def _make_predictor(self, mesh: jax.sharding.Mesh | None) -> Predictor:
        module, e, tags, intents = self.module, self.experiment, self.labels("tags"), self.labels("intents")

        def best(params: Any, batch: dict[str, Any]) -> dict[str, Array]:
            scores = _scores(module, params, batch)
            found = {"tags": best_tags(scores)}
            return found if scores.intents is None else found | {"intent": jnp.argmax(scores.intents, axis=-1)}

        batched = Batched(best, e.data.buckets, e.evaluate.batch_size, mesh, e.model.encoder.max_positions)

        def predict(params: Any, examples: Sequence[Sentence]) -> list[Tagged]:
            for number, sentence in enumerate(examples, start=1):
                self._check_length(sentence.words, f"sentence {number}")
            real = [sentence for sentence in examples if sentence.words]
            rows = iter(batched(params, self.columns(real)) if real else [])
            return [tagged_as(next(rows), len(s.words)) if s.words else Tagged(()) for s in examples]

        def tagged_as(row: dict[str, Any], length: int) -> Tagged:
            intent = intents[row["intent"]] if "intent" in row else ""
            return Tagged(tuple(tags[tag] for tag in row["tags"][:length]), intent)

        return predict

    def encoder_input(self, line: str) -> tuple[list[str], tuple[Any, ...]]:
        sentence = self.example_of(line, "the line")
        batch = only_row(self.columns([sentence]))
        pieces = self.assets["text"].pieces(batch["source"][0]) if self.reads_subwords else list(sentence.words)
        return pieces, tuple(batch[name] for name in _inputs(self.module))

    def _pairs(self, examples: Sequence[Sentence], outputs: Sequence[Tagged]) -> list[tag_metrics.Pair]:
        learned = self.experiment.model.intent > 0
        return [
            tag_metrics.Pair(output.tags, sentence.tags, output.intent, sentence.intent if learned else "")
            for sentence, output in zip(examples, outputs, strict=True)
        ]

    def metrics(self, examples: Sequence[Sentence], outputs: Sequence[Tagged]) -> dict[str, MetricResult]:
        return tag_metrics.score(self.experiment.evaluate.metrics, self._pairs(examples, outputs))

    def show(self, example: Sentence, output: Tagged) -> str:
        """A line like the/DET dog/VERB(NOUN), with the correct tag in parentheses after a wrong one."""
        marked = [
            f"{word}/{ours}" + ("" if ours == true else f"({true})")
            for word, ours, true in zip(example.words, output.tags, example.tags)
        ]
        if output.intent:
            wrong = "" if output.intent == example.intent else f"({example.intent})"
            marked.append(f" {output.intent}{wrong}")
        return " ".join(marked)

    def record(self, example: Sentence, output: Tagged) -> dict[str, Any]:
        correct = Tagged(example.tags, example.intent if self.experiment.model.intent else "")
        return {"source": " ".join(example.words), "hypothesis": str(output), "references": [str(correct)]}

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Any]) -> list[Path]:
        """Draws the scores of each tag as bars."""
        if (split := self.default_split) is None:
            return []
        from s2sjax.tasks.tagging.tag_figure import tag_bars  # imports Matplotlib, which is slow

        examples = self.examples(split)
        outputs = self.predictor(mesh)(restore(), examples)
        path = folder / "tags.png"
        if multihost.is_leader():
            tag_bars(path, tag_metrics.by_tag(self._pairs(examples, outputs)))
        return [path]


def _scores(module: Tagger, params: Any, batch: Mapping[str, Any], key: Array | None = None) -> Scores:
    return apply_model(module, params, *(batch[name] for name in _inputs(module)), key=key)


def _inputs(module: Tagger) -> tuple[str, str]:
    """The names of the columns that the model reads."""
    return ("source", "starts") if module.frontend is None else ("words", "characters")


VOCABULARY_PATHS: dict[str, dict[str, int | None]] = {
    "text": {"embedding/table": 0},
    "words": {"frontend/words/table": 0},
    "characters": {"frontend/characters/characters/table": 0},
    "tags": {"output/kernel": 1, "output/bias": 0, "crf_start": 0, "crf_end": 0, "crf_transition": None},
    "intents": {"intent/kernel": 1, "intent/bias": 0},
}
"""parameters that each vocabulary indexes, and the axis; None: two axes, which are not mapped"""
