"""The daemon's process: arguments, configuration, logging, exit codes. `nodeagent.assembly` builds
the daemon itself.

`sluice serve` ends up here. Exit status: 0 stopped by a signal, 2 bad configuration, 69
something needed is missing or another daemon runs, 70 a defect, 75 the ledger cannot be written.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nodeagent.adapters.host.config_files import DEFAULT_CONFIG, load
from nodeagent.assembly.daemon import Makers, serve
from nodeagent.assembly.ground import Unavailable
from nodeagent.core.reload import Loaded
from nodeagent.paths import host_name
from nodeagent.ports.ledger import LedgerFull, LedgerLost
from nodeagent.settings.daemon import ConfigError
from nodeagent.shell.node import EXIT_LEDGER_LOST
from sluicecommon.logs import LineFormat

log = logging.getLogger("nodeagent")

EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 69


def main(arguments: Sequence[str] | None = None, makers: Makers = Makers()) -> int:  # noqa: B008
    options = make_parser().parse_args(arguments)
    environment = dict(os.environ)

    def read() -> Loaded:
        # In a pod the host name is the pod's; the chart gives the node's.
        return load(options.config, host_name(environment))

    try:
        loaded = read()
        if loaded.refused:
            raise ConfigError(list(loaded.kubelet.problems))
    except ConfigError as error:
        for problem in error.problems:
            print(f"sluice serve: {problem}", file=sys.stderr)
        return EXIT_USAGE
    start_logging(loaded.settings.daemon.log_level)
    if loaded.kubelet.config.enabled:
        for warning in loaded.kubelet.warnings:
            log.warning("%s", warning)
    try:
        return serve(loaded, environment, read, makers)
    except Unavailable as error:
        print(f"sluice serve: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except (LedgerLost, LedgerFull) as error:
        log.critical(
            "the ledger cannot be written: %s; daemon.state_dir has to be writable and its disk to"
            " have room; jobs go on under their limits",
            error,
        )
        return EXIT_LEDGER_LOST


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sluice serve", description="Run the node's daemon.")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"settings, see docs/reference/configuration.md (default: {DEFAULT_CONFIG}"
        " if it exists); `sluice config check` reads it without serving",
    )
    return parser


def start_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormat())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("asyncio", "grpc"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
