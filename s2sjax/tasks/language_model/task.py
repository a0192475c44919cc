"""Language models, of words, characters or subwords.

An example to score is a line of a text, which is read after all lines before it; an example to continue is a prompt.
"""

from __future__ import annotations

import zlib
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
from s2sjax.core import search
from s2sjax.core.recurrence.masked_scan import keep
from s2sjax.core.search import sampling
from s2sjax.core.search.beam_interface import Beams
from s2sjax.core.special_tokens import EOS, PAD, SOS, UNK
from s2sjax.data import text
from s2sjax.data.batching.batch_plan import Plan, round_length
from s2sjax.data.batching.columns import AnyColumns, Bucket
from s2sjax.data.data_notes import Sides
from s2sjax.data.text import text_streams
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult
from s2sjax.evaluate.prediction import attention_heads, batched_apply, perplexity
from s2sjax.evaluate.prediction.attention_heads import AttentionHeads, Kind
from s2sjax.evaluate.prediction.perplexity import LineNats
from s2sjax.tasks.language_model import language_models
from s2sjax.tasks.language_model.language_models import FIRST
from s2sjax.tasks.language_model.settings import Continuation, HybridLM, PerplexityEvaluate, RecurrentLM, TransformerLM
from s2sjax.tasks.task import Assets, Predictor, Task, abstract
from s2sjax.tasks.vocabulary_transfer import word_rows
from s2sjax.training.checkpoints.transfer import Rows
from s2sjax.training.train_state import Loss

PROMPTS = (1, 8, 64)
"""numbers of prompts to continue at once: few shapes are compiled"""
SHORTEST = 16
"""shortest padded length of a prompt in tokens; longer ones are powers of two"""
LENGTHS: Mapping[str, Callable[[str], int]] = {"words": lambda line: len(line.split()), "characters": len}
"""the number of tokens of a line, by unit"""
BYTES_PER_SUBWORD = 4
"""usual number of bytes of UTF-8 of a subword"""


@settings
class LanguageModel(config.Experiment):
    """An experiment that trains a language model."""

    _: KW_ONLY
    data: config.PlainText = config.PlainText()
    model: RecurrentLM | TransformerLM | HybridLM = field(default_factory=RecurrentLM)
    search: Continuation = Continuation()
    """decoding settings"""
    evaluate: PerplexityEvaluate = PerplexityEvaluate()
    show: tuple[str, ...] = ()
    """prompts to continue after training"""

    decode_fields: ClassVar = ("search",)
    init_fields: ClassVar = ("model", "data.unit", "data.min_count", "data.steps", "search")
    sized_by_data: ClassVar = ("embedding_size", "width", "layers")
    # The location of the text may change, its fingerprint may not.
    free_fields: ClassVar = (
        "data.train", "data.dev", "data.test", "data.origin", "search", "evaluate.streams", "evaluate.context", "show",
    )  # fmt: skip

    def task(self) -> LanguageModelTask:
        return LanguageModelTask(self)

    @property
    def keeps_state(self) -> bool:
        """Whether a segment continues from the state of the one before it."""
        return isinstance(self.model, RecurrentLM | HybridLM)

    def __post_init__(self):
        self.check_name()
        self.refuse_train("a language model", "label_smoothing", "r_drop", "scheduled_sampling", "softmax")
        require(
            self.keeps_state or self.evaluate.context < self.data.steps,
            f"evaluate.context {self.evaluate.context} leaves no token of data.steps {self.data.steps} to count: "
            "lower it",
        )
        require(
            self.keeps_state or self.evaluate.streams == 1,
            f"evaluate.streams is {self.evaluate.streams}: a Transformer keeps no state, so it reads windows: set it "
            "to 1",
        )
        places = getattr(self.model, "max_positions", None)
        require(
            places is None or self.data.steps <= places,
            f"data.steps {self.data.steps} is more than model.max_length {places}, the positions of the model: lower "
            "it",
        )


class Line(NamedTuple):
    """A line to score, after the lines before it."""

    text: str


class Prompt(NamedTuple):
    """A text to continue."""

    text: str
    where: str = ""
    """its line of the input: equal prompts on two lines are continued differently"""


