"""Every reader of the node in Python of another party's input, and what it may raise; queue_readers.py has the queue's.

C readers are targets of libFuzzer (native/fuzz_*.c), manifests and traces of the queue have tests/queue/manifests/test_reading_fuzz.py too.
docs/security.md lists every reader, under Untrusted input.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from pathlib import Path
from typing import Any, cast

from nodeagent import native
from nodeagent.adapters.containers import cdi_installed
from nodeagent.adapters.containers import toolkit as container_toolkit
from nodeagent.adapters.ebpf import records as ebpf_records
from nodeagent.adapters.host import config_files, elf, mounts
from nodeagent.adapters.kubelet import records as kubelet_records
from nodeagent.adapters.kubelet.wire import KubeletWire
from nodeagent.adapters.ledger.sqlite_file import UNREADABLE
from nodeagent.adapters.nvml import uevents_child
from nodeagent.adapters.nvml import wire as nvml_wire
from nodeagent.adapters.processes import cgroups
from nodeagent.adapters.region import layout as region_layout
from nodeagent.adapters.region import registration
from nodeagent.adapters.region import store as region
from nodeagent.adapters.web import metrics as metrics_http
from nodeagent.core.grants import quantities
from nodeagent.core.kubelet.pod_documents import read_pod
from nodeagent.ports.gpus import NodeReading
from nodeagent.ports.kubelet import KubeletAway
from nodeagent.ports.ledger import GrantRecord
from nodeagent.ports.processes import ProcessHandle
from nodeagent.ports.registration import RegisterAnswer
from nodeagent.ports.views import NodeView
from nodeagent.settings import hami_pods
from nodeagent.units import GrantId, SlotIndex
from sluicecommon import yaml_text
from sluicecommon.kubernetes import credentials, decoding, reviews
from sluicecommon.kubernetes.errors import ApiAway
from sluicecommon.plain import read_plain
from sluicecommon.settings import ConfigError
from tests.fuzz import seeds
from tests.fuzz.http import Connections
from tests.fuzz.mutation import Reader, Target, through_a_file
from tests.kit.fakes.nvidia_cdi import installed_spec
from tests.kit.fakes.nvml import gpu_reading


def checkpoint(directory: Path) -> Reader:
    """Reader of the kubelet's checkpoint: any other form is KubeletAway, never an exception of its
    own."""
    wire = KubeletWire(native.locate().kubelet_descriptors)
    path = directory / kubelet_records.CHECKPOINT
    path.parent.mkdir(parents=True, exist_ok=True)

    def run(data: bytes) -> object:
        path.write_bytes(data)
        return kubelet_records.KubeletFiles(directory, {"nvidia.com/gpu"}, wire).checkpoint()

    return run


def registrations() -> Reader:
    """Reader of registrations, from a peer whose identity the kernel confirms: a process of ours
    stands in for it."""
    wanted: list[SlotIndex | None] = []

    class Registrar:
        def register(
            self, grant: GrantId, handle: ProcessHandle, claimed: SlotIndex | None
        ) -> RegisterAnswer:
            wanted.append(claimed)
            return RegisterAnswer(0, SlotIndex(3), 5)

    listener = registration.SeqpacketListener(cast(Any, Registrar()), cast(Any, None))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one = registration._Listener(GrantId("g"), os.geteuid(), "", ours)

    def run(data: bytes) -> object:
        wanted.clear()
        answer, handle = listener._decide(one, ours, data)
        if handle is not None:
            handle.close()
        head = struct.pack("=IHH", region_layout.REGISTER_MAGIC, 1, region_layout.REGION_MAJOR)
        good = len(data) == 24 and data.startswith(head)
        assert (answer.error == 0) == good == bool(wanted)
        assert all(slot is None or 0 <= slot < 256 for slot in wanted)
        return answer

    run.kept = theirs  # type: ignore[attr-defined]  # a peer that is gone is another matter
    return run


def pod_cgroup(data: bytes) -> object:
    text = data.decode("ascii", "replace")
    unified, freezer = cgroups.unified_path(text), cgroups.freezer_path(text)
    held = [cgroups.container_path(path) for path in (unified, freezer)]
    assert not any(".." in path.split("/") for path in held), "a way out of the container"
    return cgroups.pod_in(text), held


def names_of_users(data: bytes) -> object:
    """Cgroup names that a user may choose: any bytes but a slash, a newline and NUL."""
    name = data.decode("utf-8", "replace").translate({ord(c): None for c in "/\n\0"})
    own = f"0::/user.slice/user-1000.slice/user@1000.service/{name}\n"
    assert cgroups.pod_in(own) is None, "a user's cgroup is taken for a pod's"
    assert cgroups.container_path(cgroups.unified_path(own)) == "", "or for a container's"
    return name


def mount_table(data: bytes) -> object:
    """Behind what users mounted stands the one that we look for."""
    good = b"31 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    found = list(mounts.read_table(data + b"\n" + good))
    assert found[-1] == mounts.Mount(Path("/sys/fs/cgroup"), "cgroup2", ("rw",))
    return found


def usage_page(directory: Path) -> Reader:
    """Reader of a usage page: a page that a tenant has scribbled over is damage or numbers, never
    an exception. Bytes are the page from its beginning; the rest is unchanged."""
    library = region.RegionLibrary(native.locate().region_library)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / region_layout.POLICY_FILE).write_bytes(bytes(seeds.page()))
    fresh = library.usage_header.ljust(region_layout.USAGE_BYTES, b"\0")
    path = directory / region_layout.USAGE_FILE
    path.write_bytes(fresh)
    ours = region.TmpfsRegion(library, directory, 2)
    slots = [SlotIndex(0), SlotIndex(3)]

    def run(data: bytes) -> object:
        with path.open("r+b") as file:
            file.write(data[: len(fresh)])
            file.truncate(len(fresh) if len(data) % 5 else len(data))
            image = ours.read_usage(slots)
            claims = ours.self_claims()
            assert image.damage is not None or set(image.slots) == set(slots)
            assert all(0 <= slot < 256 for slot in claims)
            ours.repair_usage()
            assert ours.read_usage(slots).damage is None
        return image, claims

    return run


EMPTY_NODE = NodeView((), (), (), 0, None, None, None, 0, "1")


def http_request() -> Reader:
    """Requests to the metrics port: whatever the request, a caller without a token gets no
    figures."""
    access = metrics_http.Access(bearer_token="s3cret")
    server = metrics_http.MetricsServer(
        "", 0, lambda: EMPTY_NODE, lambda openmetrics: b"figures", lambda: 0.0, access
    )
    connections = Connections(server)

    def run(data: bytes) -> object:
        reply = connections.reply(data)
        assert not reply or re.match(rb"HTTP/(1\.[01] (200|401|404|405|503)|\d\.\d 400) ", reply), (
            reply
        )
        assert b"figures" not in reply or b"s3cret" in data
        return reply

    return run


def watch(data: bytes) -> object:
    """Lines of a watch, in pieces, and pages of a list."""
    decoder, found = decoding.Decoder(read_pod), []
    lines = decoding.Lines()
    for at in range(0, len(data), 64):
        for line in lines.feed(data[at : at + 64]):
            try:
                found.append(decoder.line(line))
            except decoding.BadAnswer:
                continue
    return found, decoder.page(data)


def kubeconfig(path: Path) -> object:
    access = credentials.from_kubeconfig(path, yaml_text.read)
    assert access.server.startswith(("https://", "http://"))
    return access


def token_review(data: bytes) -> object:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # the client has seen to that
        return None
    if not isinstance(document, dict):
        return None
    found = reviews.read_review(document, ["sluice-queue"])
    assert not found.authenticated or found.audiences == ("sluice-queue",)
    return found.claim(reviews.NODE_NAME)


def hami_files(path: Path) -> object:
    return hami_pods.review(config_files.read_hami(path), {"nvidia.com/gpu"})


def quantity(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    found: list[object] = []
    for read in (quantities.parse_memory, quantities.parse_cores):
        try:
            found.append(read(text))
        except quantities.QuantityError:
            found.append(None)
    return found


def small_library() -> bytes:
    """All that is read of an ELF file, in a kilobyte: a segment, symbols with names, and a note with a probe."""
    names = b"\0cuInit\0sluice_interposer_major\0"
    symbols = b"".join(struct.pack("<IBBHQQ", at, 0x12, 0, 1, 0x1000, 16) for at in (0, 1, 8))
    texts = b"sluice\0launch\08@%rdi\0\0"
    note = struct.pack("<III", 8, 24 + len(texts), 3) + b"stapsdt\0"
    note += struct.pack("<QQQ", 0x1008, 0, 0) + texts
    parts, at, headers = b"", 64 + 56 + 3 * 64, b""
    for kind, link, data in ((11, 1, symbols), (3, 0, names), (7, 0, note)):
        headers += struct.pack(
            "<IIQQQQIIQQ", 0, kind, 0, 0, at + len(parts), len(data), link, 0, 8, 0
        )
        parts += data
    ident = b"\x7fELF\x02\x01"
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 64, 120, 0, 64, 56, 1, 64, 3, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0, 0x1000, 0x1000, 8)
    return header + segment + headers + parts


READING = NodeReading((gpu_reading(0), gpu_reading(1)), "580.95.05", "12.999")
CHECKPOINT = {
    "Data": {
        "PodDeviceEntries": [
            {
                "PodUID": "u",
                "ContainerName": "main",
                "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": {"0": ["GPU-0::1"]},
                "AllocResp": "",
            }
        ],
        "RegisteredDevices": {"nvidia.com/gpu": ["GPU-0::1", "GPU-0::2"]},
    },
    "Checksum": 1,
}
CGROUP = (
    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b4e28ba_2fa1_11d2_883f_0000000000b1.slice/"
    "cri-containerd-0123.scope\n7:freezer:/kubepods/pod1b4e28ba-2fa1-11d2-883f-0000000000b1/c1\n"
)


POD = {
    "metadata": {
        "uid": "u",
        "name": "p",
        "namespace": "n",
        "resourceVersion": "7",
        "annotations": {"a": "b"},
        "ownerReferences": [
            {"controller": True, "apiVersion": "v1", "kind": "Job", "name": "j", "uid": "o"}
        ],
    },
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    "status": {"phase": "Running"},
}
HAMI = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "annotations": {"nvidia.com/use-gputype": "A100"}},
    "spec": {
        "schedulerName": "hami-scheduler",
        "containers": [
            {
                "name": "c",
                "env": [{"name": "CUDA_TASK_PRIORITY", "value": "1"}],
                "resources": {"limits": {"nvidia.com/gpumem": 3000}},
            }
        ],
    },
}


REVIEW = {
    "status": {
        "authenticated": True,
        "audiences": ["sluice-queue"],
        "user": {
            "username": "system:serviceaccount:sluice:sluice-agent",
            "uid": "u",
            "groups": ["system:authenticated"],
            "extra": {reviews.NODE_NAME: ["gpu-1"]},
        },
    }
}
KUBECONFIG = {
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    "clusters": [
        {"name": "k", "cluster": {"server": "https://[::1]:6443", "insecure-skip-tls-verify": True}}
    ],
    "users": [{"name": "u", "user": {"token": "t", "client-key-data": "aGk="}}],
}


def targets(directory: Path) -> list[Target]:
    spec = json.dumps(installed_spec(["GPU-0"], {"/usr/lib64/libcuda.so.1": "/usr/lib64/x"}))
    library = small_library()
    record = bytes(range(256))[: ebpf_records.RECORD.size].ljust(ebpf_records.RECORD.size, b"x")
    row = bytes(ebpf_records.LAUNCH_ROW.size)
    tar = through_a_file
    pod = json.dumps(POD)
    event = f'{{"type":"ADDED","object":{pod}}}\n'.encode()
    page = f'{{"metadata":{{"resourceVersion":"9"}},"items":[{pod}]}}'.encode()
    return [
        Target(
            "cdi json",
            tar(lambda p: cdi_installed._parse(p.read_bytes(), p), ".json"),
            (ValueError,),
            (spec.encode(),),
            "another vendor's generator",
        ),
        Target(
            "cdi yaml",
            tar(lambda p: cdi_installed._parse(p.read_bytes(), p), ".yaml"),
            (ValueError,),
            (spec.encode(), b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n"),
            "another vendor's generator",
        ),
        Target(
            "kubelet checkpoint",
            checkpoint(directory),
            (KubeletAway,),
            (json.dumps(CHECKPOINT).encode(),),
            "the kubelet",
        ),
        Target(
            "nvml child",
            nvml_wire.decode,
            (ValueError, TypeError),
            (nvml_wire.encode(READING).encode(),),
            "a child with a third party's driver in it",
        ),
        Target(
            "proc cgroup", pod_cgroup, (), (CGROUP.encode(),), "a process that may name cgroups"
        ),
        Target("elf symbols", tar(elf.exports), (elf.NotElf,), (library,), "a tenant"),
        Target("elf probes", tar(elf.probes), (elf.NotElf,), (library,), "a tenant"),
        Target(
            "registration",
            registrations(),
            (),
            tuple(
                bytes(
                    region_layout.RegisterRequest(
                        magic=region_layout.REGISTER_MAGIC,
                        version=region_layout.REGISTER_VERSION,
                        region_major=region_layout.REGION_MAJOR,
                        claimed_slot=claimed,
                    )
                )
                for claimed in (0, 4, 257)
            ),
            "a tenant",
        ),
        Target(
            "kernel record",
            ebpf_records.read_record,
            (struct.error,),
            (record,),
            "the kernel's programs",
        ),
        Target("launch row", ebpf_records.read_row, (struct.error,), (row,), "probes in a tenant"),
        Target(
            "uevent",
            lambda data: uevents_child.gpu_change(uevents_child.parse(data)),
            (),
            (b"remove@/devices/pci/0000:10:00.0\0ACTION=remove\0SUBSYSTEM=pci\0DRIVER=nvidia\0",),
            "the kernel",
        ),
        Target(
            "container toolkit",
            tar(lambda p: container_toolkit.read([p], []), ".toml"),
            (),
            (b"accept-nvidia-visible-devices-envvar-when-unprivileged = false\n",),
            "another package",
        ),
        Target(
            "settings",
            tar(config_files.load_settings, ".toml"),
            (ConfigError,),
            (b"[daemon]\nlog_level = 'info'\n[grants]\nslots_per_gpu = 10\n",),
            "an operator",
        ),
        Target("quantities", quantity, (), (b"8Gi", b"50%", b"1e3", b"30"), "a user"),
        Target(
            "record of a region",
            lambda data: read_plain(GrantRecord, json.loads(data)),
            UNREADABLE,
            (b'{"grant": "0", "devices": []}',),
            "an earlier version",
        ),
        Target(
            "cgroup of a user",
            names_of_users,
            (),
            (b"app.slice", b"x/kubepods-pod1b4e28ba_2fa1_11d2_883f_0000000000b1.slice"),
            "any user with cgroups of his own",
        ),
        Target(
            "mount table",
            mount_table,
            (),
            (b"36 23 0:45 / /home/eve/a\\040b rw shared:1 - fuse.sshfs eve:/ rw,user_id=1000\n",),
            "any user that mounts FUSE",
        ),
        Target(
            "usage page",
            usage_page(directory / "region"),
            (),
            (
                bytes(region.RegionLibrary(native.locate().region_library).usage_header)
                + bytes(4096),
            ),
            "a tenant",
        ),
        Target(
            "http request",
            http_request(),
            (),
            (
                b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer s3cret\r\nAccept: text/plain;q=0.5\r\n\r\n",
                b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Basic czNjcmV0\r\n\r\n",
            ),
            "any client that reaches the metrics' port",
        ),
        Target(
            "watch of pods", watch, (decoding.BadAnswer,), (event + event, page), "an API server"
        ),
        Target(
            "hami files",
            tar(hami_files, ".yaml"),
            (ConfigError,),
            (
                json.dumps(HAMI).encode(),
                b'kind: ConfigMap\ndata: {device-config.yaml: "nvidia: {}"}\n',
            ),
            "users whose pods are looked at",
        ),
        Target(
            "kubeconfig",
            tar(kubeconfig),
            (credentials.NoAccess,),
            (json.dumps(KUBECONFIG).encode(),),
            "an operator",
        ),
        Target(
            "token review",
            token_review,
            (ApiAway,),
            (json.dumps(REVIEW).encode(),),
            "an API server",
        ),
    ]
