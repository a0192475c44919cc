"""Notebooks as pages of the site: text with formulas, code, and the outputs that are stored in the file.

Nothing is executed. An output stands in the Markdown as a comment, which `with_outputs` replaces in the finished page:
what a figure draws of itself, scripts included, never passes through Markdown.
"""

import base64
import html
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

BADGE = re.compile(r"\[!\[(?P<text>[^\]]*)\]\(https?:[^)]*\)\]\((?P<url>[^)]*)\)[ \t]*\n?")
"""a picture that is loaded from elsewhere, and is a link"""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
STAMPED = "This cell is written by notebooks/stamp.py"
FOLDED = "<details><summary>{}</summary>\n\n{}\n\n</details>"
MARK = "<!-- output {} -->"


class NotebookPage(NamedTuple):
    markdown: str
    outputs: list[str]
    """HTML of the output of each cell that has one"""
    pictures: dict[str, bytes]
    """PNG files that the outputs show, by their address seen from the page"""


def read(path: Path) -> NotebookPage:
    """The page of a notebook. It begins with links to the file, and to Colab if the notebook has one."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts: list[str] = []
    outputs: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in cells:
        text = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(text if parts else first(text, path))
        elif text:
            code = f"``````python\n{text}\n``````"
            parts.append(FOLDED.format("Setup", code) if STAMPED in text else code)
        shown = [_output(output, path.stem, pictures) for output in cell.get("outputs", [])]
        if any(shown):
            parts.append(MARK.format(len(outputs)))
            outputs.append(f'<div class="notebook-output">{"".join(shown)}</div>')
    markdown = "\n\n".join(parts).replace("<details>", '<details markdown="1">')
    return NotebookPage(markdown + "\n", outputs, pictures)


def first(text: str, path: Path) -> str:
    """The first cell, with links below its title instead of a badge above it."""
    links = [f'<a class="md-button" href="{path.name}" download>Download the notebook</a>']
    links += [
        f'<a class="md-button" href="{html.escape(badge["url"])}">{html.escape(badge["text"])}</a>'
        for badge in BADGE.finditer(text)
        if "/github/" in badge["url"]  # otherwise it leads to a page where a file can be uploaded
    ]
    title, _, rest = BADGE.sub("", text).strip().partition("\n")
    return f"{title}\n\n{' '.join(links)}\n\n{rest.strip()}"


def with_outputs(content: str, outputs: list[str]) -> str:
    """The HTML of a page with its outputs in their places."""
    for number, output in enumerate(outputs):
        content = content.replace(MARK.format(number), output)
    return content


def _output(output: dict[str, Any], name: str, pictures: dict[str, bytes]) -> str:
    """One output as HTML: of several forms the richest."""
    if output["output_type"] == "stream":
        return _text(output["text"])
    if output["output_type"] == "error":
        return _text(output["traceback"], "\n")
    data = output["data"]
    for kind in ("text/html", "image/svg+xml"):
        if kind in data:
            return f"<div data-search-exclude>{''.join(data[kind])}</div>"
    if "image/png" in data:
        address = f"{name}/{len(pictures)}.png"
        pictures[address] = base64.b64decode("".join(data["image/png"]))
        return f'<img src="{address}" alt="Figure {len(pictures)}, drawn by the code above" loading="lazy">'
    return _text(data.get("text/plain", ""))


def _text(lines: str | list[str], between: str = "") -> str:
    text = COLOURS.sub("", between.join(lines)).rstrip()
    return f"<pre>{html.escape(text, quote=False)}</pre>" if text else ""
