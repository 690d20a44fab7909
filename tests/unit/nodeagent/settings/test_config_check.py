"""`sluice config check`: what holds, who said it, what is not done, and whether the daemon would start."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import nodeagent.__main__ as daemon
from nodeagent.cli.main import main

NODES = {
    "nodeconfig": [
        {"name": "a", "devicesplitcount": 3, "devicememoryscaling": 1.5},
        {"name": "b", "operatingmode": "mps"},
    ]
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    settings, hami = tmp_path / "sluice.toml", tmp_path / "config.json"
    settings.write_text('[kubelet]\nenabled = true\n[grants]\nstrategy = "spread"\n')
    hami.write_text(json.dumps(NODES))
    return str(settings), str(hami)


def test_what_is_printed_is_a_configuration_with_who_said_it(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    settings, hami = files
    words = ["config", "check", "--config", settings, "--hami", hami, "--node", "a"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    document = tomllib.loads(shown)
    assert document["kubelet"]["slots_per_gpu"] == 3
    assert document["grants"]["strategy"] == "spread"
    assert shown.startswith(f"# node a; read: {settings}, {hami}\n")
    assert f"slots_per_gpu = 3  # {hami}: nodeconfig[0] (a)" in shown
    assert 'strategy = "spread"  # the file' in shown
    assert "enabled = true  # [kubelet]" in shown
    assert "# warning: kubelet.memory_scaling (by " in shown
    assert main([*words, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["settings"]["kubelet"]["slots_per_gpu"]["value"] == 3
    assert plain["settings"]["kubelet"]["strategy"] == {"value": "cdi-cri", "by": "default"}
    assert (plain["node"], plain["problems"], len(plain["warnings"])) == ("a", [], 1)


def test_what_the_daemon_would_refuse_is_told_with_its_exit_status(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    settings, hami = files
    words = ["config", "check", "--config", settings, "--hami", hami, "--node", "b"]
    assert main(words) == 2
    assert "kubelet.mode (by " in capsys.readouterr().err
    Path(settings).write_text("[kubelet]\nenable = true\n")
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told == (
        f"sluice: config: {settings}: kubelet.enable: no such key (did you mean 'enabled'?)\n"
    )
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["problems"]


def test_the_daemon_refuses_the_same_with_the_same_words(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    settings, _ = files
    Path(settings).write_text('[kubelet]\nenabled = true\nmode = "mps"\n')
    assert daemon.main(["--config", settings]) == 2
    assert "kubelet.mode (by [kubelet]): mps is not supported yet" in capsys.readouterr().err


def test_a_pods_name_is_not_the_nodes(
    files: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a DaemonSet the host name is the pod's; NODE_NAME comes from the downward API."""
    settings, hami = files
    monkeypatch.setenv("NODE_NAME", "a")
    assert main(["config", "check", "--config", settings, "--hami", hami]) == 0
    assert "# node a;" in capsys.readouterr().out
    Path(settings).write_text('[queue]\nnode_name = "b"\n')
    assert main(["config", "check", "--config", settings, "--hami", hami]) == 2
