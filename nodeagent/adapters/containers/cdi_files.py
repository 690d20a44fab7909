"""Grants as the container runtime reads them: one CDI file per grant and one for all of them, or
for runtimes without CDI one directory of links per grant.

The runtime's library notices changes by inotify, and only some: a file renamed within the directory
is seen, one renamed into it from elsewhere or linked there never is. So a file is written beside
its place, synced and renamed, and has a few milliseconds before its name is returned. Names are
never used twice, so that a slow cache cannot return another container's file.

The runtime reads every file again after each change, so what containers have in common is in one
file, named after what was installed when it was first written (a generation). An answer to Allocate
keeps its names for ever, through upgrades of the driver and of Sluice: their contents are brought
up to date whenever a container starts, and that start waits for what had to be written.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

from nodeagent.adapters.containers.capabilities import read_capabilities
from nodeagent.adapters.containers.cdi_installed import DIRECTORIES, SUFFIXES, InstalledSpecs
from nodeagent.core.kubelet import cdi
from nodeagent.core.kubelet.cdi_base import BaseSpec, Edits, common_edits, edits_of
from nodeagent.core.kubelet.cdi_mig import Capabilities, InstanceOf, completed
from nodeagent.ports.containers import CdiPort, ContainerAnswer, GivenFiles, GrantMounts
from nodeagent.ports.kubelet import NONCE
from nodeagent.ports.views import Finding
from nodeagent.units import GpuUuid

OURS: Final = cdi.KIND.replace("/", "-") + "_"
"""Prefix of our files' names: the library's convention for files that live as long as a
container."""
STRATEGIES: Final = ("cdi-cri", "cdi-annotations", "envvar")
OUR_DRIVERS: Final = cdi.DRIVER_KIND.replace("/", "-") + "_"
_FILE: Final = re.compile(re.escape(OURS) + r"([0-9a-f]{32})\.json")
_DRIVER_FILE: Final = re.compile(re.escape(OUR_DRIVERS) + r"([0-9a-f]{32})\.json")
_TEMPORARY: Final = re.compile(
    rf"\.(?:{re.escape(OURS)}|{re.escape(OUR_DRIVERS)})[0-9a-f]{{32}}\.[0-9a-f]{{16}}\.tmp"
)
TOPIC: Final = "cdi"
_NO_FOLLOW: Final = os.O_NOFOLLOW | os.O_CLOEXEC

Indexes = Callable[[], Mapping[GpuUuid, int]]
Instances = Callable[[], Mapping[GpuUuid, InstanceOf]]


def cdi_port(
    strategy: str,
    links_dir: Path,
    indexes: Indexes,
    directories: Sequence[Path] = DIRECTORIES,
    instances: Instances = dict,
) -> CdiPort:
    """The port of a strategy. `links_dir` is for envvar only; `indexes` has the GPUs' numbers, for
    specifications that name devices by them; `instances` returns the places of MIG devices, for
    those that no specification names yet. Files are written to the last of `directories`."""
    if strategy == "envvar":
        return RegionLinks(links_dir)
    answer = {"cdi-cri": cdi.by_cri, "cdi-annotations": cdi.by_annotation}[strategy]
    return CdiFiles(answer, indexes, directories, instances)


class CdiFiles:
    """Strategies cdi-cri and cdi-annotations."""

    fixes_gpus = False

    def __init__(
        self,
        answer: Callable[[str, str], ContainerAnswer],
        indexes: Indexes,
        directories: Sequence[Path] = DIRECTORIES,
        instances: Instances = dict,
        capabilities: Callable[[], Capabilities | None] = read_capabilities,
    ) -> None:
        self._answer = answer
        self._indexes = indexes
        self._instances = instances
        self._capabilities = capabilities
        self.directories = tuple(directories)
        self._directory = directories[-1]
        self._installed = InstalledSpecs(directories, (OURS, OUR_DRIVERS))
        self._lock = threading.Lock()
        self._files: GivenFiles | None = None
        self.driver = ""

    def renew_driver(self, files: GivenFiles) -> None:
        self._files = files
        specs, broken = self._installed.read()
        try:
            common, version = self._common(specs, (), broken)
            edits = cdi.driver_edits(common, files)
        except ValueError:
            self.driver = ""
            raise
        generation = cdi.generation_of(edits, version)
        document = cdi.driver_document(generation, version, edits)
        with self._lock, _opened(self._directory) as directory:
            _put(directory, _driver_file_name(generation), document)
        self.driver = generation

    def _read(self, gpus: Sequence[GpuUuid]) -> tuple[Sequence[BaseSpec], Sequence[str]]:
        """The installed specification, with the instances among `gpus` that are newer than it."""
        specs, broken = self._installed.read()
        instances = {gpu: of for gpu, of in self._instances().items() if gpu in gpus}
        if not instances:
            return specs, broken
        known = completed(specs, gpus, self._indexes(), instances, self._capabilities())
        return known, broken

    def _common(
        self, specs: Sequence[BaseSpec], gpus: Sequence[GpuUuid], broken: Sequence[str]
    ) -> tuple[Edits, tuple[int, int, int]]:
        indexes = self._indexes()
        return common_edits(specs, (*indexes, *gpus), indexes, broken)

    def answer(self, nonce: str, gpus: Sequence[GpuUuid], driver: str) -> ContainerAnswer:
        return self._answer(nonce, driver)

    def write(self, nonce: str, edits: GrantMounts, driver: str) -> float:
        """Write a grant's file. The driver's generation is updated to what is installed now,
        whatever its name says, because its libraries were removed with the old driver. Whichever of
        its contents a container gets, our library is mounted over the driver's in it."""
        documents: dict[str, Mapping[str, Any]] = {}
        own = _file_name(nonce)
        specs, broken = self._read(edits.gpus)
        base, version = edits_of(specs, edits.gpus, self._indexes(), broken)
        if driver:
            common, needs = self._common(specs, edits.gpus, broken)
            documents[_driver_file_name(driver)] = cdi.driver_document(
                driver, needs, cdi.driver_edits(common, edits.files)
            )
            documents[own] = cdi.own_document(nonce, base, common, version, edits)
        else:
            documents[own] = cdi.document(nonce, base, version, edits)
        with self._lock, _opened(self._directory) as directory:
            ages = [_put(directory, name, one) for name, one in documents.items()]
            return max(0.0, cdi.settles_s(self._bytes()) - min(ages))

    def keep_drivers(self, drivers: AbstractSet[str]) -> None:
        with self._lock, _opened(self._directory) as directory:
            for name in os.listdir(directory):
                found = _DRIVER_FILE.fullmatch(name)
                if found is not None and found[1] not in drivers and found[1] != self.driver:
                    _unlink(directory, name)

    def finding(self, gpus: Sequence[GpuUuid]) -> Finding:
        specs: Sequence[BaseSpec]
        try:
            specs, broken = self._read(gpus)
            base, _ = edits_of(specs, gpus, self._indexes(), broken)
            if self._files is not None:
                cdi.driver_edits(base, self._files)
            with self._lock, _opened(self._directory):
                pass
        except (OSError, ValueError) as error:
            what, _, remedy = str(error).rpartition(": ")
            return Finding(TOPIC, "missing", f"containers cannot get GPUs: {what}", remedy)
        try:
            self._common(specs, gpus, broken)
        except ValueError as error:
            what, _, remedy = str(error).rpartition(": ")
            return Finding(
                TOPIC, "warning", f"container starts are slower than necessary: {what}", remedy
            )
        sources = ", ".join(spec.source for spec in specs)
        if broken:
            return Finding(
                TOPIC, "warning", f"{sources}; left out: {'; '.join(broken)}", "repair or remove it"
            )
        return Finding(TOPIC, "ok", f"{sources}; grants are written to {self._directory}")

    def _bytes(self) -> int:
        """Size in bytes of what the runtime reads after each change."""
        found = 0
        for directory in self.directories:
            with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name.endswith(SUFFIXES):
                        with contextlib.suppress(FileNotFoundError):
                            found += entry.stat().st_size
        return found

    def remove(self, nonce: str) -> None:
        name = _file_name(nonce)
        with self._lock, _opened(self._directory) as directory:
            _unlink(directory, name)

    def names(self) -> list[str]:
        with self._lock, _opened(self._directory) as directory:
            found = os.listdir(directory)
            for name in found:
                if _TEMPORARY.fullmatch(name):
                    _unlink(directory, name)
        return sorted(match[1] for name in found if (match := _FILE.fullmatch(name)))


