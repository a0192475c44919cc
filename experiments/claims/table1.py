"""Table 1 of the Transformer paper, measured: how the time of a layer grows with n, d, k and r.

Claim     Time grows as n^2 d (self-attention), n d^2 (recurrent), k n d^2 (convolutional), r n d (restricted).
Paper     Vaswani et al. 2017, table 1
Command   python experiments/claims/table1.py

Each layer runs forward at several lengths n, widths d, kernels k and radii r; one of them varies at a time, and the
others keep a base value. An exponent is the slope of a line fitted to the logarithms of the three largest sizes. The
table counts neither projections nor the time to launch an operation. `s2sjax bench layers` measures more.

The maximum path length is counted, not timed: from the Jacobian of a layer with random weights and inputs it is known
which outputs depend on which inputs, and the count is the number of layers after which the last output depends on the
first input. For the recurrent layer, it is the number of its sequential steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import common
import jax
import jax.numpy as jnp
import numpy as np
import panels

from s2sjax.bench import scaling, timing
from s2sjax.bench.layers import layer_speed
from s2sjax.bench.layers.layer_types import HEAD, TYPES, Point, draw_weights, flops
from s2sjax.core.nn import convolution
from s2sjax.core.recurrence import cells

CLAIM = common.Claim(
    "table1",
    "Table 1",
    "Time per layer grows as n^2 d (self-attention), n d^2 (recurrent), k n d^2 (convolutional), r n d (restricted)",
    "Vaswani et al. 2017, table 1",
    "mean absolute difference between the measured exponents and those of the table",
)
LETTERS = {"length": "n", "width": "d", "kernel": "k", "radius": "r"}
EXPECTED = {
    "recurrent": {"length": 1, "width": 2},
    "convolution": {"length": 1, "width": 2, "kernel": 1},
    "attention": {"length": 2, "width": 1},
    "restricted": {"length": 1, "width": 1, "radius": 1},
}


class Size(NamedTuple):
    batch: int
    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    kernels: tuple[int, ...]
    radii: tuple[int, ...]
    dtype: str
    repeats: int
    heads: int | None = None
    paths: tuple[int, ...] = (9, 27, 81, 243)
    """lengths for which paths are counted"""

    @property
    def base(self) -> dict[str, int]:
        """The values of the other sizes while one varies: a middle length and width."""
        middle = lambda sizes: sizes[len(sizes) // 2]
        return {
            "length": middle(self.lengths), "width": middle(self.widths), "kernel": self.kernels[0],
            "radius": self.radii[0],
        }  # fmt: skip


SIZES = {
    "small": Size(4, (128, 512, 1024, 2048), (64, 128, 256), (3, 9, 27), (16, 64, 256), "float32", 3),
    "full": Size(8, (512, 2048, 8192, 16384), (512, 1024, 2048), (3, 9, 27), (64, 256, 1024), "bfloat16", 5),
    "toy": Size(1, (4, 8), (4, 8), (1, 3), (1, 2), "float32", 2, heads=1, paths=(9, 27)),
}


def points(size: Size) -> list[tuple[str, Point]]:
    """Pairs (varying size, layer) of all measurements."""
    sweeps = {"length": size.lengths, "width": size.widths, "kernel": size.kernels, "radius": size.radii}
    found = []
    for layer, exponents in EXPECTED.items():
        for what in exponents:
            for value in sweeps[what]:
                at = size.base | {what: value}
                fields = {name: at[name] for name in ("length", "width", *({"kernel", "radius"} & {*exponents}))}
                heads = size.heads or max(1, at["width"] // HEAD)
                found.append((what, Point(layer, size.batch, heads=heads, dtype=size.dtype, **fields)))
    return found


def seconds(point: Point, repeats: int) -> list[float]:
    once, _, _ = layer_speed.build(point, backward=False)
    once()
    return [min(timing.seconds(once) for _ in range(3)) for _ in range(repeats)]


# ---------------------------------------------------------------------------------- path lengths

WIDTH, KERNEL, RADIUS = 4, 3, 8
PATHS = {
    "recurrent": "O(n)",
    "convolution": "O(n / k)",
    "dilated": "O(log_k n)",
    "attention": "O(1)",
    "restricted": "O(n / r)",
}
"""layer: its maximum path length in the table"""
NAMES = {
    "convolution": f"causal convolution, k = {KERNEL}",
    "dilated": f"causal convolution, k = {KERNEL}, dilations 1, {KERNEL}, {KERNEL**2}, ...",
    "restricted": f"restricted, r = {RADIUS}",
}


@cache
def dependence(layer: str, length: int, dilation: int = 1) -> list[np.ndarray]:
    """Which output positions depend on which input positions, [n, n], by the Jacobian of a layer.

    For the recurrent layer, it is that of one step at all positions at once: on the inputs, and on the states before.
    """
    functions = {"recurrent": _recurrence, "attention": _attention, "restricted": _attention}
    function = functions.get(layer, partial(_convolution, dilation=dilation))(layer, length)
    inputs = range(2 if layer == "recurrent" else 1)
    xs = [jax.random.normal(jax.random.key(number), (length, WIDTH)) for number in inputs]
    found = jax.jit(jax.jacobian(function, argnums=tuple(inputs)))(*xs)  # [n, d, n, d] each
    return [np.asarray(jacobian != 0).any((1, 3)) for jacobian in found]


def _attention(layer: str, length: int) -> Callable[..., jax.Array]:
    point = Point(layer, 1, length, WIDTH, heads=1, radius=RADIUS if layer == "restricted" else None)
    weights = draw_weights(point)
    return lambda xs: TYPES[layer].apply(point, weights, xs[None], jnp.array([length]))[0]


def _convolution(layer: str, length: int, dilation: int) -> Callable[..., jax.Array]:
    weights = draw_weights(Point("convolution", 1, length, WIDTH, heads=1, kernel=KERNEL))
    real = jnp.ones((1, length), bool)
    return lambda xs: convolution.convolve(weights, xs[None], real, causal=True, dilation=dilation)[0]


def _recurrence(layer: str, length: int) -> Callable[..., jax.Array]:
    weights = draw_weights(Point(layer, 1, length, WIDTH, heads=1))

    def step(xs: jax.Array, states: jax.Array) -> jax.Array:
        before = jnp.pad(states, ((1, 0), (0, 0)))[:-1]  # position 0 follows the zero state
        return cells.step(cells.CELLS["lstm"], weights, (before, before), cells.project(weights, xs))[1]

    return step


def path_length(layer: str, length: int) -> int:
    """The number of layers, or of steps, after which the last output depends on the first input."""
    seen = np.eye(length, dtype=bool)
    for depth in range(length):
        found = dependence(layer, length, KERNEL**depth if layer == "dilated" else 1)
        seen = found[min(depth, len(found) - 1)] @ seen  # a first step reads inputs, the others read states
        if seen[-1, 0]:
            return depth + 1
    raise ValueError(f"{layer}: the last output does not depend on the first input")


def paths(lengths: Sequence[int]) -> dict[str, list[int]]:
    """The maximum path length of each layer for each number of positions."""
    return {layer: [path_length(layer, length) for length in lengths] for layer in PATHS}


def path_table(lengths: Sequence[int], found: dict[str, list[int]]) -> common.Table:
    sentence = (
        "Maximum path length, counted from Jacobians: the number of layers, or of steps of the recurrence, until the "
        "last output depends on the first input."
    )
    rows = [[NAMES.get(layer, layer), PATHS[layer], *map(str, counts)] for layer, counts in found.items()]
    return common.Table(sentence, ["layer", "table", *(f"n = {length}" for length in lengths)], rows)


# ------------------------------------------------------------------------------------------ times


def measure(study: common.Study, size: Size) -> dict[str, Any]:
    rows, known = [], {}
    for what, point in points(size):
        if point not in known:
            name = f"{layer_speed.label(point).replace(' ', '-')}-n{point.length}-d{point.width}"
            known[point] = study.once(name, [point, size.repeats], partial(seconds, point, size.repeats))
        value = getattr(point, what)
        rows.append(
            {"layer": point.layer, "what": what, "size": value, "seconds": known[point], "flops": flops(point, False)}
        )
    counted = study.once("paths", [size.paths, WIDTH, KERNEL, RADIUS], partial(paths, size.paths))
    found = {"rows": rows, "base": size.base, "dtype": size.dtype, "batch": size.batch}
    return found | {"paths": {"lengths": size.paths, "found": counted}}


def fits(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Exponents of each layer and size: of the time, one per repeat, and of the FLOPs."""
    found = []
    for (layer, what), group in scaling.grouped(data["rows"], "layer", "what"):
        sizes = [row["size"] for row in group]
        repeats = range(len(group[0]["seconds"]))
        times = [scaling.exponent(sizes, [row["seconds"][i] for row in group]) for i in repeats]
        counted = scaling.exponent(sizes, [row["flops"] for row in group])
        found.append({"layer": layer, "what": what, "time": times, "flops": counted, "table": EXPECTED[layer][what]})
    return found


