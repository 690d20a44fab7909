"""`sluice selftest interposer`: tries every way around the interposer that needs no special
hardware, inside of real grants, and prints which limit stopped each.

HOOKED: the grant's memory limit held. WALLED: the interposer was bypassed, and the driver's own
limit held. DETECTED: no limit held, and the daemon noticed. NOT COVERED: no limit held, and the
daemon did not notice. NOT RUN: it could not be tried here. Exit status 1 if an attempt passes a
limit that should stop it: the interposer's with this host's injection, or the driver's if it is
set.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from nodeagent import native
from nodeagent.adapters.containers import injection
from nodeagent.cli.grants.run import find_driver
from nodeagent.cli.selftest import grant as grant_check
from nodeagent.cli.session import Failed, complain, connect, print_json
from nodeagent.units import Injection

LIMIT_BYTES: Final = 1 << 30
ATTEMPT_S: Final = 60.0
ATTEMPTS: Final = Path(__file__).with_name("attempts.py")

MOUNT, ANY, NEVER = "by mount", "always", "never"


@dataclass(frozen=True, slots=True)
class Row:
    number: str
    way: str
    what: str
    hooked: str
    """Injection with which this way should be hooked."""
    counted: bool = True
    """True if the driver counts what the attempt takes, so that its own limit stops it."""


MATRIX: Final = (
    Row("-", "by_name", "the usual way, for comparison", ANY),
    Row("B1", "cleared_environment", "environment cleared of everything of ours", MOUNT),
    Row("B1", "forged_region", "SLUICE_GRANT_DIR names a region of the program's own", MOUNT),
    Row("B4", "own_preload_first", "the driver itself in LD_PRELOAD", MOUNT),
    Row("B6", "by_path", "dlopen of the driver by its path", MOUNT),
    Row("B7", "symbol_walk", "own walk through the driver's symbol table", NEVER),
    Row("B8", "own_namespace", "dlmopen into a new link namespace", ANY),
    Row("B9", "own_copy", "a copy of the driver under another name", NEVER),
    Row("B9", "own_copy_managed", "such a copy, and managed memory", NEVER, counted=False),
    Row("B10", "deep_bind", "RTLD_DEEPBIND", ANY),
    Row("B11", "through_get_proc_address", "cuGetProcAddress, every version and flavour", ANY),
    Row("B12", "export_tables", "cuGetExportTable", ANY),
    Row("B16", "no_room_to_load", "so little address space that a library may not load", ANY),
    Row("B23", "written_limits", "writing the limits", MOUNT),
    Row("B25", "forged_counters", "zeroing its own counters", NEVER),
    Row("B26", "forked_child", "a child by fork without exec", ANY),
    Row("B27", "executed_child", "a child by exec", ANY),
    Row("B31", "managed_memory", "managed memory", ANY, counted=False),
    Row("B31", "pitched_memory", "pitched memory, by its padding", ANY),
    Row("B31", "arrays", "arrays", ANY),
    Row("B31", "mipmaps", "mipmapped arrays", ANY),
    Row("B31", "mapped_memory", "cuMemCreate, map, release", ANY),
    Row("B31", "pools", "stream-ordered allocation", ANY),
    Row("B31", "graph_memory", "memory nodes of graphs", ANY),
)

NOT_TRIED: Final = {
    "B3, B17": "static programs and private drivers access the device without any library",
    "B14, B15": "chroot and user namespaces are cases of B9 or B6",
    "B18, B19": "hiding from probes affects detection, not the limits",
    "B20": "programs of one user in one container are one trust domain",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """State of an attempt's grant in the daemon while the program still held its memory."""

    tampered: int = 0
    denied: int = 0
    """Number of allocations that the interposer refused."""
    wall_bytes: int | None = None
    """The driver's own limit; None if there is none."""
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    number: str
    way: str
    what: str
    verdict: str
    evidence: str
    as_documented: bool


