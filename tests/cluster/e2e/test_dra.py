"""A node that gives its GPUs to claims: shares that measure as they were asked for, on a cluster of its own, installed by the
chart with `agent.door=dra` and nothing else. SLUICE_CLUSTER_CHURN: claims prepared and given back in the run with kills (200)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import manifests
from tests.cluster.api import path_of
from tests.cluster.dra import claims
from tests.cluster.dra.churn import SLOTS, VICTIMS, churn
from tests.cluster.figures import Figures
from tests.cluster.lab import GPU, SYSTEM, Lab
from tests.cluster.machine.node import Cluster, ClusterError
from tests.cluster.programs import product
from tests.cluster.shares import measure
from tests.kit.node import NodeError, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
PAIRS = int(os.environ.get("SLUICE_CLUSTER_CHURN", "200"))
FIRST = 'device.attributes["sluice.dev"].index == 0'
CONTROL = "/run/nvidia/state/control"


class ClaimLab(Lab):
    """Where nothing is counted for the device plugin, but published."""

    def by_claims(self, config: str = "") -> None:
        """`config`: lines of [kubelet] besides. A GPU that was ill is offered again after five good seconds, not after a minute."""
        text = f"[kubelet]\n{config}\n[health]\ngood_s = 5\n"
        self.helm_values({"agent.door": "dra", "agent.config": text})
        until("the GPUs are published", lambda: len(claims.devices(self)) == 2, 120)
        until("the driver is registered", lambda: self.metric("sluice_dra_registered") == 1, 60)

    @contextmanager
    def configured(self, config: str) -> Iterator[None]:
        self.by_claims(config)
        try:
            yield
        finally:
            self.by_claims()

    def helm_values(self, values: dict[str, object]) -> None:
        words = []
        for key, value in self.values(values).items():
            words += ["--set-json", f"{key}={json.dumps(value)}"]
        chart = [
            "upgrade",
            "--install",
            "sluice",
            product.CHART,
            "-n",
            SYSTEM,
            "--create-namespace",
        ]
        self.helm(*chart, "--reset-values", *words, "--wait", "--timeout", "180s")
        until("the agent is on the node", lambda: self.ready("daemonsets", "sluice-agent"), 120)

    def claimed(self, name: str, command: str | None = None, **asked: object) -> None:
        self.apply(claims.template(name, **asked))
        more = {} if command is None else {"command": command}
        self.create_pod(claims.pod(name, self.image, name, **more))

    def kill_agent(self) -> None:
        """Its container's first process, as of a crash; another pod takes its place at once, since the kubelet would start
        one that was killed so often later and later."""
        for pod in self.agent_pods():
            for one in pod["status"].get("containerStatuses", []):
                task = one.get("containerID", "").partition("://")[2]
                if one["name"] == "agent" and task:
                    self.cluster.run("ctr", "tasks", "kill", "-s", "SIGKILL", task, check=False)
            self.api.delete(path_of("pods", SYSTEM, pod["metadata"]["name"]), 0)


@pytest.fixture(scope="module")
def installed_by_claims(
    images: product.Images, figures: Figures, place: Path
) -> Iterator[ClaimLab]:
    if os.geteuid() != 0:
        pytest.skip("a cluster needs root")
    helm = product.helm()
    with Cluster(place / "dra") as cluster:
        if int(cluster.programs.version.split(".")[1]) < 36:
            pytest.skip(
                f"Kubernetes {cluster.programs.version} has no shares of a device by default"
            )
        figures.versions.append(cluster.programs.version)
        lab = ClaimLab(cluster, images, helm)
        lab.import_images()
        lab.by_claims()
        yield lab


@pytest.fixture
def dra(installed_by_claims: ClaimLab) -> Iterator[ClaimLab]:
    lab = installed_by_claims
    yield lab
    for pod in lab.api.items("pods", "default"):
        lab.delete(pod["metadata"]["name"])
    until("every grant is given back", lambda: not lab.live(), 60)


def test_shares_measure_as_asked_and_memory_to_the_byte(dra: ClaimLab, figures: Figures) -> None:
    dra.claimed("third", memory="24000Mi", cores=30, selector=FIRST)
    dra.claimed("rest", memory="48001Mi", cores=60, selector=FIRST)
    for name, amount in (("third", 24000), ("rest", 48001)):
        dra.wait_for(name)
        assert dra.inside(name)["total_mib"] == amount
    measure(dra, {"third": 0.3, "rest": 0.6}, figures)
    # Of one card more than is left is not to be had; the scheduler says so.
    dra.claimed("more", memory="20Gi", cores=5, selector=FIRST)
    until(
        "it waits", lambda: any("cannot allocate all claims" in e for e in dra.events("more")), 60
    )
    assert dra.phase("more") == "Pending"
    # And what was given is in the claim's status.
    told = until("it is told", lambda: claims.claim_of(dra, "third")["status"].get("devices"), 60)
    assert told[0]["data"]["granted"]["memoryBytes"] == 24000 << 20
    assert told[0]["data"]["granted"]["cores"] == 30


def test_a_mistake_in_the_configuration_is_in_the_pods_events(dra: ClaimLab) -> None:
    dra.claimed("typo", memory="1Gi", cores=10, parameters={"polcy": "hard"})
    until("it is told", lambda: any("did you mean 'policy'" in e for e in dra.events("typo")), 60)
    dra.claimed("bounded", memory="1Gi", cores=20, parameters={"policy": "elastic", "ceilingPercent": 40})  # fmt: skip
    dra.wait_for("bounded")
    measure(dra, {"bounded": 0.4}, Figures())


def test_a_pod_that_asks_for_the_resource_has_a_claim_made_for_it(dra: ClaimLab) -> None:
    assert dra.allocatable(GPU) == 0
    dra.create_pod(dra.gpu_pod("plain", memory_mib=None, cores=None, command="sleep 3600"))
    dra.wait_for("plain")
    notes = claims.claim_of(dra, "plain")["metadata"]["annotations"]
    assert notes["resource.kubernetes.io/extended-resource-claim"] == "true"
    assert dra.inside("plain")["total_mib"] == 81008


def test_a_container_that_names_one_request_has_the_whole_claim(dra: ClaimLab) -> None:
    """One claim is one grant, also for a container that names one of its requests only: they may differ in memory."""
    asked = {"memory": "24Gi", "cores": "30"}
    dra.apply(claims.of_two("pair", asked, {**asked, "memory": "8Gi"}))
    dra.create_pod(claims.two_containers("pair", dra.image, "pair"))
    dra.wait_for("pair")
    part, whole = (dra.inside("pair", container) for container in ("part", "whole"))
    assert (part["gpus"], part["cards"], part["total_mib"]) == (2, 2, 24 << 10)
    assert (part["gpus"], part["uuid"]) == (whole["gpus"], whole["uuid"])
    assert len(dra.live()) == 1


@pytest.mark.parametrize(
    ("cores", "configured", "why"),
    [("20", ["first", "second"], "different cores"), ("30", ["first"], "different configurations")],
)
def test_requests_of_one_claim_that_differ_are_refused_by_name(
    dra: ClaimLab, cores: str, configured: list[str], why: str
) -> None:
    pair = ({"memory": "1Gi", "cores": "30"}, {"memory": "1Gi", "cores": cores})
    dra.apply(claims.of_two("unlike", *pair, configured))
    dra.create_pod(claims.two_containers("unlike", dra.image, "unlike"))
    try:
        until("it is told", lambda: any(why in event for event in dra.events("unlike")), 60)
        conditions = dra.api.items("nodes")[0]["status"]["conditions"]
        assert {one["type"]: one["status"] for one in conditions}["Ready"] == "True"
    finally:
        dra.delete("unlike")
        dra.api.delete(claims.template_path("unlike"))


def test_the_agents_own_role_is_enough_for_the_status_of_claims(dra: ClaimLab) -> None:
    """The API server asks for a right on the driver's part of a claim's status; the agent's role has it for its own node."""
    gate = 'kubernetes_feature_enabled{name="DRAResourceClaimGranularStatusAuthorization"'
    (asked,) = [line for line in dra.api.get("/metrics").splitlines() if line.startswith(gate)]
    assert asked.endswith(" 1")
    dra.claimed("told", "exec sleep 3600", memory="1000Mi", cores=10)
    dra.wait_for("told")
    told = until("it is told", lambda: claims.claim_of(dra, "told")["status"].get("devices"), 60)
    assert told[0]["data"]["granted"]["memoryBytes"] == 1000 << 20


