"""The HTML file: the values and the program that shows them.

Values are JSON in a script element that browsers do not execute. `<`, `>` and `&` are escaped, so values cannot end the
element, and the program inserts text only as text. A content security policy with the hash of the program prevents the
browser from executing anything else. The page makes no requests, except for live input to its own server.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib import resources
from typing import Any

from s2sjax.interactive import figure
from s2sjax.interactive.figure import escaped_json as escaped_json

REPORT = ("dom.js", "curves.js", "attention.js", "pixels.js", "heads.js", "tree.js", "outputs.js", "report.js")
SWEEP = ("dom.js", "curves.js", "scatter.js", "sweep.js")
LIVE = ("dom.js", "attention.js", "tree.js", "live.js")
STYLE = ("figure.css", "style.css")


def render(title: str, values: Any, scripts: tuple[str, ...]) -> str:
    """The HTML of the page."""
    style, script = _style(), program(scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy(scripts)}">
<title>{html.escape(title.encode("utf-8", "replace").decode("utf-8"))}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<noscript>This page requires JavaScript.</noscript>
<main id="page"></main>
<script type="application/json" id="values">{escaped_json(values)}</script>
<script>{script}</script>
</body>
</html>
"""


def program(scripts: tuple[str, ...]) -> str:
    """The scripts as one program."""
    return '"use strict";\n' + "\n".join(map(_file, scripts))


def policy(scripts: tuple[str, ...]) -> str:
    """The content security policy: allows this style, this program, and for live input requests to its own server."""
    live = " connect-src 'self';" if scripts == LIVE else ""
    return (
        f"default-src 'none'; style-src {_hash(_style())}; script-src {_hash(program(scripts))}; img-src data:;"
        f"{live} base-uri 'none'; form-action 'none'"
    )


def _style() -> str:
    return "\n".join(map(_file, STYLE))


def _file(name: str) -> str:
    own = resources.files("s2sjax.report").joinpath("static", name)
    return own.read_text(encoding="utf-8") if own.is_file() else figure.file(name)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
