"""Writes docs/claims.md from the results of the claims.

    python experiments/claims/page.py [RUNS ...]

RUNS are folders that the claims have written (`--out`). Their results are first copied to docs/claims: NAME-SIZE.json,
without the data of the figure, and NAME.png, the figure of the larger size. The page is made from these files alone.
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
    "mixers", "statistical",
)  # fmt: skip
"""claims in the order of the page"""
SIZES = ("small", "full")
FOLDER = common.ROOT / "docs" / "claims"
NOT_YET = "not measured yet"

HEAD = """# Twelve claims, measured

Each claim is a statement that textbooks make. One file in [experiments/claims](../experiments/claims), run by one
command, tests it and gives a figure and a number with its spread over seeds. Results that contradict the textbook are
reported too.

```
make claims                                              all claims at small size, on a CPU; downloads nothing
python experiments/claims/NAME.py --size full            one claim on one H200, with the data of docs/data.md
python experiments/claims/page.py runs/claims            this page, from the results
```

To continue an interrupted command, run it again. The *small* size uses artificial data and the pronouncing dictionary,
and models with about a hundred thousand weights. It shows that the experiment works; its verdict applies to this size
only. Numbers are means and standard deviations over seeds. The official test sets are not used.

Total times are sums over jobs, and include compilation and waiting. The jobs shared their machine with others, up to 16
at once on the H200. No other job ran for Table 1, and on the H200 for the time per update in Cost of training; nor on
either device for the time per update in Recurrences at equal cost.
"""


def collect(runs: Path) -> None:
    """Copies the results in a folder that the claims have written."""
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
    """Reads the results by claim and size. Claims without results are left out."""
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
            f"{duration(result['seconds'])} in total). Measured {result['number']}: **{common.shown(result)}**.",
            "\n".join(common.markdown_table(result["columns"], result["rows"])),
            f"The claim {result['verdict']}. {result['paragraph']}",
        ]
    for table in sizes[shown].get("tables", ()):
        lines += [table["sentence"], "\n".join(common.markdown_table(table["columns"], table["rows"]))]
    return "\n\n".join(lines)


def anchor(result: dict[str, Any]) -> str:
    """The anchor that GitHub gives to the heading."""
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
