"""`sluice uncount`: takes the sums that the daemon keeps in a Node out of it again.

For an uninstall: the daemon itself leaves them there, since pods are placed while it restarts. Run
it when the daemon is gone, or has kubelet.advertise_sums = false: a running one writes them again.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from nodeagent.adapters.host.config_files import load
from nodeagent.assembly.cluster import access_of
from nodeagent.cli.session import complain, print_json
from nodeagent.core.kubelet.sums import ANNOTATION
from nodeagent.paths import host_name
from nodeagent.settings.daemon import ConfigError

EXIT_REFUSED = 1
EXIT_MISTAKES = 2
EXIT_UNREACHABLE = 69


def uncount(options: argparse.Namespace, environment: dict[str, str]) -> int:
    try:
        loaded = load(
            Path(options.config) if options.config else None,
            host=host_name(environment),
            node=options.node,
        )
    except ConfigError as error:
        for problem in error.problems:
            complain(f"uncount: {problem}")
        return EXIT_MISTAKES
    access, why = access_of(loaded.kubelet.config, environment)
    if access is None:
        complain(f"uncount: no access to an API server: {why}")
        return EXIT_UNREACHABLE
    from nodeagent.adapters.kubelet.cluster import uncount as take_away

    done, problems = asyncio.run(
        take_away(access, "" if options.all_nodes else loaded.node, ANNOTATION)
    )
    if options.json:
        print_json({"nodes": done, "problems": problems})
    else:
        for node, names in done.items():
            print(f"{node}: {', '.join(names)} not counted any more")
        if not done and not problems:
            print("nothing was counted")
    for problem in problems:
        complain(f"uncount: {problem}")
    return EXIT_REFUSED if problems else 0
