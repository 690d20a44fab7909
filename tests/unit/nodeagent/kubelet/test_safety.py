"""Ways by which pods could bypass their grants: another plugin, an unsafe container runtime, a
second daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.adapters.containers import toolkit as container_toolkit
from nodeagent.adapters.containers.toolkit import KEY, ToolkitReading
from nodeagent.adapters.kubelet import plugin_sockets
from nodeagent.adapters.ledger.instance_lock import InstanceLock, Taken
from nodeagent.core.kubelet.plugin_conflict import PluginSocket, look
from nodeagent.core.metrics import catalogue as m
from nodeagent.ports.views import Finding
from nodeagent.shell.pods.safety import SafetyLook, SafetyWatch
from tests.kit.places import REPO

GPU = "GPU-12345678-1234-1234-1234-123456789012"
RESOURCE = "nvidia.com/gpu"

# --- one daemon -------------------------------------------------------------------------------


def test_the_second_daemon_is_told_who_is_the_first(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from nodeagent.adapters.ledger.instance_lock import InstanceLock\n"
        "held = InstanceLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        for _ in range(2):  # being refused does not spoil the next answer
            with pytest.raises(Taken) as refused:
                InstanceLock(tmp_path)
            text = str(refused.value)
            assert f"(pid {first.pid}, " in text
            assert f"serves {tmp_path} already" in text
            assert "systemctl stop sluice" in text
        first.kill()
        first.wait(60)
        lock = InstanceLock(tmp_path)  # nothing is stale
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        lock.close()
        lock.close()


def test_whatever_stands_in_the_lock_is_only_text(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("7\x1b[2J; rm -rf /")
    held = InstanceLock(tmp_path)
    (tmp_path / "lock").write_text("not a number")
    with pytest.raises(Taken, match=r"another daemon serves"):
        InstanceLock(tmp_path)
    held.close()


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("kept")
    (tmp_path / "lock").symlink_to("target")
    with pytest.raises(OSError, match="link"):
        InstanceLock(tmp_path)
    assert (tmp_path / "target").read_text() == "kept"


# --- the container toolkit --------------------------------------------------------------------


def toolkit(tmp_path: Path, text: str | None, binary: bool = True) -> ToolkitReading:
    config, program = tmp_path / "config.toml", tmp_path / "nvidia-container-runtime"
    if text is not None:
        config.write_text(text)
    if binary:
        program.write_text("")
    return container_toolkit.read([tmp_path / "absent.toml", config], [program])


@pytest.mark.parametrize(
    ("text", "binary", "accepts", "level"),
    [
        (f"{KEY} = true\n[nvidia-container-cli]\n", True, True, "warning"),
        (f"{KEY} = false\n", True, False, "ok"),
        ("disable-require = false\n", True, True, "warning"),
        (None, True, True, "warning"),
        (None, False, None, "ok"),
        (f"{KEY} = 1\n", True, None, "warning"),
        ("= nonsense", True, None, "warning"),
    ],
    ids=["true", "false", "not said", "no file", "no runtime", "a number", "broken"],
)
def test_who_may_take_gpus_by_a_variable(
    tmp_path: Path, text: str | None, binary: bool, accepts: bool | None, level: str
) -> None:
    reading = toolkit(tmp_path, text, binary)
    assert reading.accepts is accepts
    found = container_toolkit.finding(reading, "cdi-cri")
    assert found.level == level
    if accepts:
        assert "NVIDIA_VISIBLE_DEVICES=all, outside every grant" in found.what
        assert f"nvidia-ctk config --set {KEY}=false" in found.remedy


def test_strategy_envvar_needs_what_is_unsafe(tmp_path: Path) -> None:
    unsafe = container_toolkit.finding(toolkit(tmp_path, f"{KEY} = true"), "envvar")
    assert (unsafe.level, "cdi-cri" in unsafe.remedy) == ("warning", True)
    safe = container_toolkit.finding(toolkit(tmp_path, f"{KEY} = false"), "envvar")
    assert (safe.level, "no GPU at all" in safe.what) == ("missing", True)


# --- other plugins ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device_id",
    [GPU, f"{GPU}-3", "MIG-12345678-1234-1234-1234-123456789012", "0"],
    ids=["NVIDIA", "HAMi", "MIG", "index"],
)
def test_devices_that_are_not_ours_are_another_plugins(device_id: str) -> None:
    found = look(RESOURCE, [f"{GPU}::0", device_id], [PluginSocket("nvidia-gpu.sock", 7, "hami")])
    assert found.level == "missing"
    assert f"1 device of {RESOURCE} that another plugin registered ({device_id})" in found.what
    assert "possibly by nvidia-gpu.sock (hami, pid 7)" in found.what
    assert "kubelet.resource_count" in found.remedy


def test_our_own_devices_and_other_peoples_resources_are_no_conflict() -> None:
    rdma = PluginSocket("rdma.sock", 9, "k8s-rdma-shared-dp")
    assert look(RESOURCE, [f"{GPU}::{n}" for n in range(10)], [rdma]).level == "ok"
    assert look(RESOURCE, [], []).level == "ok"


@pytest.mark.parametrize(
    "rival",
    [
        PluginSocket("nvidia-gpu.sock"),
        PluginSocket("a.sock", 7, "nvidia-device-plugin"),
        PluginSocket("x.sock", 8, "vgpu-monitor"),
    ],
)
def test_a_plugin_for_gpus_is_named_with_its_process(rival: PluginSocket) -> None:
    found = look(RESOURCE, [], [rival])
    assert found.level == "warning"
    assert str(rival) in found.what


def test_sockets_are_found_with_their_owners(tmp_path: Path) -> None:
    code = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print('up', flush=True)\n"
        "sys.stdin.read()\n"
    )
    (tmp_path / "kubelet_internal_checkpoint").write_text("{}")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    with socket.socket(socket.AF_UNIX) as ours, socket.socket(socket.AF_UNIX) as kubelet:
        for one, name in ((ours, "ours.sock"), (kubelet, "kubelet.sock")):
            one.bind(str(tmp_path / name))
            one.listen()
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "nvidia-gpu.sock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "up\n"
            (found,) = plugin_sockets.others(tmp_path)
            other.kill()
    assert (found.name, found.pid) == ("nvidia-gpu.sock", other.pid)
    assert "python" in found.command
    assert plugin_sockets.others(tmp_path / "absent") == []


# --- looked at now and then -------------------------------------------------------------------


def test_what_changes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    fine = SafetyLook(Finding("toolkit", "ok", "fine"), False, Finding("plugins", "ok", "alone"))
    bad = replace(fine, plugins=Finding("plugins", "missing", "not alone", "take it off"))
    looks = [fine, bad, bad, fine, fine]
    seen = 0

    def one() -> SafetyLook:
        nonlocal seen
        seen += 1
        return looks[min(seen, len(looks)) - 1]

    async def run() -> tuple[dict[str, float], list[Finding]]:
        watch = SafetyWatch(one, fatal=pytest.fail, every_s=0.001)
        assert (watch.counters(), watch.findings()) == ({}, [])
        await watch.start()
        end_s = time.monotonic() + 60
        while seen < len(looks) + 2:
            assert time.monotonic() < end_s
            await asyncio.sleep(0.001)
        await watch.close()
        return watch.counters(), watch.findings()

    with caplog.at_level(logging.INFO):
        counters, findings = asyncio.run(run())
    said = [one.getMessage() for one in caplog.records if one.name == "nodeagent.shell.pods.safety"]
    assert said == ["plugins: not alone; take it off", "plugins: alone"]
    assert counters == {m.PLUGIN_CONFLICT: 0.0, m.TOOLKIT_ACCEPTS: 0.0}
    assert findings == [fine.toolkit, fine.plugins]
