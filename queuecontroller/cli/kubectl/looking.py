"""`kubectl sluice web` and `kubectl sluice top`, which take more than one run of kubectl.

web finds the controller by its Service and the leading replica by the Lease, and forwards a port
to it with the user's rights. top lists the ClusterQueues periodically.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from queuecontroller.cli.commands.top import HISTORY, HOME_AND_CLEAR, percent, sparkline
from queuecontroller.cli.files import printable
from queuecontroller.cli.kubectl.plan import GROUP, LEASE, Usage
from queuecontroller.cli.tables import align
from sluicecommon.kubernetes.quantity import parse_amount

LABELS: Final = "app.kubernetes.io/name=sluice,app.kubernetes.io/component=queue"
Loads = dict[tuple[str, str, str], deque[float | None]]
"""Used of nominal quota, one value per refresh, by ClusterQueue, flavor and resource."""


class Refused(Exception):
    """kubectl failed; it has printed the reason."""

    def __init__(self, status: int) -> None:
        super().__init__(f"kubectl exited with status {status}")
        self.status = status


class Kubectl(Protocol):
    def read(self, *words: str) -> Any:
        """Parsed JSON output of kubectl. Raises Refused."""

    def ask(self, *words: str) -> str | None:
        """Output of kubectl; None if it fails."""

    def become(self, *words: str) -> int:
        """Run kubectl in the foreground; returns its exit status."""


# -- web ------------------------------------------------------------------------------------------


def web(kubectl: Kubectl, options: argparse.Namespace, more: Sequence[str]) -> int:
    """Raises Usage, Refused."""
    where = ("-n", options.namespace) if options.namespace else ("--all-namespaces",)
    found = kubectl.read("get", "services", *where, "-l", LABELS, "-o", "json", *more)
    places = [
        (str(one["metadata"]["namespace"]), str(one["metadata"]["name"]))
        for one in found.get("items") or ()
    ]
    if len(places) != 1:
        named = ", ".join(f"{printable(space)}/{printable(name)}" for space, name in places)
        raise Usage(
            f"kubectl sluice web: more than one queue controller: {named}: choose one with -n"
            if places
            else "kubectl sluice web: no Service of a queue controller found, or no right to see"
            " it: give its namespace with -n"
        )
    ((namespace, name),) = places
    space = ("-n", namespace)
    leader = kubectl.ask(
        *("get", "lease", LEASE, *space, "-o", "jsonpath={.spec.holderIdentity}", *more)
    )
    if leader:
        # The identity is the pod's name and a suffix; only the leader serves the page.
        target = f"pod/{leader.rpartition('_')[0] or leader}"
        lines = [
            f"http://127.0.0.1:{options.port}/",
            "The page asks for a token, whose rights apply: kubectl create token NAME",
        ]
    else:
        target = f"deploy/{name}"
        url = kubectl.ask("exec", target, *space, *more, "--", "sluice-queue", "web")
        lines = [url.strip()] if url else [f"http://127.0.0.1:{options.port}/"]
    print("\n".join(printable(one) for one in lines), flush=True)
    return kubectl.become("port-forward", target, *space, str(options.port), *more)


# -- top ------------------------------------------------------------------------------------------


def top(
    kubectl: Kubectl,
    options: argparse.Namespace,
    more: Sequence[str],
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Raises Refused."""
    live = sys.stdout.isatty()
    loads: Loads = {}
    rounds = 0
    while True:
        rounds += 1
        queues = kubectl.read("get", f"clusterqueues.{GROUP}", "-o", "json", *more)
        lines = top_lines(queues.get("items") or (), loads)
        most = shutil.get_terminal_size((100, 40)).lines - 1 if live else len(lines)
        print((HOME_AND_CLEAR if live else "") + "\n".join(lines[:most]), flush=True)
        if rounds == options.rounds:
            return 0
        pause(options.interval)


def top_lines(queues: Sequence[Mapping[str, Any]], loads: Loads) -> list[str]:
    """The table of ClusterQueues: pending workloads, and each quota with its use. Appends one
    value to each series of `loads`."""
    rows = [
        [
            *("CLUSTERQUEUE", "COHORT", "PENDING", "ADMITTED"),
            *("FLAVOR", "RESOURCE", "USED", "NOMINAL", "LOAD", f"LAST {HISTORY}"),
        ]
    ]
    shown: set[tuple[str, str, str]] = set()
    for queue in sorted(queues, key=lambda one: -int(_status(one).get("pendingWorkloads") or 0)):
        spec, status = queue.get("spec") or {}, _status(queue)
        name = str(queue["metadata"]["name"])
        head = [
            printable(name),
            printable(str(spec.get("cohortName") or spec.get("cohort") or "")),
            str(status.get("pendingWorkloads", 0)),
            str(status.get("admittedWorkloads", 0)),
        ]
        quotas = list(_quotas(spec, status))
        for flavor, resource, used, nominal in quotas:
            key = (name, flavor, resource)
            shown.add(key)
            ratio = _ratio(resource, used, nominal)
            mine = loads.setdefault(key, deque(maxlen=HISTORY))
            mine.append(ratio)
            cells = [flavor, resource, used, nominal]
            rows.append([*head, *map(printable, cells), percent(ratio), sparkline(mine)])
            head = ["", "", "", ""]
        if not quotas:
            rows.append([*head, "", "", "", "", "", ""])
    for gone in loads.keys() - shown:
        del loads[gone]
    return align(rows) if len(rows) > 1 else ["no ClusterQueue"]


def _quotas(
    spec: Mapping[str, Any], status: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    used = {
        (str(flavor.get("name")), str(one.get("name"))): str(one.get("total") or "0")
        for flavor in status.get("flavorsUsage") or ()
        for one in flavor.get("resources") or ()
    }
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for one in flavor.get("resources") or ():
                key = (str(flavor.get("name")), str(one.get("name")))
                yield *key, used.get(key, "0"), str(one.get("nominalQuota") or "0")


def _ratio(resource: str, used: str, nominal: str) -> float | None:
    """Used of nominal; None if the nominal quota is 0, or if one of them is not a quantity (`auto`
    before nodes have reported)."""
    try:
        whole = parse_amount(resource, nominal)
        return parse_amount(resource, used) / whole if whole else None
    except ValueError:
        return None


def _status(one: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = one.get("status") or {}
    return found
