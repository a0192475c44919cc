"""Decoding against the length of the output: a Transformer, and the same model with recurrences in its decoder.

A cache grows with each token, and so does the time to read it; the state of a recurrence does neither. All models have
the size of `s2sjax bench decode`, the same encoder and the same feed-forward networks: only the mixers of the decoder
differ. Each of them writes exactly n tokens, and the models alternate in one run.
"""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import config, models
from s2sjax.bench import peers, result_files, scaling, timing
from s2sjax.bench.decode import decode_speed
from s2sjax.bench.decode.decode_peers import Size
from s2sjax.bench.result_files import Column, Row, milliseconds, percent, ratio, si
from s2sjax.bench.train_speed import default_size
from s2sjax.config.models.hybrid_settings import ATTENTION
from s2sjax.core import mixers
from s2sjax.errors import UserError, nearest
from s2sjax.files import readable_size

TRANSFORMER = "Transformer"
PATTERNS = ("ssd", "gated_delta", "gla", "mlstm", "rg_lru,rg_lru,local_attention", "ssd,attention")
"""mixers of the decoder layers, repeated up to the last layer; the fifth is Griffin's pattern"""
ON_CPU = {"greedy, batch 16": (1, 16), "beam 5, batch 4": (5, 4)}
ON_ACCELERATOR = {"greedy, batch 128": (1, 128), "beam 5, batch 32": (5, 32)}
"""beam and batch of each search; the caches of size base with 4096 tokens have 6 and 8 GB"""
LONGEST = 2**20
"""largest n at which the sizes of states are compared"""
COLUMNS = (
    Column("tokens", "n", 8, "{:,}".format),
    Column("seconds_per_token", "ms/token", 10, milliseconds),
    Column("tokens_per_second", "tokens/s", 10, si),
    Column("spread", "spread", 8, percent),
    Column("state_bytes", "state", 9, readable_size),
    Column("memory", "memory", 9, readable_size),
    Column("compile_seconds", "compile s", 11, "{:.1f}".format),
    Column("ratio", "faster by", 11, ratio),
)
StateSize = Callable[[int], int]
"""bytes of a decoding state with room for n tokens, for each sentence and prefix"""


def bench(
    size: str | None, rounds: int, only: Sequence[str], out: Path | None, tokens: Sequence[int],
    patterns: Sequence[str] = (),
) -> None:  # fmt: skip
    """Prints the rows of each search and length, then compares each model with the Transformer.

    Writes decode_growth.csv and decode_growth.json. The default size and searches depend on the device.

    patterns: mixers separated by commas; by default PATTERNS
    """
    size, lengths = size or default_size(), sorted(set(tokens))
    s = decode_speed.SIZES[size]
    runs = peers.select(ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATOR, only, "search")
    sizes = {TRANSFORMER: s} | {name: s._replace(model=model) for name, model in hybrids(s.model, patterns).items()}
    states = {name: state_size(each) for name, each in sizes.items()}
    facts: dict[str, Any] = {"environment": result_files.environment(), "remarks": peers.remarks(size)}
    if out:
        result_files.open_folder(out)
    c = s.model
    layers, shape = f"{c.encoder_layers}+{c.decoder_layers}", f"{s.source} -> n tokens, {s.dtype}"
    device = result_files.describe(facts["environment"])
    print(f"{size}: width {c.width}, {layers}, {s.vocabulary} words, {shape}, {device}")
    for remark in facts["remarks"]:
        print(remark)
    print(f"state: bytes for each sentence and prefix; faster by: than the {TRANSFORMER} with as many tokens")
    columns = Column("model", "", max(map(len, sizes)) + 4, "  {}".format), *COLUMNS
    print(result_files.heading(columns), flush=True)
    rows: list[dict[str, Any]] = []
    for name, (beam, batch) in runs.items():
        print(name, flush=True)
        for n in lengths:
            each = {model: one._replace(tokens=n) for model, one in sizes.items()}
            found, reasons = _measure(each, beam, batch, rounds)
            peers.free()
            rows += [{"size": size, "search": name, **row, "state_bytes": states[row["model"]](n)} for row in found]
            result_files.show(columns, rows[len(rows) - len(found) :], reasons)
            facts["comparison"] = comparison(rows, states)
            if out:  # after each length, so that an interrupted run keeps its measurements
                written = result_files.write(out, "decode_growth", rows, **facts)
    for compared in facts["comparison"]:
        print(in_words(compared, states[compared["model"]], lengths[-1]))
    if out:
        print("wrote " + ", ".join(map(str, written)))


def hybrids(c: config.Transformer, patterns: Sequence[str] = ()) -> dict[str, config.Hybrid]:
    """The models of this Transformer's sizes whose decoder has other mixers, by their patterns."""
    inherited = {field.name: getattr(c, field.name) for field in dataclasses.fields(config.Transformer)}
    del inherited["window"]  # no reach at all in a Transformer, that of local_attention in a Hybrid
    found, known = {}, [*mixers.MIXERS, *ATTENTION]
    for pattern in patterns or PATTERNS:
        names = tuple(part.strip() for part in pattern.split(","))
        for name in names:
            if name not in known:
                raise UserError(f"--mixers {pattern}: there is no {name!r}: did you mean {nearest(name, known)!r}?")
        if len(names) > c.decoder_layers:
            raise UserError(f"--mixers {pattern}: {len(names)} mixers for {c.decoder_layers} layers: name fewer")
        found[",".join(names)] = config.Hybrid(**inherited, mixers=("attention",), decoder_mixers=names)
    return found


