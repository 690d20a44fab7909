"""Ways around the interposer that need a machine made ready for them: the program is hooked all the same, or it is
told and held.

What `sluice selftest interposer` can try by itself is in tests/integration/test_selftest.py.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ebpf.daemon import is_up
from tests.ebpf.live import STAND_IN, STAND_IN_PATH, needs_ebpf
from tests.faults.programs import build
from tests.kit.cgroups import Container, pods
from tests.kit.node import Node, running, until
from tests.kit.places import AT_REST, SIM, SLUICE, TENANT
from tests.kit.workplace import workplace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces and setuid need root"),
]
GIB = 1 << 30
DRIVER = SIM / "libcuda.so.1"
REPORTED_S, CONTAINED_S = 2.0, 5.0
SLACK = 2.5
"""The promises are for a machine with room; this one runs other tests too."""
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory:
        directory.chmod(0o755)
        with running(directory, gpus="1xh100-80gb") as made:
            for path in (directory / "gpu").iterdir():
                path.chmod(0o666)  # as /dev/nvidia0 is: another user may use it
            (directory / "gpu").chmod(0o777)
            yield made


def asked(node: Node, *command: str | Path, name: str = "") -> dict[str, Any]:
    """Result that the program printed inside a grant of one GiB."""
    done = subprocess.run(
        [SLUICE, "run", "--gpumem", "1Gi", "--policy", "elastic", "--", *command],
        env=node.environment(),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=120,
    )
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def hooked(answer: dict[str, Any]) -> bool:
    """CUDA answered, something was got, and no more than the grant."""
    return 0 < answer["got_bytes"] <= GIB and answer["error"] == 2


def test_the_program_passes_the_limit_where_nobody_holds_it(node: Node) -> None:
    """Without this the tests below would prove nothing."""
    for way, library in (("plain", DRIVER), ("plugin", build.plugin())):
        done = subprocess.run(
            [build.asker(), way, library],
            env=node.on_the_driver(),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
        )
        assert json.loads(done.stdout)["got_bytes"] == 3 * GIB, way


def test_a2_a_setuid_program_is_hooked(node: Node) -> None:
    program = node.directory / "setuid"
    shutil.copy(build.asker(), program)
    program.chmod(0o4755)
    assert program.stat().st_mode & stat.S_ISUID
    assert hooked(asked(node, *NOBODY, program, "plain", DRIVER))


def test_a5_an_auditor_of_the_linker_is_hooked(node: Node) -> None:
    environment = (f"LD_AUDIT={build.auditor()}", f"AUDITOR_LIBRARY={DRIVER}")
    assert hooked(asked(node, "env", *environment, build.asker(), "plain", "libcuda.so.1"))
    assert hooked(asked(node, "env", *environment, build.asker(), "plugin", build.plugin()))


@pytest.mark.parametrize("way", ["plugin", "dlmopen"])
def test_a6_a7_a_plugin_linked_to_the_driver_is_hooked(node: Node, way: str) -> None:
    assert hooked(asked(node, build.asker(), way, build.plugin()))


def test_a8_who_looks_for_the_driver_among_the_loaded_files_finds_us(node: Node) -> None:
    """The first of that name. Who goes on to the one that was moved is not stopped here: its launches are counted
    against what it accounts (tests/ebpf/test_audit.py), and the page on security says so."""
    assert hooked(asked(node, build.asker(), "walk", DRIVER))


def test_a10_a_linker_that_knows_no_preload_file_is_hooked(node: Node) -> None:
    with open("/proc/self/maps") as maps:
        loader = next(line.split()[-1] for line in maps if "ld-linux" in line)
    raw = Path(loader).read_bytes()
    assert raw.count(b"/etc/ld.so.preload") >= 1
    patched = node.directory / "ld-patched.so"
    patched.write_bytes(raw.replace(b"/etc/ld.so.preload", b"/etc/ld.so.nowhere"))
    patched.chmod(0o755)
    assert hooked(asked(node, "env", "-u", "LD_PRELOAD", patched, build.asker(), "plain", DRIVER))


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def told(node: Node, pid: int) -> list[dict[str, Any]]:
    return [
        event
        for event in node.cli_json("events", "--kind", "unregistered_gpu_user")
        if event["pid"] == pid
    ]


OUT_OF_THE_MOUNTS = """
set -e
mkdir -p "$0"
mount --bind / "$0"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
exec chroot "$0" "$@"
"""


def test_a11_who_leaves_by_chroot_is_told_and_held(node: Node) -> None:
    """The tree has the driver without our mounts over it."""
    job = node.run(
        "left",
        *("unshare", "--mount", "sh", "-c", OUT_OF_THE_MOUNTS, node.directory / "tree"),
        *("env", "-u", "LD_PRELOAD", f"LD_LIBRARY_PATH={SIM}", TENANT, *AT_REST),
        flags=("--gpumem", "4Gi", "--cores", "30"),
    )
    held_and_told(node, "left", job.process.pid)


OVER_THE_MOUNTS = """
set -e
mount --bind /dev/null /etc/ld.so.preload 2>/dev/null || true
export LD_LIBRARY_PATH="$0"
exec env -u LD_PRELOAD "$@"
"""


def test_a12_who_mounts_over_us_in_a_user_namespace_is_told_and_held(
    node: Node, tmp_path: Path
) -> None:
    copies = node.directory / "copies"
    copies.mkdir()
    shutil.copy(DRIVER, copies / "libcuda.so.1")
    job = node.run(
        "nested",
        *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", OVER_THE_MOUNTS, copies),
        *(TENANT, *AT_REST),
        flags=("--gpumem", "4Gi", "--cores", "30"),
    )
    held_and_told(node, "nested", job.process.pid)


def held_and_told(node: Node, name: str, pid: int) -> None:
    until("it is held", lambda: stopped(pid), CONTAINED_S * SLACK)
    (event,) = told(node, pid)
    assert event["level"] == "critical"
    grant = node.grant(name)
    assert grant is not None
    assert grant["state"] == "paused"


@needs_ebpf
def test_a3_a_static_program_is_told_and_its_container_refused_and_held() -> None:
    """No loader, so nothing of ours is in it; a stand-in device plays the GPU."""
    uid = "1b4e28ba-2fa1-11d2-883f-0000000000c3"
    settings = f'[ebpf]\nenabled = "on"\ndevices = "{STAND_IN}"\n[detection]\ngrants = "contain"\n'
    with workplace() as directory, pods("unified", its=f"{uid}/c1") as place:
        node = Node(directory, settings=settings)
        try:
            node.start()
            until("the programs run", lambda: is_up(node), 60)
            container: Container = place["its"]
            program = container.run(build.static_opener(), "openat", STAND_IN_PATH)
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "0\n"
            until("its container is held", container.held, CONTAINED_S * SLACK)
            texts = [
                event["text"]
                for event in node.cli_json("events", "--kind", "unallocated_opener")
                if f"pid {program.pid} " in event["text"]
            ]
            assert len(texts) == 1, "told, and once"
            container.let_go()
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "1\n", "EPERM: it opens no GPU any more"
        finally:
            node.stop()


def test_the_programs_of_this_file_are_what_they_say() -> None:
    listing = subprocess.run(
        ["readelf", "-ld", build.static_opener()], capture_output=True, text=True, check=True
    ).stdout
    assert "INTERP" not in listing
    linked = subprocess.run(
        ["readelf", "-d", build.plugin()], capture_output=True, text=True, check=True
    ).stdout
    assert "[libcuda.so.1]" in linked
    assert sys.platform == "linux"
