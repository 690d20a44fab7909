"""The Helm chart: valid for Kubernetes, no more than it needs, and our own services accept what it configures.

Rendering needs helm (`packaging/helm-tool.sh` builds it; `make test-packages` does), the schemas come with the Python
package kubernetes-validate. What needs neither is always checked.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent import config as node_config
from queuecontroller import config as queue_config
from tests.places import BUILD, REPO

CHART = REPO / "packaging" / "helm" / "sluice"
STATIC = REPO / "packaging" / "kubernetes" / "sluice.yaml"
HELM = shutil.which("helm") or (
    str(BUILD / "tools" / "helm") if (BUILD / "tools" / "helm").is_file() else None
)
needs_helm = pytest.mark.skipif(HELM is None, reason="no helm: packaging/helm-tool.sh")
ALL = (
    "queue.tlsSecret=q",
    "agent.tlsSecret=n",
    "serviceMonitor.enabled=true",
    "prometheusRule.enabled=true",
    "dashboard.enabled=true",
)
KUBERNETES = ("1.28", "1.31", "1.34")


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run(
        [HELM, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def rendered(*values: str) -> list[Any]:
    done = helm(
        "template",
        "s",
        CHART,
        "-n",
        "gpu",
        "--kube-version",
        "1.31.0",
        *(word for one in values for word in ("--set", one)),
    )
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def static() -> list[Any]:
    return [one for one in yaml.safe_load_all(STATIC.read_text()) if one]


def of(objects: Iterable[Any], kind: str, name: str = "") -> Any:
    (found,) = [
        one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(name)
    ]
    return found


# --- without helm: the rendered file that is checked in ---


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
        "/var/run/cdi",
        "/etc/cdi",
    }
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["run"]["mountPropagation"] == "HostToContainer"
    assert mounts["pod-resources"]["readOnly"]
    assert pod["nodeSelector"]
    assert pod["tolerations"]


def test_the_controller_is_one_without_root_or_capabilities() -> None:
    spec = of(static(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    container = pod["containers"][0]["securityContext"]
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert not container["allowPrivilegeEscalation"]
    assert container["readOnlyRootFilesystem"]


def test_nobody_gets_a_token_or_a_role() -> None:
    objects = static()
    assert [one["kind"] for one in objects if "Role" in one["kind"]] == []
    for one in objects:
        if one["kind"] == "ServiceAccount":
            assert one["automountServiceAccountToken"] is False
        if one["kind"] in ("DaemonSet", "Deployment"):
            assert one["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


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
    assert queue.tls.client_ca


def test_services_select_the_pods_of_their_own_component() -> None:
    objects = static()
    for name, kind in (("agent", "DaemonSet"), ("queue", "Deployment")):
        labels = of(objects, kind)["spec"]["template"]["metadata"]["labels"]
        assert of(objects, "Service", name)["spec"]["selector"].items() <= labels.items()
        assert (
            of(objects, "NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"].items()
            <= labels.items()
        )


def test_alerts_and_dashboards_are_those_of_the_one_source() -> None:
    sources = [
        REPO / "packaging" / "prometheus" / "sluice-alerts.yaml",
        *(REPO / "packaging" / "grafana").glob("*.json"),
    ]
    assert len(sources) == 3
    copies = {path.name: path.read_bytes() for path in (CHART / "files").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in sources}, "packaging/monitoring.sh"


# --- with helm ---


@needs_helm
def test_helm_finds_nothing_wrong() -> None:
    done = helm("lint", "--strict", CHART, "--set", "queue.tlsSecret=x")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


@needs_helm
def test_the_static_file_is_what_the_chart_renders() -> None:
    made = subprocess.run(
        [REPO / "packaging" / "static.sh", str(HELM)], capture_output=True, text=True, check=True
    ).stdout
    assert STATIC.read_text() == made


@needs_helm
def test_a_controller_without_tls_is_refused_with_the_key_to_set() -> None:
    done = helm("template", "s", CHART, "--kube-version", "1.31.0")
    assert done.returncode != 0
    assert "queue.tlsSecret" in done.stderr


@needs_helm
@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_for_kubernetes(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    checked = 0
    for one in rendered(*ALL):
        if one["apiVersion"].startswith("monitoring.coreos.com/"):
            continue  # not of Kubernetes; see the next test
        validate.validate(one, version, strict=True)
        checked += 1
    assert checked >= 11


@needs_helm
def test_a_wrong_field_would_be_found() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    wrong = of(rendered(*ALL), "DaemonSet")
    wrong["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, KUBERNETES[0], strict=True)


@needs_helm
def test_the_monitor_keeps_the_labels_of_jobs_and_finds_both_services() -> None:
    objects = rendered(*ALL)
    monitor = of(objects, "ServiceMonitor")["spec"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["honorLabels"] is True
    for service in (one for one in objects if one["kind"] == "Service"):
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    rules = of(objects, "PrometheusRule")["spec"]
    assert rules == yaml.safe_load((CHART / "files" / "sluice-alerts.yaml").read_text())
    dashboards = of(objects, "ConfigMap", "dashboards")["data"]
    assert {name: json.loads(text)["uid"] for name, text in dashboards.items()} == {
        "sluice-node.json": "sluice-node",
        "sluice-queue.json": "sluice-queue",
    }


@needs_helm
def test_each_part_can_be_left_out() -> None:
    assert [
        one["kind"] for one in rendered("queue.enabled=false") if "queue" in one["metadata"]["name"]
    ] == []
    assert [
        one["kind"]
        for one in rendered("agent.enabled=false", "queue.tlsSecret=q")
        if "agent" in one["metadata"]["name"]
    ] == []
    alone = tomllib.loads(
        of(rendered("queue.enabled=false"), "ConfigMap", "agent")["data"]["sluice.toml"]
    )
    assert "queue" not in alone


@needs_helm
def test_a_digest_wins_over_a_tag() -> None:
    pod = of(rendered("queue.tlsSecret=q", "image.digest=sha256:abc", "image.tag=1"), "DaemonSet")[
        "spec"
    ]["template"]["spec"]
    assert pod["containers"][0]["image"] == "sluice@sha256:abc"
