"""RBAC rules of the queue controller, kind by kind and verb by verb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queuecontroller.cluster.cache.claims import COUNTED
from queuecontroller.cluster.cache.job_context import DISPATCHED, FRAMEWORKS, SETS
from queuecontroller.cluster.cache.job_context import KINDS as JOBS
from queuecontroller.cluster.cache.kinds import (
    BUDGETS,
    CAPACITY_PROVIDERS,
    CHECKS,
    CLUSTER_QUEUES,
    COHORTS,
    FLAVORS,
    LOCAL_QUEUES,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    OBJECTS,
    ORCHESTRATORS,
    RUNTIMES,
    TOPOLOGIES,
    WORKLOADS,
)
from queuecontroller.cluster.setup.front_proxy import READER, REVIEWS
from queuecontroller.cluster.setup.job_webhooks import CONFIGURATION, mutating
from queuecontroller.cluster.setup.registration import API_SERVICES, SERVICES, VISIBILITY
from queuecontroller.cluster.status.visibility import services
from queuecontroller.gpushares.extender.numa import TOPOLOGIES as NODE_TOPOLOGIES
from queuecontroller.gpushares.extender.pod_groups import KINDS as GROUP_KINDS
from queuecontroller.kueueapi.crds import Webhook, validation
from queuecontroller.kueueapi.table import ALPHA_KINDS, GROUP, KINDS
from sluicecommon.kubernetes.resources import (
    DEPLOYMENTS,
    KUBE_SYSTEM,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RUNTIME_CLASSES,
    STATEFUL_SETS,
)

NAME: Final = "sluice-queue-kubernetes"
_HOOKS: Final = "admissionregistration.k8s.io"
_CONFIGURATIONS: Final = {
    "mutatingwebhookconfigurations": CONFIGURATION,
    "validatingwebhookconfigurations": validation(Webhook())["metadata"]["name"],
}
_REQUESTED: Final = ("list", "watch", "create", "delete")
Rule = Mapping[str, Any]


def cluster_rules() -> list[Rule]:
    watched: dict[str, list[str]] = {}
    for kind in OBJECTS:
        watched.setdefault(kind.group, []).append(kind.plural)
    rules = [_rule(group, plurals, "list", "watch") for group, plurals in watched.items()]
    serving = [DEPLOYMENTS.plural, STATEFUL_SETS.plural]
    with_status = (CLUSTER_QUEUES, LOCAL_QUEUES, COHORTS)
    kept = (CLUSTER_QUEUES, FLAVORS, CHECKS, TOPOLOGIES)
    rules += [
        _rule(GROUP, [f"{one.plural}/status" for one in with_status], "patch"),
        _rule(GROUP, [one.plural for one in kept], "patch"),
        _rule(GROUP, ["workloads"], "get", "list", "watch", "create", "patch", "delete"),
        _rule(GROUP, ["workloads/status"], "patch"),
        # An owner reference with blockOwnerDeletion needs update on the owner's finalizers.
        *(rule for group, plurals in job_resources().items() for rule in _of_jobs(group, plurals)),
        # The provisioning check creates requests to the cluster autoscaler.
        _rule(GROUP, ["provisioningrequestconfigs"], "list", "watch"),
        _rule(GROUP, ["admissionchecks/status"], "patch"),
        # Capacity that providers report is distributed over quotas.
        _rule(GROUP, [CAPACITY_PROVIDERS.plural, ORCHESTRATORS.plural], "list", "watch"),
        _rule(GROUP, [f"{ORCHESTRATORS.plural}/status"], "patch"),
        # MultiKueue connects to the worker clusters that these objects name.
        _rule(GROUP, [MULTIKUEUE_CLUSTERS.plural, MULTIKUEUE_CONFIGS.plural], "list", "watch"),
        _rule(GROUP, [f"{MULTIKUEUE_CLUSTERS.plural}/status"], "patch"),
        _rule(GROUP, ["workloads/finalizers"], "update"),
        _rule("autoscaling.x-k8s.io", ["provisioningrequests"], *_REQUESTED),
        _rule("autoscaling.x-k8s.io", ["provisioningrequests/finalizers"], "update"),
        _rule("", ["podtemplates"], "get", "create", "patch", "delete"),
        _rule(RUNTIMES[0].group, [one.plural for one in RUNTIMES], "list", "watch"),
        # The controller completes pod templates that were created while no webhook answered.
        _rule(SETS.group, [SETS.plural], "get", "list", "watch", "patch"),
        _rule(STATEFUL_SETS.group, serving, "list", "watch", "patch"),
        # A pod's Deployment is the owner of its ReplicaSet. A former ReplicaSet whose pods hold no
        # quota is deleted with them: it would create them again.
        _rule(REPLICA_SETS.group, [REPLICA_SETS.plural], "get", "delete"),
        _rule("", [PODS.plural], "get", "list", "watch", "patch", "delete"),
        # The reason of a deletion is written into the pod's condition.
        _rule("", [f"{PODS.plural}/status"], "patch"),
        _rule("", [f"{PODS.plural}/finalizers"], "update"),
        # The extender binds pods, and evicts victims of a preemption.
        _rule("", [f"{PODS.plural}/binding", f"{PODS.plural}/eviction"], "create"),
        _rule(BUDGETS.group, [BUDGETS.plural], "list", "watch"),
        # The extender places the pods of a group together.
        *(_rule(group, plurals, "list", "watch") for group, plurals in _group_resources().items()),
        _rule("", ["events"], "create"),
        # Topology-aware placement and other vendors' devices read nodes; quotas limit GPU shares.
        _rule("", [NODES.plural, "resourcequotas"], "list", "watch"),
        # HAMi's register, and hints for scaling down, are written into annotations of nodes.
        _rule("", [NODES.plural], "patch"),
        # Pods with HAMi's resource names get claims from these templates.
        _rule(RESOURCE_CLAIM_TEMPLATES.group, [RESOURCE_CLAIM_TEMPLATES.plural], "create"),
        # The devices that pods' claims request are counted from these.
        _rule(COUNTED[0].group, [one.plural for one in COUNTED], "list", "watch"),
        # Devices of allocated claims are not free.
        _rule(RESOURCE_CLAIMS.group, [RESOURCE_CLAIMS.plural], "list", "watch"),
        # What is free on NUMA nodes tells whether a kubelet would reject a pod.
        _rule(NODE_TOPOLOGIES.group, [NODE_TOPOLOGIES.plural], "list", "watch"),
        # A RuntimeClass adds an overhead to the requests of its pods.
        _rule(RUNTIME_CLASSES.group, [RUNTIME_CLASSES.plural], "list", "watch"),
        # A node authenticates by a token of its service account.
        _rule("authentication.k8s.io", ["tokenreviews"], "create"),
        # The preflight check looks for Kueue's Lease.
        _rule("coordination.k8s.io", ["leases"], "list"),
        # The conversion webhook is registered in Kueue's CRDs.
        _rule(
            "apiextensions.k8s.io",
            ["customresourcedefinitions"],
            "get",
            "patch",
            names=sorted(f"{one.plural}.{GROUP}" for one in (*KINDS.values(), *ALPHA_KINDS)),
        ),
        *(
            _rule(_HOOKS, [plural], "get", "patch", "delete", names=[name])
            for plural, name in _CONFIGURATIONS.items()
        ),
        # The visibility API is registered, and its callers are authorized.
        _rule(
            API_SERVICES.group,
            [API_SERVICES.plural],
            "get",
            "patch",
            "delete",
            names=[one["metadata"]["name"] for one in services("", "", "")],
        ),
        _rule(API_SERVICES.group, [API_SERVICES.plural], "create"),
        _rule(REVIEWS.group, [REVIEWS.plural], "create"),
    ]
    return rules


def agent_rules() -> list[Rule]:
    """Return the rules of the agents in mode kubernetes, beside those of the other modes: a queued
    pod starts on a node only if its Workload is admitted, and its owners tell whether it is queued.
    """
    of_kubernetes = {"", "apps", "batch"}
    owners: dict[str, set[str]] = {}
    for one in FRAMEWORKS:
        if one.group not in of_kubernetes:
            owners.setdefault(one.group, set()).add(one.plural)
    return [
        _rule(GROUP, ["workloads"], "get", "list"),
        *(_rule(group, sorted(plurals), "get") for group, plurals in sorted(owners.items())),
    ]


def registering_rules() -> list[Rule]:
    """Return the rules for what the controller creates without the chart, which otherwise makes the
    webhook configurations: with these a token can register any webhook."""
    return [_rule(_HOOKS, list(_CONFIGURATIONS), "create")]


def webhook_rules() -> list[str]:
    """Return GROUP/RESOURCE of everything that the webhooks are registered for."""
    hooks = [
        *mutating(Webhook().client, "")["webhooks"],
        *validation(Webhook())["webhooks"],
    ]
    return sorted(
        {
            f"{group}/{resource}"
            for hook in hooks
            for rule in hook["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
    )


def job_resources() -> dict[str, list[str]]:
    """Return the plurals of job kinds that the controller changes, by group."""
    groups = sorted({one.group for one in JOBS})
    return {group: sorted(k.plural for k in JOBS if k.group == group) for group in groups}


def _group_resources() -> dict[str, list[str]]:
    groups = sorted({one.group for one in GROUP_KINDS})
    return {group: sorted({k.plural for k in GROUP_KINDS if k.group == group}) for group in groups}


def beside_rules() -> list[Rule]:
    """Return the rules of mode beside, in which Kueue keeps deciding about quota."""
    return [
        _rule(GROUP, [one.plural for one in (CHECKS, FLAVORS, WORKLOADS)], "list", "watch"),
        _rule(GROUP, ["admissionchecks/status", "workloads/status"], "patch"),
        _rule("", [PODS.plural], "list", "watch"),
        _rule("", ["events"], "create"),
        _rule("coordination.k8s.io", ["leases"], "list"),
        # A node authenticates by a token of its service account.
        _rule("authentication.k8s.io", ["tokenreviews"], "create"),
    ]


def worker_rules() -> list[Rule]:
    """Return the rules of a MultiKueue manager's account in a worker cluster: it creates and
    deletes copies, reads their status and opens their preemption gates in it. It neither reads nor
    changes their pods. A Kueue as the manager updates the status instead of patching it."""
    made = [
        _rule(GROUP, ["workloads"], "get", "list", "watch", "create", "patch", "delete"),
        _rule(GROUP, ["workloads/status"], "patch", "update"),
    ]
    for group in sorted({one.group for one in DISPATCHED}):
        plurals = sorted(one.plural for one in DISPATCHED if one.group == group)
        made.append(_rule(group, plurals, "get", "list", "watch", "create", "delete"))
    return made


def worker_documents(namespace: str, account: str) -> list[dict[str, Any]]:
    """Return the account of a MultiKueue manager in a worker cluster, with its rights."""
    api = "rbac.authorization.k8s.io/v1"
    head = {"name": account, "labels": {"app.kubernetes.io/part-of": "sluice"}}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {**head, "namespace": namespace},
        },
        {
            "apiVersion": api,
            "kind": "ClusterRole",
            "metadata": head,
            "rules": worker_rules(),
        },
        {
            "apiVersion": api,
            "kind": "ClusterRoleBinding",
            "metadata": head,
            "roleRef": ref,
            "subjects": [subject],
        },
    ]


def lease_rules(beside: bool = False) -> list[Rule]:
    """Return the rules in the controller's own namespace. `beside`: True for that mode."""
    group = "coordination.k8s.io"
    rules = [
        _rule(group, ["leases"], "create"),
        _rule(group, ["leases"], "get", "patch", names=["sluice-queue"]),
    ]
    return rules if beside else [*rules, _rule("", [SERVICES.plural], "get", names=[VISIBILITY])]


