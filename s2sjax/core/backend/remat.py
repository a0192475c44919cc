"""Rematerialization policies: what the forward pass saves for the backward pass, which recomputes the rest.

    none        saves everything that the backward pass needs
    products    saves the results of matrix products and convolutions: everything else is cheap
    layers      saves only the inputs of each layer and of each step of a recurrence

Policies change memory and time, not values or gradients (Chen et al. 2016).
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

policies = jax.checkpoint_policies


def _convolutions(primitive, *_, **__) -> bool:
    return primitive is lax.conv_general_dilated_p


# Products of two activations, such as attention scores, have a batch dimension. They grow with the squared length, so
# they are recomputed.
_PRODUCTS = policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, _convolutions)
POLICIES: dict[str, Callable[..., bool]] = {"products": _PRODUCTS, "layers": policies.nothing_saveable}


def remat(policy: str, function: Callable[..., Any], looped: bool = False) -> Callable[..., Any]:
    """Applies a rematerialization policy: only the values that `policy` selects are saved for the gradient.

    Arguments and closed-over values are always saved. `looped`: whether the function is the body of a loop, where the
    compiler cannot merge recomputed values with those of the forward pass.
    """
    if policy == "none":
        return function
    return jax.checkpoint(function, policy=POLICIES[policy], prevent_cse=not looped)
