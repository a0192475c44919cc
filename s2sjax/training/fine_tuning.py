"""Parameters that do not change (train.frozen), and learning rates that decay from layer to layer (train.layer_decay).

A tree without its frozen parameters has None in their places, which JAX and Optax treat as nothing: they have no
gradient, no moments, no weight decay, and no part in the norm of the gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from s2sjax.core.traced_numbers import Scalar
from s2sjax.errors import UserError
from s2sjax.training.mesh import path_of

Tree = Any
SHOWN = 6
"""maximum number of parameters that an error names"""


# ------------------------------------------------------------------------------------ frozen


def frozen_paths(params: Tree, patterns: Sequence[str]) -> set[str]:
    """The paths of the parameters that a pattern of train.frozen matches.

    Raises UserError if a pattern matches none, or if all parameters are frozen.
    """
    paths = _paths(params)
    found: set[str] = set()
    for pattern in patterns:
        matched = {path for path in paths if re.search(pattern, path)}
        if not matched:
            raise UserError(f"train.frozen {pattern!r} matches no parameter: correct it; there are {_some(paths)}")
        found |= matched
    if found and len(found) == len(paths):
        raise UserError("train.frozen matches all parameters, so that nothing is learned: leave out a pattern")
    return found


def split(params: Tree, patterns: Sequence[str]) -> tuple[Tree, Tree]:
    """Splits parameters into those that are trained and those that are frozen, each with None for the others."""
    if not patterns:
        return params, None
    return _split(params, frozen_paths(params, patterns))


def join(trained: Tree, frozen: Tree) -> Tree:
    """The inverse of `split`."""
    if frozen is None:
        return trained
    return jax.tree.map(lambda one, other: other if one is None else one, trained, frozen, is_leaf=lambda x: x is None)


def _split(tree: Tree, frozen: set[str]) -> tuple[Tree, Tree]:
    part = lambda wanted: jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if (path_of(path) in frozen) == wanted else None, tree
    )
    return part(False), part(True)


def without_frozen(optimizer: optax.GradientTransformation, patterns: Sequence[str]) -> optax.GradientTransformation:
    """The optimizer of the parameters that no pattern matches. It takes all parameters, or those without the frozen.

    The updates of frozen parameters are None if their gradients are, and 0 otherwise.
    """

    inner = optax.with_extra_args_support(optimizer)

    def init(params: Tree) -> Tree:
        return inner.init(split(params, patterns)[0])

    def update(updates: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        frozen = frozen_paths(params, patterns)
        own, others = _split(updates, frozen)
        own, state = inner.update(own, state, _split(params, frozen)[0], **extra)
        return join(own, jax.tree.map(jnp.zeros_like, others)), state

    return optax.GradientTransformationExtraArgs(init, update)


# ------------------------------------------------------------------------------------ layers

TARGET = "target_embedding"
INPUTS = re.compile(r"(^|/)((source_|target_)?(embedding|frontend)|positions|embedding_norm|enter)(/|$)")
"""parameters below the lowest layer: embeddings, their positions and norm, and what reads frames or pictures"""
STACKED = re.compile(r"(^|/)blocks/stack/")
"""parameters of all blocks, [layers, ...] (`layers.Stacked`)"""
LOWEST = re.compile(r"^decoder/(first|lowest|cell)/")
UPPER = re.compile(r"(?:^|/)upper(?:/forward|/backward)?_(\d+)/")
"""layers above one that is not numbered"""
NUMBERED = re.compile(
    r"(?:^|/)(?:forward|backward|layer|stack|blocks|attentions|inner|joins|stack/convolution)_(\d+)[/_]"
)


class Place(NamedTuple):
    """The place of a parameter in its stack of layers."""

    side: str
    """encoder or decoder, whose layers are counted separately"""
    layer: int | None
    """0 for the lowest layer, -1 for what is below it; None for what is above all layers, which does not decay"""
    layers: int
    """number of layers that the parameter has: 1, or those of a stack"""


def place_of(path: str, shape: tuple[int, ...]) -> Place:
    """The place of a parameter: decoder/upper_0/state is in layer 1 of the decoder, above decoder/first/state."""
    side = "decoder" if path.startswith(("decoder/", f"{TARGET}/")) else "encoder"
    if INPUTS.search(path):
        return Place(side, -1, 1)
    if STACKED.search(path):
        return Place(side, 0, shape[0])
    if found := UPPER.search(path):
        return Place(side, int(found[1]) + 1, 1)
    if found := NUMBERED.search(path):
        return Place(side, int(found[1]), 1)
    return Place(side, 0 if LOWEST.search(path) else None, 1)


def distances(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int | list[int]]:
    """How many layers each parameter is below the top of its stack, by path; of a stack, a list for its layers.

        encoder/stack/forward_1    0        decoder/blocks/stack/...    [1, 0]
        encoder/stack/forward_0    1        target_embedding/table      2
        source_embedding/table     2        decoder/output/kernel       0

    An embedding of both sides is below the side with more layers. Raises UserError for a model without known layers.
    """
    places = {path: place_of(path, shape) for path, shape in shapes.items()}
    depth = {"encoder": 0, "decoder": 0}
    for side, layer, layers in places.values():
        if layer is not None:
            depth[side] = max(depth[side], layer + layers)
    if not any(depth.values()):
        raise UserError(
            "train.layer_decay requires layers with known names, such as blocks/stack or forward_0, and this model has "
            f"{_some(list(shapes))}: set it to 1"
        )
    shared = not any(path.startswith(("source_embedding/", "source_frontend/")) for path in shapes)
    found: dict[str, int | list[int]] = {}
    for path, (side, layer, layers) in places.items():
        top = max(depth.values()) if shared and path.startswith(f"{TARGET}/") else depth[side]
        below = [top - 1 - (layer + each) for each in range(layers)] if layer is not None else [0]
        found[path] = below if STACKED.search(path) and layer != -1 else below[0]
    return found


def scale_by_layer(decay: Scalar) -> optax.GradientTransformation:
    """Multiplies the update of a layer by decay^n, where n layers of its stack are above it.

    Lower layers of a pre-trained model are more general, and learn more slowly here: the discriminative fine-tuning of
    Howard and Ruder 2018 (ULMFiT), for layers of Transformers by Clark et al. 2020 (ELECTRA). See `distances`.
    """

    def init(params: Tree) -> optax.EmptyState:
        distances(_shapes(params))
        return optax.EmptyState()

    def update(updates: Tree, state: optax.EmptyState, params: Tree = None) -> tuple[Tree, optax.EmptyState]:
        below = distances(_shapes(params))
        powers = list(_powers(decay, max(max(n) if isinstance(n, list) else n for n in below.values())))

        def scaled(path: Any, update: jax.Array) -> jax.Array:
            n = below[path_of(path)]
            if not isinstance(n, list):
                return update * jnp.asarray(powers[n], update.dtype) if n else update
            factors = jnp.stack([jnp.asarray(powers[each], update.dtype) for each in n])
            return update * jax.lax.expand_dims(factors, range(1, update.ndim))

        return jax.tree_util.tree_map_with_path(scaled, updates), state

    return optax.GradientTransformation(init, update)


def _powers(decay: Scalar, most: int) -> Iterator[Scalar]:
    """1, decay, decay^2, ... up to decay^most."""
    power: Scalar = 1.0
    for _ in range(most + 1):
        yield power
        power = power * decay


# ------------------------------------------------------------------------------------ paths


def _shapes(params: Tree) -> dict[str, tuple[int, ...]]:
    return {path_of(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def _paths(params: Tree) -> list[str]:
    return list(_shapes(params))


def _some(paths: Sequence[str]) -> str:
    """Names a few parameters, spread over all of them, as neighbours have similar names."""
    rest = len(paths) - SHOWN
    chosen = [paths[i * len(paths) // SHOWN] for i in range(SHOWN)] if rest > 0 else list(paths)
    return ", ".join(chosen) + (f" and {rest} more" if rest > 0 else "")
