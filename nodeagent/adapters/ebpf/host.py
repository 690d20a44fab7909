"""Requirements of eBPF on this host, and how to meet them: checked before the child is started, and
shown by `sluice doctor`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nodeagent import native
from nodeagent.adapters.ebpf.kernel import UPROBE_TYPE, LibbpfMissing, load_libbpf
from nodeagent.adapters.ebpf.loaders.bcc import DIST_PACKAGES
from nodeagent.adapters.ebpf.loaders.choose import AUTO, BCC, NOT_BUILT
from nodeagent.adapters.ebpf.loaders.headers import kernel_headers
from nodeagent.adapters.ebpf.loaders.programs import pid_namespace
from nodeagent.adapters.processes.cgroups import unified_root
from nodeagent.ports.views import Finding

OLDEST: Final = (5, 15)
"""Oldest supported kernel. Ring buffers (5.8) and cgroup ids in cgroup/dev programs are used,
bpf_link for perf events is not; 5.15 is Ubuntu 22.04's. Before 6.1 only the prebuilt programs load,
see nodeagent/bpf/dialect.h."""
CAP_SYS_ADMIN: Final = 21
_BCC: Final = {
    "debian": "apt install python3-bpfcc",
    "ubuntu": "apt install python3-bpfcc",
    "fedora": "dnf install python3-bcc",
    "rhel": "dnf install python3-bcc",
    "suse": "zypper install python3-bcc",
}
_LIBBPF: Final = {
    "debian": "apt install libbpf1",
    "ubuntu": "apt install libbpf1 (22.04: libbpf0)",
    "fedora": "dnf install libbpf",
    "rhel": "dnf install libbpf",
    "suse": "zypper install libbpf1",
}
_HEADERS: Final = {
    "debian": "apt install linux-headers-$(uname -r)",
    "ubuntu": "apt install linux-headers-$(uname -r)",
    "fedora": "dnf install kernel-devel-$(uname -r)",
    "rhel": "dnf install kernel-devel-$(uname -r)",
    "suse": "zypper install kernel-default-devel",
}
WITHOUT: Final = (
    "without it unmanaged GPU processes are not detected, `sluice trace` does not work and"
    " launches are not audited; grants and limits still work"
)


def missing(loader: str = AUTO, prebuilt: Path | None = None) -> list[Finding]:
    """Findings for missing requirements; empty if the child may be started. Cheap: nothing is
    compiled or loaded. `prebuilt` is the directory of the programs built ahead of time; None is
    this installation's."""
    found = []
    if not _may_load():
        found.append(
            Finding(
                "ebpf",
                "warning",
                "not permitted to load BPF programs",
                f"run the daemon as root or with CAP_SYS_ADMIN; {WITHOUT}",
            )
        )
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    if release < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        found.append(
            Finding(
                "ebpf kernel",
                "warning",
                f"Linux {platform.release()} is older than {oldest}",
                f"run a newer kernel; {WITHOUT}",
            )
        )
    try:
        load_libbpf()
    except LibbpfMissing as error:
        found.append(
            Finding("ebpf libbpf", "warning", str(error), f"{_advice(_LIBBPF)}; {WITHOUT}")
        )
    file = prebuilt or native.locate().bpf_object
    if loader == BCC:
        return found + _bcc_lacks()
    if not file.is_file():
        lacks = _bcc_lacks() if loader == AUTO else []
        if lacks or loader != AUTO:
            found += [_not_built(file), *lacks]
    return found


def _not_built(file: Path) -> Finding:
    return Finding(
        "ebpf prebuilt",
        "warning",
        NOT_BUILT.format(path=file),
        "install the package of this version, which has them; in a checkout, as root: apt install"
        f" clang libbpf-dev, then make clean build; {WITHOUT}",
    )


def _bcc_lacks() -> list[Finding]:
    found = []
    if not _has_bcc():
        found.append(
            Finding(
                "ebpf bcc",
                "warning",
                "Python's bcc was not found",
                f"{_advice(_BCC)}; {WITHOUT}",
            )
        )
    if kernel_headers() is None:
        build = f"/lib/modules/{platform.release()}/build"
        found.append(
            Finding(
                "ebpf headers",
                "warning",
                f"no kernel headers at {build}, which bcc compiles against",
                f"{_advice(_HEADERS)}; for a kernel without a package, those of another version"
                f" will do: link {build} and {build.removesuffix('build')}source to them, see"
                f" docs/node/telemetry.md; {WITHOUT}",
            )
        )
    return found


def narrowed() -> list[Finding]:
    """Findings for functions that are limited although the programs run."""
    found = []
    if not UPROBE_TYPE.exists():
        found.append(
            Finding(
                "ebpf uprobes",
                "warning",
                "this kernel has no uprobes (CONFIG_UPROBE_EVENTS)",
                "launches are neither traced nor audited; run a kernel of your distribution",
            )
        )
    if unified_root() is None:
        found.append(
            Finding(
                "ebpf cgroup2",
                "warning",
                "cgroup2 is not mounted",
                "opens of GPUs are not seen; boot with systemd.unified_cgroup_hierarchy=1",
            )
        )
    if pid_namespace() is not None:
        found.append(
            Finding(
                "ebpf pid namespace",
                "warning",
                "the daemon is in a PID namespace of its own",
                "processes in other PID namespaces, so in containers, are not detected, and Linux"
                " 6.10 is required; run it in the host's PID namespace (hostPID: true)",
            )
        )
    return found


def _has_bcc() -> bool:
    return (
        importlib.util.find_spec("bcc") is not None
        or (DIST_PACKAGES / "bcc" / "__init__.py").is_file()
    )


def _may_load() -> bool:
    """True if the process has the capabilities. CAP_BPF and CAP_PERFMON load most of it; uprobes of
    other users' files and bpffs need CAP_SYS_ADMIN, which the unit grants."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        return bool(libc.prctl(23, CAP_SYS_ADMIN, 0, 0, 0) == 1)  # PR_CAPBSET_READ
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False


def _advice(by_distribution: Mapping[str, str]) -> str:
    try:
        release = Path("/etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        release = ""
    known = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    names = f"{known.get('ID', '')} {known.get('ID_LIKE', '')}".replace('"', "").split()
    for name in names:
        if name in by_distribution:
            return by_distribution[name]
    return by_distribution["debian"]
