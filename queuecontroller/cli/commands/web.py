"""`sluice-queue web`: a URL of the service's page that one browser can open, once and soon."""

from __future__ import annotations

import argparse
import webbrowser

from queuecontroller.cli.files import complain
from queuecontroller.cli.session import Failed, add_door, connect


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--open", action="store_true", help="open it in this machine's browser as well"
    )
    add_door(parser)


def run(options: argparse.Namespace) -> int:
    try:
        with connect(options) as client:
            url, valid_s = client.open_page()
    except Failed as failed:
        complain(str(failed))
        return failed.status
    print(url)
    complain(f"it works once, within {valid_s:g} s; anybody who has it is you")
    if options.open:
        webbrowser.open(url)
    return 0
