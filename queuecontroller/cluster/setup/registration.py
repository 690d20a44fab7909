"""Registers the webhooks at the API server: address and certificate authority in Kueue's CRDs and
in the webhook configurations. Compared once a minute, and written if they differ."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import CRDS
from queuecontroller.cluster.cache.objects import covers
from queuecontroller.cluster.setup.job_webhooks import CONFIGURATION, MISSED, Missed, mutating
from queuecontroller.cluster.status.visibility import services
from queuecontroller.kueueapi.crds import CONVERT_PATH, Webhook, validation
from queuecontroller.kueueapi.table import GROUP, KINDS
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import Resource

AGAIN_S: Final = 60.0
SOON_S: Final = 2.0
_GROUP: Final = "admissionregistration.k8s.io"
VALIDATING: Final = Resource(
    _GROUP,
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
MUTATING: Final = Resource(
    _GROUP,
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
API_SERVICES: Final = Resource(
    "apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False
)
SERVICES: Final = Resource("", "v1", "services", "Service")
VISIBILITY: Final = "sluice-queue-visibility"
"""The Service of the visibility API."""
REVIEWS: Final = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
_ACCOUNT: Final = re.compile(r"system:serviceaccount:[a-z0-9.-]+:[a-z0-9.-]+")
log = logging.getLogger(__name__)


async def keep_registered(
    client: ApiClient,
    webhook: Callable[[], Webhook],
    namespace: str,
    *,
    missed: Missed = MISSED,
    webhooks: bool = True,
    visibility: bool = False,
    leads: Callable[[], bool] = lambda: True,
    is_leaving: Callable[[], bool] = lambda: False,
) -> None:
    """Keep the webhooks registered until cancelled. `webhook` is called every SOON_S, so a renewed
    certificate authority or key is registered soon.

    `leads` returns True while this replica leads, and so serves the visibility API: an APIService
    that no server answers blocks the deletion of every namespace. It is removed when the leader
    ends, also one that has not registered it itself: the chart and earlier leaders register it,
    too. Everything is removed once `is_leaving` returns True: the own namespace is being
    deleted.
    """
    registered: tuple[Webhook, bool] | None = None
    next_s = 0.0
    visible = False
    """True while this replica serves the visibility API, also if the chart registered it."""
    try:
        while True:
            try:
                if is_leaving():
                    await withdraw(client, webhooks=webhooks)
                    log.warning("namespace %s is being deleted: registrations removed", namespace)
                    visibility = visible = False
                    return
                given = webhook(), leads()
                visible = visibility and given[1]
                if given != registered or monotonic() >= next_s:
                    registered = None
                    if webhooks:
                        await register(client, given[0], namespace, missed)
                    if visible:
                        await register_visibility(client, given[0].ca_bundle, namespace)
                    registered, next_s = given, monotonic() + AGAIN_S
            except (ApiAway, ApiRefused, OSError) as error:
                log.warning("webhooks are not registered, trying again: %s", error)
            await asyncio.sleep(SOON_S)
    finally:
        if visible or (visibility and leads()):
            try:
                await withdraw(client, webhooks=False)
            except (ApiAway, ApiRefused) as error:
                log.warning("the visibility API stays registered without a server: %s", error)


async def withdraw(client: ApiClient, *, webhooks: bool) -> None:
    """Delete the registration of the visibility API, and with `webhooks` those of the admission
    webhooks. One that cannot be deleted does not keep the others. Raises ApiAway, ApiRefused."""
    names = [(API_SERVICES, one["metadata"]["name"]) for one in services("", VISIBILITY, "")]
    if webhooks:
        names += [
            (MUTATING, CONFIGURATION),
            (VALIDATING, validation(Webhook())["metadata"]["name"]),
        ]
    failure: ApiAway | ApiRefused | None = None
    for kind, name in names:
        try:
            await client.delete(kind, name)
        except (ApiAway, ApiRefused) as error:
            if not (isinstance(error, ApiRefused) and error.not_found):
                failure = error
    if failure is not None:
        raise failure


async def register(client: ApiClient, webhook: Webhook, namespace: str, missed: Missed) -> None:
    """Register the conversion and admission webhooks. Raises ApiAway, ApiRefused."""
    wanted: dict[str, Any] = {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": webhook.client(CONVERT_PATH),
            "conversionReviewVersions": ["v1"],
        },
    }
    # The other field is removed: a merge would leave a Service beside the URL.
    other = "service" if webhook.url else "url"
    to_merge = {**webhook.client(CONVERT_PATH), other: None}
    patch = {**wanted, "webhook": {**wanted["webhook"], "clientConfig": to_merge}}
    for kind in KINDS.values():
        name = f"{kind.plural}.{GROUP}"
        found = await client.get(CRDS, name)
        if found["spec"].get("conversion") != wanted:
            await client.merge_patch(CRDS, name, {"spec": {"conversion": patch}})
            log.info("%s: conversion webhook registered", name)
    account = await own_account(client)
    await _put(client, VALIDATING, validation(webhook, account))
    await _put(client, MUTATING, mutating(webhook.client, namespace, account, missed))


async def own_account(client: ApiClient) -> str:
    """Return the controller's own user name if it is a service account, else "".

    The webhooks leave out the controller's own writes: each review would take both sides more than
    a millisecond. Raises ApiAway.
    """
    name = await own_name(client)
    return name if _ACCOUNT.fullmatch(name) else ""


async def own_name(client: ApiClient) -> str:
    """Return the controller's own user name; Kubernetes before 1.28 does not tell it, and the name
    is then empty. Raises ApiAway."""
    try:
        request = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind}
        answer = await client.create(REVIEWS, request)
    except ApiRefused as refused:
        log.info("the API server does not return the controller's own user name: %s", refused)
        return ""
    info = (answer.get("status") or {}).get("userInfo") or {}
    return str(info.get("username") or "")


async def _put(client: ApiClient, kind: Resource, document: Mapping[str, Any]) -> None:
    name = document["metadata"]["name"]
    try:
        found = await client.get(kind, name)
    except ApiRefused as refused:
        if not refused.not_found:
            raise
        await client.create(kind, document)
        log.info("%s %s created", kind.kind, name)
        return
    mine, there = document["webhooks"], found.get("webhooks") or []
    if len(mine) != len(there) or not all(map(covers, there, mine)):
        await client.merge_patch(kind, name, {"webhooks": mine})
        log.info("%s %s updated", kind.kind, name)


async def register_visibility(client: ApiClient, ca_bundle: str, namespace: str) -> None:
    """Register the visibility API if its Service exists: an APIService without a server would block
    the deletion of every namespace. Raises ApiAway, ApiRefused."""
    try:
        await client.get(SERVICES, VISIBILITY, namespace)
    except ApiRefused as refused:
        if not refused.not_found:
            raise
        log.warning(
            "visibility: there is no Service %s in namespace %s, so the visibility API is not"
            " registered",
            VISIBILITY,
            namespace,
        )
        return
    for wanted in services(ca_bundle, VISIBILITY, namespace):
        name = wanted["metadata"]["name"]
        try:
            found = await client.get(API_SERVICES, name)
        except ApiRefused as refused:
            if not refused.not_found:
                raise
            await client.create(API_SERVICES, wanted)
            log.info("APIService %s created", name)
            continue
        spec = found.get("spec") or {}
        # The port stays as it is: the Service may use another.
        port = (spec.get("service") or {}).get("port", 443)
        to_be = {**wanted["spec"], "service": {**wanted["spec"]["service"], "port": port}}
        if not covers(spec, to_be):
            await client.merge_patch(API_SERVICES, name, {"spec": to_be})
            log.info("APIService %s updated", name)
