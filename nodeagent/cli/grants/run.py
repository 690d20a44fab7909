"""`sluice run`: gets a grant for this very process, then becomes the command, so that exit
status and signals are its own.

The grant belongs to our pid, which exec keeps. The limits are in the region, which only the
daemon writes; the environment merely says where the region is, and the interposer refuses to
start CUDA without it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nodeagent import native
from nodeagent.adapters.api.client import Client
from nodeagent.adapters.checks import DRIVER, NVML, mps_control
from nodeagent.adapters.containers import injection, library_store
from nodeagent.cli.main import EXIT_USAGE
from nodeagent.cli.session import Away, Failed, complain, connect
from nodeagent.core.grants.quantities import format_bytes
from nodeagent.native import NativeFiles
from nodeagent.paths import library_dir
from nodeagent.ports.clients import GrantAsk, Granted, QueueAsk, Waiting
from nodeagent.ports.views import GrantView
from nodeagent.units import MIB, Bytes, GpuUuid, Injection

EXIT_NOT_STARTED = 125
EXIT_INTERRUPTED = 130
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
SHOWN_COMMAND = 256
AWAY_S = 5.0
"""How long a daemon that does not answer is tried: several times what a restart takes."""
QUEUED_AWAY_S = 60.0
"""The same for a job that the daemon may have submitted to a queue, possibly hours ago."""
AWAY_EVERY_S = 0.2
DRIVERS_BYTES = Bytes(1050 * MIB)
"""The driver's own memory in one process of PyTorch on an H200: context 518 MiB, the first kernel
92, code of a large model's kernels 440 (an estimate; 336 were measured), see
docs/results/2026-11-26-h200.md."""


def run(options: argparse.Namespace, environment: dict[str, str]) -> int:
    command = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not command or not command[0]:
        complain(
            "run: no command given; put it after the options: sluice run --cores 50 -- COMMAND"
        )
        return EXIT_USAGE
    if options.trusted_group and not mps_control(environment).exists():
        complain(
            f"run: --trusted-group: no MPS server: {mps_control(environment)} does not exist; start"
            " one with `nvidia-cuda-mps-control -d` and the same CUDA_MPS_PIPE_DIRECTORY"
        )
        return EXIT_USAGE
    inherited = _open_descriptors()
    files = native.locate()
    missing = files.missing()
    if missing:
        complain(
            f"run: {missing[0]} is missing: build or install sluice again, see `sluice doctor`"
        )
        return EXIT_NOT_STARTED
    try:
        driver, nvml = find_driver(environment, files)
        drivers = {DRIVER: driver, NVML: nvml}
        files = library_store.libraries(files, drivers, library_dir(environment))
        covered = _covers(options, environment, driver, nvml, files)
        kept = {cover.name: str(cover.kept) for cover in covered or ()}
        ask = GrantAsk(
            gpus=options.gpus,
            memory=options.gpumem,
            request=options.gpumem_request,
            share_ppm=options.cores,
            policy=options.policy,
            name=options.name,
            gpu_uuids=tuple(GpuUuid(uuid) for uuid in options.gpu_uuid),
            wait_s=options.wait,
            queue=_queue_ask(options),
            driver_path=kept.get(DRIVER, driver),
            nvml_path=kept.get(NVML, nvml),
            command=_printable(command),
            priority=options.priority,
            gang=options.gang,
            trusted_group=options.trusted_group,
        )
        grant = _await_grant(options, environment, ask)
    except Failed as failed:
        complain(f"run: {failed}")
        own = failed.status in (EXIT_USAGE, EXIT_INTERRUPTED)
        return failed.status if own else EXIT_NOT_STARTED
    if covered is not None:
        try:
            injection.inject(covered, Path(grant.directory))
        except OSError as error:
            complain(f"run: {error}; --inject environment does without mounts")
            return EXIT_NOT_STARTED
    if not options.quiet and (note := small_grant(grant)):
        complain(f"run: {note}")
    return become(command, tenant_environment(environment, grant, files), inherited)


def small_grant(grant: GrantView) -> str:
    """A note if the driver itself may need more memory for one process than the grant has; else
    empty. What programs then report is out of memory before their first tensor."""
    smallest = min((device.memory_limit_bytes for device in grant.devices), default=DRIVERS_BYTES)
    if smallest >= DRIVERS_BYTES:
        return ""
    return (
        f"note: the grant has {format_bytes(smallest)} of GPU memory, and the driver itself takes"
        f" up to {DRIVERS_BYTES // MIB} MiB for each process (context, kernels' code), see"
        " docs/node/memory.md; --quiet suppresses this"
    )


def _covers(
    options: argparse.Namespace,
    environment: Mapping[str, str],
    driver: str,
    nvml: str,
    files: NativeFiles,
) -> list[injection.Cover] | None:
    """Libraries to mount over the driver's; None for injection by environment."""
    if options.inject is Injection.ENVIRONMENT:
        return None
    why = injection.possible()
    if why is not None:
        if options.inject is Injection.MOUNT:
            raise Failed(EXIT_NOT_STARTED, f"--inject mount is not possible here: {why}")
        return None
    return injection.covers(environment, driver, nvml, files)


