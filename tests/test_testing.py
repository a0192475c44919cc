"""The laws of s2sjax/testing can fail: each is broken by a model or a task, and the error names it."""

import textwrap
from functools import cache
from pathlib import Path
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from conftest import refused
from models.test_extending import Bag, BagDecoder, BagEncoder
from test_extending import FILES

from s2sjax import config, layers
from s2sjax.models.encoder_decoder import masked_mean
from s2sjax.testing import LawError, model_laws, task_laws, verify_model, verify_task
from s2sjax.testing.laws import check_equal

# --------------------------------------------------------------------------------------- models


class Encoder(BagEncoder):
    """An encoder with another mean of its states."""

    def __call__(self, xs, mask, train, segments=None):
        memory = super().__call__(xs, mask, train)
        return memory._replace(final=((self.mean(memory.states, mask),),))


class Noisy(BagDecoder):
    def hidden(self, memory, inputs, mask, train, segments=None):
        h = super().hidden(memory, inputs, mask, train)
        return layers.dropout(self, h, 0.5, train or self.has_rng("dropout"))


class AlwaysNoisy(BagDecoder):
    def hidden(self, memory, inputs, mask, train, segments=None):
        return layers.dropout(self, super().hidden(memory, inputs, mask, train), 0.5, True)


class HalfPrecise(BagDecoder):
    def step(self, memory, state, token, train=False):
        state, logits, _ = super().step(memory, state, token)
        return state, logits.astype(jnp.bfloat16), None


class StateWithoutBatch(BagDecoder):
    def init_state(self, memory, steps):
        return jnp.zeros(3)


class Impure(BagDecoder):
    def hidden(self, memory, inputs, mask, train, segments=None):
        return super().hidden(memory, inputs, mask, train) * (1 if isinstance(inputs, jax.core.Tracer) else 0.9)


class Clairvoyant(BagDecoder):
    def hidden(self, memory, inputs, mask, train, segments=None):
        h = super().hidden(memory, inputs, mask, train)
        return h + masked_mean(h, mask)[:, None]


class OtherStep(BagDecoder):
    def step(self, memory, state, token, train=False):
        return super().step(memory, state, (token + 1) % 7)


class Dividing(Encoder):
    def mean(self, states, mask):
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


class OverTheBatch(Encoder):
    def mean(self, states, mask):
        mean = masked_mean(states, mask)
        return mean - mean.mean(0)


class Unmasked(Encoder):
    def mean(self, states, mask):
        return states.mean(1)


class Unused(BagDecoder):
    def setup(self):
        super().setup()
        self.extra = self.param("extra", nn.initializers.zeros, (3,))


class Scanning(BagDecoder):
    def hidden(self, memory, inputs, mask, train, segments=None):
        step = lambda carry, x: (carry, jnp.tanh(memory + x))
        return jax.lax.scan(step, (), self.project(self.embedding(inputs)).swapaxes(0, 1))[1].swapaxes(0, 1)


class Pretending(BagDecoder):
    has_beam_step: ClassVar[bool] = True


class WithHeads(BagDecoder):
    """Its attention is that of the first token."""

    has_attention_heads: ClassVar[bool] = True

    def prepare(self, memory):
        return memory

    def init_state(self, memory, steps):
        return jnp.zeros(len(memory.mask), jnp.int32)

    def step(self, memory, state, token, train=False):
        alpha = memory.mask * jax.nn.one_hot(0, memory.mask.shape[1])
        return *super().step(memory.final[0][0], state, token)[:2], alpha

    def hidden(self, memory, inputs, mask, train, segments=None):
        return super().hidden(memory.final[0][0], inputs, mask, train)

    def attention_heads(self, memory, inputs):
        alpha = memory.mask / memory.mask.sum(1, keepdims=True)
        return jnp.broadcast_to(alpha[:, None, None, None], (len(alpha), 1, 1, inputs.shape[1], alpha.shape[1]))


class Uncausal(BagDecoder):
    """Claims that each of its positions attends to all of them."""

    has_self_attention: ClassVar[bool] = True

    def self_attention_heads(self, memory, inputs):
        rows, length = inputs.shape
        return {0: jnp.full((rows, 1, length, length), 1 / length)}


