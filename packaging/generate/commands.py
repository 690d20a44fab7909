"""Writes docs/reference/commands.md: every command of `sluice` and `sluice-queue` with its options, from the
parsers that read them. `python packaging/generate/commands.py`, in the virtual environment."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nodeagent.__main__ import make_parser as make_serve_parser
from nodeagent.cli.parser import make_parser
from queuecontroller.cli.main import VERBS

HEAD: Final = """\
# Commands

Generated from the code by `make docs`; the same is what `sluice COMMAND --help` and `sluice-queue VERB --help` say. `sluice queue VERB`
is `sluice-queue VERB`. Exit statuses: [operations.md](../operations.md#exit-statuses).
"""
ELSEWHERE: Final = ("queue",)
"""Commands that are another program."""


def node_parsers() -> dict[str, argparse.ArgumentParser]:
    """Parsers of the node's commands, by command."""
    found = {name: one for name, one in _parts(make_parser()).items() if name not in ELSEWHERE}
    return {**found, "serve": make_serve_parser()}


def _parts(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Its commands, by words; those that have commands of their own are these."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                inner = _parts(one)
                found |= {f"{name} {word}": part for word, part in inner.items()} or {name: one}
    return found


def queue_parsers() -> dict[str, argparse.ArgumentParser]:
    """Parsers of `sluice-queue`, by verb."""
    found = {}
    for verb, (module, help_) in VERBS.items():
        parser = argparse.ArgumentParser(prog=f"sluice-queue {verb}", description=help_)
        parser.set_defaults(verb=verb)
        importlib.import_module(f"queuecontroller.cli.commands.{module}").configure(parser)
        found[verb] = parser
    return found


def commands_md() -> str:
    parts = [HEAD]
    for parsers in (node_parsers(), queue_parsers()):
        parts += ["\n".join(_section(parser)) + "\n" for parser in parsers.values()]
    return "\n".join(parts)


def _section(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## `{parser.prog}`\n"
    yield _cell(parser.description or "")
    rows = [
        (_named(action), _meaning(parser, action))
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction)
    ]
    if rows:
        yield "\n| | |\n|---|---|"
    for name, meaning in rows:
        yield f"| {name} | {meaning} |"


def _named(action: argparse.Action) -> str:
    if not action.option_strings:
        many = " …" if action.nargs in ("*", "+") else ""
        return f"`{action.metavar or action.dest}{many}`"
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    if action.choices is not None and not action.metavar:
        value = _cell("|".join(action.choices))
    return ", ".join(f"`{f'{flag} {value}'.strip()}`" for flag in action.option_strings)


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return _cell((action.help or "") % (vars(action) | {"prog": parser.prog}))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(commands_md())
