"""A headless Chromium, driven through its debugging pipe: open a page, run a line of it, press keys, take pictures."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60
"""seconds for a page to say what is expected"""
KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def find() -> str:
    """The path of Chromium; skips the test if there is none."""
    named = os.environ.get("S2SJAX_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("Chromium is not installed: apt-get install chromium, or set S2SJAX_CHROMIUM")
    return found


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not among the first ten descriptors, which the child gets."""
    ends = os.pipe()
    found = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return found[0], found[1]


class Browser:
    """One tab. Use it in a `with` statement."""

    def __init__(self, path: str | None = None):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to = _pipe()
        self._from, to_write = _pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += [f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe"]
        path = path or find()
        # Not by subprocess: a fork of a process with JAX may hang. Chromium reads commands from 3, and answers to 4.
        self._process = os.posix_spawn(path, [path, *flags, "about:blank"], os.environ, file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, to_read, 3), (os.POSIX_SPAWN_DUP2, to_write, 4),
        ])  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._number, self._session, self._rest = 0, None, b""
        self.errors: list[str] = []
        """what the console said of errors, refusals of the security policy included"""
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._session = None
            self._send("Browser.close", {})
        end = time.monotonic() + 10
        while os.waitpid(self._process, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(self._process, signal.SIGKILL)
            time.sleep(0.02)
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = self._send(method, parameters)
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def _send(self, method: str, parameters: dict[str, Any]) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self._number

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 20)
            assert more, "Chromium has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        told = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"].get("exception", {}).get("description")))
        elif message.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(told["entry"]["text"])
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        return message

    # ------------------------------------------------------------------------------- what a user does

    def open(self, url: str) -> None:
        self.requests.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, line: str) -> Any:
        """The value of a line of JavaScript."""
        found = self.call("Runtime.evaluate", expression=line, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, line: str) -> None:
        """Until the line is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(f"!!({line})"):
            assert time.monotonic() < end, f"still not true: {line}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key], **text)

    def resize(self, width: int, height: int = 900, dark: bool = False) -> None:
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(found["data"]))
