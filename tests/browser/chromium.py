"""A real headless Chromium, driven by the DevTools protocol over one websocket. Deliberately small: it opens a page,
evaluates expressions, presses keys, takes pictures, and records every complaint of the console and the network."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
START_SECONDS = 60.0
ANSWER_SECONDS = 60.0


def find_chromium() -> str | None:
    """Path of a Chromium; the environment variable `CHROMIUM` overrides it."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def running_chromium(program: str, profile: Path) -> Iterator[str]:
    """Run it headless for the duration of the block; yields the base URL of its DevTools."""
    flags = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}", "--no-first-run"]
    flags += [
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-extensions",
        "--hide-scrollbars",
        "--no-proxy-server",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium refuses to sandbox as root; only our own page is opened
    process = subprocess.Popen([program, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{_port(profile / 'DevToolsActivePort', process)}"
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    """The port that it chose and wrote to a file."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) > 1:
            return int(lines[0])
        time.sleep(0.05)
    raise RuntimeError("chromium did not start")


class Page:
    """One tab. `complaints`: errors of the console, uncaught exceptions, requests refused or failed."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.complaints: list[str] = []
        self.requested: list[str] = []

    async def ask(self, method: str, **parameters: Any) -> Any:
        """Send one command of the protocol. Returns its result. Raises RuntimeError with the browser's message."""
        self._last += 1
        answer = self._answers[self._last] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        async with asyncio.timeout(ANSWER_SECONDS):
            return await answer

    async def listen(self) -> None:
        """Process the browser's messages, forever."""
        async for text in self._socket:
            message = json.loads(text)
            answer = self._answers.pop(message.get("id", 0), None)
            if answer is None:
                self._note(message.get("method", ""), message.get("params", {}))
            elif "error" in message:
                answer.set_exception(RuntimeError(message["error"]["message"]))
            elif not answer.done():
                answer.set_result(message["result"])

    def _note(self, method: str, about: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Runtime.exceptionThrown":
                details = about["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.complaints.append(" ".join(str(item.get("value", item)) for item in about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.complaints.append(about["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requested.append(about["request"]["url"])

    async def open(self, url: str) -> None:
        """Open a URL and wait until it has loaded."""
        self._loaded.clear()
        await self.ask("Page.navigate", url=url)
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """Value of a JavaScript expression; promises are awaited. Raises RuntimeError for an exception."""
        found = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "exception"))
        return found["result"].get("value")

    async def until(self, condition: str, seconds: float = 60.0) -> None:
        """Wait until an expression is true. Raises AssertionError."""
        try:
            async with asyncio.timeout(seconds):
                while not await self.run(f"Boolean({condition})"):  # noqa: ASYNC110 - it is in another process
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"never true: {condition}") from None

    async def resize(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Set the size of the window, in CSS pixels."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    async def prefer(self, **features: str) -> None:
        """Set the user's media features, such as `prefers_color_scheme="dark"`."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        await self.ask("Emulation.setEmulatedMedia", features=wanted)

    async def press(self, key: str) -> None:
        """Press and release a key by its name."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text
            )

    async def picture(self, *, whole: bool = False) -> bytes:
        """Screenshot as PNG, of the whole page or the window."""
        found = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])


@asynccontextmanager
async def new_page(base: str, *, width: int = 1280, height: int = 900) -> AsyncIterator[Page]:
    """A new tab in a running browser."""
    async with httpx.AsyncClient(trust_env=False) as http:
        tab = (await http.put(f"{base}/json/new?about:blank")).json()
        async with connect(tab["webSocketDebuggerUrl"], max_size=64 * 2**20, proxy=None) as socket:
            page = Page(socket)
            listening = asyncio.create_task(page.listen())
            try:
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.ask(f"{domain}.enable")
                await page.resize(width, height)
                yield page
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
        await http.get(f"{base}/json/close/{tab['id']}")
