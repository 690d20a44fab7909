"""The product end to end on a simulated node: daemon, interposer and programs that know nothing of them.

Shares have wide margins here; `make bench` measures them closely.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.kit.driver_memory import driver_memory
from tests.kit.measure import shares
from tests.kit.node import Node, running, until
from tests.kit.places import PRELOAD, REPO, SHIM, SIM, TENANT
from tests.kit.workplace import workplace

GIB = 2**30
WAIT = ("--wait", "30")
"""Time for earlier programs to be gone."""
DOORS = ["plain", "ex", "coop", "graph", "ptsz"]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory, running(directory, gpus="2xh100-80gb") as node:
        yield node
        until("every grant is gone", lambda: not node.grants())
        assert all(used == 0 for _, used in driver_memory(node)), "device memory left behind"


def gpu(node: Node, index: int) -> str:
    return next(str(g["uuid"]) for g in node.info()["gpus"] if g["index"] == index)


@pytest.mark.parametrize("door", DOORS)
def test_a_lone_hard_tenant_stays_at_its_share_through_every_door(node: Node, door: str) -> None:
    def measure() -> list[float]:
        job = node.run_tenant(
            f"door-{door}",
            *("--door", door, "--warm", "1", "--seconds", "2"),
            flags=("--gpumem", "4Gi", "--cores", "40"),
            measured=True,
        )
        return [job.result()["share_ratio"]]

    shares(measure, [0.40], 0.05)


@pytest.mark.parametrize(
    ("first_ns", "second_ns"),
    [(1_000_000, 1_000_000), (100_000, 5_000_000)],
    ids=["alike", "short beside long kernels"],
)
def test_two_tenants_on_one_gpu_get_what_they_were_promised(
    node: Node, first_ns: int, second_ns: int
) -> None:
    uuid = gpu(node, 0)

    def measure() -> list[float]:
        node.begin.unlink(missing_ok=True)
        jobs = [
            node.run_tenant(
                f"pair-{cores}",
                *(
                    "--kernel-ns",
                    str(ns),
                    "--warm",
                    "1.5",
                    "--seconds",
                    "3",
                    "--begin",
                    str(node.begin),
                ),
                flags=("--gpu-uuid", uuid, "--gpumem", "4Gi", "--cores", str(cores), *WAIT),
                measured=True,
            )
            for cores, ns in ((30, first_ns), (70, second_ns))
        ]
        node.begin_when(len(jobs))
        return [job.result()["share_ratio"] for job in jobs]

    shares(measure, [0.30, 0.70], 0.06)


def test_an_elastic_tenant_has_the_whole_gpu_while_alone(node: Node) -> None:
    def measure() -> list[float]:
        job = node.run_tenant(
            "elastic",
            *("--warm", "1", "--seconds", "2"),
            flags=("--gpumem", "4Gi", "--cores", "20", "--policy", "elastic"),
            measured=True,
        )
        return [job.result()["share_ratio"]]

    shares(measure, [1.0], 0.1)


def test_the_vendors_own_bindings_are_capped_the_same(node: Node) -> None:
    pytest.importorskip("cuda.bindings", reason="no wheel of cuda-bindings for this machine")

    def measure() -> list[float]:
        job = node.run(
            "foreign",
            sys.executable,
            REPO / "tests" / "programs" / "foreign.py",
            "1000000",
            "2",
            flags=("--gpumem", "8Gi", "--cores", "40"),
            measured=True,
        )
        got = job.result()
        assert got["total_bytes"] == 8 * GIB
        # 8 GiB less what the context takes.
        assert got["held_gib"] == 7
        assert got["refused"] == "CUDA_ERROR_OUT_OF_MEMORY"
        return [got["share_ratio"]]

    shares(measure, [0.40], 0.05)


@pytest.mark.parametrize(
    ("size", "want"), [("8Gi", 8 * GIB), ("8000", 8000 * 2**20), ("25%", None)]
)
def test_memory_is_written_as_people_write_it(node: Node, size: str, want: int | None) -> None:
    job = node.run_tenant("memory", "--launches", "1", flags=("--gpumem", size, "--cores", "10"))
    total = job.result()["total_bytes"]
    if want is None:
        want = node.info()["gpus"][0]["memory_total_bytes"] // 4
    assert abs(total - want) <= 2 * 2**20


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM)],
    ids=["0", "7", "SIGTERM"],
)
def test_the_exit_status_is_the_programs_own(node: Node, script: str, status: int) -> None:
    job = node.run("status", "/bin/sh", "-c", script, flags=("--gpumem", "1Gi", "--cores", "5"))
    assert job.process.wait(timeout=120) == status


def test_a_signal_to_sluice_run_reaches_the_program(node: Node) -> None:
    job = node.run(
        "signalled",
        "/bin/sh",
        "-c",
        'trap "echo got it; exit 3" USR1; echo ready; while :; do sleep 0.05; done',
        flags=("--gpumem", "1Gi", "--cores", "5"),
    )
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == "ready\n"
    job.process.send_signal(signal.SIGUSR1)
    assert job.process.wait(timeout=120) == 3
    assert job.process.stdout.readline() == "got it\n"


def test_a_child_and_its_parent_share_one_cap(node: Node) -> None:
    tenant = shlex.join([str(TENANT), "--launches", "5", "--hold", str(3 * GIB)])
    script = f"{tenant} --idle 30 & sleep 0 ; exec {tenant}"
    job = node.run("family", "/bin/sh", "-c", script, flags=("--gpumem", "5Gi", "--cores", "20"))
    assert job.process.stdout is not None
    answers = [json.loads(job.process.stdout.readline()) for _ in range(2)]
    job.kill()
    for grant in node.grants():
        node.cli("release", grant["grant"], check=False)
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] and process.info["cmdline"][:3] == [
            str(TENANT),
            "--launches",
            "5",
        ]:
            process.kill()
    assert sorted(answer["hold_result"] for answer in answers) == [0, 2], (
        "two times 3 GiB do not fit into 5 GiB"
    )


def test_pause_holds_launches_and_resume_lets_them_go(node: Node) -> None:
    said = node.directory / "said"
    job = node.run(
        "paused",
        *("/bin/sh", "-c", f"exec {TENANT} --seconds 3600 2>{said}"),
        flags=("--gpumem", "2Gi", "--cores", "50"),
    )

    def launches() -> int:
        grant = node.grant("paused")
        return int(grant["devices"][0]["launches_total"]) if grant else 0

    until("it runs", lambda: launches() > 50)
    node.cli("pause", "paused")
    until("it stands still", lambda: (a := launches()) and a == launches() and a == launches())
    stood = launches()
    # A second time says nothing new.
    for _ in range(2):
        node.cli("resume", "paused")
        until("it runs again", lambda least=stood + 50: launches() > least)
        node.cli("pause", "paused")
        until("it stands still", lambda: (a := launches()) and a == launches() and a == launches())
        stood = launches()
    assert said.read_text() == (
        f"sluice: launches wait in process {job.process.pid}: its grant is paused or held;"
        " `sluice ps` says why and how it goes on\n"
    )
    job.kill()


def test_without_its_region_a_program_gets_no_cuda_rather_than_unlimited_cuda(node: Node) -> None:
    job = node.run(
        "stripped",
        "/usr/bin/env",
        "-u",
        "SLUICE_GRANT_DIR",
        TENANT,
        "--launches",
        "1",
        flags=("--gpumem", "1Gi", "--cores", "5", "--inject", "environment"),
    )
    out, _ = job.process.communicate(timeout=120)
    assert job.process.returncode in (3, 4), "cuInit is not found, or fails"
    assert out == ""


@pytest.mark.parametrize(
    "variables",
    [{"LD_PRELOAD": ""}, {"LD_LIBRARY_PATH": str(SIM)}],
    ids=["shim only", "preload only"],
)
def test_shim_alone_and_preload_alone_both_enforce(node: Node, variables: dict[str, str]) -> None:
    assignments = [f"{name}={value}" for name, value in variables.items()]
    job = node.run(
        "one-way",
        "/usr/bin/env",
        *assignments,
        TENANT,
        "--launches",
        "5",
        "--alloc",
        str(3 * GIB),
        flags=("--gpumem", "2Gi", "--cores", "50"),
    )
    got = job.result()
    assert got["alloc_result"] == 2
    assert got["total_bytes"] == 2 * GIB
    assert SHIM.is_dir()
    assert PRELOAD.is_file()


def test_what_does_not_fit_is_refused_with_the_reason(node: Node) -> None:
    answer = node.cli("run", "--gpumem", "500Gi", "--cores", "10", "--", "true", check=False)
    assert answer.returncode != 0
    assert "500Gi" in answer.stderr
    assert answer.stderr.count("in all") == 2, "every GPU is named with what it has"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--gpumem", "lots"], "--gpumem"),
        (["--cores", "0"], "--cores"),
        (["--cores", "101"], "--cores"),
        (["--gpus", "0"], "--gpus"),
        (["--policy", "soft"], "--policy"),
    ],
)
def test_bad_flags_are_named(node: Node, flags: list[str], named: str) -> None:
    answer = node.cli("run", *flags, "--", "true", check=False)
    assert answer.returncode == 2
    assert named in answer.stderr


def test_metrics_tell_the_same_story(node: Node) -> None:
    job = node.run_tenant(
        "measured",
        "--launches",
        "200",
        "--hold",
        str(GIB),
        "--idle",
        "60",
        flags=("--gpumem", "3Gi", "--cores", "50"),
    )
    assert job.process.stdout is not None
    job.process.stdout.readline()

    def lines_of_the_grant() -> list[str]:
        return [line for line in node.metrics().splitlines() if 'name="measured"' in line]

    lines = until("the grant is in the metrics", lines_of_the_grant)
    limit = [line for line in lines if line.startswith("sluice_grant_memory_limit_bytes")]
    assert limit
    assert float(limit[0].rsplit(" ", 1)[1]) == 3 * GIB
    job.kill()


def test_doctor_says_what_is_there(node: Node) -> None:
    answer = node.cli("doctor", "--json", check=False)
    found = json.loads(answer.stdout)
    assert found, Path(node.directory)


def test_becoming_the_command_is_silent_and_leaves_its_environment_alone(node: Node) -> None:
    for _ in range(15):
        answer = node.cli(
            "run", "--gpumem", "2Gi", "--cores", "1", "--", "/bin/sh", "-c", "echo $GRPC_VERBOSITY"
        )
        assert (answer.stdout, answer.stderr) == ("\n", "")
