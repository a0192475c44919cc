"""Checkpoints for tests to damage."""

import shutil

import pytest


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Checkpoints of steps 10 and 20 with scores; 20 has the better one."""
    from lives import KEEP, state_at  # imports Orbax, which is slow

    from s2sjax.training.checkpoints.manager import Checkpoints

    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = Checkpoints(folder, KEEP, "max")
    for step in (10, 20):
        checkpoints.save(state_at(step), step, score=step)
    checkpoints.close()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")