class LanguageModelTask(Task):
    """A decoder without a memory. Asset: the vocabulary `target`."""

    noun = "line"
    higher_is_better = False
    settings_fields = ("evaluate.streams", "evaluate.context")
    experiment: LanguageModel

    @property
    def vocabulary(self) -> text.AnyVocabulary:
        return self.assets["target"]

    # ------------------------------------------------------------------------------------ data

    def _lines(self, split: str) -> list[str]:
        return text_streams.read_split(self.experiment.data, split)[0]  # type: ignore[arg-type]

    def read(self) -> list[str]:
        return self._lines("train")

    def examples(self, split: str) -> list[Line]:
        return [Line(line) for line in self._lines(split)]

    def example_of(self, line: str, where: str) -> Prompt:
        return Prompt(text_streams.with_blanks(line, self.experiment.data.unit), where)

    def blank_example(self) -> Prompt:
        return Prompt("")

    def fingerprint(self, data: Sequence[str]) -> str:
        return text_streams.fingerprint(data)

    def resolve_defaults(self, data: Sequence[str]) -> LanguageModel:
        """Also sets the sizes of a recurrent model by the length of the text."""
        e = super().resolve_defaults(data)
        if isinstance(e.model, RecurrentLM):
            return config.replace(e, model=e.model.resolve_defaults(self._tokens(data)))
        return e

    def epoch(self, data: Sequence[str]) -> int:
        return -(-self._tokens(data) // self.experiment.data.batch_tokens)

    def _tokens(self, data: Sequence[str]) -> int:
        """The number of tokens of a text; for subwords an estimate, because they are not learned yet."""
        count = LENGTHS.get(self.experiment.data.unit, lambda line: len(line.encode()) // BYTES_PER_SUBWORD)
        return sum(count(line) + 1 for line in data)

    def sides(self, split: str, examples: Sequence[str | Line]) -> Iterable[Sides]:
        return (Sides(line if isinstance(line, str) else line.text) for line in examples)

    def learn_assets(self, data: Sequence[str]) -> Assets:
        return {"target": text_streams.vocabulary(self.experiment.data, data)}

    def adopt_assets(self, data: Sequence[str], assets: Assets) -> Assets:
        found = assets.get("target")
        require(
            isinstance(found, text.AnyVocabulary) and found.unit == self.experiment.data.unit,
            f"the other run has no vocabulary of {self.experiment.data.unit} to take: leave out --init-assets",
        )
        return {"target": found}

    @property
    def columns_use_seed(self) -> bool:
        return self.experiment.data.shift

    def columns(self, data: Sequence[str]) -> text_streams.Segments:
        e, (ids, _) = self.experiment, text_streams.encode(self.vocabulary, data)
        name = e.data.train or "the training text"
        require(
            len(ids) >= e.data.batch_size,
            f"{name} has {len(ids)} tokens, fewer than data.batch_size {e.data.batch_size}: lower it"
            ", or give more text",
        )
        return text_streams.Segments(ids, e.data.batch_size, e.data.steps, e.order_seed if e.data.shift else None)

    def plan(self, columns: AnyColumns, multiple: int) -> Plan:
        data = self.experiment.data
        self._check_rows(multiple)
        kind = text_streams.InOrder if self.experiment.keeps_state else Plan
        return kind(columns.lengths, data.buckets, data.batch_tokens, self.experiment.order_seed, multiple)

    def check_mesh(self, mesh: Mapping[str, int]) -> None:
        require(
            mesh["tensor"] == 1,
            f"train.mesh.tensor is {mesh['tensor']}: a language model has no tensor-parallel parameters: set it to 1",
        )
        self._check_rows(mesh["data"] * mesh["fsdp"] * self.experiment.train.grad_accum_steps)

    def _check_rows(self, multiple: int) -> None:
        """Raises if the streams, each of which keeps its row from batch to batch, would need rows of padding."""
        rows = self.experiment.data.batch_size
        require(
            rows % multiple == 0 or not self.experiment.keeps_state,
            f"data.batch_size {rows} streams cannot be split among {multiple} parts (devices x micro-batches): set "
            f"it to {-(-rows // multiple) * multiple}",
        )

    def describe(self, columns: Any, plan: Plan) -> list[str]:
        types = len(np.unique(columns.ids))
        return [
            f"{len(columns.ids):,} training tokens of {types:,} types, line ends included, {columns.rows} streams, "
            f"{plan.steps_per_epoch:,} steps an epoch"
        ]

    # ----------------------------------------------------------------------------------- model

    @property
    def module(self) -> language_models.LanguageModel:
        e, words = self.experiment, self.vocabulary
        has_unk = UNK not in words.spare
        return language_models.build(e.model, words.size, e.data.steps, e.train.dtype, e.train.remat, has_unk)

    def _start(self, rows: int) -> Any:
        return language_models.start(self.experiment.model, rows, jnp.dtype(self.experiment.train.dtype))

    def init(self, key: Array) -> Any:
        return self.module.init(key, jnp.ones((1, 1), jnp.int32), self._start(1))["params"]

    def carry(self, rows: int) -> Any:
        """The initial state of each layer; None for a Transformer."""
        return self._start(rows) if self.experiment.keeps_state else None

    def loss(self, columns: AnyColumns | None = None) -> Loss:
        """The cross-entropy per token. A stream that starts again starts from the initial state."""
        module, start = self.module, self._start

        def loss(params: Any, batch: dict[str, Array], key: Array, step: Array, carry: Any = None) -> Any:
            before = start(len(batch["start"]))
            before = before if carry is None else keep(batch["start"], before, carry)
            sums, after = module.apply(
                {"params": params}, batch["inputs"], batch["targets"], before, method="loss", rngs={"dropout": key}
            )
            return sums if carry is None else (sums, after)

        return loss

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        ids = ((rows, *bucket), np.int32)
        return abstract(inputs=ids, targets=ids, start=((rows,), np.bool_))

    def output_bytes(self, bucket: Bucket) -> int:
        return 2 * 4 * bucket[0] * (self.vocabulary.size - FIRST)

    def transfer_rows(self, other: Task) -> Mapping[str, Rows | None]:
        """Maps the tables and biases of words."""
        axes = dict.fromkeys(("embedding/table", "output/table", "output/bias"), 0)
        return word_rows(self.vocabulary, other.assets.get("target"), axes)

    # ----------------------------------------------------------------------------- predictions

    def dev_sample(self, examples: Sequence[Line], count: int) -> list[Line]:
        """The first lines: a line is read after those before it."""
        return list(examples[:count])

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        """The predictor: nats of each line, read in order, or the continuation of each prompt."""
        require(not others, "a language model has no ensembles: name one run")
        score, compiled = self._scorer(mesh), jax.jit(self._continuation, out_shardings=_replicated(mesh))

        def predict(params: Any, examples: Sequence[Any]) -> list[Any]:
            if examples and isinstance(examples[0], Prompt):
                return self._continued(partial(compiled, params), examples)
            return score(params, [example.text for example in examples])

        return predict

    def self_attention(self, params: Any, line: str, of: Kind) -> AttentionHeads:
        """The self-attention of a prompt, read as one segment."""
        require(of == "decoder", "a language model has no encoder: set of to decoder")
        ids, most = [EOS, *self.vocabulary.encode(self.example_of(line, "the line").text)], self.experiment.data.steps
        fits = self.experiment.keeps_state or len(ids) <= most
        require(fits, f"the line has {len(ids)} tokens, the model reads at most {most}: shorten it")
        heads = jax.jit(partial(self.module.apply, method="self_attention_heads"))
        found = heads({"params": params}, np.array([ids], np.int32))
        return attention_heads.of_one_row(of, self.vocabulary.pieces(ids), found)

    def _scorer(self, mesh: jax.sharding.Mesh | None) -> Callable[[Any, list[str]], list[LineNats]]:
        """Scores lines. Every device computes the same, because a text is one sequence."""
        e, module, everywhere = self.experiment, self.module, _replicated(mesh)
        apply = lambda params, *batch: module.apply({"params": params}, *batch, method="nats")
        nats = jax.jit(apply, out_shardings=everywhere)

        def score(params: Any, lines: list[str]) -> list[LineNats]:
            ids, offsets = text_streams.encode(self.vocabulary, lines)
            if e.keeps_state:
                rows = min(e.evaluate.streams, len(ids))
                carry = jax.device_put(self._start(rows), everywhere)  # sharded as the result: one program
                found = perplexity.by_streams(nats, params, carry, ids, rows, e.evaluate.context)
            else:
                found = perplexity.by_windows(nats, params, ids, e.data.steps, e.evaluate.context)
            return perplexity.by_line(found, offsets)

        return score

    def _continuation(self, params: Any, prefix: Array, last: Array, seeds: Array) -> Array:
        """Searches: prefix [B, P] and the token `last` [B] after it -> continuation [B, max_length]."""
        s, module, keys = self.experiment.search, self.module, jax.vmap(jax.random.key)(seeds)
        apply: Any = lambda *arrays, method: module.apply({"params": params}, *arrays, method=method)

        prepared = apply(method="prepare")  # outside of the loop over tokens

        def step(state: Any, token: Array) -> tuple[Any, Array, None]:
            read, last = state  # a search begins with <sos>, which stands for the last token of the prompt
            token = jnp.where(token[:, 0] == SOS, last, token[:, 0])
            read, logits = apply(read, token, prepared, method="advance")
            return (read, last), logits[:, None], None

        # One output per prompt, so that the state needs no axis for several, nor `advance` a vmap.
        one = Beams(lambda state, width: state, step, lambda state, origin: state)
        state = apply(prefix, s.max_length, method="begin"), last
        limit = jnp.full(len(last), s.max_length)
        if s.temperature == 0:
            return search.greedy(one, state, limit, s.max_length).tokens[:, 0]
        options = {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p}
        return sampling.sample(one, state, limit, s.max_length, keys, **options).tokens[:, 0]

    def _continued(self, continuation: Callable[..., Array], prompts: Sequence[Prompt]) -> list[str]:
        """The prompts with their continuations; continuation(prefix, last, seeds) is the compiled search."""
        texts = [self.vocabulary.encode(prompt.text) for prompt in prompts]
        ids = [[EOS, *words] if self.experiment.search.after_eos or not words else words for words in texts]
        if not self.experiment.keeps_state:  # a Transformer reads no more
            ids = [tokens[-self.experiment.data.steps :] for tokens in ids]
        self._check_prompts(ids)
        if batched_apply.shapes() == "all":
            for rows, width in self._prompt_shapes():
                empty = np.full((rows, width), PAD, np.int32)
                continuation(empty, empty[:, 0] + EOS, np.zeros(rows, np.uint32))
        # The seed of a prompt is a function of its line and its text alone.
        names = [f"{self.experiment.search.seed}/{prompt.where}/{prompt.text}" for prompt in prompts]
        seeds = np.array([zlib.crc32(name.encode()) for name in names], np.uint32)
        found: list[str] = []
        for first in range(0, len(ids), PROMPTS[-1]):
            some = ids[first : first + PROMPTS[-1]]
            rows = next(rows for rows in PROMPTS if len(some) <= rows)
            width = max(round_length(max(map(len, some))), SHORTEST)
            table, last = np.full((rows, width), PAD, np.int32), np.full(rows, EOS, np.int32)
            for row, tokens in enumerate(some):
                table[row, : len(tokens) - 1], last[row] = tokens[:-1], tokens[-1]
            written = jax.device_get(continuation(table, last, np.resize(seeds[first : first + PROMPTS[-1]], rows)))
            read = texts[first : first + PROMPTS[-1]]
            found += [self.vocabulary.decode([*words, *more]) for words, more in zip(read, written)]
        return found

    def _prompt_shapes(self) -> list[tuple[int, int]]:
        """The shapes (rows, tokens) of `batched_apply.few_shapes`."""
        widths = [SHORTEST]
        doublings = batched_apply.DOUBLINGS if self.experiment.keeps_state else 0
        while widths[-1] < self.experiment.data.steps << doublings:
            widths.append(2 * widths[-1])
        return [(rows, width) for rows in PROMPTS for width in widths]

    def _check_prompts(self, ids: Sequence[Sequence[int]]) -> None:
        longest, most = max(map(len, ids)), max(width for _, width in self._prompt_shapes())
        require(
            batched_apply.shapes() == "any" or longest <= most,
            f"a prompt has {longest:,} tokens, this program reads at most {most:,}: shorten it",
        )

    def metrics(self, examples: Sequence[Line], outputs: Sequence[LineNats]) -> dict[str, MetricResult]:
        words = self.module.words
        signature = f"unit:{self.experiment.data.unit}|vocabulary:{words}|tokens:{sum(o.tokens for o in outputs)}"
        return perplexity.results(outputs, self.experiment.data.unit == "characters", signature)

    def settings_text(self) -> str:
        e = self.experiment.evaluate
        if not self.experiment.keeps_state:
            return f"windows of {self.experiment.data.steps} with context {e.context}"
        read_before = f" with context {e.context}" if e.context and e.streams > 1 else ""
        return "state carried" + (f" in {e.streams} streams{read_before}" if e.streams > 1 else "")

    def show(self, example: Line, output: LineNats) -> str:
        return f"{example.text}  ({np.exp(min(output.nats / output.tokens, 700)):.1f})"

    def record(self, example: Line, output: LineNats) -> dict[str, Any]:
        return {"source": example.text, "hypothesis": str(output), "references": []}

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Any]) -> list[Path]:
        """Prints the continuations of `show`."""
        if prompts := [self.example_of(line, f"show {number}") for number, line in enumerate(self.experiment.show)]:
            for prompt, written in zip(prompts, self.predictor(mesh)(restore(), prompts)):
                print(f"{prompt.text}  ->  {written}")
        return []


def _replicated(mesh: jax.sharding.Mesh | None) -> jax.sharding.Sharding | None:
    return None if mesh is None else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
