"""Arrivals: read from JSON lines, or made by chance from a seed.

A line: {"at_s": 12.5, "queue": "team-a/main", "requests": {"nvidia.com/gpu": 1}, "count": 1,
"runs_s": 60, "priority": 0, "name": "job-7"}. `at_s`, `queue` and `requests` are required; times
are seconds from the start, quantities as Kubernetes writes them, `count` is pods, `runs_s` how long
it runs once admitted (default 60), `name` is made up when missing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queuecontroller.engine.model import LocalQueue
from queuecontroller.engine.quantities import QuantityError, parse_amount

NS_PER_S: Final = 1_000_000_000
_FIELDS: Final = {"at_s", "queue", "requests", "count", "runs_s", "priority", "name"}


class TraceError(ValueError):
    """Names the line, the field and what it takes."""


@dataclass(frozen=True, slots=True)
class Arrival:
    at_ns: int
    namespace: str
    queue: str
    name: str
    requests: Mapping[str, int]
    """Of one pod, in the engine's integers."""
    count: int = 1
    runs_ns: int = 60 * NS_PER_S
    priority: int = 0


def read_trace(text: str) -> list[Arrival]:
    """In order of time. Raises TraceError at the first bad line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(_read_line(line, number))
    return sorted(found, key=lambda one: (one.at_ns, one.namespace, one.name))


def _read_line(line: str, number: int) -> Arrival:
    def wrong(what: str) -> TraceError:
        return TraceError(f"line {number}: {what}")

    try:
        given = json.loads(line)
    except json.JSONDecodeError as error:
        raise wrong(f"is no JSON: {error.msg}") from None
    if not isinstance(given, dict):
        raise wrong("is not an object in braces")
    unknown = sorted(set(given) - _FIELDS)
    if unknown:
        raise wrong(f"unknown field {unknown[0]} (known: {', '.join(sorted(_FIELDS))})")
    for name in ("at_s", "queue", "requests"):
        if name not in given:
            raise wrong(f"{name} is missing")
    seconds = {}
    for name, default in (("at_s", 0.0), ("runs_s", 60.0)):
        value = given.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise wrong(f"{name}: {value!r} is no time in seconds")
        seconds[name] = round(value * NS_PER_S)
    for name, default, least in (("count", 1, 1), ("priority", 0, -(1 << 31))):
        value = given.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise wrong(f"{name}: {value!r} is no whole number from {least}")
    namespace, slash, queue = str(given["queue"]).rpartition("/")
    if not slash or not namespace or not queue:
        raise wrong(f"queue: {given['queue']!r} is not NAMESPACE/QUEUE")
    if not isinstance(given["requests"], dict) or not given["requests"]:
        raise wrong("requests: a list of resources, {NAME: QUANTITY}")
    try:
        requests = {str(n): parse_amount(str(n), q) for n, q in given["requests"].items()}
    except QuantityError as error:
        raise wrong(f"requests: {error}") from None
    name = str(given.get("name") or f"line-{number}")
    return Arrival(
        seconds["at_s"],
        namespace,
        queue,
        name,
        requests,
        int(given.get("count", 1)),
        seconds["runs_s"],
        int(given.get("priority", 0)),
    )


def by_chance(
    seed: int, queues: Sequence[LocalQueue], covered: Mapping[str, Sequence[str]], jobs: int
) -> list[Arrival]:
    """`jobs` arrivals: exponential gaps of 5 s in the mean, run times around a minute with a long
    tail, 1 to 4 of each resource that the queue's ClusterQueue covers. The same seed gives the
    same arrivals."""
    rng = random.Random(seed)
    open_queues = [queue for queue in queues if covered.get(queue.cluster_queue)]
    found: list[Arrival] = []
    at_ns = 0
    for number in range(jobs if open_queues else 0):
        at_ns += round(rng.expovariate(1 / 5.0) * NS_PER_S)
        queue = rng.choice(open_queues)
        requests = {
            name: parse_amount(name, rng.randint(1, 4)) for name in covered[queue.cluster_queue]
        }
        found.append(
            Arrival(
                at_ns,
                queue.namespace,
                queue.name,
                f"chance-{number}",
                requests,
                1,
                round(rng.lognormvariate(4.1, 0.8) * NS_PER_S),
                rng.choice([0, 0, 0, 10]),
            )
        )
    return found