class ByBeams(BagDecoder):
    """The state counts the tokens, and logits depend on their sum; `reorder` forgets to move it."""

    has_beam_step: ClassVar[bool] = True
    parallel: ClassVar[bool] = False

    def step(self, memory, state, token, train=False):
        h = jnp.tanh(memory + self.project(self.embedding(token)) + state[..., None] / 5)
        return state + token, self.output.logits(h), None

    def hidden(self, memory, inputs, mask, train, segments=None):
        before = (jnp.cumsum(inputs, 1) - inputs)[..., None] / 5
        return jnp.tanh(memory[:, None] + self.project(self.embedding(inputs)) + before)

    def prepare_beams(self):
        return ()

    def step_beams(self, memory, prepared, state, token):
        return self.step(memory[:, None], state, token)

    @staticmethod
    def tile(state, width):
        return jnp.repeat(state[:, None], width, axis=1)

    @staticmethod
    def reorder(state, origin):
        return state


BROKEN = {
    "noise_is_only_in_training": (Noisy, "depend on the key without `train`"),
    "shapes_follow_the_contract": (HalfPrecise, r"logits of `step` are bfloat16\[4, 7\] instead of float32\[4, 7\]"),
    "jit_changes_nothing": (Impure, "the logits change with jit"),
    "later_tokens_are_invisible": (Clairvoyant, "use a causal mask"),
    "steps_equal_teacher_forcing": (OtherStep, r"\[\d, \d, \d\] is \S+ instead of \S+; compare `step` with `hidden`"),
    "empty_rows_are_finite": (Dividing, r"divide by jnp.maximum\(count, 1\)"),
    "rows_are_independent": (OverTheBatch, "compute nothing over axis 0"),
    "padding_is_invisible": (Unmasked, "three columns of source padding"),
    "gradients_reach_every_parameter": (Unused, "no gradient reaches decoder/extra: "),
    "capabilities_are_declared": (Scanning, "declares parallel, but `hidden` scans over the positions"),
    "attention_is_the_mean_of_its_heads": (WithHeads, "compare `attention_heads`"),
    "self_attention_is_a_distribution": (Uncausal, "layer 0 of the decoder reaches unseen positions"),
    "beams_equal_steps": (ByBeams, "`reorder`"),
}


def settings_of(part) -> config.ModelSettings:
    side = "encoder_type" if issubclass(part, Encoder) else "decoder_type"
    attends = property(lambda self: config.DecoderSpec(self.width if part is WithHeads else None))
    return config.settings(type(part.__name__, (Bag,), {side: part, "decoder_spec": attends}))()


def test_a_right_model_keeps_all_laws_silently(capsys):
    report = verify_model(Bag())
    assert list(report.laws) == [law.__name__ for law in model_laws.LAWS] and report.hints == ()
    assert str(report).count("\n") == len(report.laws) - 1
    assert "padding_is_invisible: Padding columns and padding rows change neither logits nor gradients." in str(report)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("law", BROKEN)
def test_a_model_that_breaks_a_law_is_told_which(law):
    part, message = BROKEN[law]
    with pytest.raises(LawError, match=message) as broken:
        verify_model(settings_of(part))
    assert broken.value.law == law and str(broken.value).startswith(f"{law} does not hold: ")


@pytest.mark.parametrize(
    "part, law, message",
    [
        (AlwaysNoisy, "noise_is_only_in_training", "random numbers are drawn without `train`"),
        (StateWithoutBatch, "shapes_follow_the_contract", r"state is \(3,\): its first axis must be the batch \(4\)"),
        (Pretending, "capabilities_are_declared", "does not define step_beams, prepare_beams, tile, reorder"),
    ],
)
def test_another_way_to_break_a_law(part, law, message):
    model = model_laws.PureModel(settings_of(part))
    with pytest.raises(LawError, match=message):
        getattr(model_laws, law)(model)


class StubbedSearch(model_laws.PureModel):
    """A search that finds another hypothesis for longer sources, and reports other scores."""

    def decode(self, source, limit, **options):
        found = super().decode(source, limit, **options)
        return found._replace(log_probs=found.log_probs + 1, tokens=found.tokens + source.shape[1])


@pytest.mark.parametrize("law", ["search_reports_the_score_of_teacher_forcing", "decoding_is_independent"])
def test_a_search_that_breaks_a_law_is_told_which(law):
    with pytest.raises(LawError, match=f"^{law} does not hold: "):
        getattr(model_laws, law)(StubbedSearch(Bag()))


def test_a_capability_that_is_not_declared_is_pointed_out():
    class Modest(ByBeams):
        has_beam_step: ClassVar[bool] = False

    with pytest.warns(UserWarning, match=r"^(Modest defines|`hidden` of Modest has)"):
        hints = verify_model(settings_of(Modest)).hints
    assert hints[0] == "Modest defines step_beams, which is not used: declare has_beam_step: ClassVar[bool] = True"
    assert len(hints) == 2 and "declare parallel: ClassVar" in hints[1]


