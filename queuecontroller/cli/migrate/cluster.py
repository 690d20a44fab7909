"""The API server's side of an import or export: reads all of Kueue's objects, and carries out
steps. Every write names the resourceVersion or UID that it was decided on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from queuecontroller.cli.migrate.objects import ORDER, Name, name_of, owner_of
from queuecontroller.cli.migrate.plan import Action, Step
from queuecontroller.cluster.cache.job_context import kind_of
from queuecontroller.cluster.cache.kinds import CRDS
from queuecontroller.cluster.cache.objects import Document, covers, pruned
from queuecontroller.cluster.setup.preflight import kueue_runs
from queuecontroller.cluster.setup.registration import MUTATING, VALIDATING
from queuecontroller.kueueapi.crds import Webhook, definitions
from queuecontroller.kueueapi.fields import STORED
from queuecontroller.kueueapi.table import GROUP, KINDS
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import NODES, PODS, Resource

PAGE: Final = 500
BUSY: Final = 429
AGAIN: Final = 60
"""Seconds."""
VERSIONS: Final = (str(STORED), "v1beta1", "v1alpha2")
"""Kueue's API versions, the preferred first."""
_OURS: Final = ("sluice-kueue-api", "sluice-jobs")
_CONFIGURATIONS: Final = (VALIDATING, MUTATING)
KUEUE_ENDS: Final = (
    "Kueue still runs in this cluster (it holds its Lease in namespace {where}): stop it first"
    " (kubectl -n {where} scale deployment kueue-controller-manager --replicas=0), and do not"
    " uninstall it before the import: deleting its CRDs deletes all their objects"
)


