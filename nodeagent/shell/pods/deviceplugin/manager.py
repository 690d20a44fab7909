"""Handles the device plugin's calls of the kubelet, and keeps grants and CDI files as the reducer
decides.

Allocate only writes an intent to the ledger and returns a CDI name. Everything that takes time or
may fail happens when the container starts, where the kubelet retries. One event and all its
instructions are carried out before the next, so durable rows and actions stay in order.

Longer than a file should be: everything that changes the book, or carries out its instructions, is
here. The served resources and the identification of containers have their own modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from nodeagent.core.flight import Tape
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.kubelet import book as kb
from nodeagent.core.kubelet.choice import NO_RANK, attempts, hinted_gpus, prefer
from nodeagent.core.kubelet.identity import Holder
from nodeagent.core.kubelet.offers import Offer, OfferRules, offers, slots_of
from nodeagent.ports.clients import Refused
from nodeagent.ports.clock import Clock
from nodeagent.ports.containers import ContainerAnswer, GivenFiles
from nodeagent.ports.kubelet import (
    Allocation,
    AllocationLedger,
    ContainerLimits,
    KubeletAway,
    KubeletRecords,
    LimitsSource,
    Nonce,
    NotOurs,
    PermanentError,
    PodCgroups,
    PodSource,
    PreferenceAsk,
    RetryLater,
    parse_slot,
)
from nodeagent.ports.ledger import ContainerRef, LedgerLost
from nodeagent.ports.views import Finding
from nodeagent.shell.drive import Drive
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.pods.deviceplugin.on_demand import OnDemand
from nodeagent.shell.pods.deviceplugin.served_resource import ServedResource
from nodeagent.shell.pods.deviceplugin.starting import RECORDS_DEADLINE_S, KubeletFigures, Starting
from nodeagent.shell.pods.deviceplugin.undisturbed import UndisturbedRecords
from nodeagent.shell.pods.pod_grants import PendingCalls, PodGrants
from nodeagent.units import NS_PER_S, GpuUuid, GrantId, PodUid
from sluicecommon.background import BackgroundTasks
from sluicecommon.hami.names import CORDON
from sluicecommon.logs import error_text

log = logging.getLogger(__name__)

LONGEST_NAME = 512
"""Kubernetes allows 63, 253 and 63 characters; another client of the socket may send any."""

ALLOCATE_DEADLINE_S: Final = 10.0
"""The kubelet has none. It rejects the pod for good after this one, and a busy disk may need
seconds for a sync; it admits no other pod meanwhile, and is unhealthy after two minutes."""
ALLOCATE_AGAIN_S: Final = 1.0
"""The same after an answer that was not written in time, until one is: a disk that hangs does not
hold the kubelet up for so long for each of many pods."""
GONE_LOOK_S: Final = 1.0
"""Interval of reconciling while a pod has ended and its devices are not released. Seconds."""
GONE_S: Final = 120.0
"""Time after which such a pod is reconciled at the usual interval. Seconds."""
RECOVERY_QUIET_S: Final = 1.5
"""Time before a recovered GPU is reported to the kubelet; a failed one is reported at once."""


@dataclass(frozen=True, slots=True)
class Kept:
    """CDI files that stay: claims have theirs beside the kubelet's answers."""

    nonces: frozenset[Nonce] = frozenset()
    drivers: frozenset[str] = frozenset()


NOTHING_KEPT: Final = Kept()


@dataclass(frozen=True, slots=True)
class DevicePluginSettings:
    offers: OfferRules
    strategy: str
    """pack or spread."""
    reconcile_s: float = 10.0
    """Interval of reconciling with the kubelet's records. Seconds."""
    orphan_s: float = 60.0
    """Time between the two reconciliations that must both miss an allocation which the kubelet
    never recorded. Seconds."""
    numa_topology: bool = True


@dataclass(frozen=True, slots=True)
class PluginSources:
    """Sources of pods and their limits."""

    records: KubeletRecords
    pods: PodSource
    cgroups: PodCgroups
    limits: Sequence[LimitsSource]
    """Sources in the order in which they are consulted."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Parts of the daemon that give GPUs away beside the device plugin, if they run."""

    decided: Callable[[], Counter[GpuUuid]] = Counter
    """Number of admitted pods that will be on each GPU and have not started yet."""
    bound: Callable[[ContainerLimits, GrantId], None] = lambda limits, grant: None
    """Called with each grant of a queued workload."""
    may_offer: Callable[[GpuUuid], bool] = lambda gpu: True
    """True if the device plugin may give the GPU away now."""
    kept: Callable[[], Kept] = lambda: NOTHING_KEPT
    """CDI files that are not the device plugin's."""
    on_demand: OnDemand | None = None
    """MIG instances that are created for pods; None if that is off."""


