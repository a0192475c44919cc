"""The notebooks: what every reader relies on, and that they run."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import zoo

ROOT = Path(__file__).parents[1]
BOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"), key=lambda path: int(path.name.split("_")[0]))


def script(name: str):
    """A file of notebooks/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"notebooks_{name}", ROOT / f"notebooks/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


execute, stamp = script("execute"), script("stamp")


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


@pytest.fixture
def cells(book) -> list[dict]:
    return read(book)


def test_they_are_numbered_from_1():
    assert [path.name.split("_")[0] for path in BOOKS] == [str(number) for number in range(1, len(BOOKS) + 1)]


def test_the_badge_and_the_setup_cell_are_those_of_the_address_in_pyproject(book):
    now = json.loads(book.read_text(encoding="utf-8"))
    new = stamp.stamped(now, book.name, stamp.address())
    assert [source(cell) for cell in new["cells"]] == [source(cell) for cell in now["cells"]], (
        "run python notebooks/stamp.py"
    )


def test_it_begins_with_its_title_what_it_requires_and_its_minutes(book, cells):
    number = book.name.split("_")[0]
    badge, empty, title, *about = source(cells[0]).splitlines()
    assert badge.startswith(stamp.IMAGE) and not empty and re.fullmatch(rf"# {number}\. \w.*", title)
    words = " ".join(about)
    before, _, _ = words.partition("**Before you start:**")
    assert 3 <= len(re.findall(r"[.?!](?:\s|$)", before)) <= 8
    assert re.search(r"\*\*Before you start:\*\* \S.* \*\*Time:\*\* \d+ minutes on two CPU cores\.$", words.rstrip())


def test_it_ends_with_exercises_that_check_themselves(cells):
    start = next(n for n, cell in enumerate(cells) if source(cell).startswith("## Exercises"))
    assert cells[start]["cell_type"] == "markdown" and cells[-1]["cell_type"] == "markdown"
    parts = cells[start + 1 :]
    assert len(parts) % 3 == 0 and 3 <= len(parts) // 3 <= 4
    for number, (question, code, answer) in enumerate(zip(parts[::3], parts[1::3], parts[2::3]), start=1):
        assert [each["cell_type"] for each in (question, code, answer)] == ["markdown", "code", "markdown"]
        assert re.match(rf"### Exercise {number}: \S", source(question))
        lines = source(code).rstrip().splitlines()
        assert lines[0].startswith(f"# Exercise {number}") and "..." in source(code)
        assert re.search(r"^exercises\.check\(", source(code), re.M) and lines[-1].endswith(")")
        assert "".join(texts(code)).splitlines()[-1].startswith("not answered yet")
        folded = r"<details><summary>Solution</summary>\n\n```python\n(.*?)\n```\n\n(.+?)\n+</details>\s*"
        solved = re.fullmatch(folded, source(answer), re.S)
        assert solved and "```" not in solved[2]
        assert solved[1].startswith(f"# Exercise {number}") and "exercises.check(" in solved[1]
        compile(solved[1], "solution", "exec")


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


def test_the_task_of_the_seventh_is_short():
    """Its title promises fifty lines."""
    last = next(path for path in BOOKS if path.name.startswith("7_"))
    file = next(source(cell) for cell in read(last) if source(cell).startswith("%%writefile pointing.py"))
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
    book = opened(LESSONS[name])
    if missing := execute.missing_data(book):
        pytest.skip(f"{', '.join(missing)} is not in $S2SJAX_DATA")
    execute.execute(book)


@zoo.each(LESSONS, quick=(), rare=LESSONS)
def test_its_solutions_are_right(name):
    book = opened(LESSONS[name])
    if missing := execute.missing_data(book):
        pytest.skip(f"{', '.join(missing)} is not in $S2SJAX_DATA")
    solved = execute.solutions(book.cells)
    for index, solution in solved.items():
        book.cells[index].source = solution
    assert not execute.wrong_solutions(execute.execute(book), solved)


def opened(path: Path):
    nbformat = pytest.importorskip("nbformat", reason="the extra notebooks is not installed")
    pytest.importorskip("nbclient", reason="the extra notebooks is not installed")
    pytest.importorskip("ipykernel", reason="the extra notebooks is not installed")
    return nbformat.read(path, as_version=4)


# ------------------------------------------------------------------------------ execute.py, stamp.py


def cell(kind: str, text: str) -> dict:
    extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text, **extra}


