#!/usr/bin/python3 -I
"""`sluice-sim-node`: makes this machine a node with simulated GPUs, as containers see one.

`up GPUS` installs what a GPU node has and this one lacks: the driver's libraries at one path, the
state that all of them share, and a CDI specification of kind nvidia.com/gpu that gives a container
the libraries and a node of each of its GPUs. `down` removes all of it, `status` lists the GPUs.
Sluice does not distinguish simulated GPUs; it is the same daemon with the same settings.

It refuses on a machine with a real driver: a second specification of that kind would give simulated
libraries to programs that need the card. It does not remove GPUs while a program uses them. Both
errors name the remedy. Every command is idempotent.

Standard library only: it runs in an init container, and on a machine without other parts of Sluice.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

KIND: Final = "nvidia.com/gpu"
SPEC: Final = "sluice-sim.json"
"""Name of the specification in the CDI directory, used by no other program."""
LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
JOB: Final = "tenant"
"""A program that uses a GPU, for containers of any image: /usr/bin/sluice-sim-job in them."""
INSIDE: Final = "/usr/lib/x86_64-linux-gnu"
INSIDE_BY_MACHINE: Final = {"aarch64": "/usr/lib/aarch64-linux-gnu"}
"""Directory that an image's loader searches: Debian's, which other images search too once a runtime
has run ldconfig. The job finds the library there by LD_LIBRARY_PATH in any case."""
FILE_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
STATE_OPTIONS: Final = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")
KIND_LINE: Final = re.compile(r"""(?m)^[ \t]*["']?kind["']?[ \t]*:[ \t]*["']?([^"'\s,#]+)""")

EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2


class Refused(Exception):
    """The command is refused; the text has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Place:
    """Paths on the host, which are the same in the container that runs this."""

    libraries: Path
    state: Path
    cdi: Path
    static_cdi: Path
    """/etc/cdi: read, never written to."""
    proc: Path
    sys: Path
    package: Path
    """The package's directory, from which the libraries are copied."""

    @property
    def spec(self) -> Path:
        return self.cdi / SPEC

    @property
    def wanted(self) -> Path:
        return self.libraries / "gpus"


# --- reasons to refuse ---


def real_driver(place: Place) -> str:
    """Evidence of a real driver on this machine; empty if there is none."""
    for path in (place.proc / "driver/nvidia/version", place.sys / "module/nvidia"):
        if path.exists():
            return f"{path} is there: this node has a real NVIDIA driver"
    for directory in (place.static_cdi, place.cdi):
        for path in sorted(directory.glob("*")) if directory.is_dir() else []:
            if path.name != SPEC and path.suffix in (".json", ".yaml") and _of_kind(path):
                return f"{path} already describes GPUs of kind {KIND}"
    return ""


def _of_kind(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False  # The runtime ignores it as well.
    if path.suffix == ".json":
        with contextlib.suppress(ValueError):
            document = json.loads(text)
            return isinstance(document, dict) and document.get("kind") == KIND
    return KIND in KIND_LINE.findall(text)


def users(state: Path) -> bool:
    """True if a program uses a GPU of this state: each holds a lock on a byte of one file for as
    long as it lives (simgpu/node/state.c)."""
    path = state / "locks"
    if not path.exists():
        return False
    query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with path.open("r+b") as file:
        answer = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, query))
    return bool(answer[0] != fcntl.F_UNLCK)


# --- installing ---


def up(place: Place, gpus: str, node: str = "") -> list[str]:
    """Install simulated GPUs and return their UUIDs, which the node's name is part of. Raises
    Refused."""
    found = real_driver(place)
    if found:
        raise Refused(
            f"{found}. Simulated GPUs are for nodes without one: leave simulatedGpus out of the"
            " chart's values, or keep the agent off this node by agent.nodeSelector"
        )
    change = _read(place.wanted) not in (None, gpus)
    if change:
        if users(place.state):
            raise Refused(
                f"this node has {_read(place.wanted)} and not {gpus}, and programs use them: end"
                " the pods with simulated GPUs first, then start this again"
            )
        shutil.rmtree(place.state, ignore_errors=True)
    place.libraries.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in (*LIBRARIES, JOB):
        _copy(place.package / name, place.libraries / name)
    place.state.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        uuids = listed(place, gpus, node)
        for name in ("state", "locks"):  # any user in a container may use a GPU
            (place.state / name).chmod(0o666)
        _write(place.wanted, gpus)
        place.cdi.mkdir(mode=0o755, parents=True, exist_ok=True)
        _write(place.spec, json.dumps(specification(place, uuids), indent=1) + "\n")
    except Refused:
        if not users(place.state):
            down(place)
        raise
    return uuids


