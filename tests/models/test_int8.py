"""Every model with its matrices in int8."""

import jax
import jax.numpy as jnp
import numpy as np
import zoo

from s2sjax import models
from s2sjax.core import device, precision

IDS = np.array([[4, 5, 6, 2], [6, 4, 2, 0]], np.int32)
FAMILIES = {type(model): name for name, model in reversed(zoo.MODELS.items())}.values()
CHECKED = ("transformer-post", "luong", "dense-dense")


@zoo.each(sorted(FAMILIES), quick=(), rare=set(FAMILIES) - set(CHECKED))
def test_products_in_int8_are_close_to_those_of_floats(name, monkeypatch):
    """Teacher forced and step by step: rounding the inputs of each product moves the logits by little."""
    module = models.build(zoo.without_dropout(zoo.MODELS[name]), 8, 8)
    params = jax.jit(module.init)(jax.random.key(0), IDS, IDS)["params"]

    def logits(params):
        used = {"params": precision.restored(params)}
        memory = module.apply(used, IDS, method="encode")
        state = module.apply(used, memory, 4, method="start")
        return module.apply(used, IDS, IDS), module.apply(used, memory, state, jnp.ones(2, int), method="step")[1]

    found = {}
    for multiplies in (True, False):
        monkeypatch.setattr(device, "multiplies_int8", lambda multiplies=multiplies: multiplies)
        found[multiplies] = jax.jit(lambda params: logits(params))(precision.stored(params, "int8"))
    for rounded, exact in zip(found[True], found[False]):
        real = (IDS != 0)[..., None] if rounded.ndim == 3 else True
        difference = np.abs(np.where(real, rounded - exact, 0)).max()
        # All matrices of ConvS2S have a weight norm: they are restored before.
        assert difference < 0.05 * np.abs(exact).max() and (difference > 0) == (name != "convs2s")
