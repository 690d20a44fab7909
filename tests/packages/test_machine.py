"""Steps of an operator, in order, on one fresh machine: install as README says, run, queue, hang,
upgrade, downgrade, purge. The tests of this file build on each other; the first failure stops
them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from nodeagent.adapters.ebpf import host as ebpf_host
from tests.ebpf.live import needs_ebpf
from tests.kit.places import REPO
from tests.kit.queue import queues
from tests.packages.bpf import exists
from tests.packages.debs import NEXT, VERSION, built
from tests.packages.machine import Machine, machine, until

pytestmark = [
    pytest.mark.packages,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="boots a container: needs root"),
]
SERVICES = ("sluice", "sluice-queue")
TENANT = (
    "sluice run --gpumem 8Gi --cores 30 --name {name} -- sluice-sim-job --seconds 600 --report 1"
)
QUEUES = queues.manifests(
    queues.flavor("any"),
    queues.cluster_queue("team", "any", {queues.GPU: 4}),
    queues.namespace("default"),
    queues.local_queue("train", "default", "team"),
)

STAND_IN, STAND_IN_PATH = "1:7", "/dev/full"
"""Instead of a GPU's device node; no other process opens it."""
POD = (
    "/kubepods.slice/kubepods-pod0a1b2c3d_1111_4222_8333_444455556666.slice"
    f"/cri-containerd-{'ab' * 32}.scope"
)
LEFT = (
    "find / -xdev \\( -path /proc -o -path /sys -o -path /root -o -path /var/cache/apt -o -path /var/lib/apt -o -path /var/log \\) -prune -o"
    " \\( -name '*sluice*' -o -path '*/nodeagent*' -o -path '*/queuecontroller*' \\) -print"
)
_failed: list[str] = []


@pytest.fixture(scope="module")
def node() -> Iterator[Machine]:
    with machine("machine") as made:
        made.bring(built())
        yield made


@pytest.fixture(autouse=True)
def _in_order(request: pytest.FixtureRequest) -> Iterator[None]:
    if _failed:
        pytest.fail(f"needs {_failed[0]}, which failed")
    before = request.session.testsfailed
    yield
    if request.session.testsfailed > before:
        _failed.append(request.node.name)