def listed(place: Place, gpus: str, node: str) -> list[str]:
    """UUIDs from the library, in a separate process, because it keeps the state mapped. Raises
    Refused."""
    done = subprocess.run(
        [sys.executable, "-I", os.path.abspath(__file__), "--list", str(place.libraries)],
        env={
            "SLUICE_SIM_DIR": str(place.state),
            "SLUICE_SIM_GPUS": gpus,
            "SLUICE_SIM_SEED": node,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise Refused(lines[-1] if lines else f"the simulator ended with status {done.returncode}")
    return done.stdout.split()


def print_uuids(libraries: Path) -> int:
    nvml = ctypes.CDLL(str(libraries / "libnvidia-ml.so.1"))
    if nvml.nvmlInit_v2() != 0:
        return EXIT_REFUSED
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return EXIT_REFUSED
    for index in range(count.value):
        device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
            return EXIT_REFUSED
        if nvml.nvmlDeviceGetUUID(device, uuid, 96) != 0:
            return EXIT_REFUSED
        print(uuid.value.decode())
    return 0


def specification(place: Place, uuids: Sequence[str]) -> dict[str, Any]:
    """The CDI document, as NVIDIA's tool writes one: each GPU by index and by UUID, and all. Which
    GPUs a program sees follows from the nodes it was given, as with a driver."""
    inside = INSIDE_BY_MACHINE.get(os.uname().machine, INSIDE)
    mounts = [
        *((place.libraries / name, f"{inside}/{name}", FILE_OPTIONS) for name in LIBRARIES),
        (place.libraries / JOB, "/usr/bin/sluice-sim-job", FILE_OPTIONS),
        (place.state, str(place.state), STATE_OPTIONS),
    ]
    nodes = [[_node(f"/dev/nvidia{index}")] for index in range(len(uuids))]
    return {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "containerEdits": {
            "env": [
                f"SLUICE_SIM_DIR={place.state}",
                "SLUICE_SIM_NODES=/dev",
                "NVIDIA_VISIBLE_DEVICES=void",
            ],
            "deviceNodes": [_node("/dev/nvidiactl")],
            "mounts": [
                {"hostPath": str(host), "containerPath": path, "options": list(options)}
                for host, path, options in mounts
            ],
        },
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": nodes[index]}}
            for index, uuid in enumerate(uuids)
            for name in (str(index), uuid)
        ]
        + [{"name": "all", "containerEdits": {"deviceNodes": [n for one in nodes for n in one]}}],
    }


def _node(path: str) -> dict[str, str]:
    return {"path": path, "hostPath": "/dev/null"}


def down(place: Place) -> None:
    """Remove simulated GPUs. Raises Refused."""
    if users(place.state):
        raise Refused(
            "programs use the simulated GPUs: end their pods first, then start this again"
        )
    place.spec.unlink(missing_ok=True)
    for directory in (place.state, place.libraries):
        if not directory.is_dir():
            continue
        # In a container the directory itself may be a mount, which is removed with the container.
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        with contextlib.suppress(OSError):
            directory.rmdir()


def status(place: Place) -> dict[str, Any]:
    gpus = _read(place.wanted)
    return {
        "gpus": gpus or "",
        "specification": str(place.spec) if place.spec.exists() else "",
        "in_use": users(place.state),
        "real_driver": real_driver(place),
    }


# --- files ---


def _copy(source: Path, target: Path) -> None:
    """Replace the file only if it differs: a running program has the old one mapped."""
    data = source.read_bytes()
    if target.exists() and target.read_bytes() == data:
        return
    with _fresh(target) as file:
        file.write(data)


def _write(target: Path, text: str) -> None:
    if _read(target) == text:
        return
    with _fresh(target, 0o644) as file:
        file.write(text.encode())


@contextlib.contextmanager
def _fresh(target: Path, mode: int = 0o755) -> Iterator[Any]:
    # The name begins with a dot and has no suffix: the runtime does not read it half written.
    fd, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


# --- the command ---


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sluice-sim-node",
        description="Make this machine a node with simulated GPUs for containers.",
    )
    parser.add_argument("--libraries", type=Path, default=Path("/var/lib/sluice-sim"))
    parser.add_argument("--state", type=Path, default=Path("/run/sluice-sim"))
    parser.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"))
    parser.add_argument("--static-cdi-dir", type=Path, default=Path("/etc/cdi"))
    parser.add_argument("--package", type=Path, default=Path("/usr/lib/sluice-sim"))
    parser.add_argument("--proc", type=Path, default=Path("/proc"), help=argparse.SUPPRESS)
    parser.add_argument("--sys", type=Path, default=Path("/sys"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--node",
        default="",
        metavar="NAME",
        help="make UUIDs that no node of another name has; for nodes of one cluster",
    )
    parser.add_argument("--list", type=Path, help=argparse.SUPPRESS)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs.add_parser("up", help="install simulated GPUs").add_argument(
        "gpus", metavar="GPUS", help="as in 2xh100-80gb or h100-80gb,a100-40gb"
    )
    verbs.add_parser("down", help="remove them")
    verbs.add_parser("status", help="show what is installed, as JSON; exit status 1: nothing")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.list:
        return print_uuids(options.list)
    place = Place(
        options.libraries,
        options.state,
        options.cdi_dir,
        options.static_cdi_dir,
        options.proc,
        options.sys,
        options.package,
    )
    try:
        if options.verb == "up":
            for uuid in up(place, options.gpus, options.node):
                print(uuid)
        elif options.verb == "down":
            down(place)
        elif options.verb == "status":
            found = status(place)
            print(json.dumps(found, indent=1))
            return 0 if found["specification"] else EXIT_REFUSED
        else:
            parser.print_help(sys.stderr)
            return EXIT_USAGE
    except (Refused, OSError, subprocess.TimeoutExpired) as error:
        print(f"sluice-sim-node: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
