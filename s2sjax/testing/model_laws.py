"""Laws of encoder-decoders: what training and search require of every model.

The models are small, with random parameters and a vocabulary of seven tokens. Letters: B batch, S source positions,
T target positions, K prefixes of a sentence, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import config, models
from s2sjax.core import losses, search
from s2sjax.core.search.beam_interface import as_beams
from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.models.encoder_decoder import capability
from s2sjax.models.named_models import equations
from s2sjax.testing.laws import LawError, Report, check, check_equal, check_finite, law, verify

Batch = tuple[np.ndarray, np.ndarray]
VOCABULARY = 7
"""the four special tokens and three words"""
SHARPNESS = 1.5
"""multiplier of the random parameters: an untrained model is nearly indifferent between tokens"""


def verify_model(model: config.ModelConfig, *, tolerance: float = 1e-5) -> Report:
    """Checks the laws of encoder-decoders for a model, given by its settings. Use small widths: it is compiled.

    Raises LawError at the first law that is broken. Warns of capabilities that the decoder seems to have and does not
    declare.

    tolerance: largest difference of numbers that should be equal, in float32
    """
    given = f"verify_model got {model!r:.60}"
    is_model = isinstance(model, config.ModelSettings | config.Pair)
    config.require(is_model, f"{given}: give the settings of an encoder-decoder, such as config.Luong(width=16)")
    return verify(LAWS, PureModel(model, sharp=SHARPNESS, tolerance=tolerance))


class PureModel:
    """A model as the pure functions that everything else uses, compiled, with random parameters."""

    def __init__(
        self, model: config.ModelConfig, vocabulary: int = VOCABULARY, sharp: float = 1.0, dtype: str = "float32",
        options: dict | None = None, tolerance: float = 1e-5,
    ):  # fmt: skip
        """sharp: multiplier of the parameters; options: of the compiler."""
        jit = partial(jax.jit, compiler_options=options)
        self.sharp, self.tolerance, self.vocabulary = sharp, tolerance, vocabulary
        self.module: Any = models.build(model, vocabulary, vocabulary, dtype)
        self.params = jax.tree.map(jnp.asarray, random_parameters(self.module, sharp))
        method = lambda name: partial(self.module.apply, method=name)
        self._gradient = jit(jax.grad(self.loss, has_aux=True))
        self._forward = jit(self.module.apply)
        self._search = jit(self._find, static_argnums=2, static_argnames=("width", "nbest", "penalty", "alpha"))
        self.encode = jit(method("encode"))
        self.init_state = jit(method("init_state"), static_argnums=2)
        self.step = jit(method("step"))

    def loss(self, params, source, target):
        """The mean cross-entropy of the real tokens, and the logits."""
        logits = self.module.apply(params, source, target)
        total, weight = losses.cross_entropy(logits, target, target != PAD)
        return total / jnp.maximum(weight, 1), logits

    # `gradient` and `logits` share one compiled program per shape.
    def gradient(self, source, target, scale: float = 1.0):
        """At the parameters times `scale`."""
        return self._gradient(jax.tree.map(lambda leaf: leaf * scale, self.params), source, target)[0]

    def logits(self, source, target) -> np.ndarray:
        """Teacher forced: [B, T, V]."""
        return np.asarray(self._gradient(self.params, source, target)[1])

    def forward(self, source, target) -> np.ndarray:
        """The logits, where no gradient is needed: quicker to compile."""
        return np.asarray(self._forward(self.params, source, target))

    def step_by_step(self, source, target) -> tuple[np.ndarray, list]:
        """The logits of `target` by T single steps [B, T, V], and the attention of each step."""
        memory = self.encode(self.params, source)
        state = self.init_state(self.params, memory, target.shape[1])
        previous, logits, attentions = np.full(len(source), self.module.start_token), [], []
        for t in range(target.shape[1]):
            state, now, attention = self.step(self.params, memory, state, previous)
            logits.append(now)
            attentions.append(attention)
            previous = target[:, t]
        return np.stack(logits, 1), attentions

    def decode(self, source, limit: int, **options) -> search.Hypotheses:
        """Beam search, or greedy where no width is given."""
        return jax.tree.map(np.asarray, self._search(self.params, source, limit, **options))

    def _find(self, params, source, limit, **options):
        apply = partial(self.module.apply, params)
        memory = apply(source, method="encode")
        state = apply(memory, limit, method="init_state")
        limits = jnp.full(len(source), limit)
        search_with = search.beam_search if options else search.greedy
        options["start"] = self.module.start_token
        return search_with(self.module.beams(params["params"], memory), state, limits, limit, **options)


def random_parameters(module: Any, sharp: float = 1.0) -> Any:
    """Random parameters, biases included; a model's own initial ones are slow to compile."""
    rng, ids = np.random.default_rng(0), np.ones((2, 3), np.int32)

    def draw(path, leaf):
        values, name = rng.normal(size=leaf.shape), path[-1].key
        if name.endswith(("bias", "shift", "scale", "length")):
            values = values / 10 + name.endswith(("scale", "length"))
        else:
            values = values / np.sqrt((*leaf.shape[-2:], 1)[0])
        return (values * sharp).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(module.init, jax.random.key(0), ids, ids))


