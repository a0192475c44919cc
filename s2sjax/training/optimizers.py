"""Learning rate schedules, and the optimizer that uses them.

t counts updates from 1, W is the number of warm-up steps, N the length of the schedule. Every schedule first rises
as t / W to its peak.

A custom schedule is a function, named by its import path, that returns a function from steps (counted from 0) to rates.
It is called with train.schedule_args and with those of peak, warmup, steps and final_fraction that it takes.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from s2sjax import config
from s2sjax.config.training import OPTIMIZERS, SCHEDULES
from s2sjax.errors import UserError
from s2sjax.training import fine_tuning
from s2sjax.training.mesh import path_of

Tree = Any


def constant(peak: float, warmup: int) -> optax.Schedule:
    """peak * min(t / W, 1): `constant(1.0, 4)` gives 0.25, 0.5, 0.75, 1, 1, ... at steps 0, 1, 2, 3, 4."""
    return optax.linear_schedule(peak / warmup, peak, warmup - 1) if warmup > 1 else optax.constant_schedule(peak)


def cosine(peak: float, warmup: int, steps: int, final_fraction: float = 0.0) -> optax.Schedule:
    """Warm-up, then half a cosine from peak to final_fraction * peak at step N (Loshchilov and Hutter 2017)."""
    decay = optax.cosine_decay_schedule(peak, max(steps - warmup, 1), alpha=final_fraction)
    return optax.join_schedules([constant(peak, warmup), decay], [warmup])


def linear(peak: float, warmup: int, steps: int, final_fraction: float = 0.0) -> optax.Schedule:
    """Warm-up, then linear decay from peak to final_fraction * peak at step N."""
    return wsd(peak, warmup, steps, final_fraction, decay=1.0)


def wsd(peak: float, warmup: int, steps: int, final_fraction: float = 0.0, decay: float = 0.2) -> optax.Schedule:
    """Warm-up, stable, decay (Hu et al. 2024): linear decay to final_fraction * peak over the last decay * N steps.

    `wsd(1.0, 0, 10)` gives 1 at steps 0 to 8, 0.5 at step 9 and 0 from step 10 on.
    """
    if not 0 < decay <= 1:
        raise UserError(f"train.schedule_args: decay is {decay}: it must be above 0 and at most 1")
    falls = max(min(round(decay * steps), steps - warmup), 1)
    end = optax.linear_schedule(peak, final_fraction * peak, falls)
    first = max(steps - falls, warmup)
    return optax.join_schedules([constant(peak, warmup), end], [first])


def inverse_sqrt(peak: float, warmup: int) -> optax.Schedule:
    """peak * min(t / W, sqrt(W / t)) (Vaswani et al. 2017, section 5.3, scaled so that the peak is `peak`)."""
    decay = lambda since: peak * jnp.sqrt(max(warmup, 1) / (warmup + since + 1))
    return optax.join_schedules([constant(peak, warmup), decay], [warmup])


FROM_SETTINGS = {
    "peak": "train.learning_rate", "warmup": "train.warmup_steps", "steps": "train.schedule_steps",
    "final_fraction": "train.final_fraction",
}  # fmt: skip
"""arguments of a schedule that have their own setting"""


def schedule(train: config.Train) -> optax.Schedule:
    """The schedule named by train.schedule."""
    make, given = _named(train, "schedule", FROM_SETTINGS)
    settings = {"peak": train.learning_rate, "warmup": train.warmup_steps, "steps": train.schedule_steps or train.steps,
                "final_fraction": train.final_fraction}  # fmt: skip
    offered = {name: value for name, value in settings.items() if name in _parameters(make)}
    with _refusing(train, "schedule"):
        rate = make(**offered, **given)
        jax.eval_shape(rate, jnp.int32(0))
    return rate


def has_length(train: config.Train) -> bool:
    """Whether the schedule depends on the number of steps."""
    return "steps" in _parameters(_function(train, "schedule"))


def rate_at(train: config.Train, step: int) -> float:
    """The learning rate at a step."""
    return float(schedule(train)(jnp.int32(step)))


def describe_change(before: int | None, given: config.Train, now: config.Train, step: int) -> list[str]:
    """Describes, in lines of text, how continuing a run after `step` changes its learning rate.

    before: the former train.schedule_steps, None for a new run. given: the settings of the user. now: those in use.
    """
    if before is None or not has_length(now):
        return []
    rate = lambda steps, at: f"{rate_at(config.replace(now, schedule_steps=steps), at):.3g}"
    if now.schedule_steps != before:
        return [
            f"train.schedule_steps changes from {before} to {now.schedule_steps}: the learning rate at step {step} "
            f"goes from {rate(before, step)} to {rate(now.schedule_steps, step)}"
        ]
    if given.schedule_steps or now.steps == before or step >= now.steps:
        return []
    nothing = ", so nothing is learned" if rate(before, step) == rate(before, now.steps) == "0" else ""
    return [
        f"train.steps is {now.steps}, but the schedule of this run has {before} steps: the learning rate is "
        f"{rate(before, step)} at step {step} and {rate(before, now.steps)} at step {now.steps}{nothing}; "
        f"to change it set train.schedule_steps, for example to {now.steps}"
    ]


# ------------------------------------------------------------------------------------ optimizer

OWN_SETTINGS = {"learning_rate": "train.learning_rate", "weight_decay": "train.weight_decay"} | {
    name: "train.weight_decay" for name in ("mask", "weight_decay_mask", "weight_decay_rate", "adam_weight_decay")
}
"""arguments of an optimizer that have their own setting"""
ADAM = {"b1": 0.9, "b2": 0.98, "eps": 1e-9}
"""defaults for Adam (Vaswani et al. 2017, section 5.3)"""


def optimizer(train: config.Train) -> optax.GradientTransformation:
    """The optimizer named by train.optimizer, with gradient clipping and decoupled weight decay of matrices.

    Every optimizer decays as AdamW does (Loshchilov and Hutter 2019): update - rate * weight_decay * matrix.
    train.frozen and train.layer_decay are in fine_tuning.py.
    """
    rate = schedule(train)
    parts = [_named_optimizer(train, rate)]
    if train.clip_norm > 0:
        parts.insert(0, optax.clip_by_global_norm(train.clip_norm))
    if train.weight_decay > 0:
        parts.append(optax.add_decayed_weights(lambda count: -train.weight_decay * rate(count), matrices))
    found = optax.chain(*parts) if len(parts) > 1 else parts[0]
    if train.frozen:
        found = fine_tuning.without_frozen(found, train.frozen)
    return found if train.layer_decay == 1 else optax.chain(found, fine_tuning.scale_by_layer(train.layer_decay))


def _named_optimizer(train: config.Train, rate: optax.Schedule) -> optax.GradientTransformation:
    make, given = _named(train, "optimizer", OWN_SETTINGS, ("b1", "b2", "eps"))
    takes = _parameters(make)
    if train.optimizer in ("adam", "adamw"):
        given = ADAM | given
    if "weight_decay" in takes:
        given["weight_decay"] = 0.0  # `optimizer` adds the decay
    if train.optimizer == "muon":
        given.setdefault("muon_weight_dimension_numbers", muon_matrices)
    with _refusing(train, "optimizer"):
        found = make(**({"learning_rate": rate} if "learning_rate" in takes else {}), **given)
        if train.optimizer_args or train.optimizer not in OPTIMIZERS:
            _try(found)
    return found


def _try(optimizer: optax.GradientTransformation) -> None:
    """Traces one update of a tiny model, to find wrong arguments before any work is done."""
    params = {"layer": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}}
    jax.eval_shape(lambda params: optimizer.update(params, optimizer.init(params), params), params)


def matrices(params: Tree) -> Tree:
    """True for matrices and convolutions, False for biases, norms and other vectors."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: _dimensions(path, leaf) >= 2, params)


