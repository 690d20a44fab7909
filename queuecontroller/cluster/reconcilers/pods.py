"""Reconciler of queued pods, single or in groups, and of LeaderWorkerSets, whose groups have
Workloads before they have pods: carries out the actions of `frameworks.pods` and
`frameworks.serving`.

The pods of a group start together, but each by its own write: a pod whose write failed still has
its gate, and is started by the next reconciliation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from queuecontroller.cluster.cache.job_context import SETS, is_scaled_to_zero, kind_of, set_of_group
from queuecontroller.cluster.cache.kinds import ELASTIC_PODS, WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    annotations_of,
    condition_of,
    controller_of,
    has_condition,
    is_leaving,
    key_of,
    labels_of,
    split_key,
)
from queuecontroller.cluster.reconcilers.topology_gates import assigned
from queuecontroller.cluster.reconcilers.units import (
    Unit,
    UnitKind,
    group_unit,
    of_pod,
    owners_of,
    set_of,
    unit_of,
)
from queuecontroller.cluster.reconcilers.workload_actions import INVALID, WorkloadActions
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.frameworks import (
    CreateWorkload,
    DeletePod,
    HoldWorkload,
    MovePod,
    PodAction,
    PodSetInfo,
    ReleasePod,
    ReleaseQuota,
    StartPod,
    elastic_pod_patch,
    finished,
    is_suspended,
    join_group_patch,
    prebuilt_of,
    reconcile_pods,
    reconcile_set,
    start_pod_patch,
    workload_name,
)
from queuecontroller.frameworks.actions import DeleteWorkload
from queuecontroller.frameworks.annotations.topology_requests import domains, places
from queuecontroller.frameworks.names import (
    ADMISSION_GATE,
    ELASTIC_GATE,
    GROUP_NAME,
    JOB_UID,
    LONGEST_LABEL,
    MANAGED,
    POD_SET,
    SUSPENDING_PARENT,
)
from queuecontroller.frameworks.pods import POD, is_over
from queuecontroller.frameworks.serving import COMPONENT_INDEX
from queuecontroller.scheduler.model.compatibility import Feature
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    EVICTED,
    EXCESS_POD_DELETED,
    FAILED_TO_START,
    FINISHED,
    NAME_CONFLICT,
    ON_HOLD,
    QUOTA_RESERVED,
    SCALED_TO_ZERO,
    STARTED,
    STOPPED,
    TERMINATION_TARGET,
)
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import PODS, REPLICA_SETS, STATEFUL_SETS
from sluicecommon.newest import Newest
from sluicecommon.reader import ManifestError

T = TypeVar("T")
AT_ONCE: Final = 8
"""Concurrent writes to the pods of one group."""
MAX_READ: Final = 10
MAX_DEPLOYMENTS: Final = 4_096
"""ReplicaSets whose Deployment is remembered."""
_DEPLOYMENT: Final = "deployment"
"""Framework of a pod that a Deployment's ReplicaSet created."""


_OF_PODS: Final = (StartPod, DeletePod, ReleasePod, MovePod)
"""Actions on one pod each."""


class _Taken(Exception):
    """The group's name is taken by a Workload that is not the group's."""


