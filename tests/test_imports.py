"""A package imports only packages below it."""

import ast
import subprocess
import sys
import tomllib
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from conftest import child_environment

import s2sjax

ROOT = Path(s2sjax.__file__).parent

# From the bottom up; a package may import itself and those named before it.
LAYERS = [
    "version",
    "errors",
    "exercises",
    "former_names",
    "object_storage",
    "files",
    "datasets",
    "core",
    "config",
    "layers",
    "models",
    "data",
    "interop",
    "training",
    "evaluate",
    "align",
    "statistical",
    "interactive",
    "tasks",
    "testing",
    "runs",
    "report",
    "serve",
    "plan",
    "bench",
    "cli",
]
# Narrower than the order alone allows: the core is jax and nothing of ours, and these packages know nothing of models.
ALLOWED = {
    "core": {"core"},
    "datasets": {"version", "errors", "files", "datasets"},
    "data": {"errors", "object_storage", "files", "datasets", "config", "core", "data"},
    "interop": {"errors", "files", "config", "core", "data", "interop"},
    "training": {"errors", "object_storage", "files", "config", "core", "training"},
    "evaluate": {"errors", "former_names", "files", "config", "core", "data", "evaluate"},
    "align": {"errors", "data", "align"},
    "statistical": {"errors", "align", "statistical"},
}


def packages_imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "s2sjax":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("s2sjax."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("s2sjax.")}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file}: relative imports hide the direction"
    return found


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_imports_only_packages_below(file):
    package = file.relative_to(ROOT).parts[0].removesuffix(".py")
    if package == "__init__":
        # Inside its functions, or for type checkers alone: importing s2sjax does not import JAX.
        assert packages_imported(file) == {"version", "errors", "config", "datasets", "former_names", "runs"}
        return
    allowed = ALLOWED.get(package, set(LAYERS[: LAYERS.index(package) + 1]))
    assert packages_imported(file) <= allowed


def test_every_package_has_its_place():
    found = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert found - {"__init__", "__pycache__", "bench"} == set(LAYERS) - {"bench"}


def test_no_tensorflow_and_nothing_heavy_at_import():
    """TensorFlow never; what is slow to import only when it is used."""
    for file in ROOT.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "import tensorflow\n" not in text
        assert not any(line.startswith(("import grain", "import tensorflow_datasets")) for line in text.splitlines())


def test_a_command_starts_with_what_it_needs():
    """The command line without JAX; a run to decode with, without what only drawing and training use."""
    code = (
        "import sys, s2sjax.cli.main\n"
        "print(*sorted({'jax', 'numpy', 'tyro'} & sys.modules.keys()))\n"
        "import s2sjax.runs.run\n"
        "slow = {'matplotlib', 'grain', 'tensorboardX', 'tensorflow_datasets', 'sacrebleu'}\n"
        "slow |= {'optax', 'orbax.checkpoint'}\n"
        "print(*sorted(slow & sys.modules.keys()), *(name for name in sys.modules if 'pallas.triton' in name))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("\n\n", 0), done


def test_an_editable_installation_is_found_from_the_folder_of_the_clone():
    """setuptools then writes a path, not an import hook. PathFinder prefers a package on the path to the folder of the
    clone, which has no __init__.py, but asks no hook behind it.
    """
    setuptools = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert setuptools["package-dir"] == {"": "."} and not (ROOT.parent / "__init__.py").exists()
    with_clone = [str(ROOT.parent.parent), str(ROOT.parent)]
    spec = PathFinder.find_spec("s2sjax", with_clone)
    assert spec is not None and spec.origin == str(ROOT / "__init__.py")
