"""Attacks of nodes and users that once worked, each as it was run, in one process: nothing of them is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.server.api.messages import (
    read_capacity,
    read_hello,
    read_usage,
    read_work_report,
)
from queuecontroller.server.api.wire import Wire, find_descriptors
from queuecontroller.server.store.sqlite import SqliteStore, StoreUnusable
from queuecontroller.state.access import Caller, Denied, RoleLists
from queuecontroller.state.access.lists import of_kernel
from queuecontroller.state.book import BookSettings
from queuecontroller.state.nodes.seals import Fence, Seals
from queuecontroller.state.nodes.sessions import Held, Unproven
from queuecontroller.state.objects.submission import Refused, Submission
from queuecontroller.state.records import Change, GpuAsk, GpuShare, PodState, SharePolicy, StoreLost
from queuecontroller.state.status import Views
from sluicecommon.reader import ManifestError
from tests.queue.state.texts import WORKLOAD
from tests.queue.state.world import TEAMS, World, documents, gpu

WIRE = Wire(find_descriptors())
ANN, EVE = Caller(user="ann", shown="ann"), Caller(user="eve", shown="eve")
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: second, namespace: team-a, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  template:
    spec:
      containers:
      - name: c
        env: [{name: DB_PASSWORD, value: hunter2-secret}]
        resources: {limits: {nvidia.com/gpu: 1}}
"""


def apply(world: World, text: str, by: Caller) -> Any:
    found = documents(text)
    done = world.step("apply", lambda book, now: book.apply(found, False, now, by))
    world.settle()
    return done


# --- terms, revisions and rows (S1, S3, S4) ------------------------------------------------------


