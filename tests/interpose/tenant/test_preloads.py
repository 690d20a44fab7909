"""Beside other people's preloads, before them and after them: capped as without, and the program still runs."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.adapters.region import layout as c
from tests.interpose import regions
from tests.interpose.regions import GIB, Region, build
from tests.kit import places
from tests.kit.measure import ahead, shares

JEMALLOC = [
    Path(directory) / "libjemalloc.so.2"
    for directory in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
]
LIMIT = GIB
SHARE_PPM = 200_000


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        "SLUICE_SIM_DIR": str(tmp_path_factory.mktemp("sim")),
        "SLUICE_SIM_GPUS": "a100-40gb",
    }


@pytest.fixture(scope="module")
def uuid(simulated: dict[str, str]) -> bytes:
    code = (
        "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); d.cuInit(0);"
        "u = (ctypes.c_ubyte * 16)(); d.cuDeviceGetUuid_v2(u, 0); print(bytes(u).hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, regions.SIM],
        env={**os.environ, **simulated},
        capture_output=True,
        text=True,
        check=True,
    )
    return bytes.fromhex(done.stdout.strip())


def preload(name: str) -> Path:
    if name == "jemalloc":
        found = next((path for path in JEMALLOC if path.exists()), None)
        if found is None:
            pytest.skip("libjemalloc2 is not installed")
        return found
    (library,) = build(f"lib{name}.so")
    return library


@pytest.mark.parametrize("first", [True, False], ids=["theirs first", "ours first"])
@pytest.mark.parametrize("theirs", ["fake_time", "fake_libc", "jemalloc"])
def test_a_program_with_another_preload_keeps_to_its_grant(
    tmp_path: Path, simulated: dict[str, str], uuid: bytes, theirs: str, first: bool
) -> None:
    number = itertools.count()

    def measure() -> list[float]:
        region = Region(
            tmp_path / f"grant-{next(number)}",
            limits=(LIMIT,),
            uuids=(uuid,),
            driver=regions.SIM,
            nvml=regions.SIM_NVML,
            physical=40 * GIB,
            flags=c.FLAG_ENFORCE_MEMORY | c.FLAG_ENFORCE_SM,
        )
        limits = c.PolicyDevice.from_buffer_copy(region.policy.dev[0])
        limits.share_ppm = SHARE_PPM
        assert (
            region.lib.sluice_policy_set_limits(
                ctypes.byref(region.policy), 0, ctypes.byref(limits)
            )
            == 0
        )
        ours = regions.BUILD / "preload" / "libsluice.so"
        order = [preload(theirs), ours] if first else [ours, preload(theirs)]
        tenant = subprocess.Popen(
            [
                places.TENANT,
                "--kernel-ns",
                "1000000",
                "--launches",
                "200",
                "--warm",
                "0",
                "--hold",
                str(LIMIT * 2),
                "--alloc",
                str(LIMIT // 2),
            ],
            env=region.environment(
                **simulated,
                LD_PRELOAD=":".join(map(places.preloaded, order)),
                LD_LIBRARY_PATH=str(regions.BUILD / "shim"),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        ahead(tenant.pid)
        out, err = tenant.communicate(timeout=120)
        assert tenant.returncode == 0, err
        assert err == ""
        got = json.loads(out.splitlines()[-1])
        assert got["hold_result"] == 2, "twice the grant is refused"
        assert got["alloc_result"] == 0
        assert got["total_bytes"] == LIMIT
        assert region.total("launches") == 200
        assert region.total("throttled_ns") > 0
        assert region.total("consumed_ns") == pytest.approx(200e6, rel=0.1), (
            "each launch charged once"
        )
        if theirs == "fake_time":
            # The program believes ten times as much time has passed; the share is of the real one.
            got["wall_ns"] /= 10
        return [got["gpu_ns"] / got["wall_ns"]]

    shares(measure, [SHARE_PPM / 1e6], 0.04)
