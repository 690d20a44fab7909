"""Adds inputs to a target's corpus, or lists them."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

from tests.fuzz import corpus


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.corpus")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="add files to a target's corpus")
    add.add_argument("target")
    add.add_argument("files", nargs="+", type=Path)
    commands.add_parser("list", help="names and sizes of a target's inputs").add_argument("target")
    options = parser.parse_args()
    if options.target not in corpus.targets():
        parser.error(f"{options.target}: there are {', '.join(sorted(corpus.targets()))}")
    if options.command == "list":
        with zipfile.ZipFile(corpus.path_of(options.target)) as archive:
            for entry in archive.infolist():
                print(f"{entry.filename} {entry.file_size}")
        return
    before = corpus.read(options.target)
    corpus.write(options.target, [*before, *(file.read_bytes() for file in options.files)])
    print(
        f"{corpus.path_of(options.target)}: {len(before)} inputs, now {len(corpus.read(options.target))}"
    )


if __name__ == "__main__":
    main()
