"""Keeps grants real: carries out the instructions of the grants reducer and turns what happens
into its events.

One instance owns every open region, pidfd and waiting request. Everything runs in one thread,
to completion, so that an event and its instructions are never interleaved with another's.

Longer than a file should be: open regions, pidfds and waiting requests change together or not at
all, so everything that changes them is here. Other parts read them through `reading.py`.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never

from nodeagent.core.flight import Tape
from nodeagent.core.grants import events as ev
from nodeagent.core.grants.book import GrantBook, same_process
from nodeagent.core.grants.placement import Load
from nodeagent.core.grants.states import Held, Rules
from nodeagent.core.grants.usage import GrantAccount
from nodeagent.core.metrics.histogram import WORK_BOUNDS_S, Histogram
from nodeagent.ports.clients import GrantAsk, RefusalKind, Refused, Waiting
from nodeagent.ports.clock import Clock
from nodeagent.ports.ledger import ContainerRef, GrantRecord, GrantState, Ledger, LedgerFull
from nodeagent.ports.processes import Process, Processes, ProcessHandle
from nodeagent.ports.regions import Region, RegionDamaged, RegionStore, SlotClaimed
from nodeagent.ports.registration import RegisterAnswer, Registrar, RegistrationListener
from nodeagent.shell.drive import Drive
from nodeagent.shell.grants.lost_region import LostRegion
from nodeagent.shell.grants.reading import Open, Tenant
from nodeagent.units import MAX_SLOTS, NS_PER_S, GpuUuid, GrantId, RequestId, SlotIndex

log = logging.getLogger(__name__)

CLAIM_RACES = 4
"""Maximum tries to find a slot that no process is claiming at the same moment."""


NOBODY: Final = Process(0, 0, 0, 0)
"""Owner of a container's grant."""

Answer = Waiting | Refused | GrantId


@dataclass(frozen=True, slots=True)
class Asking:
    """A request under way."""

    request: RequestId
    grant: GrantId
    """The id it will have."""
    answers: asyncio.Queue[Answer]