def random_batch(rng: np.random.Generator, rows=4, source=5, target=5, vocabulary=VOCABULARY) -> Batch:
    """Random ids [rows, source], [rows, target]: lengths differ, <eos> ends each row, <pad> fills the rest."""

    def side(length):
        ids = rng.integers(4, vocabulary, (rows, length))
        ends = rng.integers(0, length, rows)
        position = np.arange(length)
        ids = np.where(position < ends[:, None], ids, PAD)
        ids[np.arange(rows), ends] = EOS
        return ids.astype(np.int32)

    return side(source), side(target)


def _real(target: np.ndarray) -> np.ndarray:
    return (target != PAD)[..., None]


# ---------------------------------------------------------------------------------------- laws


@law
def noise_is_only_in_training(model: PureModel) -> None:
    """Without `train`, no random numbers are used; with it, one key gives one result."""
    source, target = random_batch(np.random.default_rng(1))
    apply = partial(model.module.apply, model.params)
    try:
        jax.eval_shape(apply, source, target)
    except flax.errors.InvalidRngError as error:
        raise LawError("random numbers are drawn without `train`: call layers.dropout(self, x, rate, train)") from error
    traced = lambda train: jax.jit(lambda key: apply(source, target, train, rngs={"dropout": key}))
    one, other = map(jax.random.key, (0, 1))
    advice = "draw from self.make_rng('dropout'), and only if `train`"
    quiet = traced(False)
    check_equal(quiet(one), quiet(other), 0.0, "the logits depend on the key without `train`", advice)
    check_equal(traced(True)(one), traced(True)(one), 0.0, "the training logits differ for the same key", advice)


@law
def shapes_follow_the_contract(model: PureModel) -> None:
    """Memory and state have the batch in front, logits are float32 over the vocabulary, attention ignores padding."""
    source, target = random_batch(np.random.default_rng(2))
    rows = len(source)
    memory = model.encode(model.params, source)
    state = model.init_state(model.params, memory, target.shape[1])
    after, logits, attention = model.step(model.params, memory, state, np.full(rows, model.module.start_token))
    for name, tree in {"memory": memory, "state": state}.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            where = f"{name}{jax.tree_util.keystr(path)}"
            check(leaf.shape[:1] == (rows,), f"{where} is {leaf.shape}: its first axis must be the batch ({rows})")
    kinds = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), tree) for tree in (state, after)]
    check(
        kinds[0] == kinds[1], f"`step` returns the state {kinds[1]}, but `init_state` makes {kinds[0]}: make them agree"
    )
    shapes = {"step": (rows,), "__call__": target.shape}
    for name, found in {"step": logits, "__call__": model.logits(source, target)}.items():
        expected = (*shapes[name], model.vocabulary)
        right = found.shape == expected and found.dtype == np.float32
        seen = f"{found.dtype}{list(found.shape)}"
        check(right, f"the logits of `{name}` are {seen} instead of float32{list(expected)}: use `output.logits`")
    attends = model.module.attends
    returned = "no attention" if attention is None else "attention"
    advice = "set it to None if and only if `step` returns no attention"
    check((attention is not None) == attends, f"`step` returns {returned}, unlike `decoder_spec.states`: {advice}")
    if attention is not None:
        check(attention.shape == source.shape, f"attention is {attention.shape} instead of [B, S] {source.shape}")
        weights = np.asarray(attention)
        check(np.all(weights[source == PAD] == 0), "attention to padding is not 0: pass the mask to the attention")
        good = (weights >= 0).all() and ((weights.sum(1) > 0) & (weights.sum(1) < 1 + 1e-6)).all()
        check(good, f"the attention to a source adds up to {weights.sum(1)}: more than 0 and at most 1 is expected")


