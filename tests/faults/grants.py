"""A daemon with a grant or two, and one whose system calls fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

from nodeagent.adapters.api.client import Unreachable
from nodeagent.ports.clients import GrantAsk, Granted, MemoryAsk, Refused
from nodeagent.units import Bytes, Ppm, SharePolicy
from tests.kit.daemon.harness import Daemon, Tenant, until

GRANT = ("--gpumem", "1Gi", "--cores", "1")
ASK = GrantAsk(1, MemoryAsk(amount_bytes=Bytes(1 << 30)), Ppm(10_000), SharePolicy.HARD)


def refused(node: Daemon) -> str:
    """A grant is asked for, and released if it was given; why it was not, or nothing."""
    try:
        with node.client() as client:
            for step in client.create_grant(ASK):
                if isinstance(step, Granted):
                    client.release_grant(step.view.grant)
                    return ""
        return "it had to wait"
    except (Refused, Unreachable) as error:
        return str(error) or type(error).__name__


def processes(node: Daemon, name: str) -> int:
    return next((int(one.processes) for one in node.grants() if one.name == name), 0)


def registered(node: Daemon, name: str) -> Tenant:
    tenant = node.run(*GRANT, "--name", name)
    assert tenant.do("register")["error"] == 0
    return tenant


def attached(pid: int, calls: str, what: str) -> subprocess.Popen[bytes]:
    """strace at a process and all its threads, which makes these calls fail; as soon as it does."""
    tracer = subprocess.Popen(
        [
            *("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}"),
            *("-e", f"inject={calls}:{what}", "-p", str(pid)),
        ],
        stderr=subprocess.DEVNULL,
    )

    def all_traced() -> bool:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return all("TracerPid:\t0" not in (task / "status").read_text() for task in tasks)

    until("strace is there", all_traced)
    return tracer
