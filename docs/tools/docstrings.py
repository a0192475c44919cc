"""The docstrings of s2sjax as Markdown, for the API reference.

They are plain text, written to be read in the source: `<eos>`, `W_x x` and `[D, G*H]` mean what they say, an equation
has a line of its own, and columns are aligned. So marks of Markdown are escaped, a line that was ended early stays a
line, and what is indented or aligned is shown as it is. Code in backticks and lists are Markdown already.
"""

import re
import textwrap
from collections.abc import Iterator

import griffe

WIDTH = 96
"""A line that has room for the next word within this width was ended on purpose: text is filled up to 120 columns."""
LONGEST = 400
"""characters of a value that are shown: a table of models is better read in its file"""
ITEM = re.compile(r"(- |\d+\. )")


class PlainText(griffe.Extension):
    """An extension of griffe, which reads the source files."""

    def on_package(self, *, pkg: griffe.Module, **_) -> None:
        self.convert(pkg)

    def convert(self, thing: griffe.Object) -> None:
        if thing.docstring is None and thing.is_attribute and (comment := trailing_comment(thing)):
            thing.docstring = griffe.Docstring(comment, lineno=thing.lineno, parent=thing)
        if thing.is_attribute and len(str(thing.value)) > LONGEST:
            thing.value = "..."
        if thing.docstring is not None:
            thing.docstring.value = markdown(thing.docstring.value, indentation(thing)) + source_link(thing)
        for member in thing.members.values():
            if not member.is_alias:
                self.convert(member)


def indentation(thing: griffe.Object) -> int:
    """Columns before its docstring in the source."""
    depth = 0 if thing.is_module else 4
    parent = thing.parent
    while parent is not None and not parent.is_module:
        depth, parent = depth + 4, parent.parent
    return depth - 4 * thing.is_attribute


def source_link(thing: griffe.Object) -> str:
    """Of a module: to the page with its text that pages.py makes. The reference is in the folder api/ of the site."""
    if not thing.is_module:
        return ""
    path = thing.path.replace(".", "/") + ("/__init__.py" if thing.is_init_module else ".py")
    return f"\n\n[{escape(path)}](../source/{path}.md)"


def trailing_comment(attribute: griffe.Object) -> str | None:
    """What a field of a class says behind its type: `width: int  # of the state` -> of the state."""
    if attribute.parent is None or not attribute.parent.is_class or attribute.lineno is None:
        return None
    line = attribute.lines_collection[attribute.filepath][(attribute.endlineno or attribute.lineno) - 1]
    found = re.search(r"  # (?!type:|noqa|fmt:)(.+)$", line)
    return found[1] if found else None


def markdown(text: str, indent: int = 0) -> str:
    """A docstring as Markdown. Its blocks are paragraphs, items of lists, and what is shown as it is.

    Example: "c = <eos>\\nd = G*H" -> "c = &lt;eos&gt;  \\nd = G\\*H"
    """
    return "\n\n".join(block for block in map(lambda lines: _block(lines, indent), _blocks(text)) if block)


def _blocks(text: str) -> Iterator[list[str]]:
    """The lines of each paragraph, list item, or run of indented lines, which may have blank ones in it."""
    block: list[str] = []
    for line in text.splitlines():
        if block and _is_new(line, block):
            yield block
            block = []
        if line.strip() or block:
            block.append(line)
    yield block


def _is_new(line: str, block: list[str]) -> bool:
    """Whether a line begins another block."""
    if not line.strip():
        return False
    indented = line.startswith("  ")
    if ITEM.match(block[0]):
        return not indented or not block[-1].strip()
    return indented != block[0].startswith("  ") or bool(ITEM.match(line)) or (not indented and not block[-1].strip())


def _block(lines: list[str], indent: int) -> str:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    if not lines:
        return ""
    if match := ITEM.match(lines[0]):
        return _item(match[1], lines, indent)
    if lines[0].startswith("  ") or lines[0].startswith(">>>") or _is_aligned(lines):
        return _verbatim(lines)
    return _paragraph(lines, indent)


def _verbatim(lines: list[str]) -> str:
    return textwrap.indent(textwrap.dedent("\n".join(lines)), "    ")


def _is_aligned(lines: list[str]) -> bool:
    """Columns, or several equations on a line: anything with more than one blank between two words."""
    return any(re.search(r"\S {2,}\S", line) for line in lines)


def _item(mark: str, lines: list[str], indent: int) -> str:
    """An item of a list. Deeper lines are shown as they are; Markdown wants four columns before what belongs to it."""
    first, *rest = [lines[0].removeprefix(mark), *lines[1:]]
    parts: list[tuple[bool, list[str]]] = [(False, [first])]
    for line in rest:
        deep = line.startswith("    ")
        if deep != parts[-1][0]:
            parts.append((deep, []))
        parts[-1][1].append(line if deep else line.strip())
    body = "\n\n".join(_verbatim(part) if deep else _paragraph(part, indent) for deep, part in parts)
    return mark.ljust(4) + textwrap.indent(body, "    ").lstrip()


def _paragraph(lines: list[str], indent: int) -> str:
    shown = []
    for line, after in zip(lines, [*lines[1:], None]):
        ended = after is not None and indent + len(line) + 1 + len(after.split()[0]) <= WIDTH
        shown.append(escape(line) + ("  " if ended else ""))
    return "\n".join(shown)


def escape(line: str) -> str:
    """Marks of Markdown and HTML as plain characters, but in code and in *words that are stressed*."""
    parts = re.split(r"(`+[^`]+`+|(?<![\w*])\*[A-Za-z][A-Za-z ]*\*(?![\w*]))", line)
    return "".join(part if index % 2 else _escape(part) for index, part in enumerate(parts))


def _escape(text: str) -> str:
    text = re.sub(r"([\\*_\[\]{}#`])", r"\\\1", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"\bdocs/((?:[a-z-]+/)?[a-z-]+\.md)", r"[docs/\1](../\1)", text)  # the pages are in api/