@law
def jit_changes_nothing(model: PureModel) -> None:
    """The compiled functions compute what they compute without jit."""
    source, target = random_batch(np.random.default_rng(1))
    eager = np.asarray(model.module.apply(model.params, source, target)) * _real(target)
    advice = "use jax.numpy and jax.random in place of numpy, random and values that are kept between calls"
    compiled = model.logits(source, target) * _real(target)
    check_equal(compiled, eager, model.tolerance, "the logits change with jit", advice)


@law
def later_tokens_are_invisible(model: PureModel) -> None:
    """The logits of a position do not depend on the tokens of the target from there on."""
    source, target = random_batch(np.random.default_rng(1))
    future = target.copy()
    future[:, 2:] = 4 + (target[:, 2:] + 1) % 3
    seen, expected = (model.logits(source, each)[:, :3] * _real(target)[:, :3] for each in (future, target))
    advice = "use a causal mask in `hidden`, whose inputs are the target shifted right"
    check_equal(seen, expected, model.tolerance, "the logits of positions 0 to 2 depend on tokens from 2 on", advice)


@law
def steps_equal_teacher_forcing(model: PureModel) -> None:
    """The logits of single steps are those of all positions at once."""
    source, target = random_batch(np.random.default_rng(1))
    forced = model.logits(source, target) * _real(target)
    check(np.abs(forced).max() > 0.1, "all logits are near 0, so nothing can be compared: do not scale them down")
    stepped = model.step_by_step(source, target)[0] * _real(target)
    advice = "compare `step` with `hidden`, and the state that `step` returns with what `hidden` sees at that position"
    check_equal(stepped, forced, model.tolerance, "the logits of `step` are not those of teacher forcing", advice)


@law
def empty_rows_are_finite(model: PureModel) -> None:
    """A source or a target of only padding gives finite logits and gradients, and a batch of nothing no gradient."""
    source, target = random_batch(np.random.default_rng(4))
    source[0], target[1] = PAD, PAD
    advice = "divide by jnp.maximum(count, 1), and mask before exp and log"
    check_finite(model.logits(source, target), "a logit beside an empty row", advice)
    check_finite(model.gradient(source, target), "the gradient beside an empty row", advice)
    nothing = model.gradient(np.zeros_like(source), np.zeros_like(target))
    zeros = jax.tree.map(np.zeros_like, nothing)
    check_equal(nothing, zeros, 0.0, "the gradient of a batch of only padding is not 0", advice)


def _check_gradients(model: PureModel, seen: Batch, expected: Batch, change: str, advice: str) -> None:
    # At the sharp weights the gradient is ill-conditioned: half a unit in the last place of each weight changes that of
    # transformer-pre-learned by 1e-4, so that no two orders of summation agree to 1e-5. At the plain weights it is
    # 5e-7, and the tolerance is tighter, since gradients are smaller there too.
    left, right = (model.gradient(*both, scale=1 / model.sharp) for both in (seen, expected))
    check(max(np.abs(leaf).max() for leaf in jax.tree.leaves(right)) > 0.01, "all gradients are near 0")
    check_equal(left, right, model.tolerance / 5, f"the gradient changes with {change}", advice)


@law
def rows_are_independent(model: PureModel) -> None:
    """The logits of a row do not depend on the other rows or their order, nor does the gradient on the order."""
    source, target = random_batch(np.random.default_rng(3))
    others = random_batch(np.random.default_rng(4))
    order, advice = [2, 0, 3, 1], "compute nothing over axis 0, the batch"
    logits = model.logits(source, target) * _real(target)
    moved = model.logits(source[order], target[order]) * _real(target)[order]
    check_equal(moved, logits[order], model.tolerance, "the logits change with the order of the rows", advice)
    for both in (source, target), others:
        both[0][3] = both[1][3] = PAD  # beside an empty row too
    beside = [np.concatenate([side[:1], other[1:]]) for side, other in zip((source, target), others)]
    seen = model.logits(*beside)[0] * _real(target)[0]
    check_equal(seen, logits[0], model.tolerance, "the logits of a row depend on the rows beside it", advice)
    _check_gradients(model, (source[order], target[order]), (source, target), "the order of the rows", advice)


@law
def padding_is_invisible(model: PureModel) -> None:
    """Padding columns and padding rows change neither logits nor gradients."""
    source, target = random_batch(np.random.default_rng(3))
    longer = np.pad(source, ((0, 1), (0, 3))), np.pad(target, ((0, 1), (0, 3)))
    advice = "use the mask: of the source in attention, means and recurrence, of the target in `hidden`"
    logits, length = model.logits(source, target) * _real(target), target.shape[1]
    padded = model.logits(*longer)[:4, :length] * _real(target)
    try:
        check_equal(padded, logits, model.tolerance, "the logits change with padding", advice)
    except LawError:  # which side is it?
        only = model.forward(np.pad(source, ((0, 0), (0, 3))), target) * _real(target)
        check_equal(only, logits, model.tolerance, "the logits change with three columns of source padding", advice)
        only = model.forward(source, np.pad(target, ((0, 0), (0, 3))))[:, :length] * _real(target)
        check_equal(only, logits, model.tolerance, "the logits change with three columns of target padding", advice)
        raise
    _check_gradients(model, longer, (source, target), "padding", advice)