def find_driver(environment: Mapping[str, str], files: NativeFiles) -> tuple[str, str]:
    """Finds the driver as injection.find_driver does. Raises Failed."""
    try:
        return injection.find_driver(environment, files)
    except FileNotFoundError as error:
        raise Failed(EXIT_NOT_STARTED, str(error)) from error


def tenant_environment(
    environment: Mapping[str, str], grant: GrantView, files: NativeFiles
) -> dict[str, str]:
    """The command's environment: finds our libcuda first, and sees only its GPUs."""
    tenant = {name: value for name, value in environment.items() if name != "SLUICE_DRIVER"}
    tenant["SLUICE_GRANT_DIR"] = grant.directory
    tenant["CUDA_VISIBLE_DEVICES"] = ",".join(device.gpu for device in grant.devices)
    tenant["LD_LIBRARY_PATH"] = _first(str(files.shim_dir), environment.get("LD_LIBRARY_PATH"))
    tenant["LD_PRELOAD"] = _first(str(files.preload_library), environment.get("LD_PRELOAD"))
    return tenant


def become(command: list[str], environment: dict[str, str], inherited: frozenset[int]) -> int:
    """Returns only when the command cannot be started."""
    for descriptor in _open_descriptors() - inherited:
        try:
            os.set_inheritable(descriptor, False)
        except OSError:  # the one that listed them
            continue
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, programs expect not to
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        complain(f"run: {command[0]}: not found")
        return EXIT_NOT_FOUND
    except OSError as error:
        complain(f"run: {command[0]}: {error.strerror}")
        return EXIT_NOT_EXECUTABLE


def _await_grant(
    options: argparse.Namespace, environment: Mapping[str, str], ask: GrantAsk
) -> GrantView:
    """A daemon that is away is waited for: a restart takes a second or two, and the job need not
    notice. What waited in a queue is submitted again: the controller withdraws a workload whose
    daemon comes back without its waiting process."""
    began_s, began_unix_s = time.monotonic(), time.time()
    away_since_s: float | None = None
    most_s = AWAY_S
    wait = _Wait(options, ask.wait_s, began_s)
    try:
        while True:
            try:
                with connect(options, environment) as client:
                    if away_since_s is not None and (granted := _given(client, began_unix_s)):
                        return granted
                    for step in client.create_grant(_left_of(ask, time.monotonic() - began_s)):
                        if isinstance(step, Granted):
                            return step.view
                        away_since_s = None
                        wait.show(step)
                raise Failed(EXIT_NOT_STARTED, "the daemon gave no answer")
            except Away as away:
                now_s = time.monotonic()
                if away_since_s is None:
                    away_since_s = now_s
                    queued = ask.queue is not None and away.ended
                    most_s = QUEUED_AWAY_S if queued else AWAY_S
                    if not options.quiet:
                        text = str(away).split("; is it running?", 1)[0]
                        place = ", at the end of the queue" if queued else ""
                        complain(f"run: {text}; trying again for {most_s:g} s{place}")
                if now_s - away_since_s >= most_s:
                    raise
                time.sleep(AWAY_EVERY_S)
    except KeyboardInterrupt:
        if ask.queue is None:
            raise
        raise Failed(EXIT_INTERRUPTED, "withdrawn from the queue") from None
    finally:
        wait.end()


