"""Scan against attention: time, rates, memory and growth of the layers of layer_types.py on this device.

Every layer is measured forward, and forward and backward, at every combination of batch, width and length, alternating
with PyTorch if that is installed. FLOP/s and bytes/s are compared with ceilings that are measured first: those of a
large matrix product and of a large copy.
"""

import argparse
import importlib.util
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from s2sjax.bench import peers, result_files, scaling, timing
from s2sjax.bench.layers import layer_types, mixer_types
from s2sjax.bench.layers.layer_types import HEAD, TYPES, Point
from s2sjax.bench.result_files import Column, milliseconds, percent, ratio, si
from s2sjax.core.backend import device
from s2sjax.core.backend.remat import POLICIES
from s2sjax.errors import UserError
from s2sjax.files import readable_size
from s2sjax.training.device_memory import limit

OUT = Path("runs/bench/layers")
PASSES = ("forward", "+backward")
"""forward only, or forward and backward together"""
Builders = Callable[[Point, bool], dict[str, Callable[[], timing.Once]]]
"""builders(point, backward) -> for each peer, a function that builds the same layer"""


MAIN = ("recurrent", "parallel", "convolution", "attention", "causal", "restricted", "ssd")
"""layers that are measured if none are named"""


class Settings(NamedTuple):
    """The settings of `s2sjax bench layers`."""

    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    batch: tuple[int, ...]
    kernel: tuple[int, ...]
    radius: tuple[int, ...]
    dtype: str
    layers: tuple[str, ...] = MAIN
    form: tuple[str, ...] = ("chunked",)
    chunk: tuple[int | None, ...] = (None,)
    unroll: tuple[int | None, ...] = (None,)
    remat: tuple[str, ...] = ("none",)
    heads: int | None = None
    rounds: int = 5
    compile_torch: bool = False
    out: Path = OUT


ON_CPU = Settings((32, 128, 512), (64, 256), (8,), (3,), (16,), "float32")
ON_ACCELERATOR = Settings((128, 1024, 8192, 32_768), (512, 1024), (16,), (3,), (64,), "bfloat16")


def settings(options: argparse.Namespace) -> Settings:
    """The settings of the command line, with defaults for the device. Raises a UserError if they are invalid."""
    given = {name: value for name in Settings._fields if (value := getattr(options, name, None))}
    allowed = {"layers": (*TYPES, "all"), "form": mixer_types.VECTOR, "remat": ("none", *POLICIES)}
    for name, choices in allowed.items():
        for each in given.get(name, ()):
            if each not in choices:
                raise UserError(f"--{name} has {each!r}: choose from {', '.join(choices)}")
    if "all" in given.get("layers", ()):
        given["layers"] = tuple(TYPES)
    found = (ON_CPU if device.on_cpu() else ON_ACCELERATOR)._replace(**given)
    for layer in found.layers:
        if len(forms := TYPES[layer].forms) > 1 and not {*forms} & {*found.form}:
            raise UserError(f"--form has no form of {layer}: choose from {', '.join(forms)}")
    for width in found.widths:
        if width % (found.heads or 1):
            raise UserError(f"{found.heads} heads do not divide the width {width}: change --heads or --widths")
    ascending: dict[str, Any] = {
        name: tuple(sorted({*getattr(found, name)})) for name in ("lengths", "widths", "batch")
    }
    found = found._replace(**ascending, out=Path(found.out))
    result_files.open_folder(found.out)
    return found


def bench(s: Settings) -> None:
    """Prints each measurement, the exponents and the crossovers; writes CSV, JSON and figures."""
    environment = result_files.environment()
    print(result_files.describe(environment), flush=True)
    ceilings = timing.measure_ceilings(jnp.dtype(s.dtype))
    print(f"ceilings: {_describe_ceilings(ceilings)}; %: fraction of the ceiling")
    print("+backward: forward and backward together; seq.: number of sequential operations")
    builders, why = _peers(s)
    if why:
        print(f"PyTorch is left out: {why}")
    rows: list[dict[str, Any]] = []

    def save() -> list[Path]:
        facts = {"settings": s._asdict() | {"out": str(s.out)}, "ceilings": ceilings._asdict()}
        return result_files.write(
            s.out, "layers", rows, environment=environment, **facts, exponents=scaling.exponents(rows)
        )

    for row in _rows(s, ceilings, builders):
        rows.append(row)
        save()  # so that an interrupted run keeps its measurements
    if not rows:
        raise UserError("nothing was measured: choose smaller --lengths, --widths or --batch")
    for line in summary(rows):
        print(line)
    ceilings = _higher(ceilings, timing.measure_ceilings(jnp.dtype(s.dtype)))
    rows = [row | _of_ceilings(row, ceilings) for row in rows]
    from s2sjax.bench.layers import layer_figures  # imports Matplotlib, which is slow

    written = [*save(), *layer_figures.draw(s.out, rows, ceilings, f"{result_files.machine(environment)}, {s.dtype}")]
    print("wrote " + ", ".join(map(str, written)))


