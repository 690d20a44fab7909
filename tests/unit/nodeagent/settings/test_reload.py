"""A running daemon follows its files: by whom the change comes, what of it counts, and that mistakes change nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.adapters.host.config_files import load
from nodeagent.adapters.host.inotify import watch_contents
from nodeagent.core.reload import Loaded, Running, merge
from nodeagent.ports.files import DirectoryWatch, WatchDirectory
from nodeagent.settings.daemon import SECTIONS, Settings
from nodeagent.settings.kubelet import KubeletConfig
from nodeagent.shell.reload import Reloader
from sluicecommon.settings import known_fields, live_keys

START = Running(Settings(), KubeletConfig())
KEYS = [(section, key) for section, kind in SECTIONS.items() for key in sorted(known_fields(kind))]


def section_of(running: Running, section: str) -> Any:
    return running.kubelet if section == "kubelet" else getattr(running.settings, section)


def other(value: Any) -> Any:
    """Another value of the same type; `merge` looks at nothing else."""
    if isinstance(value, bool):
        return not value
    return value + (
        1 if isinstance(value, int | float) else "x" if isinstance(value, str) else ("x",)
    )


def with_changes(keys: set[tuple[str, str]]) -> Running:
    wanted = START
    for section, key in keys:
        here = section_of(wanted, section)
        changed = replace(here, **{key: other(getattr(here, key))})
        if section == "kubelet":
            wanted = replace(wanted, kubelet=changed)
        else:
            wanted = replace(wanted, settings=replace(wanted.settings, **{section: changed}))
    return wanted


@given(st.sets(st.sampled_from(KEYS)))
def test_live_keys_are_taken_over_and_the_others_named(keys: set[tuple[str, str]]) -> None:
    wanted = with_changes(keys)
    merged = merge(START, wanted)
    told = {*merged.changed, *merged.waiting}
    assert told == {f"{section}.{key}" for section, key in keys}
    for section, kind in SECTIONS.items():
        for key in known_fields(kind):
            now = getattr(section_of(merged.running, section), key)
            source = wanted if key in live_keys(kind) else START
            assert now == getattr(section_of(source, section), key)
    again = merge(merged.running, wanted)
    assert (again.running, again.changed, again.waiting) == (merged.running, (), merged.waiting)
    back = merge(merged.running, START)
    assert (back.running, back.waiting) == (START, ())


def test_what_sockets_and_directories_are_made_of_is_never_live() -> None:
    assert not live_keys(SECTIONS["paths"])
    assert live_keys(SECTIONS["daemon"]) == {"log_level"}
    assert {"resource_count", "directory", "enabled", "slots_per_gpu", "hami"}.isdisjoint(
        live_keys(KubeletConfig)
    )


class Node:
    """A configuration directory and the daemon's side of it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "sluice.toml"
        self.applied: list[Running] = []
        self.errors: list[BaseException] = []
        self.reads = 0

    def read(self) -> Loaded:
        self.reads += 1
        return load(self.path, "node1")

    @asynccontextmanager
    async def reloader(
        self, poll_s: float = 3600.0, watch: WatchDirectory = watch_contents
    ) -> AsyncIterator[Reloader]:
        one = Reloader(self.read, self.read(), self.errors.append, watch, poll_s)
        one.on_change.append(self.applied.append)
        await one.start()
        await asyncio.sleep(0)  # its loop watches the directories
        try:
            yield one
        finally:
            await one.close()
            assert not self.errors


async def until(what: str, condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.005)


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == level]