def state_size(s: Size) -> StateSize:
    """The size of the state of `init_state`, from shapes alone. A search holds one for each prefix."""
    module: Any = models.build(s.model, s.vocabulary, s.vocabulary, s.dtype)
    ids = jax.ShapeDtypeStruct((1, s.source), jnp.int32)
    variables = jax.eval_shape(module.init, jax.random.key(0), ids, ids)
    memory = jax.eval_shape(partial(module.apply, method="encode"), variables, ids)

    @functools.cache
    def size(tokens: int) -> int:
        state = jax.eval_shape(partial(module.apply, steps=tokens, method="init_state"), variables, memory)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))

    return size


def _measure(
    sizes: Mapping[str, Size], beam: int, batch: int, rounds: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The row of each model, and the reasons why models were left out."""
    s = sizes[TRANSFORMER]
    source = np.random.default_rng(0).integers(4, s.vocabulary, (batch, s.source)).astype(np.int32)
    kind = decode_speed.OURS["s2sjax"]
    builders = {name: partial(decode_speed.Decoder, each, beam, source, kind) for name, each in sizes.items()}
    # Nothing comes first: the memory may not suffice for any of the models, not even for the Transformer.
    spans, reasons, decoders = peers.alternate(lambda: None, builders, rounds, peers.seconds)
    del spans["s2sjax"]
    rows = []
    for name, each in spans.items():
        timed = timing.Timing.of(each)
        rows.append({
            "model": name, "tokens": s.tokens, "beam": beam, "batch": batch, "dtype": s.dtype, **timed.fields(),
            "seconds_per_token": timed.median / s.tokens, "tokens_per_second": batch * s.tokens / timed.median,
            "memory": decoders[name].memory, "compile_seconds": decoders[name].compile_seconds,
            "ratio": None if name == TRANSFORMER or TRANSFORMER not in spans else peers.ratio(spans[TRANSFORMER], each),
        })  # fmt: skip
    return rows, reasons


def comparison(rows: Sequence[Row], states: Mapping[str, StateSize]) -> list[dict[str, Any]]:
    """Each model's n from which the Transformer's cache is larger, and for each search the n at which it is faster."""
    times: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        times.setdefault(row["search"], {}).setdefault(row["model"], {})[row["tokens"]] = row["seconds"]
    found = []
    for name in states:
        if name != TRANSFORMER:
            both = {search: (of.get(name, {}), of.get(TRANSFORMER, {})) for search, of in times.items()}
            faster = {search: _faster(name, *each) for search, each in both.items() if each[0].keys() & each[1].keys()}
            passed = _passed(states[name], states[TRANSFORMER])
            found.append({"model": name, "cache_passes_at": passed, "faster": faster})
    return found


def _passed(state: StateSize, cache: StateSize) -> int | None:
    """The smallest n at which the cache is larger than the state; None if there is none."""
    n = 1 + bisect.bisect_left(range(1, LONGEST + 1), True, key=lambda n: cache(n) > state(n))
    return n if n <= LONGEST else None


def _faster(name: str, own: Mapping[int, float], other: Mapping[int, float]) -> str:
    """The lengths at which a model is faster than the Transformer, of those at which both were measured."""
    lengths = sorted(own.keys() & other.keys())
    first, second = ([seconds[n] for n in lengths] for seconds in (own, other))
    points = scaling.crossovers(lengths, first, second)
    faster = name if first[0] < second[0] else TRANSFORMER
    where = scaling.faster_at(scaling.Race(name, TRANSFORMER, "", 0, 0, points, faster))
    return {"all": "at every length", "none": f"at no length up to {lengths[-1]:,}"}.get(where, f"at {where}")


def in_words(compared: Mapping[str, Any], state: StateSize, largest: int) -> str:
    """A line about the state of a model, and one about its times."""
    bytes_, where = state(largest), f"at n = {largest:,} and grows"
    if state(LONGEST) == state(LONGEST // 2):
        first = 1 + bisect.bisect_left(range(1, LONGEST + 1), state(LONGEST), key=state)
        bytes_, where = state(LONGEST), "at any length" if first == 1 else f"from n = {first:,} on"
    passed = compared["cache_passes_at"]
    cache = "is never larger" if passed is None else f"passes it at n = {passed:,}"
    line = f"{compared['model']}: the state has {readable_size(bytes_)} {where}; the {TRANSFORMER}'s cache {cache}"
    times = ", ".join(f"{when} ({search})" for search, when in compared["faster"].items())
    return line + (f"\n  faster than the {TRANSFORMER} {times}" if times else "")
