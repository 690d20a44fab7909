"""The user of a cluster, in a process of its own: makes Jobs and notes when each is let run; or asks the webhooks; or makes the
same writes as the controller, without it. Prints JSON.

    python -m tests.bench.cluster.load KUBECONFIG jobs --count 2000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from queuecontroller.cluster.cache.kinds import ELASTIC_PODS, WORKLOADS
from queuecontroller.frameworks import frameworks, workload_name
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Credentials, from_kubeconfig
from sluicecommon.kubernetes.decoding import Decoder
from sluicecommon.kubernetes.following import Follower
from sluicecommon.kubernetes.reflector import Change, Changed, Reflector
from sluicecommon.kubernetes.resources import EVENTS, PODS, Resource
from tests.bench.entries import quantile
from tests.cluster.queueing import job

JOBS = Resource("batch", "v1", "jobs", "Job")
JOB = next(one for one in frameworks() if one.kind == "Job")
NAMESPACE = "default"
QUEUE = "kueue.x-k8s.io/queue-name"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
JOB_UID = "kueue.x-k8s.io/job-uid"
TOGETHER = 16
"""Requests in flight: with more the API server does no more of them."""
ASKERS = 4


async def together(count: int, do: Callable[[int], Awaitable[None]]) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await do(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(TOGETHER):
            group.create_task(work())


class Watched:
    """When each Job was seen to be let run."""

    def __init__(self, client: ApiClient) -> None:
        self.running_s: dict[str, float] = {}
        self.versions: dict[str, str] = {}
        self.news = asyncio.Event()
        reflector: Reflector[bool] = Reflector(
            Decoder(lambda one: bool((one.get("spec") or {}).get("suspend")))
        )
        self._follower = Follower(client, JOBS, reflector, self._changed, NAMESPACE)
        self._task = asyncio.create_task(self._follower.run())

    def _changed(self, change: Change[bool]) -> None:
        if isinstance(change, Changed):
            name = change.item.key.rpartition("/")[2]
            self.versions[name] = change.item.version
            if not change.item.value and name not in self.running_s:
                self.running_s[name] = time.monotonic()
        self.news.set()

    async def synced(self) -> None:
        while not self._follower.reflector.synced:
            await asyncio.sleep(0.01)

    async def until(self, names: Sequence[str], deadline_s: float) -> None:
        async with asyncio.timeout(deadline_s):
            while not all(one in self.running_s for one in reversed(names)):
                self.news.clear()
                await self.news.wait()
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def shown(made_s: dict[str, float], running_s: dict[str, float], **more: object) -> dict[str, Any]:
    waits_ms = [(running_s[name] - at) * 1000 for name, at in made_s.items()]
    first, last = min(made_s.values()), max(running_s[name] for name in made_s)
    return {
        "count": len(made_s),
        "made_s": round(max(made_s.values()) - first, 3),
        "all_s": round(last - first, 3),
        "per_s": round(len(made_s) / (last - first), 2),
        "p50_ms": round(quantile(waits_ms, 0.5), 2),
        "p99_ms": round(quantile(waits_ms, 0.99), 2),
        **more,
    }


async def jobs(client: ApiClient, options: argparse.Namespace) -> dict[str, Any]:
    """All at once."""
    watched = Watched(client)
    await watched.synced()
    made_s: dict[str, float] = {}

    async def make(number: int) -> None:
        name = f"{options.name}-{number}"
        document = job(name, options.queue, suspend=False)
        made_s[name] = time.monotonic()
        await client.create(JOBS, document, NAMESPACE)

    await together(options.count, make)
    await watched.until(list(made_s), options.deadline_s)
    await watched.close()
    return shown(made_s, watched.running_s)


async def stream(client: ApiClient, options: argparse.Namespace) -> dict[str, Any]:
    """One after the other at a rate; each is done `--runs-s` after it was let run."""
    watched = Watched(client)
    await watched.synced()
    made_s: dict[str, float] = {}
    begin_s = time.monotonic()

    async def live(number: int) -> None:
        await asyncio.sleep(begin_s + number / options.per_s - time.monotonic())
        name = f"{options.name}-{number}"
        document = job(name, options.queue, suspend=False)
        made_s[name] = time.monotonic()
        await client.create(JOBS, document, NAMESPACE)
        await watched.until([name], options.deadline_s)
        await asyncio.sleep(options.runs_s)
        await client.merge_patch(JOBS, name, {"status": done()}, NAMESPACE, "status")

    async with asyncio.TaskGroup() as group:
        for number in range(options.count):
            group.create_task(live(number))
    await watched.close()
    return shown(made_s, watched.running_s)


async def dispatch(client: ApiClient, options: argparse.Namespace) -> dict[str, Any]:
    """One after the other at a rate, through MultiKueue to the clusters of `--worker`, else for the queue of this cluster. A Job
    is done as soon as a cluster has let it run."""
    there = [client_of(Path(one)) for one in options.worker] or [client]
    spec = {"managedBy": MULTIKUEUE} if options.worker else {}
    watched = [Watched(one) for one in there]
    for one in watched:
        await one.synced()
    made_s: dict[str, float] = {}
    running_s: dict[str, float] = {}
    at: Counter[int] = Counter()
    begin_s = time.monotonic()

    async def live(number: int) -> None:
        await asyncio.sleep(begin_s + number / options.per_s - time.monotonic())
        name = f"{options.name}-{number}"
        made_s[name] = time.monotonic()
        await client.create(JOBS, job(name, options.queue, **spec), NAMESPACE)
        waits = [
            asyncio.create_task(one.until([name], options.deadline_s), name=str(index))
            for index, one in enumerate(watched)
        ]
        ready, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        found = min(int(one.get_name()) for one in ready)
        at[found] += 1
        running_s[name] = watched[found].running_s[name]
        await there[found].merge_patch(JOBS, name, {"status": done()}, NAMESPACE, "status")

    async with asyncio.TaskGroup() as group:
        for number in range(options.count):
            group.create_task(live(number))
    for one in watched:
        await one.close()
    for other in there:
        await other.close()
    return shown(made_s, running_s, at=dict(sorted(at.items())))


def done() -> dict[str, Any]:
    """Status that the controller-manager writes on a Job whose pods are done."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = {"lastTransitionTime": at, "lastProbeTime": at, "reason": "r", "message": "m"}
    kinds = ("SuccessCriteriaMet", "Complete")
    conditions = [{"type": kind, "status": "True", **times} for kind in kinds]
    ends = {"startTime": at, "completionTime": at, "succeeded": 1, "active": 0, "ready": 0}
    return {"conditions": conditions, **ends}


