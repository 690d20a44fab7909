"""`sluice doctor`: what is missing on this host, seen from here and, when it answers, from the
daemon. `--dump FILE`: the daemon's last events and decisions, to replay."""

from __future__ import annotations

import argparse
import os

from nodeagent import native
from nodeagent.adapters.checks import host_findings
from nodeagent.adapters.containers import injection
from nodeagent.adapters.ebpf import host as ebpf_host
from nodeagent.adapters.ebpf import pins as ebpf_pins
from nodeagent.cli.main import EXIT_USAGE
from nodeagent.cli.session import Failed, complain, connect, print_json
from nodeagent.cli.watch import by_hand
from nodeagent.core.gpus.health import OFFERED, REMEDIES, Health
from nodeagent.paths import client_socket
from nodeagent.ports.views import Finding, GpuView

EXIT_MISSING = 1
CREATED = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
_MARKS = {"ok": "ok", "warning": "warn", "missing": "MISSING"}


def doctor(options: argparse.Namespace, environment: dict[str, str]) -> int:
    return _dump(options, environment) if options.dump else _report(options, environment)


def _dump(options: argparse.Namespace, environment: dict[str, str]) -> int:
    """Writes the dump to a file that only its owner may read, because it names every user's
    work."""
    try:
        with connect(options, environment) as client:
            parts = list(client.dump_events())
    except Failed as failed:
        complain(f"doctor: {failed}")
        return failed.status
    try:
        with open(os.open(options.dump, CREATED, 0o600), "wb") as file:
            file.writelines(parts)
    except OSError as error:
        complain(f"doctor: {options.dump}: {error.strerror}")
        return EXIT_USAGE
    print(f"{sum(map(len, parts))} bytes in {options.dump}")
    return 0


def _report(options: argparse.Namespace, environment: dict[str, str]) -> int:
    socket = client_socket(options.socket, environment)
    findings = host_findings(native.locate(), environment, socket.parent)
    findings.append(injection.finding())
    findings += ebpf_pins.findings()  # the daemon's unit hides bpffs from it
    try:
        with connect(options, environment) as client:
            client_findings = client.doctor()
            info = client.node_info()
        findings.append(Finding("daemon", "ok", f"version {info.version} at {socket}"))
        if info.version != native.version():
            findings.append(
                Finding(
                    "daemon version",
                    "warning",
                    f"the daemon is {info.version}, this command {native.version()}",
                    "restart the daemon: jobs keep running meanwhile",
                )
            )
        # Its environment may differ from ours: what it finds missing counts, what we find
        # missing may not.
        findings = _merge(findings, client_findings)
        findings += [found for gpu in info.gpus if (found := _sick(gpu)) is not None]
        findings += [found for gpu in info.gpus if (found := _switch(gpu)) is not None]
        if info.nvml_error:
            findings.append(
                Finding("gpus", "missing", info.nvml_error, "see driver and nvml above")
            )
        else:
            names = ", ".join(gpu.name for gpu in info.gpus) or "none"
            level = "ok" if info.gpus else "missing"
            unread = any(found.topic.startswith("GPU ") for found in client_findings)
            remedy = "see each GPU above" if unread else "is a GPU installed?"
            findings.append(Finding("gpus", level, names, "" if info.gpus else remedy))
    except Failed as failed:
        findings += [*ebpf_host.missing(), *ebpf_host.narrowed()]
        findings.append(Finding("daemon", "missing", str(failed), "sluice serve"))
        findings += _left_held(environment)
    if options.json:
        print_json(findings)
    else:
        for finding in findings:
            print(f"{_MARKS[finding.level]:8} {finding.topic}: {finding.what}")
            if finding.level != "ok" and finding.remedy:
                print(f"{'':8} → {finding.remedy}")
    return EXIT_MISSING if any(f.level == "missing" for f in findings) else 0


def _left_held(environment: dict[str, str]) -> list[Finding]:
    """Findings about processes that a daemon holds which does not run now, as far as the ledger is
    readable."""
    try:
        held = by_hand.contained(None, environment)
    except by_hand.NotDone:
        return []
    if not held:
        return []
    return [
        Finding(
            "held",
            "warning",
            f"{len(held)} acts of a daemon that does not run are still in force",
            "`sluice contained` lists them; the next daemon reviews them; without one run:"
            " `sluice uncontain --all`",
        )
    ]


def _sick(gpu: GpuView) -> Finding | None:
    health = Health(gpu.health)
    if health in (Health.HEALTHY, Health.SUSPECT):
        return None
    remedy = REMEDIES[health].replace("INDEX", str(gpu.index))
    level = "warning" if health in OFFERED else "missing"
    return Finding(
        f"GPU {gpu.index}", level, f"{health.value}: {gpu.health_reason or 'not known'}", remedy
    )


def _switch(gpu: GpuView) -> Finding | None:
    """The change of contexts that was learned, because it decides how long windows are."""
    if gpu.context_switch_s is None:
        return None
    what = f"{gpu.context_switch_s * 1e6:.0f} us, as its grants measured it"
    return Finding(f"context switch of GPU {gpu.index}", "ok", what)


def _merge(ours: list[Finding], theirs: list[Finding]) -> list[Finding]:
    """Per topic the daemon's word: it is the one that does the work."""
    known = {finding.topic: finding for finding in theirs}
    return [known.pop(f.topic, f) for f in ours] + list(known.values())
