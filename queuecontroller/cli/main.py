"""Entry point of `sluice-queue VERB …`: calls the verb's module; only that module is imported.

A verb is a row of VERBS and a module with `configure(parser)`, which declares its options, and
`run(options)`, which returns the exit status. `sluice queue VERB …` is this same command.

Exit status: 0 done, 1 the answer is no (refused, not found, a problem found), 2 bad usage or bad
input, 69 the service does not answer, 74 the output could not be written (the request itself was
carried out), 130 interrupted. `serve` has exit statuses of its own.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

from queuecontroller.version import version

EXIT_NO: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 69
EXIT_OUTPUT: Final = 74
EXIT_INTERRUPTED: Final = 130

VERBS: Final[dict[str, tuple[str, str]]] = {
    "serve": ("serve", "Run the queue controller in the foreground."),
    "apply": ("apply", "Apply queues, flavors and priorities; submit jobs."),
    "get": ("get", "List objects, or show one; --watch streams their changes."),
    "describe": ("describe", "Show everything about one object."),
    "explain": ("explain", "Explain why a workload is pending and what would have to change."),
    "simulate": ("simulate", "Simulate manifests and a trace of arrivals in virtual time."),
    "lint": ("lint", "Find errors across a set of manifests."),
    "top": ("top", "Watch nodes, GPUs and queues in the terminal."),
    "completion": ("completion", "Print a completion script for a shell."),
    "web": ("web", "Open the web page: prints a URL that works once."),
    "export": ("export", "Write queues and workloads as manifests, to import them elsewhere."),
    "import": ("import_", "Migrate from Kueue, or import an export; inspect a running HAMi."),
    "hold": ("change", "Stop admitting workloads to a queue, or stop a workload."),
    "resume": ("change", "Undo hold."),
    "delete": ("change", "Delete objects; a running workload is stopped first."),
}
"""Name: (module in queuecontroller.cli.commands, help line), in the order `--help` shows them."""
BEFORE_VERB: Final = ("--server", "--ca", "--certificate", "--key", "--token-file", "--server-name")
"""Options of every verb that calls the service; accepted before the verb too, like kubectl's."""


def main(arguments: Sequence[str] | None = None) -> int:
    words = _verb_first(list(sys.argv[1:] if arguments is None else arguments))
    if words and words[0] in VERBS:
        return _call(words[0], words[1:])
    parser = _overview()
    parser.parse_args(words)
    parser.print_help(sys.stderr)
    return EXIT_USAGE


def _verb_first(words: list[str]) -> list[str]:
    """`sluice-queue --server ADDRESS get nodes` is `sluice-queue get --server ADDRESS nodes`."""
    at = 0
    while at < len(words) and words[at].partition("=")[0] in BEFORE_VERB:
        at += 1 if "=" in words[at] else 2
    return [words[at], *words[:at], *words[at + 1 :]] if 0 < at < len(words) else words


def _call(name: str, words: Sequence[str]) -> int:
    module_name, help_ = VERBS[name]
    # gRPC's core would write its own log lines beside ours; it reads this variable on import.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _prepare_output()
    module = importlib.import_module(f"queuecontroller.cli.commands.{module_name}")
    parser = argparse.ArgumentParser(prog=f"sluice-queue {name}", description=help_)
    parser.set_defaults(verb=name)
    module.configure(parser)
    options = parser.parse_args(words)
    try:
        status: int = module.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `sluice-queue get workloads | head`
        _drop_output()
        return 0
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        print(
            f"sluice-queue: {name}: the current directory was deleted: cd to another",
            file=sys.stderr,
        )
        return EXIT_USAGE
    except OSError as error:
        if error.filename is not None:
            raise
        _drop_output()
        print(f"sluice-queue: {name}: cannot write: {error.strerror}", file=sys.stderr)
        return EXIT_OUTPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _prepare_output() -> None:
    if sys.stdout is None:  # The caller closed it, so no output is wanted.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the end
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # The locale may lack a name's letters.


def _drop_output() -> None:
    """Send output that is still buffered to /dev/null, so that Python reports no second error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _overview() -> argparse.ArgumentParser:
    width = max((len(name) for name in VERBS), default=0)
    lines = [f"  {name:{width}}  {help_}" for name, (_, help_) in VERBS.items()]
    parser = argparse.ArgumentParser(
        prog="sluice-queue",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Queue jobs for GPU shares: quotas, cohorts, priorities, preemption.",
        epilog="\n".join(["verbs:", *lines, "", "`sluice-queue VERB --help` explains a verb."]),
    )
    parser.add_argument("--version", action="version", version=f"sluice-queue {version()}")
    parser.add_argument("verb", metavar="VERB", choices=list(VERBS), nargs="?")
    return parser
