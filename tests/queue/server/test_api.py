"""The real server over the real wire: what users may say, how wrong things are refused, what watchers see."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from queuecontroller.server.api.client import Client, Endpoint, Refused, Unreachable
from queuecontroller.server.api.wire import NODES, QUEUES, Wire, find_descriptors
from queuecontroller.server.store.sqlite import SqliteStore, StoreUnusable
from tests.kit.node import until
from tests.kit.queue.controller import SLUICE_QUEUE, QueueController
from tests.queue.server.certificates import Authority
from tests.queue.state.world import TEAMS, documents

WIRE = Wire(find_descriptors())
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: team-a, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  template:
    spec:
      containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueController]:
    made = QueueController(
        tmp_path_factory.mktemp("controller"), settings=["server.max_message_kib=256"]
    )
    made.start()
    made.apply(TEAMS)
    yield made
    made.stop()


@pytest.fixture
def client(controller: QueueController) -> Iterator[Client]:
    made = Client(Endpoint(controller.address), WIRE)
    yield made
    made.close()


def call(controller: QueueController, service: str, name: str, request: Any) -> Any:
    method = WIRE.methods(service)[name]
    with grpc.insecure_channel(controller.address) as channel:
        return channel.unary_unary(
            f"/{service}/{name}",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(request, timeout=60)


def test_ready_and_healthy(controller: QueueController) -> None:
    assert controller.http("/readyz") == (200, "ok\n")
    assert controller.http("/healthz") == (200, "ok\n")
    assert controller.http("/nowhere")[0] == 404
    assert "kueue_cluster_queue_nominal_quota" in controller.http("/metrics")[1]


def test_apply_is_all_or_nothing_and_names_every_mistake(client: Client) -> None:
    good = documents(JOB.replace("train", "good"))
    bad = [{"kind": "ClusterQueue", "metadata": {"name": "x"}, "spec": {"resourceGroup": []}}]
    worse = [{"kind": "LocalQueue", "metadata": {"name": "y"}, "spec": {}}]
    with pytest.raises(Refused) as caught:
        list(client.apply([*good, *bad, *worse]))
    text = str(caught.value)
    assert (
        "object 2: ClusterQueue/x.spec.resourceGroup: unknown field; did you mean resourceGroups?"
        in text
    )
    assert "object 3: LocalQueue/default/y.spec.clusterQueue: is required" in text
    with pytest.raises(Refused, match="no Workload"):
        client.get("Workload", "team-a", "job-good")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "object 1"),
        ("[]", "is not a JSON object"),
        ('{"kind": "ClusterQueue", "spec": NaN}', "NaN is not a JSON number"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "larger than 256 KiB"),
        ('{"a":' * 20_000 + "1" + "}" * 20_000, "nested deeper"),
        ('{"a":' * 100 + "1" + "}" * 100, "nested deeper"),
        ('{"kind": "ClusterQueue"}', "name: is required"),
    ],
    ids=["no json", "a list", "nan", "large", "deep", "quite deep", "no name"],
)
def test_garbage_is_refused_with_its_place(
    controller: QueueController, text: str, message: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(controller, QUEUES, "Apply", WIRE.ApplyRequest(objects=[text]))
    assert caught.value.code() in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
    if caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT:
        assert message in caught.value.details()


def test_a_message_above_the_limit_is_refused_before_it_is_read(
    controller: QueueController,
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(controller, QUEUES, "Apply", WIRE.ApplyRequest(objects=["x" * 300_000]))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert controller.http("/readyz")[0] == 200


@pytest.mark.parametrize(
    "hello",
    [
        {"node": ""},
        {"node": "n" * 300},
        {"node": "n9", "seen_revision": 1 << 62},
        {"node": "n9", "capacity": {"gpus": [{"uuid": "g", "memory_bytes": 1 << 60}]}},
        {"node": "n9", "capacity": {"gpus": [{"uuid": "g", "share_ppm": 2_000_000}]}},
    ],
)
def test_a_node_that_says_nonsense_is_refused(
    controller: QueueController, hello: dict[str, Any]
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(controller, NODES, "Connect", WIRE.NodeHello(**hello))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_report_of_another_session_is_aborted(controller: QueueController) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(controller, NODES, "Report", WIRE.NodeReport(node="n9", epoch=3))
    assert caught.value.code() is grpc.StatusCode.ABORTED


def test_a_watcher_sees_what_is_and_every_change(
    controller: QueueController, client: Client
) -> None:
    seen: list[tuple[str, str]] = []
    watcher = Client(Endpoint(controller.address), WIRE)

    def watch() -> None:
        try:
            for event, found in watcher.watch("Workload", "team-a"):
                name = found.get("metadata", {}).get("name", "")
                seen.append((event, name))
        except (Unreachable, Refused, ValueError):
            return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    until("all there is has come", lambda: ("BOOKMARK", "") in seen)
    list(client.apply(documents(JOB)))
    until("the new one is seen", lambda: ("ADDED", "job-train") in seen)
    client.hold("Workload", "team-a", "job-train", False)
    until("its change is seen", lambda: ("MODIFIED", "job-train") in seen)
    client.delete("Workload", "team-a", "job-train")
    until("its end is seen", lambda: ("DELETED", "job-train") in seen)
    watcher.close()
    thread.join(60)


def test_lists_come_in_pages(controller: QueueController, client: Client) -> None:
    jobs = [one for i in range(12) for one in documents(JOB.replace("train", f"many-{i:02}"))]
    list(client.apply(jobs))
    page = call(controller, QUEUES, "List", WIRE.ListRequest(kind="Workload", limit=5))
    names = [one.name for one in page.objects]
    while page.next:
        page = call(
            controller, QUEUES, "List", WIRE.ListRequest(kind="Workload", limit=5, after=page.next)
        )
        names += [one.name for one in page.objects]
    mine = [name for name in names if "many" in name]
    assert mine == [f"job-many-{i:02}" for i in range(12)]
    assert len(names) == len(set(names))
    assert controller.cli("get", "workloads", "-q", "nowhere", "-o", "json").returncode == 0
    assert controller.get("workloads", "-q", "a")["items"]
    for name in mine:
        client.delete("Workload", "team-a", name)


def test_explain_says_why_and_describe_tells_the_history(
    controller: QueueController, client: Client
) -> None:
    list(client.apply(documents(JOB.replace("gpu: 1", "gpu: 9"))))
    until("it was looked at", lambda: "9" in controller.cli("explain", "team-a/job-train").stdout)
    text = controller.cli("explain", "team-a/job-train").stdout
    assert "team-a/job-train: Pending in ClusterQueue a" in text
    assert "why: ExceedsMaxQuota" in text
    assert "estimate: never, unless something is changed" in text
    assert "it would start if: in ClusterQueue a nominalQuota of nvidia.com/gpu of flavor" in text
    found = json.loads(controller.cli("explain", "team-a/job-train", "-o", "json").stdout)
    assert found["explanation"]["shortages"][0]["asked"] == "9"
    assert found["explanation"]["flavors"][0]["text"]
    assert "Created" in controller.cli("describe", "wl", "team-a/job-train").stdout
    client.delete("Workload", "team-a", "job-train")


def test_the_command_says_clearly_what_is_wrong(
    controller: QueueController, tmp_path: Path
) -> None:
    def said(*words: str) -> tuple[int, str]:
        done = controller.cli(*words, check=False)
        return done.returncode, done.stderr

    assert said("get", "nonsense")[0] == 2
    assert said("get", "wl", "nix") == (1, "sluice-queue: no Workload default/nix\n")
    assert (
        said("hold", "flavor", "gpus")[1]
        == "sluice-queue: a ResourceFlavor cannot be held, only queues and workloads can\n"
    )
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text("kind: &a x\nb: *a\n")
    status, text = said("apply", "-f", str(bomb))
    assert (status, "aliases (*a) are not taken" in text) == (2, True)
    assert said("apply", "-f", str(tmp_path / "none.yaml"))[0] == 2
    done = subprocess.run(
        [SLUICE_QUEUE, "get", "nodes", "--server", "unix:/nowhere"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 69
    assert "is `sluice-queue serve` running there?" in done.stderr
    done = subprocess.run(
        [SLUICE_QUEUE, "get", "nodes", "--server", "10.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "is TCP, which requires TLS: give the file of the CA (--ca)" in done.stderr


def test_a_second_controller_on_one_database_does_not_start(controller: QueueController) -> None:
    done = subprocess.run(
        [
            SLUICE_QUEUE,
            "serve",
            "--socket",
            controller.directory / "second.sock",
            "--metrics-listen",
            "",
            "--database",
            controller.database,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 69
    assert "another queue controller is using it" in done.stderr


def test_a_damaged_database_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    SqliteStore(path).close()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreUnusable, match="restore a backup"):
        SqliteStore(path)
    assert path.read_bytes().startswith(b"no database")


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    store = SqliteStore(path)
    store._db.execute("PRAGMA user_version = 99")
    store.close()
    with pytest.raises(StoreUnusable, match="install the newer sluice again"):
        SqliteStore(path)


def test_every_start_is_a_new_term(tmp_path: Path) -> None:
    terms = []
    for _ in range(3):
        store = SqliteStore(tmp_path / "queue.sqlite")
        terms.append(store.load().term)
        store.close()
    assert terms == [1, 2, 3]


def test_a_slow_client_does_not_stop_the_others(controller: QueueController) -> None:
    idle = [socket.create_connection(("127.0.0.1", controller.metrics_port)) for _ in range(40)]
    try:
        began = time.monotonic()
        until("others are served again", lambda: controller.http("/healthz")[0] == 200)
        assert time.monotonic() - began < 20
    finally:
        for one in idle:
            one.close()


def test_certificates(tmp_path: Path) -> None:
    """Mutual TLS: no client without a certificate, users within their rights, new files without a restart."""
    authority, stranger = Authority(tmp_path / "pki"), Authority(tmp_path / "other")
    server = authority.issue("queue", "DNS:localhost")
    admin, user = authority.issue("admin", "DNS:admin"), authority.issue("ann", "DNS:ann")
    false_friend = stranger.issue("admin", "DNS:admin")

    def flags(pair: Any, ca: Path = authority.ca) -> list[str]:
        return ["--ca", str(ca), "--certificate", str(pair.certificate), "--key", str(pair.key)]

    controller = QueueController(
        tmp_path / "queue",
        host="localhost",
        tcp=True,
        settings=[
            *(f"tls.certificate={server.certificate}", f"tls.key={server.key}"),
            *(f"tls.client_ca={authority.ca}", "tls.admins=admin", "tls.users=ann"),
        ],
        client_flags=flags(admin),
    )
    try:
        controller.start()
        controller.apply(TEAMS)
        controller.client_flags = flags(user)
        refused = controller.cli("delete", "cq", "a", check=False)
        assert (
            refused.returncode,
            "ann (user) may not apply, delete, hold or resume queues" in refused.stderr,
        ) == (1, True)
        assert controller.cli("apply", "-f", "-", text=JOB).returncode == 0
        controller.client_flags = ["--ca", str(authority.ca)]
        assert controller.cli("get", "cq", check=False).returncode == 69
        controller.client_flags = flags(false_friend)
        assert controller.cli("get", "cq", check=False).returncode == 69
        controller.client_flags = []
        assert controller.cli("get", "cq", check=False).returncode == 2, (
            "TCP without TLS is not tried"
        )

        renewed = authority.issue("queue-2", "DNS:localhost")
        for old, new in ((server.certificate, renewed.certificate), (server.key, renewed.key)):
            fresh = old.with_suffix(".new")
            fresh.write_bytes(new.read_bytes())
            fresh.replace(old)
        controller.client_flags = flags(admin)
        until(
            "it serves with the new one",
            lambda: _name_of(controller, authority, admin) == "queue-2",
        )
        assert controller.process is not None
        controller.process.send_signal(signal.SIGTERM)
        assert controller.process.wait(60) == 0
    finally:
        controller.stop()


def _name_of(controller: QueueController, authority: Authority, pair: Any) -> str:
    """Common name in the certificate the server shows."""
    done = subprocess.run(
        [
            *("openssl", "s_client", "-connect", f"127.0.0.1:{controller.port}", "-alpn", "h2"),
            *("-CAfile", authority.ca, "-cert", pair.certificate, "-key", pair.key),
            *("-servername", "localhost"),
        ],
        input="",
        capture_output=True,
        text=True,
        timeout=120,
    )
    line = next((one for one in done.stdout.splitlines() if one.startswith("subject=")), "")
    return line.rpartition("CN")[2].strip(" =")


def test_a_term_and_a_revision_are_shown(client: Client) -> None:
    info = client.server()
    assert info.ready
    assert info.term == 1
    assert info.revision > 0
    assert json.loads(json.dumps(info.cluster_id))
