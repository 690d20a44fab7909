"""`make fuzz`: every target under libFuzzer for its part of the time, corpora merged back into the tree; then the
readers in Python (readers.py) for theirs.

Exits non-zero at the first finding and leaves the input that shows it in build/fuzz/.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import readers
from tests.places import BUILD, REPO

HERE = REPO / "tests" / "fuzz"
TARGETS = {
    "region": ["interpose/region.c"],
    "policy": ["interpose/region.c"],
    "settings": [],
}
LONGEST = {"region": 13 * 64, "policy": 8 + 12_288 + 64, "settings": 600}
FLAGS = ["-std=gnu11", "-g", "-O1", "-D_GNU_SOURCE", "-I", str(REPO)]


def build(target: str, compiler: str, directory: Path) -> Path:
    program = directory / f"fuzz_{target}"
    sources = [HERE / f"fuzz_{target}.c", *(REPO / source for source in TARGETS[target])]
    subprocess.run(
        [
            compiler,
            *FLAGS,
            "-fsanitize=fuzzer,address,undefined",
            "-fno-sanitize-recover=all",
            *map(str, sources),
            "-o",
            str(program),
        ],
        check=True,
    )
    return program


def fuzz(target: str, program: Path, seconds: int, directory: Path) -> int:
    """Inputs tried. Raises SystemExit on a finding."""
    found = directory / f"corpus-{target}"
    found.mkdir(exist_ok=True)
    corpus = HERE / "corpus" / target
    done = subprocess.run(
        [
            program,
            f"-max_total_time={seconds}",
            f"-max_len={LONGEST[target]}",
            f"-artifact_prefix={directory}/finding-{target}-",
            "-print_final_stats=1",
            found,
            corpus,
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{target}: a finding, see {directory}/finding-{target}-*\n{done.stderr[-4000:]}")
    tried = int(re.findall(r"number_of_executed_units:\s*(\d+)", done.stderr)[-1])
    merged = directory / f"merged-{target}"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    subprocess.run(
        [program, "-merge=1", f"-max_len={LONGEST[target]}", merged, corpus, found],
        check=True,
        capture_output=True,
    )
    shutil.rmtree(corpus)
    shutil.copytree(merged, corpus)
    return tried


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="over all targets (default: 600)")
    options = parser.parse_args()
    compiler = shutil.which("clang")
    if compiler is None:
        print("make fuzz needs clang with libFuzzer: apt install clang", file=sys.stderr)
        return 1
    directory = BUILD / "fuzz"
    directory.mkdir(parents=True, exist_ok=True)
    each = max(1, options.seconds // (2 * len(TARGETS)))
    for target in TARGETS:
        program = build(target, compiler, directory)
        tried = fuzz(target, program, each, directory)
        kept = len(list((HERE / "corpus" / target).iterdir()))
        print(f"{target}: {tried:,} inputs, no finding, {kept} kept in the corpus", flush=True)
    return in_python(options.seconds / 2, directory)


def in_python(seconds: float, directory: Path) -> int:
    seed = int(time.time())
    targets = readers.targets(directory / "kubelet")
    for one in targets:
        try:
            tried = readers.fuzz(one, seed, seconds / len(targets))
        except readers.Finding as finding:
            (directory / f"finding-{one.name.replace(' ', '-')}").write_text(str(finding))
            print(f"{one.name}: a finding with seed {seed}\n{finding}", file=sys.stderr)
            return 1
        print(f"{one.name}: {tried:,} inputs, no finding", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
