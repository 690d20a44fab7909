"""Reads the command line of `sluice` and calls the command; heavy imports wait until a command
needs them.

Exit status: 0 done, 1 the daemon refused, 2 bad usage, 69 no daemon, 74 the output could not be
written (the request was carried out); `sluice run` has the command's own, or 125 when it could not
start it, 126 and 127 as shells do.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence

from nodeagent.cli.parser import make_parser

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 69
EXIT_OUTPUT = 74


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["serve"]:
        # A program of its own: what the daemon is made of is decided in its composition root.
        status: int = importlib.import_module("nodeagent.__main__").main(words[1:])
        return status
    if words[:1] == ["queue"]:
        return _queue(words[1:])
    _prepare_output()
    parser = make_parser()
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    environment = dict(os.environ)
    # gRPC's core writes to stderr when `sluice run` becomes its command while one of the core's
    # threads is just starting. Ours alone: the command gets the environment as it was.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    call: Callable[[argparse.Namespace, dict[str, str]], int] = importlib.import_module(
        f"nodeagent.cli.{options.module}"
    ).__dict__[options.command.replace("-", "_")]
    try:
        status = call(options, environment)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `sluice ps | head`
        _drop_output()
        return 0
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        print(
            f"sluice: {options.command}: the current directory is gone: cd to another",
            file=sys.stderr,
        )
        return EXIT_USAGE
    except OSError as error:
        if error.filename is not None:
            raise
        _drop_output()
        print(f"sluice: {options.command}: cannot write: {error.strerror}", file=sys.stderr)
        return EXIT_OUTPUT
    except KeyboardInterrupt:
        return 130


def _prepare_output() -> None:
    if sys.stdout is None:  # closed by a caller that wants no output
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the end
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without our arrows


def _drop_output() -> None:
    """Discards buffered output when Python ends, so that a closed pipe is not reported twice."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _queue(words: Sequence[str]) -> int:
    """Becomes `sluice-queue`, which is installed by itself: the two know nothing of each other."""
    beside = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "sluice-queue")
    try:
        if os.access(beside, os.X_OK):
            os.execv(beside, [beside, *words])
        os.execvp("sluice-queue", ["sluice-queue", *words])
    except OSError:
        print(
            "sluice: queue: there is no sluice-queue here; install the queue controller's package",
            file=sys.stderr,
        )
        return EXIT_UNREACHABLE