def muon_matrices(params: Tree) -> Tree:
    """The matrix axes of each parameter for Muon, `reduction_axis` and `output_axis`, or None to use Adam.

    Adam updates vectors, embeddings, positions and the output layer (Jordan et al. 2024). A convolution [k, in, out] is
    one matrix [k * in, out]; stacked layers [depth, in, out] are `depth` matrices. The heads of a recurrence are
    matrices, too; its short convolution is none, since it has a kernel for each feature.
    """

    def numbers(path, leaf):
        dimensions, name = _dimensions(path, leaf), path_of(path)
        if dimensions < 2 or re.search(TABLES, name):
            return None
        if re.search(OF_RECURRENCE, name):
            dimensions = 2
        first = leaf.ndim - dimensions
        return optax.contrib.MuonDimensionNumbers(tuple(range(first, leaf.ndim - 1)), (leaf.ndim - 1,))

    return jax.tree_util.tree_map_with_path(numbers, params)


OF_RECURRENCE = "(^|/)(mixer|backward)/"
"""paths of the parameters of s2sjax/core/mixers"""
TABLES = f"(^|/)(table|relative|queries)$|^decoder/output/|{OF_RECURRENCE}.*convolution$"
"""paths of two-dimensional parameters whose rows are looked up or belong to words, or whose columns stand alone"""


