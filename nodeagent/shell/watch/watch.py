"""Checks the processes on the GPUs after every reading, and starts the acts that the rules require.

The input comes from NVML's list of processes, /proc, and the list of registered processes; where
the kernel watch runs it adds opens, foreign libraries and audit windows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

from nodeagent.core.gpus.mig import unit_of
from nodeagent.core.watch.detection import AT_ONCE, RULES, Alarm, Detector, Limits, Rule, Verdict
from nodeagent.core.watch.holds import alarms, view_of
from nodeagent.core.watch.response import UNDONE, Level, Policy, Responder
from nodeagent.core.watch.sightings import (
    DeviceOpen,
    ForeignMapping,
    GpuUser,
    GrantSight,
    LaunchAudit,
    Look,
    Subject,
)
from nodeagent.ports.clock import Clock
from nodeagent.ports.gpus import NodeReading
from nodeagent.ports.processes import LibraryIdentity, Process, Processes
from nodeagent.ports.telemetry import (
    AuditWindow,
    DeviceOpened,
    ForeignLibrary,
    KernelEvent,
    KernelWatch,
)
from nodeagent.ports.views import ContainedView
from nodeagent.ports.watch import Inspector, MappedLibrary, ProcessFacts
from nodeagent.settings.daemon import DetectionSettings
from nodeagent.shell.grants.reading import Grants
from nodeagent.shell.journal import Journal
from nodeagent.shell.watch.containment import Containment
from nodeagent.units import MIB, NS_PER_S, GpuUuid, GrantId

_GRANULE_BYTES: Final = 2 * MIB
"""Smallest allocation of a driver; a grant with less than this left is full."""
MAPS_EVERY_S: Final = 5.0
"""Interval of reading the mapped libraries of one process; each reading costs about 21 us."""
MAX_MAPS: Final = 100
"""Maximum processes whose libraries are read after one reading; the others follow later."""


class Watch:
    def __init__(
        self,
        settings: DetectionSettings,
        grants: Grants,
        processes: Processes,
        inspector: Inspector,
        containment: Containment,
        journal: Journal,
        clock: Clock,
        kernel: KernelWatch,
        place_of: Callable[[GrantId], tuple[str, str]],
        known_libraries: Callable[[], Iterable[str]],
        former_libraries: Callable[[], Collection[LibraryIdentity]],
    ) -> None:
        """`kernel` reports opens, foreign libraries and audit windows. `place_of` is (namespace,
        ClusterQueue) of a grant that came through the queue, `known_libraries` the paths of driver
        libraries that processes may have mapped, `former_libraries` those this node has had, as of
        a process that has one from before an update mapped."""
        self._enabled = settings.enabled
        self._exempt = settings.exempt_paths()
        self._grants = grants
        self._processes = processes
        self._inspector = inspector
        self._containment = containment
        self.on_pod = containment.on_pod
        self._journal = journal
        self._clock = clock
        self._detector = Detector(_limits(settings))
        self._responder = Responder(_policy(settings))
        self._place_of = place_of
        self._known_libraries = known_libraries
        self._former_libraries = former_libraries
        self.detections: Counter[str] = Counter({str(rule): 0 for rule in Rule})
        self._facts: dict[int, ProcessFacts] = {}
        self._maps: dict[tuple[int, int], tuple[int, tuple[ForeignMapping, ...]]] = {}
        """Time of the last reading of each process's mappings, and the foreign libraries in
        them."""
        self._audits: list[LaunchAudit] = []
        self._reported_foreign: list[ForeignMapping] = []
        self._timer: asyncio.TimerHandle | None = None
        kernel.subscribe(self.receive)

    def acts(self) -> dict[str, int]:
        """Number of acts of each step since the daemon started."""
        return dict(self._containment.acts)

    def suspicions(self) -> dict[str, int]:
        standing = Counter(str(alarm.rule) for alarm in self._detector.alarms)
        return {str(rule): standing[str(rule)] for rule in Rule}

    def resume(self) -> None:
        """Take up what an earlier daemon held: before the first reading, with all grants there."""
        policy = self._responder.policy if self._enabled else None
        now_ns = self._clock.monotonic_ns()
        for alarm, steps in alarms(self._containment.resume(policy), now_ns):
            self._detector.take_up(alarm)
            self._responder.taken_up(alarm, steps)

    def contained(self) -> list[ContainedView]:
        return [view_of(hold) for hold in self._containment.holds.all()]

    def holding(self, grant: GrantId) -> str:
        """`RULE (STEP, STEP)` of what holds the grant's programs now; empty if nothing does."""
        steps: dict[str, list[str]] = {}
        for hold in self._containment.holds.all():
            if hold.grant == grant:
                steps.setdefault(hold.rule, []).append(hold.step)
        return "; ".join(f"{rule} ({', '.join(done)})" for rule, done in steps.items())

    def held_steps(self) -> dict[str, int]:
        steps = Counter(hold.step for hold in self._containment.holds.all())
        return {str(step): steps[str(step)] for step in sorted(UNDONE)}

    def let_go(self, numbers: Iterable[int], because: str) -> list[int]:
        """A person's word, for acts by their numbers: those that were taken back. Nothing more is
        done about the suspicions behind them while they stand."""
        done = []
        for number in numbers:
            hold = self._containment.holds.get(number)
            if hold is not None:
                self._responder.pardon(hold.holder)
                if self._containment.let_go(hold, because):
                    done.append(number)
        return done

    def look(self, reading: NodeReading) -> bool:
        """Evaluates a reading; returns True if the next one should come soon. A failed reading
        shows nothing."""
        self._containment.sweep()
        if not self._enabled or reading.error is not None:
            return False
        look = self._sight(reading)
        verdict = self._detector.look(look)
        self._judged(verdict)
        return verdict.pending

    def _judged(self, verdict: Verdict) -> None:
        for alarm in verdict.raised:
            self._raised(alarm)
        for alarm in verdict.confirmed:
            self._responder.confirmed(alarm)
        for alarm in (*verdict.cleared, *self._detector.forget(self._gone)):
            self._cleared(alarm)
        self._act()

    def forgive(self, grant: GrantId) -> None:
        """A person let the grant go on: what was done to it by us is over."""
        for alarm in self._detector.forget(lambda subject: subject.grant == grant):
            self._cleared(alarm)
        self._containment.forgive(grant)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def receive(self, event: KernelEvent) -> None:
        """Takes an event from the kernel watch."""
        if not self._enabled:
            return
        if isinstance(event, DeviceOpened):
            subject = self._subject(event.actor.pid, event.actor.starttime_ticks)
            if subject is not None:
                exempt = self._is_exempt(subject) or event.denied
                opened = DeviceOpen(subject, event.major, event.minor, event.access, exempt)
                now_ns = self._clock.monotonic_ns()
                self._judged(self._detector.look(Look(now_ns, opens=(opened,)), AT_ONCE))
        elif isinstance(event, ForeignLibrary) and event.resembles == "driver":
            # Not a copy of ours: one from before an upgrade is mapped by every older process.
            subject = self._subject(event.actor.pid, event.actor.starttime_ticks)
            # The first program may map a new driver a moment before the eBPF child knows of it.
            if subject is not None and (event.file.device, event.file.inode) not in self._known():
                self._reported_foreign.append(ForeignMapping(subject, event.path, event.file.inode))
        elif isinstance(event, AuditWindow):
            for one in event.processes:
                subject = self._subject(one.pid, one.starttime_ticks)
                if subject is not None:
                    self._audits.append(LaunchAudit(subject, one.driver, one.shim))

    # --- what is seen -------------------------------------------------------------------------

    def _sight(self, reading: NodeReading) -> Look:
        registered = {
            tenant.handle.process.pid: (tenant.handle.process, grant)
            for grant, opened in self._grants.opens().items()
            for tenant in opened.tenants.values()
        }
        seen = {one.pid for gpu in reading.gpus for one in gpu.processes} - registered.keys()
        self._facts = {
            pid: facts for pid, facts in self._facts.items() if pid in seen and self._is_same(facts)
        }
        users = []
        for gpu in reading.gpus:
            for one in gpu.processes:
                known = registered.get(one.pid)
                # Its pidfd is open, so the PID is not reused while it is registered.
                subject = (
                    self._registered(*known) if known is not None else self._subject(one.pid, None)
                )
                if subject is None:  # gone meanwhile, or in a pid namespace we cannot see
                    continue
                users.append(
                    GpuUser(
                        subject,
                        unit_of(gpu, one),
                        known is not None or self._is_lost(subject.grant),
                        known is None and subject.uid == 0 and self._is_exempt(subject),
                        one.memory_bytes,
                        one.sm_ratio,
                    )
                )
        audits, self._audits = tuple(self._audits), []
        return Look(
            at_ns=self._clock.monotonic_ns(),
            users=tuple(users),
            grants=tuple(self._grant_sights()),
            foreign=self._foreign(users),
            audits=audits,
        )

    def _grant_sights(self) -> Iterable[GrantSight]:
        for grant, opened in self._grants.opens().items():
            held = self._grants.grant(grant)
            if held is None or not opened.tenants or opened.lost:
                continue
            subject = self._of_grant(grant)
            tampers = sum(opened.account.tampers.values())
            hooks = tuple(
                (
                    tenant.handle.process.pid,
                    used.hook_mask,
                    used.unknown_symbols,
                    used.unknown_tables,
                    used.failed_records,
                )
                for slot, tenant in opened.tenants.items()
                if opened.image is not None
                and (used := opened.image.slots.get(slot)) is not None
                and used.generation_seen == tenant.generation
            )
            beyond = self._grants.managed_beyond
            for index, device in enumerate(held.record.devices):
                total = opened.account.total(index)
                yield GrantSight(
                    subject,
                    grant,
                    GpuUuid(device.gpu),
                    total.charged_bytes,
                    total.consumed_ns,
                    total.completed_ns,
                    opened.account.activity(index).outstanding_ns,
                    tampers,
                    hooks if index == 0 else (),
                    beyond=beyond and total.charged_bytes + _GRANULE_BYTES > device.memory_bytes,
                )

    def _is_lost(self, grant: GrantId | None) -> bool:
        """True if the grant's registrations were lost. Its processes are not at fault, so none is
        held for that."""
        opened = self._grants.opened(grant)
        return opened is not None and (opened.lost or self._grants.short)

    def _of_grant(self, grant: GrantId) -> Subject:
        """The grant as a whole; a container's by the cgroup of one of its registered processes."""
        record = self._grants.live()[grant].record
        namespace, queue = self._place_of(grant)
        subject = Subject(
            grant=grant,
            uid=record.owner.uid,
            program=record.name,
            namespace=record.container.namespace if record.container else namespace,
            queue=queue,
        )
        if record.container is None:
            return subject
        for tenant in self._grants.tenants(grant):
            facts = self._facts_of(tenant.handle.process.pid)
            if facts is not None and facts.pod_uid == record.container.pod_uid:
                return replace(
                    subject, cgroup=facts.cgroup, freezer=facts.freezer, pod_uid=facts.pod_uid
                )
        return subject

    def _registered(self, process: Process, grant: GrantId) -> Subject:
        """Subject of a registered process, without a read of /proc: there may be hundreds at every
        reading."""
        held = self._grants.grant(grant)
        container = held.record.container if held is not None else None
        namespace, queue = self._place_of(grant)
        return Subject(
            grant=grant,
            pid=process.pid,
            starttime_ticks=process.starttime_ticks,
            uid=process.uid,
            namespace=container.namespace if container is not None else namespace,
            queue=queue,
        )

    def _subject(self, pid: int, starttime_ticks: int | None) -> Subject | None:
        facts = self._facts_of(pid)
        if facts is None or starttime_ticks not in (None, facts.starttime_ticks):
            return None
        grant = self._grant_of(facts)
        namespace, queue = self._place_of(grant) if grant is not None else ("", "")
        held = self._grants.grant(grant)
        if held is not None and held.record.container is not None:
            namespace = held.record.container.namespace
        return Subject(
            grant=grant,
            pid=facts.pid,
            starttime_ticks=facts.starttime_ticks,
            uid=facts.uid,
            program=facts.program,
            cgroup=facts.cgroup,
            freezer=facts.freezer,
            pod_uid=facts.pod_uid,
            namespace=namespace,
            queue=queue,
        )

    def _grant_of(self, facts: ProcessFacts) -> GrantId | None:
        """Grant of the process's pod, or the grant that it was started in."""
        line = ((facts.pid, facts.starttime_ticks), *facts.ancestors)
        for grant, held in self._grants.live().items():
            container, owner = held.record.container, held.record.owner
            if container is not None:
                if facts.pod_uid and facts.pod_uid == container.pod_uid:
                    return grant
            elif (owner.pid, owner.starttime_ticks) in line or any(
                (process.pid, process.starttime_ticks) in line for process in held.slots.values()
            ):
                return grant
        return None

    def _facts_of(self, pid: int) -> ProcessFacts | None:
        facts = self._facts.get(pid)
        if facts is None:
            facts = self._inspector.facts(pid)
            if facts is not None:
                self._facts[pid] = facts
        return facts

    def _is_same(self, facts: ProcessFacts) -> bool:
        """Still that process, and not one that came to have its pid."""
        return self._lives(facts.pid, facts.starttime_ticks)

    def _lives(self, pid: int, starttime_ticks: int) -> bool:
        try:
            handle = self._processes.find(pid, starttime_ticks)
        except OSError:  # Unknown now, so it counts as alive.
            return True
        if handle is None:
            return False
        handle.close()
        return True

    def _is_exempt(self, subject: Subject) -> bool:
        """True if the program is exempt. A program that another user starts may carry that user's
        library, so the exemption then covers opens only."""
        return not subject.pod_uid and subject.program in self._exempt

    def _foreign(self, users: Iterable[GpuUser]) -> tuple[ForeignMapping, ...]:
        now_ns = self._clock.monotonic_ns()
        known: set[tuple[int, int]] | None = None
        live, looked = set(), 0
        for user in users:
            key = (user.subject.pid, user.subject.starttime_ticks)
            if key in live:
                continue
            live.add(key)
            at_ns, _found = self._maps.get(key, (-1, ()))
            if (at_ns >= 0 and now_ns - at_ns < MAPS_EVERY_S * NS_PER_S) or looked >= MAX_MAPS:
                continue
            looked += 1
            if known is None:
                known = self._known()
            self._maps[key] = (
                now_ns,
                tuple(
                    ForeignMapping(user.subject, one.path, one.inode)
                    for one in self._inspector.driver_libraries(user.subject.pid)
                    if (one.device, one.inode) not in known and not self._is_former(one)
                ),
            )
        self._maps = {key: found for key, found in self._maps.items() if key in live}
        found_foreign, self._reported_foreign = self._reported_foreign, []
        return (*found_foreign, *(one for _at, found in self._maps.values() for one in found))

    def _known(self) -> set[tuple[int, int]]:
        ids = (self._inspector.file_id(path) for path in self._known_libraries())
        return {one for one in ids if one is not None}

    def _is_former(self, library: MappedLibrary) -> bool:
        identity = self._inspector.identity(library.through)
        return identity is not None and identity in self._former_libraries()

    # --- what is done -------------------------------------------------------------------------

    def _raised(self, alarm: Alarm) -> None:
        spec, subject = RULES[alarm.rule], alarm.subject
        level = self._responder.raised(alarm)
        self.detections[str(alarm.rule)] += 1
        whom = subject.grant or f"{subject.uid}:{subject.program}"
        self._journal.record(
            alarm.rule,
            "warning" if level is Level.OBSERVE else "critical",
            f"{subject} {spec.meaning}; confidence {spec.confidence}, policy {level}",
            once=f"{alarm.rule}:{whom}",
            uid=subject.uid,
            grant=subject.grant,
            pid=subject.pid,
            evidence=alarm.evidence,
        )

    def _cleared(self, alarm: Alarm) -> None:
        for act in self._responder.cleared(alarm, alive=not self._gone(alarm.subject)):
            self._containment.carry_out(act)

    def _gone(self, subject: Subject) -> bool:
        if not subject.pid:
            return subject.grant not in self._grants.live()
        return not self._lives(subject.pid, subject.starttime_ticks)

    def _act(self) -> None:
        """Carries out the acts that are due now; the others when their time has come, whether or
        not the driver answers."""
        now_ns = self._clock.monotonic_ns()
        for act in self._responder.due(now_ns):
            self._containment.carry_out(act)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wait_s = self._responder.next_due_s(now_ns)
        if wait_s is not None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._act)


def _limits(settings: DetectionSettings) -> Limits:
    return Limits(
        grace_s=settings.grace_s,
        memory_slack_bytes=settings.memory_slack_mib * MIB,
        memory_slack_ratio=settings.memory_slack_percent / 100,
        time_slack_ratio=settings.time_slack_percent / 100,
        time_window_s=settings.time_window_s,
        runaway_s=settings.runaway_kernel_s,
    )


def _policy(settings: DetectionSettings) -> Policy:
    return Policy(
        grants=Level(settings.grants),
        bare_metal=Level(settings.bare_metal),
        namespaces={k: Level(v) for k, v in settings.policy_map("namespace").items()},
        queues={k: Level(v) for k, v in settings.policy_map("queue").items()},
        rules={Rule(k): Level(v) for k, v in settings.rule_levels().items()},
    )
