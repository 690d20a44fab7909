"""`sluice-queue completion SHELL`: prints a completion script, for `eval` or a file."""

from __future__ import annotations

import argparse
import importlib

from queuecontroller.cli.main import VERBS
from sluicecommon.completion import SHELLS, Command, command_of, script


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def commands() -> list[Command]:
    found = []
    for verb, (module, help_) in VERBS.items():
        parser = argparse.ArgumentParser(prog=f"sluice-queue {verb}", description=help_)
        parser.set_defaults(verb=verb)
        importlib.import_module(f"queuecontroller.cli.commands.{module}").configure(parser)
        found.append(command_of(verb, parser))
    return found


def run(options: argparse.Namespace) -> int:
    print(script("sluice-queue", commands(), options.shell), end="")
    return 0
