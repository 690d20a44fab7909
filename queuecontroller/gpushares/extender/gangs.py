"""Gangs: pods that name a group, and of which a minimum is placed together or not at all.

A group that is complete gets places for all its pods in one step, by the search that places the
pods of the queue; until then it holds nothing, so groups cannot block each other. What is reserved
is in `PodLedger.kept` until the pods are bound, at most until the group's deadline. Groups have one
order, by priority and then age: a group that finds no room takes the reservations of later groups,
never those of earlier ones. The file is long: searching, keeping and giving back have one state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, NamedTuple

from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.gpushares.extender.ledger import KeptFor, PodLedger
from queuecontroller.gpushares.extender.pod_groups import (
    HOSTNAME,
    Group,
    GroupKey,
    RuleError,
    Rules,
    group_of,
    rules_of,
)
from queuecontroller.gpushares.extender.pods import PodAsk, PodPlace, is_over
from queuecontroller.gpushares.extender.queued_room import SharesOfQueued, SharesTrial
from queuecontroller.scheduler.placement.stock import Stock
from queuecontroller.scheduler.placement.topology.devices import Short
from sluicecommon.kubernetes.resources import Resource

TIMEOUT_S: Final = 60.0
"""Seconds from the reservation until what was not bound is given back; the coscheduling plugin's
default. Its groups may set another."""
LONGEST_REST_S: Final = 600.0
FIRM: Final = 1 << 31
"""Priority of a group's reservation: above that of any pod, so that no single pod takes it."""
MOST_NAMED: Final = 4
UNPLACED: Final = "the group has no places yet"
Document = Mapping[str, Any]
Names = tuple[str, ...]


class Event(NamedTuple):
    """Reservation of places for pods of a group, or its end."""

    key: GroupKey
    pods: tuple[Document, ...]
    nodes: tuple[str, ...]
    """Node of each pod; empty: the places were given back."""
    why: str = ""
    rest_s: float = 0.0
    """Seconds until the group is tried again."""


@dataclass(slots=True)
class _Gang:
    key: GroupKey
    pods: dict[str, Document] = field(default_factory=dict)
    """Pods that count, by UID: pending, bound, or succeeded."""
    names: dict[str, Names] = field(default_factory=dict)
    """Nodes that kube-scheduler found feasible for a pod."""
    reserved: dict[str, PodPlace] = field(default_factory=dict)
    """Places of pods that are not bound yet; held by `PodLedger.kept`, or by the pod itself while
    it is being bound."""
    until_s: float = 0.0
    rests_until_s: float = 0.0
    failures: int = 0
    """Reservations in a row that ended at their deadline: each makes the next rest longer."""
    why: str = ""
    """Why the last reservation ended."""
    refused: tuple[object, str] = ((), "")
    """The last search that found nothing, with its reason."""


class _Found(NamedTuple):
    places: dict[str, PodPlace]
    why: str = ""


