"""A room imports only rooms below it."""

import ast
from pathlib import Path

import pytest

import s2sjax

ROOT = Path(s2sjax.__file__).parent

# From the ground up; a room may import itself and those named before it.
FLOORS = [
    "errors",
    "core",
    "config",
    "layers",
    "models",
    "data",
    "train",
    "evaluate",
    "run",
    "bench",
    "fields",
    "lines",
    "plan",
    "launch",
    "doctor",
    "cli",
]
# Narrower than the order alone allows: the core is jax and nothing of ours, and these rooms know nothing of models.
ALLOWED = {
    "core": {"core"},
    "data": {"errors", "config", "core", "data"},
    "train": {"errors", "config", "core", "train"},
    "evaluate": {"errors", "config", "core", "data", "evaluate"},
}


def rooms_imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "s2sjax":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("s2sjax."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("s2sjax.")}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file}: relative imports hide the direction"
    return found - {"__version__"}


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_rooms_below(file):
    room = file.relative_to(ROOT).parts[0].removesuffix(".py")
    if room == "__init__":
        assert not rooms_imported(file)
        return
    allowed = ALLOWED.get(room, set(FLOORS[: FLOORS.index(room) + 1]))
    assert rooms_imported(file) <= allowed


def test_every_room_has_a_floor():
    rooms = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__pycache__", "bench"} == set(FLOORS) - {"bench"}


def test_no_tensorflow_and_nothing_heavy_at_import():
    """TensorFlow never; what is slow to import only when it is used."""
    for file in ROOT.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "import tensorflow\n" not in text
        assert not any(line.startswith(("import grain", "import tensorflow_datasets")) for line in text.splitlines())
