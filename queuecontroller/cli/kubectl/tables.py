"""Tables made of kubectl's JSON output."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from queuecontroller.cli.files import printable
from queuecontroller.cli.tables import age, align


def status_of(workload: Mapping[str, Any]) -> tuple[str, str]:
    """The workload's status as --status names it, and the message."""
    status = workload.get("status") or {}
    true = {
        str(one.get("type")): one
        for one in status.get("conditions") or ()
        if one.get("status") == "True"
    }
    for kind, word in (
        ("Finished", "finished"),
        ("Admitted", "admitted"),
        ("QuotaReserved", "quotareserved"),
    ):
        if kind in true:
            return word, str(true[kind].get("message") or "")
    given = [one for one in status.get("conditions") or () if one.get("type") == "QuotaReserved"]
    return "pending", str(given[0].get("message") or "") if given else ""


def workload_lines(
    answer: Mapping[str, Any], options: argparse.Namespace, now: datetime
) -> list[str]:
    rows = [["NAMESPACE", "NAME", "LOCALQUEUE", "CLUSTERQUEUE", "STATUS", "AGE", "WHY"]]
    items = answer.get("items") or ()
    serving = {
        (one["metadata"].get("namespace"), one["metadata"].get("name")): one["spec"]
        for one in items
        if one.get("kind") == "LocalQueue"
    }
    for one in items:
        if one.get("kind") == "LocalQueue":
            continue
        head, spec = one.get("metadata") or {}, one.get("spec") or {}
        admission = (one.get("status") or {}).get("admission") or {}
        word, why = status_of(one)
        queue = spec.get("queueName") or ""
        held = admission or serving.get((head.get("namespace"), queue)) or {}
        cluster_queue = held.get("clusterQueue") or ""
        if options.status not in ("all", word):
            continue
        if options.localqueue not in ("", queue):
            continue
        if options.clusterqueue not in ("", cluster_queue):
            continue
        stamp = head.get("creationTimestamp")
        names = [head.get("namespace"), head.get("name"), queue, cluster_queue]
        rows.append([printable(str(cell or "")) for cell in (*names, word, age(stamp, now), why)])
    return align(rows) if len(rows) > 1 else ["none"]


def pending_lines(answer: Mapping[str, Any]) -> list[str]:
    rows = [["POSITION", "NAMESPACE", "NAME", "LOCALQUEUE", "PRIORITY"]]
    for one in answer.get("items") or ():
        head = one.get("metadata") or {}
        cells = [
            int(one.get("positionInClusterQueue") or 0) + 1,
            head.get("namespace"),
            head.get("name"),
            one.get("localQueueName"),
            one.get("priority"),
        ]
        rows.append([printable(str("" if cell is None else cell)) for cell in cells])
    return align(rows) if len(rows) > 1 else ["no pending workloads"]
