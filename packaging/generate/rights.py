"""Writes the roles of the queue controller in mode kubernetes, with --beside those of mode beside, from the table under which
tests run it (queuecontroller/cluster/setup/rbac.py). `make chart` writes packaging/kubernetes/queue-rights*.yaml with it, and with
--users the roles that administrators and users of queues are bound to (queuecontroller/cluster/setup/user_roles.py).

    packaging/generate/rights.py --namespace sluice --account sluice-queue | kubectl apply -f -
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from queuecontroller.cluster.setup.rbac import (
    agent_rules,
    beside_rules,
    cluster_rules,
    documents,
    job_resources,
    lease_rules,
    placeholder_rules,
    webhook_rules,
)
from queuecontroller.cluster.setup.user_roles import user_roles

HEAD = "# Made by packaging/generate/rights.py from queuecontroller/cluster/setup/rbac.py: change it there, then `make chart`.\n"


def text(
    namespace: str = "sluice",
    account: str = "sluice-queue",
    beside: bool = False,
    placeholders: bool = False,
) -> str:
    made = documents(namespace, account, beside, placeholders)
    return HEAD + yaml.safe_dump_all(made, sort_keys=False, width=120, explicit_start=True)


def rules() -> str:
    """Rules for the chart, whose templates name the roles and bindings, and whose policies read the
    last two."""
    made = {
        "cluster": cluster_rules(),
        "agent": agent_rules(),
        "namespace": lease_rules(),
        "placeholders": placeholder_rules(),
        "beside": beside_rules(),
        "besideNamespace": lease_rules(beside=True),
        "webhooks": webhook_rules(),
        "jobs": job_resources(),
    }
    return HEAD + yaml.safe_dump(made, sort_keys=False, width=120)


def users() -> str:
    head = HEAD.replace("rbac.py", "user_roles.py")
    return head + yaml.safe_dump_all(user_roles(), sort_keys=False, width=120, explicit_start=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="sluice", help="namespace of the service account")
    parser.add_argument("--account", default="sluice-queue", help="name of the service account")
    parser.add_argument("--rules", action="store_true", help="the rules alone, for the chart")
    parser.add_argument("--users", action="store_true", help="the roles for users of queues")
    parser.add_argument("--beside", action="store_true", help="for mode beside")
    parser.add_argument(
        "--placeholders", action="store_true", help="with autoscaling.requests = pods"
    )
    given = parser.parse_args()
    if given.rules:
        sys.stdout.write(rules())
        return
    if given.users:
        sys.stdout.write(users())
        return
    sys.stdout.write(text(given.namespace, given.account, given.beside, given.placeholders))


if __name__ == "__main__":
    main()
