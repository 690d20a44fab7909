"""A cluster to play with: `make cluster-up`, `make cluster-down`, and `tests/cluster/exec COMMAND…` on its node.

    python -m tests.cluster up | down | reboot | status | exec COMMAND…

SLUICE_CLUSTER_DIR: its directory (default build/cluster/default); another one is another cluster beside it.
SLUICE_KUBERNETES: the minor (1.36, 1.30). SLUICE_CLUSTER_GPUS: the simulated GPUs, empty for a node without.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.cluster.machine.node import GPUS, Cluster, ClusterError
from tests.cluster.programs.build import Unbuildable
from tests.kit.places import BUILD


def main(arguments: list[str]) -> int:
    verb, rest = (arguments or ["help"])[0], arguments[1:]
    if verb not in ("up", "down", "reboot", "status", "exec") or bool(rest) != (verb == "exec"):
        print(__doc__, file=sys.stderr)
        return 2
    gpus = os.environ.get("SLUICE_CLUSTER_GPUS", GPUS)
    directory = Path(os.environ.get("SLUICE_CLUSTER_DIR") or BUILD / "cluster" / "default")
    try:
        cluster = Cluster(directory, gpus=gpus, driver=bool(gpus))
        if verb == "up":
            return up(cluster)
        if verb == "reboot":
            cluster.reboot()
        elif verb == "down":
            cluster.down()
        elif not cluster.alive():
            print(f"cluster: none is up in {directory}: make cluster-up", file=sys.stderr)
            return 1
        elif verb == "status":
            print(cluster.kubectl("get", "nodes,pods", "-A", "-o", "wide"), end="")
        else:
            command = cluster.command(*rest)
            os.execvpe(command[0], command, cluster.environment())
    except (ClusterError, Unbuildable, ValueError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def up(cluster: Cluster) -> int:
    begin_s = time.monotonic()
    if not cluster.alive():
        try:
            cluster.up()
        except BaseException:
            cluster.down()
            raise
    print(
        f"Kubernetes {cluster.programs.version}, up in {time.monotonic() - begin_s:.0f} s: tests/cluster/exec kubectl get nodes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
