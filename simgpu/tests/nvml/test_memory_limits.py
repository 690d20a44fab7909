"""Memory limits by cgroup, as drivers have them from release 615 on: what they stop, what they show, and what they do
not count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.processes.cgroups import unified_root
from simgpu.tests.nvml.asking import GPUS, nvml, run
from tests.kit.node import until
from tests.kit.simulator.clients import Card, card

ROOT = unified_root()
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and their limits are root's"),
    pytest.mark.skipif(ROOT is None, reason="THIS HOST HAS NO UNIFIED CGROUPS: not tried"),
]

MIB = 1 << 20
MAX = (1 << 64) - 1
CONTEXT = 520 * MIB
LIMITS = """
def set_(path, soft, hard, card=0):
    return ask(lambda: n.nvmlDeviceSetMemoryLimits_v1(gpu(card), n.c_nvmlSetMemoryLimits_v1_t(path.encode(), soft, hard)))
def get(path, card=0):
    limits = n.c_nvmlGetMemoryLimits_v1_t(path.encode())
    said = ask(lambda: n.nvmlDeviceGetMemoryLimits_v1(gpu(card), limits))
    return said if isinstance(said, dict) else [limits.softLimit, limits.hardLimit, limits.currentUsed]
"""
TAKE = """
import ctypes, json, os, sys
from pathlib import Path
where, block, managed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "managed"
Path(where, "cgroup.procs").write_text(str(os.getpid()))
cuda = ctypes.CDLL("libcuda.so.1")
p, context = ctypes.c_uint64(), ctypes.c_void_p()
out = {"init": cuda.cuInit(0), "context": cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)}
free, total = ctypes.c_size_t(), ctypes.c_size_t()
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
out["free"], out["total"], out["got"], out["last"] = free.value, total.value, 0, 0
while out["got"] < 64 * block:
    size = ctypes.c_size_t(block)
    out["last"] = (cuda.cuMemAllocManaged(ctypes.byref(p), size, 1) if managed
                   else cuda.cuMemAlloc_v2(ctypes.byref(p), size))
    if out["last"]:
        break
    out["got"] += block
