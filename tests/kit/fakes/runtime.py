"""A container runtime to test against: runs a command with the CDI devices, or with everything,
that the kubelet would hand over.

    python -m tests.kit.fakes.runtime run --cdi-dir D --device sluice.dev/grant=N -- COMMAND

The directories are read as the runtimes' library reads them, the edits are applied to a real
process in namespaces of its own. As root. Exit status: the command's; 125 when the container could
not be made, 127 when there is no such command.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nodeagent.adapters.containers.cdi_installed import DIRECTORIES
from tests.kit.fakes.cdi_cache import CdiCache, Unresolvable
from tests.kit.fakes.container import RUNTIME_FAILED, Container, Refused, Volume, run

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ANNOTATION: Final = "cdi.k8s.io/"
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"


def devices_of(answer: Mapping[str, Any]) -> list[str]:
    """The CDI devices of what the kubelet hands over: a field of its own, and annotations."""
    named = list(answer.get("cdi_devices") or ())
    for key, value in (answer.get("annotations") or {}).items():
        if key.startswith(ANNOTATION):
            named += [one.strip() for one in value.split(",")]
    return list(dict.fromkeys(named))


def toolkit_devices(environment: Mapping[str, str]) -> list[str]:
    """CDI devices that NVIDIA's own runtime class injects, from its environment variable."""
    visible = environment.get(VISIBLE, "")
    if visible in ("", "void", "none"):
        return []
    return [f"nvidia.com/gpu={one}" for one in visible.split(",")]


def volumes_of(answer: Mapping[str, Any]) -> list[Volume]:
    """Mounts of the kubelet's; a path that is not there becomes a directory, as in the CRI."""
    found = []
    for mount in answer.get("mounts") or ():
        host = Path(mount["host_path"])
        if not host.exists():
            host.mkdir(parents=True)
        found.append(
            Volume(str(host.resolve()), mount["container_path"], bool(mount.get("read_only", True)))
        )
    return sorted(found, key=lambda one: len(Path(one.container_path).parts))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        answer = _answer(options.answer)
        environment = {"PATH": PATH, "HOME": "/root"} | dict(answer.get("environment") or {})
        environment |= dict(options.env)
        names = [*options.device, *devices_of(answer)]
        if options.nvidia_runtime:
            names += toolkit_devices(environment)
        cache = CdiCache(options.cdi_dir or DIRECTORIES)
        with tempfile.TemporaryDirectory(prefix="sluice-container-") as place:
            return run(
                Container(
                    command=options.command,
                    edits=cache.inject(names),
                    rootfs=options.rootfs,
                    environment=environment,
                    volumes=[*options.volume, *volumes_of(answer)],
                    uid=options.user[0],
                    gid=options.user[1],
                    cgroup=options.cgroup,
                    workdir=options.workdir,
                ),
                Path(place),
            )
    except (Unresolvable, Refused, OSError, ValueError) as error:
        print(f"runtime: {error}", file=sys.stderr)
        return RUNTIME_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kit.fakes.runtime",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command = parser.add_subparsers(required=True).add_parser("run", help="start one container")
    add = command.add_argument
    add("--cdi-dir", type=Path, action="append", help="twice for two; default: the runtimes' own")
    add("--device", action="append", default=[], metavar="KIND=NAME", help="a CDI device")
    add("--answer", metavar="JSON", help="what the kubelet hands over; @FILE reads it from a file")
    add("--nvidia-runtime", action="store_true", help=f"do what {VISIBLE} says, as NVIDIA's does")
    add("--rootfs", type=Path, default=Path("/"), help="the image; nothing is written to it")
    add("--env", type=_assignment, action="append", default=[], metavar="NAME=VALUE")
    add("--volume", type=_volume, action="append", default=[], metavar="HOST:CONTAINER[:ro]")
    add("--user", type=_user, default=(0, 0), metavar="UID[:GID]")
    add("--cgroup", type=Path, help="directory of the cgroup to put it into; made when missing")
    add("--workdir", default="/")
    add("command", nargs="+")
    return parser


def _answer(text: str | None) -> Mapping[str, Any]:
    """Raises OSError, ValueError."""
    if text is None:
        return {}
    if text.startswith("@"):
        text = Path(text[1:]).read_text(encoding="utf-8")
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise ValueError("--answer: not an object")
    return answer


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _volume(text: str) -> Volume:
    parts = text.split(":")
    known = len(parts) == 2 or (len(parts) == 3 and parts[2] in ("ro", "rw"))
    if not known or not all(one.startswith("/") for one in parts[:2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not /HOST:/CONTAINER[:ro]")
    return Volume(parts[0], parts[1], parts[2:] == ["ro"])


def _user(text: str) -> tuple[int, int]:
    uid, _, gid = text.partition(":")
    if not uid.isdecimal() or not (gid or uid).isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not UID[:GID]")
    return int(uid), int(gid or uid)


if __name__ == "__main__":
    sys.exit(main())