class Keeper:
    """Implements Grants and the Registrar port."""

    def __init__(
        self,
        rules: Rules,
        clock: Clock,
        ledger: Ledger,
        regions: RegionStore,
        processes: Processes,
        registration_listener: Callable[[Registrar], RegistrationListener],
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`registration_listener` makes the listener through which processes register."""
        self._book = GrantBook(rules)
        self._open: dict[GrantId, Open] = {}
        self._requests = itertools.count(1)
        self._clock = clock
        self._ledger = ledger
        self._regions = regions
        self._processes = processes
        self._owners: dict[GrantId, ProcessHandle] = {}
        self._unremoved: set[GrantId] = set()
        """Ended grants whose region could not be removed, as without free file descriptors."""
        self._answers: dict[RequestId, asyncio.Queue[Answer]] = {}
        self._owned: RegisterAnswer | None = None
        self._registration_listener = registration_listener(self)
        self.tape: Tape[ev.Event] = Tape(self._book.memory, frozenset({ev.GpusSeen}))
        self._drive: Drive[ev.Event, ev.Instruction] = Drive(
            self._book, clock.monotonic_ns, fatal, self.tape
        )
        self.tampers_total = 0
        self._short = False
        self.binding_s = Histogram(WORK_BOUNDS_S)
        self.on_ended: list[Callable[[GrantId], None]] = []
        """Called after a grant's region is gone."""
        self.before_ask: list[Callable[[], None]] = []
        """Called before a request is evaluated, so that borrowers can give memory back first."""
        self.after_ask: list[Callable[[], None]] = []
        """Called when a request was granted at once, before its caller receives the answer."""
        self.on_changed: list[Callable[[GrantId], None]] = []
        """Called after a live grant's limits were published again."""
        self.on_registered: list[Callable[[], None]] = []
        """Called when a process has joined a grant."""

    def configure(self, rules: Rules) -> None:
        """While the daemon runs: what was granted stays as it is."""
        self._book.rules = rules
        self.tape.cut()

    # --- what others may know: Grants ---

    def grant(self, grant: GrantId | None) -> Held | None:
        return self._book.grants.get(grant) if grant is not None else None

    def live(self) -> Mapping[GrantId, Held]:
        return self._book.grants

    def opened(self, grant: GrantId | None) -> Open | None:
        return self._open.get(grant) if grant is not None else None

    def opens(self) -> Mapping[GrantId, Open]:
        return self._open

    def tenants(self, grant: GrantId) -> Collection[Tenant]:
        opened = self._open.get(grant)
        return opened.tenants.values() if opened is not None else ()

    def loads(self) -> Mapping[GpuUuid, Load]:
        return self._book.loads()

    def waiting(self) -> int:
        return len(self._book.queue)

    @property
    def managed_beyond(self) -> bool:
        return self._book.rules.managed_beyond

    @property
    def short(self) -> bool:
        return self._short

    # --- events in, instructions out ---

    def apply(self, event: ev.Event) -> None:
        """Raises Refused when the book refuses `event`; see `Drive` for what fails otherwise."""
        self._drive.run(event, self._carry_out)

    def _carry_out(self, do: ev.Instruction) -> None:
        match do:
            case ev.Store():
                self._store(do)
            case ev.MakeRegion():
                self._make_region(do)
            case ev.Publish():
                self._publish(do)
            case ev.OwnSlot():
                self._own_slot(do)
            case ev.RefuseSlot():
                self._refuse_slot(do)
            case ev.ClearSlot():
                self._clear_slot(do)
            case ev.RemoveRegion():
                self._remove_region(do)
            case ev.TellGranted():
                self._answer_granted(do)
            case ev.TellWaiting():
                self._answer_waiting(do)
            case ev.TellRefused():
                self._answer_refused(do)
            case _:
                assert_never(do)

    def _store(self, do: ev.Store) -> None:
        try:
            self._ledger.store(do.record)
        except LedgerFull:
            self._regions.write_record(do.record)  # the second place a restart looks at
            raise
        self._regions.write_record(do.record)

    def _remember(self, record: GrantRecord) -> None:
        try:
            self._ledger.store(record)
        except LedgerFull as error:
            # The row that is missing is older than the truth; a restart compares it with the
            # processes and regions.
            log.error("the ledger is full: %s", error)

    def _make_region(self, do: ev.MakeRegion) -> None:
        record = do.record
        try:
            region = self._regions.create(record, do.limits)
            self._adopt_region(record, region)
        except OSError as error:
            log.error("grant %s: cannot make its region: %s", record.grant, error)
            self._drive.add(ev.RegionFailed(record.grant, f"cannot make the region: {error}"))
            return
        owner = self._owners.get(record.grant)
        if record.container is not None:
            log.info("grant %s: made for %s", record.grant, record.name)
            self._drive.add(ev.RegionReady(record.grant))
            return
        log.info(
            "grant %s: made for pid %d uid %d", record.grant, record.owner.pid, record.owner.uid
        )
        self._drive.add(ev.RegionReady(record.grant))
        if owner is None:
            self._drive.add(ev.OwnerGone(record.grant))
        else:
            owner.on_exit(partial(self.apply, ev.OwnerGone(record.grant)))

    def _adopt_region(self, record: GrantRecord, region: Region) -> None:
        account = GrantAccount([device.physical_bytes for device in record.devices])
        self._open[record.grant] = Open(region, account)
        region.heartbeat(self._clock.monotonic_ns())
        pod_uid = record.container.pod_uid if record.container is not None else ""
        self._registration_listener.open(record.grant, region.directory, record.owner.uid, pod_uid)

    def _publish(self, do: ev.Publish) -> None:
        region = self._open[do.grant].region
        for index, limits in enumerate(do.limits):
            region.set_limits(index, limits)
        for changed in self.on_changed:
            changed(do.grant)

    def _remove_region(self, do: ev.RemoveRegion) -> None:
        self._registration_listener.shut(do.grant)
        opened = self._open.pop(do.grant, None)
        if opened is not None:
            for tenant in opened.tenants.values():
                tenant.handle.close()
            opened.region.close()
        owner = self._owners.pop(do.grant, None)
        if owner is not None:
            owner.close()
        try:
            self._regions.remove(do.grant)
        except OSError as error:
            log.error("grant %s: cannot remove its region, will try again: %s", do.grant, error)
            self._unremoved.add(do.grant)
        log.info("grant %s: ended", do.grant)
        self._drive.add(ev.RegionRemoved(do.grant))
        for ended in self.on_ended:
            ended(do.grant)

    def remove_leftovers(self) -> None:
        """Remove the regions of ended grants that could not be removed before."""
        for grant in list(self._unremoved):
            try:
                self._regions.remove(grant)
            except OSError:  # logged when it failed for the first time
                continue
            self._unremoved.discard(grant)
            log.info("grant %s: its region is removed now", grant)

    # --- requests for grants ---

    def ask(
        self,
        ask: GrantAsk,
        owner: ProcessHandle | None,
        *,
        grant: GrantId | None = None,
        container: ContainerRef | None = None,
        may_wait: bool = False,
        queued: bool = False,
    ) -> Asking:
        """Takes `owner` over; None: it is for a container. `grant`: the id it shall have; None: a
        new one. Answers arrive in the queue until `withdraw`."""
        asking = Asking(
            RequestId(next(self._requests)), grant or GrantId(str(uuid.uuid4())), asyncio.Queue()
        )
        self._answers[asking.request] = asking.answers
        if owner is not None:
            self._owners[asking.grant] = owner
        began_ns = self._clock.monotonic_ns()
        for call in self.before_ask:
            call()
        self.apply(
            ev.Asked(
                asking.request,
                asking.grant,
                ask,
                owner.process if owner is not None else NOBODY,
                self._clock.unix_s(),
                may_wait=may_wait,
                container=container,
                queued=queued,
            )
        )
        if asking.grant in self._open:
            self.binding_s.observe((self._clock.monotonic_ns() - began_ns) / NS_PER_S)
            for call in self.after_ask:
                call()
        return asking

    def ask_now(
        self,
        ask: GrantAsk,
        owner: ProcessHandle | None,
        *,
        grant: GrantId | None = None,
        container: ContainerRef | None = None,
        queued: bool = False,
    ) -> GrantId | Refused:
        """Requests a grant for a caller that cannot wait: returns it now, or the refusal."""
        asking = self.ask(ask, owner, grant=grant, container=container, queued=queued)
        try:
            answer = asking.answers.get_nowait()
        except asyncio.QueueEmpty:
            answer = None
        self.withdraw(asking)
        if answer is None or isinstance(answer, Waiting):
            return Refused(RefusalKind.UNAVAILABLE, "the grant was not made")
        return answer

    def withdraw(self, asking: Asking) -> None:
        """The request was answered or withdrawn."""
        self._answers.pop(asking.request, None)
        self.apply(ev.AskEnded(asking.request))
        if asking.grant not in self._book.grants:
            owner = self._owners.pop(asking.grant, None)
            if owner is not None:
                owner.close()

    def _answer(self, request: RequestId, answer: Answer) -> None:
        queue = self._answers.get(request)
        if queue is not None:
            queue.put_nowait(answer)

    def _answer_granted(self, do: ev.TellGranted) -> None:
        self._answer(do.request, do.grant)

    def _answer_waiting(self, do: ev.TellWaiting) -> None:
        self._answer(do.request, Waiting(do.position, do.reason))

    def _answer_refused(self, do: ev.TellRefused) -> None:
        self._answer(do.request, Refused(do.kind, do.reason))

    # --- registration ---

    def register(
        self, grant: GrantId, handle: ProcessHandle, claimed_slot: SlotIndex | None
    ) -> RegisterAnswer:
        opened = self._open.get(grant)
        if opened is None:
            handle.close()
            return RegisterAnswer(errno.ESTALE)
        answer = RegisterAnswer(errno.ENOSPC)
        for _ in range(CLAIM_RACES):
            claimed = frozenset(opened.region.self_claims())
            asked = ev.SlotAsked(grant, handle.process, claimed_slot, claimed)
            decided = self._ask_slot(asked)
            if decided is not None:
                answer = decided
                break
        if answer.error:
            if not opened.refused:  # Logged once, since a tenant may retry without end.
                opened.refused = True
                name = errno.errorcode.get(answer.error, str(answer.error))
                log.warning("grant %s: pid %d refused: %s", grant, handle.process.pid, name)
            handle.close()
            return answer
        self._watch(grant, opened, handle, answer.slot, answer.generation)
        return answer

    def _ask_slot(self, event: ev.SlotAsked) -> RegisterAnswer | None:
        """Request a slot; None if a tenant claimed it at the same moment, so that the caller
        retries."""
        self._owned = None
        self.apply(event)
        return self._owned

    def reply_unread(self, grant: GrantId, slot: SlotIndex, generation: int) -> None:
        """Free a slot of which its process does not know."""
        opened = self._open.get(grant)
        tenant = opened.tenants.get(slot) if opened else None
        if tenant is not None and tenant.generation == generation:
            self._slot_gone(grant, slot, generation)

    def hung_up(self, grant: GrantId, slot: SlotIndex, generation: int) -> None:
        """Free a slot whose process closed its socket, if the process is gone or runs another
        program. The closed socket alone proves nothing: programs close descriptors they do not
        know. A process that no longer maps the region, or whose image has changed, has called exec,
        which freed its GPU memory."""
        opened = self._open.get(grant)
        tenant = opened.tenants.get(slot) if opened else None
        if opened is None or tenant is None or tenant.generation != generation:
            return
        process = tenant.handle.process
        if (
            not tenant.handle.alive()
            or self._processes.maps_file(process.pid, *opened.region.usage_file()) is False
            or self._is_another_now(tenant.handle.process, tenant.image)
        ):
            self._slot_gone(grant, slot, generation)

    def _is_another_now(self, process: Process, image: int) -> bool:
        """True if the process now runs another program than `image`."""
        now = self._processes.image_of(process.pid)
        return 0 not in (image, now) and image != now

    def _forget_before(self, grant: GrantId, opened: Open, process: Process) -> None:
        """Free the slots that a process had before it called exec: their sockets' end went unseen
        if the daemon was not running then."""
        before = [
            (slot, tenant.generation)
            for slot, tenant in opened.tenants.items()
            if same_process(tenant.handle.process, process)
            and self._is_another_now(process, tenant.image)
        ]
        for slot, generation in before:
            self._slot_gone(grant, slot, generation)

    def _watch(
        self,
        grant: GrantId,
        opened: Open,
        handle: ProcessHandle,
        slot: SlotIndex,
        generation: int,
    ) -> None:
        before = opened.tenants.get(slot)
        if before is not None:  # The process registered again for the slot it has.
            before.handle.close()
        image = self._processes.image_of(handle.process.pid)
        opened.tenants[slot] = Tenant(handle, generation, image)
        handle.on_exit(partial(self._slot_gone, grant, slot, generation))
        self._forget_before(grant, opened, handle.process)
        self._count(opened)
        for registered in self.on_registered:
            registered()

    def _slot_gone(self, grant: GrantId, slot: SlotIndex, generation: int) -> None:
        opened = self._open.get(grant)
        tenant = opened.tenants.get(slot) if opened else None
        if opened is None or tenant is None or tenant.generation != generation:
            return
        self.look(grant, opened)  # its last words
        self.apply(ev.SlotGone(grant, slot))

    def _own_slot(self, do: ev.OwnSlot) -> None:
        opened = self._open[do.grant]
        tenant = opened.tenants.get(do.slot)
        if do.adopted and tenant is not None:
            self._owned = RegisterAnswer(0, do.slot, tenant.generation)
            return
        try:
            generation = opened.region.own_slot(do.slot, do.process, do.adopted)
        except SlotClaimed:
            self._drive.add(ev.SlotMissed(do.grant, do.slot))
            return
        self._owned = RegisterAnswer(0, do.slot, generation)

    def _refuse_slot(self, do: ev.RefuseSlot) -> None:
        self._owned = RegisterAnswer(do.error)

    def _clear_slot(self, do: ev.ClearSlot) -> None:
        opened = self._open[do.grant]
        opened.account.retire(do.slot)
        opened.region.clear_slot(do.slot)
        tenant = opened.tenants.pop(do.slot, None)
        if tenant is not None:
            tenant.handle.close()
        self._count(opened)

    def _count(self, opened: Open) -> None:
        high = max(opened.tenants, default=-1) + 1
        opened.region.set_population(len(opened.tenants), high)

    def signal(self, grant: GrantId, number: int) -> int:
        """Send a signal to every process of the grant we know; how many got it."""
        return sum(handle.signal(number) for handle in self._handles(grant))

    def processes_of(self, grant: GrantId) -> list[Process]:
        """Processes that `signal` reaches."""
        return [handle.process for handle in self._handles(grant)]

    def _handles(self, grant: GrantId) -> list[ProcessHandle]:
        opened = self._open.get(grant)
        handles = [tenant.handle for tenant in opened.tenants.values()] if opened else []
        owner = self._owners.get(grant)
        if owner is not None and all(h.process.pid != owner.process.pid for h in handles):
            handles.append(owner)
        return handles

    def grant_of(self, pid: int) -> GrantId | None:
        """The grant in which a process is registered."""
        for grant, opened in self._open.items():
            if any(tenant.handle.process.pid == pid for tenant in opened.tenants.values()):
                return grant
        return None

    def tenant_pids(self) -> set[int]:
        """Process ids of all registered tenants."""
        return {
            tenant.handle.process.pid
            for opened in self._open.values()
            for tenant in opened.tenants.values()
        }

    # --- usage ---

    def look(self, grant: GrantId, opened: Open) -> None:
        """Take in what the tenants of one grant wrote."""
        if not opened.tenants:
            return
        image = opened.region.read_usage(list(opened.tenants))
        opened.image = image
        generations = {slot: t.generation for slot, t in opened.tenants.items()}
        kinds = opened.account.observe(image, generations, self._clock.monotonic_ns())
        if kinds:
            before = self.tampers_total
            self.tampers_total += len(kinds)
            if before == 0 or self.tampers_total // 1000 > before // 1000:  # one line per thousand
                log.warning("grant %s: tampering: %s", grant, ", ".join(sorted(set(kinds))))
        if image.damage is not None:
            opened.region.repair_usage()

    def adopt_claims(self) -> None:
        """Give slots that tenants claimed for themselves an owner, or zero them when no process is
        behind them."""
        try:
            self._adopt_claims()
            self._short = False
        except OSError as error:  # Without a free descriptor no process is taken for gone.
            if not self._short:
                log.error("cannot read the claims of processes: %s", error)
            self._short = True

    def _adopt_claims(self) -> None:
        for grant, opened in list(self._open.items()):
            claims = opened.region.self_claims()
            opened.half_claims &= claims.keys()
            wanted = {}
            for slot, (ns_pid, starttime) in claims.items():
                if slot in opened.tenants:
                    continue
                if starttime == 0 and slot not in opened.half_claims:
                    opened.half_claims.add(slot)
                else:
                    wanted[slot] = (ns_pid, starttime)
            if not wanted:
                continue
            claimants = self._processes.find_claimants(wanted)
            for slot in wanted:
                self._adopt_claim(grant, opened, slot, claimants.get(slot))

    def _adopt_claim(
        self, grant: GrantId, opened: Open, slot: SlotIndex, handle: ProcessHandle | None
    ) -> None:
        held = self._book.grants.get(grant)
        if (
            handle is not None
            and held is not None
            and self._is_of(handle.process, opened, held)
            and not self._is_another_now(handle.process, opened.region.image_in(slot))
        ):
            asked = ev.SlotAsked(grant, handle.process, slot, frozenset({slot}))
            answer = self._ask_slot(asked)
            if answer is not None and not answer.error and answer.slot == slot:
                log.info("grant %s: adopted pid %d in slot %d", grant, handle.process.pid, slot)
                self._watch(grant, opened, handle, slot, answer.generation)
                return
        if handle is not None:
            handle.close()
        if held is not None and slot not in held.slots:
            opened.region.drop_claim(slot)

    def _is_of(self, process: Process, opened: Open, held: Held) -> bool:
        """True if the process has the right user and maps the region: any tenant may write any PID
        into a claim."""
        allowed = held.record.container is not None or process.uid in (held.record.owner.uid, 0)
        return allowed and (
            self._processes.maps_file(process.pid, *opened.region.usage_file()) is True
        )

    # --- after a restart ---

    def restore(self) -> None:
        """Take over live grants, end those that died meanwhile, remove regions without a grant."""
        present = set(self._regions.present())
        records = {record.grant: record for record in self._ledger.load()}
        # Without a row: the ledger was damaged, moved away, put back from a copy, or its disk was
        # full when the grant was made. An intent is written before its region exists, so
        # every region of this daemon has had a row.
        for grant in present - records.keys() - self._ledger.ended():
            found = self._regions.read_record(grant)
            if found is not None and found.boot_id == self._book.boot_id:
                records[grant] = found
                self._remember(found)
        lost = []
        for grant, record in records.items():
            region = self._open_region(record, grant in present)
            if region is None:
                lost.append(record)
            else:
                self._restore_one(record, region)
        for record in lost:  # last: processes of the other grants are known now
            if not self._hold_lost(record):
                self._remember(ev.ended(record))
                present.discard(record.grant)
                self._regions.remove(record.grant)
        for grant in present - records.keys():
            log.info("grant %s: removed, left over from an earlier run", grant)
            self._regions.remove(grant)
        self.adopt_claims()

    def _open_region(self, record: GrantRecord, present: bool) -> Region | None:
        if not present or record.state is GrantState.ENDED:
            return None
        try:
            return self._regions.open(record, self._book.limits(record))
        except RegionDamaged as error:
            log.warning("grant %s: %s", record.grant, error)
            return None

    def _restore_one(self, record: GrantRecord, region: Region) -> None:
        self._adopt_region(record, region)
        opened = self._open[record.grant]
        slots = []
        for owner in region.owners():
            handle = self._processes.find(owner.pid, owner.starttime_ticks)
            if handle is None or self._is_another_now(handle.process, region.image_in(owner.slot)):
                if handle is not None:
                    handle.close()
                region.clear_slot(owner.slot)
                continue
            slots.append((owner.slot, handle.process))
            self._watch(record.grant, opened, handle, owner.slot, owner.generation)
        self._count(opened)
        log.info("grant %s: adopted from the last run, %d processes", record.grant, len(slots))
        self.apply(ev.Restored(record, self._find_owner(record), tuple(slots)))

    def _hold_lost(self, record: GrantRecord) -> bool:
        """Keeps the quota of a grant without a usable region until its processes have ended.
        Returns False if none is alive."""
        if record.state not in (GrantState.ACTIVE, GrantState.DRAINING):
            return False  # It has no processes yet, or none any more.
        container = record.container
        known = self.tenant_pids()
        handles: list[ProcessHandle] = []
        for handle in self._processes.users_of(
            record.grant, record.owner.uid, container.pod_uid if container is not None else ""
        ):
            if handle.process.pid in known or len(handles) == MAX_SLOTS:
                handle.close()
            else:
                handles.append(handle)
        # A container's next start needs a region: its grant ends with those that run now.
        owned = container is None and self._find_owner(record)
        if not handles and not owned:
            return False
        physical = [device.physical_bytes for device in record.devices]
        opened = Open(LostRegion(), GrantAccount(physical), lost=True)
        self._open[record.grant] = opened
        slots = []
        for index, handle in enumerate(handles):
            slots.append((SlotIndex(index), handle.process))
            self._watch(record.grant, opened, handle, SlotIndex(index), 1)
        log.error(
            "grant %s: region files are missing or corrupt: its quota is held until its"
            " processes have ended, new processes get no CUDA",
            record.grant,
        )
        self.apply(ev.Restored(record, owned, tuple(slots)))
        return True

    def _find_owner(self, record: GrantRecord) -> bool:
        """True if the grant's owner still exists. A container's grant is held until the kubelet has
        released it."""
        if record.container is not None:
            return True
        root = self._processes.find(record.owner.pid, record.owner.starttime_ticks)
        if root is None:
            return False
        self._owners[record.grant] = root
        root.on_exit(partial(self.apply, ev.OwnerGone(record.grant)))
        return True

    def close(self) -> None:
        """Let go of everything without ending it: jobs outlive the daemon."""
        for opened in self._open.values():
            for tenant in opened.tenants.values():
                tenant.handle.close()
            opened.region.close()
        for owner in self._owners.values():
            owner.close()
        self._open.clear()
        self._owners.clear()
