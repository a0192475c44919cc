"""Symmetrization of two directions."""

import numpy as np

from s2sjax.align.symmetrize import METHODS, NEIGHBOURS


def as_published(forward: set, reverse: set, size: int, final: str) -> set:
    """The pseudocode of Koehn et al. 2005, word for word."""
    links, either = forward & reverse, forward | reverse
    has = lambda side, word: any(link[side] == word for link in links)
    added = True
    while added:
        added = False
        for i in range(size):
            for j in range(size):
                if (i, j) in links:
                    for di, dj in NEIGHBOURS:
                        new = (i + di, j + dj)
                        if (not has(0, new[0]) or not has(1, new[1])) and new in either and new not in links:
                            links.add(new)
                            added = True
    for side in (forward, reverse) if final else ():
        for i in range(size):
            for j in range(size):
                free = [not has(0, i), not has(1, j)]
                if (all(free) if final == "and" else any(free)) and (i, j) in side:
                    links.add((i, j))
    return links


def test_growing_is_that_of_the_published_pseudocode():
    rng, size = np.random.default_rng(0), 6
    for _ in range(150):
        forward = {(int(rng.integers(size)), j) for j in range(size) if rng.random() < 0.9}
        reverse = {(i, int(rng.integers(size))) for i in range(size) if rng.random() < 0.9}
        for name, final in (("grow-diag", ""), ("grow-diag-final", "or"), ("grow-diag-final-and", "and")):
            assert METHODS[name](forward, reverse) == as_published(forward, reverse, size, final)


def test_each_method_on_a_picture():
    r"""
        j 0 1 2 3
    i 0   B . . .      B both directions
      1   . F . .      F forward, R reverse
      2   . . . R
      3   F . R .
    """
    forward, reverse = {(0, 0), (1, 1), (3, 0)}, {(0, 0), (2, 3), (3, 2)}
    found = {name: sorted(method(forward, reverse)) for name, method in METHODS.items()}
    assert found["intersection"] == [(0, 0)]
    assert found["union"] == [(0, 0), (1, 1), (2, 3), (3, 0), (3, 2)]
    assert found["grow-diag"] == [(0, 0), (1, 1)]
    assert found["grow-diag-final"] == [(0, 0), (1, 1), (2, 3), (3, 0), (3, 2)]
    assert found["grow-diag-final-and"] == [(0, 0), (1, 1), (2, 3), (3, 2)]
