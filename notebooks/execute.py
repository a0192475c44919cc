"""Executes the notebooks afresh, each in an empty directory, and stops at the first cell that fails.

python notebooks/execute.py                 all of them: `make notebooks`
python notebooks/execute.py --write 2 4     the second and the fourth, and stores their new outputs

The extra `notebooks` installs what this needs.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SECONDS = 180
"""the most that one cell may take"""


def find(numbers: list[str]) -> list[Path]:
    """The notebooks whose names begin with these numbers; all without any."""
    books = {path.name.split("_")[0]: path for path in sorted(FOLDER.glob("*.ipynb"))}
    for number in numbers:
        if number not in books:
            sys.exit(f"error: there is no notebook {number}: choose from {', '.join(books)}")
    return [books[number] for number in numbers or books]


def execute(path: Path) -> Any:
    """The notebook with new outputs. A cell that fails raises `nbclient.exceptions.CellExecutionError`."""
    import nbformat
    from nbclient import NotebookClient

    # A notebook counts devices and compares numbers: what another test has set must not change them.
    set_by_tests = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    environment = {name: value for name, value in os.environ.items() if name not in set_by_tests}
    searched = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, searched))}
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as empty:
        client = NotebookClient(
            book, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": empty}}, record_timing=False,
            extra_arguments=["--log-level=ERROR"],
        )  # fmt: skip
        client.execute(env=environment)
    return clean(book)


def clean(book: Any) -> Any:
    """Without what differs from one execution to the next, or from machine to machine, and says nothing."""
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                data["text/plain"] = "<picture>"
            elif "text/plain" in data:
                data["text/plain"] = re.sub(r" at 0x[0-9a-f]+", "", data["text/plain"])
    return book


def joined(outputs: list[Any]) -> list[Any]:
    """What was printed piece by piece, as one piece."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == "stream" and found[-1].get("name") == output.name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", help="of the notebooks, such as 2 4; default: all")
    parser.add_argument("--write", action="store_true", help="store the new outputs in the notebooks")
    arguments = parser.parse_args()
    try:
        import ipykernel  # noqa: F401
        import nbformat
        from nbclient.exceptions import CellExecutionError
    except ModuleNotFoundError as missing:
        sys.exit(f"error: {missing.name} is not installed: pip install 's2sjax[notebooks]'")
    for path in find(arguments.numbers):
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            book = execute(path)
        except CellExecutionError as failed:
            sys.exit(f"error: {path.name} fails:\n{failed}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        work = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{path.name}: {time.perf_counter() - begin:.0f} s, {work:.0f} s of CPU", flush=True)
        if arguments.write:
            nbformat.write(book, path)


if __name__ == "__main__":
    main()
