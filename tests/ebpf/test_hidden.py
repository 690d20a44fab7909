"""The programs are loaded where the daemon sees less than the host: no /lib/modules, other pids."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys

import pytest

from nodeagent import native
from nodeagent.adapters.ebpf.loaders.programs import MAPS, PROGRAMS, pid_namespace
from tests.ebpf.live import LOADERS, needs_ebpf

RELEASE = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
pytestmark = [
    needs_ebpf,
    pytest.mark.root,
    pytest.mark.skipif(
        RELEASE < (6, 10), reason="bpf_get_ns_current_pid_tgid is every program's since Linux 6.10"
    ),
]
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")
COMMANDS = {
    "bcc": (sys.executable, "-m", "nodeagent.adapters.ebpf.loaders.bcc"),
    "prebuilt": (
        *(sys.executable, "-m", "nodeagent.adapters.ebpf.loaders.prebuilt"),
        str(native.locate().bpf_object),
    ),
}


def names(*command: str) -> list[str]:
    """Names of the BPF programs and maps that the command loaded."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            command, stdin=theirs, capture_output=True, text=True, check=False, timeout=120
        )
        theirs.close()
        text, fds, _, _ = socket.recv_fds(ours, 64 << 10, 64)
        for fd in fds:
            socket.close(fd)
    answer = json.loads(text or b"{}")
    assert "names" in answer, (answer, done.stderr)
    return list(answer["names"])


@pytest.mark.parametrize("loader", LOADERS)
def test_in_a_pid_namespace_of_its_own(loader: str) -> None:
    assert pid_namespace() is None, "these tests run among the kernel's own pids"
    assert names(*NAMESPACE, *COMMANDS[loader]) == [*PROGRAMS, *MAPS]


@pytest.mark.parametrize("loader", [one for one in LOADERS if one.id == "bcc"])
def test_with_the_modules_hidden_as_the_unit_hides_them(loader: str) -> None:
    """The first process of the namespace sees them and stands for the host's, which we may not
    look at on every test machine."""
    hide = 'mount -t tmpfs -o mode=0 none /lib/modules && exec "$@"'
    first = 'unshare --mount "$@"; exit $?'
    found = names(*NAMESPACE, "sh", "-c", first, "sh", "sh", "-c", hide, "sh", *COMMANDS[loader])
    assert found == [*PROGRAMS, *MAPS]