def readme_block() -> list[str]:
    """The commands of README's section on a machine without Kubernetes."""
    section = (REPO / "README.md").read_text().partition("## Bare metal\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line for line in block.splitlines() if line.strip() and not line.startswith("#")]


def grants(node: Machine) -> dict[str, Any]:
    return {one["name"]: one for one in json.loads(node.sh("sluice ps --json").stdout)}


def version(node: Machine) -> str:
    return node.sh("sluice version").stdout.strip()


def launches(node: Machine, name: str) -> int:
    metrics = node.sh("curl -sf http://127.0.0.1:9464/metrics").stdout
    found = re.search(
        rf'^sluice_grant_launches_total{{[^}}]*name="{name}"[^}}]*}} (\S+)', metrics, re.MULTILINE
    )
    return int(float(found[1])) if found else -1


def mapped(node: Machine, name: str) -> set[str]:
    """Inode and path of our libraries in the job's memory."""
    pid = grants(node)[name]["pid"]
    maps = node.sh(f"cat /proc/{pid}/maps").stdout
    rows = (line.split(None, 5) for line in maps.splitlines())
    return {f"{row[4]} {row[5]}" for row in rows if len(row) > 5 and "sluice-libraries" in row[5]}


def test_the_commands_of_the_readme_install_it(node: Machine) -> None:
    commands = readme_block()
    assert len(commands) >= 5
    for command in commands:
        node.sh(command)


def test_both_services_are_active_in_their_slice(node: Machine) -> None:
    for service in SERVICES:
        assert node.active(service), node.log()
        assert node.prop(service, "Slice") == "sluice.slice"
        assert node.prop(service, "NRestarts") == "0", node.log()
    assert node.prop("sluice-queue", "User") == "sluice-queue"
    assert version(node) == f"sluice {VERSION}"
    assert "/usr/lib/sluice" in node.sh(LEFT).stdout.splitlines()  # what purging must empty


def test_systemd_finds_nothing_to_say_about_the_installed_units(node: Machine) -> None:
    done = node.sh(
        "systemd-analyze verify --man=no sluice.service sluice-queue.service sluice.slice 2>&1"
    )
    assert [line for line in done.stdout.splitlines() if "sluice" in line] == []
    for service, tenths in (("sluice", 35), ("sluice-queue", 20)):
        node.sh(f"systemd-analyze security --threshold={tenths} {service}.service")


def test_a_job_gets_its_share_and_no_more_memory(node: Machine) -> None:
    done = node.sh(
        "sluice run --gpumem 8Gi --cores 30 -- sluice-sim-job --seconds 4 --kernel-ns 1000000 --alloc 9000000000"
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["alloc_result"] == 2, "more than the cap was given"
    assert 0.2 < result["share_ratio"] < 0.4
    until("the grant is over", lambda: not grants(node))


def test_metrics_of_both_services_answer(node: Machine) -> None:
    assert "sluice_gpu_healthy{" in node.sh("curl -sf http://127.0.0.1:9464/metrics").stdout
    assert node.sh("curl -sf http://127.0.0.1:9464/healthz").stdout
    assert "kueue_build_info" in node.sh("curl -sf http://127.0.0.1:9466/metrics").stdout
    assert node.sh("curl -sf http://127.0.0.1:9466/readyz").stdout == "ok\n"


def watching(node: Machine) -> bool:
    return "ok       ebpf: runs" in node.sh("sluice doctor", check=False).stdout


def ebpf_child(node: Machine) -> int:
    # Not this line itself.
    return int(node.sh("pgrep -f 'nodeagent[.]adapters[.]ebpf[.]child'").stdout)


@needs_ebpf
def test_the_kernel_is_watched_under_the_hardening_of_the_unit(node: Machine) -> None:
    node.sh(f'sed -i \'s/^#devices = ""/devices = "{STAND_IN}"/\' /etc/sluice/sluice.toml')
    node.sh("systemctl restart sluice")
    until("eBPF is running", lambda: watching(node))
    doctor = node.sh("sluice doctor").stdout
    assert node.sh("dpkg -l python3-bpfcc 2>/dev/null | grep ^ii", check=False).stdout == ""
    assert "ebpf: runs, prebuilt, loaded by libbpf;" in doctor
    # nspawn has a pid namespace; everything else works, refusals that outlive the daemon among it
    assert (
        "ebpf functions: processes in other PID namespaces are not detected: the daemon is not in the host's\n"
        in doctor
    )
    assert "sluice_ebpf_up 1" in node.sh("curl -sf http://127.0.0.1:9464/metrics").stdout
    assert node.sh(f"cat /proc/{ebpf_child(node)}/cmdline").stdout.split("\0")[1] == "-I"


@needs_ebpf
def test_who_opens_a_gpu_without_a_grant_is_told(node: Machine) -> None:
    node.sh(f"systemd-run --collect --unit=stranger sh -c 'exec 3<{STAND_IN_PATH}; exec sleep 600'")
    pid = int(node.prop("stranger", "MainPID"))
    until(
        "it is told",
        lambda: any(
            event["kind"] == "unallocated_opener" and event["pid"] == pid
            for event in json.loads(node.sh("sluice events --json").stdout)
        ),
    )
    assert node.active("stranger"), "what the host runs is told of, and left alone"
    node.sh("systemctl stop stranger")


def audited(node: Machine, by: str) -> float:
    metrics = node.sh("curl -sf http://127.0.0.1:9464/metrics").stdout
    found = re.search(
        rf'^sluice_audit_launches_total{{seen_by="{by}"}} (\S+)', metrics, re.MULTILINE
    )
    return float(found[1]) if found else 0.0


@needs_ebpf
def test_a_job_is_traced_and_audited_by_probes_in_its_libraries(node: Machine) -> None:
    job = node.start(TENANT.format(name="traced"))
    until("the job runs", lambda: launches(node, "traced") > 0)
    pid = grants(node)["traced"]["pid"]
    said = node.sh(f"sluice trace {pid} --interval 0.5 -n 3 --json").stdout
    counts = [json.loads(line)["devices"][0]["launches"] for line in said.splitlines()]
    assert 0 < counts[0] < counts[2]
    until("windows saw it", lambda: audited(node, "driver") > 0)
    assert audited(node, "interposer") > 0
    node.sh(f"kill {pid}")
    job.wait(30)


@needs_ebpf
def test_a_container_that_may_not_open_gpus_may_not_while_the_daemon_is_away(node: Machine) -> None:
    pod = node.sh("findmnt -rn -t cgroup2 -o TARGET | head -1").stdout.strip() + POD
    node.sh(f"mkdir -p {pod}")
    inside = f"sh -c 'echo $$ >{pod}/cgroup.procs; exec 3<{STAND_IN_PATH}"
    opener = node.start(f"{inside}; exec sleep 600'")
    until("it is frozen", lambda: "frozen 1" in node.sh(f"cat {pod}/cgroup.events").stdout)
    assert node.sh("ls /sys/fs/bpf/sluice").stdout.startswith("deny-")
    node.sh("systemctl stop sluice")
    node.sh(f"echo 0 >{pod}/cgroup.freeze")
    refused = node.sh(f"{inside}'", check=False)
    assert (refused.returncode, "not permitted" in refused.stderr) == (2, True), refused
    assert opener.poll() is None
    node.sh(f"echo 1 >{pod}/cgroup.kill; systemctl start sluice")
    opener.wait(30)
    until("eBPF is running", lambda: watching(node))
    until("the cgroup is empty", lambda: node.sh(f"rmdir {pod}", check=False).returncode == 0)


def test_a_key_in_the_credential_store_is_given_to_its_service_alone(node: Machine) -> None:
    for service in SERVICES:
        node.put(f"/etc/credstore/{service}.key", f"key of {service}\n")
    node.sh(
        "chmod 700 /etc/credstore; chmod 600 /etc/credstore/*; systemctl restart sluice sluice-queue"
    )
    for service in SERVICES:
        pid = node.prop(service, "MainPID")
        seen = node.sh(
            f"cat /proc/{pid}/root/run/credentials/{service}.service/{service}.key"
        ).stdout
        assert seen == f"key of {service}\n"
    node.sh("rm -r /etc/credstore")


def test_jobs_come_through_the_queue_once_the_settings_name_it(node: Machine) -> None:
    node.sh(
        'sed -i \'s|^#server = ""|server = "unix:/run/sluice-queue/queue.sock"|\' /etc/sluice/sluice.toml; systemctl restart sluice'
    )
    node.put("/root/queues.yaml", QUEUES)
    node.sh("sluice-queue apply -f /root/queues.yaml")
    until(
        "the node is known to the queue",
        lambda: "ready" in node.sh("sluice-queue get nodes", check=False).stdout.lower(),
    )
    done = node.sh(
        "sluice run --queue train --gpumem 4Gi --cores 20 --wait 60 -- sluice-sim-job --seconds 1"
    )
    assert json.loads(done.stdout.splitlines()[-1])["launches"] > 0


def test_a_stopped_daemon_is_started_again_and_its_jobs_go_on(node: Machine) -> None:
    job = node.start(TENANT.format(name="held"))
    until("the job runs", lambda: launches(node, "held") > 0)
    before = {service: node.prop(service, "MainPID") for service in SERVICES}
    for pid in before.values():
        node.sh(f"kill -STOP {pid}")
    for service in SERVICES:
        until(
            f"the watchdog has started {service} again",
            lambda s=service: node.prop(s, "MainPID") not in ("0", before[s]) and node.active(s),
            180,
        )
        assert node.prop(service, "NRestarts") == "1"
    until("the daemon has the job again", lambda: "held" in grants(node))
    seen = launches(node, "held")
    until("the job goes on", lambda: launches(node, "held") > seen)
    assert job.poll() is None
    node.sh(f"kill {grants(node)['held']['pid']}")
    job.wait(30)


@pytest.fixture(scope="module")
def old_job(node: Machine) -> subprocess.Popen[str]:
    job = node.start(TENANT.format(name="old"))
    until("the job runs", lambda: launches(node, "old") > 0)
    return job


def test_an_upgrade_leaves_a_running_job_its_library_and_its_grant(
    node: Machine, old_job: subprocess.Popen[str]
) -> None:
    libraries, grant = mapped(node, "old"), grants(node)["old"]["grant"]
    assert libraries
    node.bring(built(NEXT))
    node.sh("apt-get install -y ./*.deb")
    assert version(node) == f"sluice {NEXT}"
    until("the new daemon has the job", lambda: "old" in grants(node))
    assert grants(node)["old"]["grant"] == grant
    assert mapped(node, "old") == libraries
    seen = launches(node, "old")
    until("the job goes on", lambda: launches(node, "old") > seen)
    assert f"/{VERSION}-" in libraries.pop()


def test_a_job_started_after_the_upgrade_has_the_new_library(
    node: Machine, old_job: subprocess.Popen[str]
) -> None:
    job = node.start(TENANT.format(name="new"))
    until("the job runs", lambda: launches(node, "new") > 0)
    assert all(f"/{NEXT}-" in path for path in mapped(node, "new"))
    node.sh(f"kill {grants(node)['new']['pid']}")
    job.wait(30)
    assert old_job.poll() is None


def test_settings_that_were_edited_survive_the_upgrade(node: Machine) -> None:
    assert (
        'server = "unix:/run/sluice-queue/queue.sock"'
        in node.sh("cat /etc/sluice/sluice.toml").stdout
    )
    assert (
        "train"
        in node.sh("sluice-queue get lq -A 2>/dev/null || sluice-queue get localqueues").stdout
    )


def test_a_downgrade_does_not_hurt_it_either(node: Machine, old_job: subprocess.Popen[str]) -> None:
    libraries, grant = mapped(node, "old"), grants(node)["old"]["grant"]
    node.bring(built())
    node.sh("apt-get install -y --allow-downgrades ./*.deb")
    assert version(node) == f"sluice {VERSION}"
    until("the old daemon has the job", lambda: "old" in grants(node))
    assert (grants(node)["old"]["grant"], mapped(node, "old")) == (grant, libraries)
    seen = launches(node, "old")
    until("the job goes on", lambda: launches(node, "old") > seen)
    assert old_job.poll() is None
    for service in SERVICES:
        assert node.active(service), node.log()


@pytest.fixture
def bpf_objects(node: Machine) -> list[tuple[str, int]]:
    """The kind and id of each that the daemon holds in the kernel, where it can."""
    if ebpf_host.missing():
        return []
    until("eBPF is running", lambda: watching(node))
    found = node.sh(f"grep -hoE '^(prog|map|link)_id:.*' /proc/{ebpf_child(node)}/fdinfo/*").stdout
    objects = [(kind, int(number)) for kind, number in re.findall(r"(\w+)_id:\s*(\d+)", found)]
    assert {kind for kind, _ in objects} == {"prog", "map", "link"}
    assert all(exists(*one) for one in objects)
    return objects


def test_purging_under_a_running_job_leaves_nothing(
    node: Machine, old_job: subprocess.Popen[str], bpf_objects: list[tuple[str, int]]
) -> None:
    node.sh("apt-get purge -y sluice-common sluice-nodeagent sluice-queue sluice-sim")
    assert old_job.poll() is None, "the job was hurt"
    assert node.sh("grep sluice /proc/mounts", check=False).stdout == ""
    assert (
        node.sh(
            "ls -d /run/sluice /dev/shm/sluice* /var/lib/sluice* /etc/sluice 2>/dev/null",
            check=False,
        ).stdout
        == ""
    )
    assert (
        node.sh("ss -xlH | grep sluice; ss -tlnH | grep -E ':946[456]'", check=False).stdout == ""
    )
    assert node.sh("find /sys/fs/cgroup -name '*sluice*'", check=False).stdout == ""
    assert node.sh("find /sys/fs/bpf -name '*sluice*' 2>/dev/null", check=False).stdout == ""
    until("the kernel has none of it", lambda: not [one for one in bpf_objects if exists(*one)])
    assert node.sh(LEFT, check=False).stdout == ""
    assert node.sh("dpkg -l | grep sluice", check=False).stdout == ""
    assert node.sh("pgrep -f 'sluice serve|sluice-queue serve'", check=False).stdout == ""
    node.sh("pkill sluice-sim-job; pkill tenant; true")
    old_job.wait(30)
    assert (
        node.sh(
            "grep sluice /proc/mounts; systemctl list-units --all 'sluice*' --no-legend",
            check=False,
        ).stdout
        == ""
    )