print(json.dumps(out), flush=True)
"""


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "gpu") as one:
        one.control("memory_limits=dmem")
        yield one


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """An outer one, with `pod/container` in it."""
    assert ROOT is not None
    outer = ROOT / f"sluice-limits-{os.getpid()}"
    (outer / "pod" / "container").mkdir(parents=True)
    yield outer
    for path in (outer / "pod" / "container", outer / "pod", outer):
        if path.exists():
            until(f"{path} is empty", lambda path=path: path.rmdir() is None)  # type: ignore[misc]  # bound now


def limits(gpus: Card, script: str) -> Any:
    return nvml(gpus, LIMITS + script)


def take(gpus: Card, where: Path, kind: str = "plain", block_mib: int = 64) -> dict[str, int]:
    answer: dict[str, int] = run(gpus, TAKE, str(where), str(block_mib * MIB), kind, cards=GPUS)
    return answer


def test_an_allocation_beyond_the_hard_limit_fails_and_the_context_counts(
    gpus: Card, cgroup: Path
) -> None:
    leaf = cgroup / "pod" / "container"
    limits(gpus, f"answer(set_({str(leaf)!r}, 0, {1024 * MIB}))")
    took = take(gpus, leaf)
    assert (took["context"], took["last"]) == (0, 2)
    assert took["got"] == (1024 * MIB - CONTEXT) // (64 * MIB) * 64 * MIB
    assert (took["total"], took["free"]) == (1024 * MIB, 1024 * MIB - CONTEXT)


def test_who_is_elsewhere_or_on_another_card_is_not_limited(gpus: Card, cgroup: Path) -> None:
    limits(gpus, f"answer(set_({str(cgroup / 'pod' / 'container')!r}, 0, {600 * MIB}, 1))")
    assert take(gpus, cgroup / "pod" / "container")["got"] == 64 * 64 * MIB
    assert take(gpus, cgroup)["got"] == 64 * 64 * MIB


def test_a_cgroup_made_inside_is_behind_the_same_wall(gpus: Card, cgroup: Path) -> None:
    limits(gpus, f"answer(set_({str(cgroup / 'pod')!r}, 0, {1024 * MIB}))")
    assert take(gpus, cgroup / "pod" / "container")["last"] == 2


def test_managed_memory_is_not_counted(gpus: Card, cgroup: Path) -> None:
    leaf = cgroup / "pod" / "container"
    limits(gpus, f"answer(set_({str(leaf)!r}, 0, {1024 * MIB}))")
    assert take(gpus, leaf, "managed")["got"] == 64 * 64 * MIB


def test_reading_shows_the_limits_and_no_limit_is_the_largest_number(
    gpus: Card, cgroup: Path
) -> None:
    leaf = str(cgroup / "pod" / "container")
    assert limits(
        gpus,
        f"a = get({leaf!r}); set_({leaf!r}, {100 * MIB}, {200 * MIB}); b = get({leaf!r}); set_({leaf!r}, 0, {MAX});"
        f" answer([a, b, get({leaf!r})])",
    ) == [[0, MAX, 0], [100 * MIB, 200 * MIB, 0], [0, MAX, 0]]


def test_a_soft_limit_is_added_to_what_is_around_and_stays_there_when_the_cgroup_is_removed(
    gpus: Card, cgroup: Path
) -> None:
    leaf, pod, outer = cgroup / "pod" / "container", cgroup / "pod", cgroup
    limits(gpus, f"answer(set_({str(leaf)!r}, {100 * MIB}, {200 * MIB}))")
    around = f"answer([get({str(pod)!r})[0], get({str(outer)!r})[0]])"
    assert limits(gpus, around) == [100 * MIB, 100 * MIB]
    assert limits(gpus, f"set_({str(leaf)!r}, 0, {200 * MIB}); {around}") == [0, 0]
    limits(gpus, f"answer(set_({str(leaf)!r}, {100 * MIB}, {200 * MIB}))")
    leaf.rmdir()
    assert limits(gpus, around) == [100 * MIB, 100 * MIB]
    assert limits(gpus, f"set_({str(pod)!r}, 0, {MAX}); {around}") == [0, 0]


def test_the_drivers_own_book_is_flat(gpus: Card, cgroup: Path) -> None:
    """The nearest limit counts, and nothing is added to what is around."""
    gpus.control("memory_limits=misc")
    leaf, pod = cgroup / "pod" / "container", cgroup / "pod"
    script = f"set_({str(pod)!r}, 0, {600 * MIB}); set_({str(leaf)!r}, {MIB}, {1024 * MIB}); answer(get({str(pod)!r}))"
    assert limits(gpus, script) == [0, 600 * MIB, 0]
    assert take(gpus, leaf)["got"] > 80 * MIB
    assert take(gpus, pod)["got"] == 64 * MIB


@pytest.mark.parametrize(
    ("path", "soft", "hard", "error"),
    [
        ("/nowhere/at/all", 0, MIB, 6),
        ("/tmp", 0, MIB, 6),
        ("relative", 0, MIB, 2),
        ("LEAF", 2 * MIB, MIB, 2),
    ],
    ids=["no such place", "no cgroup", "no full path", "guaranteed more than allowed"],
)
def test_what_cannot_be_set_is_refused(
    gpus: Card, cgroup: Path, path: str, soft: int, hard: int, error: int
) -> None:
    where = path.replace("LEAF", str(cgroup))
    assert limits(gpus, f"answer(set_({where!r}, {soft}, {hard}))") == {"error": error}


def test_others_than_root_may_read_and_not_set(gpus: Card, cgroup: Path) -> None:
    # No process finds the control file below pytest's own directory: the knob is in the environment, too.
    script = (
        "import os; os.environ['SLUICE_SIM_MEMORY_LIMITS'] = 'dmem'; os.setuid(65534);"
        f" time.sleep(0.03); answer([set_({str(cgroup)!r}, 0, {MIB}), get({str(cgroup)!r})])"
    )
    gpus.directory.chmod(0o777)
    for file in gpus.directory.iterdir():
        file.chmod(0o666)
    assert limits(gpus, f"n.nvmlDeviceGetCount(); {script}") == [{"error": 4}, [0, MAX, 0]]


def test_a_driver_without_them_says_so(gpus: Card, cgroup: Path) -> None:
    gpus.control("memory_limits=off")
    assert limits(gpus, f"answer([set_({str(cgroup)!r}, 0, {MIB}), get({str(cgroup)!r})])") == [
        {"error": 3},
        {"error": 3},
    ]
