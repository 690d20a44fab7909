"""A real Chromium, driven over its own protocol (Chrome DevTools, JSON over a WebSocket): no driver between us and it.

All that a page asks for, what it writes to its console and what it throws is kept: a test ends with `clean`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.kit.places import REPO

DEADLINE_S = float(os.environ.get("PAGE_DEADLINE", "60"))
"""Deadline for a condition that comes true within a second on an idle machine."""
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # in a container there is none; the page is our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-features=Translate,OptimizationHints,MediaRouter",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--remote-debugging-port=0",
)


def chromium() -> str:
    """Its path; installs it where that can be done."""
    done = subprocess.run(
        [REPO / "packaging" / "fetch" / "chromium-tool.sh"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


class PageError(Exception):
    """A page did not do what a test needs; the text says what it was like."""


@dataclass
class Page:
    """One window."""

    send: Any
    session: str
    context: str = ""
    """The browser context, which separates cookies and storage."""
    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    policies: dict[str, str] = field(default_factory=dict)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        found: dict[str, Any] = await self.send(method, parameters, self.session)
        return found

    async def js(self, expression: str) -> Any:
        """Its value; promises are waited for."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            what = found["exceptionDetails"]
            raise PageError(f"{expression[:200]}: {what.get('exception', what)}")
        return found["result"].get("value")

    async def go(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def until(self, expression: str, deadline_s: float = DEADLINE_S) -> Any:
        """The first true value of an expression."""
        ends_s = time.monotonic() + deadline_s
        last: object = None
        while time.monotonic() < ends_s:
            try:
                last = await self.js(expression)
                if last:
                    return last
            except PageError as error:
                last = error
            await asyncio.sleep(0.05)
        text = await self.text()
        raise PageError(f"never: {expression} (last: {last}); the page says: {text[:1500]}")

    async def text(self) -> str:
        return str(await self.js("document.body.innerText"))

    async def says(self, words: str, deadline_s: float = DEADLINE_S) -> None:
        await self.until(f"document.body.innerText.includes({json.dumps(words)})", deadline_s)

    async def click(self, words: str, selector: str = "a, button") -> None:
        found = f"[...document.querySelectorAll({json.dumps(selector)})].find(x => x.textContent.trim() === {json.dumps(words)})"
        await self.until(found + " && true")
        await self.js(f"{found}.click()")

    async def press(self, key: str, code: int = 0, modifiers: int = 0) -> None:
        for kind in ("keyDown", "keyUp"):
            more = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
                **more,
            )

    async def size(self, width: int, height: int, phone: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    async def dark(self, dark: bool) -> None:
        value = "dark" if dark else "light"
        await self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": value}],
        )

    async def shot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def clean(self, origin: str) -> None:
        """Nothing on the console, and no request that left the origin."""
        assert self.console == []
        outside = [one for one in self.requests if not one.startswith((origin, "data:", "about:"))]
        assert outside == []


class Browser:
    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._contexts: list[str] = []

    async def __aenter__(self) -> Browser:
        self._profile.mkdir(parents=True, exist_ok=True)
        self._log = (self._profile / "log").open("wb")
        self._process = subprocess.Popen(
            [chromium(), *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=dict(os.environ) | {"HOME": str(self._profile)},
        )
        port = self._profile / "DevToolsActivePort"
        ends_s = time.monotonic() + DEADLINE_S
        while not (port.exists() and len(port.read_text().split()) == 2):
            if self._process.poll() is not None or time.monotonic() > ends_s:
                raise PageError((self._profile / "log").read_text()[-2000:])
            await asyncio.sleep(0.05)
        number, path = port.read_text().split()
        self._http = aiohttp.ClientSession()
        self._socket = await self._http.ws_connect(
            f"ws://127.0.0.1:{number}{path}", max_msg_size=0, heartbeat=None
        )
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *what: object) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._socket.close()
        await self._http.close()
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its children too: the group is its own
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @contextlib.asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """A window of a new viewer: it shares no cookie and no storage with another window."""
        context = (await self._send("Target.createBrowserContext", {}))["browserContextId"]
        try:
            yield await self.window(context)
        finally:
            await self._send("Target.disposeBrowserContext", {"browserContextId": context})

    async def window(self, context: str) -> Page:
        """One more window of a viewer."""
        target = await self._send(
            "Target.createTarget", {"url": "about:blank", "browserContextId": context}
        )
        attached = await self._send(
            "Target.attachToTarget", {"targetId": target["targetId"], "flatten": True}
        )
        page = Page(self._send, attached["sessionId"], context)
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.size(1280, 900)
        return page

    async def _send(
        self, method: str, parameters: dict[str, Any], session: str = ""
    ) -> dict[str, Any]:
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        await self._socket.send_str(json.dumps(message))
        async with asyncio.timeout(DEADLINE_S * 2):
            return await answer

    async def _listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if answer.done():
                    continue
                if "error" in told:
                    answer.set_exception(PageError(str(told["error"])))
                else:
                    answer.set_result(told["result"])
                continue
            page = self._pages.get(told.get("sessionId", ""))
            if page is not None:
                _heard(page, told["method"], told["params"])


def _heard(page: Page, method: str, given: dict[str, Any]) -> None:
    if method == "Network.requestWillBeSent":
        page.requests.append(given["request"]["url"])
    elif method == "Network.responseReceived":
        headers = {name.lower(): value for name, value in given["response"]["headers"].items()}
        page.policies[given["response"]["url"]] = headers.get("content-security-policy", "")
    elif method == "Runtime.exceptionThrown":
        page.console.append(json.dumps(given["exceptionDetails"])[:1000])
    elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
        page.console.append(json.dumps(given["args"])[:1000])
    elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
        page.console.append(json.dumps(given["entry"])[:1000])
