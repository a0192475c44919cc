"""Low-rank adapters (`Transformer.adapter_rank`): which parameters they leave unchanged, and their scales."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

EVERYTHING_ELSE = r"^(?!.*/adapter_[ab]$)"
"""train.frozen of a model with low-rank adapters that has no new head: a language model"""
ALL_BUT_ADAPTERS = r"^(?!.*/adapter_[ab]$).*(encoder|decoder|embedding|frontend|blocks|positions|final_norm)"
"""train.frozen of a model with low-rank adapters, if it is not set: a new head, such as a classifier's, is trained"""


def freeze_around_adapters(experiment: Any) -> Any:
    """The experiment with train.frozen set for its low-rank adapters, if it has any and train.frozen is empty."""
    if experiment.train.frozen or not adapter_scales(experiment.model):
        return experiment
    return replace(experiment, train=replace(experiment.train, frozen=(_frozen(experiment),)))


def _frozen(experiment: Any) -> str:
    """The pattern of the parameters that low-rank adapters leave unchanged."""
    return getattr(experiment.model, "frozen_by_adapters", ALL_BUT_ADAPTERS)


def adapter_scales(settings: Any) -> list[float]:
    """The scale of each part of a model that has low-rank adapters, in the order of its settings."""
    if not is_dataclass(settings):
        return []
    own = [float(settings.adapter_scale)] if getattr(settings, "adapter_rank", 0) else []  # type: ignore[union-attr]
    nested = (getattr(settings, field.name) for field in fields(settings))
    return own + [scale for value in nested for scale in adapter_scales(value)]


def freezes_all_others(experiment: Any) -> bool:
    """Whether only low-rank adapters, and a new head, are trained."""
    return experiment.train.frozen == (_frozen(experiment),) and bool(adapter_scales(experiment.model))
