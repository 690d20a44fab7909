"""`sluice trace PID`: launches of one process as the kernel counts them, live."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from nodeagent.cli.session import Failed, complain, connect
from nodeagent.ports.views import TracedDevice, TraceView
from nodeagent.units import NS_PER_S
from sluicecommon.plain import write_all_fields

HEAD = (
    f"{'GPU':3} {'LAUNCH/S':>10} {'COPY/S':>8} {'COST':>9} {'CHARGED %':>9} {'WAITED %':>8}"
    f" {'WAIT p50':>9} {'p99':>8} {'GAP p50':>8} {'p99':>8}"
)
BAR = 40
"""Columns of the longest bar."""


def trace(options: argparse.Namespace, environment: dict[str, str]) -> int:
    views: list[TraceView] = []
    rounds = 0
    try:
        with connect(options, environment) as client:
            for view in client.trace(options.pid, options.interval):
                before, views = views[-1:], [*views[:1], view]
                if not before:
                    if not options.json:
                        print(introduction(options.pid, view) + "\n" + HEAD, flush=True)
                    continue
                rounds += 1
                if options.json:
                    print(json.dumps(write_all_fields(view)), flush=True)
                else:
                    print("\n".join(trace_lines(before[0], view)), flush=True)
                if rounds == options.rounds:
                    break
    except Failed as failed:
        complain(f"trace: {failed}")
        return failed.status
    except KeyboardInterrupt:
        pass
    if not options.json and len(views) == 2:
        print("\n".join(histogram_lines(*views)))
    return 0


def introduction(pid: int, view: TraceView) -> str:
    grant = f"grant {view.grant[:8]} {view.name}".rstrip() if view.grant else "in no grant"
    cost = "" if view.probe_ns is None else f", the probe costs {view.probe_ns} ns a launch here"
    return f"pid {pid}, {grant}{cost}"


def trace_lines(before: TraceView, now: TraceView) -> list[str]:
    """One line for each GPU on which something was launched since `before`."""
    seconds = (now.at_ns - before.at_ns) / NS_PER_S
    lines = []
    for device in now.devices:
        new = since(before, device)
        calls = new.launches + new.copies
        if device.ended and calls == 0:
            lines.append(f"{device.device:<3} the process has ended")
            continue
        cost = format_ns(new.cost_ns / calls) if calls else "-"
        lines.append(
            f"{device.device:<3} {new.launches / seconds:>10.0f} {new.copies / seconds:>8.0f}"
            f" {cost:>9} {_percent(new.cost_ns, seconds):>9} {_percent(new.waited_ns, seconds):>8}"
            f" {_quantile(new.wait_histogram, 0.5):>9} {_quantile(new.wait_histogram, 0.99):>8}"
            f" {_quantile(new.gap_histogram, 0.5):>8} {_quantile(new.gap_histogram, 0.99):>8}"
        )
    return lines or ["-   no launches yet"]


def histogram_lines(first: TraceView, last: TraceView) -> list[str]:
    """Waits and gaps of the whole trace."""
    lines: list[str] = []
    for device in last.devices:
        new = since(first, device)
        for title, histogram in (
            ("waits at the gate", new.wait_histogram),
            ("times between two launches", new.gap_histogram),
        ):
            lines += ["", f"GPU {device.device}: {title}", *_bars(histogram)]
    return lines


def since(before: TraceView, device: TracedDevice) -> TracedDevice:
    """Difference of a device's counters since `before`."""
    old = next((one for one in before.devices if one.device == device.device), None)
    if old is None:
        return device
    return TracedDevice(
        device.device,
        device.launches - old.launches,
        device.copies - old.copies,
        device.cost_ns - old.cost_ns,
        device.waited_ns - old.waited_ns,
        _difference(device.wait_histogram, old.wait_histogram),
        _difference(device.gap_histogram, old.gap_histogram),
        device.ended,
    )


def quantile_ns(histogram: Sequence[int], part: float) -> int | None:
    """Upper bound of the bucket that holds the quantile `part` (0 to 1); None without values."""
    total = sum(histogram)
    seen = 0
    for bucket, count in enumerate(histogram):
        seen += count
        if count and seen >= part * total:
            return 2 << bucket
    return None


def format_ns(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def _difference(now: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(now, before, strict=True))


def _percent(part_ns: int, seconds: float) -> str:
    return f"{part_ns / NS_PER_S / seconds * 100:.1f}"


def _quantile(histogram: Sequence[int], part: float) -> str:
    value = quantile_ns(histogram, part)
    return "-" if value is None else f"<{format_ns(value)}"


def _bars(histogram: Sequence[int]) -> list[str]:
    used = [bucket for bucket, count in enumerate(histogram) if count]
    if not used:
        return ["  none"]
    most = max(histogram)
    return [
        f"  {format_ns(1 << bucket):>8} - {format_ns(2 << bucket):<8} {histogram[bucket]:>10}"
        f" {'#' * max(histogram[bucket] > 0, histogram[bucket] * BAR // most)}"
        for bucket in range(used[0], used[-1] + 1)
    ]
