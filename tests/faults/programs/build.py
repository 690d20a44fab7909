"""Compiles what the cases run, with nothing but the C compiler."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from tests.kit.places import BUILD, REPO, SIM

OUT = BUILD / "faults"
FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", f"-I{REPO}")


def _compile(name: str, source: Path, *flags: str) -> Path:
    OUT.mkdir(parents=True, exist_ok=True)
    made = OUT / name
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", *FLAGS, "-o", made, source, *flags], check=True, timeout=120)
    return made


def _here(name: str) -> Path:
    return Path(__file__).with_name(name)


@functools.cache
def asker() -> Path:
    return _compile("asker", _here("asker.c"), "-ldl")


@functools.cache
def plugin() -> Path:
    """Linked to libcuda.so.1 by name only: whichever the linker finds when it runs."""
    return _compile(
        "plugin.so", _here("plugin.c"), "-shared", "-fPIC", f"-L{SIM}", "-l:libcuda.so.1"
    )


@functools.cache
def auditor() -> Path:
    return _compile("auditor.so", _here("auditor.c"), "-shared", "-fPIC", "-ldl")


@functools.cache
def static_opener() -> Path:
    return _compile("opener-static", REPO / "tests" / "programs" / "opener.c", "-static")


@functools.cache
def stopper() -> Path:
    return _compile("stopper", _here("stopper.c"), str(REPO / "interpose" / "attach" / "region.c"))


@functools.cache
def publisher() -> Path:
    return _compile(
        "publisher", _here("publisher.c"), str(REPO / "interpose" / "attach" / "region.c")
    )


@functools.cache
def execer() -> Path:
    return _compile("execer", _here("execer.c"), "-ldl")


@functools.cache
def wallclock() -> Path:
    return _compile("wallclock.so", _here("wallclock.c"), "-shared", "-fPIC", "-ldl")


@functools.cache
def liar() -> Path:
    return _compile("liar.so", _here("liar.c"), "-shared", "-fPIC")