class Pods:
    def __init__(self, workload_actions: WorkloadActions, add: Callable[[Unit], None]) -> None:
        self._actions = workload_actions
        self._add = add
        self._cache = workload_actions.cache
        self._unit_of: dict[str, Unit] = {}
        self._of_unit: dict[Unit, dict[str, None]] = {}
        self._deployments = Newest[str, str](MAX_DEPLOYMENTS)
        """UID of the Deployment by the UID of its ReplicaSet; "": it has none."""

    # -- units ------------------------------------------------------------------------------------

    def changed(self, key: str, pod: Document | None) -> Iterator[Unit]:
        """Record a pod; yields the units to reconcile for it."""
        before = self._unit_of.pop(key, None)
        if before is not None:
            self._of_unit[before].pop(key)
            if not self._of_unit[before]:
                del self._of_unit[before]
            yield before
        if pod is not None and _is_held(pod):
            unit = _elastic_owner(pod) or of_pod(pod)
            self._unit_of[key] = unit
            self._of_unit.setdefault(unit, {})[key] = None
            if unit != before:
                yield unit

    def of(self, unit: Unit) -> list[Document]:
        keys = self._of_unit.get(unit, ())
        found = (self._cache.get(PODS, key) for key in list(keys))
        return [one for one in found if one is not None]

    def units(self) -> Iterable[Unit]:
        return list(self._of_unit)

    def runs(self, unit: Unit) -> bool:
        """Return True if one of the unit's pods may be running."""
        return any(not is_suspended(POD, one) and not is_over(one) for one in self.of(unit))

    # -- one pod, or one group --------------------------------------------------------------------

    async def reconcile(self, unit: Unit, workloads: Sequence[Document]) -> bool:
        """Reconcile a pod or a group; returns True to be queued again."""
        pods = self.of(unit)
        if not pods:
            return await self._without_pods(unit, workloads)
        try:
            workload = await self._workload(unit, pods, workloads)
        except _Taken as taken:
            text = f"A Workload named {taken} exists and does not belong to the group"
            self._actions.refuse(PODS, pods[0], text, NAME_CONFLICT)
            return False
        actions = reconcile_pods(pods, workload, self._actions.setting(pods[0]))
        by_name = {one["metadata"]["name"]: one for one in pods}
        try:
            return await self._carry_out(unit, actions, workload, by_name)
        except ApiRefused as refused:
            if not refused.not_found and not refused.conflict:
                raise
            seen = [
                await self._actions.look_again(PODS, key_of(one)) for one in pods[: 2 * AT_ONCE]
            ]
            if workload is not None:
                seen.append(await self._actions.look_again(WORKLOADS, key_of(workload)))
            return any(seen)

    async def _workload(
        self, unit: Unit, pods: Sequence[Document], workloads: Sequence[Document]
    ) -> Document | None:
        namespace, name = split_key(unit.key)
        if unit.kind is UnitKind.POD:
            uid = pods[0]["metadata"].get("uid")
            mine = [one for one in workloads if controller_of(one).get("uid") == uid]
            if mine:
                return mine[0]
            try:
                longest = self._actions.setting(pods[0]).longest_name
                name = prebuilt_of(pods[0]) or workload_name(POD, pods[0], longest=longest)
            except ManifestError:
                return None
        elif workloads:
            return workloads[0]
        known = self._cache.get(WORKLOADS, f"{namespace}/{name}")
        if known is not None and unit.kind is UnitKind.GROUP and _is_foreign(known, pods[0]):
            raise _Taken(name)
        if known is None and self.runs(unit):
            without = reconcile_pods(pods, None, self._actions.setting(pods[0]))
            if any(isinstance(one, DeletePod) for one in without):
                # Read before pods are deleted for lack of one: the watch may be behind.
                return await self._actions.find(namespace, name)
        return known

    async def _without_pods(self, unit: Unit, workloads: Sequence[Document]) -> bool:
        if unit.kind is UnitKind.POD:
            self._actions.forget(*unit.reference)
        for workload in workloads:
            above = set_of_group(self._cache, workload)
            of_group = COMPONENT_INDEX in annotations_of(workload)
            if above is not None or (of_group and set_of(workload) is not None):
                on_hold = above is not None and is_scaled_to_zero(above)
                await self._set_without_pods(workload, on_hold)
            elif await self._is_any_left(unit, workload):
                return True
            else:
                for action in reconcile_pods((), workload):
                    assert isinstance(action, DeleteWorkload)
                    await self._actions.do(action, workload)
        return False

    async def _set_without_pods(self, workload: Document, on_hold: bool) -> None:
        """Reconcile a group whose pods are not created yet, or are replaced: its set keeps it.
        `on_hold`: the set wants no pods for now."""
        if on_hold and not is_leaving(workload):
            if condition_of(workload, QUOTA_RESERVED).get("reason") != ON_HOLD:
                await self._actions.do(HoldWorkload(SCALED_TO_ZERO), workload)
        elif has_condition(workload, EVICTED) and has_condition(workload, QUOTA_RESERVED):
            await self._actions.do(ReleaseQuota(), workload)
        elif is_leaving(workload):
            await self._actions.delete(workload)

    async def _is_any_left(self, unit: Unit, workload: Document) -> bool:
        """Ask the API server for pods: their watch may be behind that of Workloads."""
        namespace, name = split_key(unit.key)
        if unit.kind is UnitKind.GROUP and len(name) <= LONGEST_LABEL:
            return await self._actions.is_any(PODS, namespace, f"{GROUP_NAME}={name}")
        for owner in list(owners_of(workload))[:MAX_READ]:
            found = await self._actions.look(PODS, f"{namespace}/{owner.get('name')}")
            if found is not None and found["metadata"].get("uid") == owner.get("uid"):
                return True
        return False

    async def _carry_out(
        self,
        unit: Unit,
        actions: Sequence[PodAction],
        workload: Document | None,
        by_name: dict[str, Document],
    ) -> bool:
        of_pods = [one for one in actions if isinstance(one, _OF_PODS)]
        changed = bool(of_pods)
        starts = [one for one in of_pods if isinstance(one, StartPod)]
        if starts:
            assert workload is not None
            await self._start(unit, starts, workload, by_name)
        for some in _batched([one for one in of_pods if not isinstance(one, StartPod)], AT_ONCE):
            done = (self._end(one, by_name[one.pod]) for one in some)
            await _all_of(done)
        for action in actions:
            match action:
                case StartPod() | DeletePod() | ReleasePod() | MovePod():
                    pass
                case _:
                    first = next(iter(by_name.values()))
                    if isinstance(action, CreateWorkload):
                        await self._label(action.document, first)
                    await self._actions.do(action, workload, PODS, first)
        return changed

    async def _label(self, made: dict[str, Any], pod: Document) -> None:
        """Label a pod's Workload with the UID of the Deployment that the pod is queued for."""
        wanted = Feature.DEPLOYMENT_UID in self._cache.policy.features
        if not wanted or annotations_of(pod).get(SUSPENDING_PARENT) != _DEPLOYMENT:
            return
        owner = controller_of(pod)
        if owner.get("kind") != REPLICA_SETS.kind:
            return
        uid = str(owner.get("uid"))
        if uid not in self._deployments:
            key = f"{pod['metadata']['namespace']}/{owner.get('name')}"
            self._deployments[uid] = await self._deployment_of(key, uid)
        if deployment := self._deployments[uid]:
            made["metadata"]["labels"][JOB_UID] = deployment

    async def _deployment_of(self, key: str, uid: str) -> str:
        """UID of the Deployment that controls a ReplicaSet; "" if none does."""
        try:
            found = await self._actions.look(REPLICA_SETS, key)
        except ApiRefused as refused:
            if not refused.denied:
                raise
            found = None  # By the rights of an older version.
        if found is None or found["metadata"].get("uid") != uid:
            return ""
        return str(controller_of(found).get("uid") or "")

    async def _end(self, action: DeletePod | ReleasePod | MovePod, pod: Document) -> None:
        match action:
            case ReleasePod(_, patch) | MovePod(_, patch):
                try:
                    found = await self._actions.patch(PODS, pod, patch)
                except ApiRefused as refused:
                    if not refused.not_found:
                        raise
                    return
                if is_leaving(found) and not found["metadata"].get("finalizers"):
                    return  # Removing the finalizer has deleted it.
            case DeletePod(_, why, reason):
                if reason:
                    await self._actions.mark(pod, TERMINATION_TARGET, reason, why)
                await self._actions.remove(PODS, pod)
                event_reason = STOPPED if reason else EXCESS_POD_DELETED
                self._actions.record(pod, PODS, KubernetesEvent(event_reason, why))

    async def _start(
        self,
        unit: Unit,
        actions: Sequence[StartPod],
        workload: Document,
        by_name: dict[str, Document],
    ) -> None:
        workload_actions, key = self._actions, key_of(workload)
        if not workload_actions.may_run(workload):
            return  # The admission was revoked meanwhile; that is written next.
        first = by_name[actions[0].pod]
        workload_actions.starting.add(key)
        try:
            infos = {one.name: one for one in workload_actions.infos(workload)}
            if unit.kind is UnitKind.POD:
                infos["main"] = next(iter(infos.values()))
            selectors = _places(workload, actions, by_name, unit.kind is UnitKind.POD)
            for some in _batched(actions, AT_ONCE):
                await _all_of(
                    self._ungate(by_name[one.pod], infos[one.role], selectors.get(one.pod))
                    for one in some
                )
                for _ in some:
                    workload_actions.count_gate(
                        workload, ADMISSION_GATE, unit.kind is UnitKind.GROUP
                    )
        except (ManifestError, ApiRefused) as error:
            if isinstance(error, ApiRefused) and error.status != INVALID:
                raise
            workload_actions.finish(key, FAILED_TO_START, str(error))
            workload_actions.record(
                first, PODS, KubernetesEvent(FAILED_TO_START, str(error), warning=True)
            )
            return
        finally:
            workload_actions.starting.discard(key)
        queue = ((workload.get("status") or {}).get("admission") or {}).get("clusterQueue")
        workload_actions.record(
            first, PODS, KubernetesEvent(STARTED, f"Admitted by clusterQueue {queue}")
        )

    async def _ungate(
        self, pod: Document, info: PodSetInfo, selector: Mapping[str, str] | None
    ) -> None:
        """Remove a pod's gates, with its topology domain as node selector."""
        info = replace(info, node_selector={**info.node_selector, **(selector or {})}, gates=())
        patch = start_pod_patch(pod, info)
        if patch:
            await self._actions.patch(PODS, pod, patch)

    # -- elastic Jobs -----------------------------------------------------------------------------

    async def ungate_elastic(self, units: Iterable[Unit], workloads: Iterable[Document]) -> None:
        """Ungate as many pods of a job as its admitted slice has, the oldest first. The pods are
        those of the job and of what it made."""
        pods = [pod for unit in units for pod in self.of(unit)]
        room: dict[str, int] = {}
        admitted: Document = {}
        for workload in workloads:
            if has_condition(workload, ADMITTED) and not has_condition(workload, FINISHED):
                if has_condition(workload, EVICTED) or not self._actions.may_run(workload):
                    continue
                admitted = workload
                given = ((workload.get("status") or {}).get("admission") or {}).get(
                    "podSetAssignments"
                )
                for one in given or ():
                    room[one["name"]] = one.get("count", 0)
        waiting: list[Document] = []
        for pod in pods:
            if elastic_pod_patch(pod):
                waiting.append(pod)
            elif not finished(POD, pod) and not is_leaving(pod):
                name = labels_of(pod).get(POD_SET, "main")
                room[name] = room.get(name, 0) - 1
        for pod in sorted(waiting, key=lambda one: one["metadata"].get("creationTimestamp") or ""):
            name = labels_of(pod).get(POD_SET, "main")
            if room.get(name, 0) > 0 and not is_leaving(pod):
                room[name] -= 1
                await self._actions.patch(PODS, pod, elastic_pod_patch(pod))
                self._actions.count_gate(admitted, ELASTIC_GATE, False)

    # -- LeaderWorkerSets -------------------------------------------------------------------------

    async def reconcile_set(self, unit: Unit, workloads: Sequence[Document]) -> bool:
        """Reconcile a LeaderWorkerSet; returns True to be queued again."""
        document = self._cache.get(*unit.reference)
        if document is None:
            document = await self._actions.look(*unit.reference)
            if document is not None:
                self._cache.update(SETS, document)
                return True
        uid = document["metadata"].get("uid") if document is not None else None
        mine = [one for one in workloads if any(o.get("uid") == uid for o in owners_of(one))]
        theirs = [one for one in workloads if one not in mine]  # These are of an earlier set.
        setting = self._actions.setting(document) if document is not None else None
        actions = [*reconcile_set(None, theirs)]
        if document is not None and setting is not None:
            actions += reconcile_set(document, mine, setting)
        for workload, action in actions:
            if isinstance(action, DeleteWorkload):
                assert workload is not None
                if self.runs(group_unit(key_of(workload))):
                    continue  # Its quota is in use until its pods are gone.
            assert not isinstance(action, StartPod)
            await self._actions.do(action, workload, SETS, document)  # type: ignore[arg-type]
        if document is None:
            return False
        for pod in self.of(unit):
            try:
                patch = join_group_patch(document, pod)
            except ManifestError:
                return False  # The set has an event for it.
            if patch:
                found = await self._actions.patch(PODS, pod, patch)
                for one in self.changed(key_of(found), found):
                    self._add(one)
        return False


