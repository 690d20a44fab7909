"""Held processes and grants as a node reports them, and the audit rows that it wrote about them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import psutil

from tests.kit.node import Node, until


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def rows(node: Node, table: str) -> list[dict[str, Any]]:
    with sqlite3.connect(f"file:{node.directory}/state/ledger.sqlite?mode=ro", uri=True) as db:
        return [json.loads(body) for (body,) in db.execute(f"SELECT body FROM {table} ORDER BY id")]


def undone(node: Node, step: str) -> list[str]:
    """Why, of each audit row that takes such a step back."""
    return [
        json.loads(row["evidence"]).get("why", "")
        for row in rows(node, "audit")
        if row["undo"] and row["step"] == step
    ]


def contained(node: Node) -> list[dict[str, Any]]:
    """Held processes as `sluice contained` lists them, with a daemon and without."""
    found: list[dict[str, Any]] = node.cli_json("contained", "--config", str(config(node)))
    return found


def config(node: Node) -> Path:
    return node.directory / "sluice.toml"


def set_policy(node: Node, before: str, after: str) -> None:
    text = config(node).read_text()
    assert before in text
    config(node).write_text(text.replace(before, after))


def looked(node: Node, times: int = 3) -> None:
    """The daemon has looked at the GPUs so often since now."""

    def at() -> float:
        (line,) = [
            line
            for line in node.metrics().splitlines()
            if line.startswith('sluice_loop_last_ok_timestamp_seconds{loop="gpus"}')
        ]
        return float(line.split()[1])

    for _ in range(times):
        before = at()
        until("the GPUs are read again", lambda before=before: at() > before)
