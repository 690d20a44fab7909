"""Options and error handling shared by the verbs that call an API server."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from queuecontroller.cli.files import path
from queuecontroller.cli.main import EXIT_NO, EXIT_UNREACHABLE, EXIT_USAGE
from queuecontroller.cli.migrate.cluster import Cluster
from queuecontroller.cli.session import Failed
from sluicecommon import yaml_text
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import (
    Access,
    Credentials,
    NoAccess,
    from_kubeconfig,
    in_cluster,
)
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused

T = TypeVar("T")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a cluster, instead of the service")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--kubeconfig", type=path, metavar="FILE", help="kubeconfig of the cluster")
    which.add_argument(
        "--in-cluster", action="store_true", help="the cluster in whose pod this runs"
    )


def is_cluster(options: argparse.Namespace) -> bool:
    return bool(options.kubeconfig or options.in_cluster)


def ask_cluster(options: argparse.Namespace, ask: Callable[[Cluster], Awaitable[T]]) -> T:
    """The result of `ask`, called with a client of the cluster. Raises Failed."""

    async def call() -> T:
        client = ApiClient(Credentials(_access(options.kubeconfig)), "sluice-queue")
        try:
            return await ask(Cluster(client))
        finally:
            await client.close()

    try:
        return asyncio.run(call())
    except NoAccess as error:
        raise Failed(EXIT_USAGE, str(error)) from None
    except ApiAway as error:
        raise Failed(EXIT_UNREACHABLE, str(error)) from None
    except ApiRefused as refused:
        raise Failed(EXIT_NO, str(refused)) from None


def _access(kubeconfig: str | None) -> Access:
    """Raises NoAccess."""
    if kubeconfig:
        return from_kubeconfig(Path(kubeconfig), yaml_text.read)
    found = in_cluster(os.environ)
    if found is None:
        raise NoAccess("--in-cluster: this is not a pod with a service account's token")
    return found
