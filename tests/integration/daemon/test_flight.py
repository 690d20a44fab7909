"""`sluice doctor --dump`: what a real daemon did replays from its file, and who is not root gets nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nodeagent.core.flight import replay
from tests.kit.daemon.harness import daemon


def test_what_the_daemon_did_replays(tmp_path: Path) -> None:
    file = tmp_path / "flight.json"
    with daemon() as node:
        for _ in range(3):
            done = node.sluice("run", "--gpumem", "1Gi", "--cores", "20", "--", "true")
            assert done.returncode == 0, done.stderr
        node.sluice("run", "--cores", "100", "--gpumem", "900Gi", "--", "true")  # refused
        done = node.sluice("doctor", "--dump", str(file))
        assert done.returncode == 0, done.stderr
        assert str(file) in done.stdout
    assert file.stat().st_mode & 0o777 == 0o600
    found = replay(file.read_text())
    assert set(found) == {"grants"}
    assert found["grants"].events > 10
    assert found["grants"].differs == ""
    events = json.loads(file.read_text())["books"]["grants"]["events"]
    assert {"Asked", "RegionReady", "OwnerGone", "RegionRemoved"} <= {
        one["event"] for one in events
    }
    assert "TellRefused" in [do for one in events for do in one["did"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_nobody_but_root_has_it(tmp_path: Path) -> None:
    file = tmp_path / "flight.json"
    with daemon() as node:
        node.directory.chmod(0o755)
        done = node.sluice("doctor", "--dump", str(file), as_nobody=True)
    assert done.returncode != 0
    assert "only root" in done.stderr
    assert not file.exists()
