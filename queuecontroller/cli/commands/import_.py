"""`sluice-queue import`: imports a queue; prints the plan, and then carries it out.

    sluice-queue import --kubeconfig FILE              take over a cluster in which Kueue ran
    sluice-queue import -f LIST --kubeconfig FILE      an export, into a cluster
    sluice-queue import -f LIST                        an export, into the standalone service
    sluice-queue import --hami --kubeconfig FILE       show HAMi's allocations; changes nothing

If an object cannot be imported, nothing is changed at all, unless --leave-out is given.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from queuecontroller.cli.commands.export import SERVED
from queuecontroller.cli.files import add_manifests, complain, printable
from queuecontroller.cli.main import EXIT_NO, EXIT_USAGE
from queuecontroller.cli.migrate.cluster import Cluster, find_in, owners_wanted
from queuecontroller.cli.migrate.clusters import add_cluster, ask_cluster, is_cluster
from queuecontroller.cli.migrate.hami import Found, look
from queuecontroller.cli.migrate.objects import Name, name_of
from queuecontroller.cli.migrate.plan import (
    ACTS,
    Action,
    Step,
    plan_cluster,
    plan_from_service,
    plan_in_place,
    plan_service,
)
from queuecontroller.cli.session import (
    Failed,
    add_endpoint,
    add_output,
    connect,
    print_object,
    read_manifests,
)
from queuecontroller.kueueapi.crds import Webhook
from queuecontroller.server.api.client import OBJECTS_A_CALL, Client
from sluicecommon.hami.names import REGISTER


def configure(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser, required=False)
    parser.add_argument(
        "--hami", action="store_true", help="show the allocations of a running HAMi, by GPU"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan without carrying it out"
    )
    parser.add_argument(
        "--leave-out", action="store_true", help="skip objects that cannot be imported"
    )
    parser.add_argument(
        "--webhooks-namespace",
        default="sluice",
        metavar="NS",
        help="namespace of the Service sluice-queue-webhooks, for the CRDs (default: sluice)",
    )
    add_output(parser)
    add_cluster(parser)
    add_endpoint(parser)


def run(options: argparse.Namespace) -> int:
    try:
        if options.hami:
            return _hami(options)
        if not options.filename and not is_cluster(options):
            raise Failed(
                EXIT_USAGE,
                "nothing to import: give -f FILE (an export), or --kubeconfig FILE of a cluster in"
                " which Kueue ran",
            )
        sources = read_manifests(options.filename) if options.filename else []
        given = [dict(one.body) for one in sources]
        if is_cluster(options):
            return ask_cluster(options, partial(_into_cluster, options, given))
        with connect(options) as client:
            return _into_service(options, given, client)
    except Failed as failed:
        complain(str(failed))
        return failed.status


# -- into a cluster -------------------------------------------------------------------------------


async def _into_cluster(
    options: argparse.Namespace, given: Sequence[Mapping[str, Any]], cluster: Cluster
) -> int:
    there = await cluster.objects()
    if not options.filename:
        steps = await cluster.definition_steps(Webhook(namespace=options.webhooks_namespace))
        steps += plan_in_place(there)
        if why := await cluster.why_kueue_must_stop():
            _print_plan(options, steps)
            raise Failed(EXIT_NO, why)
    else:
        of_service = any("sluice" in one for one in given)
        named = owners_wanted(given) if of_service else given
        owners = await cluster.owners(one for one in named if one.get("kind") == "Workload")
        plan = plan_from_service if of_service else plan_cluster
        steps = plan(given, {name_of(one): one for one in there}, partial(find_in, owners))
    if not _is_permitted(options, steps):
        return EXIT_NO
    for step in steps if not options.dry_run else ():
        if step.action in ACTS:
            await cluster.do(step)
    if not options.dry_run and not options.filename:
        await cluster.until_served()
    return 0


# -- into the service -----------------------------------------------------------------------------


def _into_service(
    options: argparse.Namespace, given: Sequence[Mapping[str, Any]], client: Client
) -> int:
    there: dict[Name, Mapping[str, Any]] = {}
    for kind in SERVED:
        for one in client.list(kind):
            there[name_of(one)] = one
    steps = plan_service(given, there)
    if not _is_permitted(options, steps):
        return EXIT_NO
    documents = [one.document for one in steps if one.action in ACTS]
    for start in range(0, len(documents), OBJECTS_A_CALL):
        client.apply(documents[start : start + OBJECTS_A_CALL], options.dry_run)
    return 0


# -- printing the plan ----------------------------------------------------------------------------


def _is_permitted(options: argparse.Namespace, steps: Sequence[Step]) -> bool:
    """Print every step; True if they may be carried out."""
    _print_plan(options, steps)
    refused = _refused(steps)
    if refused and not options.leave_out:
        complain(
            f"{refused} objects cannot be imported, so nothing was changed: fix the errors above,"
            " or skip these objects with --leave-out"
        )
    return not refused or options.leave_out


def _refused(steps: Sequence[Step]) -> int:
    return sum(one.action is Action.REFUSE for one in steps)


def _print_plan(options: argparse.Namespace, steps: Sequence[Step]) -> None:
    if options.output:
        print_object(
            [{"action": str(one.action), **one.name._asdict(), "why": one.why} for one in steps],
            options.output,
        )
        return
    for one in steps:
        print(printable(str(one)))
    counts = Counter(one.action for one in steps)
    summary = ", ".join(f"{counts[one]} to {one}" for one in Action if counts[one])
    print(f"{'dry run: ' if options.dry_run else ''}{summary or 'nothing to do'}")


# -- HAMi -----------------------------------------------------------------------------------------


def _hami(options: argparse.Namespace) -> int:
    if not is_cluster(options):
        raise Failed(EXIT_USAGE, "--hami: requires --kubeconfig FILE or --in-cluster")
    found = look(*ask_cluster(options, Cluster.nodes_and_pods))
    if options.output:
        shown = {
            "gpus": [vars_of(one) for one in found.gpus],
            "grants": [vars_of(one) for one in found.grants],
            "refused": list(found.refused),
            "notes": list(found.notes),
        }
        print_object(shown, options.output)
    else:
        for line in _lines(found):
            print(printable(line))
    if not found.gpus:
        complain(f"no node has HAMi's annotation {REGISTER}")
    return EXIT_NO if found.refused or not found.gpus else 0


def vars_of(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def _lines(found: Found) -> list[str]:
    made = []
    for gpu in found.gpus:
        mine = [one for one in found.grants if one.uuid == gpu.uuid]
        used, promised = sum(one.memory_mib for one in mine), sum(one.cores for one in mine)
        made.append(
            f"GPU {gpu.uuid} of {gpu.node}: {gpu.type}, {used} of {gpu.memory_mib} MiB and"
            f" {promised} % of its time to {len(mine)} container{'s' if len(mine) != 1 else ''}"
        )
        made += [
            f"  grant {one.pod} {one.container}: {one.memory_mib} MiB,"
            f" {f'{one.cores} %' if one.cores else 'no limit'} of the time"
            for one in mine
        ]
    made += [f"note {one}" for one in found.notes]
    made += [f"refuse {one}" for one in found.refused]
    return made
