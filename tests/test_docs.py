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

from s2sjax.core import search
from s2sjax.experiment_file import load_experiment

DOCS = Path(__file__).parents[1] / "docs"


def words(text: str) -> list[str]:
    """Without blanks, line ends and the marks of code."""
    return re.sub(r"[`\s]+", " ", text.replace("`", "")).split()


def test_the_page_of_search_is_the_specification():
    assert search.__doc__ is not None
    specification = search.__doc__.split("-------------\n")[1].split("A model is seen as")[0]
    page = (DOCS / "search.md").read_text(encoding="utf-8")
    shown = page.split("V vocabulary.\n")[1].split("## One beam")[0]
    assert words(shown) == words(specification)


def test_every_link_of_a_page_leads_somewhere():
    pages = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *DOCS.glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_experiment_of_the_readme_can_be_loaded(tmp_path):
    blocks = re.findall("```python\n(.*?)```", (DOCS.parent / "README.md").read_text(encoding="utf-8"), re.S)
    (tmp_path / "mine.py").write_text(blocks[0], encoding="utf-8")
    assert load_experiment(tmp_path / "mine.py").name == "mine"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_file_of_the_map_exists(name):
    """The map in the README and the tables of CONTRIBUTING.md name files of s2sjax/, tests/ or the repository."""
    text = (DOCS.parent / name).read_text(encoding="utf-8")
    for path in set(re.findall(r"\b[a-z_]+(?:/[a-z_]+)*\.py\b", text)) - {"mine.py"}:
        found = [*DOCS.parent.glob(f"s2sjax/**/{path}"), *DOCS.parent.glob(path), *DOCS.parent.glob(f"tests/{path}")]
        assert found, f"{name}: {path}"


@pytest.mark.parametrize("file", sorted((DOCS.parent / "experiments").rglob("*.py")), ids=lambda path: path.name)
def test_an_experiment_can_be_read_and_names_the_command_that_runs_it(file):
    text = file.read_text(encoding="utf-8")
    if text.startswith('"""') and "\nexperiment = " in text:
        load_experiment(str(file))
        assert f"s2sjax train {file.relative_to(DOCS.parent)}" in text or "make run" in text


@pytest.mark.timeout(1800)
@zoo.each(["few steps", "as they are"], quick=(), rare=("as they are",))
def test_the_commands_of_the_page_from_laptop_to_pod_can_be_typed(name, tmp_path):
    """One after the other, in a copy of the experiments, as a reader would; or with few steps and without the plan."""
    shutil.copytree(DOCS.parent / "experiments", tmp_path / "experiments")
    few = name == "few steps"
    if few:
        file = tmp_path / "experiments/reverse.py"
        text = file.read_text(encoding="utf-8")
        assert "steps=600" in text and "evaluate_every=200" in text
        file.write_text(text.replace("steps=600", "steps=20").replace("evaluate_every=200", "evaluate_every=20"))
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