def _rows(s: Settings, ceilings: timing.Ceilings, builders: Builders) -> Iterator[dict[str, Any]]:
    """Measures, prints and yields the rows."""
    said: set[str] = set()
    for batch, width in itertools.product(s.batch, s.widths):
        points = list(_points(s, batch, width))
        columns = _widened(COLUMNS, (label(point) for point, _ in points))
        heads = _heads(s, width)
        print(f"\nbatch {batch}, width {width}, {heads} head{'s' if heads > 1 else ''}, {s.dtype}")
        print(result_files.heading(columns), flush=True)
        for point, backward in points:
            try:
                row, reasons = _measure(point, backward, ceilings, builders(point, backward), s.rounds)
            except _TooLarge as error:
                print(f"{label(point)}, n {point.length}, {PASSES[backward]}: left out: {error}", flush=True)
                continue
            print(result_files.line(columns, row), flush=True)
            for reason in (f"{peer} is left out: {reason}" for peer, reason in reasons.items()):
                if reason not in said:  # usually the same for all sizes
                    print(f"  {reason}", flush=True)
                    said.add(reason)
            yield row


def _describe_ceilings(ceilings: timing.Ceilings) -> str:
    return f"{si(ceilings.flops, 'FLOP/s')} (matrix product), {si(ceilings.bytes, 'B/s')} (copy)"


def _higher(first: timing.Ceilings, last: timing.Ceilings) -> timing.Ceilings:
    """The higher of two measurements. They differ if other work shares the device."""
    higher = timing.Ceilings(*map(max, first, last))
    if any(high > 1.1 * min(one, other) for high, one, other in zip(higher, first, last)):
        print(f"\nat the end: {_describe_ceilings(last)}: the device was not idle (the files have the higher ones)")
    return higher


# ------------------------------------------------------------------------------------ the points


