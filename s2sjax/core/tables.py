"""Tables of named rows, such as `cells.CELLS`, to which the files of a run can add rows of their own.

Each run has a space. A module belongs to a space by its global `__space__`: the rows that it adds are seen by the code
of its space, and by settings that were made there, which hold them as a `Name`. So two runs may have a row of one name.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
MARK = "__space__"


class Space:
    """What belongs to the code of one run: the rows that it adds to tables, and its modules."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, Any], Any] = {}

    def module(self, name: str) -> ModuleType | None:
        """Its module of this name, as it is stored in a run folder."""
        return None

    def replaces(self, older: Space) -> bool:
        """Whether names that could mean a row of either mean that of this one."""
        return False

    def clash(self, other: Space, name: Any) -> Exception:
        return LookupError(f"there are two rows {name!r}")


SPACES: list[Space] = []
"""the oldest first"""
_context: ContextVar[Space | None] = ContextVar("space", default=None)


@contextlib.contextmanager
def within(space: Space | None) -> Iterator[None]:
    """Inside, names mean rows and modules of this space, or of s2sjax: never those of another space."""
    token = _context.set(space or _context.get())
    try:
        yield
    finally:
        _context.reset(token)


def current() -> Space | None:
    """The space that was entered by `within`, else that of the nearest calling function that belongs to one."""
    return _context.get() or _caller()


def of_module(name: str) -> Space | None:
    """The space that an imported module belongs to."""
    return getattr(sys.modules.get(name), MARK, None)


def visible() -> list[Space]:
    """The spaces that a name may refer to, the nearest first."""
    context, caller = _context.get(), _caller()
    if context is not None:
        return [context]
    return [*filter(None, [caller]), *(space for space in reversed(SPACES) if space is not caller)]


def _caller() -> Space | None:
    frame = sys._getframe(1)
    while frame is not None:
        space = frame.f_globals.get(MARK)
        if isinstance(space, Space):
            return space
        frame = frame.f_back  # type: ignore[assignment]
    return None


class Name(str):
    """The name of a row that the code of a space has added."""

    space: Space


class Table(MutableMapping[K, V]):
    """A mapping to which each space adds rows of its own. The rows that it begins with cannot be replaced by a space.

    CELLS = Table({"gru": ...})
    CELLS["mine"] = ...          in a file of a run: a row of its space; elsewhere, for everybody
    """

    def __init__(self, rows: Mapping[K, V]):
        self._rows, self._first = dict(rows), frozenset(rows)

    def __getitem__(self, name: K) -> V:
        space = self._owner(name)
        return self._rows[name] if space is None else space.rows[id(self), name]

    def __setitem__(self, name: K, row: V) -> None:
        space = current()
        if space is None:
            self._rows[name] = row
        elif name in self._first:
            raise ValueError(f"s2sjax has a row {name!r}: choose another name for yours")
        else:
            space.rows[id(self), name] = row

    def __delitem__(self, name: K) -> None:
        del self._rows[name]

    def __iter__(self) -> Iterator[K]:
        added = {name for space in visible() for table, name in space.rows if table == id(self)}
        yield from self._rows
        yield from sorted(added - self._rows.keys(), key=str)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def bind(self, name: Any) -> Any:
        """The name, with the space whose row it means, if a space has added it."""
        space = self._owner(name)
        if space is None:
            return name
        bound = Name(name)
        bound.space = space
        return bound

    def _owner(self, name: Any) -> Space | None:
        """The space whose row a name means; None for a row of s2sjax."""
        key = (id(self), name)
        if isinstance(name, Name) and key in name.space.rows:
            return name.space
        owners = [space for space in SPACES if key in space.rows]
        here = current() if owners else None
        if here in owners:
            return here
        if not owners or name in self._rows or _context.get() is not None:
            return None
        newest = owners[-1]
        for other in owners[:-1]:
            if not newest.replaces(other):
                raise newest.clash(other, name)
        return newest
