"""Generates documents from the code: the configuration reference, commented default files, manual
pages.

`python packaging/generate/reference.py WHAT`, with WHAT one of configuration.md, sluice.toml, queue.toml,
sluice.1, sluice-queue.1, kubectl-sluice.1; written to standard output. Needs the standard library alone.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nodeagent import native
from nodeagent.cli.parser import make_parser
from nodeagent.settings import daemon as node_config
from queuecontroller.cli.kubectl.plan import make_parser as kubectl_parser
from queuecontroller.cli.main import VERBS
from queuecontroller.server import config as queue_config

WIDTH: Final = 96


@dataclass(frozen=True)
class Key:
    """One setting as a person reads of it."""

    name: str
    default: Any
    allowed: str
    text: str
    live: bool = False
    """A running service takes a change over."""

    @property
    def plain_default(self) -> str:
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, int | float):
            return plain(self.default)
        if isinstance(self.default, tuple):
            return ", ".join(self.default)
        return str(self.default)

    @property
    def toml_default(self) -> str:
        if isinstance(self.default, str | tuple):
            return json.dumps(self.default)
        return self.plain_default


def sections(known: Mapping[str, type[Any]]) -> Iterator[tuple[str, str, list[Key]]]:
    """Name, its first sentence and its keys."""
    for section, kind in known.items():
        texts = said_of(kind)
        about = " ".join((kind.__doc__ or "").split()).partition(": ")[2]
        yield (
            section,
            about,
            [
                Key(
                    one.name,
                    one.default,
                    allowed(one),
                    texts.get(one.name, ""),
                    bool(one.metadata.get("live")),
                )
                for one in fields(kind)
            ],
        )


def said_of(kind: type) -> dict[str, str]:
    """The text below each field, as the source has it."""
    (node,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(node, ast.ClassDef)
    texts: dict[str, str] = {}
    for below, text in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        if isinstance(below, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(below.target, ast.Name)
            texts[below.target.id] = " ".join(ast.literal_eval(text.value).split())
    return texts


def plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def allowed(one: Field[Any]) -> str:
    meta = one.metadata
    if "low" in meta:
        return f"{plain(meta['low'])} to {plain(meta['high'])}"
    if "allowed" in meta:
        return ", ".join(f"`{value}`" for value in meta["allowed"])
    if "each" in meta:
        return "list of " + ", ".join(f"`{value}`" for value in meta["each"])
    if isinstance(one.default, tuple):
        return "list of absolute paths" if meta.get("absolute") else "list"
    return "absolute path" if meta.get("absolute") else ""


# --- docs/reference/configuration.md ---

_HEAD: Final = """\
# Configuration

Generated from the code by `make docs`; the packages bring the same text as comments in `/etc/sluice/sluice.toml` and
`/etc/sluice/queue.toml`. TOML, every key optional. A file with mistakes stops the service from starting, and all of them are
listed, each with its key.

# The node's daemon: `/etc/sluice/sluice.toml`

`sluice serve --config FILE`; without the flag `/etc/sluice/sluice.toml` if it is there. Tenants are not affected by a
mistake: their limits are in their regions.

A running daemon reads its files again when one of them changes, and on `systemctl reload sluice` (SIGHUP). Keys marked *Live* change
at once; the others are named in one warning in the log and in `sluice_config_keys_waiting`, and need `systemctl restart sluice`; jobs
go on meanwhile. A file with mistakes changes nothing: they are listed in the log, and `sluice_config_valid` is 0.

```toml
[grants]
slots_per_gpu = 4
memory_reserve_mib = 512

[planner]
period_ms = 5        # latency-bound inference
```
"""

_QUEUE_HEAD: Final = """\
# The queue controller: `/etc/sluice/queue.toml`

`sluice-queue serve --config FILE`; a flag wins over the file, `--set SECTION.KEY=VALUE` sets any key. After a change:
`systemctl restart sluice-queue`; jobs and their places in line stay.