def sample(options: argparse.Namespace) -> dict[str, Any]:
    """Read the `job`, `workload` and `event` that the controller wrote for one Job, as they are
    stored."""
    found: dict[str, Any] = json.loads(Path(options.sample).read_text())
    return found


def workload_for(made: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    head = like["metadata"]
    kept = {name: head[name] for name in ("labels", "annotations", "finalizers") if name in head}
    owner = {**head["ownerReferences"][0]}
    owner |= {"name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
    kept |= {"name": workload_name(JOB, made), "namespace": NAMESPACE, "ownerReferences": [owner]}
    kept["labels"] = {**kept["labels"], JOB_UID: owner["uid"]}
    return {
        "apiVersion": like["apiVersion"],
        "kind": like["kind"],
        "metadata": kept,
        "spec": {**like["spec"], "queueName": made["metadata"]["labels"][QUEUE]},
    }


async def bare(client: ApiClient, options: argparse.Namespace) -> dict[str, Any]:
    """The writes of the controller, of the same bodies and as many in flight as it has, and no decision: Workload, its
    status, the Job, an event."""
    like = sample(options)
    head = like["job"]["spec"]["template"]["metadata"]
    labels = {name: text for name, text in head["labels"].items() if name.startswith("kueue")}
    template = {"metadata": {"labels": labels, "annotations": head["annotations"]}}
    patch = {
        "metadata": {"annotations": like["job"]["metadata"].get("annotations") or {}},
        "spec": {"suspend": False, "template": template},
    }
    made_s: dict[str, float] = {}
    running_s: dict[str, float] = {}
    waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def make(number: int) -> None:
        name = f"{options.name}-{number}"
        made_s[name] = time.monotonic()
        waiting.put_nowait(await client.create(JOBS, job(name, options.queue), NAMESPACE))

    async def write() -> None:
        while True:
            made = await waiting.get()
            name = made["metadata"]["name"]
            workload = await client.create(
                WORKLOADS, workload_for(made, like["workload"]), NAMESPACE
            )
            await client.merge_patch(
                WORKLOADS,
                workload["metadata"]["name"],
                {"status": like["workload"]["status"]},
                NAMESPACE,
                "status",
                workload["metadata"]["resourceVersion"],
            )
            version = made["metadata"]["resourceVersion"]
            await client.merge_patch(JOBS, name, patch, NAMESPACE, resource_version=version)
            running_s[name] = time.monotonic()
            event = dict(like["event"])
            event["metadata"] = {"name": f"{name}.{number_of(event)}", "namespace": NAMESPACE}
            await client.create(EVENTS, event, NAMESPACE)
            waiting.task_done()

    writers = [asyncio.create_task(write()) for _ in range(options.writers)]
    await together(options.count, make)
    await waiting.join()
    for one in writers:
        one.cancel()
    return shown(made_s, running_s, writes=4 * options.count)


def number_of(event: dict[str, Any]) -> str:
    return str(event["metadata"]["name"]).rpartition(".")[2]


async def fill(client: ApiClient, options: argparse.Namespace) -> dict[str, Any]:
    """Jobs that wait, each with its Workload, while no replica decides."""
    like = sample(options)

    async def make(number: int) -> None:
        document = job(f"{options.name}-{number}", options.queue)
        made = await client.create(JOBS, document, NAMESPACE)
        await client.create(WORKLOADS, workload_for(made, like["workload"]), NAMESPACE)

    await together(options.count, make)
    return {"count": options.count}


def pod(name: str, owner: str) -> dict[str, Any]:
    """Admitted pod of about 5 KB, the size of a training job's pods. The cache keeps all of it, as
    for a pod of an elastic Job."""
    environment = [{"name": f"VARIABLE_{i}", "value": f"{name}-{i}" + "x" * 40} for i in range(20)]
    container = {
        "name": "main",
        "image": "registry.example.org/team/training:1.0",
        "env": environment,
        "resources": {"requests": {"cpu": "1"}},
    }
    labels = {ELASTIC_PODS: "true", "job-name": owner}
    above = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner,
        "uid": name,
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": labels,
            "ownerReferences": [above],
        },
        "spec": {"containers": [container], "nodeName": f"node-{len(name)}"},
    }


