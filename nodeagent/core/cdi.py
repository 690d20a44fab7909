"""The CDI specification of one grant, as a value: the installed driver's edits for its GPUs, with
our libraries in the place of the driver's and the grant's region.

What a driver needs in a container (nodes, libraries, hooks) is known to `nvidia-ctk cdi generate`
and changes with every release, so it is copied from the `nvidia.com/gpu` specification of this
host and never invented. Two things differ: every `libcuda.so*` and `libnvidia-ml.so*` becomes
ours, the real one moves to /run/sluice/driver, and the hook that would put the image's own
forward-compatible libcuda in front is left out. Nothing here is a limit; limits are in the
region. Source: the Container Device Interface specification 0.5.0 and later.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodeagent.core.cdi_base import KIND as BASE_KIND
from nodeagent.core.cdi_base import LISTS, Edits, dotted
from nodeagent.kubelet_ports import NONCE
from nodeagent.ports import ContainerAnswer, ContainerMount, DriverLibrary, GrantMounts
from nodeagent.units import GpuUuid

KIND: Final = "sluice.dev/grant"
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


def settles_s(directory_bytes: int) -> float:
    """Until the runtime can be asked for a file that was renamed just now, in s."""
    return SETTLES_S + directory_bytes * SETTLES_S_PER_BYTE


def device_name(nonce: str) -> str:
    """As the kubelet and the runtime name it."""
    return f"{KIND}={check_nonce(nonce)}"


# --- our specification ----------------------------------------------------------------------------


def document(
    nonce: str, base: Edits, version: tuple[int, int, int], grant: GrantMounts
) -> dict[str, Any]:
    """The specification with one device, the nonce. Raises ValueError when the driver's edits
    have no libcuda: then a container would have a GPU and no limits."""
    check_nonce(nonce)
    edits = {key: list(value) if key in LISTS else value for key, value in base.items()}
    edits["mounts"] = _mounts(list(base.get("mounts") or ()), grant)
    edits["hooks"] = _hooks(list(base.get("hooks") or ()), grant)
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
    device["containerEdits"] = {key: value for key, value in edits.items() if value}
    return {"cdiVersion": dotted(version), "kind": KIND, "devices": [device]}


def _mounts(base: list[Mapping[str, Any]], grant: GrantMounts) -> list[Mapping[str, Any]]:
    mounts: list[Mapping[str, Any]] = []
    real: dict[str, list[str]] = {}
    for mount in base:
        library = _library_of(mount, grant.libraries)
        if library is None:
            mounts.append(mount)
            mounts += _inside(mount, grant.libraries, real)
        else:
            real.setdefault(library.name, []).append(mount["hostPath"])
            mounts.append({**mount, "hostPath": library.shim_path})
    if not any(name.startswith(DRIVER_STEM) for name in real):
        raise ValueError(
            f"the CDI specification of {BASE_KIND} mounts no {DRIVER_STEM} that Sluice knows of"
            " (looked for: "
            + (", ".join(one.host_path for one in grant.libraries) or "none was found")
            + "), so a container would have the GPU without limits: is it of another driver"
            " version? generate it again with nvidia-ctk cdi generate"
        )
    for library in grant.libraries:
        if library.name in real:
            mounts.append(_bind(_kept(library, real[library.name]), library.kept_path))
    mounts.append(_bind(grant.preload_path, LIBRARY_PATH))
    if not grant.hook_path:
        if not grant.preload_list_path:
            raise ValueError("neither the container hook nor ld.so.preload is among our files")
        mounts.append(_bind(grant.preload_list_path, PRELOAD_FILE))
    # Read-only as a whole, the usage page alone is the tenant's: a container's root must not
    # touch what the daemon keeps beside it. A socket is connected to through a read-only mount.
    usage = posixpath.join(grant.container_dir, posixpath.basename(grant.usage_path))
    mounts.append(_bind(grant.region_dir, grant.container_dir, _REGION_RO))
    mounts.append(_bind(grant.usage_path, usage, _REGION_RW))
    return mounts


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


def _hooks(base: list[Mapping[str, Any]], grant: GrantMounts) -> list[Mapping[str, Any]]:
    hooks = [hook for hook in base if COMPAT_HOOK not in (hook.get("args") or ())]
    if grant.hook_path:
        hooks.append(
            {
                "hookName": "createContainer",
                "path": grant.hook_path,
                "args": [posixpath.basename(grant.hook_path), "preload", LIBRARY_PATH],
            }
        )
    return hooks


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


def by_cri(nonce: str) -> ContainerAnswer:
    """Strategy cdi-cri: the kubelet passes the name on in a field of its own (1.29 and later)."""
    return ContainerAnswer(cdi_devices=(device_name(nonce),))


def by_annotation(nonce: str) -> ContainerAnswer:
    """Strategy cdi-annotations: the same name as an annotation, for older kubelets."""
    return ContainerAnswer(annotations={f"cdi.k8s.io/sluice_{nonce}": device_name(nonce)})


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
    if not grant.preload_list_path:
        raise ValueError("ld.so.preload is not among our files: install the package again")
    found = (grant.preload_path, grant.preload_list_path, grant.region_dir, grant.usage_path)
    return dict(zip(LINKED, found, strict=True))
