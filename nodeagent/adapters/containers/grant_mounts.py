"""The mounts of a container that runs in its grant: the region, our library, and ours in the place
of the driver's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from nodeagent.adapters.checks import DRIVER, NVML
from nodeagent.adapters.containers.injection import GRANT_DIR, Cover, covers, find_driver
from nodeagent.adapters.containers.library_store import libraries
from nodeagent.adapters.region import layout as c
from nodeagent.core.kubelet.choice import hinted_gpus
from nodeagent.native import NativeFiles
from nodeagent.ports.containers import DriverLibrary, GivenFiles, GrantMounts
from nodeagent.ports.ledger import GrantRecord


class GrantMounter:
    """Mounts of grants. The host's libraries are searched once per version of the driver."""

    def __init__(
        self,
        files: NativeFiles,
        environment: Mapping[str, str],
        library_root: Path,
        driver_version: Callable[[], str | None],
        wall_socket: str = "",
        wall_required: bool = False,
    ) -> None:
        """`library_root` has the copies for containers, see library_store. `wall_socket` is the
        container hook's socket to the daemon; if it is empty, no driver limits are set."""
        self._wall_socket = wall_socket
        self._wall_required = wall_required
        self._files = files
        self._environment = environment
        self._library_root = library_root
        self._driver_version = driver_version
        self._lock = threading.Lock()
        self._known: tuple[str | None, NativeFiles, tuple[DriverLibrary, ...]] | None = None

    def mounts_of(self, record: GrantRecord, region_dir: str, container: str) -> GrantMounts:
        """The mounts of a grant. Raises OSError if the driver is not where it is expected."""
        ref = record.container
        return GrantMounts(
            grant=record.grant,
            gpus=tuple(device.gpu for device in record.devices),
            region_dir=region_dir,
            policy_path=f"{region_dir}/{c.POLICY_FILE}",
            usage_path=f"{region_dir}/{c.USAGE_FILE}",
            socket_path=f"{region_dir}/{c.SOCKET_FILE}",
            container_dir=str(GRANT_DIR),
            files=self.files(),
            counted_gpus=hinted_gpus(ref.device_ids) if ref else (),
            pod_uid=ref.pod_uid if ref else "",
            namespace=ref.namespace if ref else "",
            pod=ref.pod if ref else "",
            container=container,
            wall_socket=self._wall_socket,
            wall_required=self._wall_required,
        )

    def files(self) -> GivenFiles:
        """The files of a grant. Raises OSError, as `mounts_of`."""
        with self._lock:
            version = self._driver_version()
            if self._known is None or self._known[0] != version:
                driver, nvml = find_driver(self._environment, self._files)
                files = libraries(self._files, {DRIVER: driver, NVML: nvml}, self._library_root)
                found = tuple(map(_library, covers(self._environment, driver, nvml, files)))
                self._known = (version, files, found)
            _, files, found = self._known
        return GivenFiles(
            preload_path=str(files.preload_library),
            hook_path=_if_there(files.container_hook),
            preload_list_path=_if_there(files.preload_list),
            libraries=found,
        )


def _library(cover: Cover) -> DriverLibrary:
    return DriverLibrary(
        name=cover.name,
        host_path=str(cover.real),
        found_as=tuple(map(str, cover.found)),
        shim_path=str(cover.ours),
        kept_path=str(cover.kept),
    )


def _if_there(path: Path) -> str:
    return str(path) if path.is_file() else ""