class RegionLinks:
    """Strategy envvar: a directory NONCE/ with links to the files that the container's mounts
    name."""

    fixes_gpus = True
    driver = ""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()

    def renew_driver(self, files: GivenFiles) -> None:
        """Nothing to do: NVIDIA's runtime mounts the driver."""

    def keep_drivers(self, drivers: AbstractSet[str]) -> None:
        """Nothing to do: there are no generations."""

    def answer(self, nonce: str, gpus: Sequence[GpuUuid], driver: str) -> ContainerAnswer:
        return cdi.by_environment(nonce, gpus, str(self._directory))

    def write(self, nonce: str, edits: GrantMounts, driver: str) -> float:
        """Write the links; no cache has to expire before they are seen."""
        wanted = cdi.links(nonce, edits)
        for target in wanted.values():
            os.stat(target)  # The kubelet would create a directory in the place of a missing file.
        with self._lock, _opened(self._directory) as directory:
            with contextlib.suppress(FileExistsError):
                os.mkdir(nonce, 0o755, dir_fd=directory)
            with _opened_in(directory, nonce) as place:
                for name, target in wanted.items():
                    if _link_target(place, name) != target:
                        _link(place, name, target)
        return 0.0

    def remove(self, nonce: str) -> None:
        cdi.check_nonce(nonce)
        with self._lock, _opened(self._directory) as directory:
            try:
                with _opened_in(directory, nonce) as place:
                    for name in os.listdir(place):
                        _unlink(place, name)
            except FileNotFoundError:
                return
            os.rmdir(nonce, dir_fd=directory)

    def names(self) -> list[str]:
        with self._lock, _opened(self._directory) as directory:
            found = os.listdir(directory)
        return sorted(name for name in found if NONCE.fullmatch(name))

    def finding(self, gpus: Sequence[GpuUuid]) -> Finding:
        return Finding(
            TOPIC,
            "warning",
            "strategy envvar: a program that opens the driver by its path is outside of its grant",
            'strategy = "cdi-cri" in [kubelet], where the container runtime has CDI',
        )


