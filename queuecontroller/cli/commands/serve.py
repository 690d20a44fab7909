"""`sluice-queue serve`: runs the controller in the foreground. A flag overrides the configuration
file."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from queuecontroller.cli.files import path
from queuecontroller.server.config import SECTIONS, SYSTEM_SOCKET, ConfigError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=path, metavar="FILE", help="TOML; see docs/queue/queue.md")
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help=f'Unix socket (default: {SYSTEM_SOCKET} as root or as a service; "none" disables it)',
    )
    parser.add_argument("--listen", metavar="ADDRESS:PORT", help="gRPC over TCP; requires TLS")
    parser.add_argument(
        "--metrics-listen",
        metavar="ADDRESS:PORT",
        help='/metrics, /healthz, /readyz (default: 127.0.0.1:9466; "" disables them)',
    )
    parser.add_argument(
        "--probes-listen",
        metavar="ADDRESS:PORT",
        help="another address with only /healthz and /readyz, for probes",
    )
    parser.add_argument("--database", type=path, metavar="FILE", help="SQLite file of the queue")
    parser.add_argument(
        "--tls-certificate", type=path, metavar="FILE", help="server certificate, PEM"
    )
    parser.add_argument("--tls-key", type=path, metavar="FILE", help="server key, PEM")
    parser.add_argument(
        "--tls-client-ca",
        type=path,
        metavar="FILE",
        help="CA that client certificates must be signed by, PEM",
    )
    parser.add_argument(
        "--tls-admins", metavar="NAMES", help="names in client certificates that are admins"
    )
    parser.add_argument(
        "--restored",
        action="store_true",
        help="the database was restored from a backup: skip past all terms and revisions that"
        " nodes may have seen, and adopt running work that they report and the database lacks;"
        " use it once, not in a systemd unit",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any other setting, as in nodes.lease_s=10; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    from queuecontroller.server import standalone as root

    overrides, problems = _overrides(options)
    try:
        file = Path(options.config) if options.config else None
        settings = root.load_settings(file, overrides)
    except ConfigError as error:
        problems += error.problems
    if problems:
        for problem in problems:
            print(f"sluice-queue: {problem}", file=sys.stderr)
        return root.EXIT_USAGE
    if settings.kubernetes.mode != "standalone":
        from queuecontroller.server.kubernetes import serve_kubernetes

        return serve_kubernetes(settings, dict(os.environ))
    return root.serve(settings, dict(os.environ), restored=options.restored)


def _overrides(
    options: argparse.Namespace,
) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Settings given as flags, by section and key, and the errors of --set."""
    found: dict[str, dict[str, object]] = {}
    paths = {"database", "certificate", "key", "client_ca", "socket"}
    for section, flag in (
        ("server", "socket"),
        ("server", "listen"),
        ("server", "metrics_listen"),
        ("server", "probes_listen"),
        ("server", "database"),
        ("tls", "tls_certificate"),
        ("tls", "tls_key"),
        ("tls", "tls_client_ca"),
        ("tls", "tls_admins"),
    ):
        value = getattr(options, flag)
        if value is None:
            continue
        name = flag.removeprefix("tls_")
        found.setdefault(section, {})[name] = (
            str(Path(value).absolute()) if value not in ("", "none") and name in paths else value
        )
    problems = []
    for text in options.set:
        key, equals, value = text.partition("=")
        section, dot, name = key.partition(".")
        if not equals or not dot:
            problems.append(f"--set {text!r}: must be SECTION.KEY=VALUE, as in nodes.lease_s=10")
            continue
        found.setdefault(section, {})[name] = _typed(section, name, value)
    return found, problems


def _typed(section: str, name: str, value: str) -> Any:
    """The value in the setting's type; a value that cannot be converted stays text, which `parse`
    reports."""
    kinds = {one.name: one.type for one in fields(SECTIONS[section])} if section in SECTIONS else {}
    kind = kinds.get(name)
    if kind == "bool" and value in ("true", "false"):
        return value == "true"
    try:
        return int(value) if kind == "int" else float(value) if kind == "float" else value
    except ValueError:
        return value
