"""Runs: queues, jobs and steps against the real controller at a real API server, side by side.

No step is timed: what is expected is waited for, and what the last step expects is looked at again
after a moment. Kubelets and the operators of jobs are not there; steps write what they would write.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sluicecommon.kubernetes.quantity import exact_value
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import KUEUE, condition, is_true
from tests.conformance.kueue.cases import Document, RunCase, changed, value_at
from tests.conformance.kueue.given import job, named, objects_of, whole
from tests.conformance.kueue.objects import collection_of, path_of
from tests.kit.conformance.case import Outcome, Verdict

BESIDE: Final = 16
"""Runs that are under way at a time."""
DEADLINE_S: Final = 120.0
SETTLED_S: Final = 2.0
POLL_S: Final = 0.3
_VERSIONS: Final = {"Job": "batch/v1", "Node": "v1", "Namespace": "v1", "Pod": "v1"}
_CONFLICT: Final = 409


def run_all(
    plane: ControlPlane, cases: Sequence[tuple[str, RunCase]]
) -> Iterator[tuple[RunCase, Outcome]]:
    """Run the cases, each under its name in the cluster, and yield each when it is done."""
    waiting = [(case, _Run(plane, name, case)) for name, case in cases]
    under_way: list[tuple[RunCase, Iterator[None], _Run]] = []
    while waiting or under_way:
        while waiting and len(under_way) < BESIDE:
            case, one = waiting.pop(0)
            under_way.append((case, one.go(), one))
        for entry in list(under_way):
            case, steps, one = entry
            try:
                next(steps)
            except StopIteration:
                under_way.remove(entry)
                details = tuple(one.differences)
                yield case, Outcome(Verdict.DIFFERS if details else Verdict.AGREED, details)
        time.sleep(POLL_S)


class _Run:
    def __init__(self, plane: ControlPlane, name: str, case: RunCase) -> None:
        self._plane = plane
        self._name = name
        self._case = case
        self._made: list[str] = []
        """Paths of the objects of this run."""
        self.differences: list[str] = []

    def go(self) -> Iterator[None]:
        """Take the steps; yields while it waits. Nothing of the run stays, since some settings
        count the workloads of the whole cluster."""
        yield from self._steps()
        for path in reversed(self._made):
            self._plane.api.delete(path)
        workloads = f"{KUEUE}/namespaces/{self._name}/workloads"
        self._plane.api.delete(workloads)
        for one in self._plane.api.get(workloads)["items"]:  # Their jobs are gone already.
            with contextlib.suppress(ApiError):
                path = f"{workloads}/{one['metadata']['name']}"
                self._plane.api.patch(path, {"metadata": {"finalizers": None}})

    def _steps(self) -> Iterator[None]:
        try:
            for document in objects_of(self._case.given, self._name):
                self._create(document)
            for number, step in enumerate(self._case.steps, 1):
                yield from self._take(dict(step))
                yield from self._wait(step, number, number == len(self._case.steps))
                if self.differences:
                    return
        except (ApiError, KeyError, IndexError, AttributeError) as error:
            self.differences.append(f"a step failed: {error!r}")

    # -- steps ------------------------------------------------------------------------------------

    def _take(self, step: Document) -> Iterator[None]:
        for action, values in step.items():
            match action:
                case "expect" | "usage" | "counts" | "active" | "is" | "not":
                    pass
                case "pause":
                    end_s = time.monotonic() + float(values)
                    while time.monotonic() < end_s:
                        yield
                case "jobs":
                    for name, given in values.items():
                        self._create(job(name, given, self._name))
                case "make":
                    for document in values:
                        self._create(whole(document, self._name))
                case "finish" | "fail":
                    for name in values:
                        self._end(name, action == "fail")
                case "delete":
                    for one in values:
                        self._plane.api.delete(self._path(one))
                case "patch" | "status":
                    for one, changes in values.items():
                        self._change(one, named(changes, self._name), action == "status")
                case "workload" | "workload-status":
                    for name, changes in values.items():
                        found = self._workloads()[name]["metadata"]["name"]
                        subresource = action == "workload-status"
                        self._change(f"Workload/{found}", named(changes, self._name), subresource)
                case _:
                    self.differences.append(f"no such action: {action}")

    def _create(self, document: Document) -> None:
        status = document.get("status")
        for owner in document["metadata"].get("ownerReferences") or ():
            if "uid" not in owner:
                where = {"name": owner["name"], "namespace": self._name}
                found = self._plane.api.get(path_of({**owner, "metadata": where}))
                owner |= {"uid": found["metadata"]["uid"], "controller": True}
        made = self._plane.api.call("POST", collection_of(document), document)
        if document["kind"] != "Namespace":  # Nothing would empty it.
            self._made.append(path_of(document))
        if document["kind"] == "Node" and made["spec"].get("taints"):
            # The API server taints a new node, and the controller-manager removes that.
            made = self._plane.api.patch(path_of(document), {"spec": {"taints": None}})
        if status and made.get("status") != status:
            self._plane.api.patch(f"{path_of(document)}/status", {"status": status})

    def _path(self, one: str) -> str:
        """Path of `NAME` of a Job, of `KIND/NAME`, or of `VERSION/KIND/NAME`."""
        *version, kind, name = ["Job", *one.split("/")][-max(2, one.count("/") + 1) :]
        document = {
            "apiVersion": "/".join(version) or _VERSIONS.get(kind, "kueue.x-k8s.io/v1beta2"),
            "kind": kind,
            "metadata": {"name": named(name, self._name), "namespace": self._name},
        }
        return path_of(document)

    def _change(self, one: str, changes: Mapping[str, Any], is_status: bool) -> None:
        path = self._path(one)
        while True:
            found = self._plane.api.get(path)
            try:
                self._plane.api.call(
                    "PUT", f"{path}/status" if is_status else path, changed(found, changes)
                )
            except ApiError as error:
                if error.status != _CONFLICT:
                    raise
            else:
                return

    def _end(self, name: str, failed: bool) -> None:
        """Write the status of a Job that is done, as its controller would."""
        at = "2026-11-22T10:00:00Z"
        kinds = ("FailureTarget", "Failed") if failed else ("SuccessCriteriaMet", "Complete")
        conditions = [
            {"type": kind, "status": "True", "reason": "r", "message": "m", "lastTransitionTime": at, "lastProbeTime": at}
            for kind in kinds
        ]  # fmt: skip
        status: Document = {"conditions": conditions, "startTime": at, "active": 0, "ready": 0}
        if not failed:
            total = self._plane.api.get(self._path(name))["spec"]["completions"]
            status |= {"completionTime": at, "succeeded": total}
        self._plane.api.patch(f"{self._path(name)}/status", {"status": status})

    # -- what is expected -------------------------------------------------------------------------

    def _wait(self, step: Mapping[str, Any], number: int, is_last: bool) -> Iterator[None]:
        end_s = time.monotonic() + DEADLINE_S
        since_s: float | None = None
        while True:
            found = self._differences(step)
            now_s = time.monotonic()
            if found:
                since_s = None
            elif since_s is None:
                since_s = now_s
            if since_s is not None and (not is_last or now_s >= since_s + SETTLED_S):
                return
            if now_s > end_s:
                self.differences += [f"step {number}: {one}" for one in found or ["unsteady"]]
                self.differences += self._as_stored()
                return
            yield

    def _as_stored(self) -> list[str]:
        """Return one line for each Workload of the run: a difference that timed out is explained by its status."""
        return [
            f"{name} is stored as version {one['metadata']['resourceVersion']}, "
            f"generation {one['metadata'].get('generation')}: {json.dumps(one.get('status') or {})[:1000]}"
            for name, one in self._workloads().items()
        ]

    def _differences(self, step: Mapping[str, Any]) -> list[str]:
        found: list[str] = []
        if "expect" in step:
            workloads = self._workloads()
            for name, wanted in step["expect"].items():
                found += self._state(name, wanted, workloads.get(name))
        for kind in ("usage", "counts", "active"):
            for name, wanted in (step.get(kind) or {}).items():
                ours = getattr(self, f"_{kind}")(name, wanted)
                if ours != wanted:
                    found.append(f"{kind} of {name}: expected {wanted}, got {ours}")
        for one, wanted in (step.get("is") or {}).items():
            document = self._plane.api.find(self._path(one)) or {}
            for path, value in named(wanted, self._name).items():
                got = _at(document, path)
                if got != value:
                    found.append(f"{one} {path}: expected {value!r}, got {got!r}")
        return found

    def _workloads(self) -> dict[str, Document]:
        """Newest Workload by the name of the object that owns it, else by its own."""
        found: dict[str, Document] = {}
        items = self._plane.api.get(f"{KUEUE}/namespaces/{self._name}/workloads")["items"]
        for one in sorted(items, key=lambda one: one["metadata"]["creationTimestamp"]):
            owners = [owner["name"] for owner in one["metadata"].get("ownerReferences") or ()]
            for name in owners or [one["metadata"]["name"]]:
                found[name] = one
        return found

    def _state(self, name: str, wanted: Any, workload: Document | None) -> list[str]:
        details = wanted if isinstance(wanted, Mapping) else {"is": wanted}
        state, *more = details["is"].split()
        if state in ("gone", "none"):
            return [] if workload is None else [f"{name}: expected no Workload"]
        if workload is None:
            return [f"{name}: expected {details['is']}, got no Workload"]
        found = []
        ours = self._words(workload, state)
        if ours[0] != state or (more and sorted(more) != sorted(ours[1:])):
            found.append(f"{name}: expected {details['is']}, got {' '.join(ours)}")
        admission = (workload.get("status") or {}).get("admission") or {}
        sets = admission.get("podSetAssignments") or []
        for key, value in details.items():
            match key:
                case "is":
                    continue
                case "count":
                    got: Any = sum(one.get("count", 0) for one in sets)
                case "uses":
                    got = _total(sets, value)
                case "placed":
                    got = self._places(sets)
                case "sets":
                    got = {one["name"]: one["count"] for one in workload["spec"]["podSets"]}
                case "priority":
                    got = workload["spec"].get("priority")
                case _:
                    got = _at(workload, key)
            if key == "uses":
                value = {each: _number(much) for each, much in value.items()}
            if got != named(value, self._name):
                found.append(f"{name} {key}: expected {value}, got {got}")
        return found

    def _words(self, workload: Document, wanted: str) -> list[str]:
        """State of a Workload, with the flavors of an admitted one, else the reason."""
        if is_true(workload, "Finished"):
            return ["finished", condition(workload, "Finished")["reason"]]
        if wanted == "inactive" and workload["spec"].get("active") is False:
            return ["inactive"]
        if is_true(workload, "QuotaReserved"):
            sets = workload["status"]["admission"]["podSetAssignments"]
            flavors = {each for one in sets for each in (one.get("flavors") or {}).values()}
            word = "admitted" if is_true(workload, "Admitted") else "reserved"
            return [word, *sorted(one.removeprefix(f"{self._name}-") for one in flavors)]
        if wanted == "evicted" and is_true(workload, "Evicted"):
            return ["evicted", condition(workload, "Evicted")["reason"]]
        reserved = condition(workload, "QuotaReserved")
        if wanted == "waiting":
            return ["waiting"]
        return ["pending", reserved["reason"]] if reserved else ["new"]

    def _places(self, sets: Sequence[Document]) -> dict[str, int]:
        """Pods by the lowest level's value."""
        found: dict[str, int] = {}
        for one in sets:
            for part in (one.get("topologyAssignment") or {}).get("slices") or ():
                values, counts = part["valuesPerLevel"][-1], part["podCounts"]
                for index in range(part["domainCount"]):
                    name = _each(values, index).removeprefix(f"{self._name}-")
                    count = counts.get("universal") or counts["individual"][index]
                    found[name] = found.get(name, 0) + count
        return found

    def _queue(self, name: str) -> Document:
        path = f"{KUEUE}/clusterqueues/{self._name}-{name}"
        return dict(self._plane.api.get(path).get("status") or {})

    def _usage(self, name: str, wanted: Mapping[str, Any]) -> Any:
        """Reserved amounts by flavor, as `wanted` writes them: total, or total and borrowed."""
        found = {}
        for one in self._queue(name).get("flavorsReservation") or ():
            flavor = one["name"].removeprefix(f"{self._name}-")
            for each in one["resources"]:
                both = isinstance(wanted.get(flavor), list)
                total = _number(each["total"])
                found[flavor] = [total, _number(each.get("borrowed", 0))] if both else total
        return found

    def _counts(self, name: str, wanted: Mapping[str, int]) -> dict[str, int]:
        status = self._queue(name)
        return {one: int(status.get(f"{one}Workloads") or 0) for one in wanted}

    def _active(self, name: str, wanted: str) -> str:
        found = condition({"status": self._queue(name)}, "Active")
        words = [found.get("status", "None"), found.get("reason", "")]
        return " ".join(words[: len(wanted.split())])


def _total(sets: Sequence[Document], wanted: Mapping[str, Any]) -> dict[str, Any]:
    short = {"gpu": "nvidia.com/gpu", "mem": "memory"}
    return {
        one: _number(sum(_value((each.get("resourceUsage") or {}).get(short.get(one, one), 0)) for each in sets))
        for one in wanted
    }  # fmt: skip


def _value(text: Any) -> float:
    return float(exact_value(str(text)))


def _number(text: Any) -> Any:
    value = _value(text)
    return int(value) if value == int(value) else value


def _each(values: Mapping[str, Any], index: int) -> str:
    if "universal" in values:
        return str(values["universal"])
    found = values["individual"]
    return f"{found.get('prefix', '')}{found['roots'][index]}{found.get('suffix', '')}"


def _at(document: Document, path: str) -> Any:
    if path.startswith("condition."):
        return condition(document, path.removeprefix("condition.")).get("status")
    if path.startswith("reason."):
        return condition(document, path.removeprefix("reason.")).get("reason")
    return value_at(document, path)