def _file_name(nonce: str) -> str:
    return f"{OURS}{cdi.check_nonce(nonce)}.json"


def _driver_file_name(generation: str) -> str:
    return f"{OUR_DRIVERS}{cdi.check_nonce(generation)}.json"


# --- One directory, by its descriptor. Names below it are single components and links are not
# followed, so a user who can write elsewhere cannot redirect a write.


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of the directory, which is created if missing. Raises OSError, PermissionError
    if other users may write to it."""
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW)
    try:
        _check_owner(directory, str(path))
        yield directory
    finally:
        os.close(directory)


@contextlib.contextmanager
def _opened_in(directory: int, name: str) -> Iterator[int]:
    place = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW, dir_fd=directory)
    try:
        _check_owner(place, name)
        yield place
    finally:
        os.close(place)


def _check_owner(directory: int, path: str) -> None:
    seen = os.fstat(directory)
    if seen.st_uid not in (0, os.geteuid()) or seen.st_mode & 0o022:
        raise PermissionError(
            f"{path} is writable by users other than root (mode {stat.S_IMODE(seen.st_mode):o},"
            f" owner {seen.st_uid}): chown root and chmod go-w it, because the runtime trusts its"
            " files as root"
        )


def _put(directory: int, name: str, document: Mapping[str, Any]) -> float:
    """Write a file unless it exists with these contents. Returns its age in seconds; 0 if it was
    written."""
    data = json.dumps(document, separators=(",", ":")).encode()
    age_s = _age_of_same(directory, name, data)
    if age_s is None:
        _replace(directory, name, data)
    return age_s or 0.0


def _age_of_same(directory: int, name: str, data: bytes) -> float | None:
    """Age in seconds of the file if it has these contents, otherwise None. The age is that of its
    renaming, from the inode, so that it survives a restart of the daemon."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _NO_FOLLOW, dir_fd=directory)
    except OSError:  # It is missing or not a file: it is replaced.
        return None
    with os.fdopen(fd, "rb") as file:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or file.read(len(data) + 1) != data:
            return None
        return abs(time.time() - seen.st_ctime)


def _replace(directory: int, name: str, data: bytes) -> None:
    temporary = f".{name.removesuffix('.json')}.{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW
    fd = os.open(temporary, flags, 0o644, dir_fd=directory)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)  # The umask must not change it.
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        _unlink(directory, temporary)
        raise
    os.fsync(directory)


def _unlink(directory: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _link_target(place: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=place)
    except OSError:
        return None


def _link(place: int, name: str, target: str) -> None:
    temporary = f".{name}.tmp"
    _unlink(place, temporary)
    os.symlink(target, temporary, dir_fd=place)
    os.rename(temporary, name, src_dir_fd=place, dst_dir_fd=place)
