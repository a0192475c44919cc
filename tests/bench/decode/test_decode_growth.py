"""The benchmark of decoding against the length of the output: states, rows, comparisons and wrong options."""

import csv
import json
import re

import jax
import numpy as np
import pytest

from s2sjax import config, models
from s2sjax.bench import peers
from s2sjax.bench.decode import decode_growth, decode_speed
from s2sjax.bench.decode.decode_growth import TRANSFORMER
from s2sjax.bench.decode.decode_speed import Size
from s2sjax.core.special_tokens import EOS

TINY = config.Transformer(width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=2, dropout=0.0)
SIZE = Size(TINY, 12, 4, 3, {}, "float32")
GRIFFIN = "rg_lru,local_attention"


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(decode_speed, "SIZES", {"small": SIZE})
    monkeypatch.setattr(decode_growth, "ON_CPU", {"greedy, batch 2": (1, 2), "beam 2, batch 1": (2, 1)})
    monkeypatch.setattr(decode_growth, "LONGEST", 2**10)
    monkeypatch.setattr(peers, "remarks", lambda size: [])


@pytest.mark.slow
def test_a_small_run_writes_a_row_for_each_model_and_length(tiny, call, tmp_path):
    arguments = ("bench", "decode", "--tokens", "5,2", "2", "--mixers", "ssd", "ssd, attention")
    code, printed, errors = call(*arguments, "--rounds", 2, "--only", "greedy", "--out", tmp_path)
    assert (code, errors) == (0, ""), errors
    first, *lines, last = printed.splitlines()
    assert first.startswith("small: width 8, 1+2, 12 words, 4 -> n tokens, float32, on ")
    assert max(map(len, lines)) <= 120 and lines[2] == "greedy, batch 2"
    names = [TRANSFORMER, "ssd", "ssd,attention"]
    assert [line.split()[:2] for line in lines[3:9]] == [[name, n] for n in "25" for name in names]
    assert [line.split(":")[0] for line in lines[9::2]] == names[1:]
    assert all(re.match(r"  faster than the Transformer at .* \(greedy, batch 2\)$", line) for line in lines[10::2])
    files = [tmp_path / "decode_growth.csv", tmp_path / "decode_growth.json"]
    assert last == "wrote " + ", ".join(map(str, files))

    found = json.loads(files[1].read_text())
    rows = found["rows"]
    with files[0].open(encoding="utf-8", newline="") as file:
        assert [(row["model"], row["tokens"]) for row in csv.DictReader(file)] == [
            (row["model"], str(row["tokens"])) for row in rows
        ]
    for row in rows:
        assert row["tokens_per_second"] == pytest.approx(2 / row["seconds_per_token"])
        assert row["seconds_per_token"] == pytest.approx(row["seconds"] / row["tokens"])
        assert row["memory"] > 0 and row["compile_seconds"] > 0
        assert (row["ratio"] is None) == (row["model"] == TRANSFORMER)
    states = {(row["model"], row["tokens"]): row["state_bytes"] for row in rows}
    assert states["ssd", 2] == states["ssd", 5]
    assert states["ssd,attention", 2] < states["ssd,attention", 5]
    assert "jax" in found["environment"]["versions"]
    assert [each["model"] for each in found["comparison"]] == names[1:]


def sizes(*patterns):
    return {TRANSFORMER: SIZE} | {
        name: SIZE._replace(model=model) for name, model in decode_growth.hybrids(TINY, patterns).items()
    }


def test_only_the_mixers_of_the_decoder_differ():
    (model,) = decode_growth.hybrids(TINY, [GRIFFIN]).values()
    assert model.sides() == (("attention",), ("rg_lru", "local_attention"))
    assert [name for name, value in vars(TINY).items() if getattr(model, name) != value] == ["window"]


def test_every_default_pattern_fits_the_sizes():
    for size in decode_speed.SIZES.values():
        found = decode_growth.hybrids(size.model)
        assert tuple(found) == decode_growth.PATTERNS
        for pattern, model in found.items():
            assert {*model.sides()[1]} == {*pattern.split(",")}


def test_states_grow_with_attention_alone():
    states = {name: decode_growth.state_size(size) for name, size in sizes("ssd", "ssd,attention", GRIFFIN).items()}
    lengths = 1, 2, 129, 130, 500
    transformer, ssd, mixed, griffin = ([state(n) for n in lengths] for state in states.values())
    assert len({*ssd}) == 1
    assert griffin[0] < griffin[1] < griffin[2] == griffin[3] == griffin[4]  # up to its window of 128
    index, cache = 4, 2 * 4 * TINY.width  # bytes of a position: its row of the cache, key and value in float32
    assert [size - transformer[0] for size in transformer] == [(n - 1) * (index + 2 * cache) for n in lengths]
    assert [size - mixed[0] for size in mixed] == [(n - 1) * (index + cache) for n in lengths]


@pytest.mark.parametrize("pattern", [TRANSFORMER, "ssd,attention"])
def test_the_size_of_a_state_is_that_of_the_prefixes_of_a_search(pattern):
    """All leaves but the position, of which a sentence has one, are held for each of K prefixes."""
    size = sizes("ssd,attention")[pattern]
    module = models.build(size.model, size.vocabulary, size.vocabulary)
    ids = np.full((1, size.source), 5, np.int32)
    variables = jax.eval_shape(module.init, jax.random.key(0), ids, ids)

    def held(variables):
        memory = module.apply(variables, ids, method="encode")
        state = module.apply(variables, memory, 7, method="init_state")
        return module.beams(variables["params"], memory).tile(state, 3)

    tiled = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(held, variables)))
    assert tiled == 3 * decode_growth.state_size(size)(7) - 2 * 4


