"""Helpers of all commands: reaching the daemon, and reporting a failure in one line."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from nodeagent import native
from nodeagent.adapters.api.client import Client, Closed, Ended, Unreachable
from nodeagent.adapters.api.wire import Wire
from nodeagent.cli.main import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE
from nodeagent.paths import client_socket
from nodeagent.ports.clients import RefusalKind, Refused
from sluicecommon.plain import write_all_fields


class Failed(Exception):
    """The command ends with this status after this line on stderr."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Away(Failed):
    """No daemon answers: it may be starting again just now. `ended`: it had the call."""

    def __init__(self, status: int, text: str, ended: bool = False) -> None:
        super().__init__(status, text)
        self.ended = ended


@contextlib.contextmanager
def connect(options: argparse.Namespace, environment: Mapping[str, str]) -> Iterator[Client]:
    """A client of the daemon; its refusals become Failed."""
    socket = client_socket(options.socket, environment)
    try:
        wire = Wire(native.locate().wire_descriptors)
    except (OSError, ValueError) as error:
        raise Failed(EXIT_UNREACHABLE, f"{error}; see `sluice doctor`") from None
    client = None
    try:
        client = Client(socket, wire)
        yield client
    except Closed as error:
        raise Failed(
            EXIT_UNREACHABLE, f"{error}; run this as the user whose daemon it is, or as root"
        ) from None
    except Unreachable as error:
        raise Away(
            EXIT_UNREACHABLE,
            f"{error}; is it running? Start it with `sluice serve`, or see `sluice doctor`",
            isinstance(error, Ended),
        ) from None
    except Refused as refused:
        status = EXIT_USAGE if refused.kind is RefusalKind.INVALID else EXIT_REFUSED
        raise Failed(status, refused.reason) from None
    except UnicodeEncodeError as error:
        raise Failed(EXIT_USAGE, f"{error.object!r} is not UTF-8") from None
    except ValueError as error:
        raise Failed(EXIT_UNREACHABLE, f"{error}; see `sluice doctor`") from None
    finally:
        if client is not None:
            client.close()


def complain(text: str) -> None:
    """One line: what a user typed comes back in it, so no control character gets through."""
    safe = "".join(c if c.isprintable() else "?" for c in text)
    print(f"sluice: {safe}", file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(write_all_fields(value), indent=2))
