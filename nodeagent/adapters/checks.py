"""Properties of this host: the checks of `sluice doctor`, and the search for the real driver."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodeagent.adapters.host import elf
from nodeagent.adapters.processes.pidfd import peer_pidfd_supported
from nodeagent.adapters.region.mounts import region_mounts
from nodeagent.native import NativeFiles
from nodeagent.ports.views import Finding

DRIVER = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
MARKER = "sluice_interposer_major"
"""A symbol that only our libraries export; see interpose/attach/reallib.c."""
_DEFAULT_DIRS = (
    f"/usr/lib/{platform.machine()}-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/lib",
    f"/usr/lib/{platform.machine()}-linux-gnu/nvidia/current",  # Debian's alternatives
    "/usr/lib64/nvidia",
    "/usr/local/nvidia/lib64",  # NVIDIA's container images search here.
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",  # NixOS
    "/usr/lib/wsl/lib",
    "/run/sluice/driver",  # In a grant the real library is here, and ours is elsewhere.
)
"""The loader's own directories, and directories of drivers that its cache may lack."""


def find_library(
    name: str, environment: Mapping[str, str], not_in: Sequence[Path] = ()
) -> Path | None:
    """The file that the dynamic loader would load as `name`: from LD_LIBRARY_PATH, its cache, its
    default directories."""
    return _first(library_directories(environment, name), name, not_in)


def library_directories(environment: Mapping[str, str], name: str = "") -> list[str]:
    """The dynamic loader's directories in its order; of its cache only those with `name`, or with
    any GPU library."""
    path = environment.get("LD_LIBRARY_PATH", "")
    # An empty entry is the working directory.
    given = [d or "." for d in re.split("[:;]", path)] if path else []
    try:
        listing = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=5, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        listing = ""
    wanted = (name,) if name else (DRIVER, NVML)
    cached = [
        os.path.dirname(line.rpartition(" => ")[2])
        for line in listing.splitlines()
        if line.strip().startswith(wanted)
    ]
    return list(dict.fromkeys([*given, *cached, *_DEFAULT_DIRS]))


def _first(directories: Sequence[str], name: str, not_in: Sequence[Path]) -> Path | None:
    refused = [path.resolve() for path in not_in]
    for directory in directories:
        path = Path(directory).absolute() / name
        if path.is_file() and path.parent.resolve() not in refused and is_driver(path):
            return path
    return None


def is_driver(path: Path) -> bool:
    """True if the library is for this machine's programs and not a copy of ours, which this process
    finds in a grant."""
    return elf.loadable(path) and not is_ours(path)


def is_ours(path: Path) -> bool:
    try:
        return MARKER in elf.exports(path)
    except (elf.NotElf, OSError, ValueError):
        return False  # The loader reports what is wrong with it.


def program_name(pid: int) -> str:
    """The program's name as the kernel has it; empty if the process is gone or hidden."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def mps_control(environment: Mapping[str, str]) -> Path:
    """The pipe of an MPS control daemon, which starts a server with the first client."""
    return Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps") / "control"


def _mps(environment: Mapping[str, str]) -> list[Finding]:
    if not mps_control(environment).exists():
        return []
    directory = mps_control(environment).parent
    return [
        Finding(
            "mps control",
            "warning",
            f"the control daemon of an MPS server has its pipes in {directory}",
            "programs that find it become clients of one shared context, which grants do not"
            " divide; end it (`echo quit | nvidia-cuda-mps-control`), set"
            " CUDA_MPS_PIPE_DIRECTORY to an empty directory for programs in grants, or keep its"
            " clients in one trusted group (docs/node/trusted-groups.md)",
        )
    ]


def host_findings(
    native: NativeFiles,
    environment: Mapping[str, str],
    runtime_dir: Path,
    nvml_library: str = "",
) -> list[Finding]:
    """Findings that need no running daemon."""
    found = [_kernel(), *_peer_credentials(), _native(native), *_mps(environment)]
    driver = find_library(DRIVER, environment, [native.shim_dir])
    if driver is None:
        found.append(
            Finding(
                "driver",
                "missing",
                f"{DRIVER} was not found",
                "install the NVIDIA driver (Debian: apt install nvidia-driver libcuda1), or name"
                " it in SLUICE_DRIVER or LD_LIBRARY_PATH",
            )
        )
    else:
        found.append(Finding("driver", "ok", str(driver)))
    nvml = Path(nvml_library) if "/" in nvml_library else None
    nvml = nvml or find_library(nvml_library or NVML, environment, [native.shim_dir])
    if nvml is None or not nvml.is_file():
        found.append(
            Finding(
                "nvml",
                "missing",
                f"{nvml or NVML} was not found",
                "it comes with the driver (Debian: apt install libnvidia-ml1); [nvml] library names"
                " another",
            )
        )
    else:
        found.append(Finding("nvml", "ok", str(nvml)))
    found.append(_tmpfs(runtime_dir))
    return found


def _kernel() -> Finding:
    release = platform.release()
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        return Finding(
            "kernel", "missing", f"Linux {release} has no pidfd_open", "Linux 5.3 or later"
        )
    return Finding("kernel", "ok", f"Linux {release} with pidfd_open")


def _peer_credentials() -> list[Finding]:
    if peer_pidfd_supported():
        return [Finding("peer identity", "ok", "SO_PEERPIDFD")]
    return [
        Finding(
            "peer identity",
            "warning",
            "no SO_PEERPIDFD: processes are identified by pid and start time instead",
            "Linux 6.5 or later closes the remaining window",
        )
    ]


def _native(native: NativeFiles) -> Finding:
    missing = native.missing()
    if missing:
        names = ", ".join(str(path.relative_to(native.root)) for path in missing)
        return Finding(
            "native files",
            "missing",
            f"{names} not in {native.root}",
            "install the package again, or `make build` in a checkout; [paths] native names"
            " another place",
        )
    try:
        ctypes.CDLL(str(native.region_library))
    except OSError as error:
        return Finding(
            "native files", "missing", str(error), "built for another architecture: build again"
        )
    return Finding("native files", "ok", str(native.root))


def _tmpfs(runtime_dir: Path) -> Finding:
    if os.geteuid() != 0:
        return Finding(
            "tmpfs per grant",
            "warning",
            "not root: regions share one directory, for this user's programs only",
            "run the daemon as root: systemctl enable --now sluice",
        )
    if not runtime_dir.is_dir():
        return Finding("tmpfs per grant", "ok", f"{runtime_dir} is created when the daemon starts")
    why = region_mounts(runtime_dir).refusal(runtime_dir)
    if why is None:
        return Finding("tmpfs per grant", "ok", f"can be mounted below {runtime_dir}")
    return Finding(
        "tmpfs per grant",
        "warning",
        f"cannot mount below {runtime_dir}: {why}",
        "give the daemon CAP_SYS_ADMIN; without it regions share one directory",
    )
