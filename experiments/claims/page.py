"""Writes docs/claims.md from the results of the claims.

    python experiments/claims/page.py [RUNS ...]

Results in RUNS, folders that the claims have written (`--out`), are first copied to docs/claims: NAME-SIZE.json without
the data of the figure, and the figure of the larger size as NAME.png. The page is made from these files alone.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common

CLAIMS = (
    "length", "fibonacci", "gradients", "reversal", "beam", "units", "table1", "cost", "alignment", "pretraining",
)  # fmt: skip
"""in the order of the page"""
SIZES = ("small", "full")
FOLDER = common.ROOT / "docs" / "claims"
NOT_YET = "not measured yet"

HEAD = """# Ten claims, measured

Each claim of the textbooks is one file in [experiments/claims](../experiments/claims), one command, one figure and one
number with its spread over seeds. It is reported as it came out, also where it contradicts the textbook.

```
make claims                                              all of them at small size: a CPU, nothing to download
python experiments/claims/NAME.py --size full            one of them on one H200, with the data of docs/data.md
python experiments/claims/page.py runs/claims            this page from the results
```

A command that was interrupted continues where it stopped. *Small* uses artificial data and the pronouncing dictionary,
and models of about a hundred thousand weights: it shows that the experiment works, and its verdict is about that size.
Numbers are means with the standard deviation over seeds. The official test parts of the data are not used.

The time "in all" is the sum over jobs that shared a machine with others, up to 16 of them on the H200; compiling and
waiting are part of it. For Table 1 and for the time of an update (Cost of training) all other jobs on the H200 stood
still.
"""


def collect(runs: Path) -> None:
    """Copies what there is in the folder of `make claims`."""
    if not any((runs / name / "result.json").exists() for name in CLAIMS):
        sys.exit(f"error: {runs} has no results of claims: name the folder that they were written to (--out)")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in CLAIMS:
        file = runs / name / "result.json"
        if not file.exists():
            continue
        result = json.loads(file.read_text("utf-8"))
        if result["size"] not in SIZES:
            continue
        result.pop("data")
        common.write_json(FOLDER / f"{name}-{result['size']}.json", result)
        if result["size"] == "full" or not (FOLDER / f"{name}-full.json").exists():
            shutil.copyfile(runs / name / "figure.png", FOLDER / f"{name}.png")


def read() -> dict[str, dict[str, Any]]:
    """The results by claim and size; claims without any are left out."""
    found: dict[str, dict[str, Any]] = {}
    for name in CLAIMS:
        for size in SIZES:
            file = FOLDER / f"{name}-{size}.json"
            if file.exists():
                found.setdefault(name, {})[size] = json.loads(file.read_text("utf-8"))
    return found


def page(results: dict[str, dict[str, Any]]) -> str:
    rows = []
    for sizes in results.values():
        any_size = next(iter(sizes.values()))
        cells = [f"{common.shown(sizes[s])}, {sizes[s]['verdict']}" if s in sizes else NOT_YET for s in SIZES]
        rows.append([f"[{any_size['statement']}](#{anchor(any_size)})", any_size["number"], *cells])
    summary = [
        "| " + " | ".join(row) + " |"
        for row in (("claim", "number", "small (CPU)", "full (one H200)"), ["---"] * 4, *rows)
    ]
    parts = [HEAD, "\n".join(summary)]
    parts += [section(name, sizes) for name, sizes in results.items()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def section(name: str, sizes: dict[str, Any]) -> str:
    first = next(iter(sizes.values()))
    shown = "full" if "full" in sizes else "small"
    lines = [
        f"## {first['title']}",
        f"**{first['statement']}** ({first['paper']}). [experiments/claims/{name}.py](../experiments/claims/{name}.py)",
        f"![{first['statement']}](claims/{name}.png)",
        f"*Figure: {shown} size.*",
    ]
    for size in SIZES:
        if size not in sizes:
            lines.append(
                f"**{size.capitalize()}** (one H200): {NOT_YET}." if size == "full" else f"**Small**: {NOT_YET}."
            )
            continue
        result = sizes[size]
        command, versions = (result["environment"][name] for name in ("command", "versions"))
        lines += [
            f"**{size.capitalize()}** (`{command}`; {result['hardware']}, JAX {versions['jax']}, "
            f"{duration(result['seconds'])} in all): {result['number']} **{common.shown(result)}**.",
            "\n".join(common.markdown_table(result["columns"], result["rows"])),
            f"The claim {result['verdict']}. {result['paragraph']}",
        ]
    return "\n\n".join(lines)


def anchor(result: dict[str, Any]) -> str:
    """As GitHub names the heading."""
    return result["title"].lower().replace(" ", "-")


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def main(runs: Sequence[str]) -> None:
    for folder in runs:
        collect(Path(folder))
    target = FOLDER.with_suffix(".md")
    target.write_text(page(read()), encoding="utf-8")
    print(f"wrote {target.relative_to(common.ROOT)}, with {len(read())} of {len(CLAIMS)} claims")


if __name__ == "__main__":
    main(sys.argv[1:])
