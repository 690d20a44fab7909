"""The roles that `make chart` writes are the table's, and ask for nothing broad."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from queuecontroller.cluster.setup.rbac import beside_rules, cluster_rules, lease_rules

ROOT = Path(__file__).parents[3]
PACKAGING = ROOT / "packaging"


@pytest.mark.parametrize(
    ("program", "written"),
    [
        (["rights.py"], "kubernetes/queue-rights.yaml"),
        (["rights.py", "--beside"], "kubernetes/queue-rights-beside.yaml"),
        (["rights.py", "--users"], "kubernetes/kueue-user-roles.yaml"),
        (["rights.py", "--users"], "helm/sluice/files/kueue-user-roles.yaml"),
        (["rights.py", "--rules"], "helm/sluice/files/queue-rules.yaml"),
        (["crds.py", "--compact"], "helm/sluice/files/kueue-crds.yaml"),
        (["vendors.py"], "helm/sluice/files/vendor-resources.yaml"),
    ],
)
def test_what_is_written_is_what_the_tables_say(program: list[str], written: str) -> None:
    made = subprocess.run(
        [sys.executable, PACKAGING / "generate" / program[0], *program[1:]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (PACKAGING / written).read_text() == made.stdout, "make chart"


def test_no_right_is_for_everything() -> None:
    for rule in (*cluster_rules(), *beside_rules(), *lease_rules()):
        for field in ("apiGroups", "resources", "verbs"):
            assert "*" not in rule[field]
        assert "secrets" not in rule["resources"]
        assert "deletecollection" not in rule["verbs"]


def test_rights_to_owners_of_pods_are_for_templates_that_missed_the_webhook() -> None:
    """Templates are completed, and the ReplicaSet of a former one goes; nothing is created, and no Deployment is deleted."""
    found: dict[str, set[str]] = {}
    for rule in cluster_rules():
        for resource in rule["resources"]:
            if {"apps", "leaderworkerset.x-k8s.io"} & set(rule["apiGroups"]):
                found.setdefault(resource, set()).update(rule["verbs"])
    assert found == {
        "deployments": {"list", "watch", "patch"},
        "statefulsets": {"list", "watch", "patch"},
        "replicasets": {"get", "delete"},
        "leaderworkersets": {"get", "list", "watch", "patch"},
    }
