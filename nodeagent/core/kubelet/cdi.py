"""The CDI specifications of grants, as values: the installed driver's edits for a grant's GPUs,
with our libraries in the place of the driver's and the grant's region.

There are two for each container: what all containers of the node have alike, under the name of the
driver's generation, and what is the grant's own, under its nonce. Answers to Allocate that name no
generation have both in the second.

What a driver needs in a container (nodes, libraries, hooks) is known to `nvidia-ctk cdi generate`
and changes with every release, so it is copied from the `nvidia.com/gpu` specification of this
host and never invented. Two things differ: every `libcuda.so*` and `libnvidia-ml.so*` becomes
ours, the real one moves to /run/sluice/driver, and the hook that would put the image's own
forward-compatible libcuda in front is left out. Nothing here is a limit; limits are in the
region. Source: the Container Device Interface specification 0.5.0 and later.
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
"""First version whose devices may carry annotations; older readers refuse the file for them."""
LIBRARY_PATH: Final = "/run/sluice/lib/libsluice.so"
"""Where the container sees the library that /etc/ld.so.preload names."""
PRELOAD_FILE: Final = "/etc/ld.so.preload"
DRIVER_STEM: Final = "libcuda.so"
COMPAT_HOOK: Final = "enable-cuda-compat"

SETTLES_S: Final = 0.025
"""From the renaming of a file until the runtime has it, in s, in an empty directory: many times
what its library needs, because a machine has other things to do."""
SETTLES_S_PER_BYTE: Final = 0.5e-6
"""The same for what lies in the directories: every change makes the library read everything again,
at 0.08 to 0.25 s of one core for a MB (tests/peers/test_cdi.py), and it may just have begun to."""

_READ_ONLY: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_REGION_RO: Final = ("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate")
_REGION_RW: Final = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")
_NARROW: Final = ("i386-linux-gnu", "lib32", "i686")
"""Parts of the paths of 32-bit libraries: they are covered too, but no 64-bit program can be
given one as the real driver."""

LINKED: Final = ("libsluice.so", "ld.so.preload", "grant", "usage.shm")
"""What strategy envvar finds by nonce, one symbolic link each."""


def check_nonce(nonce: str) -> str:
    """Raises ValueError for what is not a nonce: it becomes part of a file name."""
    if not NONCE.fullmatch(nonce):
        shown = "".join(c if c.isprintable() else "?" for c in nonce[:64])
        raise ValueError(f"{shown!r} is not a nonce of 32 lower-case hexadecimal digits")
    return nonce


def generation_of(edits: Edits, version: tuple[int, int, int]) -> str:
    """The name under which edits are given to containers that come from now on: others have
    another. An older name may come to stand for them too, when its own are no longer installed."""
    text = json.dumps([dotted(version), edits], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def settles_s(directory_bytes: int) -> float:
    """Until the runtime can be asked for a file that was renamed just now, in s."""
    return SETTLES_S + directory_bytes * SETTLES_S_PER_BYTE


def device_name(nonce: str) -> str:
    """As the kubelet and the runtime name it."""
    return f"{KIND}={check_nonce(nonce)}"


def driver_name(generation: str) -> str:
    return f"{DRIVER_KIND}={check_nonce(generation)}"


def device_names(nonce: str, driver: str) -> tuple[str, ...]:
    """Of one container, in the order in which their edits are to be made: the grant's own last."""
    return (*((driver_name(driver),) if driver else ()), device_name(nonce))


# --- our specification ----------------------------------------------------------------------------


