"""The commands of `sluice` and their options; each names the module that carries it out."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from nodeagent import native
from nodeagent.cli import arguments as read
from nodeagent.core.grants.quantities import CORES_FORM, MEMORY_FORMS
from nodeagent.ports.clients import MemoryAsk
from nodeagent.units import Injection, Ppm, SharePolicy
from sluicecommon.hami.names import GPU

GRANT_FORM = "id, beginning of an id, or name"
PRIORITY_FORM = "a higher one goes first on a GPU both are active on (default: 0)"

Command = Callable[..., argparse.ArgumentParser]
"""Adds one: its name, the module below nodeagent.cli, what it is for."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sluice",
        description="Share a GPU between several jobs: memory caps, compute shares.",
        epilog="`sluice COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"sluice {native.version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(
        name: str, module: str, help_: str, among: Any = commands
    ) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = among.add_parser(name, help=help_, description=help_)
        sub.set_defaults(module=module)
        if name not in ("version", "config", "uncount", "completion"):
            sub.add_argument(
                "--socket",
                type=read.path,
                metavar="PATH",
                help="the daemon's socket (default: $SLUICE_SOCKET, then this user's own daemon,"
                " then /run/sluice/sluice.sock)",
            )
        if name != "run":
            sub.add_argument("--json", action="store_true", help="print JSON")
        return sub

    commands.add_parser("serve", help="run the node's daemon in the foreground")
    commands.add_parser("queue", help="the queue: jobs, quotas, priorities (sluice-queue)")
    _add_run(command)
    _add_shows(command)
    _add_held(command)
    _add_trace(command)
    _add_changes(command)
    _add_mig(commands, command)
    _add_selftest(command)
    _add_config(command)
    _add_uninstall(command)
    _add_uncount(command)
    _add_doctor(command)
    command("version", "grants.show", "Print the version.")
    return parser


def _add_run(command: Command) -> None:
    run = command("run", "grants.run", "Run a command with a share of a GPU.")
    run.add_argument(
        "--gpus", type=read.gpus, default=1, metavar="N", help="number of GPUs (default: 1)"
    )
    run.add_argument(
        "--gpu-uuid",
        action="append",
        default=[],
        metavar="UUID",
        help="exactly this GPU; repeat for several",
    )
    run.add_argument(
        "--gpumem",
        type=read.memory,
        default=MemoryAsk(part_ppm=Ppm(1_000_000)),
        metavar="SIZE",
        help=f"GPU memory on each GPU: {MEMORY_FORMS.replace('%', '%%')} (default: all of it)",
    )
    run.add_argument(
        "--gpumem-request",
        type=read.memory,
        default=None,
        metavar="SIZE",
        help="guaranteed part of --gpumem; the rest is borrowed while idle (default: all of it)",
    )
    run.add_argument(
        "--cores",
        type=read.cores,
        default=Ppm(1_000_000),
        metavar="PERCENT",
        help=f"{CORES_FORM} (default: 100)",
    )
    run.add_argument(
        "--policy",
        type=read.one_of(SharePolicy),
        choices=list(SharePolicy),
        default=SharePolicy.HARD,
        help="hard: never above the share; elastic: the whole GPU while alone; exclusive: a GPU"
        " without other grants (default: hard)",
    )
    run.add_argument("--priority", type=read.priority, default=0, metavar="N", help=PRIORITY_FORM)
    run.add_argument(
        "--gang",
        action="store_true",
        help="it is one rank of a job on several nodes: no windows, so that its ranks do not wait"
        " for each other's; beside other grants it costs about a tenth of the GPU",
    )
    run.add_argument(
        "--trusted-group",
        default="",
        metavar="NAME",
        help="with your other grants of this group under your MPS server: memory caps, no windows,"
        " and one fatal fault ends all of them (grants.trusted_groups)",
    )
    run.add_argument("--name", default="", help="shown in `sluice ps`, usable in place of the id")
    run.add_argument(
        "--wait",
        type=read.seconds,
        default=0.0,
        metavar="SECONDS",
        help="wait this long for a free share (default: fail at once)",
    )
    run.add_argument(
        "--queue",
        metavar="NAME",
        help="wait for quota in this LocalQueue, NAME or NAMESPACE/NAME, without limit"
        " unless --wait sets one; Ctrl-C withdraws the request",
    )
    run.add_argument(
        "--priority-class",
        default="",
        metavar="NAME",
        help="with --queue: a WorkloadPriorityClass",
    )
    run.add_argument(
        "--preempted",
        "--on-preemption",
        choices=["stop", "pause", "checkpoint"],
        default="",
        help="with --queue: what to do with it when it is preempted (default: the queue's setting,"
        " else stop)",
    )
    run.add_argument(
        "--max-time",
        type=read.seconds,
        default=0.0,
        metavar="SECONDS",
        help="with --queue: stop it after this long (default: never)",
    )
    run.add_argument(
        "--inject",
        type=read.one_of(Injection),
        choices=list(Injection),
        default=Injection.AUTO,
        help="mount: our libcuda over the driver's in a mount namespace of its own (needs root);"
        " environment: LD_LIBRARY_PATH and LD_PRELOAD; auto: mount where possible (default)",
    )
    run.add_argument("--quiet", action="store_true", help="print nothing while waiting")
    run.add_argument(
        "argv",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND …",
        help="the command and its options",
    )


def _add_shows(command: Command) -> None:
    ps = command("ps", "grants.show", "List grants.")
    ps.add_argument(
        *("-o", "--output"),
        default="",
        choices=["wide"],
        help="wide: full names and IDs, the GPU's UUID and context switch, turn, priority,"
        " workload",
    )
    top = command("top", "grants.show", "Show GPUs and grants, refreshed until interrupted.")
    _repeats(top)

    top.add_argument(
        "--sort",
        default="",
        choices=["memory", "sm", "name", "gpu", "age"],
        help="order of grants and processes (default: oldest grant first)",
    )
    top.add_argument(
        "--filter",
        default="",
        metavar="TEXT",
        help="only grants with TEXT in name, id, user, state, workload, command; or gpu0",
    )
    top.add_argument("--processes", action="store_true", help="also every process on the GPUs")
    top.add_argument(
        "--cluster",
        action="store_true",
        help="show all nodes and queues instead, as `sluice-queue top` does (server:"
        " $SLUICE_QUEUE_SERVER)",
    )
    completion = command(
        "completion",
        "completion",
        "Print the completion script of a shell.",
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell")
    web = command("web", "grants.show", "Print a URL of the web page that works once.")
    web.add_argument(
        "--open", action="store_true", help="open it in this machine's browser as well"
    )
    events = command(
        "events", "grants.show", "List events of this node: detections, responses, GPU faults."
    )
    events.add_argument(
        "-f", "--follow", action="store_true", help="stream new events until interrupted"
    )
    events.add_argument(
        "--kind",
        default="",
        choices=read.EVENT_KINDS,
        metavar="KIND",
        help=f"only events of this kind: {', '.join(read.EVENT_KINDS)}",
    )


def _add_held(command: Command) -> None:
    contained = command(
        "contained",
        "watch.contained",
        "List processes and containers that a detection throttled, froze or refused GPUs.",
    )
    uncontain = command(
        "uncontain", "watch.contained", "Release what is listed by `sluice contained`; for root."
    )
    uncontain.add_argument(
        "numbers",
        nargs="*",
        type=read.number,
        metavar="NUMBER",
        help="NUMBER from `sluice contained`",
    )
    uncontain.add_argument("--all", action="store_true", help="release all of them")
    for one in (contained, uncontain):
        one.add_argument(
            "--config",
            type=read.file,
            metavar="FILE",
            help="the daemon's settings, to find its ledger while it does not run (default:"
            " /etc/sluice/sluice.toml if it exists)",
        )


def _add_trace(command: Command) -> None:
    trace = command("trace", "grants.trace", "Show the kernel launches of one process; for root.")
    trace.add_argument("pid", type=read.pid, metavar="PID", help="a process of a grant")
    _repeats(trace)


def _add_changes(command: Command) -> None:
    resize = command("resize", "grants.change", "Change the limits of a running grant.")
    resize.add_argument("grant", metavar="GRANT", help=GRANT_FORM)
    resize.add_argument("--gpumem", type=read.memory, metavar="SIZE", help="GPU memory on each GPU")
    resize.add_argument("--cores", type=read.cores, metavar="PERCENT", help=CORES_FORM)
    resize.add_argument(
        "--policy",
        type=read.one_of(SharePolicy),
        choices=list(SharePolicy),
        help="as for `sluice run`",
    )
    resize.add_argument("--priority", type=read.priority, metavar="N", help=PRIORITY_FORM)
    pause = command(
        "pause", "grants.change", "Pause a grant's kernel launches; its memory stays on the GPU."
    )
    pause.add_argument("grant", metavar="GRANT", help=GRANT_FORM)
    pause.add_argument(
        "--spill",
        action="store_true",
        help="move its GPU memory to host memory, which frees it for others until `sluice"
        " resume`; needs a driver that makes checkpoints, see `sluice doctor`",
    )
    for name, help_ in (
        ("resume", "Resume a paused grant, with its memory back on its GPUs."),
        ("release", "End a grant once its registered processes have ended; admit no new ones."),
    ):
        command(name, "grants.change", help_).add_argument(
            "grant", metavar="GRANT", help=GRANT_FORM
        )


def _add_selftest(command: Command) -> None:
    selftest = command(
        "selftest",
        "selftest.interposer",
        "Try the known ways to bypass a part of Sluice and report which were stopped.",
    )
    selftest.add_argument(
        "part",
        choices=["interposer", "grant"],
        help="what to test: the interposer of this node, or the grant that this command runs in",
    )
    selftest.add_argument(
        "--gpumem",
        type=read.memory,
        metavar="SIZE",
        help="grant: requested memory on each GPU; another cap is a failure",
    )
    selftest.add_argument(
        "--cores",
        type=read.cores,
        metavar="PERCENT",
        help="grant: requested share; another share is a failure",
    )
    selftest.add_argument(
        "--seconds",
        type=read.seconds,
        default=3.0,
        metavar="S",
        help="grant: how long the share is measured, and twice more while it differs;"
        " 0: not at all (default: 3)",
    )
    selftest.add_argument(
        "--inject",
        type=read.one_of(Injection),
        choices=list(Injection),
        default=Injection.AUTO,
        help="as for `sluice run` (default: auto)",
    )


def _add_config(command: Command) -> None:
    config = command(
        "config", "config", "Check the configuration as the daemon would read it, and print it."
    )
    config.add_argument("part", choices=["check"], help="what to do")
    config.add_argument(
        "--config",
        type=read.path,
        metavar="FILE",
        help="the daemon's settings (default: /etc/sluice/sluice.toml if it exists)",
    )
    config.add_argument(
        "--hami",
        type=read.path,
        action="append",
        default=[],
        metavar="FILE",
        help="a HAMi configuration file, after those of kubelet.hami; repeat for several",
    )
    config.add_argument(
        "--node", default="", metavar="NAME", help="check for this node (default: the local one)"
    )


def _add_uncount(command: Command) -> None:
    uncount = command(
        "uncount",
        "watch.uncount",
        "Remove this node's GPU sums from its Kubernetes Node (uninstall).",
    )
    uncount.add_argument(
        "--config",
        type=read.path,
        metavar="FILE",
        help="the daemon's settings (default: /etc/sluice/sluice.toml if it exists)",
    )
    uncount.add_argument(
        "--node", default="", metavar="NAME", help="another node (default: the local one)"
    )
    uncount.add_argument(
        "--all-nodes", action="store_true", help="every node that has GPU sums of Sluice"
    )


def _add_doctor(command: Command) -> None:
    doctor = command("doctor", "doctor", "Report what this host lacks and how to install it.")
    doctor.add_argument(
        "--dump",
        type=read.path,
        metavar="FILE",
        help="write the daemon's last events and decisions to FILE instead; for root",
    )


def _add_uninstall(command: Command) -> None:
    leave = command(
        "uninstall", "uninstall", "Remove what Sluice installed; `helm uninstall` calls this."
    )
    leave.add_argument(
        "part",
        choices=["agents", "node", "cluster"],
        help="agents: remove the DaemonSet once no pod uses its GPUs; node: remove everything of"
        " Sluice on this node; cluster: wait for all nodes, then remove their GPU sums",
    )
    leave.add_argument("--namespace", default="", metavar="NS", help="namespace of the DaemonSet")
    leave.add_argument(
        "--daemonset", default="", metavar="NAME", help="DaemonSet of the agents or of the cleaners"
    )
    leave.add_argument(
        "--test-pod",
        default="",
        metavar="NAME",
        help="pod of `helm test`, which agents removes first",
    )
    leave.add_argument(
        "--resource",
        default=GPU,
        metavar="NAME",
        help="resource name that pods request (default: nvidia.com/gpu)",
    )
    leave.add_argument(
        "--kubelet",
        type=read.path,
        default="/var/lib/kubelet",
        metavar="DIR",
        help="the kubelet's --root-dir",
    )
    leave.add_argument(
        "--cdi-dir", type=read.path, default="/var/run/cdi", metavar="DIR", help="kubelet.cdi_dir"
    )
    leave.add_argument(
        "--timeout",
        type=read.seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long to wait for pods (default: 120)",
    )


def _repeats(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--interval", type=read.seconds, default=1.0, metavar="SECONDS", help="default: 1"
    )
    command.add_argument(
        "-n",
        "--rounds",
        type=read.rounds,
        default=0,
        metavar="N",
        help="stop after N (default: never)",
    )


def _add_mig(commands: Any, command: Command) -> None:
    help_ = "Show or change the MIG geometry of GPUs."
    parts = commands.add_parser("mig", help=help_, description=help_).add_subparsers(
        dest="part", metavar="show | set", required=True
    )
    show = command(
        "show", "mig", "Show MIG mode, instances, their holders and what else fits.", parts
    )
    show.add_argument("--gpu", type=read.gpu, metavar="GPU", help="UUID or index (default: all)")
    set_ = command(
        "set",
        "mig",
        "Set the MIG geometry of an idle GPU; destroys its instances. For root.",
        parts,
    )
    set_.add_argument(
        "--gpu", type=read.gpu, required=True, metavar="GPU", help="UUID or index of the GPU"
    )
    set_.add_argument(
        "geometry",
        nargs="?",
        type=read.geometry,
        metavar="PROFILES",
        help="such as 1g.10gb,1g.10gb,3g.40gb or 7x1g.10gb; none: MIG on without instances",
    )
    set_.add_argument("--disable", action="store_true", help="no instances, and MIG mode off")
    set_.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would be done and which holders prevent it",
    )
    for sub in (show, set_):
        sub.set_defaults(command="mig")
        sub.add_argument(
            "-o", "--output", choices=["table", "json"], help="json: the same as --json"
        )
