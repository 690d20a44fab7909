"""`sluice mig show | set`: shows the MIG geometry of GPUs, and changes that of an idle one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from nodeagent.cli.main import EXIT_REFUSED, EXIT_USAGE
from nodeagent.cli.session import Failed, complain, connect, print_json
from nodeagent.core.gpus.mig_geometry import geometry
from nodeagent.core.grants.quantities import format_bytes
from nodeagent.ports.mig import MigAnswer, MigAsk, MigState, MigView
from sluicecommon.plain import write_all_fields


def mig(options: argparse.Namespace, environment: dict[str, str]) -> int:
    if options.part == "set":
        return _set(options, environment)
    try:
        with connect(options, environment) as client:
            views = client.show_mig(options.gpu or "")
    except Failed as failed:
        complain(f"mig show: {failed}")
        return failed.status
    if _json(options):
        print_json([_plain(view) for view in views])
    else:
        print("\n".join(line for view in views for line in card_lines(view)))
    return 0


def _json(options: argparse.Namespace) -> bool:
    return bool(options.json) or options.output == "json"


def _set(options: argparse.Namespace, environment: dict[str, str]) -> int:
    if (options.geometry is None) != options.disable:
        complain("mig set: give either profiles (such as 7x1g.10gb, or none) or --disable")
        return EXIT_USAGE
    ask = MigAsk(options.gpu, options.geometry or (), options.disable, options.dry_run)
    try:
        with connect(options, environment) as client:
            answer = client.set_mig(ask)
    except Failed as failed:
        complain(f"mig set: {failed}")
        return failed.status
    if _json(options):
        plain = write_all_fields(answer)
        plain["before"] = _plain(answer.before)
        plain["after"] = _plain(answer.after) if answer.after is not None else None
        print_json(plain)
    else:
        print("\n".join(answer_lines(answer, ask)))
    for note in answer.notes:
        complain(f"mig set: note: {note}")
    if answer.failure:
        complain(f"mig set: {answer.failure}")
        return EXIT_REFUSED
    return EXIT_REFUSED if ask.dry_run and answer.before.holders else 0


def _plain(view: MigView) -> dict[str, Any]:
    """Processes are among the holders."""
    plain: dict[str, Any] = write_all_fields(view.state)
    del plain["processes"]
    return {**plain, "holders": list(view.holders)}


def card_lines(view: MigView) -> list[str]:
    state = view.state
    lines = [f"GPU {state.index}: {state.name} ({state.gpu}): {_mode(state)}"]
    rows = [("GI", "PROFILE", "AT", "CI", "UUID")]
    for one in state.instances:
        for device in one.devices:
            compute = str(device.compute_instance)
            rows.append(
                (str(one.gpu_instance), one.profile, str(one.span), compute, str(device.uuid))
            )
        if not one.devices:
            rows.append((str(one.gpu_instance), one.profile, str(one.span), "-", "not usable"))
    if state.instances:
        lines += _table(rows)
    lines += [f"  held by: {holder}" for holder in view.holders]
    if state.profiles:
        lines.append("  can be cut into:")
        head = ("PROFILE", "ID", "MEMORY", "SLICES", "MOST", "FITS YET", "MAY BEGIN AT")
        profiles = [
            (
                one.name,
                str(one.profile_id),
                format_bytes(one.memory_bytes),
                str(one.slices),
                str(one.most),
                "-" if one.fits is None else str(one.fits),
                ",".join(str(span.start) for span in one.spans) or "-",
            )
            for one in state.profiles
        ]
        lines += _table([head, *profiles])
    return lines


def _mode(state: MigState) -> str:
    if state.error:
        return f"cannot be read: {state.error}"
    if not state.supported:
        return "no MIG"
    if state.enabled == state.pending:
        return f"MIG {'on' if state.enabled else 'off'}"
    return (
        f"MIG {'on' if state.enabled else 'off'}, {'on' if state.pending else 'off'} is pending:"
        " reset of the GPU or reboot needed"
    )


def answer_lines(answer: MigAnswer, ask: MigAsk) -> list[str]:
    state = answer.before.state
    lines = [f"GPU {state.index} ({state.gpu}) was: {geometry(state)}"]
    if ask.dry_run:
        new = ", ".join(f"{one.profile} at {one.span}" for one in answer.planned)
        what = "MIG off" if ask.disable else f"MIG on, {new or 'no instance'}"
        lines.append(f"would be: {what}; nothing is changed")
        return lines + [f"in the way: {holder}" for holder in answer.before.holders]
    if answer.after is None:
        return lines
    lines.append(f"is now: {geometry(answer.after.state)}")
    lines += [
        f"  {one.profile} {device.uuid}"
        for one in answer.after.state.instances
        for device in one.devices
    ]
    return lines


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
