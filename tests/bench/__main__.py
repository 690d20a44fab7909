"""`make bench`: what the hooks cost over the bare simulated driver, how exact a share is, what sharing costs.

Figures are of the simulated GPU: they tell what our code adds and how well it steers, not what a card does.
"""

from __future__ import annotations

import argparse
import sys

from tests.bench import (
    come_and_go,
    dra,
    ebpf,
    hooks,
    kubelet,
    scrape,
    shapes,
    shares,
    together,
    turns,
)
from tests.bench.cluster import admissions, dispatch, scheduling, writes
from tests.bench.entries import Entry, table, write
from tests.bench.queueing import (
    consolidation,
    growth,
    hostile,
    new_nodes,
    page,
    placement,
    queue,
    room,
    service,
    webhook,
)
from tests.kit.node import running
from tests.kit.places import BUILD
from tests.kit.workplace import workplace

PARTS = (
    "hooks",
    "shares",
    "shapes",
    "together",
    "turns",
    "come_and_go",
    "placement",
    "consolidation",
    "new_nodes",
    "queue",
    "service",
    "room",
    "scrape",
    "kubelet",
    "dra",
    "ebpf",
    "hostile",
    "webhook",
    "page",
    "growth",
    "cluster",
    "extender",
)
ASKED_FOR = ("multikueue", "writes")
"""Parts of their own, because they take minutes and several control planes: only with `--only`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no 100 ms kernels")
    parser.add_argument(
        "--only",
        choices=(*PARTS, *ASKED_FOR),
        help="one part; build/bench.json then holds that part alone",
    )
    options = parser.parse_args()
    wanted = (options.only,) if options.only else PARTS
    entries: list[Entry] = []
    with workplace() as directory, running(directory, gpus="2xh100-80gb") as node:
        uuids = [str(gpu["uuid"]) for gpu in node.info()["gpus"]]
        if "hooks" in wanted:
            entries += hooks.run(node, 100 if options.quick else 400)
        if "shares" in wanted:
            entries += shares.run(node, uuids, options.quick)
        if "shapes" in wanted:
            entries += shapes.run(node, uuids[0])
        if "together" in wanted:
            entries += together.run(node, uuids[0])
    if "turns" in wanted:
        with workplace() as directory:
            entries += turns.run(directory, options.quick)
    if "come_and_go" in wanted:
        with workplace() as directory:
            entries += come_and_go.run(directory)
    if "placement" in wanted:
        entries += placement.run(1000 if options.quick else 4000)
    if "consolidation" in wanted:
        entries += consolidation.run(options.quick)
    if "new_nodes" in wanted:
        entries += new_nodes.run(options.quick)
    if "queue" in wanted:
        entries += queue.run(options.quick)
    if "service" in wanted:
        entries += service.run(options.quick)
    if "room" in wanted:
        entries += room.run(options.quick)
    if "scrape" in wanted:
        entries += scrape.run(options.quick)
    if "kubelet" in wanted:
        entries += kubelet.run(options.quick)
    if "dra" in wanted:
        entries += dra.run(options.quick)
    if "ebpf" in wanted:
        entries += ebpf.run(options.quick)
    if "hostile" in wanted:
        entries += hostile.run(options.quick)
    if "webhook" in wanted:
        entries += webhook.run(options.quick)
    if "page" in wanted:
        entries += page.run(options.quick)
    if "growth" in wanted:
        entries += growth.run(options.quick)
    if "cluster" in wanted:
        entries += admissions.run(options.quick)
    if "extender" in wanted:
        entries += scheduling.run(options.quick)
    if "multikueue" in wanted:
        entries += dispatch.run(options.quick)
    if "writes" in wanted:
        entries += writes.run(options.quick)
    print("\n" + table(entries))
    write(BUILD / "bench.json", entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
