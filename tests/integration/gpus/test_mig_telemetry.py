"""A node with a card that is cut into MIG instances: the reader process, detection and every set of metrics, over
the simulated NVML."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.kit.node import Node, running, until
from tests.kit.places import TENANT
from tests.kit.workplace import workplace

GPUS = "h100-80gb:1g.10gb+3g.40gb,h100-80gb"
GIB = 2**30
HOLD = str(2 * GIB)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = 'dcgm = "on"\nhami = "legacy"\n'  # the section [metrics] comes last before these
    with workplace() as directory:
        made = Node(directory, gpus=GPUS)
        path = directory / "sluice.toml"
        path.write_text(path.read_text().replace("[metrics]\n", f"[metrics]\n{settings}"))
        try:
            made.start()
            yield made
        finally:
            made.stop()


def units(node: Node) -> dict[str, str]:
    """UUIDs by the end of their names."""
    return {gpu["name"].rpartition(" ")[2]: str(gpu["uuid"]) for gpu in node.info()["gpus"]}


def samples(node: Node, name: str) -> list[Sample]:
    """Fails when any series of the page comes twice."""
    every = [
        sample
        for family in text_string_to_metric_families(node.metrics())
        for sample in family.samples
    ]
    keys = [(one.name, *sorted(one.labels.items())) for one in every]
    assert len(keys) == len(set(keys))
    return [one for one in every if one.name == name]


def by(node: Node, name: str, label: str) -> dict[str, float]:
    found = samples(node, name)
    assert len({one.labels[label] for one in found}) == len(found), f"{name} by {label}"
    return {one.labels[label]: one.value for one in found}


def test_each_instance_is_a_gpu_and_power_is_the_cards(node: Node) -> None:
    small, large, whole = (units(node)[name] for name in ("1g.10gb", "3g.40gb", "HBM3"))
    assert small.startswith("MIG-")
    assert large.startswith("MIG-")
    assert set(by(node, "sluice_gpu_memory_bytes", "gpu")) == {small, large, whole}
    power = by(node, "sluice_gpu_power_watts", "gpu")
    assert whole in power
    assert {small, large} & power.keys() == set()
    assert len(power) == 2, "one for each card"
    (card,) = power.keys() - {whole}
    energy = by(node, "sluice_gpu_energy_joules_total", "gpu")
    assert energy.keys() == power.keys()
    info = {one.labels["mig"]: one.labels for one in samples(node, "sluice_gpu_mig_info")}
    assert set(info) == {small, large}
    assert {one["gpu"] for one in info.values()} == {card}
    assert (info[small]["profile"], info[large]["profile"]) == ("1g.10gb", "3g.40gb")
    assert whole in by(node, "sluice_gpu_utilization_ratio", "gpu")
    assert not {small, large, card} & by(node, "sluice_gpu_utilization_ratio", "gpu").keys()


def test_a_grant_on_an_instance_is_seen_there_in_every_set(node: Node) -> None:
    large = units(node)["3g.40gb"]
    job = node.run_tenant(
        "on-large",
        *("--hold", HOLD, "--kernel-ns", "1000000", "--seconds", "3600"),
        flags=("--gpumem", "8Gi", "--cores", "50", "--gpu-uuid", large),
    )
    try:
        used = until(
            "NVML has its memory",
            lambda: by(node, "sluice_gpu_memory_used_bytes", "gpu")[large] or None,
        )
        assert used >= 2 * GIB
        view = until(
            "its process is on the list",
            lambda: json.loads(node.cli("top", "-n", "1", "--json").stdout)["processes"],
        )
        assert [(one["pid"], one["gpu"]) for one in view] == [(job.process.pid, large)]

        framebuffer = {
            (one.labels["gpu"], one.labels.get("GPU_I_PROFILE", "")): one.value
            for one in samples(node, "DCGM_FI_DEV_FB_USED")
        }
        assert set(framebuffer) == {("0", "1g.10gb"), ("0", "3g.40gb"), ("1", "")}
        assert framebuffer["0", "3g.40gb"] >= 2048
        assert framebuffer["0", "1g.10gb"] == 0
        assert len(samples(node, "DCGM_FI_DEV_POWER_USAGE")) == 2

        host = by(node, "hami_host_gpu_memory_used_bytes", "device_index")
        assert host["0"] >= 2 * GIB, "the card's, with all its instances"
        assert host["1"] == 0
        assert by(node, "hami_gpu_memory_allocated_bytes", "device_uuid")[large] == 8 * GIB
        assert set(by(node, "MigInfo", "mig_uuid")) == {units(node)["1g.10gb"], large}
        (busy,) = until(
            "its time has been measured",
            lambda: samples(node, "hami_container_device_utilization_ratio"),
        )
        assert busy.labels["device_uuid"] == large
        until(
            "its share shows",
            lambda: 30 < samples(node, "hami_container_device_utilization_ratio")[0].value < 70,
        )
        assert not [one for one in samples(node, "sluice_suspicions_active") if one.value]
    finally:
        job.kill()


def test_who_goes_around_us_on_an_instance_is_told_with_the_instance(node: Node) -> None:
    small = units(node)["1g.10gb"]
    process = subprocess.Popen(
        [TENANT, "--hold", HOLD, "--warm", "0", "--seconds", "3600"],
        env={**node.on_the_driver(), "CUDA_VISIBLE_DEVICES": small},
        stdout=subprocess.DEVNULL,
    )
    try:
        (event,) = until(
            "it is reported", lambda: node.cli_json("events", "--kind", "unregistered_gpu_user")
        )
        assert event["pid"] == process.pid
        evidence = json.loads(event["evidence"])
        assert evidence["gpu"] == small
        assert evidence["memory_bytes"] >= 2 * GIB
    finally:
        process.kill()
        process.wait(60)


def test_a_node_whose_only_card_is_cut_tells_the_cards_figures_once() -> None:
    with workplace() as directory, running(directory, gpus="h100-80gb:1g.10gb") as node:
        (only,) = node.info()["gpus"]
        assert only["name"].endswith("MIG 1g.10gb")
        assert len(samples(node, "sluice_gpu_energy_joules_total")) == 1
