"""Reads manifest files by path, for every verb that takes `-f`, and reports their errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LARGEST_FILE: Final = 16 << 20
"""Bytes; a cluster's whole configuration is about 1 MiB."""
SUFFIXES: Final = (".yaml", ".yml", ".json")


class Unreadable(Exception):
    """Error text with one line for each file that cannot be read."""


def path(text: str) -> str:
    """Converter for `type=`. An empty path comes from an unset variable of a script; taken as a
    folder it would be the current one, so it is refused."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a path, or leave the option out")
    return text


def add_manifests(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add `-f`, the option of every verb that reads manifests."""
    parser.add_argument(
        "-f",
        "--filename",
        type=path,
        action="append",
        default=None if required else [],
        required=required,
        metavar="PATH",
        help="YAML or JSON file, a folder of them, or - for stdin; may be repeated",
    )


def read_texts(paths: Iterable[str]) -> dict[str, str]:
    """Texts by file name: from files, from folders (`*.yaml`, `*.yml`, `*.json` in them) or from
    stdin (`-`). Raises Unreadable with every file that cannot be read."""
    problems: list[str] = []
    found: dict[str, str] = {}
    for given in paths:
        if given == "-":
            try:
                found["stdin"] = _text("stdin", sys.stdin.buffer.read(LARGEST_FILE + 1))
            except Unreadable as error:
                problems.append(str(error))
            continue
        path = Path(given)
        files = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES) if path.is_dir() else []
        if path.is_dir() and not files:
            problems.append(f"{path}: no {', '.join(SUFFIXES)} files in it")
        for file in files if path.is_dir() else [path]:
            try:
                found[str(file)] = read_text(file)
            except Unreadable as error:
                problems.append(str(error))
    if problems:
        raise Unreadable("\n".join(problems))
    return found


def read_text(file: Path) -> str:
    """The text of one file. Raises Unreadable."""
    try:
        with file.open("rb") as opened:
            return _text(str(file), opened.read(LARGEST_FILE + 1))
    except OSError as error:
        raise Unreadable(f"{file}: {error.strerror or error}") from None


def _text(name: str, content: bytes) -> str:
    if len(content) > LARGEST_FILE:
        raise Unreadable(f"{name}: larger than {LARGEST_FILE >> 20} MiB; split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"{name}:{line}: is not UTF-8: {error.reason}; save it as UTF-8") from None


def complain(text: str) -> None:
    for line in text.splitlines() or [""]:
        print(f"sluice-queue: {printable(line)}", file=sys.stderr)


def printable(text: str) -> str:
    """The text without control characters: names and messages come from users and must not
    control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