@law
def gradients_reach_every_parameter(model: PureModel) -> None:
    """The gradient of the loss is finite, and not zero for any parameter."""
    gradient = model.gradient(*random_batch(np.random.default_rng(1)))
    check_finite(gradient, "the gradient", "see `s2sjax train FILE --debug`, which names the layer of the first NaN")
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient["params"]):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        check(np.any(leaf != 0), f"no gradient reaches {name}: use it for the logits, or do not declare it")


METHODS = {
    "has_beam_step": ("step_beams", "prepare_beams", "tile", "reorder"),
    "has_attention_heads": ("attention_heads",),
    "has_self_attention": ("self_attention_heads",),
}
"""the methods of each capability of a decoder; a decoder that defines the first one seems to have it"""


@law
def capabilities_are_declared(model: PureModel) -> list[str]:
    """A decoder has the methods of the capabilities that it declares, and `parallel` ones have no scan over time."""
    decoder, hints = model.module.decoder_type, []
    name = decoder.__name__
    for capable, methods in METHODS.items():
        missing = [method for method in methods if not hasattr(decoder, method)]
        if capability(decoder, capable):
            check(not missing, f"{name} declares {capable}, but does not define {', '.join(missing)}: define it")
        elif methods[0] not in missing:
            hints.append(f"{name} defines {methods[0]}, which is not used: declare {capable}: ClassVar[bool] = True")
    length = min(13, model.module.longest_target or 13)  # few models have this number of layers
    ids = np.ones((1, length), np.int32)
    memory = jax.eval_shape(partial(model.module.apply, method="encode"), model.params, ids)
    hidden = partial(model.module.apply, method="hidden")
    program = jax.make_jaxpr(hidden)(model.params, memory, ids, ids != PAD).jaxpr
    scans = any(equation.params.get("length") == length for equation in equations(program))
    if capability(decoder, "parallel"):
        # An sLSTM among the mixers is a scan inside `hidden`, which still computes all positions from all inputs.
        sequential = isinstance(config.encoder_and_decoder(model.module.config)[1], config.Hybrid)
        check(
            not scans or sequential,
            f"{name} declares parallel, but `hidden` scans over the positions: set parallel to False",
        )
    elif not scans:
        hints.append(f"`hidden` of {name} has no scan over the positions: declare parallel: ClassVar[bool] = True")
    return hints


@law
def attention_is_the_mean_of_its_heads(model: PureModel) -> None:
    """With `has_attention_heads`, the attention of a step is the mean over the layers and heads at its position."""
    if not model.module.has_attention_heads:
        return
    source, target = random_batch(np.random.default_rng(12))
    heads = np.asarray(model.module.apply(model.params, source, target, method="attention_heads"))
    expected = (len(source), target.shape[1], source.shape[1])
    good = heads.ndim == 5 and (heads.shape[0], *heads.shape[3:]) == expected
    check(good, f"`attention_heads` returns {heads.shape} instead of [B, layers, heads, T, S]")
    means = heads.mean((1, 2)) * _real(target)
    steps = np.stack(model.step_by_step(source, target)[1], 1) * _real(target)
    advice = "compare `attention_heads` with the attention that `step` returns"
    check_equal(steps, means, model.tolerance, "the attention of a step is not the mean of its heads", advice)


