"""The configuration: every mistake reported at once, and docs/reference/configuration.md true to the code."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from nodeagent.adapters.host import config_files
from nodeagent.settings.daemon import ConfigError, Settings, parse, split_address
from queuecontroller.server import standalone
from queuecontroller.server.config import ConfigError as QueueConfigError


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(tomllib.loads(text))
    return caught.value.problems


def test_nothing_said_means_the_defaults() -> None:
    assert parse({}) == Settings()


def test_what_is_said_holds() -> None:
    settings = parse(tomllib.loads('[planner]\nperiod_ms = 5\n[grants]\nstrategy = "spread"\n'))
    assert settings.planner.period_ms == 5.0
    assert isinstance(settings.planner.period_ms, float)
    assert settings.grants.strategy == "spread"


def test_every_mistake_is_told_at_once_and_named() -> None:
    found = problems(
        """
        [plannner]
        period_ms = 5
        [grants]
        slots_per_gpu = "ten"
        strategie = "pack"
        strategy = "middle"
        memory_reserve_mib = -1
        [nvml]
        deadline_s = inf
        [paths]
        native = "lib"
        [metrics]
        enabled = 1
        """
    )
    assert len(found) == 8
    text = "\n".join(found)
    for named in (
        "[plannner]: no such section (did you mean 'planner'?)",
        "grants.slots_per_gpu: must be a whole number, got 'ten'",
        "grants.strategie: no such key (did you mean 'strategy'?)",
        "grants.strategy: must be one of pack, spread, got 'middle'",
        "grants.memory_reserve_mib: must be between 0 and 1e+06, got -1",
        "nvml.deadline_s: must be between",
        "paths.native: must be an absolute path, got 'lib'",
        "metrics.enabled: must be true or false, got 1",
    ):
        assert named in text


def test_values_that_do_not_go_together() -> None:
    assert problems("[planner]\nperiod_ms = 50\nlongest_period_ms = 20") == [
        "planner.longest_period_ms: 20 is below planner.period_ms (50)"
    ]
    (problem,) = problems("[planner]\nperiod_ms = 3")
    assert problem.startswith("planner.smallest_quantum_ms: two turns of 2 ms do not fit")
    (problem,) = problems('[metrics]\nlisten = "localhost"')
    assert "metrics.listen" in problem
    assert "127.0.0.1:9464" in problem


def test_a_section_that_is_no_section() -> None:
    assert problems("daemon = 3") == ["daemon: must be a section, [daemon]"]


def test_addresses() -> None:
    assert split_address("[::1]:9464") == ("::1", 9464)
    for bad in ("9464", ":9464", "host:", "host:70000", "host:http"):
        with pytest.raises(ValueError, match="ADDRESS:PORT"):
            split_address(bad)


def test_the_kubelet_section_and_its_nodes_are_as_strict() -> None:
    assert problems(
        """
        [kubelet]
        enabeld = true
        mode = "shared"
        limits = ["queue", "pods"]
        hami = ["relative.yaml"]
        exclude_indexes = [0, 0]
        exclude_uuids = "GPU-1"
        default_memory_mib = 1.5
        [kubelet.nodes]
        n3 = 1
        [kubelet.nodes.n1]
        slots_per_gpu = 300
        hami = []
        [kubelet.nodes.n2]
        slot_per_gpu = 3
        """
    ) == [
        "kubelet.enabeld: no such key (did you mean 'enabled'?)",
        "kubelet.mode: must be one of share, exclusive, mig, mps, got 'shared'",
        "kubelet.limits: may hold queue, placement, pod, defaults, not 'pods'",
        "kubelet.hami: must be an absolute path, got 'relative.yaml'",
        "kubelet.exclude_indexes: has a duplicate: [0, 0]",
        "kubelet.exclude_uuids: must be a list of texts, got 'GPU-1'",
        "kubelet.default_memory_mib: must be a whole number, got 1.5",
        "kubelet.nodes.n3: must be a section, [kubelet.nodes.n3]",
        "kubelet.nodes.n1.hami: belongs into [kubelet]; HAMi's files have an entry per node",
        "kubelet.nodes.n1.slots_per_gpu: must be between 0 and 256, got 300",
        "kubelet.nodes.n2.slot_per_gpu: no such key (did you mean 'slots_per_gpu'?)",
    ]


@pytest.mark.parametrize(
    "text", ["[", "[daemon]\nlog_level = " + "[" * 3000, "a = 1\na = 2", "\x00"]
)
def test_what_is_no_toml_is_refused_with_the_files_name(tmp_path: Path, text: str) -> None:
    """Nested without end it was a traceback, also when settings were read again while serving."""
    path = tmp_path / "sluice.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path}: not TOML"):
        config_files.load_settings(path)
    with pytest.raises(QueueConfigError, match=f"{path}: not TOML"):
        standalone.load_settings(path, {})
