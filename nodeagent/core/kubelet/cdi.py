"""CDI specifications of grants, as values: the installed driver's edits for a grant's GPUs, with
our libraries in place of the driver's, and the grant's region.

Each container gets two devices: the part that is the same for all containers of the node, named by
the driver's generation, and the grant's own part, named by its nonce. Answers to Allocate without a
generation have both in the second.

The edits that a driver needs in a container (nodes, libraries, hooks) change with every release, so
they are copied from the host's `nvidia.com/gpu` specification, which `nvidia-ctk cdi generate`
writes, and never invented. Two things differ: every `libcuda.so*` and `libnvidia-ml.so*` becomes
ours, with the real one moved to /run/sluice/driver, and the hook that would put the image's own
forward-compatible libcuda in front is left out. Nothing here is a limit; limits are in the region.
Source: the Container Device Interface specification 0.5.0 and later.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodeagent.core.kubelet.cdi_base import KIND as BASE_KIND
from nodeagent.core.kubelet.cdi_base import LISTS, Edits, beyond, dotted
from nodeagent.ports.containers import (
    ContainerAnswer,
    ContainerMount,
    DriverLibrary,
    GivenFiles,
    GrantMounts,
)
from nodeagent.ports.kubelet import NONCE
from nodeagent.units import GpuUuid

KIND: Final = "sluice.dev/grant"
DRIVER_KIND: Final = "sluice.dev/driver"
ANNOTATED_VERSION: Final = (0, 6, 0)
"""First version whose devices may have annotations; older readers refuse the file for them."""
LIBRARY_PATH: Final = "/run/sluice/lib/libsluice.so"
"""Path in the container of the library that /etc/ld.so.preload names."""
PRELOAD_FILE: Final = "/etc/ld.so.preload"
DRIVER_STEM: Final = "libcuda.so"
COMPAT_HOOK: Final = "enable-cuda-compat"

SETTLES_S: Final = 0.025
"""Seconds from the renaming of a file until the runtime has read it, in an empty directory: many
times what its library needs, because the machine may be busy."""
SETTLES_S_PER_BYTE: Final = 0.5e-6
"""Additional seconds per byte in the directories: every change makes the library read everything
again, at 0.08 to 0.25 s of one core per MB (tests/peers/test_cdi.py), and it may just have begun
to."""

_READ_ONLY: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_REGION_RO: Final = ("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate")
_REGION_RW: Final = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")
_NARROW: Final = ("i386-linux-gnu", "lib32", "i686")
"""Parts of the paths of 32-bit libraries. They are covered too, but a 64-bit program cannot be
given one as the real driver."""

LINKED: Final = ("libsluice.so", "ld.so.preload", "grant", "usage.shm")
"""Files that strategy envvar finds by nonce, one symbolic link each."""


def check_nonce(nonce: str) -> str:
    """Return the nonce. Raises ValueError if it is not one, because it becomes part of a file
    name."""
    if not NONCE.fullmatch(nonce):
        shown = "".join(c if c.isprintable() else "?" for c in nonce[:64])
        raise ValueError(f"nonce: expected 32 lower-case hexadecimal digits, got {shown!r}")
    return nonce


def generation_of(edits: Edits, version: tuple[int, int, int]) -> str:
    """Name of the driver's generation for containers created from now on; other edits have another
    name.

    An older name may come to stand for these edits too, when its own are no longer installed.
    """
    text = json.dumps([dotted(version), edits], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def settles_s(directory_bytes: int) -> float:
    """Seconds until the runtime has read a file that was renamed just now."""
    return SETTLES_S + directory_bytes * SETTLES_S_PER_BYTE


def device_name(nonce: str) -> str:
    """CDI device name of a grant, for the kubelet and the runtime."""
    return f"{KIND}={check_nonce(nonce)}"


def driver_name(generation: str) -> str:
    return f"{DRIVER_KIND}={check_nonce(generation)}"


def device_names(nonce: str, driver: str) -> tuple[str, ...]:
    """CDI devices of one container, in the order in which their edits apply: the grant's own
    last."""
    return (*((driver_name(driver),) if driver else ()), device_name(nonce))


# --- our specification ----------------------------------------------------------------------------


def driver_edits(base: Edits, files: GivenFiles) -> Edits:
    """The driver's edits with our libraries in place of its own.

    They are complete: whichever GPU is added beside them, our library is over the driver's. Raises
    ValueError if the driver's edits have no libcuda, because a container would then have a GPU
    without limits.
    """
    real: dict[str, list[str]] = {}
    mounts = _covered(base, files.libraries, real)
    if not any(name.startswith(DRIVER_STEM) for name in real):
        raise ValueError(
            f"the CDI specification of {BASE_KIND} mounts no {DRIVER_STEM} that Sluice recognises"
            " (looked for: "
            + (", ".join(one.host_path for one in files.libraries) or "none was found")
            + "), so a container would have the GPU without limits: is it for another driver"
            " version? regenerate it with nvidia-ctk cdi generate"
        )
    mounts += _real_ones(files.libraries, real)
    mounts.append(_bind(files.preload_path, LIBRARY_PATH))
    hooks = _allowed(base)
    if files.hook_path:
        hooks.append(
            {
                "hookName": "createContainer",
                "path": files.hook_path,
                "args": [posixpath.basename(files.hook_path), "preload", LIBRARY_PATH],
            }
        )
    elif files.preload_list_path:
        mounts.append(_bind(files.preload_list_path, PRELOAD_FILE))
    else:
        raise ValueError("neither the container hook nor ld.so.preload is among our files")
    return {**base, "mounts": mounts, "hooks": hooks}


def driver_document(generation: str, version: tuple[int, int, int], edits: Edits) -> dict[str, Any]:
    """The specification with one device, the driver's generation."""
    check_nonce(generation)
    return _specification(DRIVER_KIND, version, {"name": generation}, edits)