def driver_edits(base: Edits, files: GivenFiles) -> Edits:
    """The driver's edits with our libraries in the place of its own. Complete in itself: whatever
    GPU is given beside it, our library is over the driver's. Raises ValueError when the driver's
    edits have no libcuda: then a container would have a GPU and no limits."""
    real: dict[str, list[str]] = {}
    mounts = _covered(base, files.libraries, real)
    if not any(name.startswith(DRIVER_STEM) for name in real):
        raise ValueError(
            f"the CDI specification of {BASE_KIND} mounts no {DRIVER_STEM} that Sluice knows of"
            " (looked for: "
            + (", ".join(one.host_path for one in files.libraries) or "none was found")
            + "), so a container would have the GPU without limits: is it of another driver"
            " version? generate it again with nvidia-ctk cdi generate"
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
    """The specification with one device, the generation."""
    check_nonce(generation)
    return _specification(DRIVER_KIND, version, {"name": generation}, edits)


def document(
    nonce: str, base: Edits, version: tuple[int, int, int], grant: GrantMounts
) -> dict[str, Any]:
    """The specification with one device, the nonce, that has everything. Raises ValueError as
    `driver_edits`."""
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
    """The specification with one device, the nonce, for a container that is given the driver's
    generation made of `common` as well: both together make what `document` makes of `base`. Our
    hook then runs before those of single GPUs, which make links below /dev/dri."""
    rest = beyond(base, common)
    real: dict[str, list[str]] = {}
    mounts = _covered(rest, grant.files.libraries, real)
    if real:  # a driver's library that only this GPU is given
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
    """The driver's mounts with ours for its libraries; `real` is told their own host paths."""
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
    # Read-only as a whole, the usage page alone is the tenant's: a container's root must not
    # touch what the daemon keeps beside it. A socket is connected to through a read-only mount.
    usage = posixpath.join(grant.container_dir, posixpath.basename(grant.usage_path))
    return [
        _bind(grant.region_dir, grant.container_dir, _REGION_RO),
        _bind(grant.usage_path, usage, _REGION_RW),
    ]


def _wall(grant: GrantMounts) -> list[Mapping[str, Any]]:
    """Tells the daemon when the container's cgroup is there, in the host's namespaces: a limit of
    the driver's is set on that cgroup and no other."""
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
    """The library of which this mount shows a file, under whatever version."""
    names = {posixpath.basename(mount["hostPath"]), posixpath.basename(mount["containerPath"])}
    for library in libraries:
        stem = _stem(library.name)
        if mount["hostPath"] in library.found_as or any(_named(name, stem) for name in names):
            return library
    return None


def _inside(
    mount: Mapping[str, Any], libraries: Sequence[DriverLibrary], real: dict[str, list[str]]
) -> list[Mapping[str, Any]]:
    """Mounts over the libraries within a directory that is mounted as a whole."""
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
    """The real one as the runtime finds it: where the daemon sees another root than the host has,
    only the specification knows."""
    if library.host_path in mounted:
        return library.host_path
    wide = [path for path in mounted if not any(part in path for part in _NARROW)]
    return (wide or list(mounted))[0]


def _allowed(base: Edits) -> list[Mapping[str, Any]]:
    """The driver's hooks."""
    return [hook for hook in base.get("hooks") or () if COMPAT_HOOK not in (hook.get("args") or ())]


def _bind(
    host_path: str, container_path: str, options: Sequence[str] = _READ_ONLY
) -> Mapping[str, Any]:
    return {"hostPath": host_path, "containerPath": container_path, "options": list(options)}


def _stem(name: str) -> str:
    return name[: name.index(".so") + len(".so")]


def _named(name: str, stem: str) -> bool:
    """libcuda.so, libcuda.so.1, libcuda.so.570.86; not libcudart.so."""
    return name == stem or name.startswith(stem + ".")


# --- what Allocate answers ------------------------------------------------------------------------


def by_cri(nonce: str, driver: str) -> ContainerAnswer:
    """Strategy cdi-cri: the kubelet passes names on in a field of its own (1.29 and later)."""
    return ContainerAnswer(cdi_devices=device_names(nonce, driver))


def by_annotation(nonce: str, driver: str) -> ContainerAnswer:
    """Strategy cdi-annotations: the same names in one annotation, for older kubelets."""
    names = ",".join(device_names(nonce, driver))
    return ContainerAnswer(annotations={f"cdi.k8s.io/sluice_{nonce}": names})


def by_environment(nonce: str, gpus: Sequence[GpuUuid], links_dir: str) -> ContainerAnswer:
    """Strategy envvar, for runtimes without CDI: the toolkit's runtime class brings the driver by
    NVIDIA_VISIBLE_DEVICES, our preloaded library and the region come as plain mounts of what is
    linked at `links_dir`/nonce when the container starts. The image's own /etc/ld.so.preload is
    replaced, and the GPUs are fixed here."""
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
    """What the mounts of `by_environment` lead to, by name. Raises ValueError where the grant is
    on other GPUs than Allocate answered: the container would see GPUs it has no limits on."""
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
