"""Pods that ask for a MIG profile on a node that cuts its cards on demand: the real daemon over the simulated NVML."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.pods.containers import container, result
from tests.kit.fakes.nvidia_cdi import installed_spec, write_installed
from tests.kit.node import until
from tests.kit.places import SIM, TENANT
from tests.kit.pods import PodNode, pod_node
from tests.kit.workplace import workplace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG is root's"),
]
SMALL, LARGE, WHOLE = (f"nvidia.com/mig-{name}" for name in ("1g.10gb", "3g.40gb", "7g.80gb"))
DEMAND = 'mode = "mig"\nmig_strategy = "mixed"\nmig_geometry = "demand"\n'


@pytest.fixture
def pods() -> Iterator[PodNode]:
    with (
        workplace() as directory,
        pod_node(
            directory,
            gpus="h100-80gb:1g.10gb,rtx4090-24gb",
            settings=DEMAND,
            flags=f"--pods-api --resource {SMALL}",
            devices=1,
        ) as place,
    ):
        done = place.node.cli("mig", "set", "--gpu", "0", "none", check=False)
        assert done.returncode == 0, done.stderr
        (card,) = place.node.cli_json("mig", "show", "--gpu", "0")
        libraries = {f"/usr/lib64/{n}": str(SIM / n) for n in ("libcuda.so.1", "libnvidia-ml.so.1")}
        write_installed(place.cdi_dir, installed_spec([card["gpu"]], libraries))
        until("its places are offered", lambda: len(healthy(place, SMALL)) == 7)
        yield place


def healthy(place: PodNode, resource: str) -> list[str]:
    found = place.kubelet.do("devices", resource=resource)["devices"]
    return sorted(one for one, well in found.items() if well)


def cut(place: PodNode) -> list[str]:
    (card,) = place.node.cli_json("mig", "show", "--gpu", "0")
    return sorted(one["profile"] for one in card["instances"])


def rows(place: PodNode) -> list[dict[str, Any]]:
    """Rows of the ledger of cut MIG instances."""
    with sqlite3.connect(f"file:{place.node.directory}/state/cuts.sqlite?mode=ro", uri=True) as db:
        return [json.loads(body) for (body,) in db.execute("SELECT body FROM cuts")]


def admit(place: PodNode, name: str, resource: str) -> str:
    pod = {"name": name, "containers": [{"name": "main"}]}
    return str(place.kubelet.do("admit", resource=resource, pod=pod)["uid"])


def end(place: PodNode, uid: str, name: str) -> None:
    place.kubelet.do("end", uid=uid)
    until("the grant is gone", lambda: place.node.grant(f"default/{name}/main") is None)


def test_an_instance_is_made_for_a_pod_kept_for_the_next_and_gone_when_its_room_is_wanted(
    pods: PodNode,
) -> None:
    node = pods.node
    assert cut(pods) == []
    uid = admit(pods, "first", LARGE)
    devices = pods.kubelet.cdi_devices(uid)
    assert cut(pods) == ["3g.40gb"]
    (row,) = rows(pods)
    assert (row["state"], row["who"].startswith("pod default/first")) == ("made", True)
    until("what overlaps it is not offered", lambda: len(healthy(pods, SMALL)) < 7)
    assert healthy(pods, WHOLE) == []
    grant = node.grant("default/first/main")
    assert grant is not None
    uuid = grant["devices"][0]["gpu"]
    assert uuid == row["uuid"]
    # Its card is in the installed specification, it is not: what it needs is its card's node.
    job = container(pods, devices, str(TENANT), "--launches", "1", env={"CUDA_VISIBLE_DEVICES": uuid})  # fmt: skip
    assert result(job)["total_bytes"] == 40320 << 20
    # A request that does not name it does not get it.
    other = node.cli("run", "--gpumem", "30Gi", "--", "/bin/true", check=False)
    assert other.returncode != 0
    assert ("GPU 1 (" in other.stderr, "GPU 0 (" in other.stderr) == (True, False)
    end(pods, uid, "first")
    assert cut(pods) == ["3g.40gb"], "it is kept while no request needs its room"
    again = admit(pods, "again", LARGE)
    pods.kubelet.cdi_devices(again)
    (same,) = rows(pods)
    assert same["uuid"] == uuid
    end(pods, again, "again")
    until("all of the card is offered", lambda: healthy(pods, WHOLE))
    whole = admit(pods, "whole", WHOLE)
    pods.kubelet.cdi_devices(whole)
    assert cut(pods) == ["7g.80gb"]
    assert [one["place"]["profile"] for one in rows(pods)] == ["7g.80gb"]


def test_one_with_somebodys_context_on_it_stays(pods: PodNode) -> None:
    node = pods.node
    uid = admit(pods, "first", SMALL)
    pods.kubelet.cdi_devices(uid)
    (row,) = rows(pods)
    job = subprocess.Popen(
        [TENANT, "--hold", "1000", "--warm", "0", "--seconds", "3600"],
        env={**node.on_the_driver(), "CUDA_VISIBLE_DEVICES": row["uuid"]},
        stdout=subprocess.DEVNULL,
    )
    try:
        until("it has its context", lambda: any("tenant" in one for one in node.cli_json("mig", "show", "--gpu", "0")[0]["holders"]))  # fmt: skip
        end(pods, uid, "first")
        until("all of the card is offered", lambda: healthy(pods, WHOLE))
        whole = admit(pods, "whole", WHOLE)
        waits = pods.kubelet.do("start_container", uid=whole, container="main")
        assert f"process {job.pid} (tenant, uid 0)" in waits["error"]
        assert cut(pods) == ["1g.10gb"]
        assert job.poll() is None
    finally:
        job.kill()
        job.wait()
    pods.kubelet.cdi_devices(whole)
    assert cut(pods) == ["7g.80gb"]


@pytest.mark.parametrize(
    "after_s", [0.4, *(pytest.param(one, marks=pytest.mark.faults) for one in (0.05, 0.9, 1.5))]
)
def test_a_daemon_that_is_killed_meanwhile_finds_ledger_and_card_in_agreement(
    pods: PodNode, after_s: float
) -> None:
    node = pods.node
    control = node.directory / "gpu" / "control"
    control.write_text("call_latency_ns=300000000\n")  # of each call that changes something
    uid = admit(pods, "first", LARGE)
    answers: list[dict[str, Any]] = []
    start = {"uid": uid, "container": "main"}
    starting = threading.Thread(
        target=lambda: answers.append(pods.kubelet.do("start_container", **start))
    )
    starting.start()
    time.sleep(after_s)
    node.kill_daemon()
    starting.join()
    control.write_text("")
    node.start()
    until("it is read", lambda: [one["state"] for one in rows(pods)] in ([], ["made"]))
    assert len(rows(pods)) == len(cut(pods))
    until("it starts", lambda: "error" not in pods.kubelet.do("start_container", **start))
    assert cut(pods) == ["3g.40gb"]
    assert [one["state"] for one in rows(pods)] == ["made"]