def test_a_changed_file_is_taken_over_without_being_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.path.write_text("[grants]\nmax_user_priority = 1\n")

    async def run() -> None:
        async with node.reloader() as reloader:
            node.path.write_text(
                "[grants]\nmax_user_priority = 7\nslots_per_gpu = 3\n[planner]\nperiod_ms = 9\n"
            )
            await until("the change is applied", lambda: node.applied)
            assert node.applied[-1].settings.grants.max_user_priority == 7
            assert node.applied[-1].settings.grants.slots_per_gpu == 10
            assert reloader.figures.waiting == (
                "grants.slots_per_gpu",
                "planner.period_ms",
                "kubelet.slots_per_gpu",
            )
            assert reloader.figures.reloads == 1

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert "configuration: changed grants.max_user_priority" in messages(caplog, logging.INFO)
    (warning,) = messages(caplog, logging.WARNING)
    assert (
        "a restart is needed for grants.slots_per_gpu, planner.period_ms, kubelet.slots" in warning
    )


def test_a_file_with_mistakes_changes_nothing_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.path.write_text("")

    async def run() -> None:
        async with node.reloader() as reloader:
            node.path.write_text("[grants]\nmax_user_priority = 1\nmax_waitin = 3\n")
            await until("the mistake is seen", lambda: reloader.figures.problems)
            (problem,) = reloader.figures.problems
            assert problem.endswith("grants.max_waitin: no such key (did you mean 'max_waiting'?)")
            reads = node.reads
            node.path.write_text(node.path.read_text())
            await until("it is read again", lambda: node.reads > reads)
            node.path.write_text("[grants]\nmax_user_priority = 2\n")
            await until("the mended file counts", lambda: node.applied)
            assert reloader.figures.problems == ()
            assert node.applied[-1].settings.grants.max_user_priority == 2

    asyncio.run(run())
    assert len(messages(caplog, logging.ERROR)) == 1


def test_a_mode_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.path.write_text("[kubelet]\nenabled = true\n")

    async def run() -> None:
        async with node.reloader() as reloader:
            node.path.write_text('[kubelet]\nenabled = true\nmode = "mps"\n')
            await until("it is refused", lambda: reloader.figures.problems)
            assert reloader.running.kubelet.mode == "share"
            assert not node.applied

    asyncio.run(run())


def test_asked_for_nothing_new_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path)
    node.path.write_text("")

    async def run() -> None:
        async with node.reloader() as reloader:
            reloader.request()
            await until("it is read", lambda: node.reads == 2)
            await until("it is said", lambda: messages(caplog, logging.INFO))

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert messages(caplog, logging.INFO) == ["configuration: unchanged"]
    assert not node.applied


def test_a_config_map_that_is_mounted_changes_by_its_link(tmp_path: Path) -> None:
    """Files are links to ..data/NAME, and ..data is a link that is replaced; the files' own names never change."""
    volume = tmp_path / "volume"
    for version, cores in (("..one", 5), ("..two", 6)):
        (volume / version).mkdir(parents=True)
        text = f"nvidia: {{defaultCores: {cores}}}"
        (volume / version / "device-config.yaml").write_text(text)
    (volume / "..data").symlink_to("..one")
    (volume / "device-config.yaml").symlink_to("..data/device-config.yaml")
    node = Node(tmp_path)
    node.path.write_text(f'[kubelet]\nhami = ["{volume}/device-config.yaml"]\n')

    async def run() -> None:
        async with node.reloader() as reloader:
            assert reloader.running.kubelet.default_cores_percent == 5
            (volume / "..data_tmp").symlink_to("..two")
            (volume / "..data_tmp").rename(volume / "..data")
            await until("the new version counts", lambda: node.applied)
            assert reloader.running.kubelet.default_cores_percent == 6

    asyncio.run(run())


def test_the_poll_finds_what_nobody_told(tmp_path: Path) -> None:
    def no_watch(path: Path, changed: Callable[[], None]) -> DirectoryWatch:
        raise OSError("no inotify here")

    node = Node(tmp_path)
    node.path.write_text("")

    async def run() -> None:
        async with node.reloader(0.01, no_watch):
            node.path.write_text("[grants]\nmax_waiting = 9\n")
            await until("the change is applied", lambda: node.applied)
            assert node.applied[-1].settings.grants.max_waiting == 9

    asyncio.run(run())
