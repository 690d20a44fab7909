"""Constants of the kubelet in Sluice, its fakes and its documents equal those in the kubelet's own
modules, for every minor there is.

The names were taken from elsewhere once, and were those of no kubelet: every pod got a whole GPU. So they are asked for.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from nodeagent.adapters.kubelet import (
    device_plugin,
)
from nodeagent.adapters.kubelet import (
    records as kubelet_records,
)
from nodeagent.adapters.kubelet import (
    wire as kubelet_wire,
)
from tests.cluster.programs import build, pins
from tests.kit.places import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(7200)]


@pytest.fixture(scope="module")
def newest() -> dict[str, Any]:
    _, directory = build.kubernetes(pins.DEFAULT)
    text = subprocess.run(
        [directory / "constants"], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_pods_api_is_looked_for_where_the_kubelet_serves_it(newest: dict[str, Any]) -> None:
    served = f"{newest['pods_api_directory']}/{newest['pods_api_socket']}"
    assert str(kubelet_records.PODS_SOCKET) == served


def test_the_pod_resources_are_looked_for_where_the_kubelet_serves_them(
    newest: dict[str, Any],
) -> None:
    served = f"pod-resources/{newest['pod_resources_socket']}"
    assert str(kubelet_records.POD_RESOURCES_SOCKET) == served


def test_the_device_plugin_registers_where_the_kubelet_listens(newest: dict[str, Any]) -> None:
    served = newest["device_plugin_directory"] + device_plugin.KUBELET_SOCKET
    assert newest["device_plugin_socket"] == served
    assert newest["device_plugin_directory"].endswith("/device-plugins/")
    assert newest["device_plugin_version"] == kubelet_wire.VERSION


@pytest.mark.parametrize(
    "path",
    [
        "docs/kubernetes.md",
        "proto/pods.proto",
        "docs/reference/configuration.md",
        "tests/kit/fakes/kubelet.py",
    ],
)
def test_every_gate_that_is_named_is_one_of_the_kubelet_s(
    path: str, newest: dict[str, Any]
) -> None:
    named = set(re.findall(r"\bPod(?:s|Info)API\b", (REPO / path).read_text()))
    assert named <= set(newest["gates"]), f"{path} names a gate with which the kubelet panics"


def test_the_documented_gate_is_the_kubelet_s(newest: dict[str, Any]) -> None:
    assert newest["pods_api_gate"] in (REPO / "docs" / "kubernetes.md").read_text()
