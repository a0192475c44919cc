"""A figure as one HTML fragment: a static form, and a program that replaces it by one that moves.

The program draws into a shadow root, so neither the styles of the page reach the figure nor those of the figure the
page, and the figure is as tall as its content. It uses dark colours if the text around it is light, so it also follows
a theme that the reader has chosen for JupyterLab, Colab or this site. Where scripts are removed, as in the notebook
view of GitHub, the static form stays.

Values are JSON with `<`, `>` and `&` escaped, so they cannot end the script, and the program inserts text only as text.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPED = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


class Figure:
    """A figure that notebooks display, and that `save` writes as an HTML page."""

    def __init__(self, draw: str, view: Any, scripts: tuple[str, ...], static: str, title: str):
        """draw: the function of the scripts that draws the plain values `view`. static: HTML without scripts."""
        self._draw, self._view, self._scripts, self._static, self._title = draw, view, scripts, static, title

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the figure as an HTML page."""
        from s2sjax.files import naming

        path = Path(path)
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._page(), encoding="utf-8")
        return path

    def _page(self) -> str:
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(self._title)}</title>
<link rel="icon" href="data:,">
</head>
<body>
{self._repr_html_()}
</body>
</html>
"""

    def _repr_html_(self) -> str:
        program = "\n".join(map(compact, ("dom.js", *self._scripts, "mount.js")))
        style = compact("figure.css") + compact("film.css")
        values = f"const view={escaped_json(self._view)};\nconst style={escaped_json(style)};"
        # Equal figures may have the same name: the program draws into all that are still without a shadow root.
        name = hashlib.sha256(f"{self._static}{values}{program}".encode()).hexdigest()[:12]
        return (
            f'<div data-s2sjax="{name}" data-lm-suppress-shortcuts="true">{self._static}</div>\n'
            f'<script>(()=>{{"use strict";\n{values}\n{program}\n'
            f'mount("{name}",style,(host)=>{self._draw}(view,host));}})()</script>'
        )

    def __repr__(self) -> str:
        return f"<{self._title}>"


def escaped_json(value: Any) -> str:
    """JSON that is safe in a script element. Lone surrogates, which UTF-8 cannot encode, are escaped too."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _ESCAPED.sub(lambda found: _UNSAFE.get(found[0], f"\\u{ord(found[0]):04x}"), text)


def static_text(text: str) -> str:
    """The static form of a figure that is plain text."""
    return f"<pre>{html.escape(text.encode('utf-8', 'replace').decode('utf-8'))}</pre>"


def file(name: str) -> str:
    """The text of a file of static/."""
    return resources.files("s2sjax.interactive").joinpath("static", name).read_text(encoding="utf-8")


def compact(name: str) -> str:
    """The text of a file of static/ without indentation, blank lines and lines of comments."""
    lines = (line.strip() for line in file(name).splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
