"""Writes packaging/kubernetes/queue-rights.yaml: what the queue controller may do in a cluster in mode kubernetes, from the table
that a test runs it under (queuecontroller/cluster/rights.py). A test holds the file to the table.

    packaging/rights.py --namespace sluice --account sluice-queue | kubectl apply -f -
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from queuecontroller.cluster.rights import documents

HEAD = "# Made by packaging/rights.py from queuecontroller/cluster/rights.py: change it there, then `make docs`.\n"


def text(namespace: str = "sluice", account: str = "sluice-queue") -> str:
    made = documents(namespace, account)
    return HEAD + yaml.safe_dump_all(made, sort_keys=False, width=120, explicit_start=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="sluice", help="of the service account")
    parser.add_argument("--account", default="sluice-queue", help="the service account")
    given = parser.parse_args()
    sys.stdout.write(text(given.namespace, given.account))


if __name__ == "__main__":
    main()
