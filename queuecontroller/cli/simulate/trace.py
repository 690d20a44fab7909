"""Arrivals: read from JSON lines, or generated at random from a seed.

A line: {"at_s": 12.5, "queue": "team-a/main", "requests": {"nvidia.com/gpu": 1}, "count": 1,
"runs_s": 60, "priority": 0, "name": "job-7"}. `at_s`, `queue` and `requests` are required; times
are seconds from the start, quantities as Kubernetes writes them, `count` is pods, `runs_s` how long
it runs once admitted (default 60), `name` is made up when missing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from queuecontroller.scheduler.model.objects import LocalQueue
from sluicecommon.kubernetes.quantity import QuantityError, parse_amount

NS_PER_S: Final = 1_000_000_000
_FIELDS: Final = {"at_s", "queue", "requests", "count", "runs_s", "priority", "name"}


LONGEST_S: Final = 365 * 24 * 3600
"""Latest arrival: the simulation ends after a year."""
LONGEST_RUN_S: Final = 100 * LONGEST_S
MAX_INT32: Final = (1 << 31) - 1
"""Limit of pod counts and priorities, as in Kubernetes."""


class TraceError(ValueError):
    """Error in a trace; the text names the line, the field and its valid values."""


@dataclass(frozen=True, slots=True)
class Arrival:
    at_ns: int
    namespace: str
    queue: str
    name: str
    requests: Mapping[str, int]
    """Requests of one pod, in the scheduler's integers."""
    count: int = 1
    runs_ns: int = 60 * NS_PER_S
    priority: int = 0


def read_trace(text: str, taken: Collection[str] = ()) -> list[Arrival]:
    """Arrivals in order of time. `taken` are keys, NAMESPACE/NAME, that none may have. Raises
    TraceError at the first bad line."""
    found = []
    seen: dict[str, int] = {}
    unnamed = []
    for number, line in enumerate(text.split("\n"), 1):  # JSON may hold what splitlines splits at
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        one = _read_line(line, number)
        if not one.name:
            unnamed.append((number, one))
            continue
        key = f"{one.namespace}/{one.name}"
        if key in seen:
            raise _wrong(number, f"name: {key} is already on line {seen[key]}; rename one")
        if key in taken:
            raise _wrong(number, f"name: {key} is already among the manifests; rename one")
        seen[key] = number
        found.append(one)
    for number, one in unnamed:
        found.append(replace(one, name=_free(f"line-{number}", one.namespace, seen, taken)))
    return sorted(found, key=lambda one: (one.at_ns, one.namespace, one.name))


def _free(name: str, namespace: str, *taken: Collection[str]) -> str:
    """The name, or the name with the first number after it that is not taken."""
    tries = (name if n == 0 else f"{name}-{n}" for n in count())
    return next(one for one in tries if not any(f"{namespace}/{one}" in of for of in taken))


def _wrong(number: int, what: str) -> TraceError:
    return TraceError(f"line {number}: {what}")


def _read_line(line: str, number: int) -> Arrival:
    """The arrival on one line; its name is empty if none is given."""
    given = object_of(line, number)
    unknown = sorted(set(given) - _FIELDS)
    if unknown:
        known = ", ".join(sorted(_FIELDS))
        raise _wrong(number, f"unknown field {unknown[0][:64]!r} (known: {known})")
    for name in ("at_s", "queue", "requests"):
        if name not in given:
            raise _wrong(number, f"{name} is missing")
    at_ns = seconds_of(given, number, "at_s", 0, LONGEST_S)
    runs_ns = seconds_of(given, number, "runs_s", 60, LONGEST_RUN_S)
    namespace, _, queue = text_of(given, number, "queue").partition("/")
    if not namespace or not queue or "/" in queue:
        raise _wrong(number, f"queue: {str(given['queue'])[:64]!r} is not NAMESPACE/QUEUE")
    name = text_of(given, number, "name") if given.get("name") is not None else ""
    if "/" in name:
        raise _wrong(number, f"name: {name[:64]!r} has a /; it is without its namespace")
    return Arrival(
        at_ns,
        namespace,
        queue,
        name,
        _requests(given["requests"], number),
        _whole(given, number, "count", 1, 1),
        runs_ns,
        _whole(given, number, "priority", 0, -MAX_INT32 - 1),
    )


def object_of(line: str, number: int) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
            raise _wrong(number, f"{twice[:64]!r} is given twice; remove one of them")
        return found

    try:
        given = json.loads(line, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise _wrong(number, f"is not JSON: {error.msg}, column {error.colno}") from None
    except RecursionError:
        raise _wrong(number, "is nested too deep; write one flat object") from None
    except TraceError:
        raise
    except ValueError:  # Python reads no numbers of 4,300 digits and more
        raise _wrong(number, "holds a number of thousands of digits; write a smaller one") from None
    if not isinstance(given, dict):
        raise _wrong(number, "expected an object in braces")
    return given


def seconds_of(given: Mapping[str, Any], number: int, name: str, default: int, most: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise _wrong(
            number, f"{name}: expected a time from 0 to {most} seconds, got {_shown(value)}"
        )
    return round(value * NS_PER_S)


def _whole(given: Mapping[str, Any], number: int, name: str, default: int, least: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_INT32:
        raise _wrong(
            number,
            f"{name}: expected a whole number from {least} to {MAX_INT32}, got {_shown(value)}",
        )
    return value


def text_of(given: Mapping[str, Any], number: int, name: str) -> str:
    value = given[name]
    if not isinstance(value, str) or not value.strip():
        raise _wrong(number, f"{name}: expected a string, got {_shown(value)}; put it in quotes")
    return value


def _requests(given: object, number: int) -> dict[str, int]:
    if not isinstance(given, dict) or not given:
        raise _wrong(number, "requests: must be an object of resources, {NAME: QUANTITY}")
    found = {}
    for name, quantity in given.items():
        field = f"requests: {name[:64]}"
        try:
            found[name] = parse_amount(name, quantity)
        except QuantityError as error:
            raise _wrong(number, f"{field}: {error}") from None
        if not name or found[name] < 0:
            raise _wrong(
                number, f"{field}: expected a quantity of 0 or more, got {_shown(quantity)}"
            )
    return found


def _shown(value: object) -> str:
    return json.dumps(value)[:64]


def by_chance(
    seed: int,
    queues: Sequence[LocalQueue],
    covered: Mapping[str, Sequence[str]],
    jobs: int,
    taken: Collection[str] = (),
) -> list[Arrival]:
    """`jobs` random arrivals: exponential gaps of 5 s on average, run times around a minute with a
    long tail, 1 to 4 of each resource that the queue's ClusterQueue covers. The same seed gives
    the same arrivals; `taken` keys, NAMESPACE/NAME, are not used again."""
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
                _free(f"chance-{number}", queue.namespace, taken),
                requests,
                1,
                round(rng.lognormvariate(4.1, 0.8) * NS_PER_S),
                rng.choice([0, 0, 0, 10]),
            )
        )
    return found
