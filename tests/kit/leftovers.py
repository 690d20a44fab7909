"""Remains of a test run on the machine: processes, mounts, cgroups, pins, directories.

Only what is this run's own, so that several can share a machine: processes by a variable they inherit, directories
because they were made through `tempfile` here, and everything else because its name has one of those in it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from nodeagent.adapters.ebpf.pins import BPFFS, pins_of

MARK = f"TESTS_OF_RUN={os.getpid()}"
_made: list[str] = []
_mkdtemp = tempfile.mkdtemp


def watch() -> None:
    """Record the directories made from now on; call it once."""
    name, _, value = MARK.partition("=")
    os.environ[name] = value

    def mkdtemp(*arguments, **options):  # type: ignore[no-untyped-def]  # as tempfile's own
        _made.append(_mkdtemp(*arguments, **options))
        return _made[-1]

    tempfile.mkdtemp = mkdtemp


def left(temporary: str = "") -> list[str]:
    """One line for each thing; `temporary` is the directory pytest keeps on purpose: only its mounts count."""
    roots = [*_made, *([temporary] if temporary else [])]
    kept = f"{temporary}/" if temporary else "\0"
    found = [
        f"directory {path}" for path in _made if os.path.exists(path) and not path.startswith(kept)
    ]
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mount = line.split()[1]
        if any(mount.startswith(f"{root}/") for root in roots):
            found.append(f"mount {mount}")
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"):
        found += [f"cgroup {path}" for path in Path(root).glob(f"sluice-test-{os.getpid()}*")]
    found += [f"pins {path}" for path in BPFFS.glob(f"sluice-test-{os.getpid()}*")]
    found += [f"pins {pins(root)} of {root}" for root in _made if pins(root).exists()]
    return found + processes()


def pins(directory: str | Path) -> Path:
    """Pins of the daemon that runs in this directory."""
    return BPFFS / pins_of(Path(directory) / "run")


def processes() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            marked = MARK.encode() in (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # another user's, or gone
            continue
        # Python's own helper of multiprocessing ends with us.
        if marked and command and "multiprocessing.resource_tracker" not in command:
            found.append(f"process {entry.name}: {command[:200]}")
    return found


def clear(directory: Path) -> None:
    """Remove the mounts and pins in the kernel of grants that outlived the daemon in this
    directory, as they should, and of a daemon that was killed or still holds a process."""
    below = f"{directory}/"
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    mine = [mount for mount in mounts if mount.startswith(below)]
    if mine:
        os.spawnlp(os.P_WAIT, "umount", "umount", "--lazy", *reversed(mine))
    shutil.rmtree(pins(directory), ignore_errors=True)
