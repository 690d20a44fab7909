"""The node's documents for its page, in the form of the queue's page.

A user's documents are under the user's uid. Documents without an owner are for operators only,
except GPUs, which every user sees.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nodeagent.ports.views import ContainedView, GpuView, GrantView, NodeEvent, NodeView

MIB: Final = 1 << 20
LONGEST_TEXT: Final = 600
Key = tuple[str, str, str]


def documents(
    name: str,
    view: NodeView,
    events: Iterable[NodeEvent],
    contained: Sequence[ContainedView],
    users: Mapping[int, str],
) -> dict[Key, dict[str, Any]]:
    """Documents by key. `users` maps uids to user names, as far as they are known."""
    found: dict[Key, dict[str, Any]] = {("Node", "", name): _node(view)}
    for gpu in view.gpus:
        found["Gpu", "", gpu.uuid] = _gpu(name, gpu)
    for grant in view.grants:
        found["Work", str(grant.uid), grant.grant] = _grant(name, grant, users)
    for event in events:
        whose = "" if event.uid is None else str(event.uid)
        found["Event", whose, f"{event.number:012d}"] = {
            "at": int(event.at_unix_s),
            "kind": event.kind,
            "level": event.level,
            "text": event.text[:LONGEST_TEXT],
            "evidence": _evidence(event.evidence),
        }
    for held in contained:
        found["Held", str(held.uid), str(held.number)] = {
            "step": held.step,
            "rule": held.rule,
            "level": held.level,
            "whom": held.whom,
            "since": int(held.since_unix_s),
            "evidence": held.evidence[:LONGEST_TEXT],
        }
    return found


def _node(view: NodeView) -> dict[str, Any]:
    return {
        "state": "Ready" if view.nvml_error is None else "Away",
        "nvml": view.nvml_error,
        "version": view.version,
        "driver": view.driver_version,
        "gpus": len(view.gpus),
        "waiting": view.waiting or None,
    }


def _gpu(node: str, gpu: GpuView) -> dict[str, Any]:
    return {
        "node": node,
        "index": gpu.index,
        "type": gpu.name,
        "health": gpu.health,
        "why": gpu.health_reason or None,
        "memory": gpu.memory_total_bytes,
        "given": gpu.memory_granted_bytes,
        "used": _mib(gpu.memory_used_bytes),
        "share": _ratio(gpu.share_granted_ratio),
        "utilization": _ratio(gpu.utilization_ratio),
        "grants": gpu.grants,
        "slots": gpu.slots,
        "celsius": _whole(gpu.temperature_celsius),
        "watts": _whole(gpu.power_watts),
        "switch": None if gpu.context_switch_s is None else round(gpu.context_switch_s * 1e6),
        "bus": gpu.pci_bus_id,
        "numa": gpu.numa_node,
    }


def _grant(node: str, grant: GrantView, users: Mapping[int, str]) -> dict[str, Any]:
    used = [one.used_ratio for one in grant.devices if one.used_ratio is not None]
    return {
        "workload": grant.name or grant.grant[:8],
        "label": grant.name or None,
        "queued": grant.workload or None,
        "node": node,
        "user": users.get(grant.uid),
        "command": grant.command[:LONGEST_TEXT] or None,
        "state": grant.state,
        "policy": grant.policy.value,
        "priority": grant.priority or None,
        "gang": grant.gang or None,
        "group": grant.trusted_group or None,
        "gpus": [
            [one.gpu, one.memory_limit_bytes, _ratio(one.share_ratio), ""] for one in grant.devices
        ],
        "used": _mib(sum(one.memory_used_bytes for one in grant.devices)),
        "achieved": _ratio(sum(used) / len(used)) if used else None,
        "busy": int(sum(one.busy_seconds_total for one in grant.devices)),
        "waited": int(sum(one.throttled_seconds_total for one in grant.devices)),
        "launches": sum(one.launches_total for one in grant.devices),
        "denied": sum(one.denied_total for one in grant.devices) or None,
        "tampers": grant.tamper_events_total or None,
        "processes": grant.processes,
        "since": int(grant.created_unix_s),
    }


def figures(view: NodeView, waited_s: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
    """Samples of each GPU and each grant for the page's graphs, as ratios. `waited_s` has, for each
    grant, the part of the time since the last sample in which it was throttled."""
    found: dict[str, dict[str, float | None]] = {}
    for gpu in view.gpus:
        whole = gpu.memory_total_bytes or 1
        used = gpu.memory_used_bytes
        found[gpu.uuid] = {
            "utilization": gpu.utilization_ratio,
            "used": None if used is None else used / whole,
            "given": gpu.memory_granted_bytes / whole,
        }
    for grant in view.grants:
        limit = sum(one.memory_limit_bytes for one in grant.devices) or 1
        ratios = [one.used_ratio for one in grant.devices if one.used_ratio is not None]
        found[grant.grant] = {
            "utilization": sum(ratios) / len(ratios) if ratios else None,
            "used": sum(one.memory_used_bytes for one in grant.devices) / limit,
            "throttled": waited_s.get(grant.grant),
        }
    return found


def _evidence(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found else None


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _mib(value: int | None) -> int | None:
    return None if value is None else value // MIB * MIB
