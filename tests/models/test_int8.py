"""Every model with its matrices in int8."""

import jax
import jax.numpy as jnp
import numpy as np
import zoo

from s2sjax import models
from s2sjax.core.backend import device, quantization

IDS = np.array([[4, 5, 6, 2], [6, 4, 2, 0]], np.int32)
CHECKED = ("luong", "dense-dense")


@zoo.each(sorted(zoo.FAMILIES), quick=(), rare=set(zoo.FAMILIES) - set(CHECKED))
def test_products_in_int8_are_close_to_those_of_floats(name, monkeypatch):
    """Teacher forced and step by step: rounding moves the logits by little.

    Against the float32 parameters; and against the restored int8 ones, which do not round the inputs of a product.
    """
    module = models.build(zoo.without_dropout(zoo.MODELS[name]), 8, 8)
    params = jax.jit(module.init)(jax.random.key(0), IDS, IDS)["params"]

    def logits(params):
        used = {"params": quantization.restored(params)}
        memory = module.apply(used, IDS, method="encode")
        state = module.apply(used, memory, 4, method="init_state")
        return module.apply(used, IDS, IDS), module.apply(used, memory, state, jnp.ones(2, int), method="step")[1]

    def found(params, multiplies: bool):
        monkeypatch.setattr(device, "multiplies_int8", lambda: multiplies)
        return jax.jit(lambda params: logits(params))(params)

    small = quantization.stored(params, "int8")
    plain, restored, multiplied = found(params, False), found(small, False), found(small, True)
    # All matrices of ConvS2S have a weight norm: they are restored before they are multiplied.
    for exact, differs in ((plain, True), (restored, name != "convs2s")):
        for ours, theirs in zip(multiplied, exact):
            real = (IDS != 0)[..., None] if ours.ndim == 3 else True
            difference = np.abs(np.where(real, ours - theirs, 0)).max() / np.abs(theirs).max()
            assert difference < 0.05 and (difference > 1e-6) == differs