def test_pods_that_name_one_claim_share_its_grant(dra: ClaimLab) -> None:
    """Two pods, one grant: the second takes what the first has left, and the grant lives until the last of them has ended."""
    dra.apply(claims.claim("both", memory="6000Mi", cores=20, selector=FIRST))
    path = f"{claims.RESOURCE}/namespaces/default/resourceclaims/both"
    try:
        for name in ("one", "two"):
            dra.create_pod(claims.user(name, dra.image, "both", "sleep 3600"))
            dra.wait_for(name)
        assert len(dra.live()) == 1
        told = [dra.inside(name) for name in ("one", "two")]
        assert [one["total_mib"] for one in told] == [6000, 6000]
        assert told[0]["uuid"] == told[1]["uuid"]
        assert len(dra.api.get(path)["status"]["reservedFor"]) == 2
        # The one keeps what it took: less is left for the other than for one alone.
        dra.exec("one", "sh", "-c", f"nohup python3 -c '{HOLDS}' >/tmp/held 2>&1 &")
        until("the one holds 4000 MiB", lambda: "held" in dra.exec("one", "cat", "/tmp/held"), 30)
        assert dra.inside("two")["taken_mib"] <= 2000
        grants = dra.live()
        dra.delete("one")
        assert dra.live() == grants, "the other uses it still"
        seen: list[int] = []
        try:
            until("the other has all of it", lambda: taken_more(dra, "two", seen) > 4000, 60)
        except NodeError as error:
            raise AssertionError(f"the other can take {seen} MiB") from error
        dra.delete("two")
        until("the grant is given back", lambda: not dra.live(), 60)
        until("the claim is free", lambda: "allocation" not in dra.api.get(path)["status"], 60)
    finally:
        dra.delete("one", "two")
        dra.api.delete(path)