def document(
    nonce: str, base: Edits, version: tuple[int, int, int], grant: GrantMounts
) -> dict[str, Any]:
    """The specification with one device, the nonce, that has everything. Raises ValueError as
    `driver_edits` does."""
    device = _device(nonce, version, grant)
    edits = driver_edits(base, grant.files)
    whole = {
        **edits,
        "mounts": [*edits["mounts"], *_region(grant)],
        "hooks": [*edits["hooks"], *_wall(grant)],
    }
    return _specification(KIND, version, device, whole)


def own_document(
    nonce: str, base: Edits, common: Edits, version: tuple[int, int, int], grant: GrantMounts
) -> dict[str, Any]:
    """The specification with one device, the nonce, for a container that also gets the driver's
    generation with the edits `common`.

    Both together are what `document` makes of `base`. Our hook then runs before those of single
    GPUs, which create links below /dev/dri.
    """
    rest = beyond(base, common)
    real: dict[str, list[str]] = {}
    mounts = _covered(rest, grant.files.libraries, real)
    if real:  # Only this GPU has this library of the driver.
        known: dict[str, list[str]] = {}
        _covered(common, grant.files.libraries, known)
        everywhere = {name: known.get(name, []) + found for name, found in real.items()}
        mounts += _real_ones(grant.files.libraries, everywhere)
    edits = {
        **rest,
        "mounts": [*mounts, *_region(grant)],
        "hooks": [*_allowed(rest), *_wall(grant)],
    }
    return _specification(KIND, version, _device(nonce, version, grant), edits)


def _specification(
    kind: str, version: tuple[int, int, int], device: Mapping[str, Any], edits: Edits
) -> dict[str, Any]:
    given = {key: list(value) if key in LISTS else value for key, value in edits.items() if value}
    return {
        "cdiVersion": dotted(version),
        "kind": kind,
        "devices": [{**device, "containerEdits": given}],
    }


def _device(nonce: str, version: tuple[int, int, int], grant: GrantMounts) -> dict[str, Any]:
    check_nonce(nonce)
    device: dict[str, Any] = {"name": nonce}
    if version >= ANNOTATED_VERSION:
        device["annotations"] = {
            f"sluice.dev/{name}": value
            for name, value in (
                ("grant", grant.grant),
                ("pod-uid", grant.pod_uid),
                ("pod", f"{grant.namespace}/{grant.pod}" if grant.pod else ""),
                ("container", grant.container),
            )
            if value
        }
    return device


def _covered(
    base: Edits, libraries: Sequence[DriverLibrary], real: dict[str, list[str]]
) -> list[Mapping[str, Any]]:
    """The driver's mounts with ours in place of its libraries; their own host paths are added to
    `real`."""
    mounts: list[Mapping[str, Any]] = []
    for mount in base.get("mounts") or ():
        library = _library_of(mount, libraries)
        if library is None:
            mounts.append(mount)
            mounts += _inside(mount, libraries, real)
        else:
            real.setdefault(library.name, []).append(mount["hostPath"])
            mounts.append({**mount, "hostPath": library.shim_path})
    return mounts


def _real_ones(
    libraries: Sequence[DriverLibrary], real: Mapping[str, Sequence[str]]
) -> list[Mapping[str, Any]]:
    return [
        _bind(_kept(library, real[library.name]), library.kept_path)
        for library in libraries
        if library.name in real
    ]


def _region(grant: GrantMounts) -> list[Mapping[str, Any]]:
    # The region is read-only except the usage page, which the tenant writes: a container's root
    # must not change what the daemon stores beside it. A socket can be connected to through a
    # read-only mount.
    usage = posixpath.join(grant.container_dir, posixpath.basename(grant.usage_path))
    return [
        _bind(grant.region_dir, grant.container_dir, _REGION_RO),
        _bind(grant.usage_path, usage, _REGION_RW),
    ]


def _wall(grant: GrantMounts) -> list[Mapping[str, Any]]:
    """A hook that reports the container's new cgroup to the daemon, in the host's namespaces: the
    driver's limit is set on that cgroup only."""
    if not grant.wall_socket or not grant.files.hook_path:
        return []
    name = posixpath.basename(grant.files.hook_path)
    must = "required" if grant.wall_required else "optional"
    return [
        {
            "hookName": "createRuntime",
            "path": grant.files.hook_path,
            "args": [name, "wall", grant.wall_socket, grant.grant, must],
        }
    ]