def exercise(solution: str) -> list[dict]:
    folded = f"<details><summary>Solution</summary>\n\n```python\n{solution}\n```\n\nThat is why.\n</details>"
    return [cell("code", "# Exercise 1\nanswer = ..."), cell("markdown", folded)]


def test_a_solution_takes_the_place_of_its_exercise():
    cells = [cell("code", "1"), *exercise("# Exercise 1\nanswer = 4"), *exercise("# Exercise 2\n5")]
    assert execute.solutions(cells) == {1: "# Exercise 1\nanswer = 4", 3: "# Exercise 2\n5"}


@pytest.mark.parametrize(
    "printed, wrong",
    [
        ("right: four\n", []),
        ("wrong: five\n", ["Exercise 1 prints 'wrong: five'"]),
        ("", ["Exercise 1 prints ''"]),
        ("right: four\nnot answered yet\n", ["Exercise 1 prints 'right: four\\nnot answered yet'"]),
    ],
)
def test_a_solution_must_print_that_it_is_right(printed, wrong):
    nbformat = pytest.importorskip("nbformat", reason="the extra notebooks is not installed")
    book = nbformat.from_dict({"cells": exercise("# Exercise 1\nanswer = 4")})
    solved = execute.solutions(book.cells)
    book.cells[0] |= {"source": solved[0], "outputs": [nbformat.from_dict({"text": printed})]}
    assert execute.wrong_solutions(book, solved) == wrong


def test_signs_of_life_on_a_slow_machine_are_not_stored():
    nbformat = pytest.importorskip("nbformat", reason="the extra notebooks is not installed")
    stream = lambda name, text: {"output_type": "stream", "name": name, "text": text}
    waiting = "step 0/9  compiling the train step: 8 s so far\nstep 4/9  loss 1.7  9 tokens/s  2 min left\n"
    outputs = [
        stream("stdout", f"{waiting}step 9/9  loss 1\n"),
        stream("stderr", "E1118 slow_operation_alarm.cc:73] Constant folding an instruction is taking > 1s"),
        stream("stderr", "Traceback"),
        stream("stdout", waiting),
    ]
    found = execute.quiet([nbformat.from_dict(each) for each in outputs])
    assert [each.text for each in found] == ["step 9/9  loss 1\n", "Traceback"]


def test_a_notebook_tells_by_its_calls_which_data_it_needs(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="the extra notebooks is not installed")
    monkeypatch.setenv("S2SJAX_DATA", str(tmp_path))
    (tmp_path / "ptb").mkdir()
    code = 's2sjax.get_data("tatoeba")\ns2sjax.data_path("ptb/train.txt")\ns2sjax.data_path("flores-x/dev.txt")'
    book = nbformat.from_dict({"cells": [cell("code", code), cell("markdown", 'get_data("wmt")')]})
    assert execute.missing_data(book) == ["tatoeba", "flores-x"]


def test_a_stamp_replaces_the_badge_and_the_setup_and_nothing_else():
    others = [cell("markdown", "## Two"), cell("code", "2")]
    book = {"cells": [cell("markdown", "# 1. One\n\nText"), cell("code", "# setup"), *others], "nbformat": 4}
    first = stamp.stamped(book, "1_one.ipynb", "")
    text = lambda book, n: source(book["cells"][n])
    assert text(first, 0) == f"{stamp.IMAGE}(https://colab.research.google.com/#upload=true)\n\n# 1. One\n\nText"
    assert 'address = ""' in text(first, 1)
    second = stamp.stamped(first, "1_one.ipynb", "https://github.com/us/s2sjax")
    assert text(second, 0).splitlines()[0].endswith("/github/us/s2sjax/blob/main/notebooks/1_one.ipynb)")
    assert text(second, 0).count("badge") == 1 and text(second, 0).endswith("\n\n# 1. One\n\nText")
    assert 'address = "https://github.com/us/s2sjax"' in text(second, 1)
    assert "@ git+{address}" in text(second, 1)
    assert second["cells"][2:] == others and stamp.stamped(second, "1_one.ipynb", "") == first
    with pytest.raises(ValueError, match="the second cell must be"):
        stamp.stamped({"cells": others[::-1]}, "1_one.ipynb", "")


def test_the_setup_cell_installs_no_name_that_others_could_own():
    assert not re.search(r"pip install [^\n]*(?<!\{)\bs2sjax\b", stamp.setup("https://github.com/us/s2sjax"))