def taken_mib(dra: ClaimLab, pod: str) -> int:
    """Memory that a program in the pod can take; 0 while there is too little for its context."""
    try:
        return int(dra.inside(pod)["taken_mib"])
    except ClusterError:
        return 0


def taken_more(dra: ClaimLab, pod: str, seen: list[int]) -> int:
    """The same, added to what was seen before."""
    seen.append(taken_mib(dra, pod))
    return seen[-1]


HOLDS = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4000 << 20)) == 0
print("held", flush=True)
time.sleep(3600)
"""


def test_a_gpu_falls_ill_and_its_pods_leave(dra: ClaimLab) -> None:
    dra.claimed("patient", memory="1Gi", cores=10, selector=FIRST)
    dra.wait_for("patient")
    dra.cluster.run("sh", "-c", f"echo gpu_lost=0 > {CONTROL}")
    try:
        until("it leaves", lambda: dra.phase("patient") in ("Failed", "Succeeded", "gone"), 90)
    finally:
        dra.cluster.run("sh", "-c", f": > {CONTROL}")
    until(
        "the card is offered again",
        lambda: not any(one.get("taints") for one in claims.devices(dra).values()),
        300,
    )


def test_a_gpus_health_is_in_the_status_of_its_pods(dra: ClaimLab) -> None:
    """Health reaches the pod's status through the driver's stream to the kubelet, with the
    reason."""
    with dra.configured('dra_sick = "keep"'):
        dra.claimed("watched", "exec sleep 3600", memory="1Gi", cores=10, selector=FIRST)
        dra.wait_for("watched")
        until("it is well", lambda: healths(dra, "watched") == [("Healthy", "")], 60)
        dra.cluster.run("sh", "-c", f"echo gpu_lost=0 > {CONTROL}")
        try:
            until("it is told", lambda: healths(dra, "watched")[0][0] == "Unhealthy", 90)
            assert healths(dra, "watched")[0][1].startswith("lost: ")
        finally:
            dra.cluster.run("sh", "-c", f": > {CONTROL}")
        until("it is well again", lambda: healths(dra, "watched") == [("Healthy", "")], 300)
        assert dra.phase("watched") == "Running"
        dra.delete("watched")


def healths(dra: ClaimLab, pod: str) -> list[tuple[str, str]]:
    """Health and message of each device of the pod's first container."""
    states = (dra.pod(pod) or {})["status"].get("containerStatuses", [])
    return [
        (one["health"], one.get("message", ""))
        for state in states[:1]
        for resource in state.get("allocatedResourcesStatus", [])
        for one in resource["resources"]
    ]


@pytest.mark.timeout(3600)
def test_kills_of_kubelet_daemon_and_runtime_lose_nothing(dra: ClaimLab, figures: Figures) -> None:
    with dra.configured(f"slots_per_gpu = {SLOTS}"):
        outcome = churn(dra, dra.image, PAIRS, dra.kill_agent)
    figures.more.update(outcome.document())
    print(outcome)
    assert (outcome.lost, outcome.double, outcome.leaked) == ([], [], [])
    assert outcome.pairs >= PAIRS
    assert set(outcome.kills) == set(VICTIMS)