@pytest.mark.parametrize("number", [2**60 + 1, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("field", ["seen_term", "seen_revision", "epoch"])
def test_a_number_that_no_controller_gave_is_refused(field: str, number: int) -> None:
    with pytest.raises(Refused, match=field):
        read_hello(WIRE.NodeHello(node="n1", **{field: number}))


@pytest.mark.parametrize("known", [False, True], ids=["first hello", "connected before"])
@pytest.mark.parametrize("seen", [(2, 0), (1 << 60, 0), (0, 1 << 60), (50, 5)])
def test_no_node_moves_terms_or_revisions_by_its_word(known: bool, seen: tuple[int, int]) -> None:
    world = World()
    world.connect("n2", gpus=())
    if known:
        world.connect("n1")
    before = world.book.journal.term, world.book.journal.revision
    with pytest.raises(Unproven, match="no valid seal"):
        world.connect("n1", seen=seen)
    assert (world.book.journal.term, world.book.journal.revision) == before
    assert world.book.nodes.unproven_total == 1
    assert world.connect("n2", gpus=()) == [], "and the others are served"


@pytest.mark.parametrize(
    "forge",
    [
        lambda proof: proof.replace('"term":9', '"term":99'),
        lambda proof: "s1." + "0" * 64 + "." + proof.split(".", 2)[2],
        lambda proof: Seals(b"another key").fence(Fence("cluster", "n1", 9, 9)),
        lambda proof: Seals(b"k" * 32).fence(Fence("cluster", "n2", 9, 9)),
        lambda proof: Seals(b"k" * 32).fence(Fence("elsewhere", "n1", 9, 9)),
        lambda proof: Seals(b"k" * 32).row(Fence("cluster", "n1", 9, 9), {}),
        lambda proof: "s1..",
        lambda proof: "\x00",
    ],
    ids=[
        "changed",
        "no mac",
        "other key",
        "other node's",
        "other cluster's",
        "a row",
        "empty",
        "nul",
    ],
)
def test_a_forged_proof_proves_nothing(forge: Callable[[str], str]) -> None:
    world = World()
    proof = forge(Seals(b"k" * 32).fence(Fence("cluster", "n1", 9, 9)))
    with pytest.raises(Unproven):
        world.connect("n1", seen=(99, 9), proof=proof)


def test_without_a_key_nothing_is_believed() -> None:
    empty = Seals()
    assert empty.open_fence(empty.fence(Fence("c", "n", 1, 1))) is None


def test_invented_work_is_not_adopted_and_takes_nobodys_place() -> None:
    world = World()
    world.connect("n2")
    victim = world.submit(name="victim")
    world.confirm(victim)
    whole = json.loads(world.book.desk.row_of(world.assignment(victim)).split(".", 2)[2])
    row = whole["row"]
    text = json.dumps(row).replace("victim", "invented").replace('"n2"', '"n1"')
    # As it would be under a seal: of another database, or of ours and forgotten. Only the seal itself cannot be made.
    world.book.journal.forgotten = ((0, 1 << 40),)
    forged = [
        json.dumps(whole | {"cluster": cluster, "node": "n1", "row": json.loads(text)})
        for cluster in (whole["cluster"], "another")
    ]
    records = [text, *(f"s1.{'0' * 64}.{one}" for one in (text, *forged)), *forged]
    for cluster in ("cluster", "another"):
        for record in records:
            held = Held("team-a/invented", "", row["workload"]["workload"]["uid"], 1, "running", record=record)  # type: ignore[arg-type]  # fmt: skip
            assert world.connect("n1", held=(held,), cluster=cluster) == []
    assert set(world.book.workloads.records) == {victim}
    assert world.status(victim).phase == "Running"


def test_an_old_row_of_ours_brings_nothing_back() -> None:
    """Replayed: the seal is good, the work is over."""
    world = World()
    world.connect("n1")
    one = world.submit(name="one")
    world.confirm(one)
    old = world.held(one)
    world.release(one, finished=True)
    key = ("Workload", "team-a", "one")
    world.step("delete", lambda book, now: book.delete(key, "", now))
    assert world.connect("n1", held=(old,)) == []
    assert world.connect("n1", held=(old,), cluster="another") == []
    assert one not in world.book.workloads.records


def test_a_pending_job_is_not_replaced_by_a_nodes_row_of_that_name() -> None:
    world = World()
    world.connect("n1")
    one = world.submit(name="same")
    world.confirm(one)
    old = world.held(one)
    backup = world.store.load()
    world.store.held = backup
    world.release(one, finished=True)
    key = ("Workload", "team-a", "same")
    world.step("delete", lambda book, now: book.delete(key, "", now))
    new = world.submit(name="same", node="n9")
    uid = world.record(new).workload.uid
    world.book.journal.forgotten = ((0, 1 << 40),)
    assert old.record
    world.connect("n1", held=(old,))
    assert world.record(new).workload.uid == uid


def test_every_node_brings_back_what_a_restored_database_lacks() -> None:
    """Not only the first: the second one's work was stopped once."""
    world = World()
    world.connect("n1", gpus=(gpu(0),))
    world.connect("n2", gpus=(gpu(5),))
    backup = world.store.load()
    keys = [world.submit("a", name=f"w{i}", ask=world_ask()) for i in range(2)]
    for key in keys:
        world.confirm(key)
    nodes = {world.assignment(key).node: key for key in keys}
    assert len(nodes) == 2
    held = {node: world.held(key) for node, key in nodes.items()}
    seen = (world.book.journal.term, world.book.journal.revision)
    proofs = {node: world.book.nodes.fence(node, seen[1]) for node in nodes}
    world.store.held = backup
    world.restart()
    for node, work in held.items():
        own = (gpu(0),) if node == "n1" else (gpu(5),)
        told = world.connect(node, own, held=(work,), seen=seen, proof=proofs[node])
        assert [one.workload for one in told] == [nodes[node]]
    assert {world.status(key).phase for key in keys} == {"Running"}


def world_ask() -> Any:
    return GpuAsk(1, memory_ppm=900_000, share_ppm=900_000, policy=SharePolicy.HARD)


def test_an_operator_may_say_that_the_database_is_an_old_copy() -> None:
    world = World()
    term, revision = world.book.journal.term, world.book.journal.revision
    world.book.restore(world.store.load(), world.now_ns, restored=True)
    assert world.book.journal.term > term + 100
    assert world.book.journal.has_forgotten(revision + 1)
    assert not world.book.journal.has_forgotten(revision)


# --- what nodes are sent (S2) --------------------------------------------------------------------


def test_a_node_is_sent_no_manifest_and_no_secret() -> None:
    world = World()
    world.connect("n1")
    apply(world, JOB, ANN)
    (one,) = world.book.nodes.of_node("n1")
    assert "hunter2" in world.record(one.workload).manifest
    row = world.book.desk.row_of(one)
    assert row
    assert "hunter2" not in row
    assert "DB_PASSWORD" not in row


def test_a_nodes_word_about_gpus_is_about_its_own() -> None:
    world = World()
    world.connect("n1")
    one = world.submit()
    decided = world.assignment(one).gpus
    said = world.said(one)
    for lie in ((GpuShare("GPU-of-another", 1, 1),), (GpuShare("GPU-0", 1 << 50, 1),)):
        world.step("confirm", lambda b, now, lie=lie: b.desk.confirm(said, world_state(), lie, now))  # type: ignore[misc]
        assert world.assignment(one).gpus == decided


def world_state() -> Any:
    return PodState.RUNNING


# --- names and forms (S16, S24) ------------------------------------------------------------------


def test_a_gpu_is_one_nodes() -> None:
    world = World()
    world.connect("n1", gpus=(gpu(0),))
    world.connect("n2", gpus=(gpu(0), gpu(7)))
    health = {g.uuid: g.health for g in world.book.nodes.nodes["n2"].capacity.gpus}
    assert health == {"GPU-0": "duplicate", "GPU-7": "healthy"}
    assert world.book.nodes.duplicates_total == 1
    world.report("n2", gpus=(gpu(0), gpu(7)))
    assert world.book.nodes.duplicates_total == 1, "told once"
    key = ("Node", "", "n1")
    world.step("delete", lambda book, now: book.delete(key, "", now))
    world.report("n2", gpus=(gpu(0), gpu(7)))
    assert {g.health for g in world.book.nodes.nodes["n2"].capacity.gpus} == {"healthy"}


@pytest.mark.parametrize(
    "capacity",
    [
        {"gpus": [{"uuid": "g"}, {"uuid": "g"}]},
        {"gpus": [{"uuid": ""}]},
        {"gpus": [{"uuid": "x" * 300}]},
        {"gpus": [{"uuid": "g", "utilization_ratio": float("nan")}]},
        {"gpus": [{"uuid": "g", "utilization_ratio": float("inf")}]},
        {"gpus": [{"uuid": "g", "used_memory_bytes": 1 << 63}]},
        {"gpus": [{"uuid": "g", "outside_slots": (1 << 32) - 1}]},
        {"gpus": [{"uuid": "g", "mig_profiles": [{"name": "p", "total": 1 << 31}]}]},
        {"labels": {"a": "x" * 100_000}},
        {"labels": {"x" * 300: "a"}},
        {"labels": {"a\nb": "c"}},
        {"labels": {f"k{i}": "" for i in range(300)}},
        {"taints": [{"key": "x" * 300}]},
        {"other_resources": {"cpu": -(1 << 63)}},
    ],
)  # fmt: skip
def test_a_capacity_that_cannot_be_is_refused(capacity: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        read_capacity(WIRE.NodeCapacity(**capacity))


def test_odd_names_of_nodes_and_huge_usages_are_refused() -> None:
    for name in ("", "n\n1", "-n", "n" * 254, "../n", "n 1"):
        with pytest.raises(Refused, match="node"):
            read_work_report(WIRE.ReleaseNotice(), WIRE.NodeNews(node=name))
    with pytest.raises(Refused, match="memory_bytes"):
        read_usage([WIRE.WorkUsage(workload="a/b", memory_bytes=1 << 63)])
    with pytest.raises(Refused, match="used_ratio"):
        read_usage([WIRE.WorkUsage(workload="a/b", used_ratio=float("nan"))])


ODD = ["j\nX", "j\x1b[31mX", "../x", "J", "x" * 254, "x/y", "é", "-x", "x-", "x\x00y", "\ud800"]


@pytest.mark.parametrize("name", ODD, ids=[str(i) for i in range(len(ODD))])
@pytest.mark.parametrize("where", ["name", "namespace", "queue", "label"])
def test_work_that_could_never_be_named_again_is_not_taken(where: str, name: str) -> None:
    world = World()
    (document,) = documents(JOB)
    head = document["metadata"]
    if where == "queue":
        head["labels"]["kueue.x-k8s.io/queue-name"] = name
    elif where == "label":
        head["labels"]["team"] = name if name != "J" else "no/value"
    else:
        head[where] = name
    with pytest.raises((ManifestError, Refused)):
        world.book.apply([document], False, 1)
    assert not world.book.workloads.records
    if where != "label":
        asked = {"namespace": "team-a", "queue": "q", "name": "fine"} | {where: name}
        with pytest.raises(Refused):
            world.book.submit(Submission(ask=world_ask(), **asked), 1)


def test_what_an_earlier_version_let_in_can_be_seen_and_deleted() -> None:
    world = World()
    one = world.submit(name="fine")
    record = world.book.workloads.records.pop(one)
    odd = replace(record, workload=replace(record.workload, name="j\nX"))
    world.book.engine.delete(one, 1)
    world.book.workloads.restore(odd, 1)
    identity = ("Workload", "team-a", "j\nX")
    assert Views(world.book).render(identity, 1)
    world.book.delete(identity, "", 1)
    assert not world.book.workloads.records


# --- what users may say (S5 to S7) ---------------------------------------------------------------


def test_apply_records_who_applied_and_nobody_else_changes_it() -> None:
    world = World()
    world.connect("n1")
    apply(world, JOB, ANN)
    (record,) = world.book.workloads.records.values()
    assert record.user == "ann"
    stopped = WORKLOAD.replace("name: w", "name: job-second").replace(
        "spec:", "spec:\n  active: false", 1
    )
    with pytest.raises(Denied, match=r"eve \(user\) may not apply over"):
        apply(world, stopped, EVE)
    assert world.told(record.key) is not None
    assert world.book.workloads.records[record.key].workload.active
    apply(world, stopped, ANN)
    assert not world.book.workloads.records[record.key].workload.active
    apply(world, stopped.replace("active: false", "active: true"), Caller(user="root", admin=True))
    assert world.book.workloads.records[record.key].user == "ann", "it stays hers"


def test_a_priority_beyond_a_class_takes_an_admin() -> None:
    world = World()
    high = WORKLOAD.replace("queueName: q", "queueName: q\n  priority: 2000000000")
    with pytest.raises(Denied, match="priority"):
        apply(world, high, ANN)
    by_class = WORKLOAD.replace("queueName: q", "queueName: q\n  priorityClassName: urgent")
    apply(world, by_class, ANN)
    (record,) = world.book.workloads.records.values()
    assert record.workload.priority == 1000


def test_a_status_is_not_its_submitters_word() -> None:
    world = World()
    early = WORKLOAD.replace(
        "name: w,", "name: w, uid: mine, creationTimestamp: '2001-01-01T00:00:00Z',"
    )
    apply(world, early, ANN)
    (record,) = world.book.workloads.records.values()
    assert record.workload.uid != "mine"
    assert record.workload.created_ns == world.now_ns, "no workload has waited since 2001"
    for status in (
        "{admissionChecks: [{name: budget, state: Ready}]}",
        "{requeueState: {count: 3}}",
        "{reclaimablePods: [{name: main, count: 1}]}",
    ):
        with pytest.raises(Denied):
            apply(world, WORKLOAD.replace("name: w,", "name: w2,") + f"status: {status}\n", ANN)


def test_a_checks_controller_says_its_own_checks_result_and_nothing_else() -> None:
    world = World()
    apply(world, WORKLOAD, ANN)
    budget = Caller(checks=frozenset({"budget"}), shown="budget-bot")
    said = "status: {admissionChecks: [{name: %s, state: Ready}]}\n"
    changed = WORKLOAD.replace("count: 1", "count: 7")
    apply(world, changed + said % "budget", budget)
    (record,) = world.book.workloads.records.values()
    assert [(one.name, str(one.state)) for one in record.workload.admission_checks] == [("budget", "Ready")]  # fmt: skip
    assert record.workload.pod_sets[0].count == 1
    assert record.user == "ann"
    with pytest.raises(Denied, match="check licence"):
        apply(world, WORKLOAD + said % "licence", budget)


def test_the_fence_of_a_queue_holds_on_every_door() -> None:
    fence = "metadata: {name: q, namespace: team-a, annotations: {sluice.dev/users: ann}}"
    world = World(TEAMS.replace("metadata: {name: q, namespace: team-a}", fence))
    with pytest.raises(Refused, match="eve may not use LocalQueue"):
        apply(world, JOB, EVE)
    with pytest.raises(Refused, match="eve may not use LocalQueue"):
        apply(world, WORKLOAD, EVE)
    elsewhere = WORKLOAD.replace("team-a", "team-b")
    apply(world, elsewhere, EVE)
    apply(world, JOB, ANN)
    with pytest.raises(Refused, match="an unnamed user may not use"):
        world.submit("a")


def test_a_token_is_its_submitters() -> None:
    world = World()
    world.submit(name="one", user="ann", token="t")
    with pytest.raises(Refused, match="another user's"):
        world.submit(name="two", user="eve", token="t")


def test_one_user_does_not_fill_the_database() -> None:
    world = World(settings=BookSettings(most_per_user=3))
    for number in range(3):
        world.submit(name=f"w{number}", user="ann")
    with pytest.raises(Refused, match="the limit is 3"):
        world.submit(name="w3", user="ann")
    with pytest.raises(Refused, match="the limit is 3"):
        apply(world, WORKLOAD, ANN)
    world.submit(name="other", user="eve")
    world.step("delete", lambda b, now: b.delete(("Workload", "team-a", "w0"), "", now))
    world.submit(name="w3", user="ann")


# --- identities (S2, S8, S9) ---------------------------------------------------------------------


def test_a_certificate_is_nobody_until_somebody_says_who_it_is() -> None:
    assert not RoleLists().of_certificate("gpu-1", ["gpu-1"], []).roles
    assert not RoleLists().of_token("ann", ["system:authenticated"], "gpu-1").roles
    for uri in (
        "sluice:root:x",
        "sluice:node:*",
        "sluice:node:",
        "spiffe://sluice/node/x",
        "sluice:node:a,b",
    ):
        assert not RoleLists().of_certificate("x", [], [uri]).roles, uri
    # a name that only looks like a URI of the authority
    assert not RoleLists().of_certificate("sluice:admin:x", ["sluice:admin:x"], []).roles


def test_on_the_machine_root_and_the_owner_are_admin_and_others_are_themselves() -> None:
    assert of_kernel(0, "root", 64000).admin
    assert of_kernel(64000, "sluice-queue", 64000).is_node("any")
    nobody = of_kernel(65534, "nobody", 64000)
    assert (nobody.admin, nobody.is_node("any"), nobody.user) == (False, False, "nobody")


# --- the file (S1, S11) --------------------------------------------------------------------------


def test_a_number_out_of_range_is_never_written(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "queue.sqlite")
    with pytest.raises(StoreLost):
        store.commit(Change("x", revision=1, term=2**63))
    store.close()
    again = SqliteStore(tmp_path / "queue.sqlite")
    assert again.load().term == 2
    again.close()


@pytest.mark.parametrize("value", ["9.22337203685478e+18", "x", "", "-1", str(2**63)])
def test_a_term_that_is_none_is_told_in_one_line(tmp_path: Path, value: str) -> None:
    path = tmp_path / "queue.sqlite"
    store = SqliteStore(path)
    store._db.execute("UPDATE meta SET value = ? WHERE name = 'term'", (value,))
    store.close()
    with pytest.raises(StoreUnusable, match="restore a backup"):
        SqliteStore(path)


def test_the_key_stays_when_the_database_goes(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    store = SqliteStore(path)
    key = store.load().seal_key
    store.close()
    path.unlink()
    again = SqliteStore(path)
    assert again.load().seal_key == key != b""
    again.close()
    assert (tmp_path / "queue.sqlite.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "queue.sqlite.key").write_text("short")
    with pytest.raises(StoreUnusable, match="does not contain a key"):
        SqliteStore(path)