async def pods(client: ApiClient, options: argparse.Namespace) -> dict[str, Any]:
    sizes: list[int] = []

    async def make(number: int) -> None:
        name = f"{options.name}-{number}"
        made = await client.create(PODS, pod(name, f"{options.owners}-{number}"), NAMESPACE)
        sizes.append(len(json.dumps(made)))

    await together(options.count, make)
    return {"count": len(sizes), "mean_bytes": sum(sizes) // len(sizes)}


async def webhooks(client: ApiClient, options: argparse.Namespace) -> dict[str, Any]:
    """Time the API server's webhook requests for new Jobs and for changed Workloads, in turns, over
    connections that are kept open."""
    context = ssl.create_default_context(cafile=options.ca)
    like = sample(options)
    bodies = [
        ("/mutate", review("CREATE", job("asked", "all", suspend=False), None)),
        ("/validate", review("UPDATE", like["workload"], like["workload"])),
    ]
    took_ms: dict[str, list[float]] = {path: [] for path, _ in bodies}
    numbers = iter(range(options.count))
    begin_s = time.monotonic()
    connector = aiohttp.TCPConnector(limit=ASKERS, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask() -> None:
            for number in numbers:
                await asyncio.sleep(begin_s + number / options.per_s - time.monotonic())
                path, body = bodies[number % len(bodies)]
                sent_s = time.perf_counter()
                async with session.post(
                    f"{options.url}{path}/{options.word}", data=body, ssl=context
                ) as answer:
                    said = await answer.json()
                if number >= ASKERS:  # connected by then
                    took_ms[path].append((time.perf_counter() - sent_s) * 1000)
                if not said["response"]["allowed"]:
                    raise SystemExit(f"bench: {path}: {said}")

        async with asyncio.TaskGroup() as tasks:
            for _ in range(ASKERS):
                tasks.create_task(ask())
    all_ms = [one for found in took_ms.values() for one in found]
    each = {path: round(quantile(found, 0.99), 2) for path, found in took_ms.items()}
    return {
        "count": len(all_ms),
        "p50_ms": round(quantile(all_ms, 0.5), 2),
        "p99_ms": round(quantile(all_ms, 0.99), 2),
        "p99_ms_of": each,
    }


def review(operation: str, document: Any, old: Any) -> bytes:
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "operation": operation,
        "namespace": NAMESPACE,
        "name": document["metadata"]["name"],
        "object": document,
        "oldObject": old,
        "userInfo": {"username": "somebody", "groups": ["system:authenticated"]},
    }
    head = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    return json.dumps({**head, "request": request}).encode()


KINDS = {"jobs": jobs, "stream": stream, "dispatch": dispatch, "bare": bare, "fill": fill, "pods": pods, "webhooks": webhooks}  # fmt: skip


def client_of(kubeconfig: Path) -> ApiClient:
    access = from_kubeconfig(kubeconfig, yaml.safe_load)
    return ApiClient(Credentials(access), "sluice-bench", 2 * TOGETHER, 120.0)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    client = client_of(Path(options.kubeconfig))
    try:
        found = await KINDS[options.kind](client, options)
    finally:
        await client.close()
    times = os.times()
    return {**found, "load_cpu_s": round(times.user + times.system, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kubeconfig")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--name", default="job", help="what the objects' names begin with")
    parser.add_argument(
        "--owners", default="fill", help="what the names of the pods' Jobs begin with"
    )
    parser.add_argument("--queue", default="all")
    parser.add_argument("--per-s", type=float, default=5.0)
    parser.add_argument("--runs-s", type=float, default=1.0)
    parser.add_argument("--writers", type=int, default=TOGETHER)
    parser.add_argument("--deadline-s", type=float, default=600.0)
    parser.add_argument(
        "--worker", action="append", default=[], help="kubeconfig of a worker of the MultiKueue"
    )
    parser.add_argument("--sample", default="")
    parser.add_argument("--url", default="")
    parser.add_argument("--word", default="", help="last part of the webhooks' paths")
    parser.add_argument("--ca", default="")
    print(json.dumps(asyncio.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
