"""Translates each verb of `kubectl sluice` into one run of kubectl: words in, words and manifests
out.

kubectl finds the cluster, authenticates and is authorized; this module only knows Kueue's kinds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = f"{GROUP}/v1beta2"
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "clusterqueue": ("clusterqueues", "cq"),
    "localqueue": ("localqueues", "lq"),
    "workload": ("workloads", "wl"),
    "resourceflavor": ("resourceflavors", "rf"),
    "cohort": ("cohorts",),
    "topology": ("topologies",),
    "admissioncheck": ("admissionchecks", "ac"),
    "workloadpriorityclass": ("workloadpriorityclasses", "wpc"),
}
_BY_WORD: Final = {word: kind for kind, words in KINDS.items() for word in (kind, *words)}
STOPPED: Final = ("clusterqueue", "localqueue", "workload")
NAMESPACED: Final = ("localqueue", "workload")
LEASE: Final = "sluice-queue"
"""Name of the leader's Lease, the same as in queuecontroller/cluster/controller.py."""
PAGE_PORT: Final = 9467
"""The chart's default."""
LOOKING: Final = ("web", "top")
"""Verbs that take more than one run of kubectl."""
PASSED: Final = ("get", "describe", "delete", "edit", "patch")
"""kubectl's own verbs, passed on with short names of Kueue's kinds."""


