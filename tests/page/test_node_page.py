"""The node's page in a real Chromium, against the real daemon over the simulated driver, with a tenant at work."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.node import Node, running, until
from tests.kit.places import SLUICE
from tests.page.browser import Page
from tests.page.conftest import SCREENS, Stage

pytestmark = pytest.mark.page


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory: Path = tmp_path_factory.mktemp("node")
    with running(directory, gpus="2xh100-80gb") as made:
        yield made


def url_of(node: Node) -> str:
    done = subprocess.run([SLUICE, "web"], env=node.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_node_page_shows_grants_gpus_and_events_and_resizes(stage: Stage, node: Node) -> None:
    words = [SLUICE, "run", "--gpumem", "8Gi", "--cores", "30", "--name", "trainer", "--", "sleep", "600"]  # fmt: skip
    job = subprocess.Popen(words, env=node.environment(), stdin=subprocess.DEVNULL)
    try:
        until("it has its grant", lambda: len(grants(node)) == 1)
        grant = grants(node)[0]["grant"]

        async def scene() -> None:
            async with stage.browser.page() as page:
                url = await asyncio.to_thread(url_of, node)
                await page.go(url)
                await page.until("globalThis.sluice && sluice.app.store.synced")
                await page.says("memory granted")
                await page.shot(SCREENS / "node-overview.png")
                await hash_to(page, "grants", "trainer", "30 %")
                name = await page.js("sluice.app.store.all('Work')[0].name")
                uid = await page.js("sluice.app.store.all('Work')[0].ns")
                assert name == grant
                await hash_to(page, f"grants/{uid}/{name}", "Resize…", "sleep 600")
                await page.click("Resize…")
                await page.until("document.querySelector('dialog').open && document.querySelector('dialog input[name=cores]')")  # fmt: skip
                await page.js("document.querySelector('dialog input[name=cores]').value = '45'")
                await page.js("document.querySelector('dialog button[type=submit]').click()")
                await page.says("It is recorded in the audit trail.")
                await page.click("Close")
                await page.says("45 %")
                await page.shot(SCREENS / "node-grant.png")
                await hash_to(page, f"nodes/{await page.js('sluice.app.store.all(`Node`)[0].name')}", "GPU 0", "trainer")  # fmt: skip
                await hash_to(page, "events", "Detections", "over the page")
                page.clean(url.split("#")[0])

        stage.runner.run(scene())
        assert grants(node)[0]["devices"][0]["share_ratio"] == pytest.approx(0.45)
    finally:
        job.kill()
        job.wait()


async def hash_to(page: Page, path: str, *words: str) -> None:
    await page.js(f"location.hash = {json.dumps('#/' + path)}")
    for one in words:
        await page.says(one)


def grants(node: Node) -> list[dict[str, object]]:
    done = subprocess.run(
        [SLUICE, "ps", "--json"], env=node.environment(), capture_output=True, text=True
    )
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found