def _left_of(ask: GrantAsk, passed_s: float) -> GrantAsk:
    """Continue an interrupted wait with the rest of its time; a wait without limit keeps none."""
    return replace(ask, wait_s=max(0.001, ask.wait_s - passed_s)) if ask.wait_s else ask


def _given(client: Client, since_unix_s: float) -> GrantView | None:
    """This process's grant, if the daemon ended after it made the grant and before it answered. An
    older one is that of a `sluice run` that executed this one, which has the same PID."""
    for grant in client.list_grants():
        ours = grant.pid == os.getpid() and grant.uid == os.getuid()
        if ours and grant.state == "active" and grant.created_unix_s >= since_unix_s:
            return grant
    return None


class _Wait:
    """Progress of a wait: one line that changes on a terminal, a line for each change elsewhere."""

    def __init__(self, options: argparse.Namespace, most_s: float, began_s: float) -> None:
        self._quiet = options.quiet
        self._live = sys.stderr.isatty() and not options.quiet
        self._width = shutil.get_terminal_size().columns if self._live else 0
        self._most_s = most_s
        self._began_s = began_s
        self.shown: Waiting | None = None

    def show(self, step: Waiting) -> None:
        if step != self.shown:
            self.shown = step
            if not self._quiet:
                _show_wait(step, time.monotonic() - self._began_s, self._most_s, self._width)

    def end(self) -> None:
        if self._live and self.shown is not None:
            print(file=sys.stderr)


def _show_wait(step: Waiting, waited_s: float, most_s: float, width: int) -> None:
    """`width` 0: no terminal, a line for each piece of news."""
    text = wait_line(step, waited_s, most_s)
    if width:
        text = text if len(text) < width else text[: width - 2] + "…"
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def wait_line(step: Waiting, waited_s: float, most_s: float) -> str:
    """One line with the progress of the wait."""
    parts = ["sluice: waiting"]
    if step.position:
        line = f" of {step.waiting}" if step.waiting else ""
        parts.append(f"number {step.position} in line{line}")
    parts.append(f"{waited_s:.0f} of {most_s:g} s" if most_s else f"{waited_s:.0f} s")
    if step.estimate_s is not None:
        parts.append(f"about {step.estimate_s:.0f} s to go")
    if step.workload:
        parts.append(step.workload)
    reason = "".join(c if c.isprintable() else "?" for c in step.reason)
    return f"{', '.join(parts)}: {reason}"


def _queue_ask(options: argparse.Namespace) -> QueueAsk | None:
    """Raises Failed for options that go together with --queue only."""
    if options.queue is None:
        for name in ("priority_class", "preempted", "max_time"):
            if getattr(options, name):
                flag = name.replace("_", "-")
                raise Failed(EXIT_USAGE, f"--{flag} needs --queue")
        return None
    namespace, _, name = options.queue.rpartition("/")
    if not name or options.queue.startswith("/"):
        raise Failed(EXIT_USAGE, f"--queue {options.queue!r} is not NAME or NAMESPACE/NAME")
    return QueueAsk(
        queue=name,
        namespace=namespace,
        priority_class=options.priority_class,
        preempted=options.preempted,
        max_execution_s=options.max_time,
    )


def _printable(command: list[str]) -> str:
    text = "".join(c if c.isprintable() else "?" for c in shlex.join(command))
    return text if len(text) <= SHOWN_COMMAND else text[: SHOWN_COMMAND - 1] + "…"


def _first(ours: str, theirs: str | None) -> str:
    rest = [part for part in (theirs or "").split(":") if part and part != ours]
    return ":".join([ours, *rest])


def _open_descriptors() -> frozenset[int]:
    return frozenset(int(name) for name in os.listdir("/proc/self/fd"))
