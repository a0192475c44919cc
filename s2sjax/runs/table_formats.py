"""Prints a table as aligned text, CSV, JSON, Markdown or LaTeX."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from s2sjax.runs import folder

Format = Literal["text", "csv", "json", "markdown", "latex"]
LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"} | {letter: f"${letter}$" for letter in "<>|"}


class Bold(str):
    """A cell in bold."""


class ResultTable(NamedTuple):
    """A table twice: with all digits for programs, and with formatted cells for readers."""

    records: Sequence[Mapping[str, Any]]
    """a dictionary for each row; all have the same keys"""
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to(self, form: Format, terminal: bool = False) -> str:
        """The table in a format, without a newline at its end. terminal: whether bold can be shown; else it is `*`."""
        if form == "json":
            return json.dumps(self.records, indent=2)
        if form == "csv":
            return _csv(self.records)
        if form == "markdown":
            head, *body = (f"| {' | '.join(map(_markdown, row))} |" for row in (self.head, *self.rows))
            return "\n".join([head, f"|{'---|' * len(self.head)}", *body])
        if form == "latex":
            head, *body = (" & ".join(map(_latex, row)) + r" \\" for row in (self.head, *self.rows))
            begin = rf"\begin{{tabular}}{{{'l' * len(self.head)}}}"
            return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])
        marked = [
            [f"{cell} *" if isinstance(cell, Bold) and not terminal else cell for cell in row] for row in self.rows
        ]
        head, *lines = aligned([self.head, *marked])
        bold = [terminal and any(isinstance(cell, Bold) for cell in row) for row in self.rows]
        return "\n".join([head, *(f"\033[1m{line}\033[0m" if best else line for line, best in zip(lines, bold))])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]


def _csv(records: Sequence[Mapping[str, Any]]) -> str:
    """CSV in which the entries of a dictionary have columns of their own: metrics.per. Lists are JSON."""
    plain = lambda value: json.dumps(value) if isinstance(value, list | tuple | bool) else value
    flat = [folder.flat(dict(record)) for record in records]
    names = list(dict.fromkeys(name for record in flat for name in record))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([plain(record.get(name)) for name in names] for record in flat)
    return text.getvalue().rstrip("\n")


def _markdown(cell: str) -> str:
    escaped = re.sub(r"([\\|*`<\[])", r"\\\1", cell)
    return f"**{escaped}**" if isinstance(cell, Bold) else escaped


def _latex(cell: str) -> str:
    escaped = "".join(LATEX.get(letter, letter) for letter in cell)
    return rf"\textbf{{{escaped}}}" if isinstance(cell, Bold) else escaped