def selftest(options: argparse.Namespace, environment: dict[str, str]) -> int:
    if options.part == "grant":
        return grant_check.check(options, environment)
    by_mount = options.inject is not Injection.ENVIRONMENT and injection.possible() is None
    if options.inject is Injection.MOUNT and not by_mount:
        complain(f"selftest: --inject mount is not possible here: {injection.possible()}")
        return 1
    results = []
    walls: list[Seen] = []
    try:
        driver, _ = find_driver(environment, native.locate())
        with connect(options, environment):
            pass
        if not driver:
            raise Failed(1, "no libcuda.so.1 on this host; see `sluice doctor`")
        for row in MATRIX:
            answer, seen = _attempt(options, environment, row, driver)
            walls.append(seen)
            if row.way == "by_name" and not answer.get("reached"):
                why = answer.get("note") or answer.get("not_run")
                raise Failed(1, f"CUDA does not start in a grant: {why}")
            results.append(judge(row, answer, seen, by_mount))
            if not options.json:
                _show(results[-1])
    except Failed as failed:
        complain(f"selftest: {failed}")
        return failed.status
    how = "mount" if by_mount else "environment"
    if options.json:
        print_json(
            {
                "injection": how,
                "walls": _walls(walls),
                "rows": [asdict(result) for result in results],
                "not_tried": NOT_TRIED,
            }
        )
    else:
        stand = _walls(walls)
        print(f"\ninjection by {how}; walls: {', '.join(w for w in stand if stand[w]) or 'none'}")
        closed = [result.what for result in results if result.verdict == "WALLED"]
        if closed:
            print(f"passed the interposer, stopped by the driver: {'; '.join(closed)}")
        open_ = [r.what for r in results if r.verdict in ("DETECTED", "NOT COVERED")]
        if open_:
            print(f"stopped by neither: {'; '.join(open_)}")
        print("not tried:")
        for numbers, why in NOT_TRIED.items():
            print(f"  {numbers}: {why}")
    return 0 if all(result.as_documented for result in results) else 1


def _attempt(
    options: argparse.Namespace, environment: Mapping[str, str], row: Row, driver: str
) -> tuple[dict[str, Any], Seen]:
    """Returns the output of the program in the grant, and the daemon's view of it."""
    name = f"selftest-{row.way}"
    with tempfile.TemporaryDirectory(prefix="sluice-selftest-") as directory:
        command = [
            *(sys.executable, "-I", "-m", "nodeagent.cli"),
            "run",
            *(["--socket", str(options.socket)] if options.socket else []),
            *("--gpumem", str(LIMIT_BYTES >> 20), "--cores", "100", "--policy", "elastic"),
            *("--inject", options.inject, "--name", name, "--wait", "30", "--quiet", "--"),
            *(sys.executable, "-I", str(ATTEMPTS), row.way, driver, directory),
        ]
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise Failed(1, f"{error.filename}: {error.strerror}") from None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            seen = _seen(options, environment, name) if line else Seen()
            _, errors = process.communicate(timeout=ATTEMPT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"not_run": f"no end after {ATTEMPT_S:g} s"}, Seen()
    if not line:
        last = errors.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        if process.returncode == 125:
            raise Failed(1, last[0])
        return {"reached": False, "allocated_bytes": 0, "note": f"ended: {last[0]}"}, Seen()
    answer: dict[str, Any] = json.loads(line)
    return answer, seen


def _walls(seen: Sequence[Seen]) -> dict[str, bool]:
    """Limits that were in force around the attempts, by name."""
    return {
        "interposer": True,
        "driver": any(one.wall_bytes is not None for one in seen),
        "MIG": any(one.gpu.startswith("MIG-") for one in seen),
    }


def _seen(options: argparse.Namespace, environment: Mapping[str, str], name: str) -> Seen:
    time.sleep(0.3)  # The daemon reads the counters several times a second.
    with connect(options, environment) as client:
        for grant in client.list_grants():
            if grant.name == name and grant.devices:
                device = grant.devices[0]
                return Seen(
                    grant.tamper_events_total,
                    device.denied_total,
                    device.wall_bytes,
                    device.gpu,
                )
    return Seen()


def judge(row: Row, answer: Mapping[str, Any], seen: Seen, by_mount: bool) -> Result:
    if "not_run" in answer:
        return Result(row.number, row.way, row.what, "NOT RUN", str(answer["not_run"]), True)
    got = int(answer["allocated_bytes"])
    evidence = f"{got / (1 << 20):,.0f} of {LIMIT_BYTES >> 20:,} MiB, {answer['note']}"
    # The driver's limit may stop an attempt earlier, since it counts the context too: the count of
    # refusals shows whether the interposer stopped it.
    refused = seen.wall_bytes is None or got == 0 or seen.denied > 0
    if got <= LIMIT_BYTES and refused:
        verdict = "HOOKED"
    elif seen.wall_bytes is not None and got <= seen.wall_bytes:
        verdict = "WALLED"
        evidence = f"{evidence}; the driver's limit: {seen.wall_bytes >> 20:,} MiB"
    elif seen.tampered:
        verdict, evidence = "DETECTED", f"{evidence}; {seen.tampered} tamper event(s)"
    else:
        verdict = "NOT COVERED"
    should = row.hooked == ANY or (row.hooked == MOUNT and by_mount)
    walled = seen.wall_bytes is not None and row.counted
    held = verdict == "HOOKED" or (verdict == "WALLED" and not should)
    return Result(row.number, row.way, row.what, verdict, evidence, held or not (should or walled))


def _show(result: Result) -> None:
    mark = "" if result.as_documented else "  <- should be held"
    print(
        f"{result.number:4} {result.what:52} {result.verdict:11} {result.evidence}{mark}",
        flush=True,
    )
