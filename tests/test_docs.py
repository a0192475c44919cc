"""README.md and docs/ agree with the code."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zoo
from conftest import said_by_us

from s2sjax import config, tasks
from s2sjax.core.search import beam_decoding
from s2sjax.runs.experiment_file import load_experiment

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
EXAMPLES = {
    "cell.py", "corpus.py", "labels.py", "medical.py", "mine.py", "mixer.py", "model.py", "pictures.py",
    "recordings.py", "score.py", "series.py", "tags.py", "test_cell.py", "test_corpus.py", "test_mixer.py",
    "test_model.py", "test_score.py", "test_task.py", "text.py",
}  # fmt: skip
"""files that a reader is asked to write"""
PROGRAMS = {
    "alignment.md", "contract.md", "data.md", "extending.md", "getting-started.md", "parts.md", "pretrained.md",
    "python.md", "recurrences.md", "statistical.md", "sweeps.md", "your-data.md",
}  # fmt: skip
"""pages whose Python is run: here, in align/, statistical/, models/families/test_hybrid, test_pretrained,
test_extending, _frames, _parts, _python, _your_data"""


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub("^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The places of a page that a link can name, as GitHub and the site spell them: "1. A plan" -> 1-a-plan."""
    headings = re.findall("^#+ (.*)$", prose(page), re.M)
    return {re.sub(" +", "-", re.sub(r"[^\w\- ]", "", heading.lower())) for heading in headings}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def words(text: str) -> list[str]:
    """Without blanks, line ends and the marks of code."""
    return re.sub(r"[`\s]+", " ", text.replace("`", "")).split()


def test_variables_of_the_environment_are_spelled_as_the_code_reads_them():
    sources = [*(ROOT / "s2sjax").rglob("*.py"), *(ROOT / "tests").glob("*.py")]
    read = {name for path in sources for name in re.findall(r'"(S2SJAX_[A-Z_]+)"', path.read_text(encoding="utf-8"))}
    for page in (*PAGES, ROOT / "Makefile"):
        named = set(re.findall(r"\b(?i:s2sjax)_[A-Z_]+\b", page.read_text(encoding="utf-8")))
        assert named <= read, f"{page}: {named - read} is read nowhere"


def test_the_page_of_search_is_the_specification():
    assert beam_decoding.__doc__ is not None
    specification = beam_decoding.__doc__.split("-------------\n")[1].split("A model is a function")[0]
    page = (DOCS / "search.md").read_text(encoding="utf-8")
    shown = page.split("V vocabulary.\n")[1].split("## One beam")[0]
    assert words(shown) == words(specification)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        if not target.startswith("http"):
            file = page.parent / target if target else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_the_readme_leads_to_every_page_in_one_click():
    linked = re.findall(r"\]\(([^)#]+)", prose(ROOT / "README.md"))
    pages = {name_of(page) for page in PAGES if page.parent.name == "docs" or page.name == "index.md"}
    assert pages and pages <= set(linked)


@pytest.mark.parametrize("page", ["student", "researcher", "engineer"])
def test_the_page_of_a_reader_leads_to_every_page_of_its_section(page):
    """The sections of mkdocs.yml; a part of one, such as the systems, is reached by its first page."""
    section = re.search(rf"^      - {page}\.md\n(.*?)^  - ", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M | re.S)
    assert section
    pages = set(re.findall(r"([\w/-]+\.md)$", section[1], re.M))
    linked = re.findall(r"\]\(([^)#]+)", prose(DOCS / f"{page}.md"))
    assert len(pages) > 4 and pages <= set(linked)


def test_the_python_of_every_page_is_run_by_a_test():
    assert {page.name for page in PAGES if "```python" in page.read_text(encoding="utf-8")} == PROGRAMS


