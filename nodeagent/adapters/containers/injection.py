"""How a program gets our libraries in the place of the driver's.

By mount, as root: in a mount namespace of the program's own our libcuda.so.1 is mounted over every
libcuda.so* that the loader would find, and the region in its fixed place. The program finds our
library by name, by path and with an empty environment.

By environment, for other users: LD_LIBRARY_PATH and LD_PRELOAD, which a program can change.
"""

from __future__ import annotations

import errno
import glob
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.adapters.checks import (
    DRIVER,
    NVML,
    find_library,
    is_ours,
    library_directories,
)
from nodeagent.adapters.host import mounts
from nodeagent.native import NativeFiles
from nodeagent.ports.views import Finding

FIXED_DIR: Final = Path("/run/sluice")
GRANT_DIR: Final = FIXED_DIR / "grant"
"""The directory in which the interposer looks first; see interpose/attach/settings.c."""
DRIVER_DIR: Final = FIXED_DIR / "driver"
"""The directory of the real libraries while ours are mounted over them."""
POLICY_FILE: Final = "policy.shm"
_ELSEWHERE: Final = (
    "/usr/local/cuda*/compat",  # Newer drivers' libraries for older kernels, in NVIDIA's images.
    "/usr/local/cuda*/lib64/stubs",
    "/usr/local/cuda*/targets/*/lib/stubs",
    f"/usr/lib/{platform.machine()}-linux-gnu/stubs",
    "/usr/lib/i386-linux-gnu",  # A 32-bit program finds no driver to load.
    "/usr/lib32",
)
"""Further places of libcuda.so*, found by path or by a program's own search path."""
_BY_VARIABLE: Final = {
    "CONDA_PREFIX": ("lib", "cuda-compat"),
    "CUDA_HOME": ("compat", "lib64/stubs"),
    "CUDA_PATH": ("compat", "lib64/stubs"),
    "TRITON_LIBCUDA_PATH": ("",),
}


@dataclass(frozen=True, slots=True)
class Cover:
    """One real library, all files by which it is found, and ours."""

    name: str
    real: Path
    found: tuple[Path, ...]
    ours: Path

    @property
    def kept(self) -> Path:
        return DRIVER_DIR / self.name


def find_driver(environment: Mapping[str, str], files: NativeFiles) -> tuple[str, str]:
    """Paths of the real libcuda.so.1 and libnvidia-ml.so.1; empty if the interposer should search
    itself. Raises FileNotFoundError if SLUICE_DRIVER names no file."""
    given = environment.get("SLUICE_DRIVER")
    if not given and (DRIVER_DIR / DRIVER).is_file():  # This process is in a grant itself.
        given = str(DRIVER_DIR / DRIVER)
    if given:
        path = Path(given).absolute()
        driver: Path | None = path / DRIVER if path.is_dir() else path
        if driver is None or not driver.is_file():
            raise FileNotFoundError(f"SLUICE_DRIVER: {driver} is not a file")
    else:
        driver = find_library(DRIVER, environment, [files.shim_dir])
    nvml = None
    if driver is not None and (driver.parent / NVML).is_file():
        nvml = driver.parent / NVML
    else:
        nvml = find_library(NVML, environment, [files.shim_dir])
    return str(driver or ""), str(nvml or "")


def covers(
    environment: Mapping[str, str], driver: str, nvml: str, files: NativeFiles
) -> list[Cover]:
    """The files over which our libraries are mounted, the given libraries first."""
    directories = [*library_directories(environment), *_elsewhere(environment)]
    made = []
    for name, given in ((DRIVER, driver), (NVML, nvml)):
        ours = files.shim_dir / name
        if not given or not ours.is_file():
            continue
        real = Path(given).resolve()
        found = dict.fromkeys([real, *_named_like(name, [*directories, real.parent])])
        shown = tuple(p for p in found if p.parent != DRIVER_DIR and not is_ours(p))
        made.append(Cover(name, real, shown, ours))
    return made


def _elsewhere(environment: Mapping[str, str]) -> list[str]:
    named = [
        os.path.join(environment[variable], part)
        for variable, parts in _BY_VARIABLE.items()
        if environment.get(variable)
        for part in parts
    ]
    return named + [place for pattern in _ELSEWHERE for place in sorted(glob.glob(pattern))]


def _named_like(name: str, directories: Sequence[str | Path]) -> list[Path]:
    """Real files behind `libcuda.so*`; links are followed, and each file is named once."""
    stem = name[: name.index(".so") + len(".so")]
    found = []
    for directory in dict.fromkeys(Path(d) for d in directories):
        try:
            names = sorted(entry for entry in os.listdir(directory) if entry.startswith(stem))
        except OSError:
            continue
        for entry in names:
            path = (directory / entry).resolve()
            if path.is_file():
                found.append(path)
    return found


def inject(found: Sequence[Cover], region: Path) -> None:
    """Change this process's view of the file system. Raises OSError; the process must not run the
    program then, because the change may be incomplete."""
    if not (region / POLICY_FILE).is_file():
        raise OSError(
            errno.ENOENT,
            f"{region} is not visible here: the host's mounts do not propagate into this"
            " namespace (is this a grant inside a grant?)",
        )
    for directory in (GRANT_DIR, DRIVER_DIR):
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    mounts.private_namespace()
    # Inside a grant the real ones are in DRIVER_DIR already, so they are held open while it is
    # covered.
    held = [os.open(cover.real, os.O_PATH | os.O_CLOEXEC) for cover in found]
    mounts.tmpfs(DRIVER_DIR, "size=64k,nr_inodes=16,mode=0755")
    for cover, descriptor in zip(found, held, strict=True):
        cover.kept.touch()
        mounts.bind(Path(f"/proc/self/fd/{descriptor}"), cover.kept, read_only=True)
        os.close(descriptor)
    for cover in found:
        for path in cover.found:
            mounts.bind(cover.ours, path, read_only=True)
    mounts.bind(region, GRANT_DIR)
    policy = GRANT_DIR / POLICY_FILE
    mounts.bind(policy, policy, read_only=True)


def possible() -> str | None:
    """Why programs cannot get a mount namespace; None if they can. Tried in a child process."""
    if os.geteuid() != 0:
        return "not root"
    child = os.fork()
    if child == 0:
        try:
            mounts.private_namespace()
            os._exit(0)
        except OSError as error:
            os._exit(min(error.errno or 1, 255))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if status == 0 else os.strerror(status)


def finding() -> Finding:
    """Doctor's finding on which injection `sluice run` uses here."""
    why = possible()
    if why is None:
        return Finding(
            "injection",
            "ok",
            "by mount: our libcuda is mounted over the driver's for the program and its children;"
            " its environment does not matter",
        )
    return Finding(
        "injection",
        "warning",
        f"by environment ({why}): a program that clears LD_LIBRARY_PATH and LD_PRELOAD, or loads"
        " the driver by its path, is outside its grant",
        "use `sluice run` as root, or the DaemonSet; see docs/security.md",
    )
