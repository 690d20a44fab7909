"""`sluice-sim-node`: what it lays out is what the daemon reads as a driver's, a container of it sees
its own GPUs, and neither a real driver nor a running program is hurt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeagent.core.kubelet import cdi_base
from tests.kit.places import BUILD, REPO, SIM

COMMAND = REPO / "packaging" / "sim" / "sluice_sim_node.py"
TENANT = BUILD / "meson" / "tests" / "tenant"


class Machine:
    """A host's directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "package"
        self.package.mkdir()
        for source in (SIM / "libcuda.so.1", SIM / "libnvidia-ml.so.1", TENANT):
            os.link(
                source.resolve(), self.package / source.name
            ) if source.stat().st_dev == root.stat().st_dev else (
                self.package / source.name
            ).write_bytes(source.read_bytes())
            (self.package / source.name).chmod(0o755)
        for name in ("proc", "sys", "etc-cdi"):
            (root / name).mkdir()
        self.spec = root / "cdi" / "sluice-sim.json"
        self.state = root / "state"
        self.libraries = root / "libraries"

    def run(self, *verb: str) -> tuple[int, str]:
        done = subprocess.run(
            [
                sys.executable,
                COMMAND,
                *("--package", self.package, "--libraries", self.libraries),
                *("--state", self.state, "--cdi-dir", self.root / "cdi"),
                *("--static-cdi-dir", self.root / "etc-cdi"),
                *("--proc", self.root / "proc", "--sys", self.root / "sys"),
                *verb,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    def program(self, nodes: Path, *arguments: str) -> subprocess.Popen[str]:
        """Start the tenant as in a container that has these device nodes."""
        return subprocess.Popen(
            [self.libraries / "tenant", *arguments],
            env={
                "LD_LIBRARY_PATH": str(self.libraries),
                "SLUICE_SIM_DIR": str(self.state),
                "SLUICE_SIM_NODES": str(nodes),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def left(self) -> list[str]:
        places = (self.state, self.libraries, self.root / "cdi")
        return [str(path) for place in places if place.exists() for path in place.rglob("*")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def nodes_of(spec: cdi_base.BaseSpec, name: str) -> Sequence[str]:
    return [node["path"] for node in spec.devices[name]["deviceNodes"]]


def test_the_daemon_reads_it_as_a_drivers_by_index_and_by_uuid(machine: Machine) -> None:
    status, said = machine.run("up", "2xh100-80gb")
    assert status == 0, said
    uuids = said.split()
    assert len(set(uuids)) == 2
    spec = cdi_base.parse(json.loads(machine.spec.read_text()), "sim")
    assert spec is not None
    assert set(spec.devices) == {"0", "1", "all", *uuids}
    assert nodes_of(spec, uuids[1]) == nodes_of(spec, "1") == ["/dev/nvidia1"]
    assert nodes_of(spec, "all") == ["/dev/nvidia0", "/dev/nvidia1"]
    for mount in spec.edits["mounts"]:
        assert Path(mount["hostPath"]).exists()
        assert ("ro" in mount["options"]) == (mount["hostPath"] != str(machine.state))
    inodes = {path.name: path.stat().st_ino for path in machine.libraries.iterdir()}
    before = machine.spec.stat().st_mtime_ns
    assert machine.run("up", "2xh100-80gb") == (0, said)
    assert {path.name: path.stat().st_ino for path in machine.libraries.iterdir()} == inodes
    assert machine.spec.stat().st_mtime_ns == before, "the same again changes nothing"


def test_nodes_of_a_cluster_have_cards_of_their_own(tmp_path: Path) -> None:
    found = []
    for number, words in enumerate([(), ("--node", "a"), ("--node", "b"), ("--node", "b")]):
        (root := tmp_path / str(number)).mkdir()
        status, said = Machine(root).run(*words, "up", "2xh100-80gb")
        assert status == 0, said
        found.append(said.split())
    assert found[2] == found[3], "the same node has the same ones again"
    assert len({uuid for one in found for uuid in one}) == 6


def test_a_program_sees_the_gpus_whose_nodes_it_was_given(machine: Machine, tmp_path: Path) -> None:
    machine.run("up", "h100-80gb,a100-40gb")
    nodes = tmp_path / "dev"
    nodes.mkdir()
    (nodes / "nvidia1").touch()
    program = machine.program(nodes, "--seconds", "0.2")
    out, err = program.communicate(timeout=60)
    assert program.returncode == 0, err
    (nodes / "nvidia1").unlink()
    without = machine.program(nodes, "--seconds", "0.2")
    _, err = without.communicate(timeout=60)
    assert without.returncode == 4, out
    assert "CUDA error 100" in err


def test_everything_goes_and_twice_is_no_error(machine: Machine) -> None:
    machine.run("up", "h100-80gb")
    assert machine.left()
    assert machine.run("down") == (0, "")
    assert machine.left() == []
    assert machine.run("down") == (0, "")
    status, said = machine.run("status")
    assert status == 1
    assert json.loads(said)["specification"] == ""


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module"),
        ("sys/module/nvidia", ""),
        ("etc-cdi/nvidia.yaml", 'cdiVersion: 0.5.0\nkind: "nvidia.com/gpu"\ndevices: []\n'),
        ("cdi/other.json", '{"devices": [], "kind": "nvidia.com/gpu"}'),
    ],
    ids=[
        "the driver's version",
        "the module",
        "a specification in YAML",
        "one in JSON, on one line",
    ],
)
def test_a_node_with_a_driver_is_refused_and_left_as_it_is(
    machine: Machine, path: str, text: str
) -> None:
    sign = machine.root / path
    sign.parent.mkdir(parents=True, exist_ok=True)
    sign.write_text(text)
    status, said = machine.run("up", "h100-80gb")
    assert status == 1
    assert str(sign) in said
    assert "simulatedGpus" in said
    assert not machine.spec.exists()
    assert not machine.libraries.exists()


def test_other_vendors_specifications_are_no_driver(machine: Machine) -> None:
    (machine.root / "etc-cdi/other.yaml").write_text(
        "cdiVersion: 0.5.0\nkind: example.com/gpu\n# nvidia.com/gpu\ndevices: []\n"
    )
    status, said = machine.run("up", "h100-80gb")
    assert status == 0, said


def test_gpus_are_not_taken_from_a_running_program(machine: Machine, tmp_path: Path) -> None:
    machine.run("up", "h100-80gb")
    nodes = tmp_path / "dev"
    nodes.mkdir()
    (nodes / "nvidia0").touch()
    with machine.program(nodes, "--seconds", "60", "--report", "0.1") as program:
        assert program.stdout is not None
        assert program.stdout.readline(), "it runs"
        for verb in (("down",), ("up", "2xa100-40gb")):
            status, said = machine.run(*verb)
            assert status == 1
            assert "end" in said
        assert machine.run("up", "h100-80gb")[0] == 0, "an upgrade of the agent"
        assert program.poll() is None
        program.kill()
    status, said = machine.run("up", "2xa100-40gb")
    assert status == 0, said
    assert len(said.split()) == 2


def test_a_model_that_does_not_exist_is_named_and_leaves_nothing(machine: Machine) -> None:
    status, said = machine.run("up", "voodoo2")
    assert status == 1
    assert "voodoo2" in said
    assert machine.left() == []
