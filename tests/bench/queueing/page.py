"""The queue's page: how soon it is drawn, how smooth 10,000 workloads are, what a change costs to tell, and what 50 viewers cost.

In a real Chromium without a GPU, on the same machine as the service and its nodes: a person's is faster.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import urllib.request
from itertools import count
from pathlib import Path

import aiohttp
import psutil

from tests.bench.entries import Entry, entry
from tests.page.browser import Browser, Page
from tests.page.cluster import Cluster, cluster, job

VIEWERS = 50
CHANGES_A_SECOND = 5
_NEW = count(1)
SCROLL = """new Promise(done => {
  const list = document.querySelector('.window');
  const began = performance.now();
  let frames = 0;
  const step = () => {
    frames += 1;
    list.scrollTop = (frames * 337) % Math.max(1, list.scrollHeight - list.clientHeight);
    const ms = performance.now() - began;
    if (ms < 3000) requestAnimationFrame(step);
    else done(frames * 1000 / ms);
  };
  requestAnimationFrame(step);
})"""


def run(quick: bool) -> list[Entry]:
    rounds = 3 if quick else 8
    with tempfile.TemporaryDirectory(prefix="page-bench-") as place:
        found = asyncio.run(_fifty_nodes(Path(place), rounds))
        return found + asyncio.run(_many_workloads(Path(place), rounds, 2_000 if quick else 10_000))


async def _opened(page: Page, made: Cluster) -> None:
    await page.go(await asyncio.to_thread(made.url))
    await page.until("globalThis.sluice && sluice.app.store.synced && sluice.app.painted > 0")


async def _fifty_nodes(place: Path, rounds: int) -> list[Entry]:
    with cluster(place / "fifty") as made:
        async with Browser(place / "chromium") as browser:
            painted = []
            for _ in range(rounds):
                async with browser.page() as page:
                    await _opened(page, made)
                    painted.append(float(await page.js("sluice.app.painted")))
            async with browser.page() as page:
                await _opened(page, made)
                told = await _told(page, made, 40)
        without, beside = await _viewers(made, 10.0)
    return [
        entry("page_first_paint_ms", "ms", painted, target="≤ 1500"),
        entry("sse_bytes_per_change", "bytes", [told], target="≤ 200"),
        entry(
            "page_50_viewers_cpu_ratio",
            "cores",
            [beside - without],
            baseline=without,
            target="≤ 0.1",
        ),
    ]


async def _told(page: Page, made: Cluster, jobs: int) -> float:
    """Bytes of the stream for each change that it told of, while jobs come, are admitted and run."""
    state = "[sluice.app.store.received, Number(sluice.app.store.last.split('.')[1])]"
    began_bytes, began = await page.js(state)
    names = [f"more-{next(_NEW)}" for _ in range(jobs)]
    for name in names:
        await asyncio.to_thread(made.submit, job(name, "vision"))
    await page.until(f"!!sluice.app.store.get('Workload', 'vision', '{names[-1]}')")
    ended_bytes, ended = await page.js(state)
    return float((ended_bytes - began_bytes) / (ended - began))


async def _viewers(made: Cluster, seconds: float) -> tuple[float, float]:
    """Processor time of the controller per second, without a viewer and with fifty."""
    assert made.controller.process is not None
    process = psutil.Process(made.controller.process.pid)

    async def busy() -> float:
        def used() -> float:
            times = process.cpu_times()
            return float(times.user + times.system)

        began, began_s = used(), time.monotonic()
        while time.monotonic() - began_s < seconds:
            await asyncio.to_thread(made.submit, job(f"busy-{next(_NEW)}", "speech"))
            await asyncio.sleep(1 / CHANGES_A_SECOND)
        return (used() - began) / (time.monotonic() - began_s)

    without = await busy()
    async with aiohttp.ClientSession() as http:
        origin, session = await asyncio.to_thread(_session, made)

        async def watch() -> None:
            async with http.get(f"{origin}api/stream", headers={"X-Sluice-Session": session}, timeout=None) as answer:  # fmt: skip
                assert answer.status == 200, await answer.text()
                async for _ in answer.content.iter_any():
                    pass

        watching = [asyncio.create_task(watch()) for _ in range(VIEWERS)]
        await asyncio.sleep(3)
        assert not any(one.done() for one in watching), "a viewer was turned away"
        beside = await busy()
        for one in watching:
            one.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    return without, beside


def _session(made: Cluster) -> tuple[str, str]:
    origin, _, ticket = made.url().partition("#ticket=")
    request = urllib.request.Request(
        f"{origin}api/enter",
        json.dumps({"secret": ticket}).encode(),
        {"Content-Type": "application/json", "X-Sluice-Page": "1"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return origin, str(json.load(answer)["session"])


async def _many_workloads(place: Path, rounds: int, jobs: int) -> list[Entry]:
    with cluster(place / "many", nodes=4, jobs=jobs) as made:
        async with Browser(place / "chromium-many") as browser, browser.page() as page:
            await _opened(page, made)
            await page.until(f"sluice.app.store.size('Workload') === {jobs}")
            await page.js("location.hash = '#/workloads'")
            await page.until("document.querySelectorAll('.whole .row').length > 5")
            assert await page.js("document.querySelectorAll('.whole .row').length") < 80
            frames = [float(await page.js(SCROLL)) for _ in range(rounds)]
    return [entry("page_10000_workloads_fps", "1/s", frames, target="≥ 30")]
