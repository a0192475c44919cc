"""A field type whose choices are the keys of a table, so that a new row of the table is a new choice.

    Cell = Annotated[str, OneOf(cells.CELLS)]

The table is read when a value is checked or the command line is parsed, so rows added by an experiment file count.
"""

from collections.abc import Mapping
from typing import Any

from tyro.constructors import PrimitiveConstructorSpec


class OneOf(PrimitiveConstructorSpec):
    """Accepts only the keys of a table, in the type check of `settings` and on the command line (tyro)."""

    def __init__(self, table: Mapping[str, Any]):
        super().__init__(
            nargs=1,
            metavar="",
            instance_from_str=lambda arguments: arguments[0],
            is_instance=lambda value: value in table,
            str_from_instance=lambda value: [value],
            choices=table,  # type: ignore[arg-type]  # tyro sees its keys, by __getattribute__
        )

    @property
    def table(self) -> Mapping[str, Any]:
        return super().__getattribute__("choices")

    def __getattribute__(self, name: str) -> Any:
        if name == "choices":
            return tuple(self.table)
        if name == "metavar":
            return "{" + ",".join(self.table) + "}"
        return super().__getattribute__(name)

    def __hash__(self) -> int:
        return id(self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OneOf) and other.table is self.table
