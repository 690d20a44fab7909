"""The written roles are the table's, and ask for nothing broad."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from queuecontroller.cluster.rights import cluster_rules, lease_rules

ROOT = Path(__file__).parents[3]
WRITTEN = ROOT / "packaging" / "kubernetes" / "queue-rights.yaml"


def test_the_written_roles_are_those_of_the_table() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "packaging" / "rights.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    wrong = "packaging/rights.py >packaging/kubernetes/queue-rights.yaml"
    assert WRITTEN.read_text() == made.stdout, f"write it anew: {wrong}"


def test_no_right_is_for_everything() -> None:
    for rule in (*cluster_rules(), *lease_rules()):
        for field in ("apiGroups", "resources", "verbs"):
            assert "*" not in rule[field]
        assert "secrets" not in rule["resources"]
        assert "deletecollection" not in rule["verbs"]
