"""Holders of a card or a MIG instance: its users, and those it is promised to. Every change of MIG
geometry checks here first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from nodeagent.ports.mig import MigProcess, MigState
from nodeagent.ports.views import Finding
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.units import GpuUuid, GrantId


class PodHolders(Protocol):
    """The kubelet's desk, where there is one."""

    problem: str

    def holders(self, gpus: frozenset[GpuUuid], but: frozenset[GrantId]) -> list[str]: ...
    def finding(self, gpus: Sequence[GpuUuid]) -> Finding: ...


class NoPods:
    """The kubelet is not served: no pod has a GPU of ours."""

    problem = ""

    def holders(self, gpus: frozenset[GpuUuid], but: frozenset[GrantId]) -> list[str]:
        return []

    def finding(self, gpus: Sequence[GpuUuid]) -> Finding:
        return Finding("containers", "ok", "no pod is served here")


class Holders:
    def __init__(
        self, keeper: Keeper, decided: Callable[[], Mapping[GpuUuid, int]] = Counter
    ) -> None:
        """`decided`: how many pods of the queue that have not come yet will be on each GPU."""
        self._keeper = keeper
        self._decided = decided
        self.pods: PodHolders = NoPods()
        """Made later than this."""
        self.promised: Callable[[frozenset[GpuUuid]], list[str]] = lambda gpus: []
        """Holders of instances that are reserved for requests without a grant yet."""

    def of_card(self, state: MigState) -> list[str]:
        """Holders of a card and of all its instances."""
        return [
            *self.of(state.uuids),
            *self.processes(state.processes),
        ]

    def of(self, gpus: frozenset[GpuUuid], but: Collection[GrantId] = ()) -> list[str]:
        """Holders by our own books, without the grants in `but`."""
        grants = {
            held.record.grant: held
            for held in self._keeper.live().values()
            if any(one.gpu in gpus for one in held.record.devices)
        }
        found = []
        for grant, held in grants.items():
            if grant in but:
                continue
            record, of = held.record, held.record.container
            who = f"pod {of.namespace}/{of.pod}, container {of.container}" if of else record.name
            found.append(
                f"grant {record.grant[:8]}{f' ({who})' if who else ''} of uid {record.owner.uid},"
                f" {len(held.slots)} process{'' if len(held.slots) == 1 else 'es'}"
            )
        found += self.pods.holders(gpus, frozenset({*grants, *but}))
        promised = sum(n for gpu, n in self._decided().items() if gpu in gpus)
        if promised:
            found.append(f"the queue: {promised} pod{'s' if promised > 1 else ''} decided for it")
        return found + self.promised(gpus)

    def processes(self, processes: Collection[MigProcess]) -> list[str]:
        """Processes that are in no grant."""
        ours = self._keeper.tenant_pids()
        return [
            f"process {one.pid} ({one.name}" + (f", uid {one.uid})" if one.uid is not None else ")")
            for one in processes
            if one.pid not in ours
        ]
