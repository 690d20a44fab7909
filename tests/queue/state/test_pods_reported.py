"""Pods reported by a node hold their GPUs under their own names, over the wire and in the stock,
and count once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from nodeagent import native
from nodeagent.adapters.api.wire import Wire as NodeWire
from nodeagent.adapters.queue.wire import write_capacity, write_pod_usage
from nodeagent.ports.ledger import ContainerRef, DeviceShare, GrantRecord, Spill
from nodeagent.ports.processes import Process
from nodeagent.ports.queue import Capacity, PodCheckpoint, PodGpus, PodUsage, ReportedGpu
from nodeagent.settings.daemon import QueueSettings
from nodeagent.shell.queue.capacity import CapacityReader, pods_of
from nodeagent.units import Bytes, GpuUuid, GrantId, PodUid, Ppm, SharePolicy
from queuecontroller.scheduler.placement.capacity import (
    Checkpoint,
    CheckpointState,
    NodeCapacity,
)
from queuecontroller.server.api.messages import read_capacity, read_pod_usage
from queuecontroller.server.api.wire import Wire, find_descriptors
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.nodes.sessions import Hello
from queuecontroller.state.objects.submission import Refused

GIB = 1 << 30


def grant(pod: str, policy: SharePolicy, *gpus: str, container: str = "main") -> GrantRecord:
    devices = tuple(
        DeviceShare(GpuUuid(one), Bytes(10 * GIB), Bytes(10 * GIB), Ppm(300_000)) for one in gpus
    )
    ref = ContainerRef(f"u-{pod}", container, (), "t", pod)
    owner = Process(1, 0, 0, 0)
    return GrantRecord(
        GrantId(f"{pod}-{container}"), pod, policy, devices, owner, 0.0, "boot", container=ref
    )


def reported(*records: GrantRecord) -> NodeCapacity:
    """Over the wire, as the agent says it."""
    memory = sum(int(one.memory_bytes) for record in records for one in record.devices)
    gpu = ReportedGpu(
        GpuUuid("GPU-0"),
        0,
        "H100",
        Bytes(80 * GIB),
        10,
        "healthy",
        outside_memory_bytes=memory + GIB,
        outside_slots=len(records),
    )
    made = write_capacity(
        NodeWire(native.locate().wire_descriptors), Capacity((gpu,), pods=pods_of(records))
    )
    theirs = Wire(find_descriptors()).NodeCapacity.FromString(made.SerializeToString())
    return read_capacity(theirs)


def test_containers_of_a_pod_are_told_together_and_promises_apart_from_weights() -> None:
    found = pods_of(
        [
            grant("b", SharePolicy.ELASTIC, "GPU-0"),
            grant("a", SharePolicy.HARD, "GPU-0", "GPU-1"),
            grant("a", SharePolicy.EXCLUSIVE, "GPU-2", container="side"),
            replace(grant("c", SharePolicy.HARD, "GPU-0"), container=None),
        ]
    )
    assert found == (
        PodGpus(
            "u-a",
            "t",
            "a",
            (
                (GpuUuid("GPU-0"), 10 * GIB, 300_000, False),
                (GpuUuid("GPU-1"), 10 * GIB, 300_000, False),
                (GpuUuid("GPU-2"), 10 * GIB, 0, True),
            ),
        ),
        PodGpus("u-b", "t", "b", ((GpuUuid("GPU-0"), 10 * GIB, 0, False),)),
    )


def test_a_pods_gpus_count_once_and_go_with_it() -> None:
    book = Book(BookSettings(), True, lambda: "uid")
    book.journal.term = 1
    one, two = grant("a", SharePolicy.HARD, "GPU-0"), grant("b", SharePolicy.HARD, "GPU-0")
    node, _ = book.desk.connect(Hello("n", capacity=reported(one, two)), 1)
    room = book.nodes_room

    def left() -> tuple[int, int]:
        room.follow(2)
        gpu = room.stock.nodes["n"].gpus["GPU-0"]
        return gpu.memory_bytes // GIB, gpu.slots

    assert left() == (59, 8), "two of 10 GiB, and one that belongs to no pod"
    assert room.pods.holding("u-a") is not None
    book.desk.report("n", node.record.epoch, 1, reported(two), 3)
    assert left() == (69, 9)
    assert room.pods.holding("u-a") is None


def test_a_pod_out_of_bounds_is_refused() -> None:
    message = Wire(find_descriptors()).NodeCapacity()
    message.pods.add(uid="u").shares.add(uuid="GPU-0", share_ppm=2_000_000)
    with pytest.raises(Refused, match=r"pods\.shares\.share_ppm"):
        read_capacity(message)
    nameless = Wire(find_descriptors()).NodeCapacity()
    nameless.pods.add()
    with pytest.raises(Refused, match=r"pods\.uid"):
        read_capacity(nameless)


@dataclass
class Regions:
    """Grants with one device each, whose memory and consumed time a test sets."""

    records: list[GrantRecord]
    charged_bytes: dict[str, int] = field(default_factory=dict)
    consumed_ns: dict[str, int] = field(default_factory=dict)

    def live(self) -> dict[GrantId, SimpleNamespace]:
        return {one.grant: SimpleNamespace(record=one) for one in self.records}

    def opened(self, grant: GrantId | None) -> SimpleNamespace | None:
        if grant not in self.charged_bytes:
            return None
        total = SimpleNamespace(
            consumed_ns=self.consumed_ns[grant], charged_bytes=self.charged_bytes[grant]
        )
        account = SimpleNamespace(physical_bytes=(0,), total=lambda index: total)
        return SimpleNamespace(account=account)


def test_the_use_of_a_pods_containers_is_reported_together() -> None:
    one, side = (grant("a", SharePolicy.HARD, "GPU-0", container=c) for c in ("main", "side"))
    unopened = grant("b", SharePolicy.HARD, "GPU-0")
    bare = replace(grant("c", SharePolicy.HARD, "GPU-0"), container=None)
    grants = Regions([one, side, unopened, bare])
    now_ns = [10**9]
    reader = CapacityReader(QueueSettings(), "n", grants, None, lambda: now_ns[0])  # type: ignore[arg-type]
    for record in (one, side, bare):
        grants.charged_bytes[record.grant] = GIB
        grants.consumed_ns[record.grant] = 0
    assert reader.usage(()) == [PodUsage("u-a", 2 * GIB, None)], "no time has passed yet"
    now_ns[0] += 2 * 10**9
    grants.consumed_ns[one.grant] = 10**9
    grants.consumed_ns[side.grant] = 5 * 10**8
    found = reader.usage(())
    assert found == [PodUsage("u-a", 2 * GIB, 0.75)]

    wire = NodeWire(native.locate().wire_descriptors)
    messages = [write_pod_usage(wire, each) for each in found if isinstance(each, PodUsage)]
    theirs = Wire(find_descriptors()).PodUsage
    read = read_pod_usage([theirs.FromString(each.SerializeToString()) for each in messages])
    assert read == {"u-a": (2 * GIB, 0.75)}
    with pytest.raises(Refused, match="pod_usage"):
        read_pod_usage([theirs(uid="u", used_ratio=float("nan"))])
    with pytest.raises(Refused, match="pod_usage"):
        read_pod_usage([theirs(uid="", memory_bytes=1)])


@pytest.mark.parametrize(
    ("state", "read"),
    [("saved", CheckpointState.SAVED), ("of a later version", CheckpointState.MOVING)],
)
def test_a_checkpointed_pod_is_reported_with_its_answer_and_without_its_memory(
    state: str, read: CheckpointState
) -> None:
    record = replace(grant("a", SharePolicy.HARD, "GPU-0"), spill=Spill.SPILLED)
    answer = PodCheckpoint("t", "a", "save 1", state, "why\n")
    pods = pods_of([record], {PodUid("u-a"): answer, PodUid("u-b"): answer})
    made = write_capacity(NodeWire(native.locate().wire_descriptors), Capacity((), pods=pods))
    theirs = Wire(find_descriptors()).NodeCapacity.FromString(made.SerializeToString())
    one, other = read_capacity(theirs).pods
    assert (one.uid, one.shares) == ("u-a", ())
    assert one.checkpoint == Checkpoint("save 1", read, "why ")
    assert other.uid == "u-b", "none of its containers has a grant"
