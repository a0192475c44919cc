"""Any mesh over any number of processes gives what one device gives: training, evaluation, decoding, scoring.

Real processes on one machine, which talk over gloo. What they compute is in mesh_jobs.py.
"""

import json
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import mesh_jobs
import numpy as np
import pytest

from s2sjax.data.prepare import prepare

WAIT = 900  # seconds after which a test fails; processes share the cores
pytestmark = pytest.mark.timeout(2 * WAIT)

# (processes, devices of each): its jobs, (kind, data x fsdp x tensor x context, order of the devices)
PODS = {
    (2, 1): [("translation", [1, 1, 2], "by process")],
    (2, 4): [
        ("translation", [2, 2, 2], "in turns"), ("packed", [2, 1, 4], "in turns"), ("prepared", [1, 4, 2], "shuffled"),
        ("language model", [2, 4, 1], "in turns"), ("packed", [2, 1, 1, 4], "in turns"),
    ],
    (4, 2): [
        ("translation", [1, 2, 4], "shuffled"), ("packed", [2, 2, 2], "shuffled"), ("prepared", [4, 1, 2], "in turns"),
        ("language model", [4, 2, 1], "shuffled"),
    ],
    (8, 1): [
        ("translation", [2, 2, 2], "shuffled"), ("packed", [1, 8, 1], "by process"),
        ("prepared", [2, 1, 4], "in turns"), ("language model", [8, 1, 1], "shuffled"),
    ],
}  # fmt: skip
MARKS = {(2, 1): ()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("meshes")
    prepare(mesh_jobs.DATA, folder / "prepared")
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    """What one device computes, by kind of experiment."""
    found = {}

    def of(kind: str) -> dict[str, np.ndarray]:
        if kind not in found:
            found[kind] = mesh_jobs.do(folder, f"alone {kind}", kind, [1, 1, 1], "one device")
        return found[kind]

    return of


def run_pod(folder: Path, processes: int, devices: int, jobs: list) -> None:
    """Runs jobs in a pod. Raises with the errors of its processes if one of them fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = os.environ | {
        "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(processes), "JAX_NUM_CPU_DEVICES": str(devices),
    }  # fmt: skip
    command = [sys.executable, mesh_jobs.__file__, str(folder), json.dumps(jobs)]
    logs = [(folder / f"{processes}x{devices}-{number}.log").open("w+") for number in range(processes)]
    pod = [
        subprocess.Popen(command, env=shared | {"JAX_PROCESS_ID": str(number)}, stdout=log, stderr=log)
        for number, log in enumerate(logs)
    ]
    try:
        codes = [process.wait(timeout=WAIT) for process in pod]
    finally:
        for process in pod:
            process.kill()
        for log in logs:
            log.seek(0)
            print(log.read()[-4000:])
            log.close()
    assert not any(codes), codes


@pytest.mark.parametrize(
    "processes, devices",
    [pytest.param(*pod, marks=MARKS.get(pod, pytest.mark.exhaustive), id=f"{pod[0]}x{pod[1]}") for pod in PODS],
)
def test_a_pod_gives_what_one_device_gives(folder, alone, processes, devices):
    jobs = PODS[processes, devices]
    names = [f"{processes}x{devices} {number}" for number in range(len(jobs))]
    run_pod(folder, processes, devices, [[name, *job] for name, job in zip(names, jobs)])
    for name, (kind, axes, order) in zip(names, jobs):
        with np.load(folder / f"{name}.npz") as file:
            found = dict(file)
        same(found, alone(kind), f"{kind}, {axes} {order}")


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], what: str) -> None:
    """Batches and texts are equal bit for bit, numbers to 1e-5."""
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if value.dtype.kind == "U":
            assert found[key].tolist() == value.tolist(), f"{what}: {key}"
        else:
            np.testing.assert_allclose(found[key], value, atol=1e-5, rtol=1e-5, err_msg=f"{what}: {key}")


def test_the_page_about_xla_says_what_it_computes():
    """Why the rows are split over fsdp before data. If this fails, XLA is mended: say so in docs/xla_three_axes.py."""
    page = runpy.run_path(str(Path(__file__).parents[1] / "docs/xla_three_axes.py"))
    right = page["X"] @ page["W"]
    np.testing.assert_array_equal(page["product"](("b", "a")), right)
    assert np.flatnonzero((page["product"](("a", "b")) != right).any(1)).tolist() == [4, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.exhaustive
def test_one_process_of_eight_devices_gives_what_one_device_gives(folder, alone):
    """So a pod that differs does so because of its processes."""
    same(mesh_jobs.do(folder, "eight", "translation", [2, 2, 2], "shuffled"), alone("translation"), "eight devices")
