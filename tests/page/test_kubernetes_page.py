"""The page in mode kubernetes, in a real Chromium: fifty nodes, every holder by its name, and the pictures of docs/screens."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.node import until
from tests.page.browser import Browser, Page
from tests.page.conftest import SCREENS
from tests.page.kubernetes import (
    BY_HAND,
    CUT,
    DRAINED,
    LOST,
    NODES,
    SICK,
    InKubernetes,
    in_kubernetes,
    trouble,
)
from tests.page.reading import CUT_OFF, CUT_REASONS, UNNAMED, show

pytestmark = [pytest.mark.page, pytest.mark.cluster, pytest.mark.timeout(1800)]
PICTURES = SCREENS / "kubernetes"
ENOUGH = 85
"""Pods that run before the first picture."""
SETTLED_S = 130
"""Time after which the page says that a grant is in little use."""
FIRST_SCREEN = """[...document.querySelectorAll('main :is(h2, li, td, .tile, .idle)')]
    .filter(x => x.getBoundingClientRect().bottom <= 900).map(x => x.textContent).join(' ')"""
IDLE_TILE = """Number([...document.querySelectorAll('.tile')]
    .find(x => x.querySelector('.label').textContent === 'idle GPUs').querySelector('.value').textContent)"""
NAMES = """[...document.querySelectorAll('.whole .row .cell:first-child, .whole .row .cell:first-child a')]
    .filter(x => x.scrollHeight > x.clientHeight + 2 || x.scrollWidth > x.clientWidth + 2).map(x => x.textContent)"""
BEYOND = """[...document.querySelectorAll('nav, nav a')]
    .filter(x => x.scrollWidth > x.clientWidth + 2 || x.getBoundingClientRect().right > 1000).length"""
NAVIGATION = (
    "[...document.querySelectorAll('nav a')].map(x => Math.round(x.getBoundingClientRect().top))"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[InKubernetes]:
    directory = Path(tempfile.mkdtemp(prefix="page-"))
    try:
        with in_kubernetes(directory) as made:
            until("pods run", lambda: made.pods("Running") >= ENOUGH, 600)
            trouble(made)
            yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def log_in(page: Page, made: InKubernetes) -> None:
    await page.go(made.origin)
    await page.until("document.querySelector('input[name=secret]')")
    await page.js(f"document.querySelector('input[name=secret]').value = {json.dumps(made.token)}")
    await page.click("Log in")
    await page.until("globalThis.sluice && sluice.app.store.synced")


async def look(page: Page, name: str, path: str, *words: str) -> list[str]:
    """Take the picture of a page; returns what of it cannot be read."""
    await show(page, path, *words)
    await page.shot(PICTURES / f"{name}.png")
    found = {
        "wider than the window": await page.js("document.documentElement.scrollWidth") > 1280,
        "cut": await page.js(CUT_OFF),
        "columns without a name": await page.js(UNNAMED),
        "reasons cut": await page.js(CUT_REASONS),
        "names cut": await page.js(NAMES),
        "navigation on several lines": len(set(await page.js(NAVIGATION))) > 1,
        "navigation out of sight": await page.js(BEYOND),
        "begins below its top": await page.js("scrollY"),
    }
    return [f"{name}: {what}: {one}" for what, one in found.items() if one]


async def holders(page: Page) -> None:
    """Each holder on a card is a pod by its name, and the only use without one is the program that was started by hand."""
    works, cards = await documents(page, "Work"), await documents(page, "Gpu")
    running = [one for one in works if one["state"] == "running"]
    assert len(running) >= ENOUGH
    assert all(one.get("pod") for one in running)
    outside = [one for one in cards if one.get("outside") or one.get("outsideShare")]
    assert [(one["node"], one["index"]) for one in outside] == [BY_HAND]
    instances = [one for one in cards if one.get("profile")]
    assert {one["node"] for one in instances} == set(CUT)
    assert sum(one["grants"] for one in instances) == 3, "two of a job's, one of a notebook's"
    waiting = [one for one in await documents(page, "Workload") if one["phase"] == "Pending"]
    assert waiting
    assert all(one.get("message") and "not evaluated" not in one["message"] for one in waiting)


async def idle_cards(page: Page) -> int:
    """Cards, of which MIG instances are parts, that could be given as a whole."""
    nodes = await documents(page, "Node")
    ready = {one["name"] for one in nodes if one["state"] == "Ready" and not one.get("cordoned")}
    cards: dict[str, bool] = {}
    for one in await documents(page, "Gpu"):
        unused = not (one.get("grants") or one.get("outside") or (one.get("used") or 0) > 1 << 30)
        idle = unused and one["node"] in ready and one["health"] == "healthy"
        card = one.get("parent") or one["name"]
        cards[card] = cards.get(card, True) and idle
    return sum(cards.values())


async def documents(page: Page, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await page.js(f"sluice.app.store.all({json.dumps(kind)})")
    return found


def test_seven_pages_of_fifty_nodes(cluster: InKubernetes) -> None:
    async def played() -> None:
        with tempfile.TemporaryDirectory() as profile:
            async with Browser(Path(profile) / "chromium") as browser, browser.page() as page:
                wrong: list[str] = []
                await log_in(page, cluster)
                await asyncio.sleep(SETTLED_S)
                await page.until("sluice.app.store.all('Node').some(x => x.state !== 'Ready')", 120)
                await page.until("sluice.app.store.all('Gpu').some(x => x.health === 'lost')", 120)
                await page.until(
                    "sluice.app.store.all('Workload').some(x => x.phase === 'Held')", 120
                )
                await holders(page)
                wrong += await look(page, "overview", "", "Needs attention", "Longest pending")
                first = await page.js(FIRST_SCREEN)
                assert await idle_cards(page) == await page.js(IDLE_TILE)
                wrong += await look(page, "workloads", "workloads", "Pending", "no-such-queue")
                wrong += await look(
                    page, "clusterqueues", "clusterqueues", "Cohort research", "vision"
                )
                wrong += await look(
                    page, "nodes", "nodes", f"{NODES} of {NODES}", "gpu-00", "1 lost"
                )
                wrong += await look(
                    page, "node", f"nodes/{BY_HAND[0]}", "GPU 0", "GPU 7", "other use"
                )
                assert await page.js("document.querySelectorAll('dd .swatch.outside').length") == 1
                workloads = await documents(page, "Workload")
                running = next(
                    one
                    for one in workloads
                    if "finetune" in one["name"] and one["phase"] in ("Admitted", "Running")
                )
                wrong += await look(
                    page,
                    "workload",
                    f"workloads/{running['ns']}/{running['name']}",
                    "Placement",
                    "node",
                )
                waiting = next(
                    one
                    for one in workloads
                    if "pretrain" in one["name"] and one["phase"] == "Pending"
                )
                wrong += await look(
                    page,
                    "waiting",
                    f"workloads/{waiting['ns']}/{waiting['name']}",
                    "Why it is pending",
                    "It would start if",
                )
                assert wrong == []
                for words in (
                    *(f"GPU {index} of {node}" for node, index in SICK),
                    "XID 48, double bit ECC error",
                    f"Node {DRAINED} takes no new work",
                    f"Node {LOST} does not report",
                    "Idle GPUs gpu-",
                    "notebooks/jupyter-large",
                    "1 GPU with 120000 MiB",
                    "Grants in little use",
                    "notebooks/jupyter-",
                ):
                    assert words in first, (words, first)
                page.clean(cluster.origin)

    asyncio.run(played())
    assert len(list(PICTURES.glob("*.png"))) == 7
