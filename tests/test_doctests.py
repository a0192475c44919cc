"""The examples in docstrings print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import s2sjax

ROOT = Path(s2sjax.__file__).parent
WITH_EXAMPLES = sorted(file for file in ROOT.rglob("*.py") if ">>> " in file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", WITH_EXAMPLES, ids=lambda file: str(file.relative_to(ROOT)))
def test_examples(file):
    module = importlib.import_module(".".join(("s2sjax", *file.relative_to(ROOT).with_suffix("").parts)))
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0
