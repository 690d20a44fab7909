"""`sluice mig`: cards cut anew by the real daemon, over the simulated NVML, while tenants and pods are about."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.integration.pods.containers import container, result
from tests.kit.node import Node, running, until
from tests.kit.places import REPO, SLUICE, TENANT
from tests.kit.pods import PodNode, pod_node
from tests.kit.workplace import workplace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG is root's"),
]
GIB = 2**30
SMALL, MIDDLE, LARGE = (f"nvidia.com/mig-{name}" for name in ("1g.10gb", "2g.20gb", "3g.40gb"))
RESOURCES = (SMALL, MIDDLE, LARGE, "nvidia.com/gpu")


GPUS = "h100-80gb:1g.10gb+3g.40gb,a100-40gb,rtx4090-24gb"


@pytest.fixture
def node() -> Iterator[Node]:
    with workplace() as directory, running(directory, gpus=GPUS) as made:
        yield made


@pytest.fixture(scope="module")
def untouched() -> Iterator[Node]:
    """A node for requests that are refused: one node does for all."""
    with workplace() as directory, running(directory, gpus=GPUS) as made:
        directory.chmod(0o755)  # also for other users
        yield made


def show(node: Node, gpu: int = 0) -> Any:
    (card,) = node.cli_json("mig", "show", "--gpu", str(gpu))
    return card


def cut(node: Node, gpu: int = 0) -> list[str]:
    return sorted(one["profile"] for one in show(node, gpu)["instances"])


def uuids(node: Node, profile: str = "") -> list[str]:
    return [
        device["uuid"]
        for one in show(node)["instances"]
        if profile in ("", one["profile"])
        for device in one["devices"]
    ]


def units(node: Node) -> list[str]:
    """UUIDs of the devices that grants can be made on."""
    return [str(gpu["uuid"]) for gpu in node.info()["gpus"]]


def set_(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    return node.cli("mig", "set", "--gpu", "0", *arguments, check=False)


def control(node: Node, *lines: str) -> None:
    fresh = node.directory / "gpu" / "control.new"
    fresh.write_text("".join(f"{line}\n" for line in lines))
    fresh.replace(node.directory / "gpu" / "control")


def audited(node: Node) -> list[tuple[str, dict[str, Any]]]:
    with sqlite3.connect(f"file:{node.directory}/state/ledger.sqlite?mode=ro", uri=True) as db:
        rows = [json.loads(body) for (body,) in db.execute("SELECT body FROM audit ORDER BY id")]
    return [(row["step"], json.loads(row["evidence"])) for row in rows if row["rule"] == "mig"]


def test_an_idle_card_is_cut_anew_and_grants_are_had_on_what_is_there_now(node: Node) -> None:
    before = units(node)
    done = set_(node, "2x2g.20gb,3g.40gb")
    assert done.returncode == 0, done.stderr
    assert cut(node) == ["2g.20gb", "2g.20gb", "3g.40gb"]
    now = uuids(node)
    assert set(units(node)) >= set(now), "the daemon reads the card at once"
    assert set(units(node)).isdisjoint(set(before) - set(now) - set(before[2:]))
    (begun, first), (finished, second) = audited(node)
    assert (begun, finished) == ("set_mig", "set_mig_done")
    assert first == {
        "before": "MIG on, 1g.10gb at 0:1, 3g.40gb at 4:4",
        "wanted": "2x2g.20gb,3g.40gb",
        "uid": 0,
    }
    assert second["after"].endswith("2g.20gb at 2:2, 3g.40gb at 4:4")
    middle = uuids(node, "2g.20gb")[0]
    job = node.run_tenant(
        "on-new", "--launches", "1", "--alloc", str(30 * GIB), flags=("--gpu-uuid", middle)
    )
    assert job.result()["alloc_result"] == 2, "no more than the instance has"
    again = set_(node, "3g.40gb,2g.20gb,2g.20gb")
    assert again.returncode == 0
    assert "cut so already" in again.stderr
    assert len(audited(node)) == 2, "nothing was done"


def test_a_card_becomes_whole_again_and_back(node: Node) -> None:
    assert set_(node, "--disable").returncode == 0
    card = show(node)
    assert (card["enabled"], card["instances"]) == (False, [])
    assert card["gpu"] in units(node)
    job = node.run_tenant("whole", "--launches", "1", flags=("--gpu-uuid", card["gpu"]))
    assert job.result()["exit"] == 0
    assert set_(node, "none").returncode == 0
    assert show(node)["enabled"] is True
    assert card["gpu"] not in units(node), "in MIG mode without instances there is nothing to give"
    assert set_(node, "7g.80gb").returncode == 0
    assert uuids(node)[0] in units(node)


def test_who_runs_there_is_named_and_nothing_is_touched(node: Node) -> None:
    large = uuids(node, "3g.40gb")[0]
    job = node.run_tenant(
        "busy", "--warm", "0", "--seconds", "3600", flags=("--gpu-uuid", large, "--gpumem", "1Gi")
    )
    until("it runs", lambda: (grant := node.grant("busy")) and grant["processes"] == 1)
    refused = set_(node, "7g.80gb")
    assert refused.returncode == 1
    assert "GPU 0 is not idle, nothing is changed; held by: grant " in refused.stderr
    assert "(busy) of uid 0, 1 process" in refused.stderr
    assert show(node)["holders"] != []
    dry = set_(node, "7g.80gb", "--dry-run")
    assert dry.returncode == 1
    assert "would be: MIG on, 7g.80gb at 0:8; nothing is changed" in dry.stdout
    assert "in the way: grant " in dry.stdout
    assert job.process.poll() is None
    assert cut(node) == ["1g.10gb", "3g.40gb"]
    assert audited(node) == []
    job.kill()
    until("the grant is over", lambda: node.grant("busy") is None)
    assert set_(node, "7g.80gb").returncode == 0


def test_a_process_of_nobodys_grant_is_in_the_way_too(node: Node) -> None:
    job = subprocess.Popen(
        [TENANT, "--hold", str(GIB), "--warm", "0", "--seconds", "3600"],
        env={**node.on_the_driver(), "CUDA_VISIBLE_DEVICES": uuids(node, "1g.10gb")[0]},
        stdout=subprocess.DEVNULL,
    )
    try:
        (holder,) = until("it has its context", lambda: show(node)["holders"])
        assert holder == f"process {job.pid} (tenant, uid 0)"
        refused = set_(node, "none")
        assert refused.returncode == 1
        assert holder in refused.stderr
        assert cut(node) == ["1g.10gb", "3g.40gb"]
    finally:
        job.kill()
        job.wait()


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (("2x3g.40gb,1g.10gb",), 2, "together they take 9 of 8 memory slices"),
        (("9g.99gb",), 2, "no profile 9g.99gb on this GPU, it offers: 1g.10gb"),
        (("1g.10gb", "--disable"), 2, "give either profiles"),
        ((), 2, "give either profiles"),
        (("7g",), 2, "'7g' is not a profile"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_destroyed(
    untouched: Node, arguments: tuple[str, ...], status: int, why: str
) -> None:
    refused = set_(untouched, *arguments)
    assert (refused.returncode, audited(untouched)) == (status, [])
    assert why in refused.stderr
    assert cut(untouched) == ["1g.10gb", "3g.40gb"]


def test_cards_without_mig_and_unknown_ones_are_refused(untouched: Node) -> None:
    none = untouched.cli("mig", "set", "--gpu", "2", "none", check=False)
    assert (none.returncode, "(NVIDIA GeForce RTX 4090) has no MIG" in none.stderr) == (2, True)
    unknown = untouched.cli("mig", "show", "--gpu", "GPU-nowhere", check=False)
    assert (unknown.returncode, "no GPU 'GPU-nowhere' here" in unknown.stderr) == (1, True)


def test_before_hopper_the_mode_waits_for_a_reset_which_is_not_ours(node: Node) -> None:
    asked = node.cli("mig", "set", "--gpu", "1", "7x1g.5gb", check=False)
    assert asked.returncode == 0
    assert "`nvidia-smi --gpu-reset -i 1` (or reboot)" in asked.stderr
    table = node.cli("mig", "show", "--gpu", "1").stdout
    assert "MIG off, on is pending: reset of the GPU or reboot needed" in table
    control(node, "gpu_lost=1")
    until("the card is away", lambda: "cannot be read" in node.cli("mig", "show").stdout)
    assert cut(node) == ["1g.10gb", "3g.40gb"], "the others are still shown"
    refused = node.cli("mig", "set", "--gpu", "1", "none", check=False)
    assert (refused.returncode, "GPU is lost" in refused.stderr) == (1, True)
    control(node)
    until("it is back", lambda: show(node, 1)["enabled"])
    assert node.cli("mig", "set", "--gpu", "1", "7x1g.5gb").returncode == 0
    assert cut(node, 1) == ["1g.5gb"] * 7


def test_what_fails_half_way_is_taken_back(node: Node) -> None:
    code = pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    control(node, f"fail=nvmlDeviceCreateGpuInstanceWithPlacement:2:{code}")
    before = uuids(node)
    failed = set_(node, "2x2g.20gb,3g.40gb")
    assert failed.returncode == 1
    assert "2g.20gb at 2:2 cannot be made: Insufficient Resources" in failed.stderr
    assert "it is as it was before: MIG on, 1g.10gb at 0:1, 3g.40gb at 4:4" in failed.stderr
    assert uuids(node) == before
    assert set(before) <= set(units(node))
    assert [step for step, _ in audited(node)] == ["set_mig", "set_mig_failed"]
    job = node.run_tenant("after", "--launches", "1", flags=("--gpu-uuid", before[0]))
    assert job.result()["exit"] == 0


def test_what_cannot_be_taken_back_is_told_with_what_is_left(node: Node) -> None:
    code = pynvml.NVML_ERROR_UNKNOWN
    control(node, f"fail=nvmlDeviceCreateGpuInstanceWithPlacement:0:{code}")
    failed = set_(node, "7g.80gb")
    assert failed.returncode == 1
    assert "undoing it failed too: Unknown Error" in failed.stderr
    assert "is now MIG on, no instance: set 7g.80gb again, or what it was before" in failed.stderr
    assert cut(node) == []
    assert len(units(node)) == 2, "the other two cards are still given away"
    control(node)
    assert set_(node, "7g.80gb").returncode == 0


def test_a_driver_that_hangs_is_told_with_what_became_of_the_card(node: Node) -> None:
    before = cut(node)
    control(node, "nvml_hang=1")
    refused = set_(node, "7g.80gb")
    assert refused.returncode == 1
    assert "the GPUs cannot be read: NVML timed out after 15 s" in refused.stderr
    control(node)
    assert cut(node) == before


def test_a_daemon_that_is_killed_meanwhile_says_so_when_it_is_back(node: Node) -> None:
    control(node, "call_latency_ns=3000000000")  # of each call that changes something
    asked = subprocess.Popen(
        [SLUICE, "mig", "set", "--gpu", "0", "7g.80gb"],
        env=node.environment(),
        stderr=subprocess.DEVNULL,
    )
    until("it has begun", lambda: [step for step, _ in audited(node)] == ["set_mig"])
    node.kill_daemon()
    assert asked.wait(30) == 69
    control(node)
    node.start()
    (told,) = [one for one in node.cli_json("events") if "interrupted" in one["text"]]
    assert "to 7g.80gb was interrupted" in told["text"]
    assert "sluice mig show" in told["text"]
    assert set_(node, "7g.80gb").returncode == 0
    node.kill_daemon()
    node.start()
    assert not [one for one in node.cli_json("events") if "interrupted" in one["text"]]


def test_the_geometry_is_the_nodes_and_only_root_changes_it(untouched: Node) -> None:
    def as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.kit.daemon.as_nobody", *arguments],
            env=untouched.environment(),
            cwd=REPO,
            text=True,
            capture_output=True,
            timeout=60,
        )

    denied = as_nobody("mig", "set", "--gpu", "0", "none")
    assert (denied.returncode, "only root may change" in denied.stderr) == (1, True)
    job = subprocess.Popen(
        [TENANT, "--warm", "0", "--seconds", "3600"],
        env={**untouched.on_the_driver(), "CUDA_VISIBLE_DEVICES": uuids(untouched)[0]},
        stdout=subprocess.DEVNULL,
    )
    try:
        until("it has its context", lambda: show(untouched)["holders"])
        seen = as_nobody("mig", "show", "--gpu", "0")
        assert seen.returncode == 0, seen.stderr
        assert "held by: 1 holders, shown to operators only" in seen.stdout
        assert str(job.pid) not in seen.stdout
    finally:
        job.kill()
        job.wait()
    assert cut(untouched) == ["1g.10gb", "3g.40gb"]


# --- pods -----------------------------------------------------------------------------------------


@pytest.fixture
def pods() -> Iterator[PodNode]:
    with (
        workplace() as directory,
        pod_node(
            directory,
            gpus="h100-80gb:1g.10gb+3g.40gb",
            settings='mode = "mig"\nmig_strategy = "mixed"\n',
            flags=f"--pods-api --resource {SMALL}",
            devices=1,
        ) as place,
    ):
        yield place


def healthy(place: PodNode) -> dict[str, list[str]]:
    """IDs of healthy devices by resource; resources without any are left out."""
    found = {
        name: [one for one, well in place.kubelet.do("devices", resource=name)["devices"].items() if well]
        for name in RESOURCES
    }  # fmt: skip
    return {name: ids for name, ids in found.items() if ids}


def admit(place: PodNode, name: str, resource: str) -> dict[str, Any]:
    return place.kubelet.do(
        "admit", resource=resource, pod={"name": name, "containers": [{"name": "main"}]}
    )


def test_pods_get_the_new_instances_without_a_restart(pods: PodNode) -> None:
    node = pods.node
    serving = node.daemon.pid if node.daemon else 0
    assert set(healthy(pods)) == {SMALL, LARGE}
    done = set_(node, "2x2g.20gb,3g.40gb")
    assert done.returncode == 0, done.stderr
    missing = uuids(node, "2g.20gb")
    # The installed specification knows the card, which is what a new instance needs of it.
    assert "containers:" not in done.stderr
    # Each resource's list comes by itself.
    found = until("the kubelet has them", lambda: (now := healthy(pods)).keys() == {MIDDLE, LARGE} and now)  # fmt: skip
    assert sorted(found[MIDDLE]) == sorted(f"{uuid}::0" for uuid in missing)
    assert len(found[LARGE]) == 1
    uid = str(admit(pods, "new", MIDDLE)["uid"])
    devices = pods.kubelet.cdi_devices(uid)
    grant = node.grant("default/new/main")
    assert grant is not None
    uuid = grant["devices"][0]["gpu"]
    assert uuid in missing
    job = container(
        pods, devices, str(TENANT), "--launches", "1", env={"CUDA_VISIBLE_DEVICES": uuid}
    )
    assert result(job)["total_bytes"] == 20096 << 20
    refused = set_(node, "none")
    assert refused.returncode == 1
    assert "(pod default/new, container main) of uid" in refused.stderr
    pods.kubelet.do("end", uid=uid)
    until("the grant is gone", lambda: node.grant("default/new/main") is None)
    assert set_(node, "--disable").returncode == 0
    whole = until(
        "the whole card is offered", lambda: list(now := healthy(pods)) == ["nvidia.com/gpu"] and now
    )  # fmt: skip
    assert all(one.startswith("GPU-") for one in whole["nvidia.com/gpu"])
    assert node.daemon is not None
    assert node.daemon.pid == serving
    assert node.daemon.poll() is None


def test_an_answer_to_the_kubelet_is_a_promise(pods: PodNode) -> None:
    answer = admit(pods, "waits", SMALL)
    refused = set_(pods.node, "7g.80gb")
    assert refused.returncode == 1
    (device,) = answer["device_ids"]["main"]
    assert "a pod that has not started yet, by an answer to the kubelet" in refused.stderr
    assert device in refused.stderr
    assert cut(pods.node) == ["1g.10gb", "3g.40gb"]
    assert pods.kubelet.cdi_devices(str(answer["uid"]))[-1].startswith("sluice.dev/grant=")


def test_while_a_card_is_cut_nothing_of_it_is_given_away(pods: PodNode) -> None:
    node = pods.node
    control(node, "call_latency_ns=3000000000")  # until both commands have been answered
    asked = subprocess.Popen(
        [SLUICE, "mig", "set", "--gpu", "0", "7g.80gb"], env=node.environment(), text=True
    )
    until("its devices are withdrawn", lambda: healthy(pods) == {})
    run = node.cli("run", "--", Path("/bin/true"), check=False)
    assert run.returncode == 125
    assert "not healthy" in run.stderr
    second = set_(node, "none")
    assert "another change of MIG is under way" in second.stderr
    control(node, "call_latency_ns=0")
    assert asked.wait(60) == 0
    assert cut(node) == ["7g.80gb"]
