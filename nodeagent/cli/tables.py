"""Text for people, 80 columns wide: pure functions from views to lines."""

from __future__ import annotations

import pwd
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodeagent.core.grants.quantities import format_bytes
from nodeagent.ports.views import DeviceView, GpuView, GrantView, NodeEvent, NodeView

WIDTH = 80
_NARROW, _COMMAND = 12, 7
"""Columns that a grant's name has at least, and that are left to its command."""
_BESIDE = 61
"""Columns of a grant's line without its name and command."""


NO_GRANTS = "no grants; start one with: sluice run --gpumem 8Gi --cores 50 -- COMMAND"
_WIDE_HEAD = (
    *("GRANT", "NAME", "USER", "GPU", "MEMORY", "SM %", "PROC", "STATE"),
    *("UUID", "SWITCH", "TURN", "PRIORITY", "WORKLOAD", "COMMAND"),
)


def wide_lines(grants: Sequence[GrantView], gpus: Sequence[GpuView] = ()) -> list[str]:
    """Lines of `sluice ps -o wide`: nothing is cut, and each column is as wide as its longest
    text."""
    if not grants:
        return [NO_GRANTS]
    switches = {gpu.uuid: _switch(gpu) for gpu in gpus}
    rows = [_WIDE_HEAD]
    for grant in grants:
        for device in grant.devices:
            memory, share = _memory(device), _share(grant, device)
            rows.append(
                (
                    *(grant.grant, grant.name or "-", _user(grant.uid), _gpu(device)),
                    *(memory, share, str(grant.processes), _state(grant), device.gpu),
                    *(switches.get(device.gpu, "-"), _turn(grant, device)),
                    *(str(grant.priority), grant.workload or "-", grant.command or "-"),
                )
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def ps_lines(
    grants: Sequence[GrantView], width: int = WIDTH, gpus: Sequence[GpuView] = ()
) -> list[str]:
    """Lines of `sluice ps`; `gpus` are those whose context switch is shown, where it is known."""
    if not grants:
        return [NO_GRANTS]
    names = _names_width(grants, width)
    command = " COMMAND" if any(grant.command for grant in grants) else ""
    lines = [
        f"{'GRANT':8} {'NAME':{names}} {'USER':8} {'GPU':3} {'MEMORY':>13} {'SM %':>9} {'PROC':>4}"
        f" {'STATE':8}{command}".rstrip()
    ]
    for grant in grants:
        for number, device in enumerate(grant.devices):
            lines.append(_grant_row(grant, device, names, first=number == 0))
        if grant.held:
            lines.append(f"  ! held: {grant.held}")
            lines.append(
                f"    why: `sluice events`; release it: `sluice resume {grant.grant[:8]}`, root:"
                " `sluice uncontain`"
            )
    known = [f"GPU {gpu.index} {_switch(gpu)}" for gpu in gpus if gpu.context_switch_s is not None]
    if known:
        lines.append(f"context switch as measured: {', '.join(known)}")
    return [_cut(line, width) for line in lines]


SORTS = ("memory", "sm", "name", "gpu", "age")
_BARS = "▁▂▃▄▅▆▇█"
HISTORY = 40
"""Rounds that a sparkline shows."""


@dataclass(slots=True)
class History:
    """The load of each GPU over the last rounds."""

    _loads: dict[str, deque[float | None]] = field(default_factory=dict)

    def take(self, view: NodeView) -> None:
        for gpu in view.gpus:
            loads = self._loads.setdefault(gpu.uuid, deque(maxlen=HISTORY))
            loads.append(gpu.utilization_ratio)

    def of(self, gpu: str) -> list[float | None]:
        return list(self._loads.get(gpu, ()))


def sparkline(ratios: Sequence[float | None]) -> str:
    """One character per value from 0 to 1; a blank where nothing was reported."""
    return "".join(
        " " if one is None else _BARS[min(len(_BARS) - 1, int(max(0.0, one) * len(_BARS)))]
        for one in ratios
    )


@dataclass(frozen=True, slots=True)
class TopView:
    """Options of `sluice top`: its order, its filter, and whether processes are listed."""

    sort: str = ""
    """One of SORTS; empty keeps the daemon's order."""
    only: str = ""
    """Show only grants with this text in their name, id, user, state, workload, command or GPU
    index."""
    processes: bool = False


def top_lines(
    view: NodeView,
    width: int = WIDTH,
    clock: str = "",
    shown: TopView = TopView(),  # frozen
    history: History | None = None,
    command_of: Callable[[int], str] = str,
) -> list[str]:
    """Lines of `sluice top`. `command_of` maps a PID to its command line."""
    grants = _chosen(view.grants, shown)
    left_out = len(view.grants) - len(grants)
    hidden = f" ({left_out} hidden)" if left_out else ""
    head = f"sluice {view.version}  {clock}  {len(view.grants)} grants{hidden}"
    lines = [f"{head}, {view.waiting} waiting"]
    if view.nvml_error:
        age = "never" if view.reading_age_s is None else f"{view.reading_age_s:.0f} s ago"
        lines.append(f"! NVML: {view.nvml_error} (last reading: {age})")
    lines.append("")
    lines.append(
        f"{'GPU':3} {'MODEL':20} {'MEMORY USED':>13} {'GRANTED':>8} {'SM %':>5}"
        f" {'GIVEN %':>7} {'GRANTS':>6} HEALTH"
    )
    for gpu in view.gpus:
        lines.append(_gpu_row(gpu))
        if gpu.context_switch_s is not None:
            lines.append(f"    context switch {_switch(gpu)}")
        loads = history.of(gpu.uuid) if history is not None else []
        if len(loads) > 1:
            lines.append(f"    load {sparkline(loads)}")
    if not view.gpus:
        lines.append("(no GPU)")
    lines.append("")
    if view.grants and not grants:
        lines.append(f"no grant has {shown.only!r} in it")
    else:
        lines += ps_lines(grants, width)
    if shown.processes:
        lines += ["", *_process_lines(view, grants, shown, command_of)]
    return [_cut(line, width) for line in lines]


_KEYS: Mapping[str, Callable[[GrantView], Any]] = {
    "memory": lambda grant: -sum(device.memory_used_bytes for device in grant.devices),
    "sm": lambda grant: -sum(device.used_ratio or 0.0 for device in grant.devices),
    "name": lambda grant: (grant.name, grant.grant),
    "gpu": lambda grant: [device.gpu_index or 0 for device in grant.devices],
    "age": lambda grant: grant.created_unix_s,
}


def _chosen(grants: Sequence[GrantView], shown: TopView) -> list[GrantView]:
    wanted = shown.only.lower()
    found = [grant for grant in grants if wanted in _words(grant)]
    return sorted(found, key=_KEYS[shown.sort]) if shown.sort else found


def _words(grant: GrantView) -> str:
    gpus = " ".join(f"gpu{device.gpu_index}" for device in grant.devices)
    who = f"{grant.grant} {grant.name} {_user(grant.uid)} {grant.state} {grant.policy}"
    return f"{who} {grant.workload} {grant.command} {gpus}".lower()


def _process_lines(
    view: NodeView,
    grants: Sequence[GrantView],
    shown: TopView,
    command_of: Callable[[int], str],
) -> list[str]:
    names = {grant.grant: grant.name or grant.grant[:8] for grant in grants}
    found = [one for one in view.processes if not shown.only or one.grant in names]
    if shown.sort in ("memory", "sm"):
        by_memory = shown.sort == "memory"
        found.sort(key=lambda one: -((one.memory_bytes if by_memory else one.sm_ratio) or 0))
    lines = [f"{'PID':>8} {'GPU':3} {'MEMORY':>8} {'SM %':>5} {'GRANT':20} COMMAND"]
    for one in found:
        memory = "-" if one.memory_bytes is None else format_bytes(one.memory_bytes)
        busy = "-" if one.sm_ratio is None else f"{one.sm_ratio * 100:.0f}"
        whose = names.get(one.grant, "-") if one.grant is not None else "! none"
        command = "".join(c if c.isprintable() else "?" for c in command_of(one.pid))
        lines.append(
            f"{one.pid:>8} {one.gpu_index:<3} {memory:>8} {busy:>5} {_cut(whose, 20):20} {command}"
        )
    return lines if found else ["no process on a GPU"]


def grant_line(grant: GrantView) -> str:
    """One grant in one sentence."""
    device = grant.devices[0]
    return (
        f"{grant.grant[:8]} {grant.name or '-'}: {grant.state}, {grant.policy},"
        f" {format_bytes(device.memory_limit_bytes)} and {device.share_ratio * 100:g}%"
        f" on {len(grant.devices)} GPU{'s' if len(grant.devices) > 1 else ''}"
    )


def event_line(event: NodeEvent) -> str:
    """One event in one line, without control characters, so that no process name can alter the
    terminal."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at_unix_s))
    text = "".join(c if c.isprintable() else "?" for c in event.text)
    figures = "" if event.evidence == "{}" else f" {event.evidence}"
    return f"{at} {event.level.upper():8} {event.kind}: {text}{figures}"


def _names_width(grants: Sequence[GrantView], width: int) -> int:
    """Columns for names: as many as the longest has, where commands need none of them. Names of
    pods begin with their namespace, and pods have no command here."""
    command = _COMMAND if any(grant.command for grant in grants) else 0
    longest = max(len(grant.name) for grant in grants)
    return max(_NARROW, min(longest, width - _BESIDE - command))


def _grant_row(grant: GrantView, device: DeviceView, names: int, first: bool) -> str:
    name, user = _cut(grant.name or "-", names), _cut(_user(grant.uid), 8)
    who = f"{grant.grant[:8]:8} {name:{names}} {user:8}" if first else " " * (names + 18)
    tail = f"{grant.processes:>4} {_state(grant):8} {grant.command}" if first else ""
    return (
        f"{who} {_gpu(device):3} {_memory(device):>13} {_share(grant, device):>9} {tail}".rstrip()
    )


def _memory(device: DeviceView) -> str:
    return f"{format_bytes(device.memory_used_bytes)}/{format_bytes(device.memory_limit_bytes)}"


def _share(grant: GrantView, device: DeviceView) -> str:
    """Used and granted time in percent; `+` after an elastic share."""
    used = "-" if device.used_ratio is None else f"{device.used_ratio * 100:.0f}"
    cap = f"{device.share_ratio * 100:.0f}{'+' if grant.policy == 'elastic' else ''}"
    return f"{used}/{cap}"


def _switch(gpu: GpuView) -> str:
    """Time of a change of contexts as the GPU's grants measured it; `-` while none has."""
    return "-" if gpu.context_switch_s is None else f"{gpu.context_switch_s * 1e6:.0f}us"


def _turn(grant: GrantView, device: DeviceView) -> str:
    """off, cap or lease, and the reason for which the grant has no windows."""
    why = [*(["gang"] if grant.gang else []), *(["trusted"] if grant.trusted_group else [])]
    return ",".join([device.turn, *why])


def _gpu(device: DeviceView) -> str:
    return "?" if device.gpu_index is None else str(device.gpu_index)


def _state(grant: GrantView) -> str:
    return "held" if grant.held else grant.state


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
