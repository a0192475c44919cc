"""Executes the notebooks afresh, each in an empty directory, and stops at the first cell that fails.

python notebooks/execute.py                 all of them: `make notebooks`
python notebooks/execute.py --write 2 4     the second and the fourth, and stores their new outputs
python notebooks/execute.py --solutions     all, with the solutions in place of the exercises: they must be right

A notebook that calls `s2sjax.get_data("NAME")` or `s2sjax.data_path("NAME/...")` needs this data set in $S2SJAX_DATA
(default: data/ of the clone), and is skipped where it is missing. The extra `notebooks` installs what this needs.
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
SECONDS = 600
"""the most that one cell may take"""


def find(numbers: list[str]) -> list[Path]:
    """The notebooks whose names begin with these numbers; all without any."""
    numbered = sorted(FOLDER.glob("*.ipynb"), key=lambda path: int(path.name.split("_")[0]))
    books = {path.name.split("_")[0]: path for path in numbered}
    for number in numbers:
        if number not in books:
            sys.exit(f"error: there is no notebook {number}: choose from {', '.join(books)}")
    return [books[number] for number in numbers or books]


def data_folder() -> Path:
    """The folder with the data sets."""
    return Path(os.environ.get("S2SJAX_DATA") or FOLDER.parent / "data").resolve()


def missing_data(book: Any) -> list[str]:
    """The data sets that a notebook uses and that are not in the folder."""
    code = "\n".join(cell.source for cell in book.cells if cell.cell_type == "code")
    names = re.findall(r"""(?:get_data|data_path)\(["']([\w-]+)""", code)
    return [name for name in dict.fromkeys(names) if not (data_folder() / name).is_dir()]


def execute(book: Any) -> Any:
    """The notebook with new outputs. A cell that fails raises `nbclient.exceptions.CellExecutionError`."""
    from nbclient import NotebookClient

    # A notebook counts devices and compares numbers: what another test has set must not change them.
    set_by_tests = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    environment = {name: value for name, value in os.environ.items() if name not in set_by_tests}
    searched = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, searched))}
    environment |= {"S2SJAX_DATA": str(data_folder())}
    with tempfile.TemporaryDirectory() as empty:
        client = NotebookClient(
            book, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": empty}}, record_timing=False,
            extra_arguments=["--log-level=ERROR"],
        )  # fmt: skip
        client.execute(env=environment)
    return clean(book)


def solutions(cells: list[Any]) -> dict[int, str]:
    """{index of the code cell of an exercise: its solution}."""
    found: dict[int, str] = {}
    exercise = None
    for index, cell in enumerate(cells):
        if cell["cell_type"] == "code" and "".join(cell["source"]).startswith("# Exercise "):
            exercise = index
        elif "".join(cell["source"]).startswith("<details><summary>Solution</summary>") and exercise is not None:
            found[exercise] = "".join(re.findall(r"```python\n(.*?)\n```", "".join(cell["source"]), re.S))
            exercise = None
    return found


def wrong_solutions(book: Any, solved: dict[int, str]) -> list[str]:
    """The exercises of an executed notebook whose solutions did not print "right: ...", with what they printed."""
    found = []
    for index in solved:
        cell = book.cells[index]
        printed = "".join(output.get("text", "") for output in cell.outputs)
        if not re.search("^right: ", printed, re.M) or re.search("^(wrong: |not answered yet)", printed, re.M):
            name = (cell.source.splitlines() or ["an empty solution"])[0].lstrip("# ")
            found.append(f"{name} prints {printed.strip()!r}")
    return found


def clean(book: Any) -> Any:
    """Without what differs from one execution to the next, or from machine to machine, and says nothing."""
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = joined(quiet(cell.outputs))
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                data["text/plain"] = "<picture>"
            elif "text/plain" in data:
                data["text/plain"] = re.sub(r" at 0x[0-9a-f]+", "", data["text/plain"])
    return book


def quiet(outputs: list[Any]) -> list[Any]:
    """Without the signs of life on a slow machine: progress between the logged steps, XLA's alarm of slowness."""
    found = [output for output in outputs if "slow_operation_alarm" not in output.get("text", "")]
    for output in found:
        if output.output_type == "stream":
            output.text = re.sub(r"^.* \d+ (s|min|h) (so far|left)\n", "", output.text, flags=re.M)
    return [output for output in found if output.output_type != "stream" or output.text]


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
    parser.add_argument("--solutions", action="store_true", help="execute the solutions instead of the exercises")
    arguments = parser.parse_args()
    if arguments.write and arguments.solutions:
        sys.exit("error: --write stores the exercises, not their solutions: give one of --write and --solutions")
    try:
        import ipykernel  # noqa: F401
        import nbformat
        from nbclient.exceptions import CellExecutionError
    except ModuleNotFoundError as missing:
        sys.exit(f"error: {missing.name} is not installed: pip install -e '.[notebooks]' in the clone")
    for path in find(arguments.numbers):
        book = nbformat.read(path, as_version=4)
        if missing := missing_data(book):
            print(f"{path.name}: skipped, $S2SJAX_DATA lacks data: s2sjax data get {' '.join(missing)}", flush=True)
            continue
        solved = solutions(book.cells) if arguments.solutions else {}
        for index, solution in solved.items():
            book.cells[index].source = solution
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            book = execute(book)
        except CellExecutionError as failed:
            sys.exit(f"error: {path.name} fails:\n{failed}")
        if wrong := wrong_solutions(book, solved):
            sys.exit(f"error: {path.name}: " + "; ".join(wrong))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        work = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        right = f", {len(solved)} solutions are right" if arguments.solutions else ""
        print(f"{path.name}: {time.perf_counter() - begin:.0f} s, {work:.0f} s of CPU{right}", flush=True)
        if arguments.write:
            nbformat.write(book, path)


if __name__ == "__main__":
    main()
