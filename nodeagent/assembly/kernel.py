"""The kernel's watch: which one the settings want, and whether this host can have it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nodeagent.adapters.ebpf import host as ebpf_host
from nodeagent.adapters.ebpf.pins import pins_of
from nodeagent.adapters.ebpf.watch import ChildKernelWatch, NoKernelWatch
from nodeagent.adapters.ebpf.watcher import Options
from nodeagent.assembly.ground import Ground, Unavailable
from nodeagent.ports.telemetry import KernelWatch
from nodeagent.settings.daemon import EbpfSettings
from nodeagent.shell.gpus.drivers import Drivers
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.reading import Grants
from nodeagent.shell.watch.kernel import KernelWatchManager


def make_kernel(
    ebpf: EbpfSettings,
    ground: Ground,
    known: Callable[[], frozenset[str]],
    drivers: Drivers,
    grants: Grants,
    gpus: Gpus,
) -> KernelWatchManager:
    """Raises Unavailable where eBPF is demanded and not to be had."""
    prebuilt = ground.files.bpf_object
    missing = partial(ebpf_host.missing, ebpf.loader, prebuilt)
    if ebpf.enabled == "on" and (lacks := missing()):
        lacking = "; ".join(f"{finding.what}: {finding.remedy}" for finding in lacks)
        raise Unavailable(f'ebpf.enabled: is "on", but {lacking}')
    watch: KernelWatch = NoKernelWatch()
    if ebpf.enabled != "off":
        watch = ChildKernelWatch(
            Options(
                ebpf.devices,
                ebpf.audit_interval_s,
                ebpf.audit_window_ms / 1000,
                ebpf.audit_budget_percent / 100,
                ebpf.loader,
                str(prebuilt),
                pins=pins_of(ground.runtime),
                owner=str(ground.runtime),
            )
        )
    return KernelWatchManager(watch, grants, gpus, known, drivers, missing, ground.operator_uids)
