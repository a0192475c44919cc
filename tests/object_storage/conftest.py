"""Emulators of Google Cloud Storage and S3, which a process of their own serves from memory."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from conftest import child_environment

PACKAGES = ("gcsfs", "s3fs", "gcp_storage_emulator", "moto")


def free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="session")
def emulators(tmp_path_factory):
    """Starts the emulators. Returns the file that makes them refuse every request as long as it exists."""
    for name in PACKAGES:
        pytest.importorskip(name, reason=f'{name} is missing: pip install -e ".[dev]"')
    gcs, s3 = free_ports()
    outage = tmp_path_factory.mktemp("emulators") / "outage"
    patch = pytest.MonkeyPatch()
    addresses = f"http://127.0.0.1:{gcs}", f"http://127.0.0.1:{s3}"
    for name, value in {
        "STORAGE_EMULATOR_HOST": addresses[0], "TENSORSTORE_GCS_HTTP_URL": addresses[0],
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any", "NO_GCE_CHECK": "true", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "AWS_ENDPOINT_URL": addresses[1], "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        patch.setenv(name, value)
    command = [sys.executable, str(Path(__file__).parent / "emulators.py"), str(gcs), str(s3), str(outage)]
    process = subprocess.Popen(command, env=child_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(addresses, process)
        import s3fs

        s3fs.S3FileSystem().mkdir("runs")
        yield outage
    finally:
        process.kill()
        process.wait()
        patch.undo()


def wait_for(addresses, process) -> None:
    end = time.monotonic() + 30
    for address in addresses:
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < end, "the emulators do not start"
                time.sleep(0.1)


@pytest.fixture(params=["gs", "s3"])
def bucket(emulators, request) -> str:
    """A folder in a bucket."""
    return f"{request.param}://runs/{os.urandom(4).hex()}"


@pytest.fixture
def outage(emulators):
    """A file that makes the storage refuse every request, with the status that it contains, as long as it exists."""
    yield emulators
    emulators.unlink(missing_ok=True)


@pytest.fixture
def impatient(emulators, monkeypatch):
    """The clients wait for a hundredth of the time before they try again."""
    import asyncio
    import types

    import gcsfs.retry
    import s3fs.core

    soon = types.SimpleNamespace(**vars(asyncio))
    soon.sleep = lambda seconds: asyncio.sleep(seconds / 100)
    monkeypatch.setattr(gcsfs.retry, "asyncio", soon)
    monkeypatch.setattr(s3fs.core, "asyncio", soon)