def _library_of(
    mount: Mapping[str, Any], libraries: Sequence[DriverLibrary]
) -> DriverLibrary | None:
    """The library of which this mount provides a file, in whatever version."""
    names = {posixpath.basename(mount["hostPath"]), posixpath.basename(mount["containerPath"])}
    for library in libraries:
        stem = _stem(library.name)
        if mount["hostPath"] in library.found_as or any(_named(name, stem) for name in names):
            return library
    return None


def _inside(
    mount: Mapping[str, Any], libraries: Sequence[DriverLibrary], real: dict[str, list[str]]
) -> list[Mapping[str, Any]]:
    """Mounts over the driver's libraries inside a directory that is mounted as a whole."""
    above = mount["hostPath"].rstrip("/") + "/"
    found = []
    for library in libraries:
        for path in library.found_as:
            if path.startswith(above):
                inside = posixpath.join(mount["containerPath"], path[len(above) :])
                found.append(_bind(library.shim_path, inside))
                real.setdefault(library.name, []).append(path)
    return found


def _kept(library: DriverLibrary, mounted: Sequence[str]) -> str:
    """Host path of the real library as the runtime finds it. If the daemon sees another root than
    the host, only the specification has it."""
    if library.host_path in mounted:
        return library.host_path
    wide = [path for path in mounted if not any(part in path for part in _NARROW)]
    return (wide or list(mounted))[0]


def _allowed(base: Edits) -> list[Mapping[str, Any]]:
    """The driver's hooks that are copied: all but the one for forward compatibility."""
    return [hook for hook in base.get("hooks") or () if COMPAT_HOOK not in (hook.get("args") or ())]


def _bind(
    host_path: str, container_path: str, options: Sequence[str] = _READ_ONLY
) -> Mapping[str, Any]:
    return {"hostPath": host_path, "containerPath": container_path, "options": list(options)}


def _stem(name: str) -> str:
    return name[: name.index(".so") + len(".so")]


def _named(name: str, stem: str) -> bool:
    """True for libcuda.so, libcuda.so.1 and libcuda.so.570.86; False for libcudart.so."""
    return name == stem or name.startswith(stem + ".")


# --- answers to Allocate --------------------------------------------------------------------------


def by_cri(nonce: str, driver: str) -> ContainerAnswer:
    """Strategy cdi-cri: the kubelet passes CDI names in a field of their own (1.29 and later)."""
    return ContainerAnswer(cdi_devices=device_names(nonce, driver))


def by_annotation(nonce: str, driver: str) -> ContainerAnswer:
    """Strategy cdi-annotations: the same names in one annotation, for older kubelets."""
    names = ",".join(device_names(nonce, driver))
    return ContainerAnswer(annotations={f"cdi.k8s.io/sluice_{nonce}": names})


def by_environment(nonce: str, gpus: Sequence[GpuUuid], links_dir: str) -> ContainerAnswer:
    """Strategy envvar, for runtimes without CDI.

    The toolkit's runtime class injects the driver because of NVIDIA_VISIBLE_DEVICES; our preloaded
    library and the region are plain mounts of the links at `links_dir`/nonce, which exist when the
    container starts. The image's own /etc/ld.so.preload is replaced, and the GPUs cannot change any
    more. Raises ValueError without a GPU.
    """
    if not gpus:
        raise ValueError("no GPU is named")
    library, preload, region, usage = (
        posixpath.join(links_dir, check_nonce(nonce), name) for name in LINKED
    )
    return ContainerAnswer(
        environment={"NVIDIA_VISIBLE_DEVICES": ",".join(gpus)},
        mounts=(
            ContainerMount(LIBRARY_PATH, library),
            ContainerMount(PRELOAD_FILE, preload),
            ContainerMount("/run/sluice/grant", region),
            ContainerMount("/run/sluice/grant/usage.shm", usage, read_only=False),
        ),
    )


def links(nonce: str, grant: GrantMounts) -> dict[str, str]:
    """Targets of the mounts of `by_environment`, by name.

    Raises ValueError if the grant is on other GPUs than Allocate answered: the container would see
    GPUs without limits.
    """
    check_nonce(nonce)
    if set(grant.gpus) != set(grant.counted_gpus):
        raise ValueError(
            f"the grant is on {', '.join(grant.gpus)}, but with strategy envvar the container was"
            f" given {', '.join(grant.counted_gpus) or 'none'} when it was admitted; strategy"
            " cdi-cri can follow"
        )
    if not grant.files.preload_list_path:
        raise ValueError("ld.so.preload is not among our files: install the package again")
    found = (
        grant.files.preload_path,
        grant.files.preload_list_path,
        grant.region_dir,
        grant.usage_path,
    )
    return dict(zip(LINKED, found, strict=True))