class Gangs:
    def __init__(
        self,
        stock: Stock,
        ledger: PodLedger,
        defaults: Defaults,
        read: Callable[[Document], PodAsk],
        group: Callable[[GroupKey], Group | str | None],
        is_ready: Callable[[str], bool],
        is_stopped: Callable[[str], bool],
        labels: Callable[[str], Mapping[str, str]],
        refusals: Callable[[Document, Sequence[str]], Mapping[str, str]],
        now_s: Callable[[], float],
        happened: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """`group` returns a group's object, the reason why there is none, or None if groups of that
        kind are not known to the cluster. `is_ready` returns True if the GPUs reserved for a pod
        are free; `labels` returns a node's; `refusals` returns nodes that are not feasible for
        other reasons known here."""
        self._stock = stock
        self._ledger = ledger
        self._read = read
        self._group = group
        self._is_ready = is_ready
        self._is_stopped = is_stopped
        self._labels = labels
        self._refusals = refusals
        self._now_s = now_s
        self._happened = happened
        self._shares = SharesOfQueued(stock, ledger, defaults, lambda key: {})
        self._gangs: dict[GroupKey, _Gang] = {}
        self._of_pod: dict[str, GroupKey] = {}
        self._holding: dict[GroupKey, None] = {}
        """Groups with reservations."""
        self._dry = False
        self._before: dict[str, str] = {}
        """Nodes that an earlier leader reserved, by the pod's UID."""

    # -- pods -------------------------------------------------------------------------------------

    def changed(self, uid: str, pod: Document | None) -> tuple[GroupKey, ...]:
        """Record a pod's change, after the ledger has; returns the groups that it is about."""
        before = self._of_pod.get(uid)
        key = group_of(pod) if pod is not None and _counts(pod) else None
        if before is not None and before != key:
            self._drop(before, uid)
        if pod is not None and key is not None:
            gang = self._gangs.setdefault(key, _Gang(key))
            self._of_pod[uid] = key
            gang.pods[uid] = pod
            if _is_settled(pod):
                self._forget(gang, uid)
        return tuple(one for one in dict.fromkeys((before, key)) if one is not None)

    def _drop(self, key: GroupKey, uid: str) -> None:
        gang = self._gangs[key]
        del self._of_pod[uid], gang.pods[uid]
        gang.names.pop(uid, None)
        self._before.pop(uid, None)
        if uid in gang.reserved:
            self._forget(gang, uid)
            self._ledger.unkeep(uid)
        if not gang.pods:
            del self._gangs[key]
        group = self._group(key)
        if gang.reserved and isinstance(group, Group) and len(gang.pods) < group.minimum:
            self._give_back(gang, f"{len(gang.pods)} of at least {group.minimum} pods exist")

    def _forget(self, gang: _Gang, uid: str) -> None:
        if gang.reserved.pop(uid, None) is not None and not gang.reserved:
            del self._holding[gang.key]
            gang.until_s = 0.0

    def _placed(self, gang: _Gang) -> set[str]:
        """Pods that are bound, are being bound, or have succeeded."""
        return {
            uid
            for uid, pod in gang.pods.items()
            if _is_settled(pod) or self._ledger.place(uid) is not None
        }

    def _lacks(self, gang: _Gang, group: Group) -> bool:
        """True if fewer pods than the minimum are placed or have a reservation."""
        return len(self._placed(gang) | gang.reserved.keys()) < group.minimum

    # -- places -----------------------------------------------------------------------------------

    @contextmanager
    def dry_run(self, dry: bool = True) -> Iterator[None]:
        """If `dry`, reserve and give back nothing."""
        self._dry = dry
        try:
            yield
        finally:
            self._dry = False

    def place(self, pod: Document, names: Sequence[str] | None) -> PodPlace | str | None:
        """The place of a pod of a group, on one of these nodes (None: as it is now); the reason why
        it has none at present; None if the pod is placed by itself. See `answers.Queued`."""
        key = group_of(pod)
        group = self._group(key) if key is not None else None
        if key is None or group is None:
            return None
        ask = self._read(pod)
        if ask.wrong or not ask.containers:
            return None
        if isinstance(group, str):
            return group
        if not self._dry and ask.uid not in self._of_pod:  # The watch may be behind.
            self.changed(ask.uid, pod)
        gang = self._gangs.get(key) or _Gang(key)
        if ask.uid not in gang.pods:
            gang = replace(gang, pods={**gang.pods, ask.uid: pod})
        try:
            rules = _rules(gang, group)
        except RuleError as error:
            return f"{key.label}: {error}"
        kept = gang.reserved.get(ask.uid)
        if kept is None and not rules and len(self._placed(gang)) >= group.minimum:
            return None
        if names is None:
            return kept or UNPLACED
        # kube-scheduler checks nodes concurrently: their order differs from pod to pod.
        names = tuple(sorted(names))
        found = self._kept(gang, ask, names) if kept is not None else None
        if found is None:
            if self._dry:
                gang = replace(gang, names=dict(gang.names))
            gang.names[ask.uid] = names
            found = self._reserve(gang, group, rules, ask, names)
        elif isinstance(found, PodPlace) and not self._dry and self._lacks(gang, group):
            # An earlier leader had not stored the places of all.
            self._reserve(gang, group, rules, ask, tuple(self._stock.nodes))
        return found if isinstance(found, PodPlace) else f"{key.label}: {found}"

    def _kept(self, gang: _Gang, ask: PodAsk, names: Names) -> PodPlace | str | None:
        """The pod's reserved place. If the scheduler does not accept its node, all of the group's
        are given back: None if new ones can be chosen at once."""
        kept, there = gang.reserved[ask.uid], self._is_ready(ask.uid)
        # A single other node: the scheduler asks about a nominated one before all.
        if self._dry or (there and (kept.node in names or len(names) == 1)):
            return kept
        gang.names[ask.uid] = names
        why = "is not accepted by the scheduler" if there else "has no room any more"
        being_bound = any(self._ledger.place(uid) is not None for uid in gang.reserved)
        until_s = gang.until_s
        self._give_back(gang, f"node {kept.node} {why} for pod {ask.name}")
        gang.until_s = until_s  # Other places do not put the deadline off.
        return gang.why if being_bound else None

    def _reserve(
        self, gang: _Gang, group: Group, rules: Rules, ask: PodAsk, names: Names
    ) -> PodPlace | str:
        """Reserve places for all pods of the group that have none, or for its minimum; of pods of
        which no other is known, on these nodes."""
        if len(gang.pods) < group.minimum:
            return f"{len(gang.pods)} of at least {group.minimum} pods exist"
        if self._now_s() < gang.rests_until_s:
            return gang.why
        placed = self._placed(gang) | gang.reserved.keys()
        pending = sorted(gang.pods.keys() - placed - {ask.uid}, key=lambda uid: _age(gang, uid))
        if ask.uid not in gang.reserved:
            pending.insert(0, ask.uid)
        asks = {uid: self._read(gang.pods[uid]) for uid in pending}
        for one in asks.values():
            if one.wrong:
                return f"pod {one.name}: {one.wrong}"
        # Pods without GPUs are placed by kube-scheduler alone.
        asks = {uid: one for uid, one in asks.items() if one.containers}
        need = max(1, min(group.minimum - len(placed), len(asks)))
        question = (self._stock.changes, tuple(asks), tuple(gang.names.items()), names)
        if gang.refused[0] == question:
            return gang.refused[1]
        first = dict(islice(asks.items(), need))
        found = self._search(gang, rules, asks, names)
        if not found.places and need < len(asks):
            found = self._search(gang, rules, first, names)
        yielding: list[_Gang] = []
        for later in self._later(gang) if not found.places else ():
            yielding.append(later)
            more = self._search(gang, rules, first, names, yielding)
            if more.places:
                found = more
                break
        if not found.places:
            gang.refused = question, found.why
            return found.why
        for uid, place in found.places.items():
            refused = self._refusals(gang.pods[uid], [place.node]).get(place.node)
            if refused is not None:
                return f"pod {asks[uid].name}: {refused}"
        if not self._dry:
            for other in yielding:
                self._give_back(other, f"its places went to {gang.key.label}, which is earlier")
            self._keep(gang, group, found.places)
        return found.places.get(ask.uid) or gang.reserved[ask.uid]

    def _search(
        self,
        gang: _Gang,
        rules: Rules,
        asks: Mapping[str, PodAsk],
        names: Names,
        yielding: Sequence[_Gang] = (),
    ) -> _Found:
        """Places for these pods, all in one domain of the rules' labels: on the nodes known for a
        pod, else on the most that are known for one."""
        fixed = [
            place
            for uid in gang.pods.keys() - asks.keys()
            if (place := self._ledger.place(uid) or gang.reserved.get(uid)) is not None
        ]
        longest = max((names, *gang.names.values()), key=len)
        alike: dict[tuple[Hashable, str, Names], list[str]] = {}
        for uid, ask in asks.items():
            mine = gang.names.get(uid, longest)
            alike.setdefault((ask.shape, ask.node_policy, mine), []).append(uid)
        # The pods with the fewest nodes first.
        sets = sorted(alike.items(), key=lambda one: (len(one[0][2]), -len(one[1])))
        gone = [
            KeptFor(uid) for one in yielding for uid in one.reserved if uid in self._ledger.kept
        ]
        every = {name for (_, _, each), _ in sets for name in each}
        found = _Found({}, f"no node has the label {' and '.join(rules.labels)}")
        for domain in self._domains(rules.labels, every, fixed):
            found = self._in_domain(domain, sets, asks, rules, fixed, gone)
            if found.places:
                break
        return found

    def _in_domain(
        self,
        domain: Collection[str],
        sets: Sequence[tuple[tuple[Hashable, str, Names], list[str]]],
        asks: Mapping[str, PodAsk],
        rules: Rules,
        fixed: Sequence[PodPlace],
        gone: Sequence[KeptFor],
    ) -> _Found:
        trial = SharesTrial(self._shares, asks, gone)
        made: dict[str, PodPlace] = {}
        try:
            for place in fixed if rules.separate_gpus else ():
                trial.shut(place.node, place)
            for (_, _, nodes), uids in sets:
                limits = {
                    name: len(uids)
                    for name in nodes
                    if name in domain and not self._is_stopped(name)
                }
                got = trial.place(uids[0], limits, len(uids), rules.separate_gpus)
                if isinstance(got, Short):
                    text = got.reason.removeprefix(f"pod set {uids[0]}: ")
                    pods = ", ".join(sorted(asks[uid].name for uid in uids)[:MOST_NAMED])
                    more = ", ..." if len(uids) > MOST_NAMED else ""
                    apart = ", with no two on one GPU" if rules.separate_gpus else ""
                    return _Found({}, f"pods {pods}{more}{apart}: {text}")
                made |= zip(uids, trial.placed(uids[0]), strict=True)
            return _Found(made)
        finally:
            trial.undo()

    def _domains(
        self, labels: Sequence[str], names: Collection[str], fixed: Sequence[PodPlace]
    ) -> list[Collection[str]]:
        """Nodes by the values of the labels, the fullest domain first; of the pods that have places
        already, the one where these are."""
        there = {name for name in names if name in self._stock.nodes}
        if not labels:
            return [there]
        found: dict[tuple[str, ...], set[str]] = {}
        for name in there:
            found.setdefault(self._values(name, labels), set()).add(name)
        only = {self._values(place.node, labels) for place in fixed}
        nodes = self._stock.nodes
        return sorted(
            (
                each
                for values, each in found.items()
                if all(values) and (not only or only == {values})
            ),
            key=lambda each: (sum(nodes[name].free_bytes for name in each), min(each)),
        )

    def _values(self, node: str, labels: Sequence[str]) -> tuple[str, ...]:
        mine = self._labels(node)
        return tuple(mine.get(one) or (node if one == HOSTNAME else "") for one in labels)

    # -- reservations -----------------------------------------------------------------------------

    def _keep(self, gang: _Gang, group: Group, places: Mapping[str, PodPlace]) -> None:
        if gang.until_s <= self._now_s():
            gang.until_s = self._now_s() + (group.timeout_s or TIMEOUT_S)
        self._holding[gang.key] = None
        for uid, place in places.items():
            self._ledger.keep(uid, place, FIRM)
            gang.reserved[uid] = place
        pods = tuple(gang.pods[uid] for uid in places)
        self._happened(Event(gang.key, pods, tuple(one.node for one in places.values())))

    def _give_back(self, gang: _Gang, why: str, rest_s: float = 0.0) -> None:
        """Give back the places of all pods that are not bound; those that are being bound wait for
        the others, and are refused."""
        pods = tuple(gang.pods[uid] for uid in gang.reserved if uid in gang.pods)
        for uid in gang.reserved:
            self._ledger.unkeep(uid)
        gang.reserved.clear()
        del self._holding[gang.key]
        gang.until_s = 0.0
        gang.why = why
        gang.rests_until_s = self._now_s() + rest_s
        self._happened(Event(gang.key, pods, (), why, rest_s))

    def _later(self, gang: _Gang) -> list[_Gang]:
        """Groups after this one that have reservations of which none is being bound, the last
        first."""
        rank = self._rank(gang)
        every = [self._gangs[key] for key in self._holding]
        return sorted(
            (
                one
                for one in every
                if self._rank(one) > rank
                and all(self._ledger.place(uid) is None for uid in one.reserved)
            ),
            key=self._rank,
            reverse=True,
        )

    def _rank(self, gang: _Gang) -> tuple[int, str, GroupKey]:
        group = self._group(gang.key)
        created = group.created if isinstance(group, Group) else ""
        most = max((int(one["spec"].get("priority") or 0) for one in gang.pods.values()), default=0)
        return -most, created, gang.key

    def tick(self) -> float | None:
        """Give back what is reserved beyond its deadline; returns the next deadline."""
        now_s = self._now_s()
        for key in list(self._holding):
            gang, group = self._gangs[key], self._group(key)
            if now_s < gang.until_s and isinstance(group, Group):
                continue
            least = group.minimum if isinstance(group, Group) else 0
            timeout_s = (group.timeout_s if isinstance(group, Group) else None) or TIMEOUT_S
            placed = self._placed(gang)
            here = len(placed)
            for uid in placed & gang.reserved.keys() if here >= least else ():
                self._forget(gang, uid)  # Its binding has no answer yet.
            if not gang.reserved:
                continue
            why = f"its reservation ended after {timeout_s:g} s: {here} of at least {least} pods"
            gang.failures += 1
            rest_s = min(timeout_s * 2 ** min(gang.failures - 1, 10), LONGEST_REST_S)
            self._give_back(gang, f"{why} were being bound; it is tried again later", rest_s)
        return min((self._gangs[key].until_s for key in self._holding), default=None)

    # -- bindings ---------------------------------------------------------------------------------

    def why_not_bound(self, uid: str) -> str:
        """Reason why a pod that is being bound has to wait for others; "" if it need not."""
        key = self._of_pod.get(uid)
        group = self._group(key) if key is not None else None
        if key is None or not isinstance(group, Group):
            return ""
        gang = self._gangs[key]
        here = len(self._placed(gang))
        if here < group.minimum:
            return f"{key.label}: {here} of at least {group.minimum} pods are being bound"
        gang.failures = 0
        return ""

    def waiting(self, key: GroupKey) -> list[Document]:
        """Pods of a group that have no place yet."""
        gang = self._gangs.get(key)
        if gang is None:
            return []
        placed = self._placed(gang) | gang.reserved.keys()
        return [pod for uid, pod in gang.pods.items() if uid not in placed]

    def is_complete(self, key: GroupKey) -> bool:
        """True if at least the minimum of a group's pods exist."""
        gang, group = self._gangs.get(key), self._group(key)
        return gang is not None and isinstance(group, Group) and len(gang.pods) >= group.minimum

    def groups_of(self, kind: Resource, name: str) -> list[GroupKey]:
        """Groups of pods that refer to an object, by its namespace and name."""
        return [
            key
            for key in self._gangs
            if kind in key.kinds and f"{key.namespace}/{key.name}" == name
        ]

    def group_key(self, uid: str) -> GroupKey | None:
        return self._of_pod.get(uid)

    def reserved_node(self, uid: str) -> str | None:
        """Node of a pod's reservation."""
        key = self._of_pod.get(uid)
        place = self._gangs[key].reserved.get(uid) if key is not None else None
        return place.node if place is not None else None

    def is_given_back(self, uid: str) -> bool:
        """True if a pod that is being bound has lost its reservation."""
        key = self._of_pod.get(uid)
        return key is None or uid not in self._gangs[key].reserved

    def keep_again(self, uid: str) -> None:
        """Reserve the place of a pod again whose binding was put off; the ledger has forgotten that
        it was being bound."""
        key = self._of_pod.get(uid)
        place = self._gangs[key].reserved.get(uid) if key is not None else None
        if place is not None:
            self._ledger.keep(uid, place, FIRM)

    # -- an earlier leader ------------------------------------------------------------------------

    def take_over(self) -> None:
        """Find what the earlier leader reserved, once all pods are known: nodes are nominated."""
        for gang in self._gangs.values():
            for uid, pod in gang.pods.items():
                node = (pod.get("status") or {}).get("nominatedNodeName")
                if node and not _is_settled(pod):
                    self._before[uid] = str(node)
        self.restore()

    def restore(self) -> None:
        """Reserve it again as the nodes report; called before each answer."""
        for uid, node in list(self._before.items()):
            if node not in self._stock.nodes:
                continue
            del self._before[uid]
            gang = self._gangs[self._of_pod[uid]]
            group, ask = self._group(gang.key), self._read(gang.pods[uid])
            if not isinstance(group, Group) or uid in gang.reserved or ask.wrong:
                continue
            if len(gang.pods) < group.minimum or uid in self._placed(gang) or not ask.containers:
                continue
            try:
                rules = _rules(gang, group)
            except RuleError:
                continue
            here = replace(gang, names={uid: (node,)})
            found = self._search(here, rules, {uid: ask}, (node,))
            if found.places:
                self._keep(gang, group, found.places)


def _rules(gang: _Gang, group: Group) -> Rules:
    """The rules of all pods of the group together. Raises RuleError."""
    every = [rules_of(pod) for pod in gang.pods.values()]
    labels = dict.fromkeys([*group.topology, *(one for each in every for one in each.labels)])
    return Rules(any(one.separate_gpus for one in every), tuple(labels))


def _counts(pod: Document) -> bool:
    """True unless the pod has failed, is being deleted, or may not be scheduled yet."""
    if pod["metadata"].get("deletionTimestamp") or pod["spec"].get("schedulingGates"):
        return False
    return (pod.get("status") or {}).get("phase") != "Failed"


def _is_settled(pod: Document) -> bool:
    return bool(pod["spec"].get("nodeName")) or is_over(pod)


def _age(gang: _Gang, uid: str) -> tuple[str, str]:
    head = gang.pods[uid]["metadata"]
    return str(head.get("creationTimestamp") or ""), str(head.get("name") or "")
