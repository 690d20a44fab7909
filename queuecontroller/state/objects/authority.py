"""Fields of a manifest that its submitter may set, and those that need another right.

The rights are those of the table in `queuecontroller.state.access`; this module maps a manifest's
fields to them. Raises Denied, or Refused for what no role may do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.scheduler.model.objects import AdmissionCheckStatus, RequeueState, WorkloadKey
from queuecontroller.state.access import Act, Caller, Target, check, may
from queuecontroller.state.objects.catalogue import Catalogue
from queuecontroller.state.objects.submission import check_user
from queuecontroller.state.records import WorkloadRecord


def owned(record: WorkloadRecord, placed_on: frozenset[str] = frozenset()) -> Target:
    """Owners of a workload; `placed_on` are the nodes that have it."""
    nodes = placed_on | ({record.node} if record.node else frozenset())
    return Target(record.user, nodes)


def only_checks(caller: Caller, before: WorkloadRecord | None, document: Mapping[str, Any]) -> bool:
    """True if the caller is a controller of admission checks that sets their results, and may
    change nothing else in the workload."""
    return (
        before is not None
        and bool(document.get("status"))
        and bool(caller.checks)
        and not may(caller, Act.CHANGE_WORKLOAD, owned(before))
    )


def as_said(
    record: WorkloadRecord,
    document: Mapping[str, Any],
    before: WorkloadRecord | None,
    caller: Caller,
    catalogue: Catalogue,
    known: Mapping[WorkloadKey, WorkloadRecord],
) -> WorkloadRecord:
    """The record as this caller may submit it, or apply it over `before`."""
    what = f"Workload {record.key}"
    if before is None:
        check(caller, Act.SUBMIT, Target(caller.user), what)
        record = replace(record, user=caller.user)
    else:
        check(caller, Act.CHANGE_WORKLOAD, owned(before), what)
        record = replace(record, user=before.user)
    workload = record.workload
    if not caller.admin:
        check_user(record.user, workload.namespace, workload.queue_name, catalogue)
    if may(caller, Act.SET_STATUS):
        return record
    if document.get("status"):
        given = checks_said(document, before, caller, what)
        if _says_more(document):
            check(caller, Act.SET_STATUS, what=what)
    else:
        given = before.workload.admission_checks if before is not None else ()
    allowed = {before.workload.priority if before is not None else None}
    allowed |= {catalogue.priorities().of(workload.priority_class, workload.priority_class)}
    if _gives_priority(record, document) and workload.priority not in allowed:
        check(caller, Act.SET_PRIORITY, what=f"{what}, spec.priority {workload.priority}")
    replaced = known.get(workload.replaces) if workload.replaces is not None else None
    if replaced is not None:
        check(caller, Act.CHANGE_WORKLOAD, owned(replaced), f"Workload {replaced.key}")
    return replace(
        record,
        workload=replace(
            workload,
            uid="",
            created_ns=0,
            conditions=(),
            admission_checks=given,
            reclaimable_pods={},
            requeue_state=RequeueState(),
        ),
    )


def checks_said(
    document: Mapping[str, Any], before: WorkloadRecord | None, caller: Caller, what: str
) -> tuple[AdmissionCheckStatus, ...]:
    """The workload's admission checks with the document's changes, each authorized. Raises
    Denied."""
    given = {one.name: one for one in read_workload(document).admission_checks}
    found = {
        one.name: one for one in (before.workload.admission_checks if before is not None else ())
    }
    for name, one in given.items():
        if one != found.get(name):
            check(caller, Act.SET_CHECK, Target(check=name), f"{what}, check {name}")
            found[name] = one
    return tuple(found.values())


def _gives_priority(record: WorkloadRecord, document: Mapping[str, Any]) -> bool:
    return record.kind == "Workload" and "priority" in (document.get("spec") or {})


def _says_more(document: Mapping[str, Any]) -> bool:
    status = document.get("status")
    return not isinstance(status, Mapping) or bool(status.keys() - {"admissionChecks"})
