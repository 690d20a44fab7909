"""What monitoring reads: names of dcgm-exporter and HAMi with the pods' labels, and rules that fire on what they name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.lab import METRICS_PORT, Lab
from tests.cluster.prometheus import Prometheus
from tests.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


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


def test_an_alert_fires_on_what_it_names_and_stops(lab: Lab) -> None:
    """Prometheus itself reads the agent. A card is lost; the rule says so, with the card's name; it comes back."""
    control = lab.cluster.root() / "run" / "nvidia" / "state" / "control"
    address = f"{lab.agent_pod()['status']['podIP']}:{METRICS_PORT}"
    with Prometheus(lab.cluster, address) as prometheus:
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
