"""The libraries of real drivers, without a card: in a grant they answer as they do by themselves.

They are Debian's (packaging/fetch/real-drivers.sh). Without a card cuInit fails, but which function a
(name, version, flags) means is answered all the same, and that is what the interposer must not bend.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.interpose import regions, symbols
from tests.interpose.driver.ask_names import exported
from tests.kit.places import REPO

BRANCHES = ("470", "535", "550", "555")
ENTRIES = ("cuGetProcAddress", "cuGetProcAddress_v2", "cuGetProcAddress_v2_ptsz")


@cache
def places() -> dict[str, Path] | str:
    """Folder per branch, or why there is none."""
    try:
        done = subprocess.run(
            [REPO / "packaging" / "fetch" / "real-drivers.sh"],
            capture_output=True,
            text=True,
            timeout=600,
        )
    except subprocess.TimeoutExpired:
        return "real drivers: Debian's archive does not answer"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1] if done.stderr else "real drivers: none"
    return {Path(line).name: Path(line) for line in done.stdout.splitlines()}


@pytest.fixture(params=BRANCHES)
def driver(request: pytest.FixtureRequest) -> Path:
    found = places()
    if isinstance(found, str):
        pytest.skip(found)
    return found[request.param]


def questions() -> list[tuple[str, str, int, int]]:
    """Every name, with and without its suffixes, at and around every version of its forms."""
    known = symbols.driver_symbols()
    edges: dict[str, set[int]] = {}
    for one in known.values():
        edges.setdefault(one.base, set()).update({one.since - 10, one.since, one.since + 10})
    asked = {base: {-1, 0, 11030, 12000, 13050} | versions for base, versions in edges.items()}
    for name in [*(n for n in known if n not in edges), *symbols.unlisted(), "", "cuNoSuchCall"]:
        asked[name] = {12000}
    return [
        (entry, name, version, flags)
        for entry in ENTRIES
        for name, versions in sorted(asked.items())
        for version in sorted(versions)
        for flags in (0, 1, 2, 3, 4)
    ]


Answers = dict[str, object]


def ask(script: str, library: Path, *arguments: Path, **environment: str) -> Answers:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.interpose.{script}", library, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment or None,
        cwd=REPO,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: Answers = json.loads(done.stdout)
    return found


@pytest.fixture
def region(tmp_path: Path, driver: Path) -> regions.Region:
    library, nvml = driver / "libcuda.so.1", driver / "libnvidia-ml.so.1"
    return regions.Region(tmp_path / "grant", driver=library, nvml=nvml)


def test_every_name_version_and_flag_means_the_same_function(
    tmp_path: Path, driver: Path, region: regions.Region
) -> None:
    real, asked = driver / "libcuda.so.1", tmp_path / "questions.json"
    everything = questions()
    asked.write_text(json.dumps(everything))
    alone = ask("driver.ask_addresses", real, real, asked)
    granted = ask("driver.ask_addresses", regions.SHIM, real, asked, **region.environment())
    assert granted["init"] == alone["init"] == 100, "no device"
    assert granted["table"] == alone["table"]
    rows = [row for row in everything if row[0] in exported(real)]
    assert isinstance(alone["answers"], list)
    assert isinstance(granted["answers"], list)
    assert len(rows) == len(alone["answers"]) == len(granted["answers"]) > 10_000
    wrong = [
        f"{row}: {got}, alone {want}"
        for row, want, got in zip(rows, alone["answers"], granted["answers"], strict=True)
        if not same(want, got)
    ]
    assert not wrong, "\n".join([*wrong[:20], f"{len(wrong)} of {len(rows)}"])


def same(want: list[object], got: list[object]) -> bool:
    """A driver may give one function two names: ours is then one of them."""
    if want[:2] != got[:2]:
        return False
    if isinstance(want[2], list) and isinstance(got[2], list):
        return bool(set(want[2]) & set(got[2]))
    return want[2] == got[2]


def test_every_export_is_there(driver: Path) -> None:
    """Exports of both real libraries are ours too; those for a debugger are found in the driver
    alone."""
    left = {name for name, one in symbols.unlisted().items() if not one.ours}
    real = set(exported(driver / "libcuda.so.1")) | set(exported(driver / "libcuda.so.1", "BDVRA"))
    assert len(real) > 500
    assert real - set(exported(regions.SHIM)) == real & left
    nvml = set(exported(driver / "libnvidia-ml.so.1"))
    assert len(nvml) > 200
    assert nvml <= set(exported(regions.NVML_SHIM))


def test_the_management_library_answers_the_same(driver: Path, region: regions.Region) -> None:
    alone = ask("nvml.ask_nvml", driver / "libnvidia-ml.so.1")
    granted = ask("nvml.ask_nvml", regions.NVML_SHIM, **region.environment())
    assert granted == alone
    assert alone["nvmlInit_v2"] != 0, "no driver in the kernel"