```toml
[server]
listen = "0.0.0.0:9465"

[tls]
certificate = "/etc/sluice/queue.pem"
key = "/run/credentials/sluice-queue.service/sluice-queue.key"   # from /etc/credstore/sluice-queue.key
client_ca = "/etc/sluice/ca.pem"
nodes = "gpu-*"      # or URIs in the certificates: docs/security.md
users = "*"
admins = "carol"
```
"""


def configuration_md() -> str:
    parts = [_HEAD, *_tables(node_config.SECTIONS), _QUEUE_HEAD, *_tables(queue_config.SECTIONS)]
    return "\n".join(parts)


def _tables(known: Mapping[str, type[Any]]) -> Iterator[str]:
    for section, about, keys in sections(known):
        lines = [f"## `[{section}]`", ""]
        lines += [f"{about[:1].upper()}{about[1:]}", ""] if about else []
        lines += ["| Key | Default | Allowed | Meaning |", "|---|---|---|---|"]
        for key in keys:
            shown = f"`{key.plain_default}`" if key.plain_default else ""
            text = f"{key.text} *Live.*" if key.live else key.text
            lines.append(f"| `{key.name}` | {shown} | {key.allowed} | {text} |")
        yield "\n".join([*lines, ""])


# --- the default files ---


def settings_toml(known: Mapping[str, type[Any]], reads: str) -> str:
    lines = [f"# Settings of {reads}; every key is optional, what is commented out is the default."]
    for section, about, keys in sections(known):
        lines += ["", *_comment(about[:1].upper() + about[1:]), f"[{section}]"]
        for key in keys:
            limits = f"Allowed: {key.allowed}." if key.allowed else ""
            lines += _comment(f"{key.text} {limits}".strip())
            lines.append(f"#{key.name} = {key.toml_default}")
    return "\n".join([*lines, ""])


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text.replace("`", ""), WIDTH)]


# --- manual pages ---


def _page(name: str, about: str, synopsis: str, rows: Mapping[str, str], rest: str) -> str:
    """roff in the man(7) macros; the date is that of the source, so that builds can be compared."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch))
    lines = [
        f'.TH {name.upper()} 1 "{date}" "Sluice {native.version()}" "Sluice"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(about)}",
        ".SH SYNOPSIS",
        f".B {_roff(synopsis)}",
        ".SH COMMANDS",
    ]
    for command, text in rows.items():
        lines += [".TP", f".B {_roff(command)}", _roff(text)]
    lines += [
        ".PP",
        f".B {_roff(f'{name} COMMAND --help')}",
        "explains a command with all its options.",
    ]
    return "\n".join(lines) + "\n" + rest


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _commands(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Help text of each subcommand."""
    found = next(one for one in parser._actions if hasattr(one, "_choices_actions"))
    return {one.dest: one.help or "" for one in found._choices_actions}  # type: ignore[attr-defined]


def sluice_1() -> str:
    return _page(
        "sluice",
        "share a GPU between several jobs",
        "sluice COMMAND [OPTIONS]",
        _commands(make_parser()),
        """\
.SH FILES
.TP
.I /etc/sluice/sluice.toml
Settings of the daemon.
.TP
.I /run/sluice
Sockets and the regions of grants.
.TP
.I /var/lib/sluice
The ledger of grants.
.TP
.I /var/lib/sluice\\-libraries
The libraries that running jobs have mapped.
.SH ENVIRONMENT
.TP
.B SLUICE_SOCKET
Socket of the daemon to talk to.
.TP
.B SLUICE_DRIVER
Path of the real libcuda.so.1, where the loader does not find it.
.SH EXIT STATUS
0 done, 1 the daemon says no, 2 wrong usage, 69 no daemon answers, 74 the answer could not be written.
.B sluice run
has the status of the command, or 125 when it could not be started, 126 when it cannot be
executed, 127 when it was not found.
.SH SEE ALSO
.BR sluice\\-queue (1),
.I /usr/share/doc/sluice\\-nodeagent
""",
    )


def sluice_queue_1() -> str:
    return _page(
        "sluice-queue",
        "queue jobs for GPU shares",
        "sluice-queue VERB [OPTIONS]",
        {verb: text for verb, (_, text) in VERBS.items()},
        """\
.SH FILES
.TP
.I /etc/sluice/queue.toml
Settings of the controller.
.TP
.I /var/lib/sluice\\-queue/queue.sqlite
All its state.
.SH ENVIRONMENT
.TP
.B SLUICE_QUEUE_SERVER
Address and port of the controller.
.TP
.BR SLUICE_QUEUE_CA ", " SLUICE_QUEUE_CERTIFICATE ", " SLUICE_QUEUE_KEY
PEM files for TLS.
.TP
.B SLUICE_QUEUE_SERVER_NAME
The name the controller's certificate has, where that is not the address.
.SH EXIT STATUS
0 done, 1 the answer is no, 2 wrong usage or input, 69 the service does not answer, 74 the answer
could not be written.
.SH SEE ALSO
.BR sluice (1)
""",
    )


def kubectl_sluice_1() -> str:
    return _page(
        "kubectl-sluice",
        "queues and workloads of a cluster, by kubectl",
        "kubectl sluice COMMAND [OPTIONS]",
        _commands(kubectl_parser()),
        """\
.SH ENVIRONMENT
.TP
.B KUBECTL
The kubectl that is run; the one on the path by default.
.SH EXIT STATUS
kubectl's own; 2 wrong usage, 69 there is no kubectl.
.SH SEE ALSO
.BR kubectl (1),
.BR sluice\\-queue (1)
""",
    )


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "configuration.md": configuration_md,
    "sluice.toml": lambda: settings_toml(node_config.SECTIONS, "`sluice serve`"),
    "queue.toml": lambda: settings_toml(queue_config.SECTIONS, "`sluice-queue serve`"),
    "sluice.1": sluice_1,
    "sluice-queue.1": sluice_queue_1,
    "kubectl-sluice.1": kubectl_sluice_1,
}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in PAGES:
        print(f"usage: reference.py {{{','.join(PAGES)}}}", file=sys.stderr)
        return 2
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # it is a text stream
    sys.stdout.write(PAGES[arguments[0]]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
