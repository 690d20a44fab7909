"""Values that describe what a container needs to run inside its grant, and the port to the
runtime's CDI files."""

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
    """One library of the NVIDIA driver on the host over which ours is mounted in the container."""

    name: str
    """The name that the loader searches: libcuda.so.1, libnvidia-ml.so.1."""
    host_path: str
    """The real file with links resolved: libcuda.so.570.86.15."""
    found_as: tuple[str, ...]
    """Every real file on the host with a name like it, `host_path` included."""
    shim_path: str
    """Our replacement on the host."""
    kept_path: str
    """Path of the real library in the container, below /run/sluice/driver."""


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """Our files that every container gets, whichever grant it runs in. Paths are the host's."""

    preload_path: str
    """Our library for /etc/ld.so.preload."""
    hook_path: str = ""
    """Our hook program, which the runtime starts while it creates the container: it adds our line
    to the image's own /etc/ld.so.preload. Empty: there is none, and `preload_list_path` replaces
    the file."""
    preload_list_path: str = ""
    """A file with that one line."""
    libraries: tuple[DriverLibrary, ...] = ()


@dataclass(frozen=True, slots=True)
class GrantMounts:
    """Everything that one container needs to run inside its grant.

    Paths are the host's unless stated otherwise. Nothing here is a limit; limits are in the region
    alone.
    """

    grant: GrantId
    gpus: tuple[GpuUuid, ...]
    """The devices to show, from the ledger; `nvidia.com/gpu=<uuid>` of the installed CDI
    specification has their nodes and libraries."""
    region_dir: str
    """The grant's own directory: policy.shm, usage.shm and the registration socket. Mount the
    directory, because the daemon recreates the socket when it restarts."""
    policy_path: str
    """Read-only in the container."""
    usage_path: str
    """Read-write in the container."""
    socket_path: str
    container_dir: str
    """Path of `region_dir` in the container: /run/sluice/grant, which the interposer expects."""
    files: GivenFiles
    counted_gpus: tuple[GpuUuid, ...] = ()
    """The GPUs that Allocate was called for; the grant may be on others."""
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    """The container's name. This and the three above appear in the specification's annotations, for
    people only."""
    wall_socket: str = ""
    """Socket on which the daemon receives a new container's cgroup; empty: it sets no driver
    limits."""
    wall_required: bool = False
    """True if the container must not start without its driver limit."""


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
    """Answer to Allocate for one container. The kubelet repeats it at every restart of the
    container, so nothing in it may depend on the pod."""

    cdi_devices: tuple[str, ...] = ()
    """sluice.dev/driver=<generation>, if there is one, and sluice.dev/grant=<nonce>."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[ContainerMount, ...] = ()
    nodes: tuple[ContainerNode, ...] = ()


class CdiPort(Protocol):
    """Makes grants visible to the container runtime.

    A nonce is 32 lower-case hexadecimal digits, used once; so is a driver's generation, which names
    the part that all containers share.
    """

    fixes_gpus: bool
    """True if the answer to Allocate fixes the GPUs, so that a grant on others cannot be
    written."""
    driver: str
    """The generation to name in new answers; empty: there is none, and a grant's own file has
    everything."""

    def renew_driver(self, files: GivenFiles) -> None:
        """Write what is installed now for all containers and set `driver`; under a new name if it
        differs from before.

        Raises OSError, or ValueError if nothing can be shared, and `driver` is then empty.
        """

    def answer(self, nonce: str, gpus: Sequence[GpuUuid], driver: str) -> ContainerAnswer:
        """Answer Allocate by the configured strategy; `gpus` are those of the device ids, a hint.
        No I/O."""

    def write(self, nonce: str, edits: GrantMounts, driver: str) -> float:
        """Write the devices that the answer with this nonce and driver names.

        Durable when it returns. The result is the number of seconds until the runtime sees it; 0.0
        if the same file was there already for long enough. Raises OSError, or ValueError if it
        cannot be written.
        """

    def keep_drivers(self, drivers: AbstractSet[str]) -> None:
        """Remove every other generation except the one in `driver`."""

    def remove(self, nonce: str) -> None:
        """Idempotent."""

    def names(self) -> list[str]:
        """The nonces that have a file now; leftovers of an interrupted write are removed."""

    def finding(self, gpus: Sequence[GpuUuid]) -> Finding:
        """Check whether containers could get these GPUs now."""