def judge(data: dict[str, Any]) -> common.Finding:
    found = fits(data)
    rows, base = [], data["base"]
    for fit in found:
        kind, letter = TYPES[fit["layer"]], LETTERS[fit["what"]]
        steps = f"{kind.sequential(base['length']):,}"
        cells = [f"{letter}^{fit['table']}", common.spread(fit["time"]), f"{fit['flops']:.2f}", steps]
        rows.append([f"{fit['layer']} ({kind.complexity})", *cells])
    away = np.abs([np.subtract(fit["time"], fit["table"]) for fit in found])  # [exponents, repeats]
    means = {(fit["layer"], fit["what"]): float(np.mean(fit["time"])) for fit in found}
    near = {place: abs(mean - EXPECTED[place[0]][place[1]]) <= 0.25 for place, mean in means.items()}
    verdict = common.verdict(all(near.values()), sum(near.values()) >= len(near) / 2)
    far = sorted(
        (place for place in near if not near[place]),
        key=lambda place: -abs(means[place] - EXPECTED[place[0]][place[1]]),
    )
    told = ", ".join(f"{layer} in {LETTERS[what]} ({means[layer, what]:.2f})" for layer, what in far)
    paragraph = (
        f"{sum(near.values())} of {len(near)} exponents are within 0.25 of the table. "
        + (f"The others: {told}. " if far else "")
        + "The table counts neither the projections of attention, which grow as n d^2, nor the time to launch an "
        "operation. The n steps of the recurrent layer are sequential; it takes "
        f"{_ratio(data):.1f} times as long as self-attention at n = {base['length']:,}, d = {base['width']:,}."
    )
    columns = ("layer (table 1)", "table", "time ~", "FLOPs ~", f"sequential operations, n = {base['length']:,}")
    values, more = away.mean(0).tolist(), [path_table(**data["paths"])]
    return common.Finding(values, verdict, paragraph, columns, rows, repeats="repeats", tables=more)


