"""Explain: exact amounts, and giving what it names is enough."""

from __future__ import annotations

import heapq
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.engine.model import ClusterQueue, FlavorQuotas, ResourceGroup, ResourceQuota
from queuecontroller.explain import remedies, shortages
from queuecontroller.manifests.documents import Documents, load
from queuecontroller.simulate.run import Player
from queuecontroller.simulate.trace import Arrival

MANIFESTS = """
kind: ResourceFlavor
metadata: {name: small}
---
kind: ResourceFlavor
metadata: {name: large}
---
kind: ClusterQueue
metadata: {name: a}
spec:
  namespaceSelector: {matchExpressions: [{key: team, operator: Exists}]}
  resourceGroups:
  - coveredResources: [cpu, nvidia.com/gpu]
    flavors:
    - name: small
      resources: [{name: cpu, nominalQuota: 8}, {name: nvidia.com/gpu, nominalQuota: 2}]
    - name: large
      resources: [{name: cpu, nominalQuota: 4}, {name: nvidia.com/gpu, nominalQuota: 8}]
---
kind: LocalQueue
metadata: {name: q, namespace: team}
spec: {clusterQueue: a}
---
kind: Namespace
metadata: {name: team, labels: {team: x}}
---
kind: LocalQueue
metadata: {name: q, namespace: other}
spec: {clusterQueue: a}
"""


def job(name: str, at: int, cpu: int, gpu: int, namespace: str = "team", count: int = 1) -> Arrival:
    requests = {"cpu": cpu * 1000, "nvidia.com/gpu": gpu}
    return Arrival(
        at, namespace, "q", name, {k: v for k, v in requests.items() if v}, count, 10**15
    )


def play(documents: Documents, *jobs: Arrival) -> Player:
    player = Player(documents, jobs)
    # Up to the last arrival: nothing ends before that.
    while player._events and player._events[0][0] <= max(one.at_ns for one in jobs):
        now_ns = player._events[0][0]
        while player._events and player._events[0][0] == now_ns:
            heapq.heappop(player._events)[2](now_ns)
        player._decide(now_ns)
    return player


def said(player: Player, key: str) -> list[str]:
    info = next(
        i for queue in player.scheduler.pending.values() for i in queue.everyone() if i.key == key
    )
    before = player.used()
    found = remedies(player.scheduler, info.workload, "a", player.reasons.get(info.key, ""))
    assert player.used() == before
    return found


def test_the_nearest_flavor_is_named_with_what_is_missing_and_who_holds_it() -> None:
    player = play(load({"x": MANIFESTS}), job("big", 0, 1, 7), job("next", 1, 1, 3))
    (text,) = said(player, "team/next")
    assert text == (
        "2 more nvidia.com/gpu of flavor large became free (it asks for 3, 1 can be had now; held"
        " by team/big 7)"
    )


def test_what_can_never_be_says_so() -> None:
    player = play(load({"x": MANIFESTS}), job("huge", 0, 1, 9))
    (text,) = said(player, "team/huge")
    assert text.startswith("ClusterQueue a might use 1 more nvidia.com/gpu of flavor large")
    assert "8 at the very most" in text


def test_a_closed_door_is_named() -> None:
    player = play(load({"x": MANIFESTS}), job("out", 0, 1, 1, namespace="other"))
    (text,) = said(player, "other/out")
    assert "namespace other had the labels" in text


def raised(documents: Documents, missing: dict[tuple[str, str], int]) -> Documents:
    def more(quota: ResourceQuota, flavor: str) -> ResourceQuota:
        return replace(quota, nominal=quota.nominal + missing.get((flavor, quota.resource), 0))

    def wider(queue: ClusterQueue) -> ClusterQueue:
        groups = tuple(
            ResourceGroup(
                group.covered_resources,
                tuple(
                    FlavorQuotas(f.flavor, tuple(more(q, f.flavor) for q in f.resources))
                    for f in group.flavors
                ),
            )
            for group in queue.resource_groups
        )
        return replace(queue, resource_groups=groups)

    return replace(documents, cluster_queues=[wider(queue) for queue in documents.cluster_queues])


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=5
    ),
    wanted=st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda w: w != (0, 0)),
)
def test_giving_what_is_named_admits_it_and_one_less_does_not(
    jobs: list[tuple[int, int, int]], wanted: tuple[int, int]
) -> None:
    documents = load({"x": MANIFESTS})
    arrivals = [
        job(f"j{i}", i, cpu, gpu, count=count)
        for i, (cpu, gpu, count) in enumerate(jobs)
        if cpu or gpu
    ]
    last = job("last", 100, *wanted)
    player = play(documents, *arrivals, last)
    if "team/last" in player.admitted:
        return
    info = next(
        i
        for queue in player.scheduler.pending.values()
        for i in queue.everyone()
        if i.key == "team/last"
    )
    found = shortages(player.scheduler, info.workload, "a")
    assert found, "quota is all that is in the way here"
    missing = {(one.flavor, one.resource): one.missing for one in found}
    assert all(amount > 0 for amount in missing.values())
    # What runs stays where it is: the same holders, and the last one with the amounts added.
    made = player.scheduler
    for queue in raised(documents, missing).cluster_queues:
        made.cache.put_cluster_queue(queue)
    made.settle()
    for other in [i.key for queue in made.pending.values() for i in queue.everyone()]:
        made.delete(other)  # nobody else may take it
    made.submit(info.workload, 200)
    result = made.cycle(200)
    assert [one.info.key for one in result.reserved] == ["team/last"]
    one_less = dict(missing)
    pair = next(iter(one_less))
    one_less[pair] -= 1
    made.delete(info.key)
    for queue in raised(documents, one_less).cluster_queues:
        made.cache.put_cluster_queue(queue)
    made.settle()
    made.submit(info.workload, 300)
    assert not made.cycle(300).reserved