def python_of(page: str, file: str = "") -> str:
    first = f"# {file}.py\n" if file else ""
    (program,) = re.findall(f"```python\n{first}(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    return program


def test_the_experiment_on_your_own_data_is_that_of_the_page_on_it(tmp_path):
    """Which a test runs, with the files that it writes."""
    (tmp_path / "mine.py").write_text(python_of("getting-started.md"), encoding="utf-8")
    experiment = config.without_folders(load_experiment(tmp_path / "mine.py"))
    (pairs,) = re.findall(r"\nexperiment = (.*?\n\))", python_of("your-data.md", "pairs"), re.S)
    assert config.replace(experiment, name="pairs") == eval(pairs, {"config": config, "tasks": tasks})


@pytest.mark.slow
def test_the_program_of_the_contract_runs():
    names: dict = {}
    exec(python_of("contract.md"), names)
    assert names["logits"].shape == (2, 40) and names["attention"].shape == (2, 7)


def test_the_map_names_every_package_and_every_file_beside_them():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    paths = [path for path in (ROOT / "s2sjax").iterdir() if path.is_dir() or path.suffix == ".py"]
    paths = [path for path in paths if not path.name.startswith("__")]
    assert [path.name for path in paths if path.name + "/" * path.is_dir() not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_a_page_names_exists(page):
    """Files of s2sjax/, tests/, experiments/ or the repository: the map, tables, and the text."""
    for path in set(re.findall(r"\b[a-z_0-9]+(?:/[a-z_0-9]+)*\.py\b", page.read_text(encoding="utf-8"))) - EXAMPLES:
        places = (f"s2sjax/**/{path}", path, f"tests/{path}", f"experiments/{path}", f"docs/{path}")
        assert any(next(ROOT.glob(place), None) for place in places), path


def test_every_name_of_the_lecture_map_is_in_its_file():
    """[core/file.py](../s2sjax/core/file.py) `name`, perhaps after "the table"."""
    text = (DOCS / "lectures.md").read_text(encoding="utf-8")
    names = re.findall(r"\]\(\.\./([\w/]+\.py)\)(?:, the table)? `(\w+)`", text)
    assert len(names) >= 8
    for path, name in names:
        code = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(class|def) {name}\b|^{name}\b.* = ", code, re.M), (path, name)


@pytest.mark.parametrize("file", sorted((ROOT / "experiments").rglob("*.py")), ids=lambda path: path.name)
def test_an_experiment_can_be_read_and_names_the_command_that_runs_it(file):
    text = file.read_text(encoding="utf-8")
    if text.startswith('"""') and "\nexperiment = " in text:
        experiment = load_experiment(str(file))
        assert experiment.train.steps > 0, "its scores must not change with the defaults"
        assert all(getattr(experiment.model, name, 1) for name in experiment.sized_by_data)
        assert f"s2sjax train {file.relative_to(ROOT)}" in text or "make run" in text


@pytest.mark.timeout(1800)
@zoo.each(["few steps", "as they are"], quick=(), rare=("few steps", "as they are"))
def test_the_commands_of_the_page_from_laptop_to_pod_can_be_typed(name, tmp_path):
    """One after the other, in a copy of the experiments, as a reader would; or with few steps and without the plan."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    few = name == "few steps"
    if few:
        file = tmp_path / "experiments/reverse.py"
        text = file.read_text(encoding="utf-8")
        fewer = {"600": "20", "=200": "=20", "alphabet=26": "alphabet=26, train=2000, dev=20, test=20"}
        for number, less in fewer.items():
            assert number in text
            text = text.replace(number, less)
        file.write_text(text, encoding="utf-8")
    here = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    blocks = re.findall("^```sh run\n(.*?)^```", (DOCS / "pod.md").read_text(encoding="utf-8"), re.M | re.S)
    assert any("s2sjax launch" in block for block in blocks)
    for block in blocks:
        if few and "s2sjax plan" in block:
            continue
        done = subprocess.run(
            ["bash", "-e"], input=block, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=1200
        )
        assert done.returncode == 0 and not said_by_us(done.stderr), f"{block}\n{done.stdout}\n{done.stderr}"
    for name in ("reverse", "pod"):
        assert list((tmp_path / "runs" / name / "evaluations").glob("test-*/results.json"))