class Cluster:
    def __init__(self, client: ApiClient) -> None:
        self._client = client

    # -- reading ----------------------------------------------------------------------------------

    async def objects(self, namespace: str = "") -> list[dict[str, Any]]:
        """All of Kueue's objects in the cluster, in the preferred version that it serves. Raises
        ApiAway, ApiRefused."""
        found: list[dict[str, Any]] = []
        left = set(ORDER)
        for version in VERSIONS:
            served = await self._served(version)
            for kind in [one for one in ORDER if one in left and KINDS[one].plural in served]:
                left.discard(kind)
                row = KINDS[kind]
                resource = Resource(GROUP, version, row.plural, kind, row.namespaced)
                place = namespace if row.namespaced else ""
                for one in await self.every(resource, place):
                    found.append({"apiVersion": resource.api_version, "kind": kind, **one})
        return found

    async def _served(self, version: str) -> set[str]:
        try:
            found = await self._client.get_path(f"/apis/{GROUP}/{version}")
        except ApiRefused as refused:
            if refused.not_found:
                return set()
            raise
        return {str(one.get("name")) for one in found.get("resources") or ()}

    async def every(self, resource: Resource, namespace: str = "") -> list[dict[str, Any]]:
        """All objects of a resource, listed page by page. Raises ApiAway, ApiRefused."""
        found: list[dict[str, Any]] = []
        more = ""
        while True:
            parameters = [("limit", str(PAGE)), *([("continue", more)] if more else [])]
            page = json.loads(await self._client.list_page(resource, parameters, namespace))
            found += [pruned(one) for one in page.get("items") or ()]
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return found

    async def owners(self, workloads: Iterable[Document]) -> dict[tuple[str, str, str], Document]:
        """The workloads' owners that exist, by kind, namespace and name."""
        found: dict[tuple[str, str, str], Document] = {}
        for one in workloads:
            owner = owner_of(one)
            resource = kind_of(owner)
            namespace = name_of(one).namespace
            key = (str(owner.get("kind")), namespace, str(owner.get("name")))
            if resource is None or key in found:
                continue
            try:
                found[key] = pruned(await self._client.get(resource, key[2], namespace))
            except ApiRefused as refused:
                if not refused.not_found:
                    raise
        return found

    async def nodes_and_pods(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return await self.every(NODES), await self.every(PODS)

    # -- where Kueue ran --------------------------------------------------------------------------

    async def why_kueue_must_stop(self) -> str:
        """The reason why Kueue must be stopped first; empty if it does not run."""
        where = await kueue_runs(self._client)
        return KUEUE_ENDS.format(where=where) if where is not None else ""

    async def definition_steps(self, webhook: Webhook) -> list[Step]:
        """Steps that replace Kueue's CRDs with ours and delete its webhook configurations: with
        Kueue stopped, no webhook would answer, and the API server would refuse every write."""
        steps = []
        for wanted in definitions(webhook):
            name = Name(CRDS.kind, "", wanted["metadata"]["name"])
            try:
                there = pruned(await self._client.get(CRDS, name.name))
            except ApiRefused as refused:
                if not refused.not_found:
                    raise
                steps.append(Step(Action.CREATE, name, "", wanted))
                continue
            mine = {part: wanted["spec"][part] for part in ("names", "versions")}
            if covers(there["spec"], mine):
                steps.append(Step(Action.KEEP, name))
                continue
            labels = wanted["metadata"].get("labels") or {}
            patch = {"metadata": {"labels": labels}, "spec": _anew(there, wanted)}
            version = str(there["metadata"]["resourceVersion"])
            why = "Sluice's schema replaces it; its objects stay"
            steps.append(Step(Action.CHANGE, name, why, patch, version))
        for kind in _CONFIGURATIONS:
            for one in await self.every(kind):
                if one["metadata"]["name"] not in _OURS and _asks_about_kueue(one):
                    name = Name(kind.kind, "", one["metadata"]["name"])
                    why = "it calls Kueue's webhook, which is stopped"
                    steps.append(Step(Action.DELETE, name, why, one))
        return steps

    async def until_served(self) -> None:
        """Wait until the API server serves the changed CRDs; meanwhile it answers 429. Raises
        ApiAway, ApiRefused."""
        for _ in range(AGAIN):
            try:
                await self.objects()
                return
            except ApiRefused as refused:
                if refused.status != BUSY:
                    raise
            await asyncio.sleep(1.0)

    # -- doing ------------------------------------------------------------------------------------

    async def do(self, step: Step) -> None:
        """Carry out a step. Raises ApiAway, ApiRefused."""
        name = step.name
        resource = _resource(name.kind)
        if step.action is Action.DELETE:
            uid = str(step.document["metadata"]["uid"])
            await self._client.delete(resource, name.name, name.namespace, uid)
        elif step.action is Action.CHANGE:
            parts = ("metadata", "spec") if resource == CRDS else ("spec", "value", "description")
            patch = {part: step.document[part] for part in parts if part in step.document}
            await self._client.merge_patch(
                resource, name.name, patch, name.namespace, "", step.version
            )
        else:
            await self._create(resource, name, step.document)

    async def _create(self, resource: Resource, name: Name, document: Mapping[str, Any]) -> None:
        status = document.get("status")
        body = {key: value for key, value in document.items() if key != "status"}
        if resource != CRDS and KINDS[name.kind].namespaced:
            body["metadata"] = {**body["metadata"], "namespace": name.namespace}
        made = await self._client.create(resource, body, name.namespace)
        if status and resource != CRDS:
            head = made["metadata"]  # The name may differ: it is derived from the job's UID.
            await self._client.merge_patch(
                resource,
                str(head["name"]),
                {"status": status},
                name.namespace,
                "status",
                str(head["resourceVersion"]),
            )


def find_in(
    owners: Mapping[tuple[str, str, str], Document], owner: Mapping[str, Any], namespace: str
) -> Document | None:
    return owners.get((str(owner.get("kind")), namespace, str(owner.get("name"))))


def _resource(kind: str) -> Resource:
    for one in (CRDS, *_CONFIGURATIONS):
        if one.kind == kind:
            return one
    row = KINDS[kind]
    return Resource(GROUP, str(STORED), row.plural, kind, row.namespaced)


def _anew(there: Document, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Merge patch of a CRD's spec that also removes fields which ours does not have."""
    spec = {**wanted["spec"]}
    gone = {name: None for name in there["spec"] if name not in spec}
    conversion = (there["spec"].get("conversion") or {}).get("webhook") or {}
    if (conversion.get("clientConfig") or {}).get("url"):
        ours = spec["conversion"]["webhook"]
        client = {**ours["clientConfig"], "url": None}
        spec["conversion"] = {**spec["conversion"], "webhook": {**ours, "clientConfig": client}}
    return {**gone, **spec}


def _asks_about_kueue(configuration: Document) -> bool:
    return any(
        GROUP in (rule.get("apiGroups") or ())
        for one in configuration.get("webhooks") or ()
        for rule in one.get("rules") or ()
    )


def owners_wanted(shown: Sequence[Document]) -> list[dict[str, Any]]:
    """Workloads of the standalone service with references to the jobs they would have in a
    cluster as owners."""
    made = []
    for one in shown:
        kind = str((one.get("sluice") or {}).get("submittedAs") or "")
        head = one.get("metadata") or {}
        if one.get("kind") != "Workload" or not kind or kind == "Workload":
            continue
        name = str(head.get("name") or "").removeprefix(f"{kind.lower()}-")
        version = {"Job": "batch/v1", "Pod": "v1"}.get(kind, "")
        reference = {"apiVersion": version, "kind": kind, "name": name, "controller": True}
        made.append(
            {
                "kind": "Workload",
                "metadata": {
                    "namespace": head.get("namespace"),
                    "name": head.get("name"),
                    "ownerReferences": [reference],
                },
            }
        )
    return made
