"""Records what the kubelet's own managers decide about pods on machines with several NUMA nodes: `python -m tests.cluster.kubernetes.admission.record`
writes tests/queue/gpushares/extender/admissions.json, which the extender's predictions are compared with.

Pods are admitted one after the other, so that what is free differs. Those with init containers are the last of their machine: the kubelet gives
the CPUs of these to others only once they have ended. It needs Go and root.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.kit.places import REPO

HERE = Path(__file__).parent
RECORD = REPO / "tests" / "queue" / "gpushares" / "extender" / "admissions.json"
MACHINES, PODS, SEED = 40, 8, 20261129
ALONE = (
    "mkdir -p /var/lib/kubelet && mount -t tmpfs none /var/lib/kubelet"
    ' && mkdir /var/lib/kubelet/device-plugins && exec "$0"'
)
Document = dict[str, Any]


def machine(rng: random.Random) -> Document:
    """As the program reads it."""
    large = rng.random() < 0.4
    count = rng.choice((2, 2, 4))
    zones = [
        {
            "CPUs": rng.choice((4, 8)),
            "MemoryGiB": rng.choice((16, 32)),
            "Devices": rng.choice((0, 2, 4)),
        }
        for _ in range(count)
    ]
    if rng.random() < 0.6:
        zones = zones[:1] * count
    if not any(zone["Devices"] for zone in zones):
        zones[-1] = {**zones[-1], "Devices": 4}
    return {
        "Policy": rng.choice(("single-numa-node", "restricted")),
        "Scope": rng.choice(("container", "pod")),
        "Zones": zones,
        "Pods": [pod(rng, number, large) for number in range(PODS)],
    }


def pod(rng: random.Random, number: int, large: bool) -> Document:
    guaranteed = rng.random() < 0.8

    def container(name: str) -> Document:
        cpus = ("1", "2", "3", "4", "6", "500m", *(("10", "12") if large else ()))
        memory = (1, 2, 4, 8, *((20, 40) if large else ()))
        gpus = (0, 1, 1, 2, 3, *((5, 6) if large else ()))
        limits = {"cpu": rng.choice(cpus), "memory": f"{rng.choice(memory)}Gi"}
        if count := rng.choice(gpus):
            limits["nvidia.com/gpu"] = str(count)
        requests = limits if guaranteed else {**limits, "cpu": "100m"}
        return {"name": name, "resources": {"limits": limits, "requests": requests}}

    containers = [container(f"c{at}") for at in range(rng.choice((1, 1, 1, 2)))]
    first = []
    if number == PODS - 1:
        if rng.random() < 0.5:
            first.append(container("first"))
        if rng.random() < 0.4:
            first.append({**container("sidecar"), "restartPolicy": "Always"})
    return {
        "metadata": {"name": f"p{number}", "namespace": "default", "uid": f"u-{number}"},
        "spec": {"initContainers": first, "containers": containers},
    }


def admitted(program: Path, given: Document) -> list[Document]:
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ALONE, str(program)],
        input=json.dumps(given),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    found: list[Document] = json.loads(done.stdout)
    return found


def main() -> int:
    rng, cases = random.Random(SEED), []
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "admission")
        subprocess.run(["go", "build", "-mod=readonly", "-o", program, "./admission"], cwd=HERE.parent, check=True)  # fmt: skip
        for _ in range(MACHINES):
            given = machine(rng)
            for one, verdict in zip(given["Pods"], admitted(program, given), strict=True):
                verdict["numa_nodes"] = verdict["numa_nodes"] if verdict["admitted"] else None
                kept = {key: verdict[key] for key in ("zones", "numa_nodes")}
                cases.append({"policy": given["Policy"], "scope": given["Scope"], "spec": one["spec"], **kept})  # fmt: skip
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    RECORD.write_text(f"[\n{lines}\n]\n")
    print(
        f"{len(cases)} pods, {sum(case['numa_nodes'] is None for case in cases)} rejected: {RECORD}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
