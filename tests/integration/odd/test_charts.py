"""Public reports about charts of our field, tried on ours: where it is installed and under what name, strict YAML, pull
secrets in every pod, monitoring objects only where they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.packages.chart import ALL, CHART, helm, needs_helm, objects_of, rendered, template

pytestmark = needs_helm
LONG = "a-release-name-of-forty-characters-12345"
VALUES = [
    (),
    ("queue.tlsSecret=q", "agent.tlsSecret=n"),
    ALL,
    ("queue.mode=kubernetes",),
    ("queue.mode=beside",),
]


class Strict(yaml.SafeLoader):
    """YAML 1.2 has no duplicate keys; PyYAML takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore[no-untyped-call]
        assert len(keys) == len(set(keys)), f"{node.start_mark}: {keys}"
        return super().construct_mapping(node, deep)


def pods(documents: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each pod template with the name of its object, pods and hooks included."""
    for one in documents:
        name = f"{one['kind']}/{one['metadata']['name']}"
        spec = one.get("spec") or {}
        if one["kind"] == "Pod":
            yield name, spec
        elif one["kind"] == "CronJob":
            yield name, spec["jobTemplate"]["spec"]["template"]["spec"]
        elif isinstance(spec.get("template"), dict) and "containers" in spec["template"]["spec"]:
            yield name, spec["template"]["spec"]


@pytest.mark.parametrize("values", VALUES, ids=["none", "secrets", "all", "kubernetes", "beside"])
def test_no_key_comes_twice(values: tuple[str, ...]) -> None:
    done = template(*values)
    assert done.returncode == 0, done.stderr
    documents = [one for one in yaml.load_all(done.stdout, Strict) if one]
    assert len(documents) > 10


@pytest.mark.parametrize("values", VALUES, ids=["none", "secrets", "all", "kubernetes", "beside"])
def test_every_pod_has_the_pull_secrets(values: tuple[str, ...]) -> None:
    found = dict(pods(rendered(*values, "imagePullSecrets[0].name=regcred")))
    assert len(found) > 3
    without = [
        n for n, spec in found.items() if spec.get("imagePullSecrets") != [{"name": "regcred"}]
    ]
    assert not without


@pytest.mark.parametrize("release", ["s", LONG])
def test_another_namespace_and_a_long_name_are_everywhere(release: str) -> None:
    done = helm("template", release, CHART, "-n", "gpu-sharing", "--kube-version", "1.31.0")
    assert done.returncode == 0, done.stderr
    documents = objects_of(done.stdout)
    places = {one["metadata"].get("namespace") for one in documents}
    assert places <= {"gpu-sharing", None}
    assert "namespace: gpu\n" not in done.stdout
    names = [one["metadata"]["name"] for one in documents]
    assert max(map(len, names)) <= 253
    assert all(len(one["metadata"]["name"]) <= 63 for one in documents if one["kind"] == "Service")


def test_monitoring_objects_are_there_only_where_they_are_asked_for() -> None:
    kinds = {one["kind"] for one in rendered()}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert {"ServiceMonitor", "PrometheusRule"} <= {one["kind"] for one in rendered(*ALL)}
