"""Requests in HAMi's names, read as the API server writes them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from nodeagent.assembly.kubelet import limit_sources
from nodeagent.core.kubelet.pod_limits import (
    YIELDING_PPM,
    DefaultLimits,
    limits_from_requests,
    merge,
    parse_quantity,
)
from nodeagent.ports.clients import MemoryAsk
from nodeagent.ports.kubelet import PermanentError
from nodeagent.settings.kubelet import KubeletConfig
from nodeagent.shell.pods.limits import NodeDefaults, PodLimits
from nodeagent.shell.pods.pod_sources import PodSources
from nodeagent.units import MIB, WHOLE_PPM, Bytes, Ppm, SharePolicy
from sluicecommon.hami.names import ResourceNames
from sluicecommon.pod_annotations import SHARE_POLICY

NAMES = ResourceNames()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8000", 8000), ("8k", 8000), ("8Ki", 8192), ("500m", Fraction(1, 2)), ("1e3", 1000),
        ("1.5", Fraction(3, 2)), ("0", 0), (".5Gi", 1 << 29), ("2E", 2 * 10**18),
    ],
)  # fmt: skip
def test_quantities(text: str, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "-1", "8GB", "eight", "1e", "1 000", "0x10", "1e999"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("resources", "memory", "share_ppm", "policy", "source"),
    [
        ({}, MemoryAsk(part_ppm=Ppm(WHOLE_PPM)), YIELDING_PPM, SharePolicy.ELASTIC, "defaults"),
        (
            {"nvidia.com/gpumem": "8k", "nvidia.com/gpucores": "30"},
            MemoryAsk(amount_bytes=Bytes(8000 * MIB)), 300_000, SharePolicy.HARD, "pod",
        ),
        (
            {"nvidia.com/gpumem-percentage": "25"},
            MemoryAsk(part_ppm=Ppm(250_000)), YIELDING_PPM, SharePolicy.ELASTIC, "pod",
        ),
        (
            {"nvidia.com/gpumem": "1000", "nvidia.com/gpumem-percentage": "25"},
            MemoryAsk(amount_bytes=Bytes(1000 * MIB)), YIELDING_PPM, SharePolicy.ELASTIC, "pod",
        ),
        (
            {"nvidia.com/gpucores": "100"},
            MemoryAsk(part_ppm=Ppm(WHOLE_PPM)), WHOLE_PPM, SharePolicy.EXCLUSIVE, "pod",
        ),
        (
            {"nvidia.com/gpucores": "250"},
            MemoryAsk(part_ppm=Ppm(WHOLE_PPM)), WHOLE_PPM, SharePolicy.EXCLUSIVE, "pod",
        ),
    ],
    ids=["nothing asked", "memory and cores", "a part", "amount before part", "100 cores", "more than 100 is 100"],
)  # fmt: skip
def test_what_requests_mean(
    resources: dict[str, str], memory: MemoryAsk, share_ppm: int, policy: SharePolicy, source: str
) -> None:
    found = limits_from_requests(resources, 2, NAMES, DefaultLimits())
    ask = found.ask
    assert (ask.gpus, ask.memory, ask.share_ppm, ask.policy) == (2, memory, share_ppm, policy)
    assert found.source == source


def test_defaults_and_units_are_the_nodes() -> None:
    names = ResourceNames(memory="acme.io/mem", memory_factor=256)
    defaults = DefaultLimits(memory_mib=2048, cores_percent=10)
    assert limits_from_requests({"acme.io/mem": "4"}, 1, names, defaults).ask.memory == MemoryAsk(
        amount_bytes=Bytes(1024 * MIB)
    )
    asked = limits_from_requests({"nvidia.com/gpumem": "9"}, 1, names, defaults).ask
    assert asked.memory == MemoryAsk(amount_bytes=Bytes(2048 * MIB))
    assert (asked.share_ppm, asked.policy) == (100_000, SharePolicy.HARD)


@pytest.mark.parametrize(
    "resources",
    [
        {"nvidia.com/gpumem": "1.5"},
        {"nvidia.com/gpucores": "x"},
        {"nvidia.com/gpumem-percentage": "101"},
        {"nvidia.com/gpumem": "9E"},
    ],
)
def test_what_cannot_be_meant_names_the_resource(resources: dict[str, str]) -> None:
    with pytest.raises(PermanentError, match=next(iter(resources))):
        limits_from_requests(resources, 1, NAMES, DefaultLimits())


def test_memory_written_in_bytes_is_refused_with_the_amount_in_mib() -> None:
    with pytest.raises(PermanentError, match=r"the amount is in MiB: write 8192$"):
        limits_from_requests({"nvidia.com/gpumem": "8Gi"}, 1, NAMES, DefaultLimits())


def test_containers_with_one_grant_get_the_larger_limits() -> None:
    init = limits_from_requests(
        {"nvidia.com/gpumem": "1000", "nvidia.com/gpucores": "60"}, 1, NAMES, DefaultLimits()
    )
    app = limits_from_requests(
        {"nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "20"}, 1, NAMES, DefaultLimits()
    )
    ask = merge([init, app]).ask
    assert ask.memory == MemoryAsk(amount_bytes=Bytes(4000 * MIB))
    assert (ask.share_ppm, ask.policy) == (600_000, SharePolicy.HARD)


@pytest.mark.parametrize(
    ("most", "asked", "gets"),
    [(0, "0", 0), (0, "1", 0), (1, "0", 1), (1, "1", 0), (1000, "0", 1), (-5, "0", -5), (-5, "1", -5)],
)  # fmt: skip
def test_priority_0_goes_first_where_the_node_permits_it(most: int, asked: str, gets: int) -> None:
    """With priority 1 and no cores a pod left a hard neighbour of 70 % with 5 % of the time."""
    limits = limits_from_requests(
        {"nvidia.com/priority": asked}, 1, NAMES, DefaultLimits(max_priority=most)
    )
    assert limits.ask.priority == gets
    assert limits_from_requests({}, 1, NAMES, DefaultLimits()).ask.priority == 0


def test_shares_may_be_weights_only() -> None:
    elastic = DefaultLimits(cores_percent=20, elastic=True)
    for resources, share in (({"nvidia.com/gpucores": "30"}, 300_000), ({}, 200_000)):
        ask = limits_from_requests(resources, 1, NAMES, elastic).ask
        assert (ask.policy, ask.share_ppm) == (SharePolicy.ELASTIC, share)
    whole = limits_from_requests({"nvidia.com/gpucores": "100"}, 1, NAMES, elastic).ask
    assert whole.policy is SharePolicy.EXCLUSIVE


def test_a_node_that_gives_whole_gpus_gives_nothing_less() -> None:
    alone = DefaultLimits(memory_mib=1000, alone=True)
    ask = limits_from_requests({"nvidia.com/gpumem": "8000"}, 2, NAMES, alone).ask
    assert ask.memory == MemoryAsk(part_ppm=Ppm(WHOLE_PPM))
    assert (ask.policy, ask.gpus) == (SharePolicy.EXCLUSIVE, 2)


def test_the_configuration_says_who_is_asked_and_what_holds() -> None:
    config = KubeletConfig(limits=("defaults", "pod"), default_cores_percent=20)
    first, second = limit_sources(config, None, PodSources([]))
    assert isinstance(first, NodeDefaults)
    assert isinstance(second, PodLimits)
    assert len(limit_sources(KubeletConfig(), None, PodSources([]))) == 2, (
        "no queue, no such source"
    )


@pytest.mark.parametrize(
    ("cores", "policy", "share_ppm", "found"),
    [
        ("80", "elastic", 800_000, SharePolicy.ELASTIC),
        (None, "elastic", YIELDING_PPM, SharePolicy.ELASTIC),
        ("100", "elastic", WHOLE_PPM, SharePolicy.ELASTIC),
        ("30", "exclusive", WHOLE_PPM, SharePolicy.EXCLUSIVE),
        (None, "exclusive", WHOLE_PPM, SharePolicy.EXCLUSIVE),
        ("30", "hard", 300_000, SharePolicy.HARD),
        ("100", "hard", WHOLE_PPM, SharePolicy.HARD),
        (None, "hard", WHOLE_PPM, SharePolicy.HARD),
        ("30", " ", 300_000, SharePolicy.HARD),
    ],
)
def test_the_policy_that_a_pod_names_is_its_grants(
    cores: str | None, policy: str, share_ppm: int, found: SharePolicy
) -> None:
    resources = {"nvidia.com/gpucores": cores} if cores else {}
    annotations = {SHARE_POLICY: policy}
    made = limits_from_requests(resources, 1, NAMES, DefaultLimits(), annotations)
    assert (made.ask.share_ppm, made.ask.policy) == (share_ppm, found)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(PermanentError, match="must be one of hard, elastic, exclusive, got 'soft'"):
        limits_from_requests({}, 1, NAMES, DefaultLimits(), {SHARE_POLICY: "soft"})