def test_a_drained_node_moves_to_the_device_plugin_and_back(dra: ClaimLab) -> None:
    dra.install()
    until("no device is published", lambda: not claims.slices(dra), 60)
    assert dra.allocatable(GPU) == 20
    dra.run("counted", memory_mib=7000, cores=20, command="sleep 3600")
    assert dra.inside("counted")["total_mib"] == 7000
    dra.helm_values({"agent.door": "dra"})
    # The card that the pod is on goes to no other until the pod has gone.
    until("the other card is published", lambda: len(claims.devices(dra)) == 1, 60)
    held = dra.inside("counted")["uuid"].lower()
    assert held not in claims.devices(dra)
    dra.delete("counted")
    until("both are", lambda: len(claims.devices(dra)) == 2, 90)
    dra.claimed("again", "sleep 3600", memory="3000Mi", cores=10)
    dra.wait_for("again")
    assert dra.inside("again")["total_mib"] == 3000
    dra.cluster.restart("kubelet", signal.SIGKILL)
    until("the kubelet answers", dra.cluster.kubelet_answers, 60)
    until("it knows its pods again", lambda: reached(dra, "again"), 60)
    assert dra.inside("again")["total_mib"] == 3000


def test_claims_by_profile_have_instances_made_for_them(dra: ClaimLab) -> None:
    dra.helm_values({"agent.door": "dra", "agent.config": ON_DEMAND})
    dra.agent("sluice", "mig", "set", "--gpu", "0", "none")
    try:
        places = until("its places are published", lambda: at_places(dra), 60)
    except Exception:
        print(dra.agent("sh", "-c", "sluice doctor || true"))
        print(dra.agent("sh", "-c", "sluice mig show || true"))
        print(dra.cluster.kubectl("logs", "-n", SYSTEM, "daemonset/sluice-agent", "--tail=60"))
        raise
    assert sum(name.endswith(("-3g-40gb-0", "-3g-40gb-4")) for name in places) == 2
    (counters,) = [one["spec"]["sharedCounters"] for one in claims.slices(dra) if "sharedCounters" in one["spec"]]  # fmt: skip
    assert counters[0]["counters"]["compute-slices"]["value"] == "7"
    halves = ("half", "other")
    for name in halves:
        dra.claimed(name, "sleep 3600", device_class="mig.sluice.dev", selector=profile("3g.40gb"))
    dra.claimed("whole", "sleep 3600", device_class="mig.sluice.dev", selector=profile("7g.80gb"))
    for name in halves:
        dra.wait_for(name)
    given = [instance_of(dra, name) for name in halves]
    assert len(set(given)) == 2
    for name, uuid in zip(halves, given, strict=True):
        assert total_mib(dra, name, uuid) == 40320
    (card,) = json.loads(dra.agent("sluice", "mig", "show", "--gpu", "0", "--json"))
    assert sorted(one["profile"] for one in card["instances"]) == ["3g.40gb"] * 2
    # Places that overlap are the scheduler's to count, by the counters.
    until(
        "it waits", lambda: any("cannot allocate all claims" in e for e in dra.events("whole")), 60
    )
    assert dra.phase("whole") == "Pending"
    dra.delete(*halves)  # their instances stay until their room is wanted, which is now
    dra.wait_for("whole")
    assert total_mib(dra, "whole", instance_of(dra, "whole")) > 80000
    dra.cluster.restart("kubelet", signal.SIGKILL)
    dra.kill_agent()
    until("the kubelet answers", dra.cluster.kubelet_answers, 60)
    until("it knows its pods again", lambda: reached(dra, "whole"), 60)
    (card,) = json.loads(dra.agent("sluice", "mig", "show", "--gpu", "0", "--json"))
    assert [one["profile"] for one in card["instances"]] == ["7g.80gb"]
    dra.delete("whole")
    until("every grant is given back", lambda: not dra.live(), 60)
    dra.agent("sluice", "mig", "set", "--gpu", "0", "--disable")
    dra.by_claims()


ON_DEMAND = """[kubelet]
mode = "mig"
mig_strategy = "mixed"
mig_geometry = "demand"
"""


def profile(name: str) -> str:
    return f'device.attributes["sluice.dev"].profile == "{name}"'


def instance_of(dra: ClaimLab, pod: str) -> str:
    """The MIG instance named in the status of the pod's claim."""

    def told() -> str | None:
        devices = claims.claim_of(dra, pod)["status"].get("devices")
        return str(devices[0]["data"]["gpu"]) if devices else None

    return until(f"the claim of {pod} says what it has", told, 60)


def total_mib(dra: ClaimLab, pod: str, instance: str) -> int:
    """A real driver shows a container the instances whose capability nodes it has; the simulated one has to be told."""
    text = dra.exec(pod, "env", f"CUDA_VISIBLE_DEVICES={instance}", "python3", "-c", manifests.READ)
    return int(json.loads(text.splitlines()[-1])["total_mib"])


def at_places(dra: ClaimLab) -> list[str]:
    return [name for name, one in claims.devices(dra).items() if one.get("consumesCounters")]


def reached(dra: ClaimLab, pod: str) -> bool:
    try:
        dra.exec(pod, "true")
    except ClusterError:
        return False
    return True
