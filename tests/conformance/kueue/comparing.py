"""All cases against one API server: the verdicts first, then the runs of each Configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from queuecontroller.frameworks import frameworks
from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import LEASE, apply, asked, define_all
from tests.conformance.kueue.cases import Case, Cases, RunCase
from tests.conformance.kueue.objects import collection_of
from tests.conformance.kueue.runs import run_all
from tests.conformance.kueue.verdicts import judge
from tests.kit.conformance.case import Outcome, Verdict
from tests.kit.node import until
from tests.queue.frameworks.crds import cluster_crd_for_tests, crd_for_tests, crds_for_tests
from tests.queue.frameworks.samples import RUNTIME

Results = Iterator[tuple[Case, Outcome]]
_HELD: Final = "conformance"
_LEASE_S: Final = 30.0
"""No run is about leadership, and a busy machine takes longer than a short lease."""
_PRIORITIES: Final = (1, 5, 10, 50, 100)


def compare(plane: ControlPlane, place: Path, cases: Cases) -> Results:
    """Yield each case with its outcome. `place` is for certificates and logs."""
    define_all(plane)
    _prepare(plane)
    if cases.verdicts:
        yield from _verdicts(plane, place / "verdicts", cases)
    groups: dict[str, list[RunCase]] = defaultdict(list)
    minor = int(plane.version.split(".")[1])
    for case in cases.runs:
        if minor >= case.since:
            groups[case.configuration].append(case)
    for number, (configuration, group) in enumerate(groups.items()):
        yield from _runs(plane, place / f"runs-{number}", configuration, group, number)


def _prepare(plane: ControlPlane) -> None:
    sets = next(one for one in frameworks() if one.kind == "LeaderWorkerSet")
    definitions = [
        *crds_for_tests(),
        crd_for_tests(sets),
        cluster_crd_for_tests(RUNTIME, "clustertrainingruntimes"),
    ]
    classes = [
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": f"p{value}"}, "value": value}
        for value in _PRIORITIES
    ]  # fmt: skip
    apply(plane, *definitions)
    until("every kind is served", lambda: _are_served(plane, definitions), 60)
    apply(plane, *classes, RUNTIME)


def _are_served(plane: ControlPlane, definitions: Sequence[Any]) -> bool:
    for one in definitions:
        spec = one["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        if plane.api.find(path) is None:
            return False
    return True


def _verdicts(plane: ControlPlane, place: Path, cases: Cases) -> Results:
    place.mkdir(parents=True)
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "sluice-queue", "namespace": "sluice"},
        "spec": {"holderIdentity": _HELD, "leaseDurationSeconds": 100_000},
    }
    apply(plane, lease)
    with asked(plane, place, leads=False):
        for document in cases.around:
            plane.api.call("POST", collection_of(document), document)
        for number, case in enumerate(cases.verdicts):
            yield case, _seen(case, judge(plane, case, number))
    plane.api.delete(LEASE)


def _runs(
    plane: ControlPlane, place: Path, configuration: str, cases: Sequence[RunCase], number: int
) -> Results:
    place.mkdir(parents=True)
    settings = [f"kubernetes.leader_lease_s={_LEASE_S:g}"]
    if configuration:
        file = place / "configuration.yaml"
        head = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
        file.write_text(yaml.safe_dump({**head, **yaml.safe_load(configuration)}))
        settings.append(f"kubernetes.kueue_configuration={file}")
    with asked(plane, place, *settings):
        named = [(f"r{number}-{index}", one) for index, one in enumerate(cases)]
        for case, outcome in run_all(plane, named):
            yield case, _seen(case, outcome)
    plane.api.delete(LEASE)  # The replica was killed; the next one need not wait for its lease.


def _seen(case: Case, outcome: Outcome) -> Outcome:
    """An intended difference is explained; one that is gone, or a known one, differs from its mark."""
    differs = outcome.verdict is Verdict.DIFFERS
    if case.explained or case.known:
        if not differs:
            return Outcome(Verdict.DIFFERS, ("it is equal now: remove the mark",))
        if case.explained:
            return Outcome(Verdict.EXCLUDED, (f"docs: {case.explained}", *outcome.details))
        return replace(outcome, details=(f"known: {case.known}", *outcome.details))
    return outcome
