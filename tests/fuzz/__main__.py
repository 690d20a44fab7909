"""`make fuzz`: every target in C under libFuzzer for its part of the time, corpora merged back into their archives; then the
readers in Python (readers.py, queue_readers.py, shares/) for theirs.

Exits non-zero at the first finding and leaves the input that shows it in build/fuzz/. How much was tried is in build/fuzz.json.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz import corpus, mutation, queue_readers, readers
from tests.fuzz.shares import claims
from tests.fuzz.shares import readers as shares
from tests.kit.places import BUILD, REPO

HERE = REPO / "tests" / "fuzz" / "native"


@dataclass(frozen=True)
class Native:
    longest: int
    """Bytes of an input."""
    sources: tuple[str, ...] = ()
    """Linked with it, beside what it includes."""


TARGETS = {
    "hook": Native(2048),
    "policy": Native(8 + 12_288 + 64, ("interpose/attach/region.c",)),
    "region": Native(13 * 64, ("interpose/attach/region.c",)),
    "registration": Native(1200, ("interpose/attach/region.c",)),
    "settings": Native(600),
    "siblings": Native(2 + 40 * (8 + 8 * 24), ("interpose/compute/rules/fair.c",)),
}
FLAGS = ["-std=gnu11", "-g", "-O1", "-D_GNU_SOURCE", "-I", str(REPO)]


def build(target: str, compiler: str, directory: Path) -> Path:
    program = directory / f"fuzz_{target}"
    sources = [HERE / f"fuzz_{target}.c", *(REPO / source for source in TARGETS[target].sources)]
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


@dataclass(frozen=True)
class Result:
    inputs: int
    coverage: int
    """Edges of the C code by libFuzzer's count, lines of ours in Python; see mutation.py."""


def fuzz(target: str, program: Path, seconds: int, directory: Path) -> Result:
    """Raises SystemExit on a finding."""
    found = directory / f"corpus-{target}"
    found.mkdir(exist_ok=True)
    packed = directory / f"packed-{target}"
    shutil.rmtree(packed, ignore_errors=True)
    corpus.unpack(target, packed)
    done = subprocess.run(
        [
            program,
            f"-max_total_time={seconds}",
            f"-max_len={TARGETS[target].longest}",
            f"-artifact_prefix={directory}/finding-{target}-",
            "-print_final_stats=1",
            found,
            packed,
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{target}: a finding, see {directory}/finding-{target}-*\n{done.stderr[-4000:]}")
    result = Result(
        int(re.findall(r"number_of_executed_units:\s*(\d+)", done.stderr)[-1]),
        int(re.findall(r"\bcov: (\d+)", done.stderr)[-1]),
    )
    merged = directory / f"merged-{target}"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    subprocess.run(
        [program, "-merge=1", f"-max_len={TARGETS[target].longest}", merged, packed, found],
        check=True,
        capture_output=True,
    )
    corpus.write(target, [path.read_bytes() for path in merged.iterdir()])
    return result


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
    results: dict[str, Result] = {}
    each = max(1, options.seconds // (2 * len(TARGETS)))
    for target in TARGETS:
        program = build(target, compiler, directory)
        name = f"{target} (C)"
        results[name] = fuzz(target, program, each, directory)
        kept = len(corpus.read(target))
        say(name, results[name], "edges", f"{kept} kept in the corpus")
    seed = int(time.time())
    every = [*readers.targets(directory / "node"), *queue_readers.targets()]
    every += [*claims.targets(), *shares.targets()]
    for one in every:
        try:
            tried = mutation.fuzz(one, seed, options.seconds / 2 / len(every))
        except mutation.Finding as finding:
            (directory / f"finding-{one.name.replace(' ', '-')}").write_text(str(finding))
            print(f"{one.name}: a finding with seed {seed}\n{finding}", file=sys.stderr)
            return 1
        results[one.name] = Result(tried.inputs, tried.lines)
        say(one.name, results[one.name], "lines", f"written by {one.whose}")
    plain = {name: asdict(one) | {"crashes": 0} for name, one in results.items()}
    (BUILD / "fuzz.json").write_text(json.dumps(plain, indent=1) + "\n")
    print(
        f"{len(results)} targets, {sum(one.inputs for one in results.values()):,} inputs, 0 crashes"
    )
    return 0


def say(name: str, result: Result, unit: str, more: str) -> None:
    print(
        f"{name}: {result.inputs:,} inputs, {result.coverage} {unit}, 0 crashes; {more}", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
