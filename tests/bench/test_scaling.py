"""Exponents and crossovers of known times."""

import pytest

from s2sjax.bench import scaling


def test_an_exponent_is_that_of_the_largest_sizes():
    sizes = [16, 64, 256, 1024]
    assert scaling.exponent(sizes, [3 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    starting = [5 if n == 16 else 2e-3 * n**2 for n in sizes]
    assert scaling.exponent(sizes, starting) == pytest.approx(2)
    assert scaling.exponent(sizes[::-1], starting[::-1]) == pytest.approx(2)
    assert scaling.exponent([16], [1.0]) is None


def test_lines_cross_where_they_are_even():
    sizes = [10, 100, 1000]
    flat, steep = [1.0, 1.0, 1.0], [n / 50 for n in sizes]
    ((size, value),) = scaling.crossovers(sizes, flat, steep)
    assert (size, value) == (pytest.approx(50), pytest.approx(1.0))
    assert scaling.crossovers(sizes, steep, flat) == [(pytest.approx(50), pytest.approx(1.0))]
    assert scaling.crossovers(sizes, flat, [2.0, 3.0, 4.0]) == []
    assert scaling.crossovers([7], [1.0], [2.0]) == []
    assert [n for n, _ in scaling.crossovers(sizes, flat, [0.5, 2.0, 0.5])] == pytest.approx(
        [10 * 10**0.5, 100 * 10**0.5]
    )
    assert [n for n, _ in scaling.crossovers(sizes, flat, [0.5, 1.0, 2.0])] == pytest.approx([100])
    assert scaling.crossovers(sizes, flat, [2.0, 1.0, 2.0]) == []  # they touch


def rows(seconds, way="forward", **extra):
    """seconds(layer, n, d) of two layers on a small grid."""
    for layer in ("recurrent", "attention"):
        for length in (16, 64, 256, 1024):
            for width in (64, 128, 256):
                yield {
                    "layer": layer, "name": layer, "pass": way, "batch": 8, "length": length, "width": width,
                    "seconds": seconds(layer, length, width), "flops": length * width, **extra,
                }  # fmt: skip


def synthetic(layer, n, d):
    return 1e-6 * (n * d**2 if layer == "recurrent" else n**2 * d)  # even at n = d


def test_exponents_of_rows_beside_table_1():
    first, second = scaling.exponents(list(rows(synthetic)))
    assert (first["name"], first["complexity"]) == ("recurrent", "n d^2")
    assert [
        first[f"{size}_{of}"] for size in ("length", "width") for of in ("time", "flops", "table")
    ] == pytest.approx([1, 1, 1, 2, 1, 2])
    assert [second["length_time"], second["length_table"], second["width_time"]] == pytest.approx([2, 2, 1])


def test_races_of_recurrence_and_attention():
    found = list(scaling.races(list(rows(synthetic))))
    assert [(race.width, race.faster) for race in found] == [(width, "attention") for width in (64, 128, 256)]
    assert [race.points[0][0] for race in found] == pytest.approx([64, 128, 256])
    never = list(rows(lambda layer, n, d: 1.0 if layer == "recurrent" else 2.0))
    assert all(race.points == [] and race.faster == "recurrent" for race in scaling.races(never))
    assert not list(scaling.races([row for row in never if row["layer"] == "attention"]))


def test_races_of_every_recurrence_with_every_rival():
    """The fastest variant of the LSTM counts, and no layer races against itself."""
    flat = {
        "recurrent": 1.0,
        "recurrent unroll=4": 0.5,
        "attention": 3.0,
        "causal": 2.0,
        "ssd": 0.7,
        "convolution": 0.1,
    }
    same = {"pass": "forward", "batch": 1, "width": 1}
    known = [
        same | {"name": name, "layer": name.split()[0], "length": n, "seconds": seconds}
        for name, seconds in flat.items()
        for n in (1, 2)
    ]
    found = {(race.name, race.rival): race.faster for race in scaling.races(known)}
    assert found == {
        ("recurrent", "attention"): "recurrent", ("recurrent", "causal"): "recurrent",
        ("recurrent unroll=4", "attention"): "recurrent unroll=4",
        ("recurrent unroll=4", "causal"): "recurrent unroll=4",
        ("ssd", "attention"): "ssd", ("ssd", "causal"): "ssd", ("ssd", "recurrent"): "recurrent",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "faster", "text"),
    [
        ([], "ssd", "all"), ([], "causal", "none"), ([1500.2], "ssd", "n < 1,500"), ([300], "causal", "n > 300"),
        ([50, 700], "ssd", "n < 50, > 700"), ([50, 700], "causal", "n > 50, < 700"),
    ],
)  # fmt: skip
def test_where_a_recurrence_is_faster(lengths, faster, text):
    points = [(length, 1.0) for length in lengths]
    assert scaling.faster_at(scaling.Race("ssd", "causal", "forward", 1, 1, points, faster)) == text