def _heads(s: Settings, width: int) -> int:
    """The number of heads of width 64, or the next smaller number that divides the width."""
    return s.heads or next(heads for heads in range(max(1, width // HEAD), 0, -1) if width % heads == 0)


def _points(s: Settings, batch: int, width: int) -> Iterator[tuple[Point, bool]]:
    """Yields (point, backward) for all layers and lengths at one batch and width."""
    variants: dict[str, list[dict[str, Any]]] = {
        **{name: _variants_of_forms(s, kind.forms) for name, kind in TYPES.items() if kind.forms},
        "recurrent": [{"unroll": unroll, "remat": remat} for unroll in s.unroll for remat in s.remat],
        "convolution": [{"kernel": kernel} for kernel in s.kernel],
        "restricted": [{"radius": radius} for radius in s.radius],
    }
    for layer in s.layers:
        for variant, length, backward in itertools.product(variants.get(layer, [{}]), s.lengths, (False, True)):
            point = Point(layer, batch, length, width, _heads(s, width), dtype=s.dtype, **variant)
            if backward or point.remat == "none":  # remat does not change the forward pass
                yield point, backward


def _variants_of_forms(s: Settings, forms: Sequence[str]) -> list[dict[str, Any]]:
    """The forms and chunks, or the unrollings of a scan. A layer with only one form is measured in this one."""
    found: list[dict[str, Any]] = []
    for form in forms if len(forms) == 1 else [form for form in s.form if form in forms]:
        options = {"chunked": {"chunk": s.chunk}, "scan": {"unroll": s.unroll}}.get(form, {})
        found += [{"form": form, **dict(zip(options, values))} for values in itertools.product(*options.values())]
    return found


def label(point: Point) -> str:
    """The label of a layer: recurrent unroll=8 remat=layers, convolution k=3, ssd chunk=64, ssd form=scan."""
    remat = None if point.remat == "none" else point.remat
    usual = point.form in (None, *TYPES[point.layer].forms[:1])
    parts = {
        "k": point.kernel, "r": point.radius, "form": None if usual else point.form, "chunk": point.chunk,
        "unroll": point.unroll, "remat": remat,
    }  # fmt: skip
    return " ".join([point.layer, *(f"{name}={value}" for name, value in parts.items() if value)])


class _TooLarge(Exception):
    """Raised if the device cannot run a layer at this size, with the reason."""


def _measure(
    point: Point, backward: bool, ceilings: timing.Ceilings, builders: dict[str, Any], rounds: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Measures a row. Also returns the reasons why peers were left out."""
    try:
        once, compiling, size = build(point, backward)
        spans, reasons, _ = peers.alternate(once, builders, rounds, timing.seconds)
    except (jax.errors.JaxRuntimeError, MemoryError) as error:  # usually out of memory
        raise _TooLarge(peers.reason(error)) from None
    finally:
        if builders:
            peers.free()
    ours = spans.pop("s2sjax")
    mine = timing.Timing.of(ours)
    flops, moved = layer_types.flops(point, backward), layer_types.bytes_moved(point, backward)
    best = min(spans, key=lambda name: statistics.median(spans[name]), default=None)
    with device.force_scan_unroll(point.unroll):
        unroll = device.scan_unroll() if point.layer == "recurrent" or mixer_types.form_of(point) == "scan" else None
    row = {"name": label(point), "pass": PASSES[backward], **point._asdict(), "unroll": unroll}
    row |= {"form": mixer_types.form_of(point), "chunk": mixer_types.chunk_of(point)}
    row |= mine.fields() | {"tokens_per_second": point.tokens / mine.median, "flops": flops, "bytes": moved}
    row |= {"flops_per_second": flops / mine.median, "bytes_per_second": moved / mine.median}
    row |= _of_ceilings(row, ceilings)
    row |= {"compile_seconds": compiling, "memory_bytes": size}
    row["sequential"] = layer_types.sequential(point)
    row |= {"peer": best, "peer_seconds": statistics.median(spans[best]) if best else None}
    row["peer_ratio"] = peers.ratio(spans[best], ours) if best else None
    return row, reasons


def _of_ceilings(row: result_files.Row, ceilings: timing.Ceilings) -> dict[str, float]:
    return {
        "of_product": row["flops_per_second"] / ceilings.flops,
        "of_copy": row["bytes_per_second"] / ceilings.bytes,
    }


def build(point: Point, backward: bool) -> tuple[timing.Once, float, int | None]:
    """Compiles our layer. Returns it, the compile time in seconds, and the memory in bytes."""
    dtype = jnp.dtype(point.dtype)
    weights = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in TYPES[point.layer].shapes(point).items()}
    xs = jax.ShapeDtypeStruct((point.batch, point.length, point.width), dtype)
    shapes = weights, xs, jax.ShapeDtypeStruct((point.batch,), jnp.int32), xs
    free = _free_memory()
    _check_memory(2 * point.tokens * point.width * dtype.itemsize, free)  # before XLA compiles impossible sizes
    program, compiling = timing.compile(jax.jit(function(point, backward)), *shapes[: 4 if backward else 3])
    size = timing.peak_memory(program)
    _check_memory(size, free)
    inputs = jax.random.normal(jax.random.key(0), xs.shape, dtype)
    lengths = jnp.full(point.batch, point.length, jnp.int32)
    arguments = jax.device_put(layer_types.draw_weights(point)), inputs, lengths, inputs
    return timing.repeated(partial(program, *arguments[: 4 if backward else 3])), compiling, size


def function(point: Point, backward: bool) -> Callable[..., Any]:
    """The layer; with `backward`, also its gradients: (weights, xs, lengths, gradient of ys) -> ys, gradients."""

    def forward(weights, xs, lengths):
        with device.force_scan_unroll(point.unroll):
            return TYPES[point.layer].apply(point, weights, xs, lengths)

    def both(weights, xs, lengths, gradient):
        ys, pull = jax.vjp(lambda weights, xs: forward(weights, xs, lengths), weights, xs)
        return ys, pull(gradient)

    return both if backward else forward


def _check_memory(size: int | None, free: int | None) -> None:
    if size is not None and free is not None and size > free:
        raise _TooLarge(f"it needs {readable_size(size)} of memory, and {readable_size(free)} are free")


def _free_memory() -> int | None:
    """The free memory in bytes, or None if it is unknown."""
    first = jax.devices()[0]
    if (total := limit(first)) is not None:
        return total - first.memory_stats()["bytes_in_use"]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _peers(s: Settings) -> tuple[Builders, str]:
    """PyTorch's builders, and the reason if there are none."""
    try:
        if importlib.util.find_spec("torch") is None:
            raise ImportError("it is not installed")
        from s2sjax.bench.layers import torch_layers
    except Exception as error:  # a broken installation may raise anything
        return lambda point, backward: {}, peers.reason(error)

    def builders(point: Point, backward: bool) -> dict[str, Callable[[], timing.Once]]:
        found: dict[str, Callable[[], timing.Once]] = {}
        name = "flash-linear-attention" if point.layer in torch_layers.KERNELS else "PyTorch"
        if point.layer in torch_layers.EAGER and point.remat == "none" and point.form in (None, "chunked"):
            found[name] = partial(torch_layers.build, point, backward, compiled=False)
        if point.layer in torch_layers.COMPILED and s.compile_torch:
            found["PyTorch compiled"] = partial(torch_layers.build, point, backward, compiled=True)
        return found

    return builders, ""


# -------------------------------------------------------------------------------------- results

COLUMNS = [
    Column("name", "layer", 16),
    Column("length", "n", 6),
    Column("pass", "pass", 10),
    Column("seconds", "ms", 7, milliseconds),
    Column("spread", "spread", 7, percent),
    Column("tokens_per_second", "tokens/s", 9, si),
    Column("flops_per_second", "FLOP/s", 7, si),
    Column("of_product", "%", 5, percent),
    Column("bytes_per_second", "bytes/s", 8, si),
    Column("of_copy", "%", 5, percent),
    Column("memory_bytes", "memory", 7, si),
    Column("sequential", "seq.", 6),
    Column("compile_seconds", "compile", 8, lambda seconds: f"{seconds:.1f}s"),
    Column("peer_ratio", "PyTorch", 8, ratio),
]
_power = lambda value: f"{value:.2f}"
EXPONENTS = [
    Column("name", "layer", 16),
    Column("pass", "pass", 10),
    Column("length_time", "time ~ n^", 12, _power),
    Column("length_flops", "FLOPs ~ n^", 12, _power),
    Column("length_table", "Table 1", 9),
    Column("width_time", "time ~ d^", 12, _power),
    Column("width_flops", "FLOPs ~ d^", 12, _power),
    Column("width_table", "Table 1", 8),
    Column("complexity", "", 12),
]
RACES = [
    Column("name", "layer", 16),
    Column("pass", "pass", 10),
    Column("batch", "batch", 6),
    Column("width", "width", 6),
    *(Column(rival, title, 21) for rival, title in zip(scaling.RIVALS, ("attention", "causal attention", "LSTM"))),
]


def summary(rows: Sequence[result_files.Row]) -> Iterator[str]:
    """Yields the lines of the exponents, and of the lengths at which recurrences and their rivals are even."""
    fits = scaling.exponents(rows)
    columns = _widened(EXPONENTS, (row["name"] for row in rows))
    for (batch,), of_batch in scaling.grouped(fits, "batch"):
        yield f"\nexponents at the {scaling.LARGEST} largest sizes, batch {batch} (Table 1 counts no projections)"
        yield result_files.heading(columns)
        yield from (result_files.line(columns, fit) for fit in of_batch)
    races = list(scaling.races(rows))
    if len({race.name for race in races}) > 1:
        yield from ["", "lengths n at which a recurrence is faster than attention, causal attention and the LSTM"]
        missing = {*scaling.RIVALS} - {race.rival for race in races}
        columns = _widened([column for column in RACES if column.name not in missing], (race.name for race in races))
        yield result_files.heading(columns)
        for _, group in itertools.groupby(races, key=lambda race: (race.name, race.way, race.batch, race.width)):
            yield result_files.line(columns, _race_row(list(group)))
    elif races:
        yield from ["", *map(_describe, races)]


def _race_row(races: Sequence[scaling.Race]) -> dict[str, Any]:
    """A row of the table of races: those of one layer, pass, batch and width."""
    first = races[0]
    own = {"name": first.name, "pass": first.way, "batch": first.batch, "width": first.width}
    return own | {race.rival: scaling.faster_at(race) for race in races}


def _describe(race: scaling.Race) -> str:
    where = f"batch {race.batch}, width {race.width}, {race.way}:"
    slower = race.rival if race.faster != race.rival else race.name
    if not race.points:
        return f"{where} {race.faster} is faster than {slower} at every length"
    if len(race.points) == 1:
        return f"{where} {race.faster} is faster than {slower} up to n = {race.points[0][0]:,.0f}, slower beyond"
    return f"{where} {race.faster} and {slower} are even at n = {', '.join(f'{n:,.0f}' for n, _ in race.points)}"


def _widened(columns: Sequence[Column], names: Iterable[str]) -> list[Column]:
    """Widens the first column to fit all names."""
    first, *others = columns
    return [first._replace(width=max(first.width, *(len(name) + 1 for name in names))), *others]
