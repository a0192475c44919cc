"""The notebooks: what every reader relies on, and that they run."""

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
import zoo

ROOT = Path(__file__).parents[1]
BOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

spec = importlib.util.spec_from_file_location("notebooks_execute", ROOT / "notebooks/execute.py")
assert spec is not None and spec.loader is not None
execute = importlib.util.module_from_spec(spec)
spec.loader.exec_module(execute)


def read(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def texts(cell: dict) -> list[str]:
    """What a code cell has printed or returned."""
    found = []
    for output in cell.get("outputs", ()):
        found += ["".join(output.get("text", "")), "".join(output.get("data", {}).get("text/plain", ""))]
    return found


@pytest.fixture(params=BOOKS, ids=lambda path: path.stem)
def book(request) -> Path:
    return request.param


def test_there_are_seven():
    assert [path.name[:2] for path in BOOKS] == [f"{number}_" for number in range(1, 8)]


def test_it_begins_with_a_badge_and_an_installation_and_ends_with_exercises(book):
    first, *others = read(book)
    assert source(first).startswith("[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]")
    assert f"\n# {book.name[0]}. " in source(first)
    code = next(cell for cell in others if cell["cell_type"] == "code")
    assert "%pip install -q s2sjax" in source(code) and 'find_spec("s2sjax") is None' in source(code)
    last = source(others[-1]).partition("## Exercises\n")[2]
    assert 3 <= len(re.findall(r"^\d\. ", last, re.M)) <= 4


def test_the_badge_leads_to_the_repository_once_it_has_an_address(book):
    """Until pyproject.toml names one (project.urls), it leads to the page where a notebook can be uploaded."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    found = re.findall(r"\((https://colab\.research\.google\.com/[^)]*)\)\n", source(read(book)[0]))
    prefix = "https://github.com/"
    owners = [url.removeprefix(prefix).strip("/") for url in urls.values() if url.startswith(prefix)]
    place = f"github/{owners[0]}/blob/main/notebooks/{book.name}" if owners else "#upload=true"
    assert found == [f"https://colab.research.google.com/{place}"]


def test_it_has_outputs_without_errors_warnings_and_places_of_one_machine(book):
    cells = [cell for cell in read(book) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, 1 + len(cells)))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "stream" in kinds and "error" not in kinds
    assert all(output.get("name") != "stderr" for cell in cells for output in cell["outputs"])
    printed = "\n".join(text for cell in cells for text in texts(cell))
    assert not re.search(r"(^|[\s'\"(=])(/(home|root|tmp|usr|content|Users|work)/|~/|[A-Z]:\\)", printed)
    assert not re.search(r"Warning\b| at 0x[0-9a-f]+", printed)
    assert book.stat().st_size < 400_000


def test_the_task_of_the_last_one_is_short():
    """Its title promises fifty lines."""
    file = next(source(cell) for cell in read(BOOKS[-1]) if source(cell).startswith("%%writefile pointing.py"))
    own = file.partition("class PointingTask(Task):\n")[2].partition("\nexperiment = ")[0]
    assert 0 < len([line for line in own.splitlines() if line.strip()]) <= 50


def test_it_imports_what_there_is(book):
    lines = "\n".join(source(cell) for cell in read(book) if cell["cell_type"] == "code").splitlines()
    imports = [line for line in lines if re.match(r"import s2sjax$|from s2sjax", line)]
    assert imports
    for line in imports:
        exec(line, {})


LESSONS = {path.stem: path for path in BOOKS}
SHORT = {"3_the_transformer_step_by_step", "5_scan_against_attention", "7_your_own_task"}
"""Notebooks that end within a minute: `make notebooks` executes all."""


@zoo.each(LESSONS, quick=(), rare=set(LESSONS) - SHORT)
def test_it_runs(name):
    pytest.importorskip("nbclient", reason="the extra notebooks is not installed")
    pytest.importorskip("ipykernel", reason="the extra notebooks is not installed")
    execute.execute(LESSONS[name])
