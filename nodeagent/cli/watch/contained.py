"""`sluice contained | uncontain`: what is held because of a suspicion, and letting it go.

Without a daemon both work on its ledger (by_hand.py): what it held stays held when it dies, and so
before the package is removed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence

from nodeagent.adapters.api.client import Client
from nodeagent.cli.main import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE
from nodeagent.cli.session import Failed, complain, connect, print_json
from nodeagent.cli.watch import by_hand
from nodeagent.paths import client_socket
from nodeagent.ports.views import ContainedView


def contained(options: argparse.Namespace, environment: dict[str, str]) -> int:
    return _answer(
        options,
        environment,
        lambda client: client.contained(),
        lambda: by_hand.contained(options.config, environment),
        "nothing is contained",
    )


def uncontain(options: argparse.Namespace, environment: dict[str, str]) -> int:
    if bool(options.numbers) == options.all:
        complain("uncontain: give numbers, as `sluice contained` has them, or --all")
        return EXIT_USAGE
    return _answer(
        options,
        environment,
        lambda client: client.let_go(options.numbers, options.all),
        lambda: by_hand.let_go(options.config, environment, options.numbers, options.all),
        "nothing was contained",
    )


def _answer(
    options: argparse.Namespace,
    environment: dict[str, str],
    ask: Callable[[Client], Sequence[ContainedView]],
    without: Callable[[], Sequence[ContainedView]],
    none: str,
) -> int:
    try:
        try:
            with connect(options, environment) as client:
                found = ask(client)
        except Failed as failed:
            if failed.status != EXIT_UNREACHABLE:
                raise
            found = without()
            if found or options.command == "contained":  # "nothing" may be another ledger's word
                where = client_socket(options.socket, environment)
                complain(
                    f"{options.command}: no daemon answers at {where}: this is from its ledger"
                )
    except Failed as failed:
        complain(f"{options.command}: {failed}")
        return failed.status
    except by_hand.NotDone as error:
        complain(f"{options.command}: {error}")
        return EXIT_REFUSED
    if options.json:
        print_json(list(found))
    else:
        print("\n".join(lines(found)) if found else none)
    return 0


def lines(found: Sequence[ContainedView]) -> Iterator[str]:
    yield f"{'NUMBER':>6} {'SINCE':19} {'STEP':10} {'RULE':22} TARGET"
    for one in found:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.since_unix_s))
        where = f", container {one.cgroup}" if one.cgroup else ""
        yield f"{one.number:6} {since} {one.step:10} {one.rule:22} {one.whom}{where}"
