"""Names that monitoring reads: those of dcgm-exporter and HAMi with the pods' labels, and alert
rules that fire on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import path_of
from tests.cluster.lab import METRICS_PORT, SYSTEM, Lab
from tests.cluster.prometheus import Prometheus
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.usefixtures("lab")]
GROUP = "monitoring.coreos.com"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MONITORING = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}


@pytest.fixture
def both_names(lab: Lab) -> Iterator[Lab]:
    lab.install(
        {"agent.config": '[kubelet]\nenabled = true\n[metrics]\ndcgm = "on"\nhami = "on"\n'}
    )
    lab.agent_pod()
    yield lab
    lab.clear()
    lab.install()


def test_dcgm_s_and_hami_s_names_carry_the_pod(both_names: Lab) -> None:
    lab = both_names
    lab.run("named", memory_mib=8000, cores=30)
    pod = {"namespace": "default", "pod": "named", "container": "main"}

    def told() -> bool:
        return lab.metric("DCGM_FI_DEV_FB_USED", **pod) is not None

    until("dcgm's name has the pod", told, 30)
    found = {
        name
        for name, labels, _ in lab.metrics()
        if labels.get("pod") == "named" or labels.get("podname") == "named"
    }
    assert any(
        name.startswith(("vGPU", "Device_memory")) or "vgpu" in name.lower() for name in found
    ), found


@pytest.fixture(scope="module")
def monitored(installed: Lab) -> Iterator[Lab]:
    """A cluster as with Prometheus' operator: its kinds are there, and the chart makes its objects
    for it."""
    lab = installed
    kinds = [_kind(plural, kind) for plural, kind in MONITORING.items()]
    lab.apply(*kinds)
    for plural in MONITORING:
        until(f"{plural} are served", lambda plural=plural: served(lab, plural), 30)
    asked = ("serviceMonitor.enabled", "prometheusRule.enabled", "dashboard.enabled")
    readers = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    reached = {"networkPolicy.metricsFrom": [{"namespaceSelector": readers}]}
    # A GPU is offered again after five good seconds, so that the alert's end is soon to be seen.
    health = {"agent.config": "[health]\ngood_s = 5\n"}
    lab.install({**dict.fromkeys(asked, True), **reached, **health})
    yield lab
    lab.clear()
    lab.install()
    for kind in kinds:
        lab.api.delete(f"{CRDS}/{kind['metadata']['name']}")


def _kind(plural: str, kind: str) -> dict[str, Any]:
    """Only what the API server needs to take such objects; their fields are the operator's."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def served(lab: Lab, plural: str) -> bool:
    return lab.api.find(f"/apis/{GROUP}/v1/{plural}") is not None


def monitoring(lab: Lab, plural: str) -> dict[str, Any]:
    (found,) = lab.api.get(f"/apis/{GROUP}/v1/namespaces/{SYSTEM}/{plural}")["items"]
    return dict(found["spec"])


def test_the_service_monitor_finds_both_services_metrics(monitored: Lab) -> None:
    lab = monitored
    spec = monitoring(lab, "servicemonitors")
    labels = ",".join(f"{key}={value}" for key, value in spec["selector"]["matchLabels"].items())
    (endpoint,) = spec["endpoints"]
    read = {}
    for service in lab.api.items("services", SYSTEM, labelSelector=labels):
        name = service["metadata"]["name"]
        found = lab.api.get(path_of("endpoints", SYSTEM, name))
        for subset in found.get("subsets", []):
            for port in subset["ports"]:
                if port.get("name") == endpoint["port"]:
                    address = subset["addresses"][0]["ip"]
                    read[name] = lab.cluster.page(address, port["port"])
    assert len(read) == 2, f"the agent's and the queue's: {sorted(read)}"
    assert any("sluice_gpu_memory_bytes{" in page for page in read.values())
    assert any("kueue_" in page for page in read.values())


def test_dashboards_lie_where_grafana_s_sidecar_looks(monitored: Lab) -> None:
    found = monitored.api.items("configmaps", SYSTEM, labelSelector="grafana_dashboard=1")
    boards = [json.loads(text) for one in found for text in one["data"].values()]
    assert boards
    assert all(board["panels"] and board["uid"] for board in boards)


def test_an_alert_fires_on_what_it_names_and_stops(monitored: Lab) -> None:
    """Prometheus itself reads the agent and the rules as the operator would hand them over. A card is lost; the rule says so, with
    the card's name; it comes back."""
    lab = monitored
    control = lab.cluster.root() / "run" / "nvidia" / "state" / "control"
    address = f"{lab.agent_pod()['status']['podIP']}:{METRICS_PORT}"
    rules = monitoring(lab, "prometheusrules")
    with Prometheus(lab.cluster, address, rules) as prometheus:
        until("it has read the agent", lambda: prometheus.up(), 60)
        assert "SluiceGpuUnhealthy" not in prometheus.firing()
        try:
            control.write_text("gpu_lost=0\n")
            alert = until(
                "the rule fires", lambda: prometheus.firing().get("SluiceGpuUnhealthy"), 90
            )
            assert alert["gpu"].startswith("GPU-")
        finally:
            control.write_text("")
        until("it is over", lambda: "SluiceGpuUnhealthy" not in prometheus.firing(), 180)
