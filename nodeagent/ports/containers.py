"""What a container is given to run inside its grant, and the port to the runtime's CDI files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from nodeagent.ports.views import Finding
from nodeagent.units import (
    GpuUuid,
    GrantId,
)


@dataclass(frozen=True, slots=True)
class DriverLibrary:
    """One library of the NVIDIA driver on the host that ours must lie over in the container."""

    name: str
    """As the loader looks for it: libcuda.so.1, libnvidia-ml.so.1."""
    host_path: str
    """The real file, links resolved: libcuda.so.570.86.15."""
    found_as: tuple[str, ...]
    """Every real file on the host that is found by a name like it; `host_path` is one."""
    shim_path: str
    """Ours, on the host."""
    kept_path: str
    """Where the container finds the real one: below /run/sluice/driver."""


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """What of ours every container is given, whichever grant it runs in. Paths are the host's."""

    preload_path: str
    """Our library for /etc/ld.so.preload."""
    hook_path: str = ""
    """Our program that a runtime starts while it makes the container: it adds our line to the
    image's own /etc/ld.so.preload. Empty: there is none, `preload_list_path` replaces the file."""
    preload_list_path: str = ""
    """A file with that one line."""
    libraries: tuple[DriverLibrary, ...] = ()


@dataclass(frozen=True, slots=True)
class GrantMounts:
    """What one container must be given so that it runs inside its grant. Paths are the host's
    unless they say otherwise; nothing here is a limit, limits are in the region alone."""

    grant: GrantId
    gpus: tuple[GpuUuid, ...]
    """The devices to show, as the ledger has them; `nvidia.com/gpu=<uuid>` of the installed CDI
    specification has their nodes and libraries."""
    region_dir: str
    """The grant's own directory: policy.shm, usage.shm and the registration socket. Mount the
    directory, because the daemon makes the socket anew when it restarts."""
    policy_path: str
    """Read-only in the container."""
    usage_path: str
    """Read-write in the container."""
    socket_path: str
    container_dir: str
    """Where the container sees `region_dir`: /run/sluice/grant, the interposer's fixed place."""
    files: GivenFiles
    counted_gpus: tuple[GpuUuid, ...] = ()
    """Those that Allocate was asked for; the grant may be on others."""
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    """Whose it is: for annotations of the specification, shown to people only."""
    wall_socket: str = ""
    """Where the daemon hears of a new container's cgroup; empty: it builds no walls."""
    wall_required: bool = False
    """Without its wall the container may not start."""


@dataclass(frozen=True, slots=True)
class ContainerMount:
    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class ContainerNode:
    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    """What Allocate says to the kubelet about one container; it is repeated for every restart of
    the container, so nothing in it may depend on which pod it is."""

    cdi_devices: tuple[str, ...] = ()
    """sluice.dev/driver=<generation>, where there is one, and sluice.dev/grant=<nonce>."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[ContainerMount, ...] = ()
    nodes: tuple[ContainerNode, ...] = ()


class CdiPort(Protocol):
    """The runtime's way to a grant. A nonce is 32 lower-case hexadecimal digits, used once; so is
    a driver's generation, which names what all containers have in common."""

    fixes_gpus: bool
    """The answer to Allocate decides the GPUs: a grant on others cannot be written."""
    driver: str
    """The generation to name in new answers; empty: there is none, a grant's own file has all."""

    def renew_driver(self, files: GivenFiles) -> None:
        """Writes what is installed now for all containers and sets `driver`; under a new name
        where it differs from before. Raises OSError, or ValueError where nothing can be shared
        and `driver` is empty."""

    def answer(self, nonce: str, gpus: Sequence[GpuUuid], driver: str) -> ContainerAnswer:
        """By the configured strategy; `gpus` are those of the device ids, a hint. No I/O."""

    def write(self, nonce: str, edits: GrantMounts, driver: str) -> float:
        """What the answer with this nonce and this driver names. Durable when it returns, and
        visible to the runtime after that many seconds; 0.0: it was there already, word for word,
        for long enough. Raises OSError, or ValueError for what cannot be written."""

    def keep_drivers(self, drivers: AbstractSet[str]) -> None:
        """Removes every other generation but the one in `driver`."""

    def remove(self, nonce: str) -> None:
        """Idempotent."""

    def names(self) -> list[str]:
        """The nonces that have a file now; leftovers of an interrupted writing are removed."""

    def finding(self, gpus: Sequence[GpuUuid]) -> Finding:
        """Whether containers could be given these GPUs now."""
