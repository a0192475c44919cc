"""Bases of tasks whose model is an encoder-decoder: of all, and of those that read something other than text.

For captions and transcripts, an encoder-decoder with a front end (models/encoder_decoder.py) learns by teacher forcing
and decodes with the same search as translation (evaluate/prediction/text_generator.py).
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config, layers, models
from s2sjax.config import encoder_and_decoder, require
from s2sjax.data import text
from s2sjax.data.batching.columns import AnyColumns, Buckets, Columns
from s2sjax.evaluate.prediction.heldout_loss import EvaluationLoss
from s2sjax.evaluate.prediction.text_generator import Generator
from s2sjax.evaluate.prediction.translator import Output
from s2sjax.models import objectives
from s2sjax.models.encoder_decoder import EncoderDecoder
from s2sjax.tasks.task import Predictor, Task
from s2sjax.tasks.vocabulary_transfer import vocabulary_rows
from s2sjax.training import multihost
from s2sjax.training.checkpoints.fingerprints import named_leaves
from s2sjax.training.checkpoints.transfer import Rows
from s2sjax.training.mesh import Rules
from s2sjax.training.train_state import Loss


def check_network(network: config.ModelConfig, search: config.Search, train: config.Train, places: int) -> None:
    """Raises if settings cannot work with a front end. places: the most positions that the encoder reads."""
    encoder, decoder = encoder_and_decoder(network)
    require(
        not decoder.ties_embeddings,
        f"model.network.tie {decoder.tie!r} requires a source of words: set it 'output' or 'none'",
    )
    plain = config.Search()
    for name in ("nbest", "max_source", "max_ratio", "min_ratio"):
        require(
            getattr(search, name) == getattr(plain, name),
            f"search.{name} applies to translation, and captions and transcripts do not use it: leave it out",
        )
    require(
        not decoder.attends_own_position,
        f"model.network: {type(decoder).__name__} writes one word for each position it reads: choose another decoder",
    )
    require(
        search.max_length > 0,
        "search.max_length 0 derives the limit from the words of the source, and this source has none: set it above 0",
    )
    require(train.softmax == config.Softmax(), "train.softmax applies to translation alone: leave it out")
    for side, name, most in (
        (encoder, "the positions that are read", places),
        (decoder, "search.max_length", search.max_length),
    ):
        require(
            side.max_positions is None or side.max_positions >= most,
            f"model.network: max_length {side.max_positions} of {type(side).__name__} is shorter than {name}, {most}: "
            "raise it",
        )


def sample_numbers(names: Sequence[str]) -> np.ndarray:
    """int32 [n]: a number for each name that seeds its random samples, independent of the other names."""
    return np.array([zlib.crc32(name.encode()) & 0x7FFFFFFF for name in names], np.int32)


class EncoderDecoderTask(Task):
    """A task whose model is an encoder-decoder. Assets: at least the vocabulary `target`."""

    has_perplexity = True
    settings_fields: ClassVar = ("search.beam_size", "search.sampling.count")

    @property
    def network(self) -> config.ModelConfig:
        """The settings of the encoder-decoder."""
        return self.experiment.model

    @abstractmethod
    def module_in(self, dtype: str, source: int = 0, target: int = 0) -> EncoderDecoder:
        """The model in a dtype, with `source` and `target` more words than the vocabularies have."""

    @abstractmethod
    def source_example(self) -> Any:
        """A small source with which the parameters are initialised."""

    @property
    def target(self) -> text.AnyVocabulary:
        return self.assets["target"]

    @property
    def model_name(self) -> str:
        return config.model_name(self.network)

    @property
    def module(self) -> EncoderDecoder:
        return self.module_in(self.experiment.train.dtype)

    def init(self, key: Array) -> Any:
        return self.module.init(key, self.source_example(), jnp.ones((1, 1), jnp.int32))["params"]

    def parameter_shapes(self, source: int = 0, target: int = 0) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters by path; see `module_in`."""
        init, key = self.module_in("float32", source, target).init, jax.random.key(0)
        params = jax.eval_shape(init, key, self.source_example(), jnp.ones((1, 1), jnp.int32))["params"]
        return {path: leaf.shape for path, leaf in named_leaves(params)}

    def merged(self, params: Any) -> Any:  # the two sides of a pair may have adapters of two scales
        scales = dict(zip(("encoder", "decoder"), (side.adapter_scale for side in encoder_and_decoder(self.network))))
        return {
            name: layers.merge_adapters(part, scales[name]) if name in scales else part for name, part in params.items()
        }

    @property
    def rules(self) -> Rules:
        return models.tensor_rules(self.network)

    @property
    def splits_products_and_time(self) -> bool:
        kinds = config.Transformer, config.Hybrid
        return all(isinstance(side, kinds) for side in encoder_and_decoder(self.network))

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(side.heads for side in encoder_and_decoder(self.network) if side.heads)

    def search_modules(self, others: Sequence[Any]) -> list[EncoderDecoder]:
        """The models that search. Parameters stored in bfloat16 compute in it; int8 computes in the dtype of training.

        others: the other tasks of an ensemble.
        """
        precision = self.experiment.search.precision
        named = precision if precision in ("float32", "bfloat16") else None
        return [task.module_in(named or task.experiment.train.dtype) for task in (self, *others)]

    def settings_text(self) -> str:
        search = self.experiment.search
        return f"{search.sampling.count} samples" if search.sampling.count else f"beam {search.beam_size}"


