"""The units: systemd understands every line, and the exposure is what was promised."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nodeagent.adapters.ebpf.pins import BPFFS, pins_of
from tests.kit.places import REPO

UNITS = REPO / "systemd"
SERVICES = ["sluice.service", "sluice-queue.service"]
needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze here"
)


def analyze(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=60,
    )


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with commands that exist here."""
    for unit in UNITS.glob("*.s[el]*"):
        text = re.sub(
            r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE
        )
        (tmp_path / unit.name).write_text(text)
    return tmp_path


@needs_analyze
def test_systemd_understands_every_line(units: Path) -> None:
    found = analyze(
        "verify", "--man=no", *(f"./{path.name}" for path in units.iterdir()), cwd=units
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@needs_analyze
@pytest.mark.parametrize(
    ("service", "tenths"), [("sluice.service", 35), ("sluice-queue.service", 20)]
)
def test_the_exposure_stays_below_what_was_promised(units: Path, service: str, tenths: int) -> None:
    found = analyze("security", "--offline=yes", f"--threshold={tenths}", f"./{service}", cwd=units)
    assert found.returncode == 0, found.stdout


def lines(service: str) -> dict[str, str]:
    pairs = (
        line.partition("=")
        for line in (UNITS / service).read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    return {key: value for key, _, value in pairs}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_tells_that_it_is_ready_and_is_started_again(service: str) -> None:
    unit = lines(service)
    assert (unit["Type"], unit["Restart"], unit["StartLimitIntervalSec"]) == (
        "notify",
        "always",
        "0",
    )
    assert int(unit["WatchdogSec"]) >= 10
    assert "2" in unit["RestartPreventExitStatus"].split()
    assert unit["Slice"] == "sluice.slice"
    assert unit["MemoryMax"]
    assert unit["LoadCredential"].endswith(".key")


def test_the_daemon_is_there_before_the_kubelet_and_not_bound_to_it() -> None:
    unit = lines("sluice.service")
    assert "kubelet.service" in unit["Before"]
    assert not unit.keys() & {"Requires", "BindsTo", "PartOf"}


@pytest.mark.parametrize(
    ("service", "setting"),
    [
        *(
            (("sluice.service", name))
            for name in (
                "User",
                "ProcSubset",
                "ProtectControlGroups",
                "PrivateDevices",
                "RootDirectory",
                "PrivateNetwork",
                "IPAddressDeny",
                "PrivateUsers",
                "MemoryDenyWriteExecute",
            )
        ),
        *(
            (("sluice-queue.service", name))
            for name in ("RootDirectory", "PrivateNetwork", "IPAddressDeny")
        ),
    ],
)
def test_what_could_not_be_set_says_why(service: str, setting: str) -> None:
    assert setting not in lines(service)
    assert re.search(
        rf"^# Not set: .*\b{setting}=.*\..*", (UNITS / service).read_text(), re.MULTILINE
    )


def test_the_slice_has_ceilings_above_those_of_its_services() -> None:
    slice_ = lines("sluice.slice")
    megabytes = {"M": 1, "G": 1024}
    size = lambda text: int(text[:-1]) * megabytes[text[-1]]  # noqa: E731
    assert size(slice_["MemoryMax"]) >= sum(
        size(lines(service)["MemoryMax"]) for service in SERVICES
    )
    assert slice_["CPUQuota"].endswith("%")


def test_refusals_can_be_pinned_although_the_rest_of_bpffs_is_closed() -> None:
    """The pins' own directory: ProtectKernelTunables= wins over ReadWritePaths=/sys/fs/bpf."""
    pins = str(BPFFS / pins_of(Path("/run/sluice")))
    unit = (UNITS / "sluice.service").read_text()
    writable = re.findall(r"^ReadWritePaths=(.*)", unit, re.MULTILINE)
    assert f"-{pins}" in " ".join(writable).split()
    assert f"d- {pins} 0700 root root -\n" in (UNITS / "sluice.tmpfiles").read_text()