def _dimensions(path: Any, leaf: Any) -> int:
    """The number of dimensions of a parameter, or of one layer of a stack (`layers.Stacked`)."""
    return leaf.ndim - bool(fine_tuning.STACKED.search(path_of(path)))


# -------------------------------------------------------------- functions named by their import paths


def _named(
    train: config.Train, field: str, reserved: Mapping[str, str], also: Sequence[str] = ()
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that train.FIELD names, and the arguments that train.FIELD_args and the settings `also` give it.

    Raises UserError for an argument that the function does not take, or that is missing. reserved: {argument: the
    setting to use instead}.
    """
    make, path = _function(train, field), getattr(train, field)
    given = {name: _value(text) for name, _, text in (each.partition("=") for each in getattr(train, f"{field}_args"))}
    named = dict.fromkeys(given, f"train.{field}_args")
    for name in also:
        if getattr(train, name) is not None:
            given[name], named[name] = getattr(train, name), f"train.{name}"
    takes = _parameters(make)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values()):
        return make, given
    for name, setting in named.items():
        if name in reserved:
            raise UserError(f"{setting} has {name}: set {reserved[name]} instead")
        if name not in takes:
            free = ", ".join(other for other in takes if other not in reserved) or "no other arguments"
            raise UserError(f"{setting}: {path} does not take {name}: it takes {free}")
    for name, parameter in takes.items():
        if parameter.default is inspect.Parameter.empty and name not in named and name not in reserved:
            raise UserError(f"train.{field} {path} requires {name}: add {name}=VALUE to train.{field}_args")
    return make, given


def _function(train: config.Train, field: str) -> Callable[..., Any]:
    """Imports the function that train.FIELD names: a row of a table, or a path such as "optax.contrib.muon"."""
    path = getattr(train, field)
    path = {"schedule": SCHEDULES, "optimizer": OPTIMIZERS}[field].get(path, path)
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a user's module may raise anything when it is imported
        why = f"train.{field} {path} cannot be imported ({' '.join(str(error).split())})"
        raise UserError(f"{why}: correct it, or install its package") from None
    if not callable(found):
        raise UserError(f"train.{field} {path} is not a function: name another")
    return found


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _value(text: str) -> Any:
    """The value of an argument: "0.9" -> 0.9, "True" -> True, and a name as it is, such as "bfloat16"."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@contextlib.contextmanager
def _refusing(train: config.Train, field: str) -> Iterator[None]:
    """Reports an error of the function that train.FIELD names as one of its arguments."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, KeyError, AssertionError) as error:
        arguments = getattr(train, f"{field}_args")
        given = f" with {' '.join(arguments)}" if arguments else ""
        named = f"train.{field} {getattr(train, field)}{given}"
        raise UserError(f"{named} does not work ({' '.join(str(error).split())}): correct it") from None
