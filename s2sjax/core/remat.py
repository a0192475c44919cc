"""What a forward pass saves for the backward one; the rest is computed again (Chen et al. 2016).

    none        everything that the backward pass needs
    products    the results of matrix products and convolutions: everything else is cheap
    layers      only the inputs of each layer and of each step of a recurrence

Values and gradients are the same; only memory and time change.
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
    """The function with a rematerialization policy: only the values that `policy` selects are saved for the gradient.

    Its arguments and closed-over values are always saved. `looped`: the function is the body of a loop, so the compiler
    cannot merge the recomputed values with those of the forward pass anyway.
    """
    if policy == "none":
        return function
    return jax.checkpoint(function, policy=POLICIES[policy], prevent_cse=not looped)
