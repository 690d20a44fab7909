"""`sluice-queue export`: queues and workloads as one list of manifests, from the service or from
a cluster with Kueue's objects, whichever of Kueue and Sluice schedules them."""

from __future__ import annotations

import argparse
from typing import Any, Final

from queuecontroller.cli.files import complain
from queuecontroller.cli.main import EXIT_NO
from queuecontroller.cli.migrate.clusters import add_cluster, ask_cluster, is_cluster
from queuecontroller.cli.migrate.objects import ConversionError, carried, in_order, is_over, name_of
from queuecontroller.cli.session import (
    Failed,
    add_endpoint,
    add_namespace,
    add_output,
    connect,
    print_object,
)

SERVED: Final = (
    "ResourceFlavor",
    "Topology",
    "WorkloadPriorityClass",
    "AdmissionCheck",
    "Cohort",
    "ClusterQueue",
    "LocalQueue",
    "Workload",
)
"""Kueue's kinds that the service has."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_namespace(parser)
    add_output(parser)
    add_cluster(parser)
    add_endpoint(parser)


def run(options: argparse.Namespace) -> int:
    try:
        documents = _of_cluster(options) if is_cluster(options) else _of_service(options)
    except Failed as failed:
        complain(str(failed))
        return failed.status
    if not documents:
        complain("no objects found")
        return EXIT_NO
    listed = {"apiVersion": "v1", "kind": "List", "items": documents}
    print_object(listed, options.output or "yaml")
    return 0


def _of_cluster(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The cluster's objects in v1beta2, whichever version is served. Raises Failed."""
    found = ask_cluster(options, lambda cluster: cluster.objects(options.namespace or ""))
    made, wrong = [], []
    for one in in_order(found):
        try:
            if not (one["kind"] == "Workload" and is_over(one)):
                made.append(carried(one))
        except ConversionError as error:
            wrong.append(f"{name_of(one)}: {error}")
    if wrong:
        raise Failed(EXIT_NO, "\n".join(wrong))
    return made


def _of_service(options: argparse.Namespace) -> list[dict[str, Any]]:
    with connect(options) as client:
        return [
            one
            for kind in SERVED
            for one in client.list(kind, options.namespace or "")
            if not (kind == "Workload" and is_over(one))
        ]
