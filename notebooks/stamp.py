"""Writes the badge and the setup cell of every notebook from the address in pyproject.toml.

python notebooks/stamp.py            writes them
python notebooks/stamp.py --check    names the notebooks whose badge or setup cell differs, and exits with 1

The address is `Repository` of [project.urls]. While it is empty, the badge leads to the page where a notebook can be
uploaded to Colab, and the setup cell installs a wheel or a clone that it finds, or says how to make one.
In a new notebook, the first cell begins with a title, and the second cell is the line `# setup`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
GITHUB = "https://github.com/"
IMAGE = "[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
FIRST = "# Uses s2sjax if it is installed; else installs it. This cell is written by notebooks/stamp.py."
BEGINS = (FIRST, "# setup", "# For Colab.")
"""how a setup cell begins, also one that is not stamped yet"""
SETUP = (
    FIRST
    + """
import importlib.util
import sys
from glob import glob
from importlib import metadata

spec = importlib.util.find_spec("s2sjax")
if spec is None or spec.origin is None:  # a folder of this name without code is no package
    address = "ADDRESS"  # of the repository; empty: a clone or a wheel is needed
    wheels = glob("./s2sjax-*.whl") + glob("/kaggle/input/**/s2sjax-*.whl", recursive=True)
    clones = [folder for folder in ("..", "./s2sjax") if glob(f"{folder}/s2sjax/__init__.py")]
    sources = [f"{path}[g2p,audio]" for path in [*sorted(wheels)[-1:], *clones]]
    sources += [f"s2sjax[g2p,audio] @ git+{address}"] if address else []
    if not sources:

        class NotInstalled(ImportError):
            def _render_traceback_(self):  # the message alone
                return [str(self)]

        raise NotInstalled(
            "s2sjax is not installed. In a clone of its repository, run\\n\\n    pip wheel --no-deps .\\n\\n"
            "and upload the file s2sjax-...-py3-none-any.whl here (Colab: the folder icon on the left; Kaggle: "
            "Add Input),\\nor open this notebook in the folder notebooks of a clone. Then run this cell again."
        )
    before = {package.name: package.version for package in metadata.distributions()}
    %pip install -q "{sources[0]}"
    importlib.invalidate_caches()
    after = {package.name: package.version for package in metadata.distributions()}
    changed = [name for name in before if after.get(name) != before[name] and name.replace("-", "_") in sys.modules]
    if changed:
        print(f"changed while in use: {', '.join(changed)}. Restart the session, then run this cell again")
"""
)


def address() -> str:
    """The address of the repository, or "" while the owner has not filled it in."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository", "").rstrip("/")


def badge(name: str, repository: str) -> str:
    """The first line of a notebook: opens it in Colab."""
    owner = repository.removeprefix(GITHUB)
    place = f"github/{owner}/blob/main/notebooks/{name}" if repository.startswith(GITHUB) else "#upload=true"
    return f"{IMAGE}(https://colab.research.google.com/{place})"


def setup(repository: str) -> str:
    """The second cell of a notebook."""
    return SETUP.replace("ADDRESS", repository).strip()


def stamped(book: dict[str, Any], name: str, repository: str) -> dict[str, Any]:
    """The notebook with its badge and its setup cell. Outputs stay as they are."""
    first, second, *others = book["cells"]
    if second["cell_type"] != "code" or not source(second).startswith(BEGINS):
        raise ValueError(f"{name}: the second cell must be a code cell with the line `# setup`")
    text = source(first)
    title = text.partition("\n")[2].lstrip("\n") if text.startswith("[![Open In Colab]") else text
    first = first | {"source": f"{badge(name, repository)}\n\n{title}".splitlines(keepends=True)}
    second = second | {"source": setup(repository).splitlines(keepends=True)}
    return book | {"cells": [first, second, *others]}


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def main(folder: Path = FOLDER) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a notebook differs")
    check = parser.parse_args().check
    differ = False
    for path in sorted(folder.glob("*.ipynb")):
        book = json.loads(path.read_text(encoding="utf-8"))
        try:
            new = stamped(book, path.name, address())
        except ValueError as error:
            sys.exit(f"error: {error}")
        if [source(cell) for cell in new["cells"][:2]] == [source(cell) for cell in book["cells"][:2]]:
            continue
        differ = True
        print(f"{path.name} {'differs: run python notebooks/stamp.py' if check else 'is stamped'}")
        if not check:  # as nbformat writes it
            text = json.dumps(new, indent=1, sort_keys=True, separators=(",", ": "), ensure_ascii=False)
            path.write_text(text + "\n", encoding="utf-8")
    return int(differ and check)


if __name__ == "__main__":
    sys.exit(main())
