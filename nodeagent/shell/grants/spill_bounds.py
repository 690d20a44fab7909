"""Limits of the host memory that spilled grants may use, and the texts of their refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from nodeagent.core.grants.quantities import format_bytes
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.ports.driver.checkpoint import HostRoom
from nodeagent.ports.processes import Process
from nodeagent.settings.daemon import CheckpointSettings
from nodeagent.units import MIB, Bytes


class HostBounds:
    def __init__(self, settings: CheckpointSettings, host: HostRoom) -> None:
        self._settings = settings
        self._host = host

    def most(self) -> Bytes:
        """Largest sum of checkpointed memory on the host."""
        return Bytes(int(self._host.total_bytes() * self._settings.host_memory_percent / 100))

    def check(self, needed: Mapping[Process, int], away_bytes: int) -> None:
        """Checks that the host has room for the memory of these processes beside what is there
        already. Raises Refused."""
        for process in needed:
            still = self._host.holds_still(process.pid)
            if still:
                raise Refused(
                    RefusalKind.UNAVAILABLE,
                    f"process {process.pid} would not answer the driver: {still}",
                )
        self._check_host(sum(needed.values()), away_bytes)
        self._check_cgroups(needed)

    def _check_host(self, total: int, away_bytes: int) -> None:
        most, settings = self.most(), self._settings
        if away_bytes + total > most:
            raise Refused(
                RefusalKind.EXHAUSTED,
                f"{format_bytes(total)} would be on the host beside {format_bytes(away_bytes)} of"
                f" others: {format_bytes(most)} at most"
                f" (checkpoint.host_memory_percent = {settings.host_memory_percent:g})",
            )
        spare, available = settings.spare_host_memory_mib * MIB, self._host.available_bytes()
        if total + spare > available:
            raise Refused(
                RefusalKind.EXHAUSTED,
                f"{format_bytes(total)} do not fit into the host's memory:"
                f" {format_bytes(available)} are available, {format_bytes(spare)} have to stay so"
                " (checkpoint.spare_host_memory_mib)",
            )

    def _check_cgroups(self, needed: Mapping[Process, int]) -> None:
        """A limit there would have the kernel kill it in the middle. Raises Refused."""
        by_cgroup: Counter[str] = Counter()
        for process, bytes_ in needed.items():
            found = self._host.headroom(process.pid)
            if found is None:
                continue
            room, cgroup = found
            by_cgroup[cgroup] += bytes_
            if by_cgroup[cgroup] > room:
                raise Refused(
                    RefusalKind.EXHAUSTED,
                    f"{format_bytes(by_cgroup[cgroup])} of its GPU memory would count in the cgroup"
                    f" {cgroup}, whose memory limit leaves {format_bytes(room)}",
                )
