"""Properties of the named models, found by tracing them, without computation or compilation.

facts(NAMED["character"].config, 74, 78)     -> Facts(weights=702030, attention=False, parallel=False)
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from s2sjax import config
from s2sjax.models import NAMED, build

POSITIONS = 13  # no model has this number of layers, so a scan of this length is a scan over time


class Facts(NamedTuple):
    """Properties of a model."""

    weights: int
    attention: bool
    parallel: bool
    """whether training computes all positions at once, without a scan over time"""


def facts(model: config.ModelConfig, source_size: int, target_size: int) -> Facts:
    """Traces a model with vocabularies of these sizes and returns its properties."""
    module = build(model, source_size, target_size)
    ids, token = jax.ShapeDtypeStruct((1, POSITIONS), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    trained, shapes = jax.make_jaxpr(module.init_with_output, return_shape=True)(key, ids, ids)
    params: Any = shapes[1]

    def attention(params, source, token):
        apply: Any = partial(module.apply, params)
        memory = apply(source, method="encode")
        return apply(memory, apply(memory, 1, method="start"), token, method="step")[2]

    return Facts(
        weights=sum(leaf.size for leaf in jax.tree.leaves(params)),
        attention=jax.eval_shape(attention, params, ids, token) is not None,
        parallel=all(equation.params.get("length") != POSITIONS for equation in _equations(trained.jaxpr)),
    )


def _equations(program) -> Iterator:
    """All equations of a traced program, including those inside scans and calls."""
    for equation in program.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def table(source_size: int, target_size: int) -> str:
    """Formats a table with one line per named model."""
    rows: list[tuple[str, ...]] = [
        ("name", "paper", "family", "vocabulary", "weights", "attention", "parallel", "description")
    ]
    for name, (model, paper, description, own) in NAMED.items():
        sizes = own or (source_size, target_size)
        weights, attention, parallel = facts(model, *sizes)
        answers = ["yes" if answer else "no" for answer in (attention, parallel)]
        if config.encoder_and_decoder(model)[1].attends_own_position:
            answers[0] = "aligned"  # position t of the target reads position t of the source
        vocabulary = f"{sizes[0]:,} -> {sizes[1]:,}"
        rows.append((name, paper, config.model_name(model), vocabulary, f"{weights:,}", *answers, description))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [text.rjust(width) if i == 4 else text.ljust(width) for i, (text, width) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
