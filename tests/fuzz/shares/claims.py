"""The node's reader of resource claims, with what they are configured by."""

from __future__ import annotations

import json
from typing import Any

from nodeagent.core.dra import allocation as allotting
from nodeagent.core.dra import configuration
from nodeagent.ports.dra.claims import ClaimRef, ClaimUid, NoAllocation
from nodeagent.units import GpuUuid
from tests.fuzz.mutation import Target


def resource_claim(data: bytes) -> object:
    """Allotted, and asked of the ledger."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    ref = ClaimRef("t", "c", ClaimUid("b2f6fa73-5b8f-4a83-9c0f-8d6f2f6f5f11"))
    allotment = allotting.read_claim(document, ref, "gpu-1")
    assert len(allotment.shares) <= 32
    units = {"gpu-0": GpuUuid("GPU-0"), "gpu-1": GpuUuid("GPU-1")}
    return [
        allotting.grant_ask(allotment, part, units, False, 1000)
        for part in allotting.parts_of(allotment)
    ]


CLAIM: dict[str, Any] = {
    "metadata": {
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "controller": True, "name": "p", "uid": "u"}
        ]
    },
    "status": {
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "allocation": {
            "devices": {
                "results": [
                    {
                        "driver": "sluice.dev",
                        "pool": "gpu-1",
                        "request": "gpu",
                        "device": "gpu-0",
                        "shareID": "1",
                        "consumedCapacity": {"memory": "8Gi", "cores": "30"},
                    }
                ],
                "config": [
                    {
                        "source": "FromClaim",
                        "requests": ["gpu"],
                        "opaque": {
                            "driver": "sluice.dev",
                            "parameters": {
                                "apiVersion": configuration.API_VERSION,
                                "kind": configuration.KIND,
                                "policy": "elastic",
                                "priority": 5,
                                "ceilingPercent": 40,
                                "paused": False,
                            },
                        },
                    }
                ],
            }
        },
    },
}


def targets() -> list[Target]:
    return [
        Target(
            "resource claim",
            resource_claim,
            (NoAllocation,),
            (json.dumps(CLAIM).encode(),),
            "users, by way of an API server",
        ),
    ]
