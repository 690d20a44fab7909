"""Node templates as their documents say, and every mistake in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuecontroller.cluster.autoscaling.templates import read_templates
from queuecontroller.server.config import AutoscalingSettings, ConfigError, parse
from queuecontroller.server.node_templates import autoscaling_of
from sluicecommon.reader import ManifestError
from tests.kit.places import REPO
from tests.queue.cluster.autoscaling.documents import NAMES, node, one


def test_gpus_labels_and_taints_are_read() -> None:
    template = one(node())
    assert template.name == "large"
    assert len(template.node.capacity.gpus) == 8
    assert template.node.capacity.gpus[0].memory_bytes == 81559 << 20
    assert template.node.capacity.other["cpu"] == 64_000
    assert template.selector == {"pool": "h100"}, "the rest an autoscaler cannot know"
    assert template.requests == {"nvidia.com/gpu": "8"}
    head = {**node()["metadata"], "annotations": {"sluice.dev/max-new-nodes": "3"}}
    assert one(node(metadata=head)).node.most == 3


def test_a_list_is_read_and_all_mistakes_are_reported() -> None:
    both = {"kind": "List", "items": [node(), node("small")]}
    assert [each.name for each in read_templates([both], NAMES, "file")] == ["large", "small"]
    head = {"name": "Wrong_Name", "annotations": {"sluice.dev/max-new-nodes": "many"}}
    wrong = {"kind": "Pod", "metadata": head}
    with pytest.raises(ManifestError) as refused:
        read_templates([node(), node(), wrong], NAMES, "file")
    text = str(refused.value)
    for part in (
        *("given twice", "is a Pod", "DNS label", "describes no GPUs", "status.allocatable"),
        *("whole number", "file: "),
    ):
        assert part in text, text
    with pytest.raises(ManifestError, match="has no Node"):
        read_templates([None, "text"], NAMES, "file")


def test_settings_are_checked_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        parse({"kubernetes": {"mode": "kubernetes"}, "autoscaling": {"requests": "pods"}})
    problems = refused.value.problems
    assert any(line.startswith("autoscaling.templates:") for line in problems)
    assert any("extender.callers" in line for line in problems)
    assert autoscaling_of(AutoscalingSettings(), NAMES) is None
    path = tmp_path / "templates.yaml"
    path.write_text("{")
    with pytest.raises(ConfigError):
        autoscaling_of(AutoscalingSettings("pods", str(path)), NAMES)


def test_the_example_is_valid() -> None:
    path = REPO / "examples" / "new-nodes" / "00-node-templates.yaml"
    found = autoscaling_of(AutoscalingSettings("provisioning-requests", str(path)), NAMES)
    assert found is not None
    assert not found.by_pods
    assert [(each.name, each.requests) for each in found.templates] == [
        ("h100-8", {"nvidia.com/gpu": "8"}),
        ("l4-1", {"nvidia.com/gpu": "1"}),
    ]
