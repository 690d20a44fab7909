"""Every row: what its plugin registers is read, pods fill it and no more, and each plugin reads what its pod was given."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.gpushares.vendors import ROWS, allocation, asks_of, cards_of, fit, quota_of
from tests.queue.gpushares.vendors.plugins import NODE, PLUGINS, Simulated

ids = [one.word for one in PLUGINS]
each = pytest.mark.parametrize("plugin", PLUGINS, ids=ids)


def place(plugin: Simulated, pods: list[Any], name: str, **annotations: str) -> Any:
    """The pod as it is bound, or why not."""
    pod = plugin.pod(name, **annotations)
    chosen = fit(ROWS, cards_of(ROWS, plugin.node(), pods), asks_of(ROWS, pod))
    if isinstance(chosen, str):
        return chosen
    pod["metadata"]["annotations"] |= allocation(ROWS, chosen, pod, NODE, 10**18)
    pods.append(pod)
    return pod


@each
def test_a_plugin_registers_and_reads_back_what_its_pod_was_given(plugin: Simulated) -> None:
    problems: list[str] = []
    cards = cards_of(ROWS, plugin.node(), [], problems)
    assert not problems
    assert list(cards) == [plugin.word], "no other row takes what this plugin registers"
    pod = place(plugin, [], "first")
    given = pod["metadata"]["annotations"]
    assert plugin.reads(given) == plugin.gets
    assert given["hami.io/vgpu-node"] == NODE
    assert given["hami.io/bind-phase"] == "allocating"


@each
def test_pods_fill_a_node_and_no_more(plugin: Simulated) -> None:
    pods: list[Any] = []
    for i in range(plugin.fills):
        assert not isinstance(place(plugin, pods, f"pod-{i}"), str), f"pod {i} has no room"
    why = place(plugin, pods, "too-many")
    assert isinstance(why, str), "the node is full"
    row = next(one for one in ROWS if one.word == plugin.word)
    assert why.startswith(f"{row.title}: ")
    # And what one gives back another gets.
    del pods[0]
    assert not isinstance(place(plugin, pods, "later"), str)


@each
def test_nothing_is_given_twice_over(plugin: Simulated) -> None:
    pods: list[Any] = []
    for i in range(plugin.fills):
        place(plugin, pods, f"pod-{i}")
    (cards,) = cards_of(ROWS, plugin.node(), pods).values()
    for card in cards:
        device = card.device
        assert card.slots <= device.slots
        assert card.memory_mib <= device.memory_mib or not device.memory_mib
        if plugin.word.startswith("Ascend"):
            assert card.cores <= 100
        elif plugin.word not in ("Vastai", "Biren"):
            assert card.cores <= device.cores


@each
def test_quota_counts_each_device_times_their_number(plugin: Simulated) -> None:
    found = quota_of(ROWS, asks_of(ROWS, plugin.pod()))
    assert {key: found[key] for key in plugin.quota} == plugin.quota


@each
def test_a_device_that_is_excluded_or_cordoned_takes_nothing(plugin: Simulated) -> None:
    row = next(one for one in ROWS if one.word == plugin.word)
    (cards,) = cards_of(ROWS, plugin.node(), []).values()
    names = ",".join(card.device.id for card in cards)
    if row.nouse_ids:
        why = place(plugin, [], "excluded", **{row.nouse_ids: names})
        assert isinstance(why, str)
        if plugin.word not in ("kunlun", "XPU", "AWSNeuron"):
            assert row.nouse_ids in why
    node = plugin.node()
    node["metadata"]["annotations"] = {**plugin.annotations, "hami.io/device-cordon": names}
    chosen = fit(ROWS, cards_of(ROWS, node, []), asks_of(ROWS, plugin.pod()))
    assert isinstance(chosen, str)


def test_every_row_has_a_plugin_here() -> None:
    chips = ("Ascend", "MR-", "BI-")
    rows = {one.word for one in ROWS if not one.word.startswith(chips)}
    assert rows <= set(ids)
    for prefix in ("Ascend", "BI-"):
        assert any(one.startswith(prefix) for one in ids)


@pytest.mark.parametrize(
    ("register", "problem"),
    [('{"uuid": 7}', "expected a list of devices, got"), ("[7]", "device 0: expected an object")],
)
def test_a_malformed_register_of_metax_is_shown(register: str, problem: str) -> None:
    plugin = next(one for one in PLUGINS if one.word == "Metax-SGPU")
    node = plugin.node()
    node["metadata"]["annotations"] = {"metax-tech.com/node-gpu-devices": register}
    problems: list[str] = []
    assert "Metax-SGPU" not in cards_of(ROWS, node, [], problems)
    (text,) = problems
    assert problem in text
    assert "7" in text
    assert "shown(" not in text


def test_names_are_of_one_row_each() -> None:
    for field in ("word", "count", "allocated"):
        values = [getattr(one, field) for one in ROWS]
        assert len(values) == len(set(values)), field
    resources = [name for one in ROWS for name in one.resources]
    assert len(resources) == len(set(resources))
