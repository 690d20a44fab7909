"""Whether this cluster is one to decide in: Kueue's kinds are defined, and Kueue does not run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from queuecontroller.cluster.known.kinds import LEASES
from queuecontroller.kueue_api import GROUP, KINDS
from queuecontroller.kueue_api.fields import STORED
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused

KUEUE_LEASE: Final = "c1f6bfd2.kueue.x-k8s.io"
"""Which Kueue's manager holds, in whatever namespace it was installed."""
SHORTEST_S: Final = 15.0


class Unfit(Exception):
    """Says why, and what to do."""


async def check_cluster(client: ApiClient) -> None:
    """Raises Unfit; ApiAway and ApiRefused where nobody can say."""
    for one in (await client.get_path(LEASES.path())).get("items") or ():
        if one["metadata"]["name"] == KUEUE_LEASE and is_held(one, datetime.now(UTC)):
            where = one["metadata"]["namespace"]
            raise Unfit(
                f"kubernetes.mode: Kueue runs in this cluster (it holds the Lease {KUEUE_LEASE} in"
                f" namespace {where}), and two may not decide over the same objects: end it first,"
                " or run beside it (mode beside, which is not there yet)"
            )
    try:
        served = await client.get_path(f"/apis/{GROUP}/{STORED}")
    except ApiRefused as refused:
        if not refused.not_found:
            raise
        served = {}
    there = {one.get("name") for one in served.get("resources") or ()}
    if missing := [kind.plural for kind in KINDS.values() if kind.plural not in there]:
        raise Unfit(
            f"kubernetes.mode: the API server does not serve {', '.join(missing)} of"
            f" {GROUP}/{STORED}: apply packaging/kubernetes/kueue-crds.yaml first"
            " (kubectl apply --server-side -f)"
        )


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