@law
def self_attention_is_a_distribution(model: PureModel) -> None:
    """Weights of self-attention sum to one over the positions that are seen: no padding, nothing later in a decoder.

    Positions out of reach, such as those outside of a window, may have weight 0.
    """
    source, target = random_batch(np.random.default_rng(13))
    longer = np.pad(source, ((0, 0), (0, 3))), np.pad(target, ((0, 0), (0, 3)))
    for side, read in (("encoder", source), ("decoder", target)):
        heads = partial(model.module.apply, model.params, side, method="self_attention_heads")
        found, padded = heads(source, target), heads(*longer)
        real, length = (read != PAD)[:, None, :, None], read.shape[1]
        seen = np.tri(length, dtype=bool)[None, None] if side == "decoder" else (read != PAD)[:, None, None]
        for layer, weights in found.items():
            what, weights = f"the self-attention of layer {layer} of the {side}", np.asarray(weights)
            good = weights.ndim == 4 and (len(weights), *weights.shape[2:]) == (len(read), length, length)
            check(good, f"{what} has shape {weights.shape} instead of [B, heads, {length}, {length}]")
            advice = "use the mask of the source, and a causal mask in the decoder"
            check_equal(np.where(seen, 0, weights) * real, 0 * weights, 0, f"{what} reaches unseen positions", advice)
            sums = weights.sum(-1, keepdims=True) * real
            check_equal(
                sums, np.broadcast_to(1.0 * real, sums.shape), model.tolerance, f"{what} does not sum to 1", advice
            )
            cut = np.asarray(padded[layer])[:, :, :length, :length]
            check_equal(cut * real, weights * real, model.tolerance, f"{what} changes with padding", advice)


@law
def beams_equal_steps(model: PureModel) -> None:
    """With `has_beam_step`, K prefixes that advance together have the logits that they have one by one."""
    if not capability(model.module.decoder_type, "has_beam_step"):
        return
    source, rng, width = random_batch(np.random.default_rng(2))[0], np.random.default_rng(3), 3
    tokens = rng.integers(4, model.vocabulary, (3, len(source), width))
    origins = rng.integers(0, width, (3, len(source), width))

    def run(own: bool):
        memory = model.module.apply(model.params, source, method="encode")
        step = partial(model.module.apply, model.params, memory, method="step")
        beams = model.module.beams(model.params["params"], memory) if own else as_beams(step)
        start = model.module.apply(model.params, memory, len(tokens), method="init_state")
        state, found = beams.tile(start, width), []
        for token, origin in zip(tokens, origins):
            state, *logits_and_attention = beams.step(state, token)
            found.append(logits_and_attention)
            state = beams.reorder(state, origin)
        return found

    seen, expected = (jax.jit(run, static_argnums=0)(own) for own in (True, False))
    advice = "compare `step_beams` with `step`, and `reorder` with reordering every leaf of the state"
    check_equal(seen, expected, model.tolerance, "the results of `step_beams` are not those of `step`", advice)


BEAM: dict[str, Any] = dict(width=3, nbest=3, penalty="gnmt", alpha=0.8)


@law
def search_reports_the_score_of_teacher_forcing(model: PureModel) -> None:
    """The score that beam search reports for a sentence is the one of teacher forcing."""
    source = random_batch(np.random.default_rng(5))[0]
    found = model.decode(source, 5, **BEAM)
    advice = "check that the state does not depend on `steps`, and that `tile` and `reorder` move all of it"
    for place in range(BEAM["nbest"]):
        tokens = found.tokens[:, place]
        lengths = (tokens != PAD).sum(-1)
        log_p = losses.log_likelihood(jnp.asarray(model.logits(source, tokens)), tokens, tokens != PAD)
        what = f"{{}} of hypothesis {place} is not that of teacher forcing"
        check_equal(found.lengths[:, place], lengths, 0, what.format("the length"), advice)
        for name, seen, expected in (
            ("log p", found.log_probs, log_p),
            ("the score", found.scores, log_p / ((5 + lengths) / 6) ** BEAM["alpha"]),
        ):
            check_equal(seen[:, place], expected, model.tolerance, what.format(name), advice)


@law
def decoding_is_independent(model: PureModel) -> None:
    """What beam search finds for a sentence does not depend on padding or on the other sentences."""
    source = random_batch(np.random.default_rng(5))[0]
    together = model.decode(source, 5, **BEAM).tokens
    others = random_batch(np.random.default_rng(6), rows=2, source=9)[0]
    moved = model.decode(np.concatenate([others, np.pad(source[[3, 1]], ((0, 0), (0, 4)))]), 5, **BEAM).tokens
    advice = "check that `encode` and `step` use the mask of the source, and compute nothing over the batch"
    check_equal(moved[2:], together[[3, 1]], 0, "the tokens change with padding and neighbours", advice)


LAWS = (
    noise_is_only_in_training,
    shapes_follow_the_contract,
    jit_changes_nothing,
    later_tokens_are_invisible,
    steps_equal_teacher_forcing,
    empty_rows_are_finite,
    rows_are_independent,
    padding_is_invisible,
    gradients_reach_every_parameter,
    capabilities_are_declared,
    attention_is_the_mean_of_its_heads,
    self_attention_is_a_distribution,
    beams_equal_steps,
    search_reports_the_score_of_teacher_forcing,
    decoding_is_independent,
)
"""ordered so that the first broken law is the most informative"""
