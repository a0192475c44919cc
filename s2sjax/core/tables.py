"""Tables of named rows, such as `cells.CELLS`, to which the files of a run can add rows.

Each run has a space. The global `__space__` of a module names its space. Rows that the module adds are visible to the
code of that space, and to settings made there, which store them as a `Name`. So two runs may use the same row name.
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
    """The namespace of the code of one run: the rows that it adds to tables, and its modules."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, Any], Any] = {}

    def module(self, name: str) -> ModuleType | None:
        """The module of this name that belongs to the space, as stored in a run folder, or None."""
        return None

    def replaces(self, older: Space) -> bool:
        """Whether rows of this space take precedence over rows of the same name in `older`."""
        return False

    def clash(self, other: Space, name: Any) -> Exception:
        """The error to raise if this space and another one both have a row `name`."""
        return LookupError(f"there are two rows {name!r}")


SPACES: list[Space] = []
"""all spaces, oldest first"""
_context: ContextVar[Space | None] = ContextVar("space", default=None)


@contextlib.contextmanager
def within(space: Space | None) -> Iterator[None]:
    """Context in which names refer to rows and modules of this space or of s2sjax, not of other spaces."""
    token = _context.set(space or _context.get())
    try:
        yield
    finally:
        _context.reset(token)


def current() -> Space | None:
    """The space entered by `within`, else that of the nearest calling function in a space, else None."""
    return _context.get() or _caller()


def of_module(name: str) -> Space | None:
    """The space of an imported module, or None."""
    return getattr(sys.modules.get(name), MARK, None)


def visible() -> list[Space]:
    """The spaces that a name may refer to, nearest first."""
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
    """The name of a row that the code of a space has added, with that space."""

    space: Space


class Table(MutableMapping[K, V]):
    """A mapping to which each space can add rows. A space cannot replace the initial rows.

    CELLS = Table({"gru": ...})
    CELLS["mine"] = ...          in a file of a run: a row of its space; elsewhere: visible to all
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
        """Returns the name as a `Name` with its space if a space has added the row, else unchanged."""
        space = self._owner(name)
        if space is None:
            return name
        bound = Name(name)
        bound.space = space
        return bound

    def _owner(self, name: Any) -> Space | None:
        """The space of the row that a name refers to; None for a row of s2sjax."""
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
