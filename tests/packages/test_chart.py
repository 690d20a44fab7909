"""The chart and its rendering: no more than it needs, and our own services accept what it configures."""

from __future__ import annotations

import json
import re
import tomllib

import yaml

from nodeagent.settings import daemon as node_config
from queuecontroller.server import config as queue_config
from tests.kit.places import REPO
from tests.packages.chart import CHART, needs_helm, of, rights, static


def test_versions_are_those_of_the_file_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = (REPO / "VERSION").read_text().strip()
    assert (chart["version"], chart["appVersion"]) == (version, version)


PASSED_ON = frozenset(
    [
        "image",
        "pullPolicy",
        "imagePullSecrets",
        "agent",
        "queue",
        "affinity",
        "nodeSelector",
        "tolerations",
        "resources",
        "podAnnotations",
        "extraEnv",
        "metricsPort",
        "priorityClassName",
        "persistence",
        "interval",
        "labels",
        "storageClass",
        "size",
        "repository",
        "timeoutSeconds",
    ]
)
"""Keys whose names say it, or whose values go to Kubernetes as they are."""


def test_every_value_says_what_it_is() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    keys = [
        (number, re.fullmatch(r"(?:  ){0,2}([A-Za-z]+):.*", line))
        for number, line in enumerate(lines)
    ]
    named = [
        (number, key[1])
        for number, key in keys
        if key
        and not key[1].startswith(
            ("privileged", "readOnly", "requests", "limits", "operator", "effect")
        )
    ]
    assert len(named) > 40
    silent = [key for number, key in named if not lines[number - 1].strip().startswith("#")]
    nested = {"enabled"}  # explained by the comment inside its section
    assert [
        key
        for key in silent
        if key
        not in PASSED_ON
        | nested
        | {
            "serviceMonitor",
            "prometheusRule",
            "dashboard",
            "networkPolicy",
            "securityContext",
            "fullnameOverride",
        }
    ] == []


@needs_helm
def test_the_daemonset_never_has_two_on_a_node_and_mounts_what_it_needs_and_no_more() -> None:
    spec = of(static(), "DaemonSet")["spec"]
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    }
    pod = spec["template"]["spec"]
    assert pod["hostPID"] is True
    assert "hostNetwork" not in pod
    assert pod["priorityClassName"] == "system-node-critical"
    host = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert host == {
        "/run/sluice",
        "/var/lib/sluice",
        "/var/lib/sluice-libraries",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/var/lib/kubelet/pods-api",
        "/var/lib/kubelet/plugins_registry",
        "/var/lib/kubelet/plugins/sluice.dev",
        "/var/run/cdi",
        "/etc/cdi",
    }
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["run"]["mountPropagation"] == "HostToContainer"
    assert mounts["pod-resources"]["readOnly"]
    assert mounts["pods-api"]["readOnly"]
    assert pod["tolerations"]


