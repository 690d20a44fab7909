"""Objects as tables for the terminal: pure functions from JSON objects to text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from queuecontroller.cli.files import printable

Row = list[str]
_Object = Mapping[str, Any]


def table(kind: str, objects: Sequence[_Object], wide: bool, now: datetime) -> list[str]:
    heads, cells = _TABLES.get(kind, _PLAIN)
    count = len(heads) if wide else heads.index("|") if "|" in heads else len(heads)
    shown = [head for head in heads[:count] if head != "|"]
    rows = [[printable(cell) for cell in cells(one, now)] for one in objects]
    rows = [row[: len(shown)] for row in rows]
    return align([shown, *rows])


def align(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def age(stamp: str | None, now: datetime) -> str:
    """An age as kubectl prints it: one unit, the largest that fits."""
    if not stamp:
        return "-"
    seconds = int((now - datetime.fromisoformat(stamp.replace("Z", "+00:00"))).total_seconds())
    return duration(max(0, seconds))


def duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def now() -> datetime:
    return datetime.now(UTC)


def _head(one: _Object) -> tuple[str, str]:
    head = one.get("metadata") or {}
    return str(head.get("namespace") or ""), str(head.get("name") or "")


def _workload(one: _Object, moment: datetime) -> Row:
    namespace, name = _head(one)
    spec, status = one.get("spec") or {}, one.get("status") or {}
    sluice = one.get("sluice") or {}
    place = f"{status['position']}/{status['waiting']}" if status.get("position") else "-"
    where = sorted({p["node"] for p in status.get("placements") or []})
    estimate = status.get("estimateSeconds")
    return [
        namespace,
        name,
        str(spec.get("queueName") or "-"),
        str(status.get("clusterQueue") or "-"),
        str(spec.get("priority") or 0),
        str(status.get("phase") or "-"),
        place,
        age((one.get("metadata") or {}).get("creationTimestamp"), moment),
        "~" + duration(estimate) if estimate is not None else "-",
        ",".join(where) or str(sluice.get("node") or "-"),
        str(sluice.get("user") or "-"),
        str(status.get("message") or status.get("reason") or "-"),
    ]


def _cluster_queue(one: _Object, moment: datetime) -> Row:
    spec, status = one.get("spec") or {}, one.get("status") or {}
    used = []
    for flavor in status.get("flavorsUsage") or []:
        for resource in flavor["resources"]:
            quota = _nominal(spec, flavor["name"], resource["name"])
            used.append(f"{flavor['name']}/{resource['name']}={resource['total']}/{quota}")
    return [
        _head(one)[1],
        str(spec.get("cohortName") or spec.get("cohort") or "-"),
        str(spec.get("queueingStrategy") or "BestEffortFIFO"),
        str(status.get("pendingWorkloads", 0)),
        str(status.get("admittedWorkloads", 0)),
        "yes" if status.get("active") else "no",
        str(status.get("weightedShare", 0)),
        " ".join(used) or "-",
        "-" if status.get("active") else str(status.get("message") or "-"),
    ]


def _nominal(spec: _Object, flavor: str, resource: str) -> str:
    for group in spec.get("resourceGroups") or []:
        for one in group.get("flavors") or []:
            for quota in one.get("resources") or [] if one.get("name") == flavor else []:
                if quota.get("name") == resource:
                    return str(quota.get("nominalQuota", 0))
    return "-"


def _local_queue(one: _Object, moment: datetime) -> Row:
    spec, status = one.get("spec") or {}, one.get("status") or {}
    return [
        *_head(one),
        str(spec.get("clusterQueue") or "-"),
        str(status.get("pendingWorkloads", 0)),
        str(status.get("admittedWorkloads", 0)),
        str(spec.get("stopPolicy") or "None"),
    ]


def _node(one: _Object, moment: datetime) -> Row:
    status = one.get("status") or {}
    gpus = status.get("gpus") or []
    total = sum(gpu["memoryBytes"] for gpu in gpus)
    given = sum(gpu["givenMemoryBytes"] for gpu in gpus)
    share = sum(gpu["givenSharePpm"] for gpu in gpus) / 10_000
    types = sorted({gpu["type"] for gpu in gpus})
    return [
        _head(one)[1],
        str(status.get("state") or "-"),
        str(len(gpus)),
        f"{given / 2**30:.1f}/{total / 2**30:.1f} GiB",
        f"{share:.0f}/{100 * len(gpus)} %",
        str(len(status.get("work") or [])),
        str(status.get("epoch", 0)),
        ", ".join(types) or "-",
        _geometry(gpus),
        str(status.get("version") or "-"),
    ]


def _geometry(gpus: list[_Object]) -> str:
    """The MIG geometry of its cards: `0: 2x1g.10gb,3g.40gb`."""
    cards: dict[str, Counter[str]] = {}
    for gpu in gpus:
        if profile := gpu.get("migProfile"):
            cards.setdefault(str(gpu["index"]), Counter())[profile] += 1
    return (
        "; ".join(
            f"{index}: "
            + ",".join(
                f"{n}x{profile}" if n > 1 else profile for profile, n in sorted(found.items())
            )
            for index, found in cards.items()
        )
        or "-"
    )


def _plain(one: _Object, moment: datetime) -> Row:
    namespace, name = _head(one)
    return [namespace or "-", name]


Cells = Callable[[_Object, datetime], Row]
_PLAIN: Final[tuple[list[str], Cells]] = (["NAMESPACE", "NAME"], _plain)
# Columns after "|" are shown only with -o wide.
_TABLES: Final[Mapping[str, tuple[list[str], Cells]]] = {
    kind: (heads.split(), cells)
    for kind, heads, cells in (
        (
            "Workload",
            "NAMESPACE NAME QUEUE CLUSTERQUEUE PRIORITY PHASE POSITION AGE"
            " | ESTIMATE NODE USER MESSAGE",
            _workload,
        ),
        (
            "ClusterQueue",
            "NAME COHORT STRATEGY PENDING ADMITTED ACTIVE SHARE | USED WHY",
            _cluster_queue,
        ),
        ("LocalQueue", "NAMESPACE NAME CLUSTERQUEUE PENDING ADMITTED STOP", _local_queue),
        ("Node", "NAME STATE GPUS MEMORY SHARE PODS EPOCH | TYPES MIG VERSION", _node),
    )
}
