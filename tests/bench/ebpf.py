"""Cost of watching launches: our probe unattached and attached, a window of the audit at 10^5
launches a second, and for comparison a uprobe at the driver's entry that stays. In CPU time of the
launching thread."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nodeagent import native
from nodeagent.adapters.ebpf import audit as ebpf_audit
from nodeagent.adapters.ebpf import host as ebpf_host
from nodeagent.adapters.ebpf.kernel import Kernel, close_all
from nodeagent.adapters.ebpf.loaders.choose import Programs, load
from nodeagent.adapters.ebpf.watcher import Options
from nodeagent.ports.telemetry import AuditWindow
from tests.bench.entries import Entry, entry
from tests.ebpf.live import STAND_IN, live
from tests.kit.places import MESON

PLACE = MESON / "tests"
DRIVER = PLACE / "libprobe_driver.so"
SHIM = PLACE / "libprobe_shim.so"
AUDIT = Options(
    STAND_IN,
    audit_interval_s=10.0,
    audit_window_s=0.1,
    audit_budget_ratio=0.01,
    loader="auto",
    prebuilt=str(native.locate().bpf_object),
    pins="sluice-bench",
)
"""The defaults of [ebpf]."""


LOADS = {
    "prebuilt": "import sys, pathlib; from nodeagent.adapters.ebpf.loaders import prebuilt as loader;"
    " loader.load(pathlib.Path(sys.argv[1]), None)",
    "bcc": "from nodeagent.adapters.ebpf.loaders import bcc as loader; loader.load()",
}
PRINT_PEAK = (
    "lines = open('/proc/self/status').read().splitlines();"
    " print(*(int(one.split()[1]) / 1024 for one in lines if one.startswith('VmHWM')))"
)
"""The process prints its own peak, since the peak in the rusage that it inherits is its
parent's."""


@dataclass(frozen=True)
class Slice:
    """20 ms of a paced run."""

    began_ns: int
    ended_ns: int
    cpu_ns: int
    launches: int


class Bench:
    """tests/bench/programs/probebench.c."""

    def __init__(self, mode: str, amount: str) -> None:
        self.process = subprocess.Popen(
            [PLACE / "probebench", DRIVER, SHIM, mode, amount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def added_ns(self) -> list[float]:
        """Time that the probe adds to one launch, in ns, one figure per pair of batches."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        pairs = json.loads(self.process.stdout.readline())["pairs"]
        return [probed - bare for probed, bare in pairs]

    def slices(self) -> list[Slice]:
        out, _ = self.process.communicate()
        return [Slice(*(int(word) for word in line.split())) for line in out.splitlines()]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def run(quick: bool) -> list[Entry]:
    missing = ebpf_host.missing()
    if missing:
        told = "; ".join(finding.what for finding in missing)
        print(f"bench: NO FIGURES OF eBPF HERE: {told}", file=sys.stderr)
        return []
    compared = loaders(3 if quick else 10)
    programs = asyncio.run(load(AUDIT.loader, Path(AUDIT.prebuilt)))
    kernel = Kernel()
    return [
        *compared,
        *usdt(kernel, programs, 20 if quick else 100),
        permanent(kernel, programs),
        *window(15.0 if quick else 45.0),
    ]


def loaders(rounds: int) -> list[Entry]:
    """Time until the programs are loaded, and the peak memory of each loader; no entries where a
    loader is missing."""
    took: dict[str, list[float]] = {}
    peak_mib: dict[str, float] = {}
    for loader, loads in LOADS.items():
        if ebpf_host.missing(loader):
            print(f"bench: no figures of the eBPF loader {loader} here", file=sys.stderr)
            return []
        took[loader] = []
        for _ in range(rounds):
            began_s = time.monotonic()
            programs = asyncio.run(load(loader, Path(AUDIT.prebuilt)))
            took[loader].append(time.monotonic() - began_s)
            close_all(list(programs.fds.values()))
        peak_mib[loader] = float(
            subprocess.run(
                [sys.executable, "-c", f"{loads}; {PRINT_PEAK}", AUDIT.prebuilt],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
    bcc_s = statistics.median(took["bcc"])
    return [
        entry("ebpf_load_seconds", "s", took["prebuilt"], baseline=bcc_s),
        entry("ebpf_loader_rss_mib", "MiB", [peak_mib["prebuilt"]], baseline=peak_mib["bcc"]),
    ]


def usdt(kernel: Kernel, programs: Programs, rounds: int) -> list[Entry]:
    bench = Bench("pairs", str(rounds))
    try:
        idle = bench.added_ns()
        attached = ebpf_audit.attach_shim(kernel, programs.fds, str(SHIM))
        try:
            busy = bench.added_ns()
        finally:
            attached.close()
    finally:
        bench.close()
    return [
        entry("usdt_unattached_ns", "ns", idle, target="<= 1"),
        entry("usdt_attached_ns", "ns", busy),
    ]


def permanent(kernel: Kernel, programs: Programs) -> Entry:
    """A uprobe at the driver's entry all the time, as a part of the time of 10^5 launches a second."""
    bare = per_launch_ns(Bench("pace", "1").slices())
    attached = ebpf_audit.attach_driver(kernel, programs.fds, str(DRIVER))
    try:
        probed = per_launch_ns(Bench("pace", "1").slices())
    finally:
        attached.close()
    ratios = [(value - statistics.median(bare)) / statistics.median(bare) for value in probed]
    return entry("uprobe_permanent_cost_ratio", "ratio", ratios, baseline=0.0)


def per_launch_ns(slices: list[Slice]) -> list[float]:
    return [one.cpu_ns / one.launches for one in slices]


def window(seconds: float) -> list[Entry]:
    """The audit as it is by default, over several of its windows; and the child that does it."""
    with live(AUDIT) as watch:
        bench = Bench("pace", f"{seconds:g}")
        watch.say(watch.watch.watch_processes, [bench.process.pid])
        slices = bench.slices()
        windows = watch.found(
            AuditWindow, lambda w: any(p.pid == bench.process.pid for p in w.processes)
        )
        resident = rss_mib(watch.watch.status().pid or 0)
    ratios = lost(slices, [(int(w.began_ns), int(w.began_ns) + int(w.length_ns)) for w in windows])
    return [
        entry("uprobe_window_cost_ratio", "ratio", ratios, value=sum(ratios), target="<= 0.01"),
        entry("ebpf_child_rss_mib", "MiB", [resident], target="<= 180"),
    ]


def lost(slices: list[Slice], windows: list[tuple[int, int]]) -> list[float]:
    """Part of the whole run's CPU time that each window took: what its launches cost more than
    those of slices far from any window."""
    edge_ns = 100_000_000  # attaching and detaching
    near: Callable[[Slice, tuple[int, int]], bool] = lambda one, w: (  # noqa: E731  # used twice
        one.ended_ns > w[0] - edge_ns and one.began_ns < w[1] + edge_ns
    )
    quiet = [one for one in slices if not any(near(one, w) for w in windows)]
    usual_ns = statistics.median(per_launch_ns(quiet))
    # As many launches as the run would have had: what is lost is lost from those.
    total_ns = sum(one.cpu_ns for one in slices)
    return [
        sum(one.cpu_ns - one.launches * usual_ns for one in slices if near(one, w)) / total_ns
        for w in windows
    ]


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0