class GenerationTask(EncoderDecoderTask):
    """A task that generates text from something else. A batch has a column `target`."""

    has_ensembles = True

    # A task defines these, its data and its metrics.

    @abstractmethod
    def frontend(self, dtype: Any) -> nn.Module:
        """The front end of the encoder: see `EncoderDecoder.source_frontend`."""

    @abstractmethod
    def source_of(self, batch: Mapping[str, Any]) -> tuple:
        """The arrays of a batch that the front end reads."""

    @property
    @abstractmethod
    def layout(self) -> str:
        """A description of the inputs and the size of the memory, which the runs of an ensemble must share."""

    @abstractmethod
    def columns_with(self, examples: Sequence[Any], outputs: Sequence[Any] | None) -> Columns:
        """Columns with one row per example, whose target is its output, or empty without outputs."""

    @abstractmethod
    def output_of(self, found: Output) -> Any:
        """Converts a decoded hypothesis to the output of an example."""

    @abstractmethod
    def draw(self, path: Path, examples: Sequence[Any], outputs: Sequence[Any], weights: Sequence[np.ndarray]) -> None:
        """Draws outputs and their attention. weights: [T, S] for each example, with padding."""

    def augmented(self, batch: dict[str, Array], step: Array) -> dict[str, Array]:
        """Applies random changes to a training batch."""
        return batch

    @property
    def attention_penalty(self) -> float:
        return 0.0

    @property
    def source_buckets(self) -> Buckets | None:
        """The buckets of batches without targets, if they differ from those of training."""
        return None

    @property
    def longest(self) -> int | None:
        """The longest source that the model can address; None: any."""
        return None

    # ----------------------------------------------------------------------------------- model

    @property
    def network(self) -> config.ModelConfig:
        return self.experiment.model.network

    def module_in(self, dtype: str, source: int = 0, target: int = 0) -> EncoderDecoder:
        remat, frontend = self.experiment.train.remat, self.frontend(jnp.dtype(dtype))
        size = self.target.size + target
        return models.build(self.network, 0, size, dtype, remat_policy=remat, source_frontend=frontend)

    def loss(self, columns: AnyColumns | None = None) -> Loss:
        train, strength = self.experiment.train, self.attention_penalty
        chosen = objectives.choose(self.module, train)
        if strength:
            chosen = partial(objectives.doubly_stochastic_loss, self.module, train.label_smoothing, strength)

        def loss(params: Any, batch: dict[str, Array], key: Array, step: Array) -> dict[str, tuple[Array, Array]]:
            source = self.source_of(self.augmented(batch, step))
            return chosen(params, {"source": source, "target": batch["target"]}, key, step)

        return loss

    def evaluation_loss(self) -> EvaluationLoss:
        module = self.module
        read = lambda batch: {"source": self.source_of(batch), "target": batch["target"]}
        return lambda params, batch: objectives.evaluation_loss(module, params, read(batch))

    def transfer_rows(self, other: Task) -> dict[str, Rows | None]:
        shapes, larger = self.parameter_shapes(), self.parameter_shapes(target=1)
        return vocabulary_rows(self.target, other.assets.get("target"), shapes, larger)

    # ----------------------------------------------------------------------------- predictions

    def generator(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Generator:
        """The compiled search, made once for each mesh. With `others`, an ensemble: params are then a list."""
        return self.once(self._make_generator, mesh, *others)

    def _make_generator(self, mesh: jax.sharding.Mesh | None, *others: Task) -> Generator:
        e = self.experiment
        return Generator(
            self.search_modules(others), self.source_of, self.target, e.search, e.data.buckets, e.evaluate.batch_size,
            mesh, self.longest, self.source_buckets,
        )  # fmt: skip

    def check_predictor(self) -> None:
        self.generator()

    def lower_predictor(self, mesh: jax.sharding.Mesh, params: Any) -> dict[str, Any]:
        generator = self.generator(mesh)
        batch = self.abstract_batch(max(self.experiment.data.buckets, key=sum), generator.rows)
        numbers = {"example": jax.ShapeDtypeStruct((generator.rows,), np.int32)}
        return {"search": generator.lower(params, batch | numbers)}

    def check_ensemble(self, other: Task) -> None:
        assert isinstance(other, GenerationTask), "the runner compares the tasks first"
        require(
            self.layout == other.layout,
            f"one run reads {self.layout}, the other {other.layout}: an ensemble requires runs with equal inputs",
        )

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        generator = self.generator(mesh, others)

        def predict(params: Any, examples: Sequence[Any]) -> list[Any]:
            return [self.output_of(best[0]) for best in generator.decode(params, self.columns_with(examples, None))]

        return predict

    def drawn_examples(self, split: str, count: int) -> list[Any]:
        """The first examples of a split, to draw."""
        return self.examples(split)[:count]

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Any]) -> list[Path]:
        """Draws some held-out examples with the attention of their outputs."""
        count, split = self.experiment.evaluate.drawn, self.default_split
        if not count or split is None:
            return []
        generator = self.generator(mesh)
        if not generator.attends:
            print("this model has no attention: attention.png is not drawn")
            return []
        examples, params, path = self.drawn_examples(split, count), restore(), folder / "attention.png"
        if not examples:
            return []
        outputs = self.predictor(mesh)(params, examples)
        weights = generator.attention(params, self.columns_with(examples, outputs))
        if multihost.is_leader():
            self.draw(path, examples, outputs, weights)
        return [path]
