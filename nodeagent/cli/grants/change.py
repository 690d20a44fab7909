"""`sluice resize | pause | resume | release`: change a grant while its job runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from nodeagent.adapters.api.client import Client
from nodeagent.cli.main import EXIT_USAGE
from nodeagent.cli.session import Failed, complain, connect, print_json
from nodeagent.cli.tables import grant_line
from nodeagent.ports.clients import ResizeAsk
from nodeagent.ports.views import GrantView


def resize(options: argparse.Namespace, environment: dict[str, str]) -> int:
    ask = ResizeAsk(
        memory=options.gpumem,
        share_ppm=options.cores,
        policy=options.policy,
        priority=options.priority,
    )
    if ask == ResizeAsk():
        complain("resize: nothing to change: give --gpumem, --cores, --policy or --priority")
        return EXIT_USAGE
    return _change(options, environment, lambda client: client.resize_grant(options.grant, ask))


def pause(options: argparse.Namespace, environment: dict[str, str]) -> int:
    if options.spill:
        return _change(options, environment, lambda client: client.spill_grant(options.grant))
    return _change(options, environment, lambda client: client.pause_grant(options.grant))


def resume(options: argparse.Namespace, environment: dict[str, str]) -> int:
    return _change(options, environment, lambda client: client.resume_grant(options.grant))


def release(options: argparse.Namespace, environment: dict[str, str]) -> int:
    return _change(options, environment, lambda client: client.release_grant(options.grant))


def _change(
    options: argparse.Namespace, environment: dict[str, str], do: Callable[[Client], GrantView]
) -> int:
    try:
        with connect(options, environment) as client:
            view = do(client)
    except Failed as failed:
        complain(f"{options.command}: {failed}")
        return failed.status
    if options.json:
        print_json(view)
    else:
        print(grant_line(view))
    return 0