@pytest.mark.slow
def test_searches_write_exactly_n_tokens():
    size = sizes(GRIFFIN)[GRIFFIN]._replace(tokens=6)
    decoder = decode_speed.Decoder(size, 2, np.full((2, 4), 5, np.int32), "trained")
    found = decoder._program(*decoder._arguments)[0]
    assert found.lengths.tolist() == [[6], [6]]
    assert ((found.tokens == EOS) == (np.arange(6) == 5)).all()
    decoder()


class Fake:
    """A decoder of known time: 1 + n / 100 seconds for a Transformer, 2 with ssd, and 1000 with gla."""

    memory, compile_seconds = 12_345_678_901, 123.4

    def __init__(self, size, beam, source, kind):
        mixers = size.model.sides()[1] if isinstance(size.model, config.Hybrid) else ()
        if not mixers and size.tokens > 1000:
            raise MemoryError("out of memory")
        self.time = 1000.0 if "gla" in mixers else 2.0 if mixers else 1 + size.tokens / 100

    def __call__(self):
        return self.time


@pytest.fixture
def faked(tiny, monkeypatch):
    monkeypatch.setattr(decode_speed, "Decoder", Fake)
    monkeypatch.setattr(peers, "seconds", lambda once: once())


def test_rows_and_comparison_of_known_times(faked, capsys):
    decode_growth.bench("small", 3, ["beam"], None, (1000, 10), ["ssd", "gla", "ssd,attention"])
    printed = capsys.readouterr().out.splitlines()[3:]
    rows = [re.split(" {2,}", line.strip()) for line in printed]
    assert rows[:3] == [
        ["beam 2, batch 1"],
        [TRANSFORMER, "10", "110", "9.09", "0%", rows[1][5], "12 GB", "123.4", "-"],
        ["ssd", "10", "200", "5.00", "0%", rows[2][5], "12 GB", "123.4", "0.55x"],
    ]
    assert [row[-1] for row in rows[5:9]] == ["-", "5.50x", "0.01x", "5.50x"]
    ssd, gla = (decode_growth.state_size(size) for name, size in sizes("ssd", "gla").items() if name != TRANSFORMER)
    cache = decode_growth.state_size(SIZE)
    at = next(n for n in range(1, 1000) if cache(n) > ssd(n))
    size = decode_growth.readable_size
    assert printed[9].startswith(f"ssd: the state has {size(ssd(1))} at any length; the Transformer's cache passes it ")
    assert printed[9].endswith(f" at n = {at}")
    # 1.1 -> 11 and 2 -> 2 are even at 10 * 100^(ln(2 / 1.1) / ln(11 / 1.1)) on logarithmic axes
    assert printed[10] == "  faster than the Transformer at n > 33 (beam 2, batch 1)"
    assert printed[11].startswith(f"gla: the state has {size(gla(1))} at any length; ")
    assert printed[12] == "  faster than the Transformer at no length up to 1,000 (beam 2, batch 1)"
    assert re.match(r"ssd,attention: the state has .* at n = 1,000 and grows; the Transformer's cache ", printed[13])


def test_a_transformer_that_does_not_fit_is_left_out(faked, capsys):
    decode_growth.bench("small", 1, ["greedy"], None, (100, 2000), ["ssd"])
    *_, fits, ssd, line, why, _, times = capsys.readouterr().out.splitlines()
    assert fits.split()[:2] == [TRANSFORMER, "100"] and ssd.endswith(" 1.00x")
    assert line.split()[:2] == ["ssd", "2,000"] and line.endswith(" -")
    assert why == "  Transformer is left out: out of memory"
    assert times == "  faster than the Transformer at no length up to 100 (greedy, batch 2)"


def test_the_table_of_all_patterns_fits_in_120_columns(faked, monkeypatch, capsys):
    c = config.replace(TINY, decoder_layers=3)
    monkeypatch.setattr(decode_speed, "SIZES", {"small": SIZE._replace(model=c)})
    monkeypatch.setattr(decode_growth, "ON_CPU", decode_growth.ON_ACCELERATOR)
    decode_growth.bench("small", 1, [], None, (100, 999))
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * (1 + 2 * 7) + 2 * 6
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "4", "--mixers", "ssd,sdd"], "--mixers ssd,sdd: there is no 'sdd': did you mean 'ssd'?"),
        (["--tokens", "4", "--mixers", "ssd,ssd,ssd"], "--mixers ssd,ssd,ssd: 3 mixers for 2 layers: name fewer"),
        (["--tokens", "4", "0"], "argument --tokens: '0' is not a whole number that is at least 1"),
        (["--tokens", "4", "--model", "marian"],
         "--tokens compares models of s2sjax, not that of --model: leave one of them out"),
        (["--mixers", "ssd"], "--mixers needs the numbers of tokens: add them, as in --tokens 64 512 4096"),
        (["--tokens", "4", "--only", "sampling"],
         "--only 'sampling' matches no search: choose from greedy, batch 2; beam 2, batch 1"),
    ],
)  # fmt: skip
def test_wrong_options(tiny, call, arguments, message):
    code, printed, errors = call("bench", "decode", *arguments)
    assert (code, printed) == (2, "")
    assert errors.startswith(f"error: {message}") and errors.count("\n") == 1


def test_tokens_belong_to_decode(call):
    assert call("bench", "train", "--tokens", "4")[2] == "error: --tokens is an option of bench decode: leave it out\n"
