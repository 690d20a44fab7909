"""`sluice-queue web`: prints a URL of the service's page that one browser can open once, soon."""

from __future__ import annotations

import argparse
import webbrowser

from queuecontroller.cli.files import complain
from queuecontroller.cli.session import Failed, add_endpoint, connect


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--open", action="store_true", help="also open it in this machine's browser"
    )
    add_endpoint(parser)


def run(options: argparse.Namespace) -> int:
    try:
        with connect(options) as client:
            url, valid_s = client.open_page()
    except Failed as failed:
        complain(str(failed))
        return failed.status
    print(url)
    complain(f"the URL works once, within {valid_s:g} s, and with your rights: keep it secret")
    if options.open:
        webbrowser.open(url)
    return 0
