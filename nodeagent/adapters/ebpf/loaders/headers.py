"""The kernel headers that bcc compiles against, also if /lib/modules is hidden from this process.

Under ProtectKernelModules= (systemd/sluice.service), as in a container, /lib/modules/RELEASE is not
visible. The headers are usually in /usr/src, and only links to them are hidden: so they are looked
up in the root of PID 1, and bcc gets their path. Loading modules stays as impossible as the unit
makes it. bcc's own search is in its src/cc/frontends/clang/kbuild_helper.cc.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

VARIABLE: Final = "BCC_KERNEL_SOURCE"
"""bcc's own variable: one directory, in the place of /lib/modules/RELEASE."""
MODULES: Final = Path("/lib/modules")
HOST: Final = Path("/proc/1/root")
"""The root of PID 1; needs CAP_SYS_PTRACE, which the daemon has for the regions' mounts."""
ARCHIVES: Final = (Path("/sys/kernel/kheaders.tar.xz"), Path("/proc/kheaders.tar.xz"))
MAX_LINKS: Final = 8


@dataclass(frozen=True, slots=True)
class Headers:
    where: Path
    environment: dict[str, str] = field(default_factory=dict)
    """Environment for bcc; empty if it finds the headers by itself."""
    flags: tuple[str, ...] = ()


def kernel_headers(
    environment: Mapping[str, str] = os.environ,
    modules: Path = MODULES,
    host: Path = HOST,
    archives: tuple[Path, ...] = ARCHIVES,
) -> Headers | None:
    """The headers; None if there are none. Never raises."""
    release = modules / platform.release()
    named = environment.get(VARIABLE, "")
    for place in (*([Path(named)] if named else []), release / "build", release / "source"):
        if _are_headers(place):
            return Headers(place)
    build, source = (_of_host(host, release / name) for name in ("build", "source"))
    if _are_headers(source):  # Debian has generated headers in `build` and all others in `source`.
        return Headers(source, {VARIABLE: str(source)}, _generated(build))
    if _are_headers(build):
        return Headers(build, {VARIABLE: str(build)})
    for archive in archives:
        if os.path.exists(archive):
            return Headers(archive)
    return None


def _are_headers(place: Path) -> bool:
    # It raises no OSError, as Path's method does.
    return os.path.exists(place / "include" / "linux" / "kconfig.h")


def _of_host(host: Path, path: Path) -> Path:
    """Follow an absolute link of the host by hand, because it would lead into our own root."""
    for _ in range(MAX_LINKS):
        try:
            target = os.readlink(host / path.relative_to("/"))
        except OSError:  # It is not a link, or does not exist.
            break
        path = Path(os.path.normpath(path.parent / target))
    return host / path.relative_to("/")


def _generated(build: Path) -> tuple[str, ...]:
    try:
        architectures = sorted((build / "arch").glob("*/include/generated"))
    except OSError:
        architectures = []
    places = [build / "include", build / "include" / "generated" / "uapi"]
    for generated in architectures:
        places += [generated, generated / "uapi"]
    return tuple(f"-I{place}" for place in places)
