"""Every reader in Python of what somebody else wrote, and what it may raise; bytes are bent until one raises more.

C readers are targets of libFuzzer (fuzz_*.c), manifests and traces of the queue have tests/queue/test_reading_fuzz.py.
There is no coverage to steer by here: the readers are small, and good inputs to begin with lead into all of them.
"""

from __future__ import annotations

import json
import random
import struct
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeagent import config, native
from nodeagent.adapters import (
    cdi_installed,
    cgroups,
    container_toolkit,
    ebpf_records,
    elf,
    kubelet_records,
    nvml_wire,
    region_layout,
    uevents,
)
from nodeagent.adapters.kubelet_wire import KubeletWire
from nodeagent.core import quantities
from nodeagent.core.events import read_plain
from nodeagent.kubelet_ports import KubeletAway
from nodeagent.ports import GrantRecord, NodeReading
from nodeagent.settings_fields import ConfigError
from nodeagent.testing.nvidia_cdi import installed_spec
from nodeagent.testing.nvml import gpu_reading
from tests.places import SIM

Reader = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    name: str
    read: Reader
    may_raise: tuple[type[BaseException], ...]
    seeds: tuple[bytes, ...]
    whose: str
    """Who writes what it reads."""


def through_a_file(read: Callable[[Path], object], suffix: str = "") -> Reader:
    """For readers of paths: one file, written over."""
    directory = tempfile.TemporaryDirectory(prefix="fuzz-")
    path = Path(directory.name) / f"input{suffix}"

    def run(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    run.kept = directory  # type: ignore[attr-defined]  # until the reader is gone
    return run


def checkpoint(directory: Path) -> Reader:
    """As the daemon reads it: any other form is KubeletAway, never an exception of its own."""
    wire = KubeletWire(native.locate().kubelet_descriptors)
    path = directory / kubelet_records.CHECKPOINT
    path.parent.mkdir(parents=True, exist_ok=True)

    def run(data: bytes) -> object:
        path.write_bytes(data)
        return kubelet_records.KubeletFiles(directory, {"nvidia.com/gpu"}, wire).checkpoint()

    return run


def registration(data: bytes) -> object:
    size = len(bytes(region_layout.RegisterRequest()))
    if len(data) != size:
        return None
    request = region_layout.RegisterRequest.from_buffer_copy(data)
    return [getattr(request, name) for name, *_ in request._fields_]


def pod_cgroup(data: bytes) -> object:
    text = data.decode("ascii", "replace")
    unified, freezer = cgroups.unified_path(text), cgroups.freezer_path(text)
    held = [cgroups.container_path(path) for path in (unified, freezer)]
    assert not any(".." in path.split("/") for path in held), "a way out of the container"
    return cgroups.pod_in(text), held


def settings(data: bytes) -> object:
    return config.parse(tomllib.loads(data.decode("utf-8", "replace")))


def quantity(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    found = []
    for read in (quantities.parse_memory, quantities.parse_cores):
        try:
            found.append(read(text))
        except quantities.QuantityError:
            found.append(None)
    return found


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


def targets(directory: Path) -> list[Target]:
    spec = json.dumps(installed_spec(["GPU-0"], {"/usr/lib64/libcuda.so.1": "/usr/lib64/x"}))
    library = (SIM / "libcuda.so.1").read_bytes()
    record = bytes(range(256))[: ebpf_records.RECORD.size].ljust(ebpf_records.RECORD.size, b"x")
    row = bytes(ebpf_records.LAUNCH_ROW.size)
    tar = through_a_file
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
            "a child with somebody's driver in it",
        ),
        Target("proc cgroup", pod_cgroup, (), (CGROUP.encode(),), "whoever names cgroups"),
        Target(
            "elf symbols", tar(elf.exports), (elf.NotElf,), (library[:65_536], library), "a tenant"
        ),
        Target(
            "elf probes", tar(elf.probes), (elf.NotElf,), (library[:65_536], library), "a tenant"
        ),
        Target(
            "registration",
            registration,
            (),
            (bytes(region_layout.RegisterRequest(magic=region_layout.REGISTER_MAGIC)),),
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
            lambda data: uevents.gpu_change(uevents.parse(data)),
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
            settings,
            (ValueError, ConfigError),
            (b"[daemon]\nlog_level = 'info'\n[grants]\nslots_per_gpu = 10\n",),
            "an operator",
        ),
        Target("quantities", quantity, (), (b"8Gi", b"50%", b"1e3", b"30"), "a user"),
        Target(
            "record of a region",
            lambda data: read_plain(GrantRecord, json.loads(data)),
            (ValueError, TypeError, KeyError, RecursionError),
            (b'{"grant": "0", "devices": []}',),
            "an earlier version",
        ),
    ]


ODD = (
    b"\0",
    b"\xff" * 8,
    b"-1",
    b"1e999",
    b"NaN",
    b'"',
    b"{",
    b"[" * 3000,
    b"}",
    b"\n",
    b"../",
    b"\\u0000",
)
"""What readers stumble over."""


def bent(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                data[at : at + chance.choice((1, 4, 64))] = b""
            case 2:
                data[at:at] = chance.choice(ODD)
            case 3:
                other = chance.choice(seeds)
                begin = chance.randrange(len(other) + 1)
                data[at:at] = other[begin : begin + chance.randrange(64)]
            case 4:
                data[at : at + 8] = struct.pack(
                    "<Q", chance.choice((0, 1, 2**31, 2**63, 2**64 - 1))
                )
            case 5:
                del data[at:]
            case _:
                data[at : at + 4] = chance.randbytes(4)
    return bytes(data)


class Finding(AssertionError):
    """A reader raised what it does not say it raises."""


def fuzz(target: Target, seed: int, seconds: float = 0.0, inputs: int = 0) -> int:
    """Inputs tried, by time or by number. Raises Finding with the input that shows it."""
    chance = random.Random(seed)
    end_s = time.monotonic() + seconds
    tried = 0
    while tried < inputs or time.monotonic() < end_s:
        data = bent(target.seeds, chance)
        tried += 1
        try:
            target.read(data)
        except target.may_raise:
            continue
        except Exception as error:
            raise Finding(
                f"{target.name}: {type(error).__name__}: {error}\n{data[:2000]!r}"
            ) from error
    return tried