def placeholder_rules() -> list[Rule]:
    """Return the rules in the controller's own namespace for placeholders of new nodes. An
    account that may create pods there can use the namespace's service accounts, so the rules are
    granted with that setting only; the chart's policies restrict them to placeholders."""
    return [_rule("", [PODS.plural], "create")]


def _of_jobs(group: str, plurals: list[str]) -> list[Rule]:
    return [
        _rule(group, plurals, "get", "list", "watch", "patch", "delete"),
        _rule(group, [f"{one}/status" for one in plurals], "patch"),
        _rule(group, [f"{one}/finalizers" for one in plurals], "update"),
    ]


def _rule(group: str, resources: list[str], *verbs: str, names: list[str] | None = None) -> Rule:
    made: dict[str, Any] = {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
    return {**made, "resourceNames": names} if names else made


def documents(
    namespace: str, account: str, beside: bool = False, placeholders: bool = False
) -> list[dict[str, Any]]:
    """Return roles and bindings for a service account of a namespace, for an install without the
    chart. `beside`: for that mode. `placeholders`: with `autoscaling.requests = pods`."""
    api = "rbac.authorization.k8s.io/v1"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    made: list[dict[str, Any]] = []
    for kind, rules, place in (
        ("ClusterRole", beside_rules() if beside else [*cluster_rules(), *registering_rules()], {}),
        (
            "Role",
            [*lease_rules(beside), *(placeholder_rules() if placeholders else ())],
            {"namespace": namespace},
        ),
    ):
        head = {"name": NAME, **place, "labels": {"app.kubernetes.io/part-of": "sluice"}}
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": NAME}
        made.append({"apiVersion": api, "kind": kind, "metadata": head, "rules": rules})
        made.append(
            {
                "apiVersion": api,
                "kind": f"{kind}Binding",
                "metadata": head,
                "roleRef": ref,
                "subjects": [subject],
            }
        )
    if beside:
        return made
    # The front proxy's configuration authenticates requests of the API server.
    head = {
        "name": f"{NAME}-{namespace}",
        "namespace": KUBE_SYSTEM,
        "labels": {"app.kubernetes.io/part-of": "sluice"},
    }
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": READER}
    made.append(
        {
            "apiVersion": api,
            "kind": "RoleBinding",
            "metadata": head,
            "roleRef": ref,
            "subjects": [subject],
        }
    )
    return made
