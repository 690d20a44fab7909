"""Text for people, 80 columns wide: pure functions from views to lines."""

from __future__ import annotations

import pwd
import time
from collections.abc import Sequence

from nodeagent.core.quantities import format_bytes
from nodeagent.ports import DeviceView, GpuView, GrantView, NodeEvent, NodeView

WIDTH = 80
_GRANT_HEAD = (
    f"{'GRANT':8} {'NAME':12} {'USER':8} {'GPU':3} {'MEMORY':>13} {'SM %':>9} {'PROC':>4}"
    f" {'STATE':8} COMMAND"
)


def ps_lines(grants: Sequence[GrantView], width: int = WIDTH) -> list[str]:
    if not grants:
        return ["no grants; start one with: sluice run --gpumem 8Gi --cores 50 -- COMMAND"]
    lines = [_GRANT_HEAD]
    for grant in grants:
        for number, device in enumerate(grant.devices):
            lines.append(_grant_row(grant, device, first=number == 0))
    return [_cut(line, width) for line in lines]


def top_lines(view: NodeView, width: int = WIDTH, clock: str = "") -> list[str]:
    lines = [f"sluice {view.version}  {clock}  {len(view.grants)} grants, {view.waiting} waiting"]
    if view.nvml_error:
        age = "never" if view.reading_age_s is None else f"{view.reading_age_s:.0f} s ago"
        lines.append(f"! NVML: {view.nvml_error} (last reading: {age})")
    lines.append("")
    lines.append(
        f"{'GPU':3} {'MODEL':20} {'MEMORY USED':>13} {'GRANTED':>8} {'SM %':>5}"
        f" {'GIVEN %':>7} {'GRANTS':>6} HEALTH"
    )
    lines += [_gpu_row(gpu) for gpu in view.gpus] or ["(no GPU)"]
    lines.append("")
    lines += ps_lines(view.grants, width)
    return [_cut(line, width) for line in lines]


def grant_line(grant: GrantView) -> str:
    """One grant in one sentence."""
    device = grant.devices[0]
    return (
        f"{grant.grant[:8]} {grant.name or '-'}: {grant.state}, {grant.policy},"
        f" {format_bytes(device.memory_limit_bytes)} and {device.share_ratio * 100:g}%"
        f" on {len(grant.devices)} GPU{'s' if len(grant.devices) > 1 else ''}"
    )


def event_line(event: NodeEvent) -> str:
    """One event in one line; whatever a program is called, the terminal stays as it is."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at_unix_s))
    text = "".join(c if c.isprintable() else "?" for c in event.text)
    figures = "" if event.evidence == "{}" else f" {event.evidence}"
    return f"{at} {event.level.upper():8} {event.kind}: {text}{figures}"


def _grant_row(grant: GrantView, device: DeviceView, first: bool) -> str:
    used = "-" if device.used_ratio is None else f"{device.used_ratio * 100:.0f}"
    cap = f"{device.share_ratio * 100:.0f}{'+' if grant.policy == 'elastic' else ''}"
    memory = f"{format_bytes(device.memory_used_bytes)}/{format_bytes(device.memory_limit_bytes)}"
    gpu = "?" if device.gpu_index is None else str(device.gpu_index)
    who = (
        f"{grant.grant[:8]:8} {_cut(grant.name or '-', 12):12} {_cut(_user(grant.uid), 8):8}"
        if first
        else " " * 30
    )
    tail = f"{grant.processes:>4} {grant.state:8} {grant.command}" if first else ""
    return f"{who} {gpu:3} {memory:>13} {used + '/' + cap:>9} {tail}".rstrip()


def _gpu_row(gpu: GpuView) -> str:
    total = format_bytes(gpu.memory_total_bytes)
    used = "-" if gpu.memory_used_bytes is None else format_bytes(gpu.memory_used_bytes)
    busy = "-" if gpu.utilization_ratio is None else f"{gpu.utilization_ratio * 100:.0f}"
    return (
        f"{gpu.index:<3} {_cut(gpu.name, 20):20} {used + '/' + total:>13}"
        f" {format_bytes(gpu.memory_granted_bytes):>8} {busy:>5}"
        f" {gpu.share_granted_ratio * 100:>7.0f} {f'{gpu.grants}/{gpu.slots}':>6} {gpu.health}"
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
