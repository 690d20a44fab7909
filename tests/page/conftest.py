"""One cluster and one Chromium for the whole folder: a test has a window of its own, without cookies of other tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.places import BUILD
from tests.page.browser import Browser, Page
from tests.page.cluster import Cluster, cluster

SCREENS = BUILD / "screens"
Scene = Callable[[Page], Coroutine[Any, Any, None]]


@dataclass
class Stage:
    cluster: Cluster
    browser: Browser
    runner: asyncio.Runner

    @property
    def origin(self) -> str:
        """First part of every URL of the page."""
        return self.cluster.url().split("#")[0]

    def play(self, scene: Scene, logged_in: bool = True) -> None:
        """In a window of its own, which must end without an error, and without a request elsewhere."""

        async def played() -> None:
            async with self.browser.page() as page:
                url = await asyncio.to_thread(self.cluster.url)
                origin = url.split("#")[0]
                if logged_in:
                    await page.go(url)
                    await page.until("globalThis.sluice && sluice.app.store.synced")
                await scene(page)
                page.clean(origin)

        self.runner.run(played())


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("page")
    with cluster(directory) as made, asyncio.Runner() as runner:
        browser = Browser(directory / "chromium")
        runner.run(browser.__aenter__())
        try:
            yield Stage(made, browser, runner)
        finally:
            runner.run(browser.__aexit__())
    assert made.fleet.failures == []
