"""The node's desk for the kubelet: answers what the device plugin is asked, and keeps grants and
CDI files as the reducer says.

Allocate is local: an intent in the ledger and a name, nothing else. Everything that takes time or
may fail happens when the container starts, where the kubelet tries again. One event and all its
instructions are carried out before the next, so what is durable and what is done never cross.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nodeagent.core import events as ev
from nodeagent.core import kubelet as kb
from nodeagent.core.kubelet_choice import attempts, hinted_gpus, prefer
from nodeagent.core.kubelet_identity import Holder, identify
from nodeagent.core.kubelet_offers import Offer, OfferRules, offers, slots_of
from nodeagent.core.pod_limits import DefaultLimits, default_limits, merge
from nodeagent.kubelet_ports import (
    Allocation,
    AllocationLedger,
    ContainerLimits,
    ContainerRequests,
    KubeletAway,
    KubeletRecords,
    LimitsSource,
    Never,
    Nonce,
    NothingToAsk,
    NotOurs,
    NotYet,
    PodCgroups,
    PodIdentity,
    PodSource,
    PodUid,
    PreferenceAsk,
    SlotDevice,
    SlotId,
    Unread,
    parse_slot,
)
from nodeagent.ports import (
    CdiPort,
    Clock,
    ContainerAnswer,
    ContainerRef,
    Finding,
    GivenFiles,
    GrantMounts,
    GrantRecord,
    GrantState,
    LedgerFull,
    LedgerLost,
    Process,
    RefusalKind,
    Refused,
)
from nodeagent.shell.gpus import Gpus
from nodeagent.shell.keeper import Keeper
from nodeagent.shell.limits import PodLimits, QueueLimits
from nodeagent.units import NS_PER_S, GpuUuid, GrantId, RequestId

log = logging.getLogger(__name__)

LONGEST_NAME = 512
"""Kubernetes allows 63, 253 and 63 characters; who speaks in the kubelet's place may send any."""

