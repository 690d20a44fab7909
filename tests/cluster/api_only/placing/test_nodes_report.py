"""Nodes report to the queue in mode kubernetes: the node's own desk over the real wire, to leaders by a real Lease."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from queuecontroller.server.api.wire import NODES
from tests.cluster.api import path_of
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import KUEUE, LEASE, Replica, apply, define, door, of_kueue, running
from tests.kit.node import until
from tests.kit.workplace import free_port
from tests.queue.kueueapi.serving import certify
from tests.queue.server.callers import WIRE, message
from tests.queue.serving.puppet import MemoryLedger, Puppet

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    define(control_plane)
    return control_plane


@contextmanager
def replicas(plane: ControlPlane, place: Path, count: int) -> Iterator[list[Replica]]:
    made = [
        Replica(plane, place / f"queue-{n}.log", nodes_socket=str(place / f"{n}.sock"))
        for n in range(count)
    ]
    with running(made):
        yield made


def figure(replica: Replica, name: str, **labels: str) -> float | None:
    """Value of the replica's series with exactly these labels; None when /metrics does not have it."""
    with urlopen(f"http://127.0.0.1:{replica.port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    return None


def ready_nodes(replica: Replica) -> float | None:
    return figure(replica, "sluice_queue_nodes", state="ready")


def test_who_follows_refuses_nodes_and_who_takes_over_is_obeyed(
    plane: ControlPlane, tmp_path: Path
) -> None:
    ledger = MemoryLedger()

    async def session(replica: Replica, socket: Path) -> None:
        async with Puppet(f"unix:{socket}", "gpu-1", ledger) as puppet:
            for _ in range(1200):
                if not puppet.desk.trouble and ready_nodes(replica) == 1:
                    return
                await asyncio.sleep(0.05)
            raise AssertionError(f"no session: {puppet.desk.trouble}; {replica.life[-2000:]}")

    with replicas(plane, tmp_path, 2) as both:
        until("one of them decides", lambda: any(one.leads() for one in both), 60)
        first = next(one for one in both if one.leads())
        second = next(one for one in both if one is not first)
        sockets = {one: tmp_path / f"{n}.sock" for n, one in enumerate(both)}

        until("it listens", lambda: sockets[second].exists(), 60)
        with grpc.insecure_channel(f"unix:{sockets[second]}") as channel:
            code, details = hello(channel, "gpu-1")
        assert code == "UNAVAILABLE"
        assert "does not lead" in details

        asyncio.run(session(first, sockets[first]))
        before = ledger.fence
        lease = plane.api.get(LEASE)
        assert before.cluster_id == lease["metadata"]["uid"], "what a node obeys is this lease"
        assert before.term == lease["spec"]["leaseTransitions"] + 1

        first.end(signal.SIGKILL)
        until("the other decides", second.leads, 60)
        asyncio.run(session(second, sockets[second]))
        assert ledger.fence.cluster_id == before.cluster_id
        assert ledger.fence.term > before.term
        assert ledger.fence.revision > before.revision, "no decision of it looks like an old one"


def test_a_node_is_who_its_pods_token_says(plane: ControlPlane, tmp_path: Path) -> None:
    authority = certify(tmp_path)
    port = free_port()
    api = plane.api
    api.create("serviceaccounts", "sluice", {"metadata": {"name": "sluice-agent"}})
    api.create("nodes", "", {"metadata": {"name": "gpu-1"}})
    containers = [{"name": "c", "image": "none"}]
    spec = {"serviceAccountName": "sluice-agent", "nodeName": "gpu-1", "containers": containers}
    pod = api.create("pods", "sluice", {"metadata": {"name": "agent"}, "spec": spec})
    bound = {
        "audiences": ["sluice-queue"],
        "boundObjectRef": {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": "agent",
            "uid": pod["metadata"]["uid"],
        },
    }
    path = f"{path_of('serviceaccounts', 'sluice', 'sluice-agent')}/token"
    token = api.call("POST", path, {"spec": bound})["status"]["token"]
    settings = (
        f"server.listen=127.0.0.1:{port}",
        f"tls.certificate={tmp_path}/server.crt",
        f"tls.key={tmp_path}/server.key",
        "kubernetes.audience=sluice-queue",
        "kubernetes.nodes=system:serviceaccount:sluice:sluice-agent",
    )
    replica = Replica(plane, tmp_path / "queue.log", settings)
    replica.start()
    try:
        until("it decides", replica.leads, 60)
        target = f"localhost:{port}"
        trusted = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
        proof = [("authorization", f"Bearer {token}")]
        for node, wanted in (("gpu-1", "OK"), ("gpu-2", "PERMISSION_DENIED")):
            with grpc.secure_channel(target, trusted) as channel:
                assert hello(channel, node, proof)[0] == wanted, node
        with grpc.secure_channel(target, trusted) as channel:
            assert hello(channel, "gpu-1", [])[0] == "UNAUTHENTICATED"
        assert ready_nodes(replica) == 1
        assert "Forbidden" not in replica.text
    finally:
        replica.end(signal.SIGKILL)


def hello(
    channel: grpc.Channel, node: str, metadata: list[tuple[str, str]] | None = None
) -> tuple[str, str]:
    """Status and details of a node's first call."""
    kind = WIRE.methods(NODES)["Connect"]
    call = channel.unary_unary(
        f"/{NODES}/Connect",
        request_serializer=kind.request.SerializeToString,
        response_deserializer=kind.response.FromString,
    )
    try:
        call(message("NodeHello", node=node), timeout=30, metadata=metadata)
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


def test_quotas_follow_what_nodes_report(plane: ControlPlane, tmp_path: Path) -> None:
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": "auto"}]
    group = {
        "coveredResources": ["nvidia.com/gpu"],
        "flavors": [{"name": "any", "resources": resources}],
    }
    queue = of_kueue(
        "ClusterQueue", "following", {"resourceGroups": [group], "namespaceSelector": {}}
    )
    apply(plane, of_kueue("ResourceFlavor", "any", {}), queue, door("following", "following"))
    slots = 10.0  # of the puppet's one GPU

    with replicas(plane, tmp_path, 1) as (replica,):
        until("it decides", replica.leads, 60)
        labels = {"cluster_queue": "following", "cohort": "", "flavor": "any"}
        labels |= {"replica_role": "leader", "resource": "nvidia.com/gpu"}

        def nominal() -> float | None:
            return figure(replica, "kueue_cluster_queue_nominal_quota", **labels)

        async def connected() -> None:
            async with Puppet(f"unix:{tmp_path / '0.sock'}", "gpu-1"):
                for _ in range(1200):
                    if nominal() == slots:
                        return
                    await asyncio.sleep(0.05)
            raise AssertionError(f"{nominal()}: {replica.life[-2000:]}")

        asyncio.run(connected())
    assert plane.api.get(f"{KUEUE}/clusterqueues/following")["metadata"]["name"] == "following"
