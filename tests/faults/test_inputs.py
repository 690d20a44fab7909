"""Names and values that somebody chose so that they mean something else where they are shown or handed on."""

from __future__ import annotations

import json
import logging
import os
import sys

import pytest

from nodeagent import __main__ as daemon_main
from queuecontroller import serving
from tests.integration.harness import daemon

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
@pytest.mark.parametrize("formatter", [daemon_main._Format, serving._Format])
def test_h2_a_line_of_a_log_is_one_line_and_moves_no_cursor(
    formatter: type[logging.Formatter], name: str
) -> None:
    record = logging.LogRecord("x", logging.INFO, "x", 1, NAMED, (name,), None)
    line = formatter().format(record)
    assert harmless(line), ascii(line)
    assert "grant x" in line or "grant \\x" in line


@pytest.mark.parametrize("name", ["x\nLD_PRELOAD=/evil.so", "x\nSLUICE_GRANT_DIR=/tmp", "$(id)"])
def test_h4_a_name_is_no_line_of_an_environment(name: str) -> None:
    """Of `sluice run`, which shows it in a table and hands it on nowhere."""
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