def test_every_law_of_models_can_fail():
    search = {"search_reports_the_score_of_teacher_forcing", "decoding_is_independent"}
    assert BROKEN.keys() | search == {law.__name__ for law in model_laws.LAWS}


def test_a_nan_is_a_difference():
    with pytest.raises(LawError, match=r"\['x'\]\[1\] is nan instead of 2"):
        check_equal({"x": np.array([1, np.nan])}, {"x": np.array([1.0, 2.0])}, 1e-5, "x", "look")


# ---------------------------------------------------------------------------------------- tasks


@cache
def task_file() -> str:
    return FILES["task"].replace("steps=20", "steps=4").replace("train: int = 300", "train: int = 40")


def experiment_of(task: str):
    """The task of docs/extending.md, with methods of another body."""
    names: dict = {"__name__": __name__}
    exec(compile(task_file(), "task.py", "exec"), names)
    exec(f"class Changed(ClassificationTask):\n{textwrap.indent(textwrap.dedent(task), '    ')}\n    pass\n", names)
    names["ClassificationTask"] = names["Changed"]
    return names["experiment"]


BROKEN_TASKS = {
    "data_is_repeatable": (
        """
        def examples(self, split):
            return random.sample(super().examples(split), 20)
        """,
        "changes when .* again; draw random numbers from a seed",
    ),
    "batches_follow_the_plan": (
        """
        def abstract_batch(self, bucket, rows):
            return {"word": jax.ShapeDtypeStruct((rows, 3), jnp.int32)}
        """,
        r"column word of a batch is int32\[16, 10\], but `abstract_batch` says int32\[16, 3\]",
    ),
    "parameters_are_repeatable": (
        """
        def init(self, key):
            return jax.tree.map(lambda leaf: leaf + random.random(), super().init(key))
        """,
        "the initial parameters differ for the same key",
    ),
    "loss_is_finite": (
        """
        def loss(self, columns=None):
            loss = super().loss(columns)
            return lambda *a: {"loss": (jnp.log(loss(*a)["loss"][0] * 0 - 1), loss(*a)["loss"][1])}
        """,
        "'loss' of the loss of .* is not finite",
    ),
    "padding_rows_are_invisible": (
        """
        def loss(self, columns=None):
            loss = super().loss(columns)
            return lambda *a: {"loss": (loss(*a)["loss"][0], len(a[1]["word"]) * 1.0)}
        """,
        "the loss of a batch of only padding, its weight, or its gradient is not 0",
    ),
    "train_steps_are_repeatable": (
        """
        def loss(self, columns=None):
            loss, noise = super().loss(columns), random.random() - 0.5
            far = lambda params: sum(jnp.sum((leaf - noise) ** 2) for leaf in jax.tree.leaves(params))
            return lambda *a: {"loss": (far(a[0]) * loss(*a)["loss"][1], loss(*a)["loss"][1])}
        """,
        "the same two steps give different parameters",
    ),
    "predictions_are_scored": (
        """
        def predictor(self, mesh=None, others=()):
            return lambda params, words: super(Changed, self).predictor(mesh)(params, words)[1:]
        """,
        "7 outputs are predicted for 8 examples",
    ),
}


def test_a_right_task_keeps_all_laws_silently(capsys):
    report = verify_task(experiment_of(""))
    assert list(report.laws) == [law.__name__ for law in task_laws.LAWS] == list(BROKEN_TASKS)
    assert capsys.readouterr().out == ""


@zoo.each(BROKEN_TASKS, "law", quick=("parameters_are_repeatable",))
def test_a_task_that_breaks_a_law_is_told_which(law):
    task, message = BROKEN_TASKS[law]
    with pytest.raises(LawError, match=message) as broken:
        verify_task(experiment_of(task))
    assert broken.value.law == law


@pytest.mark.parametrize("given", ["luong", config.Train()])
def test_what_is_neither_a_model_nor_an_experiment_is_refused(given):
    assert refused(lambda: verify_model(given)).endswith("such as config.Luong(width=16)")
    assert refused(lambda: verify_task(given)).endswith("such as tasks.Translation(...)")


def test_the_laws_need_no_pytest():
    for file in Path(task_laws.__file__).parent.glob("*.py"):
        assert "import pytest" not in file.read_text(encoding="utf-8")