@needs_helm
def test_the_controller_is_one_without_root_or_capabilities() -> None:
    spec = of(static(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    container = pod["containers"][0]["securityContext"]
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert not container["allowPrivilegeEscalation"]
    assert container["readOnlyRootFilesystem"]


RIGHTS = {
    "agent": {
        ("", "pods", "get,list,watch"),
        ("apps", "replicasets", "get"),
        ("apps", "deployments", "get"),
        ("apps", "statefulsets", "get"),
        ("apps", "daemonsets", "get"),
        ("batch", "cronjobs", "get"),
        ("batch", "jobs", "get"),
        ("", "events", "create,patch"),
        ("", "nodes", "get,list,watch"),
        ("", "nodes/status", "patch"),
        ("resource.k8s.io", "resourceclaims", "get,list"),
        ("resource.k8s.io", "resourceclaims/status", "patch"),
        ("resource.k8s.io", "resourceclaims/driver", "associated-node:patch"),
        ("resource.k8s.io", "resourceslices", "create,delete,get,list,update,watch"),
    },
    "queue": {("authentication.k8s.io", "tokenreviews", "create")},
}
"""Rights of each component at the API server: (group, resource, verbs). A wider role is a decision,
made here."""


@needs_helm
def test_each_has_the_rights_that_are_listed_and_no_more() -> None:
    objects = static()
    found = {
        one["metadata"]["name"].rpartition("-")[2]: rights(one)
        for one in objects
        if one["kind"] in ("Role", "ClusterRole")
    }
    assert found == RIGHTS
    for one in objects:
        if one["kind"] == "ServiceAccount":
            assert one["automountServiceAccountToken"] is False
        if one["kind"] in ("DaemonSet", "Deployment"):
            pod = one["spec"]["template"]["spec"]
            has_role = pod["serviceAccountName"].rpartition("-")[2] in RIGHTS
            assert pod["automountServiceAccountToken"] is has_role


@needs_helm
def test_no_rule_has_a_star() -> None:
    for one in static():
        if one["kind"] in ("Role", "ClusterRole"):
            assert "*" not in json.dumps(one["rules"])


@needs_helm
def test_our_services_accept_the_settings_they_are_given() -> None:
    objects = static()
    node = node_config.parse(
        tomllib.loads(of(objects, "ConfigMap", "agent")["data"]["sluice.toml"])
    )
    queue = queue_config.parse(
        tomllib.loads(of(objects, "ConfigMap", "queue")["data"]["queue.toml"])
    )
    service = of(objects, "Service", "queue")
    host, _, port = node.queue.server.partition(":")
    assert host == f"{service['metadata']['name']}.sluice.svc"
    assert int(port) in [one["port"] for one in service["spec"]["ports"]]
    assert queue.kubernetes.audience
    assert node.queue.token


@needs_helm
def test_each_agent_has_an_identity_of_its_own() -> None:
    """A token bound to its pod, for the controller alone; no key that another agent has too."""
    objects = static()
    volumes = {
        one["name"]: one for one in of(objects, "DaemonSet")["spec"]["template"]["spec"]["volumes"]
    }
    (source,) = volumes["queue-token"]["projected"]["sources"]
    queue = queue_config.parse(
        tomllib.loads(of(objects, "ConfigMap", "queue")["data"]["queue.toml"])
    )
    assert source["serviceAccountToken"]["audience"] == queue.kubernetes.audience
    assert volumes["tls"]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    account = of(objects, "ServiceAccount", "agent")["metadata"]
    assert (
        queue.kubernetes.nodes == f"system:serviceaccount:{account['namespace']}:{account['name']}"
    )


@needs_helm
def test_services_select_the_pods_of_their_own_component() -> None:
    objects = static()
    for name, kind in (("agent", "DaemonSet"), ("queue", "Deployment")):
        labels = of(objects, kind)["spec"]["template"]["metadata"]["labels"]
        assert of(objects, "Service", name)["spec"]["selector"].items() <= labels.items()
        assert (
            of(objects, "NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"].items()
            <= labels.items()
        )


def test_what_the_chart_reads_itself_is_a_copy_of_the_one_source() -> None:
    sources = [
        REPO / "packaging" / "prometheus" / "sluice-alerts.yaml",
        *(REPO / "packaging" / "grafana").glob("*.json"),
    ]
    sources.append(CHART / "values.yaml")
    assert len(sources) == 4
    made = {
        *("kueue-crds.yaml", "kueue-user-roles.yaml", "queue-rules.yaml"),
        *("vendor-resources.yaml", "share-rights.yaml", "simulated-models.txt"),
    }
    """Files from the code's tables, compared with them in tests/queue/cluster/test_rbac.py."""
    made |= {"share-rights.yaml", "queue-policies.yaml", "visible-devices.yaml"}
    copies = {path.name: path.read_bytes() for path in (CHART / "files").iterdir()}
    assert made <= copies.keys()
    copies = {name: text for name, text in copies.items() if name not in made}
    assert copies == {path.name: path.read_bytes() for path in sources}, "make chart"