def _is_foreign(workload: Document, pod: Document) -> bool:
    """Return True if the Workload has no pod or pods' owner as owner, and is not prebuilt."""
    kinds = {str(one.get("kind")) for one in owners_of(workload)}
    return not prebuilt_of(pod) and not kinds & {"Pod", STATEFUL_SETS.kind, SETS.kind}


def _places(
    workload: Document, starts: Sequence[StartPod], by_name: Mapping[str, Document], alone: bool
) -> dict[str, Mapping[str, str]]:
    """Return the node selectors of pods that start, if their Workload has topology domains."""
    found: dict[str, Mapping[str, str]] = {}
    going = {one.pod for one in starts}
    for given, request in assigned(workload):
        mine = [one for one in starts if alone or one.role == given["name"]]
        waiting = [by_name[one.pod] for one in mine]
        there = [pod for name, pod in by_name.items() if name not in going] + waiting
        if not alone:
            role = {one.pod: one.role for one in starts}
            there = [
                pod
                for pod in there
                if role.get(pod["metadata"]["name"], labels_of(pod).get(POD_SET)) == given["name"]
            ]
        found.update(places(domains(given), request, there, waiting))
    return found


def _batched(these: Iterable[T], size: int) -> Iterator[list[T]]:
    every = list(these)
    for i in range(0, len(every), size):
        yield every[i : i + size]


async def _all_of(these: Iterable[Awaitable[Any]]) -> None:
    """Wait for all, then raise the first error."""
    for one in await asyncio.gather(*these, return_exceptions=True):
        if isinstance(one, BaseException):
            raise one


def _is_held(pod: Document) -> bool:
    """Return True for a pod that is queued; others only wait for topology domains."""
    labels = labels_of(pod)
    return labels.get(MANAGED) == "true" or labels.get(ELASTIC_PODS) == "true"


def _elastic_owner(pod: Document) -> Unit | None:
    """Return the elastic Job of a pod."""
    if labels_of(pod).get(ELASTIC_PODS) != "true":
        return None
    owner = controller_of(pod)
    kind = kind_of(owner)
    return unit_of(kind, f"{pod['metadata']['namespace']}/{owner.get('name')}") if kind else None
