"""Preflight checks of the cluster: Kueue's CRDs are installed, and Kueue does not run, or does in
mode beside."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import CHECKS, FLAVORS, LEASES, WORKLOADS
from queuecontroller.kueueapi import GROUP, KINDS
from queuecontroller.kueueapi.fields import STORED
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused

KUEUE_LEASE: Final = "c1f6bfd2.kueue.x-k8s.io"
"""Lease that Kueue's manager holds, in the namespace in which it is installed."""
SHORTEST_S: Final = 15.0
log = logging.getLogger(__name__)


class Unfit(Exception):
    """The cluster does not fit the mode; the message says why, and what to do."""


async def check_cluster(client: ApiClient) -> None:
    """Check for mode kubernetes. Raises Unfit; ApiAway, ApiRefused if it cannot be determined."""
    if (where := await kueue_runs(client)) is not None:
        raise Unfit(
            f"kubernetes.mode: Kueue runs in this cluster (it holds the Lease {KUEUE_LEASE} in"
            f" namespace {where}), and two controllers must not manage the same objects:"
            " stop it first, or run beside it (kubernetes.mode=beside)"
        )
    if missing := await _not_served(client, [kind.plural for kind in KINDS.values()]):
        raise Unfit(
            f"kubernetes.mode: the API server does not serve {', '.join(missing)} of"
            f" {GROUP}/{STORED}: apply packaging/kubernetes/kueue-crds.yaml first"
            " (kubectl apply --server-side -f)"
        )


async def check_beside(client: ApiClient) -> None:
    """Check for mode beside. Raises Unfit; ApiAway, ApiRefused if it cannot be determined."""
    if missing := await _not_served(client, [one.plural for one in (CHECKS, FLAVORS, WORKLOADS)]):
        raise Unfit(
            f"kubernetes.mode: the API server does not serve {', '.join(missing)} of"
            f" {GROUP}/{STORED}: mode beside is for a cluster in which Kueue 0.15 or later is"
            " installed; without Kueue set kubernetes.mode=kubernetes"
        )
    if await kueue_runs(client) is None:
        log.warning("Kueue's Lease %s has no holder: is Kueue running?", KUEUE_LEASE)


async def kueue_runs(client: ApiClient) -> str | None:
    """Return the namespace in which Kueue's manager holds its Lease; None if it does not run."""
    for one in (await client.get_path(LEASES.path())).get("items") or ():
        if one["metadata"]["name"] == KUEUE_LEASE and is_held(one, datetime.now(UTC)):
            return str(one["metadata"]["namespace"])
    return None


async def _not_served(client: ApiClient, plurals: Iterable[str]) -> list[str]:
    try:
        served = await client.get_path(f"/apis/{GROUP}/{STORED}")
    except ApiRefused as refused:
        if not refused.not_found:
            raise
        served = {}
    there = {one.get("name") for one in served.get("resources") or ()}
    return [one for one in plurals if one not in there]


def is_held(lease: Mapping[str, Any], now: datetime) -> bool:
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity"):
        return False
    try:
        renewed = datetime.fromisoformat(str(spec.get("renewTime")).replace("Z", "+00:00"))
    except ValueError:
        return False
    length_s = max(SHORTEST_S, float(spec.get("leaseDurationSeconds") or 0))
    return (now - renewed).total_seconds() < 2 * length_s
