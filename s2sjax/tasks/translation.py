"""Text to text: translation, transliteration, pronunciation, summaries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import config, models
from s2sjax.config import Mixture, Prepared, Transformer, encoder_and_decoder, model_name, require, settings
from s2sjax.core.losses import sampled_softmax
from s2sjax.data import pairs, text
from s2sjax.data.batching.batch_plan import Plan
from s2sjax.data.batching.columns import AnyColumns, Bucket
from s2sjax.data.corpora import prepared_corpus, readers
from s2sjax.data.examples import Example
from s2sjax.evaluate import metrics
from s2sjax.evaluate.prediction.batched_apply import row_sharding
from s2sjax.evaluate.prediction.heldout_loss import EvaluationLoss
from s2sjax.evaluate.prediction.line_notes import Notes
from s2sjax.evaluate.prediction.translator import Output, Translator
from s2sjax.layers.embedding import Spelling
from s2sjax.models import objectives
from s2sjax.models.encoder_decoder import EncoderDecoder
from s2sjax.tasks.task import Assets, Predictor, SearchExperiment, Task, abstract, spread
from s2sjax.tasks.text_generation import EncoderDecoderTask
from s2sjax.tasks.vocabulary_transfer import source_vocabulary, vocabulary_rows, word_rows
from s2sjax.training import multihost
from s2sjax.training.checkpoints.transfer import Rows
from s2sjax.training.train_state import Loss

SIDES = ("source", "target")


@settings
class Translation(SearchExperiment):
    """An experiment whose examples are a source text and one or more target texts."""

    _: KW_ONLY
    data: config.Data = config.Data()
    model: config.ModelConfig = field(
        default_factory=lambda: Transformer(128, 4, 512, encoder_layers=2, decoder_layers=2, norm="pre")
    )
    search: config.Search = config.Search()
    evaluate: config.Evaluate = config.Evaluate()
    show: tuple[str, ...] = ()
    """texts to decode after training"""

    init_fields: ClassVar = ("model", "data.source", "data.target", "data.shared", "search")
    # The location of the data may change, its fingerprint may not. The metrics may not change, because the scores of
    # two metrics cannot tell which checkpoint is best.
    free_fields: ClassVar = (
        "data.corpus.folder", "data.corpus.data_dir", "search", "evaluate.dev_examples", "evaluate.samples",
        "evaluate.batch_size", "show",
    )  # fmt: skip

    def task(self) -> TranslationTask:
        return TranslationTask(self)

    def __post_init__(self):
        self.check_name()
        encoder, decoder = encoder_and_decoder(self.model)
        require(
            not decoder.ties_embeddings or self.data.shared,
            f"model.tie {decoder.tie!r} requires one vocabulary for both sides: set data.shared",
        )
        require(
            decoder.tie == "none" or not self.data.target.spelling.on,
            f"model.tie {decoder.tie!r} uses the target's embedding table twice, and "
            "data.target.spelling.on replaces that table: set model.tie none",
        )
        require(
            self.search.coverage == 0 or decoder.decoder_spec.states is not None,
            f"search.coverage {self.search.coverage} requires a model with attention, and {model_name(self.model)} has "
            "none: set it to 0",
        )
        for name, side in zip(SIDES, (encoder, decoder)):
            require(
                side.embedding_size > 0 or not getattr(self.data, name).spelling.on,
                f"data.{name}.spelling.on builds word vectors: raise model.embedding_size above 0",
            )
            self._check_lengths(name, side)
        self._check_packing()
        self._check_softmax()
        self._check_objective()

    def _check_lengths(self, name: str, side: config.ModelSettings) -> None:
        """Checks the positions that a side can address, and its attention window, against the longest bucket."""
        places, window = side.max_positions, side.attention_window
        part = ".encoder" if name == "source" else ".decoder"
        field = f"model{part if isinstance(self.model, config.Pair) else ''}.max_length"
        most = max(bucket[SIDES.index(name)] for bucket in self.data.buckets)
        require(
            places is None or places >= most,
            f"{field} {places} is shorter than the longest {name} of data.buckets, {most}: raise it",
        )
        require(
            places is None or name == "source" or self.search.max_length <= places,
            f"search.max_length {self.search.max_length} is more than {field} {places} can address: lower it",
        )
        longest = max(max(bucket) for bucket in self.data.buckets)
        if window is not None:
            reached = max(source for source, _ in self.data.buckets) if window.source_only else longest
            require(
                window.radius < reached,
                f"model.{window.field} {window.radius} reaches across the longest of data.buckets, {reached}: "
                f"lower it, or set it to {window.remedy}, to attend to everything",
            )

    def _check_packing(self) -> None:
        if not self.data.packing:
            return
        for side in encoder_and_decoder(self.model):
            windowed = side.attention_window is not None and side.attention_window.radius > 0
            require(
                not windowed, "data.packing keeps the examples of a row apart, model.window does not: use one of them"
            )
            require(
                side.takes_segments,
                f"data.packing requires a model that keeps the examples of a row apart: a Transformer, or a Hybrid "
                f"without local_attention; this {type(side).__name__} does not: unset it",
            )
        require(
            self.train.scheduled_sampling.schedule == "none",
            "data.packing gives each example of a row its own <sos>, which train.scheduled_sampling would replace: "
            "use one of them",
        )

    def _check_softmax(self) -> None:
        softmax, data = self.train.softmax, self.data
        prepared = isinstance(data.corpus, Prepared)
        require(
            not (prepared and softmax.samples and softmax.distribution == "unigram"),
            "train.softmax.distribution unigram counts the words of the training text, which a prepared folder does "
            "not keep: set log_uniform",
        )
        if not softmax.subset:
            return
        require(
            data.target.sampling == 0,
            "train.softmax.subset requires a part's target subwords in advance, but data.target.sampling draws new "
            "ones: set one of them to 0",
        )
        for there, name in (
            (prepared, "the prepared folder of data.corpus"),
            (isinstance(data.corpus, Mixture), "the mixture of data.corpus"),
            (data.packing, "data.packing"),
        ):
            require(not there, f"train.softmax.subset plans by parts, which {name} does not: set it to 0")

    def _check_objective(self) -> None:
        encoder, decoder = encoder_and_decoder(self.model)
        require(
            self.train.scheduled_sampling.schedule == "none" or not decoder.variational_dropout,
            "train.scheduled_sampling runs single steps, and model.variational_dropout has one mask for all of them: "
            "use one of them",
        )
        require(
            self.train.remat != "products" or not (encoder.encoder_is_products and decoder.decoder_is_products),
            f"train.remat products frees nothing of {model_name(self.model)}, which has only an elementwise function "
            "between one matrix product and the next: set layers, or none",
        )


class TranslationTask(EncoderDecoderTask):
    """Source texts to target texts by an encoder-decoder. Assets: the vocabularies `source` and `target`."""

    generates_text = True
    experiment: Translation

    @property
    def noun(self) -> str:  # type: ignore[override]
        return self.experiment.evaluate.target_unit

    @property
    def source(self) -> text.AnyVocabulary:
        return self.assets["source"]

    # ------------------------------------------------------------------------------------ data

    def has(self, split: str) -> bool:
        return readers.has(self.experiment.data.corpus, split)  # type: ignore[arg-type]

    def read(self) -> pairs.Training:
        return pairs.read(self.experiment.data)

    def examples(self, split: str) -> list[Example]:
        return readers.load(self.experiment.data.corpus, split)  # type: ignore[arg-type]

    def row_count(self, data: pairs.Training) -> int:
        return len(data) if isinstance(data, prepared_corpus.Records) else sum(len(example.targets) for example in data)

    def fingerprint(self, data: pairs.Training) -> str:
        return pairs.fingerprint(data)

    def remarks(self, data: pairs.Training) -> list[str]:
        return pairs.remarks_on(self.experiment.data, data)

    def sides(self, split: str, examples: Any) -> Iterable[Example] | None:
        """The examples; None for a prepared folder, which has ids: its remarks have the counts of its preparation."""
        return None if isinstance(examples, prepared_corpus.Records) else examples

    def learn_assets(self, data: pairs.Training) -> Assets:
        return self._checked(dict(zip(SIDES, pairs.vocabularies(self.experiment.data, data))))

    def adopt_assets(self, data: pairs.Training, assets: Assets) -> Assets:
        """Takes both vocabularies, or the source vocabulary of a task that only reads text."""
        if "source" not in assets and isinstance(read := assets.get("text"), text.AnyVocabulary):
            shared = self.experiment.data.shared
            assets = {"source": read, "target": read if shared else self.learn_assets(data)["target"]}
        require(
            all(isinstance(assets.get(side), text.AnyVocabulary) for side in SIDES),
            "the other run has no vocabularies to take: leave out --init-assets",
        )
        pairs.check_vocabularies(self.experiment.data, data, assets["source"], assets["target"])
        return self._checked({side: assets[side] for side in SIDES})

    def _checked(self, found: Assets) -> Assets:
        softmax, size = self.experiment.train.softmax, found["target"].size
        for name in ("samples", "subset"):
            require(
                getattr(softmax, name) <= size,
                f"train.softmax.{name} is {getattr(softmax, name)}, but the target vocabulary has {size} words: "
                "lower it, or set it to 0 to use all words",
            )
        return found

    def assumed_assets(self, sizes: tuple[int, int]) -> Assets:
        for side, size in zip(SIDES, sizes):
            require(size >= 1, f"--{side}-size is {size}: it must be at least 1")
            require(
                not getattr(self.experiment.data, side).spelling.on,
                f"data.{side}.spelling.on builds vectors from the words themselves: leave out --{side}-size",
            )
        return {side: text.Size(size) for side, size in zip(SIDES, sizes)}

    @property
    def columns_use_seed(self) -> bool:
        return any(getattr(self.experiment.data, side).sampling for side in SIDES)

    def columns(self, data: pairs.Training) -> AnyColumns:
        e = self.experiment
        for line in e.show:
            text.with_tag(self.source, line, None, f"show: {line!r}")
        return pairs.make_columns(e.data, data, self.source, self.target, e.order_seed)

    def dev_columns(self, examples: Sequence[Example]) -> AnyColumns:
        """The source and the first target of each example, without subword sampling."""
        first = [example._replace(targets=example.targets[:1]) for example in examples]
        return pairs.encode(first, self.source, self.target)

    def plan(self, columns: AnyColumns, multiple: int) -> Plan:
        e = self.experiment
        parts = pairs.make_parts(e.data, columns, e.train.softmax.subset)
        return pairs.make_plan(e.data, columns, e.order_seed, multiple, parts.of if parts else None)

    def describe(self, columns: AnyColumns, plan: Plan) -> list[str]:
        e = self.experiment
        what = "rows of packed pairs" if e.data.packing else "pairs"
        lines = [
            f"{len(columns.lengths):,} training {what}, vocabulary {self.source.size} -> {self.target.size}, "
            f"{plan.steps_per_epoch:,} steps an epoch"
        ]
        if left_out := plan.left_out + getattr(columns, "left_out", 0):
            longest = e.data.buckets[-1]
            lines.append(f"{left_out:,} pairs are longer than the last of data.buckets, {longest}, and are left out")
        return lines

    # ----------------------------------------------------------------------------------- model

    def module_in(self, dtype: str, source: int = 0, target: int = 0) -> EncoderDecoder:
        e, sizes = self.experiment, (self.source.size + source, self.target.size + target)
        spelt = _spelling(e.data.source, self.source, source), _spelling(e.data.target, self.target, target)
        return models.build(e.model, *sizes, dtype, *spelt, e.train.remat)

    def source_example(self) -> jax.Array:
        return jnp.ones((1, 1), jnp.int32)

    def transfer_rows(self, other: Task) -> dict[str, Rows | None]:
        """Maps the parameters that grow with a vocabulary by its words."""
        found: dict[str, Rows | None] = {}
        shapes = self.parameter_shapes()
        grown = {"source": (1, 0), "target": (0, 1)}
        if encoder_and_decoder(self.experiment.model)[1].ties_embeddings:
            grown = {"target": (1, 1)}  # one table for both sides, stored as the target's
        for side, more in grown.items():
            mine, theirs = self.assets[side], other.assets.get(side)
            found |= vocabulary_rows(mine, theirs, shapes, self.parameter_shapes(*more))
            if theirs is None or theirs.fingerprint != mine.fingerprint:  # a vocabulary numbers the characters
                found |= {path: None for path in shapes if path.startswith(f"{side}_embedding/characters/")}
        if "source" not in other.assets:  # the other task only reads text
            path = "source_embedding/table" if "source_embedding/table" in shapes else "target_embedding/table"
            found |= word_rows(self.source, source_vocabulary(other.assets), {path: 0}, name="embedding/table")
        return found

    def loss(self, columns: AnyColumns | None = None) -> Loss:
        softmax, size = self.experiment.train.softmax, self.target.size
        proposal = words = None
        if softmax.samples and (softmax.distribution == "log_uniform" or columns is None):
            proposal = sampled_softmax.log_uniform(size)
        elif softmax.samples and columns is not None:
            proposal = sampled_softmax.proposal(pairs.target_counts(columns, size) + 1)
        if softmax.subset and columns is None:
            words = jnp.zeros((1, softmax.subset), jnp.int32)
        elif softmax.subset and columns is not None:
            parts = pairs.make_parts(self.experiment.data, columns, softmax.subset)
            words = None if parts is None else jnp.asarray(parts.words)
        return objectives.choose(self.module, self.experiment.train, proposal, words)

    def evaluation_loss(self) -> EvaluationLoss:
        return partial(objectives.evaluation_loss, self.module)

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        S, T = bucket
        ids = {"source": (rows, S), "target": (rows, T)}
        if self.experiment.data.packing:
            ids |= {"source_segments": (rows, S), "target_segments": (rows, T)}
        if self.experiment.train.softmax.subset:
            ids["part"] = (rows,)  # type: ignore[assignment]
        return abstract(**{name: (shape, np.int32) for name, shape in ids.items()})

    def output_bytes(self, bucket: Bucket) -> int:
        copies = 2 if self.experiment.train.r_drop else 1
        return copies * 2 * 4 * bucket[1] * self.target.size

    # ----------------------------------------------------------------------------- predictions

    def translator(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Translator:
        """The decoder, made once for each mesh. With `others`, tasks of the same vocabularies, an ensemble: params are
        then a list.
        """
        return self.once(self._make_translator, mesh, *others)

    def _make_translator(self, mesh: jax.sharding.Mesh | None, *others: Task) -> Translator:
        e, modules = self.experiment, self.search_modules(others)
        sharding, ways = row_sharding(mesh)
        return Translator(
            modules if others else modules[0], self.source, self.target, e.search,
            buckets=[source for source, _ in e.data.buckets], rows=-(-e.evaluate.batch_size // ways) * ways,
            batch_sharding=sharding, multiple=ways,
        )  # fmt: skip

    def check_predictor(self) -> None:
        self.translator()

    def lower_predictor(self, mesh: jax.sharding.Mesh, params: Any) -> dict[str, Any]:
        return self.translator(mesh).lower(params)

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        translator = self.translator(mesh, others)

        told: set[str] = set()

        def predict(params: Any, examples: Sequence[Example]) -> list[Output]:
            notes = Notes()
            outputs = translator.decode(params, [example.source for example in examples], notes=notes)
            for line in notes.report():
                if line not in told and multihost.is_leader():  # each evaluation during training has the same lines
                    print(line, file=sys.stderr, flush=True)
                told.add(line)
            return [best[0] for best in outputs]

        return predict

    def metrics(self, examples: Sequence[Example], outputs: Sequence[Output]) -> dict[str, metrics.MetricResult]:
        judge = self.experiment.evaluate
        texts, targets = [output.text for output in outputs], [example.targets for example in examples]
        return metrics.score(judge.metrics, texts, targets, judge.target_unit)

    @property
    def higher_is_better(self) -> bool:
        return metrics.higher_is_better(self.experiment.evaluate.metrics[0])

    def groups(self, examples: Sequence[Example]) -> dict[str, list[int]]:
        labels = readers.labels(self.experiment.data.corpus)
        found = {
            label: [n for n, example in enumerate(examples) if example.corpus == i] for i, label in enumerate(labels)
        }
        return {label: rows for label, rows in found.items() if rows}

    def dev_sample(self, examples: Sequence[Example], count: int) -> list[Example]:
        """Selects dev examples; from a mixture, the same number from each corpus."""
        corpora = sorted({example.corpus for example in examples})
        each = [[example for example in examples if example.corpus == corpus] for corpus in corpora]
        return [example for part in each for example in spread(part, -(-count // len(each)))][:count]

    def show(self, example: Example, output: Output) -> str:
        verdict = "✓" if metrics.equals_one_of(output.text, example.targets) else f"({example.targets[0]})"
        return f"{example.source}  ->  {output.text}  {verdict}"

    def record(self, example: Example, output: Output) -> dict[str, Any]:
        return {"source": example.source, "hypothesis": output.text, "references": list(example.targets)}

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Any]) -> list[Path]:
        """Decodes the texts of `show` and draws the attention over the first four."""
        lines = self.experiment.show
        if not lines:
            return []
        translator, params = self.translator(mesh), restore()
        outputs = [best[0] for best in translator.decode(params, lines)]
        width = max(map(len, lines))
        for line, output in zip(lines, outputs):
            print(f"  {line:{width}}  ->  {output.text}")
        if not translator.attends:
            print("this model has no attention: attention.png is not drawn")
            return []
        from s2sjax.evaluate.figures import attention_maps  # imports Matplotlib, which is slow

        found = translator.attention(params, lines[:4], outputs[:4])
        maps = [attention_maps.AttentionMap(*each, title=line) for each, line in zip(found, lines)]
        path = folder / "attention.png"
        if multihost.is_leader():
            attention_maps.attention_grid(path, maps, columns=2)
        return [path]


def _spelling(options: config.Text, vocabulary: text.AnyVocabulary, more: int = 0) -> Spelling | None:
    """The characters of the words if word vectors are built from them; `more` repeats the last word."""
    if not options.spelling.on or not isinstance(vocabulary, text.Vocabulary):
        return None
    table = vocabulary.spelling(options.spelling.length)
    return Spelling(np.pad(table, ((0, more), (0, 0)), mode="edge"), options.spelling)
