#!/usr/bin/env python3
"""clang-tidy over the files given, each once for what it reads: a file is looked at again when it, a header it includes,
its command, the checks or clang-tidy itself are others. What was found clean is remembered in build/tidy.

    packaging/development/tidy.py FILE.c …    exit status 1 and what clang-tidy says, when it says anything
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
COMMANDS = REPO / "build" / "meson" / "compile_commands.json"
PLACE = REPO / "build" / "tidy"
CLEAN = PLACE / "clean.json"

Command = dict[str, Any]


def commands() -> dict[Path, Command]:
    """Compile command of each file, once: the database has it again for every sanitizer variant of
    the tests."""
    found: list[Command] = json.loads(COMMANDS.read_text())
    return {Path(one["directory"], one["file"]).resolve(): one for one in reversed(found)}


def read_by(command: Command) -> list[Path]:
    """The file and the headers it includes, those of the system apart."""
    words = shlex.split(command["command"])
    cut = words.index("-o") if "-o" in words else len(words)
    depends = [*words[:cut], *words[cut + 2 :]]
    for flag in ("-MD", "-c"):
        if flag in depends:
            depends.remove(flag)
    for flag in ("-MQ", "-MF"):
        if flag in depends:
            at = depends.index(flag)
            del depends[at : at + 2]
    rule = subprocess.run(
        [*depends, "-MM"], cwd=command["directory"], text=True, capture_output=True, check=True
    ).stdout
    names = rule.partition(":")[2].replace("\\\n", " ").split()
    return sorted(Path(command["directory"], name).resolve() for name in names)


def key(command: Command, tool: str) -> str:
    text = hashlib.sha256(f"{tool}\0{command['command']}".encode())
    for path in [REPO / ".clang-tidy", *read_by(command)]:
        text.update(f"\0{path}\0".encode() + path.read_bytes())
    return text.hexdigest()


def complaints(path: Path) -> str:
    """One file for each call: the analyzer remembers lists of arguments of the files before, and takes ours for unset."""
    done = subprocess.run(
        ["clang-tidy", "--quiet", "-p", PLACE, path], text=True, capture_output=True
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main(names: list[str]) -> int:
    known = commands()
    PLACE.mkdir(parents=True, exist_ok=True)
    (PLACE / "compile_commands.json").write_text(json.dumps(list(known.values())))
    tool = subprocess.run(["clang-tidy", "--version"], text=True, capture_output=True).stdout
    remembered = set(json.loads(CLEAN.read_text())) if CLEAN.exists() else set()
    files = [Path(name).resolve() for name in names]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # Who is not in the database is built in no variant here (another architecture's): clang-tidy says what it can.
        keys = dict(
            zip(files, pool.map(lambda f: key(known[f], tool) if f in known else "", files), strict=True)
        )  # fmt: skip
        wanted = [file for file in files if keys[file] not in remembered]
        said = dict(zip(wanted, pool.map(complaints, wanted), strict=True))
    clean = [found for file, found in keys.items() if found and not said.get(file)]
    CLEAN.write_text(json.dumps(clean))
    for text in filter(None, said.values()):
        print(text)
    return 1 if any(said.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
