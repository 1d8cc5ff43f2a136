"""Drives headless Chromium over its debugging pipe: loads pages, runs scripts in them, moves the mouse, takes pictures.

The pipe needs nothing but the browser: it reads commands from file descriptor 3 and answers on 4, JSON objects with a
zero byte behind each.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
)

#: What drivers tell the console of their speed is no error of the page.
_HINTS = ("willReadFrequently", "GL Driver Message", "GPU stall due to ReadPixels")


class Browser:
    """A browser with one page. Use it as a context manager."""

    def __init__(self, folder: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Start one; ``folder`` takes its profile. width, height: of the page, in CSS pixels."""
        assert PROGRAM is not None
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._buffer = b""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [PROGRAM, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        line = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": str(folder), "PATH": os.environ["PATH"]},
        )
        os.close(to_browser)
        os.close(from_browser)
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = "dark" if dark else "light"
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait(20)

    def open(self, url: str, until: str, timeout_s: float = 60.0) -> float:
        """Load a page and wait until the script ``until`` is true; how long that took, seconds."""
        started = time.monotonic()
        self._call("Page.navigate", url=url)
        self.wait(f"!!document.documentElement && ({until})", timeout_s)
        return time.monotonic() - started

    def wait(self, until: str, timeout_s: float = 60.0) -> None:
        """Wait until the script is true.

        Raises:
            AssertionError: it does not become so.
        """
        end = time.monotonic() + timeout_s
        while not self.run(until):
            assert time.monotonic() < end, f"not within {timeout_s:g} s: {until}; {self.problems}"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of a script, promises awaited."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the mouse there, CSS pixels of the window."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Click there."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page, or of the window alone."""
        arguments: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self._call("Page.getLayoutMetrics")["cssContentSize"]
            arguments["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", **arguments)["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._write, content) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what the page complains of, and what it asks the network for."""
        parameters = event.get("params", {})
        text = ""
        if event.get("method") == "Runtime.exceptionThrown":
            text = json.dumps(parameters["exceptionDetails"])
        elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            text = json.dumps(parameters["args"])
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            text = json.dumps(parameters["entry"])
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        if text and not any(hint in text for hint in _HINTS):
            self.problems.append(text)
