"""`sluice run` while the daemon restarts: asked again for some seconds, never twice for two grants. And the reader of NVML
whose daemon has gone says nothing about it."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.cli.grants import run
from nodeagent.cli.session import Away, Failed
from nodeagent.ports.clients import GrantAsk, Granted, MemoryAsk, QueueAsk, Waiting
from nodeagent.units import MIB, Ppm, SharePolicy

ASK = GrantAsk(1, MemoryAsk(amount_bytes=MIB), Ppm(10_000), SharePolicy.HARD, wait_s=100.0)
OPTIONS = argparse.Namespace(quiet=False)
Answer = Callable[[GrantAsk], Iterator[Any]]


class World:
    """A daemon that does what `lives` say, one after another, and a clock that sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.lives: list[Answer | None] = []
        """None: it is away."""
        self.grants: list[Any] = []
        self.asked: list[GrantAsk] = []
        monkeypatch.setattr(run, "connect", self.connect)
        clock = SimpleNamespace(
            monotonic=lambda: self.now_s, time=lambda: self.now_s, sleep=self.sleep
        )
        monkeypatch.setattr(run, "time", clock)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    @contextlib.contextmanager
    def connect(self, options: object, environment: Mapping[str, str]) -> Iterator[Any]:
        life = self.lives.pop(0) if len(self.lives) > 1 else self.lives[0]
        if life is None:
            raise Away(69, "no daemon at /run/x.sock; is it running? Start it")

        def create(ask: GrantAsk) -> Iterator[Any]:
            self.asked.append(ask)
            assert life is not None
            return life(ask)

        yield SimpleNamespace(create_grant=create, list_grants=lambda: self.grants)

    def grant(self, created_unix_s: float, **more: object) -> Any:
        fields = {"pid": os.getpid(), "uid": os.getuid(), "state": "active", **more}
        return SimpleNamespace(created_unix_s=created_unix_s, **fields)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def given(view: object) -> Answer:
    return lambda ask: iter([Granted(view)])  # type: ignore[arg-type]


def goes_away(*before: Any) -> Answer:
    def answer(ask: GrantAsk) -> Iterator[Any]:
        yield from before
        raise Away(69, "the daemon: Socket closed; is it running?", ended=True)

    return answer


def test_a_daemon_that_comes_back_is_asked_again_and_that_is_said(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.lives = [None, None, None, given("view")]
    assert run._await_grant(OPTIONS, {}, ASK) == "view"
    assert (
        capsys.readouterr().err == "sluice: run: no daemon at /run/x.sock; trying again for 5 s\n"
    )
    assert world.asked[0].wait_s < ASK.wait_s


def test_one_that_does_not_is_given_up_after_some_seconds(world: World) -> None:
    world.lives = [None]
    with pytest.raises(Failed, match="no daemon at"):
        run._await_grant(OPTIONS, {}, ASK)
    assert 5.0 <= world.now_s - 1000.0 < 6.0


def test_a_wait_that_is_cut_goes_on_for_what_is_left_of_it(world: World) -> None:
    def waits(ask: GrantAsk) -> Iterator[Any]:
        yield Waiting(1, "full")
        world.now_s += 60
        raise Away(69, "the daemon: Socket closed; is it running?")

    world.lives = [waits, None, given("view")]
    assert run._await_grant(OPTIONS, {}, ASK) == "view"
    assert [round(one.wait_s) for one in world.asked] == [100, 40]


def test_a_grant_that_was_given_and_not_told_is_taken_and_not_asked_for_twice(world: World) -> None:
    told = world.grant(1000.5)
    world.grants = [
        world.grant(1001.0, pid=1),
        world.grant(900.0),
        world.grant(1002.0, state="draining"),
        told,
    ]
    world.lives = [goes_away(), given("a second one")]
    assert run._await_grant(OPTIONS, {}, ASK) is told
    assert len(world.asked) == 1


def test_the_grant_of_a_run_around_us_is_not_taken_for_it(world: World) -> None:
    world.grants = [world.grant(999.0)]
    world.lives = [None, given("ours")]
    assert run._await_grant(OPTIONS, {}, ASK) == "ours"


@pytest.mark.parametrize("before", [[], [Waiting(1, "pending", workload="a/b")]], ids=len)
def test_what_waited_in_a_queue_is_submitted_again(
    world: World, capsys: pytest.CaptureFixture[str], before: list[Waiting]
) -> None:
    """It ended with 125 whenever the daemon was restarted, and its workload was withdrawn as well. A daemon that ends
    before it has told of the submission may have made it."""
    ask = GrantAsk(**{**{f: getattr(ASK, f) for f in ASK.__slots__}, "queue": QueueAsk("team")})
    world.lives = [goes_away(*before), *[None] * 250, given("the second")]
    assert run._await_grant(OPTIONS, {}, ask) == "the second"
    assert len(world.asked) == 2
    assert "trying again for 60 s, at the end of the queue\n" in capsys.readouterr().err


def test_a_queued_grant_that_was_made_is_taken_and_not_submitted_again(world: World) -> None:
    ask = GrantAsk(**{**{f: getattr(ASK, f) for f in ASK.__slots__}, "queue": QueueAsk("team")})
    told = world.grant(1000.5)
    world.grants = [told]
    world.lives = [goes_away(Waiting(1, "pending", workload="a/b")), given("a second one")]
    assert run._await_grant(OPTIONS, {}, ask) is told
    assert len(world.asked) == 1


def test_a_reader_whose_daemon_is_gone_ends_without_a_word() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "nodeagent.adapters.nvml.child", "/no/such/libnvidia-ml.so.1"],
        input="\n", stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
