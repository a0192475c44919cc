"""Symmetrization of two directions (Och and Ney 2003; grow-diag and its variants as in Koehn et al. 2005).

Links are (i, j): source word i, target word j, counted from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

Link = tuple[int, int]
Links = Collection[Link]

NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def intersection(forward: Links, reverse: Links) -> set[Link]:
    return set(forward) & set(reverse)


def union(forward: Links, reverse: Links) -> set[Link]:
    return set(forward) | set(reverse)


def grow_diag(forward: Links, reverse: Links) -> set[Link]:
    """The intersection, to which links of the union are added repeatedly if they are horizontal, vertical or diagonal
    neighbours of a link and one of their words has no link yet.
    """
    links, either = intersection(forward, reverse), union(forward, reverse)
    if len(links) == len(either):
        return links
    rows, columns = {i for i, _ in links}, {j for _, j in links}
    candidates = sorted(either)
    before = -1
    while len(links) > before:
        before = len(links)
        for i, j in candidates:
            if (i, j) not in links:
                continue
            for di, dj in NEIGHBOURS:
                near = (i + di, j + dj)
                if near in either and near not in links and (near[0] not in rows or near[1] not in columns):
                    links.add(near)
                    rows.add(near[0])
                    columns.add(near[1])
    return links


def grow_diag_final(forward: Links, reverse: Links, both: bool = False) -> set[Link]:
    """Adds to `grow_diag` the links of either direction if one of their words, or `both`, have no link yet."""
    links = grow_diag(forward, reverse)
    rows, columns = {i for i, _ in links}, {j for _, j in links}
    for side in (forward, reverse):
        for i, j in sorted(side):
            free = (i not in rows) + (j not in columns)
            if free >= (2 if both else 1):
                links.add((i, j))
                rows.add(i)
                columns.add(j)
    return links


METHODS: dict[str, Callable[[Links, Links], set[Link]]] = {
    "intersection": intersection,
    "union": union,
    "grow-diag": grow_diag,
    "grow-diag-final": grow_diag_final,
    "grow-diag-final-and": partial(grow_diag_final, both=True),
}
