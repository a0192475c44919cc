"""What a forward pass saves for the backward one; the rest is computed again (Chen et al. 2016).

    none        everything that the backward pass needs
    products    the results of matrix products and convolutions: what lies between them is cheap
    layers      what enters each layer and each step of a recurrence, and nothing of what is inside

The values are the same, so the gradients are: only memory and time change.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

policies = jax.checkpoint_policies


def _convolutions(primitive, *_, **__) -> bool:
    return primitive is lax.conv_general_dilated_p


# A product of two activations has a batch dimension, as the scores of attention have: those grow with the square of the
# length, and are computed again.
_PRODUCTS = policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, _convolutions)
POLICIES: dict[str, Callable[..., bool]] = {"products": _PRODUCTS, "layers": policies.nothing_saveable}


def remat(policy: str, function: Callable[..., Any], looped: bool = False) -> Callable[..., Any]:
    """The same function, of whose inner values only what `policy` says is saved for its gradient.

    Its arguments, and what it closes over, are always saved. `looped`: it is the body of a loop, which alone hinders
    the compiler from finding the values of the forward pass equal to those computed again, and keeping them.
    """
    if policy == "none":
        return function
    return jax.checkpoint(function, policy=POLICIES[policy], prevent_cse=not looped)