ALLOCATE_DEADLINE_S: Final = 1.0
"""The kubelet has none, and admits no other pod meanwhile."""
RECORDS_DEADLINE_S: Final = 5.0
LOG_UNREAD_NS: Final = 60 * NS_PER_S
GONE_LOOK_S: Final = 1.0
"""Between looks while a pod's end is known and its devices are not back."""
GONE_S: Final = 120.0
"""After which such a pod is looked after as any other."""
RECOVERY_QUIET_S: Final = 1.5
"""A GPU is offered again only after this; that it is sick is told at once."""
FIRST_REQUEST: Final = 1 << 33
"""Far from the numbers of the local API and the queue's."""
NOBODY: Final = Process(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class DeskSettings:
    offers: OfferRules
    strategy: str
    """pack or spread."""
    reconcile_s: float = 10.0
    """Between two looks at what the kubelet still has."""
    orphan_s: float = 60.0
    """Between the two looks that must miss an answer which the kubelet never wrote down."""
    numa_topology: bool = True


@dataclass(slots=True)
class KubeletFigures:
    """Counters for the metrics, since the daemon started."""

    allocations: int = 0
    starts: int = 0
    starts_refused: int = 0
    releases: int = 0
    hint_mismatches: int = 0
    """Grants on another GPU than the kubelet counts them on."""
    unread: int = 0
    """Containers let in by the node's defaults because nobody could say what they ask for."""
    unread_last: str = ""
    """The last of them, and why; empty: none."""
    away: str = ""
    """Why the kubelet's records could not be read last time; empty: they could."""
    start_seconds: list[float] = field(default_factory=list)


class Shelf:
    """What is offered under one resource; implements PluginService."""

    def __init__(self, desk: KubeletDesk, resource: str) -> None:
        self.resource = resource
        self.shown: tuple[Offer, ...] = ()
        self._desk = desk
        self._devices: tuple[SlotDevice, ...] = ()
        self._change = asyncio.Event()

    def show(self, offers: tuple[Offer, ...]) -> None:
        """All slots of a GPU have its health: the kubelet counts each for itself."""
        if offers != self.shown:
            self.shown = offers
            self._devices = tuple(
                SlotDevice(str(SlotId(one.gpu, number)), one.healthy, one.numa_node)
                for one in offers
                for number in range(one.slots)
            )
            self._change.set()
            self._change = asyncio.Event()

    def devices(self) -> tuple[SlotDevice, ...]:
        return self._devices

    async def watch(self) -> AsyncGenerator[tuple[SlotDevice, ...], None]:
        while True:
            change, devices = self._change, self._devices
            yield devices
            await change.wait()

    def prefer(self, ask: PreferenceAsk) -> tuple[str, ...]:
        return self._desk.prefer(ask)

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        return await self._desk.allocate(self.resource, requests)

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        await self._desk.pre_start(self.resource, device_ids)


class KubeletDesk:
    """Implements Endpoint; what the kubelet asks comes by way of a shelf for each resource."""

    def __init__(
        self,
        settings: DeskSettings,
        boot_id: str,
        keeper: Keeper,
        gpus: Gpus,
        clock: Clock,
        ledger: AllocationLedger,
        records: KubeletRecords,
        pods: PodSource,
        cgroups: PodCgroups,
        cdi: CdiPort,
        sources: Sequence[LimitsSource],
        mounts_of: Callable[[GrantRecord, str, str], GrantMounts],
        files_of: Callable[[], GivenFiles],
        fatal: Callable[[BaseException], None],
        decided: Callable[[], Counter[GpuUuid]] = Counter,
        bound: Callable[[ContainerLimits, GrantId], None] = lambda limits, grant: None,
    ) -> None:
        """`sources` are asked in this order. `mounts_of` takes a grant, the directory of its
        region and the container's name; `files_of` is what all containers are given of ours, and
        may raise OSError; `decided` says how many pods that have not come yet will
        be on each GPU; `bound` is told of the grants of queued workloads."""
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
        self._keeper = keeper
        self._gpus = gpus
        self._clock = clock
        self._ledger = ledger
        self._records = records
        self._pods = pods
        self._cgroups = cgroups
        self._cdi = cdi
        self.sources = sources
        """May be replaced while the daemon runs."""
        self._mounts_of = mounts_of
        self._files_of = files_of
        self._fatal = fatal
        self._decided = decided
        self._bound = bound
        self.on_unread: list[Callable[[PodIdentity, str], Awaitable[None]]] = []
        """Called with a pod that is let in by defaults, and why."""
        self._unread_logged_ns = -LOG_UNREAD_NS
        self._gone: dict[PodUid, int] = {}
        """Pods that the API server says are over, and when it said so, in ns."""
        self._hurry = asyncio.Event()
        self._calls = itertools.count(1)
        self._requests = itertools.count(FIRST_REQUEST)
        self._turn = asyncio.Lock()
        """Held while one event and its instructions are carried out."""
        self._starts: dict[int, asyncio.Future[None]] = {}
        self._settles_s = 0.0
        """Until the runtime has seen the files of this turn."""
        self.shelves: dict[str, Shelf] = {}
        self.on_shelf: list[Callable[[Shelf], None]] = []
        """Called with every shelf that is put up."""
        self.problem = ""
        """Why something that is there is not offered."""
        self._allocating: list[frozenset[GpuUuid]] = []
        """Of answers that are about to be durable."""
        self._unshared = ""
        """Why containers' CDI files have nothing in common; empty: they have."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._effects: Mapping[type[Any], Callable[[Any], Awaitable[Sequence[kb.Event]]]] = {
            kb.Commit: self._commit,
            kb.MakeGrant: self._make_grant,
            kb.EndGrant: self._end_grant,
            kb.WriteCdi: self._write_cdi,
            kb.RemoveCdi: self._remove_cdi,
            kb.KeepCdi: self._keep_cdi,
            kb.KeepDrivers: self._keep_drivers,
            kb.AnswerStart: self._answer_start,
            kb.RefuseStart: self._refuse_start,
        }

    # --- an Endpoint of the daemon ------------------------------------------------------------

    async def start(self) -> None:
        self._keeper.on_ended.append(self._grant_ended)
        self._gpus.on_read.append(self._gpus_read)
        for resource, offered in self._offers().items():
            self._shelf(resource).show(offered)
        grants = tuple(
            (grant, held.record.container)
            for grant, held in self._keeper.book.grants.items()
            if held.record.container is not None and held.record.state is GrantState.ACTIVE
        )
        await self._renew_driver()  # before anybody is answered: the runtime has read it by then
        await self._apply(kb.Restored(tuple(self._ledger.load()), grants))
        self._spawn(self._reconcile_loop())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ledger.close()

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fatal(error)

    # --- what is offered ----------------------------------------------------------------------

    def _offers(self) -> dict[str, tuple[Offer, ...]]:
        rules, told = self._settings.offers, self._settings.numa_topology
        nodes = {gpu.uuid: gpu.numa_node for gpu in self._gpus.units() if told}
        found = offers(self._gpus.capacities(), rules)
        if found.problem != self.problem:
            self.problem = found.problem
            if found.problem:
                log.warning("kubelet: %s", found.problem)
        return {
            resource: tuple(
                Offer(unit.uuid, unit.healthy, nodes.get(unit.uuid), slots_of(unit, rules))
                for unit in units
            )
            for resource, units in found.by_resource.items()
        }

    def _shelf(self, resource: str) -> Shelf:
        shelf = self.shelves.get(resource)
        if shelf is None:
            shelf = self.shelves[resource] = Shelf(self, resource)
            for call in self.on_shelf:
                call(shelf)
        return shelf

    def configure(self, settings: DeskSettings) -> None:
        """While the daemon runs; resource, slots and MIG are of the registration and stay."""
        here, new = self._settings.offers, settings.offers
        kept = replace(
            new,
            resource=here.resource,
            slots_per_gpu=here.slots_per_gpu,
            mig_strategy=here.mig_strategy,
        )
        self._settings = replace(settings, offers=kept)
        self._gpus_read()

    def _gpus_read(self) -> None:
        now = self._offers()
        for resource in self.shelves.keys() | now.keys():
            shelf, offered = self._shelf(resource), now.get(resource, ())
            if offered == shelf.shown:
                continue
            healthy = {one.gpu for one in shelf.shown if one.healthy}
            sicker = any(one.gpu in healthy and not one.healthy for one in offered)
            others = {one.gpu for one in offered} != {one.gpu for one in shelf.shown}
            if sicker or others:
                shelf.show(offered)
            else:
                self._spawn(self._show_later(shelf, offered))

    async def _show_later(self, shelf: Shelf, then: tuple[Offer, ...]) -> None:
        """Good news is told when it has lasted."""
        await asyncio.sleep(RECOVERY_QUIET_S)
        if self._offers().get(shelf.resource, ()) == then:
            shelf.show(then)

    def prefer(self, ask: PreferenceAsk) -> tuple[str, ...]:
        return prefer(
            ask,
            {gpu.uuid: gpu for gpu in self._gpus.capacities()},
            self._keeper.book.loads(),
            self._decided(),
            self._settings.strategy,
        )

    # --- Allocate -----------------------------------------------------------------------------

    async def allocate(
        self, resource: str, requests: Sequence[Sequence[str]]
    ) -> list[ContainerAnswer]:
        known = {
            one.gpu: one.slots
            for one in self.shelves[resource].shown
            if not self._gpus.withheld(one.gpu)
        }
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
        try:
            async with asyncio.timeout(ALLOCATE_DEADLINE_S):
                await self._ledger.commit(rows)
        except TimeoutError:
            raise TimeoutError(
                f"the ledger was not written within {ALLOCATE_DEADLINE_S:g} s: is the disk of the"
                " daemon's state_dir full or failing?"
            ) from None
        except LedgerLost as error:
            self._fatal(error)
            raise
        finally:
            self._allocating.remove(gpus)
        self.book.handle(kb.Intended(tuple(rows)))
        self.figures.allocations += len(rows)
        return [
            self._cdi.answer(row.nonce, hinted_gpus(ids), row.driver)
            for row, ids in zip(rows, requests, strict=True)
        ]

    def _check(self, ids: Sequence[str], known: Mapping[GpuUuid, int]) -> None:
        if not ids:
            raise NotOurs("no device is asked for")
        for text in ids:
            slot = parse_slot(text)
            if slot.slot >= known.get(slot.gpu, 0):
                raise NotOurs(f"{text} is not offered by this node now")

    def holders(self, gpus: Collection[GpuUuid], but: Collection[GrantId]) -> list[str]:
        """Answers given to the kubelet for these GPUs, but for those of the grants named."""
        found = [
            f"{row.pod or 'a pod that has not started yet'}, by an answer to the kubelet"
            f" ({', '.join(sorted(row.device_ids))})"
            for row in self.book.rows.values()
            if row.grant not in but and any(parse_slot(one).gpu in gpus for one in row.device_ids)
        ]
        if any(not one.isdisjoint(gpus) for one in self._allocating):
            found.append("an answer to the kubelet that is being given")
        return found

    def finding(self, gpus: Sequence[GpuUuid]) -> Finding:
        """Whether containers could be given these GPUs now. Reads files."""
        return self._cdi.finding(gpus)

    # --- PreStartContainer --------------------------------------------------------------------

    async def pre_start(self, resource: str, device_ids: Sequence[str]) -> None:
        began_ns = self._clock.monotonic_ns()
        try:
            hinted_gpus(device_ids)
            await self._start(resource, frozenset(device_ids))
        except (NotYet, Never):
            self.figures.starts_refused += 1
            raise
        self.figures.starts += 1
        self.figures.start_seconds.append((self._clock.monotonic_ns() - began_ns) / NS_PER_S)
        del self.figures.start_seconds[:-1000]

    async def _start(self, resource: str, device_ids: frozenset[str]) -> None:
        holder = await self._holder(device_ids)
        known = self.book.grant_of(holder.pod.uid, device_ids)
        limits = None if known else await self._limits(holder, device_ids)
        call = next(self._calls)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starts[call] = answer
        try:
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
                )
            )
            await answer
        finally:
            del self._starts[call]
        if settles_s:
            await asyncio.sleep(settles_s)

    async def _holder(self, device_ids: frozenset[str]) -> Holder:
        try:
            async with asyncio.timeout(RECORDS_DEADLINE_S):
                listings = await self._records.listings()
                checkpoint = await asyncio.to_thread(self._records.checkpoint)
        except (KubeletAway, TimeoutError) as error:
            raise NotYet(f"the kubelet's records cannot be read: {error}") from error
        return identify(device_ids, checkpoint, listings)

    async def _limits(self, holder: Holder, device_ids: frozenset[str]) -> ContainerLimits:
        """The larger of what the containers with these devices ask for; a MIG instance is given
        whole, but to a pod of the queue only when and where the queue says."""
        gpus = len(device_ids)
        whole = any(parse_slot(one).gpu.startswith("MIG-") for one in device_ids)
        sources = [one for one in self.sources if not whole or isinstance(one, QueueLimits)]
        parts = []
        for container in [one.container for one in holder.containers if sources]:
            requests: ContainerRequests | Unread
            pod = holder.pod
            try:
                requests = await self._pods.requests(holder.pod, container)
                pod = requests.pod if requests.pod.name else holder.pod
            except NothingToAsk as error:
                requests = Unread(str(error))
            except KubeletAway as error:
                raise NotYet(f"what the pod asks for cannot be read now: {error}") from error
            for source in sources:
                try:
                    found = await source.limits(pod, container, requests, gpus)
                except KubeletAway as error:
                    raise NotYet(f"whose the pod is cannot be read now: {error}") from error
                if found is not None:
                    parts.append(found)
                    break
            own = any(isinstance(one, PodLimits) for one in sources)
            if isinstance(requests, Unread) and own and parts and parts[-1].source == "defaults":
                self._let_in_unread(pod, container, requests.why)
        if whole:
            return _whole(gpus, parts)
        if not parts:
            raise NotYet(f"nothing says how much of a GPU {holder.pod} may have")
        return merge(parts)

    def _let_in_unread(self, pod: PodIdentity, container: str, why: str) -> None:
        """Never silently: whoever asked for 8 GiB and has a whole GPU must be able to find out."""
        self.figures.unread += 1
        self.figures.unread_last = f"{pod}, container {container}: {why}"
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._unread_logged_ns >= LOG_UNREAD_NS:
            self._unread_logged_ns = now_ns
            log.warning(
                "kubelet: %s, container %s, has the node's defaults, whatever it asks for: %s",
                pod,
                container,
                why,
            )
        for call in self.on_unread:
            self._spawn(call(pod, why))

    def _occupied(self) -> frozenset[GrantId]:
        return frozenset(grant for grant, open_ in self._keeper.open.items() if open_.tenants)

    # --- events in, instructions out ----------------------------------------------------------

    async def _apply(self, event: kb.Event) -> float:
        """Carries out everything that follows; the seconds until the runtime has seen it."""
        async with self._turn:
            self._settles_s = 0.0
            events = [event]
            try:
                while events:
                    for do in self.book.handle(events.pop(0)):
                        events += await self._effects[type(do)](do)
            except LedgerLost as error:
                self._fatal(error)
                raise
            except (LedgerFull, OSError, ValueError) as error:
                self._trouble(event, error)
            return self._settles_s

    def _trouble(self, event: kb.Event, error: Exception) -> None:
        """Whoever waits is told; the next try, the next look or the next start repeats it."""
        call = event.call if isinstance(event, kb.StartAsked) else None
        answer = self._starts.get(call) if call is not None else None
        if answer is not None and not answer.done():
            answer.set_exception(NotYet(str(error)))
        else:
            log.error("kubelet: %s: %s", type(event).__name__, error)

    async def _commit(self, do: kb.Commit) -> Sequence[kb.Event]:
        self.figures.releases += sum(row.state == "released" for row in do.rows)
        await self._ledger.commit(do.rows)
        return ()

    async def _make_grant(self, do: kb.MakeGrant) -> Sequence[kb.Event]:
        """Where it was decided, where the kubelet counts it, or anywhere: the first that can."""
        limits, of = do.limits, do.container
        name = f"{of.namespace}/{of.pod}/{of.container}" if of.pod else f"pod {of.pod_uid}"
        name = name[:LONGEST_NAME]
        refusal = "decided for another GPU than the container was given (strategy envvar)"
        alike = self._offered_beside(of)
        others = tuple(g.uuid for g in self._gpus.capacities() if g.uuid not in alike)
        wanted = replace(limits.ask, name=name, not_gpu_uuids=others)
        for ask in attempts(wanted, of.device_ids, self._cdi.fixes_gpus):
            request = RequestId(next(self._requests))
            asked = ev.Asked(request, do.grant, ask, NOBODY, self._clock.unix_s(), container=of)
            answers = self._keeper.ask(asked, None)
            answer = answers.get_nowait() if not answers.empty() else None
            self._keeper.withdraw(request, do.grant)
            if isinstance(answer, str):
                self._count_hint(do.grant, of)
                if limits.workload:
                    self._bound(limits, do.grant)
                return (kb.GrantMade(do.call, do.grant),)
            refusal = str(answer) if isinstance(answer, Refused) else "the grant was not made"
        return (kb.GrantRefused(do.call, refusal),)

    def _offered_beside(self, of: ContainerRef) -> frozenset[GpuUuid]:
        """The GPUs of the resource that the container's devices are of."""
        here = set(hinted_gpus(of.device_ids))
        return frozenset(
            one.gpu
            for shelf in self.shelves.values()
            if any(one.gpu in here for one in shelf.shown)
            for one in shelf.shown
        )

    def _count_hint(self, grant: GrantId, container: ContainerRef) -> None:
        record = self._keeper.book.grants[grant].record
        if {one.gpu for one in record.devices} != set(hinted_gpus(container.device_ids)):
            self.figures.hint_mismatches += 1

    async def _end_grant(self, do: kb.EndGrant) -> Sequence[kb.Event]:
        try:
            self._keeper.apply(ev.Released(do.grant))
        except Refused as refused:
            if refused.kind is not RefusalKind.NOT_FOUND:
                log.warning("kubelet: grant %s: %s", do.grant, refused)
        return ()

    async def _write_cdi(self, do: kb.WriteCdi) -> Sequence[kb.Event]:
        held = self._keeper.book.grants.get(do.grant)
        opened = self._keeper.open.get(do.grant)
        if held is None or opened is None:
            raise ValueError(f"grant {do.grant} has just ended")
        mounts = await asyncio.to_thread(
            self._mounts_of, held.record, opened.region.directory, do.container
        )
        settles_s = await asyncio.to_thread(self._cdi.write, do.nonce, mounts, do.driver)
        self._settles_s = max(self._settles_s, settles_s)
        return ()

    async def _remove_cdi(self, do: kb.RemoveCdi) -> Sequence[kb.Event]:
        await asyncio.to_thread(self._cdi.remove, do.nonce)
        return ()

    async def _keep_cdi(self, do: kb.KeepCdi) -> Sequence[kb.Event]:
        for name in await asyncio.to_thread(self._cdi.names):
            if name not in do.nonces:
                await asyncio.to_thread(self._cdi.remove, name)
        return ()

    async def _keep_drivers(self, do: kb.KeepDrivers) -> Sequence[kb.Event]:
        with contextlib.suppress(OSError):  # told to whoever starts, and by `sluice doctor`
            await asyncio.to_thread(self._cdi.keep_drivers, do.drivers)
        return ()

    async def _renew_driver(self) -> None:
        """What all containers have in common, as it is installed now; a start looks for itself."""
        before, why = self._cdi.driver, ""
        try:
            files = await asyncio.to_thread(self._files_of)
            async with self._turn:
                await asyncio.to_thread(self._cdi.renew_driver, files)
        except (OSError, ValueError) as error:
            why = str(error)
        if why and why != self._unshared:
            log.warning("kubelet: containers' CDI files have nothing in common: %s", why)
        self._unshared = why
        if self._cdi.driver not in ("", before):
            log.info("kubelet: new containers are given driver %s", self._cdi.driver)

    async def _answer_start(self, do: kb.AnswerStart) -> Sequence[kb.Event]:
        answer = self._starts.get(do.call)
        if answer is not None and not answer.done():
            answer.set_result(None)
        return ()

    async def _refuse_start(self, do: kb.RefuseStart) -> Sequence[kb.Event]:
        answer = self._starts.get(do.call)
        if answer is not None and not answer.done():
            answer.set_exception(NotYet(do.reason))
        return ()

    # --- the end ------------------------------------------------------------------------------

    def _grant_ended(self, grant: GrantId) -> None:
        """Called in the middle of the keeper's work, so it is looked at afterwards."""
        if grant in self.book.grants:
            self._spawn(self._grant_is_over(grant))

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
        await self._renew_driver()
        try:
            async with asyncio.timeout(RECORDS_DEADLINE_S):
                checkpoint = await asyncio.to_thread(self._records.checkpoint)
                listings = await self._records.listings()
                pods = await asyncio.to_thread(self._cgroups.pods)
        except (KubeletAway, TimeoutError) as error:
            self._away(str(error) or "no answer in time")
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
            log.warning("kubelet: nothing is released now: %s", why)
        self.figures.away = why


def _whole(gpus: int, decided: Sequence[ContainerLimits]) -> ContainerLimits:
    """MIG instances, for one container each: those that the queue decided, if it did."""
    limits = default_limits(gpus, DefaultLimits(alone=True))
    for one in decided:
        ask = replace(limits.ask, gpu_uuids=one.ask.gpu_uuids, priority=one.ask.priority)
        limits = replace(limits, ask=ask, source=one.source, workload=one.workload)
    return limits
