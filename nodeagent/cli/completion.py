"""`sluice completion SHELL`: a script of completions, for `eval` or a file."""

from __future__ import annotations

import argparse
import importlib

from nodeagent.cli.parser import make_parser
from sluicecommon.completion import Command, command_of, script


def commands() -> list[Command]:
    found = _parts(make_parser())
    # A program of its own, as for `sluice serve` itself.
    serve = [command_of("serve", importlib.import_module("nodeagent.__main__").make_parser())]
    return [*(one for one in found if one.name != "serve"), *serve]


def _parts(parser: argparse.ArgumentParser, before: str = "") -> list[Command]:
    """Its commands; those that have commands of their own are these."""
    found: list[Command] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                inner = _parts(one, f"{before}{name} ")
                found += inner or [command_of(f"{before}{name}", one)]
    return found


def completion(options: argparse.Namespace, environment: dict[str, str]) -> int:
    print(script("sluice", commands(), options.shell), end="")
    return 0
