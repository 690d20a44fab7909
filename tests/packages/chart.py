"""The Helm chart rendered, by helm and by the script for an install without it."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluicecommon.yaml_text import LOADER
from tests.kit.places import BUILD, REPO

CHART = REPO / "packaging" / "helm" / "sluice"
HELM = shutil.which("helm") or (
    str(BUILD / "tools" / "helm") if (BUILD / "tools" / "helm").is_file() else None
)
needs_helm = pytest.mark.skipif(HELM is None, reason="no helm: packaging/fetch/helm-tool.sh")
SECRETS = ("queue.tlsSecret=q", "agent.tlsSecret=n")
ALL = (
    *SECRETS,
    "simulatedGpus=2xh100-80gb",
    "queue.podDisruptionBudget.enabled=true",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring",
    "serviceMonitor.enabled=true",
    "prometheusRule.enabled=true",
    "dashboard.enabled=true",
)
KUBERNETES = ("1.28", "1.31", "1.34")


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run(
        [HELM, *arguments], capture_output=True, text=True, check=False, timeout=240
    )


def template(
    *values: str, kubernetes: str = "1.31", files: Iterable[Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Values that were rendered before are not rendered again, but for those in files."""
    words = [word for one in values for word in ("--set", one)]
    words += [word for one in files for word in ("-f", str(one))]
    return (helm if files else _helm_once)(
        *("template", "s", CHART, "-n", "gpu", "--kube-version", f"{kubernetes}.0"), *words
    )


_helm_once = functools.cache(helm)


@functools.cache
def kubernetes_validate() -> Any:
    """The package of that name, which reads its megabytes of schemas once and not for each object."""
    package = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    package.utils.schema_contents = functools.cache(package.utils.schema_contents)
    return package


def objects_of(text: str) -> list[Any]:
    """Its documents, but for those of comments only."""
    return [one for one in yaml.load_all(text, LOADER) if one]


def rendered(*values: str, kubernetes: str = "1.31", files: Iterable[Path] = ()) -> list[Any]:
    """Hooks too; see of()."""
    done = template(*values, kubernetes=kubernetes, files=files)
    assert done.returncode == 0, done.stderr
    return objects_of(done.stdout)


@functools.cache
def static_text() -> str:
    """The file that `make chart` writes for `kubectl apply`."""
    assert HELM is not None
    script = REPO / "packaging" / "generate" / "static.sh"
    return subprocess.run([script, HELM], capture_output=True, text=True, check=True).stdout


def static() -> list[Any]:
    return objects_of(static_text())


def of(objects: Iterable[Any], kind: str, name: str = "") -> Any:
    """The only object of that kind that an install makes; hooks are checked separately."""
    (found,) = [
        one
        for one in objects
        if one["kind"] == kind
        and one["metadata"]["name"].endswith(name)
        and "helm.sh/hook" not in one["metadata"].get("annotations", {})
    ]
    return found


def rights(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, ",".join(sorted(rule["verbs"])))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def hooks(objects: Iterable[Any], when: str) -> list[Any]:
    """In the order in which helm makes them."""
    found = [
        one for one in objects if one["metadata"].get("annotations", {}).get("helm.sh/hook") == when
    ]
    return sorted(
        found, key=lambda one: int(one["metadata"]["annotations"].get("helm.sh/hook-weight", 0))
    )