class Usage(Exception):
    """The command line is invalid; the text says how to correct it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One run of kubectl."""

    words: tuple[str, ...]
    given: str = ""
    """Standard input of the command."""
    reads: str = ""
    """Format in which its JSON output is printed: `workloads` or `pending`; empty: unchanged."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(f"{self.prog}: {message}")


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kubectl sluice",
        description="Manage Kueue's queues, flavors and workloads with kubectl.",
        epilog="get, describe, delete, edit and patch are kubectl's own, with cq, lq, wl, rf for"
        " the kinds. Options of kubectl (--context, --kubeconfig, …) follow the verb.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    _add_create(verbs)
    listed = verbs.add_parser("list", help="list objects of a kind")
    listed.add_argument("kind", metavar="KIND", help="cq, lq, wl, rf, cohort, …")
    listed.add_argument("-n", "--namespace", default="")
    listed.add_argument("-A", "--all-namespaces", action="store_true")
    listed.add_argument("-c", "--clusterqueue", default="", help="wl: only those of it")
    listed.add_argument("-q", "--localqueue", default="", help="wl: only those in this queue")
    listed.add_argument(
        "--status",
        choices=["all", "pending", "quotareserved", "admitted", "finished"],
        default="all",
        help="wl: only those with this status",
    )
    for verb, help_ in (
        ("stop", "stop a queue and evict its running workloads, or stop a workload"),
        ("resume", "undo stop"),
    ):
        one = verbs.add_parser(verb, help=help_)
        one.add_argument("kind", metavar="KIND", help="cq, lq or wl")
        one.add_argument("name", metavar="NAME")
        one.add_argument("-n", "--namespace", default="")
        if verb == "stop":
            one.add_argument(
                "--keep-already-running",
                action="store_true",
                help="cq, lq: running workloads continue",
            )
    pending = verbs.add_parser("pending", help="list a queue's pending workloads, in order")
    pending.add_argument("kind", metavar="KIND", help="cq or lq")
    pending.add_argument("name", metavar="NAME")
    pending.add_argument("-n", "--namespace", default="default", help="namespace of an lq")
    web = verbs.add_parser("web", help="forward a port to the page, and print its URL")
    web.add_argument(
        "-n", "--namespace", default="", help="the controller's namespace (default: search all)"
    )
    web.add_argument("--port", type=_port, default=PAGE_PORT, help=f"queue.page.port ({PAGE_PORT})")
    top = verbs.add_parser("top", help="ClusterQueues with their load, refreshed periodically")
    top.add_argument("--interval", type=_seconds, default=5.0, metavar="SECONDS", help="default: 5")
    top.add_argument("--rounds", type=int, default=0, metavar="N", help="stop after N")
    for verb in PASSED:
        one = verbs.add_parser(verb, help=f"kubectl {verb}")
        one.add_argument("kind", metavar="KIND")
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:6]) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.2 <= found <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not 0.2 to 3600 seconds")
    return found


def looking(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]] | None:
    """The options of one of LOOKING, and those to pass on to kubectl; None for another verb.
    Raises Usage."""
    if not words or words[0] not in LOOKING:
        return None
    options, more = make_parser().parse_known_args(list(words))
    if more and not more[0].startswith("-"):
        raise Usage(f"kubectl sluice {options.verb}: unexpected argument {more[0]!r}")
    return options, more


def _add_create(verbs: Any) -> None:
    kinds = verbs.add_parser("create", help="create a queue or a flavor").add_subparsers(
        dest="kind", metavar="KIND", required=True, parser_class=_Parser
    )
    queue = kinds.add_parser("clusterqueue", aliases=["cq"], help="with its quota")
    queue.add_argument("name", metavar="NAME")
    queue.add_argument("--cohort", default="")
    queue.add_argument(
        "--queuing-strategy", choices=["StrictFIFO", "BestEffortFIFO"], default="BestEffortFIFO"
    )
    queue.add_argument("--namespace-selector", default="", metavar="NAME=VALUE,…")
    for flag in ("nominal-quota", "borrowing-limit", "lending-limit"):
        queue.add_argument(
            f"--{flag}",
            default="",
            metavar="FLAVOR:RESOURCE=AMOUNT;…,…",
            help="h100:cpu=9;memory=36Gi",
        )
    local = kinds.add_parser(
        "localqueue", aliases=["lq"], help="a namespace's entry point to a ClusterQueue"
    )
    local.add_argument("name", metavar="NAME")
    local.add_argument("-c", "--clusterqueue", required=True)
    local.add_argument("-n", "--namespace", default="")
    flavor = kinds.add_parser(
        "resourceflavor", aliases=["rf"], help="a flavor, by node labels and taints"
    )
    flavor.add_argument("name", metavar="NAME")
    flavor.add_argument("--node-labels", default="", metavar="NAME=VALUE,…")
    flavor.add_argument("--node-taints", default="", metavar="NAME=VALUE:EFFECT,…")


def plan(words: Sequence[str]) -> Call:
    """The run of kubectl for a verb. Raises Usage."""
    options, rest = make_parser().parse_known_args(list(words))
    if options.verb is None:
        raise Usage(make_parser().format_help().rstrip())
    if rest and not rest[0].startswith("-") and options.verb not in PASSED:
        raise Usage(f"kubectl sluice {options.verb}: unexpected argument {rest[0]!r}")
    more = tuple(rest)
    if options.verb == "create":
        document = json.dumps(_CREATED[kind_of(options.kind)](options))
        return Call(("create", "-f", "-", *more), document)
    kind = kind_of(options.kind)
    if options.verb in PASSED:
        return Call((options.verb, _plural(kind), *more))
    if options.verb == "list":
        return _list(kind, options, more)
    if options.verb == "pending":
        return _pending(kind, options, more)
    return _stop_or_go(kind, options, more)


def kind_of(word: str) -> str:
    """The kind that a word names. Raises Usage."""
    found = _BY_WORD.get(word.lower().removesuffix(f".{GROUP}"))
    if found is None:
        raise Usage(f"unknown kind {word!r}; known: {', '.join(KINDS)}")
    return found


def _plural(kind: str) -> str:
    return f"{KINDS[kind][0]}.{GROUP}"


def _where(options: argparse.Namespace) -> tuple[str, ...]:
    if getattr(options, "all_namespaces", False):
        return ("--all-namespaces",)
    return ("--namespace", options.namespace) if options.namespace else ()


def _list(kind: str, options: argparse.Namespace, more: tuple[str, ...]) -> Call:
    where = _where(options) if kind in NAMESPACED else ()
    if kind == "workload":
        if any(one in ("-o", "--output") or one.startswith(("-o", "--output=")) for one in more):
            raise Usage("list wl prints a table: kubectl sluice get wl prints other formats")
        # A workload without an admission is in the ClusterQueue of its LocalQueue.
        kinds = _plural(kind)
        if options.clusterqueue:
            kinds = f"{kinds},{_plural('localqueue')}"
        return Call(("get", kinds, "-o", "json", *where, *more), reads="workloads")
    if options.localqueue or options.clusterqueue or options.status != "all":
        raise Usage("--clusterqueue, --localqueue and --status are for workloads")
    return Call(("get", _plural(kind), *where, *more))


def _pending(kind: str, options: argparse.Namespace, more: tuple[str, ...]) -> Call:
    if kind not in ("clusterqueue", "localqueue"):
        raise Usage(f"a {kind} has no pending workloads: name a clusterqueue or a localqueue")
    _check_name(options.name)
    _check_name(options.namespace)
    base = "/apis/visibility.kueue.x-k8s.io/v1beta2"
    place = f"namespaces/{options.namespace}/" if kind == "localqueue" else ""
    path = f"{base}/{place}{KINDS[kind][0]}/{options.name}/pendingworkloads"
    return Call(("get", "--raw", path, *more), reads="pending")


def _check_name(name: str) -> None:
    """Refuse a name that could change the path it is put into. Raises Usage."""
    if not name or not all(c.isascii() and (c.isalnum() or c in "-.") for c in name):
        raise Usage(f"{name!r} is not a valid object name")


def _stop_or_go(kind: str, options: argparse.Namespace, more: tuple[str, ...]) -> Call:
    if kind not in STOPPED:
        raise Usage(f"a {kind} cannot be stopped: {', '.join(STOPPED)} can")
    stops = options.verb == "stop"
    spec: dict[str, Any]
    if kind == "workload":
        if stops and options.keep_already_running:
            raise Usage("--keep-already-running is for clusterqueues and localqueues")
        spec = {"active": not stops}
    else:
        keeps = stops and options.keep_already_running
        spec = {"stopPolicy": ("Hold" if keeps else "HoldAndDrain") if stops else "None"}
    where = _where(options) if kind in NAMESPACED else ()
    patch = json.dumps({"spec": spec})
    words = ("patch", _plural(kind), options.name, "--type", "merge", "--patch", patch)
    return Call((*words, *where, *more))


def _clusterqueue(options: argparse.Namespace) -> dict[str, Any]:
    nominal = amounts_of("--nominal-quota", options.nominal_quota)
    borrowing = amounts_of("--borrowing-limit", options.borrowing_limit)
    lending = amounts_of("--lending-limit", options.lending_limit)
    for flag, limits in (("--borrowing-limit", borrowing), ("--lending-limit", lending)):
        for flavor, amounts in limits.items():
            for resource in amounts:
                if resource not in nominal.get(flavor, {}):
                    raise Usage(f"{flag}: {flavor}:{resource} has no nominal quota")
    spec: dict[str, Any] = {"queueingStrategy": options.queuing_strategy}
    labels = pairs_of("--namespace-selector", options.namespace_selector)
    spec["namespaceSelector"] = {"matchLabels": labels} if labels else {}
    if options.cohort:
        spec["cohortName"] = options.cohort
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for flavor, amounts in nominal.items():
        resources = []
        for resource, amount in amounts.items():
            one = {"name": resource, "nominalQuota": amount}
            if (limit := borrowing.get(flavor, {}).get(resource)) is not None:
                one["borrowingLimit"] = limit
            if (limit := lending.get(flavor, {}).get(resource)) is not None:
                one["lendingLimit"] = limit
            resources.append(one)
        covered = tuple(amounts)
        groups.setdefault(covered, []).append({"name": flavor, "resources": resources})
    spec["resourceGroups"] = [
        {"coveredResources": list(covered), "flavors": flavors}
        for covered, flavors in groups.items()
    ]
    return _object("ClusterQueue", options.name, spec)


def _localqueue(options: argparse.Namespace) -> dict[str, Any]:
    made = _object("LocalQueue", options.name, {"clusterQueue": options.clusterqueue})
    if options.namespace:
        made["metadata"]["namespace"] = options.namespace
    return made


def _resourceflavor(options: argparse.Namespace) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if options.node_labels:
        spec["nodeLabels"] = pairs_of("--node-labels", options.node_labels)
    taints = []
    for one in filter(None, options.node_taints.split(",")):
        text, colon, effect = one.rpartition(":")
        key, _, value = text.partition("=")
        if not colon or not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise Usage(
                f"--node-taints: {one!r} is not NAME=VALUE:EFFECT, as in gpu=h100:NoSchedule"
            )
        taints.append({"key": key, "value": value, "effect": effect})
    if taints:
        spec["nodeTaints"] = taints
    return _object("ResourceFlavor", options.name, spec)


_CREATED: Final = {
    "clusterqueue": _clusterqueue,
    "localqueue": _localqueue,
    "resourceflavor": _resourceflavor,
}


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def pairs_of(flag: str, text: str) -> dict[str, str]:
    """`NAME=VALUE,…` as a mapping. Raises Usage."""
    found = {}
    for one in filter(None, text.split(",")):
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise Usage(f"{flag}: {one!r} is not NAME=VALUE")
        found[name] = value
    return found


def amounts_of(flag: str, text: str) -> dict[str, dict[str, str]]:
    """`h100:cpu=9;memory=36Gi,a100:cpu=4` by flavor and resource. Raises Usage."""
    found: dict[str, dict[str, str]] = {}
    for part in filter(None, text.split(",")):
        flavor, colon, rest = part.partition(":")
        pairs = [one.partition("=")[::2] for one in rest.split(";") if one]
        names, amounts = [name for name, _ in pairs], dict(pairs)
        if not colon or not flavor or not amounts or not all(k and v for k, v in amounts.items()):
            raise Usage(
                f"{flag}: {part!r} is not FLAVOR:RESOURCE=AMOUNT;…, as in h100:cpu=9;memory=36Gi"
            )
        known = found.setdefault(flavor, {})
        for name in names:
            if name in known or names.count(name) > 1:
                raise Usage(f"{flag}: {flavor}:{name} has two amounts")
        known.update(amounts)
    return found
