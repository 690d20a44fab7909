"""Ten thousand Workloads in the API server when the queue starts, ten thousand pods besides; and a leader that is killed."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from queuecontroller.server.web.webhooks import word_of
from tests.bench.cluster.room import deciding, load, plane, queues
from tests.bench.cluster.sides import memory_mib
from tests.bench.entries import Entry, entry
from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import (
    Replica,
    apply,
    define,
    define_all,
    job,
    leader_of,
    quota,
    suspended,
)
from tests.kit.node import until

JUDGES = "sluice-kueue-api"
FAILOVER_LEASE_S = 5.0


def setting(replica: Replica, name: str) -> str:
    return next(one.partition("=")[2] for one in replica.command if one.startswith(f"{name}="))


def webhooks(replica: Replica, place: Path, like: Path, count: int) -> dict[str, Any]:
    authority = setting(replica, "kubernetes.webhooks_ca")
    url = setting(replica, "kubernetes.webhooks_url")
    word = word_of(Path(setting(replica, "kubernetes.webhooks_key")))
    more = ("--url", url, "--word", word, "--ca", authority, "--sample", like, "--per-s", 100)
    return load(replica.plane, "webhooks", "--count", count, *more)


def started(made: ControlPlane) -> float:
    """Jobs let run so far, by the API server's own count."""
    wanted = ('verb="PATCH"', 'resource="jobs"', 'subresource=""', 'code="200"')
    lines = made.api.get("/metrics").splitlines()
    counts = [one for one in lines if one.startswith("apiserver_request_total{")]
    return sum(float(one.rpartition(" ")[2]) for one in counts if all(w in one for w in wanted))


def begun(made: ControlPlane, replica: Replica, seconds: float) -> dict[str, float]:
    """Start the controller until it decides; returns its work in that time and in the time after,
    and its peak memory."""
    before = started(made)
    began = time.monotonic()
    replica.start()
    until("it decides", replica.leads, 120)
    ready_s = time.monotonic() - began
    time.sleep(seconds)
    assert replica.process is not None
    pid = replica.process.pid
    return {
        "ready_s": round(ready_s, 2),
        "per_s": round((started(made) - before) / seconds, 1),
        "peak_mib": round(memory_mib(pid, "VmHWM"), 1),
        "rss_mib": round(memory_mib(pid), 1),
    }


def room_for(made: ControlPlane, cpu: int) -> None:
    """While no webhook can judge it: the next replica to start registers itself again."""
    hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    made.api.delete(f"{hooks}/{JUDGES}")
    apply(made, quota("waits", cpu))


def many(quick: bool, like: str) -> list[Entry]:
    """`like`: what was written for one Job."""
    count, seconds = (1000, 5.0) if quick else (10_000, 30.0)
    with plane() as (made, place):
        sample = place / "sample.json"
        sample.write_text(like)
        define_all(made)
        queues(made)
        load(
            made, "fill", "--count", count, "--name", "fill", "--queue", "waits", "--sample", sample
        )
        with deciding(made, place) as replica:
            replica.end()
            room_for(made, 1_000_000)
            alone = begun(made, replica, seconds)
            replica.end()
            pods = load(made, "pods", "--count", count)
            beside = begun(made, replica, seconds / 3)  # of which only its memory counts
    print(f"  {count} Workloads at its start: {alone}\n  and {count} pods ({pods}): {beside}")
    more = beside["peak_mib"] - alone["peak_mib"]
    return [
        entry("time_to_ready_10000_s", "s", [alone["ready_s"]], target="<= 5"),
        entry("cluster_admissions_10000_per_s", "1/s", [alone["per_s"]], target=">= 60"),
        entry("cluster_rss_mib", "MiB", [alone["peak_mib"]], target="<= 300"),
        entry("cluster_rss_10000_pods_more_mib", "MiB", [more], target="<= 150"),
    ]


def runs(made: ControlPlane, name: str) -> bool:
    return not suspended(made, name)


def killed(quick: bool) -> list[Entry]:
    """Its lease is short, so that many can be killed: what comes on top of it is what is ours."""
    found = []
    with plane() as (made, place):
        define(made)
        queues(made)
        replicas = [
            Replica(
                made, place / f"{number}.log", [f"kubernetes.leader_lease_s={FAILOVER_LEASE_S:g}"]
            )
            for number in range(2)
        ]
        try:
            for one in replicas:
                one.start()
            for number in range(2 if quick else 4):
                victim = until("a replica leads", lambda: leader_of(made, replicas), 60)
                until("the other follows", lambda: all(one.is_ready for one in replicas), 60)
                victim.end(signal.SIGKILL)
                began = time.monotonic()
                name = f"after-{number}"
                made.api.create("jobs", "default", job(name, "all"))
                until("it is let run", partial(runs, made, name), 60)
                found.append(time.monotonic() - began)
                victim.start()
        finally:
            for one in replicas:
                if one.process is not None:
                    one.end(signal.SIGKILL)
    print(f"  leader killed, lease {FAILOVER_LEASE_S:g} s: {[round(one, 2) for one in found]} s")
    return [
        entry(
            "failover_s",
            "s",
            found,
            value=max(found),
            baseline=FAILOVER_LEASE_S,
            target=f"<= {FAILOVER_LEASE_S + 3:g}",
        )
    ]
