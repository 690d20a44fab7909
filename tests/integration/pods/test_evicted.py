"""A job that came through the queue and is ended by its node for what it did: the controller gets the reason. A real
controller, a real daemon on simulated GPUs."""

from __future__ import annotations

import sqlite3

from tests.kit.node import running, until
from tests.kit.queue import queues
from tests.kit.queue.controller import serving
from tests.kit.workplace import workplace

QUEUE = queues.manifests(
    queues.flavor("any"),
    queues.cluster_queue(
        "all", "any", {queues.GPU: 2, queues.GPU_MEMORY: "64k", queues.GPU_CORES: 100}
    ),
    queues.local_queue("train", "default", "all"),
)
FLAGS = ("--queue", "train", "--gpumem", "4Gi", "--cores", "40")
NEVER_ENDS = str(10**12)
"""ns."""


def test_the_controller_hears_why_its_job_was_ended() -> None:
    with (
        workplace() as directory,
        serving(directory / "queue", settings=["nodes.report_s=0.5"]) as controller,
    ):
        controller.apply(QUEUE)
        settings = (
            f'[queue]\nserver = "{controller.address}"\nnode_name = "n1"\n'
            '[detection]\npolicies = "queue/all=kill"\nrules = "runaway_kernel=kill"\nrunaway_kernel_s = 1\n'
        )
        with running(directory / "node", gpus="2xh100-80gb", settings=settings) as node:
            until(
                "the node is in the queue", lambda: "Ready" in controller.cli("get", "nodes").stdout
            )
            runaway = node.run_tenant("runaway", "--kernel-ns", NEVER_ENDS, flags=FLAGS)
            other = node.run("other", "sleep", "3600", flags=FLAGS)
            until("both run", lambda: node.grant("runaway") and node.grant("other"))
            assert runaway.process.wait(60) != 0
            phases = until(
                "its workload is over",
                lambda: (
                    (
                        found := {
                            one["metadata"]["name"].rsplit("-", 1)[0]: one["status"]
                            for one in controller.workloads()
                        }
                    )["runaway"]["phase"]
                    == "Finished"
                    and found
                ),
            )
            (finished,) = [
                one for one in phases["runaway"]["conditions"] if one["type"] == "Finished"
            ]
            assert finished["reason"] == "Stopped"
            assert "runaway_kernel" in finished["message"]
            assert phases["other"]["phase"] == "Running"
            assert other.process.poll() is None
            acts = [event["text"] for event in node.cli_json("events", "--kind", "act")]
            assert "reported to: the queue controller, default/runaway" in acts[-1]
            assert 'sluice_containment_acts_total{step="report_for_eviction"} 1' in node.metrics()
            with sqlite3.connect(f"file:{node.directory}/state/ledger.sqlite?mode=ro", uri=True) as db:  # fmt: skip
                (rows,) = db.execute("SELECT count(*) FROM audit").fetchone()
            assert rows >= 3
