"""The AdmissionCheck `kueue.x-k8s.io/provisioning-request`: decides the answer to a Workload, and
the requests to the autoscaler. No I/O.

Each attempt is a ProvisioningRequest of its own. One that failed, or whose booking ran out before
the Workload was admitted, makes the check ask for a retry, which evicts; when quota is reserved
again, after the back-off, the next attempt is made. Past the limit the check rejects. Requests that
no Workload needs any more are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.cluster.admissionchecks.requests import (
    CLASS,
    CONSUMES,
    Config,
    Making,
    attempt_of,
    has,
    is_as_configured,
    making,
    pod_sets_needed,
    read_config,
    stem_of,
)
from queuecontroller.cluster.admissionchecks.states import (
    Answer,
    State,
    checks_of,
    state_of,
    tries_of,
)
from queuecontroller.cluster.cache.objects import (
    Document,
    condition_of,
    has_condition,
    is_leaving,
)
from queuecontroller.cluster.status.workload_status import UNANSWERED
from queuecontroller.frameworks import PodSetInfo
from sluicecommon.reader import ManifestError

CONTROLLER: Final = "kueue.x-k8s.io/provisioning-request"
CONFIG_KIND: Final = "ProvisioningRequestConfig"
GROUP: Final = "kueue.x-k8s.io"
NOT_ACTIVE: Final = "the check is not active"
NOT_NEEDED: Final = "the provisioning request is not needed"


@dataclass(frozen=True, slots=True)
class Decision:
    answers: Mapping[str, Answer]
    """Answers by check; checks without one stay as they are."""
    makes: tuple[Making, ...] = ()
    ends: tuple[Document, ...] = ()
    """Requests to be deleted."""


def config_of(check: Document, configs: Mapping[str, Document]) -> tuple[Config | None, str]:
    """Return the config that an AdmissionCheck's parameters name, or None and the error."""
    named = (check.get("spec") or {}).get("parameters") or {}
    if not named:
        return None, f"spec.parameters: is missing: name a {CONFIG_KIND} of {GROUP}"
    if (named.get("apiGroup"), named.get("kind")) != (GROUP, CONFIG_KIND):
        given = f"{named.get('kind')} of {named.get('apiGroup')}"
        return None, f"spec.parameters: is a {given}: name a {CONFIG_KIND} of {GROUP}"
    found = configs.get(str(named.get("name")))
    if found is None:
        return None, f"spec.parameters: there is no {CONFIG_KIND} {named.get('name')}: create it"
    try:
        return read_config(found), ""
    except ManifestError as error:
        return None, str(error)


def decide(
    workload: Document,
    configs: Mapping[str, Config | None],
    owned: Sequence[Document],
    infos: Sequence[PodSetInfo],
) -> Decision:
    """Decide the answers to a Workload's checks, and which requests to create and delete.

    `configs`: the config of each check of this controller, None for an inactive one; `owned`: the
    Workload's requests; `infos`: scheduling settings that its flavors give its pods.
    """
    status = workload.get("status") or {}
    over = has_condition(workload, "Finished") or has_condition(workload, "Evicted")
    if over or is_leaving(workload) or not status.get("admission"):
        return Decision({}, ends=tuple(one for one in owned if not is_leaving(one)))
    answers: dict[str, Answer] = {}
    makes: list[Making] = []
    kept: set[str] = set()
    for name, check in checks_of(workload).items():
        if name not in configs:
            continue
        config = configs[name]
        mine = _attempts(owned, stem_of(workload["metadata"]["name"], name))
        if config is None:
            answers[name] = Answer(State.PENDING, NOT_ACTIVE)
            kept.update(_uid(one) for one in mine.values())
            continue
        if not pod_sets_needed(workload, config):
            answers[name] = Answer(State.READY, NOT_NEEDED)
            continue
        newest = max(mine, default=0)
        request = mine.get(newest)
        is_ready = state_of(check) == State.READY
        if request is None:
            if state_of(check) == State.PENDING:
                makes.append(making(workload, name, tries_of(check) + 1, config, infos))
        elif not is_ready and (newest <= tries_of(check) or not is_as_configured(request, config)):
            # It is of an earlier attempt, or the config has changed since.
            if state_of(check) == State.PENDING:
                number = tries_of(check) + 1
                if number not in mine:  # Otherwise that request has to be deleted first.
                    makes.append(making(workload, name, number, config, infos))
        else:
            kept.add(_uid(request))
            answer = _answer(workload, check, request, newest, config)
            if answer is not None:
                answers[name] = answer
    ends = tuple(one for one in owned if _uid(one) not in kept and not is_leaving(one))
    return Decision(answers, tuple(makes), ends)


def _attempts(owned: Sequence[Document], stem: str) -> dict[int, Document]:
    found = ((attempt_of(one, stem), one) for one in owned if not is_leaving(one))
    return {number: one for number, one in found if number is not None}


def _uid(document: Document) -> str:
    return str(document["metadata"]["uid"])


def _answer(
    workload: Document, check: Mapping[str, Any], request: Document, attempt: int, config: Config
) -> Answer | None:
    """Return the answer to the request's conditions; None if the check stays as it is."""
    state = state_of(check)
    admitted = has_condition(workload, "Admitted")
    if state in (State.RETRY, State.REJECTED):
        return None  # The Workload is being evicted for it.
    if has(request, "Failed"):
        return _again(check, attempt, config, "the request failed", _message(request, "Failed"))
    if has(request, "CapacityRevoked"):
        return Answer(State.REJECTED, _message(request, "CapacityRevoked"))
    if has(request, "BookingExpired") and not admitted:
        why = "the booking ran out"
        return _again(check, attempt, config, why, _message(request, "BookingExpired"))
    if has(request, "Provisioned"):
        if state == State.READY:
            return None
        message = _message(request, "Provisioned")
        return Answer(State.READY, message, tuple(_updates(workload, request, config)))
    if state == State.READY:
        return None
    # The message of Provisioned holds the estimated time until it becomes true.
    eta = _message(request, "Provisioned") if has(request, "Accepted") else ""
    return Answer(State.PENDING, eta or UNANSWERED)


def _again(
    check: Mapping[str, Any], attempt: int, config: Config, why: str, message: str
) -> Answer:
    if attempt > config.limit_count:
        return Answer(State.REJECTED, message)
    pause_s = min(config.base_s << min(tries_of(check), 30), config.max_s)
    return Answer(State.RETRY, f"Retrying after {why}: {message}", again_s=pause_s)


def _message(request: Document, condition: str) -> str:
    return str(condition_of(request, condition).get("message") or "")


def _updates(workload: Document, request: Document, config: Config) -> list[dict[str, Any]]:
    """Return podSetUpdates that make all pods of the request consume it, merged pod sets too."""
    details = (request.get("status") or {}).get("provisioningClassDetails") or {}
    selector = {
        label: str(details[detail]) for label, detail in config.node_selector if detail in details
    }
    annotations = {
        CONSUMES: request["metadata"]["name"],
        CLASS: (request.get("spec") or {}).get("provisioningClassName", ""),
    }
    made = []
    for pod_set, _ in pod_sets_needed(workload, config):
        update: dict[str, Any] = {
            "name": pod_set.get("name", "main"),
            "annotations": annotations,
        }
        made.append({**update, "nodeSelector": selector} if selector else update)
    return made
