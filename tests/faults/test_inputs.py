"""Names and values chosen so that they mean something else where they are shown or passed on."""

from __future__ import annotations

import json
import logging
import os
import sys
import types

import pytest

from queuecontroller.server.metrics.exposition import MAX_NODES, MAX_QUEUES, render
from queuecontroller.state.nodes.sessions import Hello
from queuecontroller.state.shell import Shell
from sluicecommon.logs import LineFormat
from tests.kit.daemon.harness import daemon
from tests.queue.state.world import World

EVIL = {
    "a newline": "x\n2026-01-01T00:00:00Z info all is well",
    "a return": "x\rall is well",
    "an escape": "\x1b[2J\x1b[31mx",
    "an operating system command": "\x1b]0;title\x07",
    "NUL": "x\0y",
    "bidi": "x\u202egnp.exe",
    "a line separator": "x\u2028y",
    "C1": "x\x9b31my",
}
evil = pytest.mark.parametrize("name", EVIL.values(), ids=EVIL.keys())
NAMED = "grant %s: made"


def harmless(text: str) -> bool:
    return all(c.isprintable() for c in text)


@evil
@pytest.mark.parametrize("formatter", [LineFormat])
def test_h2_a_line_of_a_log_is_one_line_and_moves_no_cursor(
    formatter: type[logging.Formatter], name: str
) -> None:
    record = logging.LogRecord("x", logging.INFO, "x", 1, NAMED, (name,), None)
    line = formatter().format(record)
    assert harmless(line), ascii(line)
    assert "grant x" in line or "grant \\x" in line


@pytest.mark.parametrize("name", ["x\nLD_PRELOAD=/evil.so", "x\nSLUICE_GRANT_DIR=/tmp", "$(id)"])
def test_h4_a_name_is_no_line_of_an_environment(name: str) -> None:
    """`sluice run` shows the name in a table and passes it on nowhere."""
    with daemon() as node:
        program = "import json, os; print(json.dumps(dict(os.environ)))"
        done = node.sluice(
            *("run", "--name", name, "--gpumem", "1Gi", "--cores", "5", "--inject", "environment"),
            *("--", sys.executable, "-c", program),
        )
        if done.returncode == 0:
            seen = json.loads(done.stdout.splitlines()[-1])
            assert "/evil.so" not in seen.get("LD_PRELOAD", "")
            assert seen["SLUICE_GRANT_DIR"] != "/tmp"
        else:
            assert harmless(done.stderr.strip().replace("\n", " "))
        assert "/evil.so" not in os.environ.get("LD_PRELOAD", "")
        assert all(harmless(line) for line in node.log.read_text().splitlines())


def test_h3_a_controller_with_names_without_end_has_so_many_series_and_no_more() -> None:
    world = World()
    queues = [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "ClusterQueue",
            "metadata": {"name": f"made-up-{number}"},
            "spec": {"resourceGroups": []},
        }
        for number in range(MAX_QUEUES + 500)
    ]
    world.book.apply(queues, False, 1)
    for number in range(MAX_NODES + 500):
        world.book.desk.connect(Hello(f"made-up-{number}", "boot"), 1)
    seen = series(world)
    assert sum("made-up" in line and "node=" in line for line in seen) <= 3 * MAX_NODES
    for name in {line.partition("{")[0] for line in seen}:
        mine = [line for line in seen if line.startswith(f"{name}{{")]
        assert len(mine) <= 3 * MAX_QUEUES, name
    more = [one | {"metadata": {"name": f"more-{i}"}} for i, one in enumerate(queues)]
    world.book.apply(more, False, 1)
    for number in range(500):
        world.book.desk.connect(Hello(f"more-{number}", "boot"), 1)
    assert len(series(world)) == len(seen), "what comes on top has no series"


def series(world: World) -> list[str]:
    clock = types.SimpleNamespace(now_ns=lambda: 2)
    text = render(Shell(world.book, world.store, clock), "1").decode()
    return [line for line in text.splitlines() if line and not line.startswith("#")]
