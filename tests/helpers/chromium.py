"""Drive a headless Chromium through the DevTools protocol, over the two pipes of --remote-debugging-pipe.

Nothing but the standard library: messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27, "Enter": 13, " ": 32}


class Chromium:
    """One browser with a profile of its own; ``page()`` opens tabs."""

    def __init__(self) -> None:
        assert CHROMIUM
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        from_here, to_there = os.pipe(), os.pipe()
        # the browser reads commands from descriptor 3 and writes to 4; bash, for dash knows descriptors up to 9 only
        shell = f'exec "$0" "$@" 3<&{from_here[0]} 4>&{to_there[1]}'
        command = ["bash", "-c", shell, CHROMIUM, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        passed = (from_here[0], to_there[1])
        self.process = subprocess.Popen(command, pass_fds=passed, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for descriptor in passed:
            os.close(descriptor)
        self.writer = os.fdopen(from_here[1], "wb", buffering=0)
        self.reader = os.fdopen(to_there[0], "rb", buffering=0)
        self.number = 0
        self.replies: Queue[dict[str, Any]] = Queue()
        self.pages: dict[str, Page] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(Exception):
            self.send("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.writer.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self) -> None:
        waiting = b""
        while chunk := self.reader.read(1 << 20):
            *messages, waiting = (waiting + chunk).split(b"\0")
            for text in messages:
                message = json.loads(text)
                if "id" in message:
                    self.replies.put(message)
                elif message.get("sessionId") in self.pages:
                    self.pages[message["sessionId"]].hear(message["method"], message["params"])
        self.reader.close()

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method and wait for its result; AssertionError with the browser's reason if it fails."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        self.writer.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        try:
            reply = self.replies.get(timeout=60)
        except Empty:
            raise AssertionError(f"{method}: no answer from Chromium") from None
        assert reply["id"] == self.number
        assert "error" not in reply, f"{method}: {reply['error']['message']}"
        result: dict[str, Any] = reply["result"]
        return result

    def page(self, path: Path | str, width: int = 1280, height: int = 800, *, dark: bool = False, **how: Any) -> Page:
        """Open a file or an address in a new tab of ``width`` x ``height`` CSS pixels; returns once it has loaded."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, mobile=how.get("mobile", False),
            deviceScaleFactor=how.get("scale", 1),
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        page.go(path.as_uri() if isinstance(path, Path) else path)
        return page


class Page:
    """One tab: what it asked for and complained of, and hands to click and type with."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self.browser, self.session = browser, session
        self.requests: list[str] = []
        self.problems: list[str] = []  # console errors and warnings, exceptions, refused or failed loads
        self.loaded = threading.Event()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **params)

    def hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self.loaded.set()
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Network.loadingFailed":
            self.problems.append(f"failed: {params['errorText']} {params.get('blockedReason', '')}")
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(f"console.{params['type']}: {params['args']}")
        elif method == "Log.entryAdded":
            self.problems.append(f"{params['entry']['level']}: {params['entry']['text']}")
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {params['message']}")

    def go(self, address: str) -> None:
        """Load an address and wait for its load event."""
        self.loaded.clear()
        self.send("Page.navigate", url=address)
        assert self.loaded.wait(60), f"{address[:200]} did not load"

    def js(self, code: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        found = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"].get("exception", {}).get("description")
        return found["result"].get("value")

    def until(self, code: str, seconds: float = 10) -> Any:
        """Wait for an expression to become true and return it."""
        end = time.monotonic() + seconds
        while not (value := self.js(code)):
            assert time.monotonic() < end, f"never true: {code}"
            time.sleep(0.02)
        return value

    def click(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        """Press the left button at a place (parts of its width and height) of the first element of a selector."""
        box = self.js(
            f"(() => {{const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center', "
            "behavior: 'instant'}); const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height];})()"
        )
        place = {"x": box[0] + x * box[2], "y": box[1] + y * box[3], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, **place)

    def key(self, key: str, modifiers: int = 0) -> None:
        """Press and release a key; ``modifiers`` 8 is shift."""
        code = KEYS.get(key, ord(key.upper()[0]))
        more = {"text": key} if len(key) == 1 else {}
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **more)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select element."""
        self.js(
            f"(() => {{const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)}; "
            "e.dispatchEvent(new Event('change', {bubbles: true}));})()"
        )

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write a PNG of the view, or of the whole page."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))