def _ratio(data: dict[str, Any]) -> float:
    at = lambda layer: next(
        np.median(row["seconds"]) for row in data["rows"]
        if row["layer"] == layer and row["what"] == "length" and row["size"] == data["base"]["length"]
    )  # fmt: skip
    return float(at("recurrent") / at("attention"))


def draw(path: Path, data: dict[str, Any]) -> None:
    figure = panels.Panels()
    base = data["base"]
    for number, what in enumerate(LETTERS):
        held = ", ".join(f"{LETTERS[o]} = {base[o]}" for o in ("length", "width") if o != what)
        panel = figure.add(
            f"against {LETTERS[what]} ({held})", LETTERS[what], "" if number else "milliseconds", width=2.5
        )
        chosen = [row for row in data["rows"] if row["what"] == what]
        for (layer,), group in scaling.grouped(chosen, "layer"):
            sizes = [row["size"] for row in group]
            place = list(EXPECTED).index(layer)
            repeats = 1e3 * np.asarray([row["seconds"] for row in group]).T
            panels.lines(panel, sizes, {layer: repeats}, first=place)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        sizes = sorted({row["size"] for row in chosen})
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.set_xticks([], minor=True)
        if number == 0:
            panel.set_ylim(top=20 * panel.get_ylim()[1])  # room for the key
            panels.key(panel, "upper left")
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, SIZES, measure, judge, draw)