ALONE: Final = Beside()


class DevicePluginManager:
    """Implements Endpoint; the kubelet's calls arrive through a ServedResource per resource."""

    def __init__(
        self,
        settings: DevicePluginSettings,
        boot_id: str,
        grants: PodGrants,
        gpus: Gpus,
        clock: Clock,
        ledger: AllocationLedger,
        sources: PluginSources,
        files_of: Callable[[], GivenFiles],
        fatal: Callable[[BaseException], None],
        beside: Beside = ALONE,
    ) -> None:
        """`files_of` returns the files that every container is given, and may raise OSError."""
        self._on_demand = beside.on_demand
        self.figures = KubeletFigures()
        self.book = kb.AllocationBook(
            kb.KubeletRules(
                boot_id,
                gone_apart_ns=int(settings.reconcile_s * 0.9 * NS_PER_S),
                orphan_apart_ns=int(settings.orphan_s * NS_PER_S),
            )
        )
        self._settings = settings
        self._boot_id = boot_id
        self._grants = grants
        self._keeper = grants.keeper
        self._gpus = gpus
        self._clock = clock
        self._ledger = ledger
        self._records = UndisturbedRecords(sources.records)
        self._cgroups = sources.cgroups
        self._cdi = grants.cdi
        self._files_of = files_of
        self._fatal = fatal
        self._background = BackgroundTasks(fatal)
        self._decided = beside.decided
        self._bound = beside.bound
        self._may_offer = beside.may_offer
        self._kept = beside.kept
        self._gone: dict[PodUid, int] = {}
        """Pods that have ended, and when the API server reported it, in ns."""
        self._hurry = asyncio.Event()
        self._is_stopping = False
        self._calls = PendingCalls()
        self._turn = asyncio.Lock()
        """Held while one event and its instructions are carried out."""
        self._settles_s = 0.0
        """Seconds until the container runtime has read the files of this turn."""
        self.served_resources: dict[str, ServedResource] = {}
        self.on_shelf: list[Callable[[ServedResource], None]] = []
        """Called with every new served resource."""
        self.problem = ""
        """Reason why an existing device is not offered."""
        self._allocating: list[frozenset[GpuUuid]] = []
        """GPUs of allocations that are being written to the ledger."""
        self._writes_in_time = True
        self._unshared = ""
        """Reason why the shared CDI specification is not written; empty if it is."""
        self.starting = Starting(
            self._records, sources.pods, sources.limits, self.figures, clock, self._background
        )
        self.tape: Tape[kb.Event] = Tape(self.book.memory)
        self._drive: Drive[kb.Event, kb.Instruction] = Drive(
            self.book, clock.monotonic_ns, fatal, self.tape
        )

    # --- an Endpoint of the daemon ------------------------------------------------------------

    async def start(self) -> None:
        self._keeper.on_ended.append(self._grant_ended)
        self._gpus.on_read.append(self._gpus_read)
        for resource, offered in self._offers().items():
            self._served_resource(resource).show(offered)
        await self._renew_driver()  # Before any call is answered, so that the runtime has read it.
        await self._apply(kb.Restored(tuple(self._ledger.load()), self._grants.live(claims=False)))
        self._background.spawn(self._reconcile_loop(), "release of allocations")

    async def close(self) -> None:
        await self._background.close()
        self._ledger.close()

    # --- what is offered ----------------------------------------------------------------------

    def _offers(self) -> dict[str, tuple[Offer, ...]]:
        rules, numa_topology = self._settings.offers, self._settings.numa_topology
        nodes = {gpu.uuid: gpu.numa_node for gpu in self._gpus.units() if numa_topology}
        found = offers(self._gpus.capacities(), rules)
        if found.problem != self.problem:
            self.problem = found.problem
            if found.problem:
                log.warning("kubelet: %s", found.problem)
        offered = {
            resource: [
                Offer(unit.uuid, self._offered(unit), nodes.get(unit.uuid), slots_of(unit, rules))
                for unit in units
            ]
            for resource, units in found.by_resource.items()
        }
        if self._on_demand is not None:
            places = self._on_demand.offers(rules.resource, self._answers(), self._may_offer_card)
            for resource, more in places.items():
                offered.setdefault(resource, []).extend(more)
        return {resource: tuple(ones) for resource, ones in offered.items()}

    def _may_offer_card(self, card: GpuUuid) -> bool:
        rules, reading = self._settings.offers, self._gpus.readings.get(card)
        return (
            reading is not None
            and card not in rules.exclude_uuids
            and reading.index not in rules.exclude_indexes
            and self._may_offer(card)
        )

    def _answers(self) -> list[Allocation]:
        """That are given, in the book or on the way there."""
        return [*self.book.rows.values(), *self._intended()]

    def _offered(self, unit: GpuCapacity) -> bool:
        return unit.healthy and self._may_offer(unit.uuid)

    def _served_resource(self, resource: str) -> ServedResource:
        served_resource = self.served_resources.get(resource)
        if served_resource is None:
            served_resource = self.served_resources[resource] = ServedResource(self, resource)
            for call in self.on_shelf:
                call(served_resource)
        return served_resource

    def configure(self, settings: DevicePluginSettings) -> None:
        """While the daemon runs; resource, slots and MIG are of the registration and stay."""
        here, new = self._settings.offers, settings.offers
        kept = replace(
            new,
            resource=here.resource,
            slots_per_gpu=here.slots_per_gpu,
            mig_strategy=here.mig_strategy,
            card_slots=here.card_slots,
        )
        self._settings = replace(settings, offers=kept)
        self._gpus_read()

    def _gpus_read(self) -> None:
        now = self._offers()
        for resource in self.served_resources.keys() | now.keys():
            served_resource, offered = self._served_resource(resource), now.get(resource, ())
            if offered == served_resource.shown:
                continue
            healthy = {(one.gpu, one.first) for one in served_resource.shown if one.healthy}
            sicker = any((one.gpu, one.first) in healthy and not one.healthy for one in offered)
            others = {(one.gpu, one.first) for one in offered} != {
                (one.gpu, one.first) for one in served_resource.shown
            }
            if sicker or others:
                served_resource.show(offered)
            else:
                self._background.spawn(
                    self._show_later(served_resource, offered), "offer of devices"
                )

    async def _show_later(self, served_resource: ServedResource, then: tuple[Offer, ...]) -> None:
        """Report recovered devices after they have stayed so for RECOVERY_QUIET_S."""
        await asyncio.sleep(RECOVERY_QUIET_S)
        if self._offers().get(served_resource.resource, ()) == then:
            served_resource.show(then)

    def prefer(self, ask: PreferenceAsk) -> tuple[str, ...]:
        return prefer(
            ask,
            {gpu.uuid: gpu for gpu in self._gpus.capacities()},
            self._keeper.loads(),
            self._decided(),
            self._settings.strategy,
            self._on_demand.rank(ask.available, self._answers()) if self._on_demand else NO_RANK,
        )

    # --- Allocate -----------------------------------------------------------------------------

    async def allocate(
        self, resource: str, requests: Sequence[Sequence[str]]
    ) -> list[ContainerAnswer]:
        with self._records.answering():
            return await self._allocate(resource, requests)

    async def _allocate(
        self, resource: str, requests: Sequence[Sequence[str]]
    ) -> list[ContainerAnswer]:
        known: dict[GpuUuid, list[range]] = {}
        for one in self.served_resources[resource].shown:
            if not self._gpus.withheld(one.gpu) and self._may_offer(one.gpu):
                known.setdefault(one.gpu, []).append(range(one.first, one.first + one.slots))
        driver = self._cdi.driver  # once: the row and the answer have to agree
        rows = []
        for ids in requests:
            self._check(ids, known)
            rows.append(
                Allocation(
                    Nonce(secrets.token_hex(16)),
                    resource,
                    frozenset(ids),
                    self._boot_id,
                    self._clock.unix_s(),
                    driver=driver,
                )
            )
        gpus = frozenset(slot.gpu for row in rows for slot in map(parse_slot, row.device_ids))
        self._allocating.append(gpus)
        written = False
        deadline_s = ALLOCATE_DEADLINE_S if self._writes_in_time else ALLOCATE_AGAIN_S
        try:
            async with asyncio.timeout(deadline_s):
                await self._ledger.commit(rows)
            written = self._writes_in_time = True
        except TimeoutError:
            self._writes_in_time = False
            raise TimeoutError(
                f"the ledger was not written within {deadline_s:g} s: is the disk of the"
                " daemon's state_dir full or failing?"
            ) from None
        except LedgerLost as error:
            self._fatal(error)
            raise
        finally:
            self._allocating.remove(gpus)
            if not written:
                # Too late for the kubelet, or it hung up: the rows may be on the disk all the same.
                # In the book they are what no answer names, and go like everything of that kind.
                intended = kb.Intended(tuple(rows))
                self._background.spawn(
                    self._drive.run_async(intended, self._carry_out), "late allocation"
                )
        # Not behind a start that writes files: the turn under way takes it over.
        await self._drive.run_async(kb.Intended(tuple(rows)), self._carry_out)
        self.figures.allocations += len(rows)
        if self._on_demand is not None:
            self._gpus_read()  # what overlaps their places is not offered any more
        return [
            self._cdi.answer(row.nonce, hinted_gpus(ids), row.driver)
            for row, ids in zip(rows, requests, strict=True)
        ]

    def _check(self, ids: Sequence[str], known: Mapping[GpuUuid, Collection[range]]) -> None:
        """`known`: numbers of each GPU's slots that are offered now."""
        if not ids:
            raise NotOurs("no device is requested")
        for text in ids:
            slot = parse_slot(text)
            if not any(slot.slot in numbers for numbers in known.get(slot.gpu, ())):
                raise NotOurs(f"{text} is not offered by this node now")

    def holders(self, gpus: Collection[GpuUuid], but: Collection[GrantId]) -> list[str]:
        """Answers given to the kubelet for these GPUs, but for those of the grants named."""
        found = [
            f"{row.pod or 'a pod that has not started yet'}, by an answer to the kubelet"
            f" ({', '.join(sorted(row.device_ids))})"
            for row in self._answers()
            if row.grant not in but and any(parse_slot(one).gpu in gpus for one in row.device_ids)
        ]
        if any(not one.isdisjoint(gpus) for one in self._allocating):
            found.append("an answer to the kubelet that is being given")
        return found

    def allocated(self) -> frozenset[GpuUuid]:
        """GPUs of all answers that are given, or about to be."""
        given = {parse_slot(one).gpu for row in self._answers() for one in row.device_ids}
        held = {
            device.gpu
            for grant in self.book.grants
            if (one := self._keeper.grant(grant)) is not None
            for device in one.record.devices
        }
        return frozenset(given | held).union(*self._allocating)

    def look(self) -> None:
        """Recompute the offered devices."""
        self._gpus_read()

    def remember(self) -> None:
        """Loads the ledger's rows before any part asks for the holders of a GPU."""
        for row in self._ledger.load():
            self.book.rows.setdefault(row.nonce, row)
        self.tape.cut()

    def _intended(self) -> list[Allocation]:
        """Given, and not in the book yet."""
        return [row for one in self._drive.line if isinstance(one, kb.Intended) for row in one.rows]

    def finding(self, gpus: Sequence[GpuUuid]) -> Finding:
        """Finding on whether containers can be given these GPUs now. Reads files."""
        return self._cdi.finding(gpus)

    # --- PreStartContainer --------------------------------------------------------------------

    async def pre_start(self, resource: str, device_ids: Sequence[str]) -> None:
        began_ns = self._clock.monotonic_ns()
        try:
            hinted_gpus(device_ids)
            await self._start(resource, frozenset(device_ids))
        except (RetryLater, PermanentError):
            self.figures.starts_refused += 1
            raise
        self.figures.starts += 1
        self.figures.start_seconds.append((self._clock.monotonic_ns() - began_ns) / NS_PER_S)
        del self.figures.start_seconds[:-1000]

    async def _start(self, resource: str, device_ids: frozenset[str]) -> None:
        holders = await self.starting.holders(device_ids)
        errors: list[RetryLater | PermanentError] = []
        for holder in holders:
            try:
                await self._start_holder(resource, device_ids, holder)
            except (RetryLater, PermanentError) as error:
                errors.append(error)
        # Which of several pods starts is not known. The container of one that has no grant finds
        # no CDI file, and the kubelet tries it again.
        if len(errors) == len(holders):
            raise errors[0]
        for one in errors:
            log.warning("kubelet: of pods with the same devices one does not start: %s", one)

    async def _start_holder(
        self, resource: str, device_ids: frozenset[str], holder: Holder
    ) -> None:
        known = self.book.grant_of(holder.pod.uid, device_ids)
        limits = None if known else await self.starting.limits(holder, device_ids)
        async with contextlib.AsyncExitStack() as promised:
            if limits is not None and self._on_demand is not None:
                limits = await self._on_demand.instances(
                    promised, device_ids, limits, f"pod {holder.pod}"
                )
            settles_s = await self._ask_start(resource, device_ids, holder, limits)
        if settles_s:
            await asyncio.sleep(settles_s)

    async def _ask_start(
        self,
        resource: str,
        device_ids: frozenset[str],
        holder: Holder,
        limits: ContainerLimits | None,
    ) -> float:
        with self._calls.open() as (call, answer):
            settles_s = await self._apply(
                kb.StartAsked(
                    call,
                    resource,
                    device_ids,
                    holder.pod,
                    holder.containers,
                    limits,
                    GrantId(str(uuid.uuid4())),
                    self._clock.unix_s(),
                    self._occupied(),
                    holder.beside,
                )
            )
            await answer
            return settles_s

    def _occupied(self) -> frozenset[GrantId]:
        return frozenset(grant for grant in self._keeper.opens() if self._keeper.tenants(grant))

    # --- events in, instructions out ----------------------------------------------------------

    async def _apply(self, event: kb.Event) -> float:
        """Carries out everything that follows; the seconds until the runtime has seen it."""
        async with self._turn:
            self._settles_s = 0.0
            try:
                await self._drive.run_async(event, self._carry_out)
            except (OSError, ValueError) as error:
                self._trouble(event, error)
            return self._settles_s

    async def _carry_out(self, do: kb.Instruction) -> None:
        match do:
            case kb.Commit():
                await self._commit(do)
            case kb.MakeGrant():
                await self._make_grant(do)
            case kb.EndGrant():
                self._grants.end(do.grant)
            case kb.WriteCdi():
                took_s = await self._grants.write_cdi(do.grant, do.nonce, do.container, do.driver)
                self._settles_s = max(self._settles_s, took_s)
            case kb.RemoveCdi():
                await self._grants.remove_cdi(do.nonce)
            case kb.KeepCdi():
                await self._keep_cdi(do)
            case kb.KeepDrivers():
                await self._keep_drivers(do)
            case kb.AnswerStart():
                self._calls.answer(do.call)
            case kb.RefuseStart():
                self._calls.answer(do.call, RetryLater(do.reason))
            case _:
                assert_never(do)

    def _trouble(self, event: kb.Event, error: Exception) -> None:
        """Return the error to the waiting call, or log it; a later event repeats the action."""
        call = event.call if isinstance(event, kb.StartAsked) else None
        if not self._calls.answer(call, RetryLater(str(error))):
            log.error("kubelet: %s: %s", type(event).__name__, error)

    async def _commit(self, do: kb.Commit) -> None:
        self.figures.releases += sum(row.state == "released" for row in do.rows)
        await self._ledger.commit(do.rows)

    async def _make_grant(self, do: kb.MakeGrant) -> None:
        """Make the grant on the decided GPU, else where the kubelet counts it, else on any GPU."""
        limits, of = do.limits, do.container
        name = f"{of.namespace}/{of.pod}/{of.container}" if of.pod else f"pod {of.pod_uid}"
        name = name[:LONGEST_NAME]
        refusal, kept = "decided for another GPU than the container was given (strategy envvar)", ""
        alike = self._offered_beside(of)
        every = [gpu.uuid for gpu in self._gpus.capacities()]
        cordoned = frozenset(filter(self._gpus.is_cordoned, every))
        others = tuple(one for one in every if one not in alike or one in cordoned)
        wanted = replace(limits.ask, name=name, not_gpu_uuids=others)
        for ask in attempts(wanted, of.device_ids, self._cdi.fixes_gpus):
            if not wanted.gpu_uuids and not cordoned.isdisjoint(ask.gpu_uuids):
                named = ", ".join(sorted(cordoned & {*ask.gpu_uuids}))
                refusal = kept = f"{named}: cordoned by the Node's annotation {CORDON}"
                continue
            answer = self._keeper.ask_now(ask, None, grant=do.grant, container=of)
            if isinstance(answer, Refused):
                refusal = f"{kept}; {answer}" if kept else str(answer)
                continue
            self._count_hint(do.grant, of)
            if limits.workload:
                self._bound(limits, do.grant)
            self._drive.add(kb.GrantMade(do.call, do.grant))
            return
        self._drive.add(kb.GrantRefused(do.call, refusal))

    def _offered_beside(self, of: ContainerRef) -> frozenset[GpuUuid]:
        """The GPUs of the resource that the container's devices are of."""
        here = set(hinted_gpus(of.device_ids))
        return frozenset(
            one.gpu
            for served_resource in self.served_resources.values()
            if any(one.gpu in here for one in served_resource.shown)
            for one in served_resource.shown
        )

    def _count_hint(self, grant: GrantId, container: ContainerRef) -> None:
        record = self._keeper.live()[grant].record
        if any(parse_slot(one).is_place for one in container.device_ids):
            return  # the hint is a place, not a GPU
        if {one.gpu for one in record.devices} != set(hinted_gpus(container.device_ids)):
            self.figures.hint_mismatches += 1

    async def _keep_cdi(self, do: kb.KeepCdi) -> None:
        others = self._kept().nonces
        for name in await asyncio.to_thread(self._cdi.names):
            if name not in do.nonces and name not in others:
                await self._grants.remove_cdi(name)

    async def _keep_drivers(self, do: kb.KeepDrivers) -> None:
        with contextlib.suppress(OSError):  # Starts and `sluice doctor` report it.
            drivers = do.drivers | self._kept().drivers
            await asyncio.to_thread(self._cdi.keep_drivers, drivers)

    async def _renew_driver(self) -> None:
        """Renews the CDI spec that all containers share, from the files installed now. A later
        start does not depend on it."""
        before, why = self._cdi.driver, ""
        try:
            files = await asyncio.to_thread(self._files_of)
            async with self._turn:
                await asyncio.to_thread(self._cdi.renew_driver, files)
        except (OSError, ValueError) as error:
            why = str(error)
        if why and why != self._unshared:
            log.warning("kubelet: shared CDI spec not written: %s", why)
        self._unshared = why
        if self._cdi.driver not in ("", before):
            log.info("kubelet: new containers are given driver %s", self._cdi.driver)

    # --- the end ------------------------------------------------------------------------------

    def _grant_ended(self, grant: GrantId) -> None:
        """Called while the keeper handles an event, so it is evaluated afterwards."""
        if grant in self.book.grants:
            self._background.spawn(self._grant_is_over(grant), "end of a grant")

    async def _grant_is_over(self, grant: GrantId) -> None:
        await self._apply(kb.GrantEnded(grant))

    async def _reconcile_loop(self) -> None:
        while True:
            waits_s = self._settings.reconcile_s
            if self._awaited():
                waits_s = min(waits_s, GONE_LOOK_S)
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(waits_s):
                    await self._hurry.wait()
            await self.reconcile()

    def pod_gone(self, pod: PodUid) -> None:
        """The API server says so; its devices come back when the node agrees."""
        self._gone[pod] = self._clock.monotonic_ns()
        if self._awaited():
            self._hurry.set()

    def stop_reconciling(self) -> None:
        """Before the node's allocatable devices are set to zero: a List of PodResources during an
        Allocate would have the kubelet reject its pod."""
        self._is_stopping = True

    def _awaited(self) -> frozenset[PodUid]:
        """Pods that are over by the API server's word and still have grants here."""
        oldest_ns = self._clock.monotonic_ns() - int(GONE_S * NS_PER_S)
        self._gone = {uid: at_ns for uid, at_ns in self._gone.items() if at_ns > oldest_ns}
        return frozenset(
            PodUid(ref.pod_uid) for ref in self.book.grants.values() if ref.pod_uid in self._gone
        )

    async def reconcile(self) -> None:
        """One look at what is installed and what the kubelet and the cgroups still have. What
        cannot be read says nothing."""
        if self._is_stopping:
            return
        await self._renew_driver()
        try:
            async with asyncio.timeout(RECORDS_DEADLINE_S):
                checkpoint = await asyncio.to_thread(self._records.checkpoint)
                listings = await self._records.listings()
                pods = await asyncio.to_thread(self._cgroups.pods)
        except (KubeletAway, TimeoutError) as error:
            self._away(error_text(error))
            return
        if pods is None:
            self._away("the cgroups of pods cannot be read")
            return
        self._away("")
        nonces = frozenset(one.nonce for one in checkpoint.entries if one.nonce is not None)
        await self._apply(
            kb.Looked(
                nonces,
                tuple(listings),
                frozenset(map(PodUid, pods)),
                self._clock.monotonic_ns(),
                self._awaited(),
            )
        )

    def _away(self, why: str) -> None:
        if why and why != self.figures.away:
            log.warning("kubelet: releasing stale allocations skipped: %s", why)
        self.figures.away = why
