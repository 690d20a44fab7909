"""Bends good input until a reader raises what it does not say it raises, or answers what cannot be.

Where the input is JSON, half of the bends are of its values: what bytes are seldom bent into, and what a user writes with ease.

Every eighth input is traced, line by line of our own code: what leads to a line that none before it led to is bent
further, too. So there is some steering, and a count of lines to say how far it got, without another dependency.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.kit.places import REPO

Reader = Callable[[bytes], object]
OURS = tuple(f"{REPO}/{package}/" for package in ("nodeagent", "queuecontroller", "sluicecommon"))
TRACED = 8
"""One of so many: a traced input takes ten times as long."""
MAX_KEPT = 256


@dataclass(frozen=True)
class Target:
    name: str
    read: Reader
    may_raise: tuple[type[BaseException], ...]
    seeds: tuple[bytes, ...]
    whose: str
    """The author of the reader's input."""


class Finding(AssertionError):
    """A reader raised what it does not say it raises."""


@dataclass(frozen=True)
class Tried:
    inputs: int
    lines: int
    """Number of lines of our own code that any traced input reached."""


def through_a_file(read: Callable[[Path], object], suffix: str = "") -> Reader:
    """Reader for functions that take a path: one file, written over."""
    directory = tempfile.TemporaryDirectory(prefix="fuzz-")
    path = Path(directory.name) / f"input{suffix}"

    def run(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    run.kept = directory  # type: ignore[attr-defined]  # until the reader is gone
    return run


def fuzz(target: Target, seed: int, seconds: float = 0.0, inputs: int = 0) -> Tried:
    """Fuzz one target for a time or for a number of inputs. Raises Finding with the input that
    shows it."""
    chance = random.Random(seed)
    end_s = time.monotonic() + seconds
    lines = Lines()
    pool = list(target.seeds)
    for good in pool:
        with lines.looking():
            _read(target, good)
    tried = 0
    while tried < inputs or time.monotonic() < end_s:
        data = bent(pool, chance)
        tried += 1
        if tried % TRACED:
            _read(target, data)
            continue
        before = len(lines.seen)
        with lines.looking():
            _read(target, data)
        if len(lines.seen) > before and len(pool) < MAX_KEPT:
            pool.append(data)
    return Tried(tried, len(lines.seen))


def _read(target: Target, data: bytes) -> None:
    try:
        target.read(data)
    except target.may_raise:
        return
    except Exception as error:
        raise Finding(f"{target.name}: {type(error).__name__}: {error}\n{data[:2000]!r}") from error


class Lines:
    """Which lines of our own code were reached."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int]] = set()

    @contextmanager
    def looking(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(OURS) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.seen.add((frame.f_code, frame.f_lineno))
        return self._line


ODD = (
    b"\0",
    b"\xff" * 8,
    b"-1",
    b"1e999",
    b"NaN",
    b'"',
    b"{",
    b"[" * 3000,
    b"}",
    b"\n",
    b"../",
    b"\\u0000",
)
"""Byte sequences that readers fail on."""


ODD_VALUES = (
    *(None, True, 0, -1, 1.5, 2**31, 2**63, 2**64, 10**400, float("inf"), float("nan"), "", "x"),
    *("9" * 5000, "1e999", "-1", "\0", "\ud800", "é" * 300, "a/b/c", "*", "../..", "x" * 70_000),
    *([], [[]], [None], ["x", 1], {}, {"": ""}, {"x": {"x": None}}, [{}]),
)
"""Values put where another type is expected."""


def bent_values(document: Any, chance: random.Random) -> Any:
    """A copy in which some values are others, are gone or come twice."""
    top = [copy.deepcopy(document)]
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = list(_places(top))
        there, key = chance.choice(places)
        match chance.randrange(5):
            case 0 if there is not top:
                del there[key]
            case 1:
                other, its = chance.choice(places)
                there[key] = copy.deepcopy(other[its])
            case 2 if isinstance(there, list) and there is not top:
                there.append(copy.deepcopy(there[key]))
            case 3 if isinstance(there, dict):
                there[str(chance.choice(ODD_VALUES))] = there.pop(key)
            case _:
                there[key] = copy.deepcopy(chance.choice(ODD_VALUES))
    return top[0]


def _places(top: Any) -> Iterator[tuple[Any, Any]]:
    """Every value: what it stands in, and by which key."""
    for key, value in list(top.items() if isinstance(top, dict) else enumerate(top)):
        yield top, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _document(data: bytes) -> Any:
    """None: it is no JSON, or has nothing in it."""
    try:
        found = json.loads(data) if data[:1] in (b"{", b"[") else None
    except (ValueError, RecursionError):
        return None
    return found


def bent(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    seed = chance.choice(seeds)
    if chance.random() < 0.5 and (document := _document(seed)):
        # A half of a character, as JSON may name it, goes out as JSON names it.
        return json.dumps(bent_values(document, chance)).encode()
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                data[at : at + chance.choice((1, 4, 64))] = b""
            case 2:
                data[at:at] = chance.choice(ODD)
            case 3:
                other = chance.choice(seeds)
                begin = chance.randrange(len(other) + 1)
                data[at:at] = other[begin : begin + chance.randrange(64)]
            case 4:
                data[at : at + 8] = struct.pack(
                    "<Q", chance.choice((0, 1, 2**31, 2**63, 2**64 - 1))
                )
            case 5:
                del data[at:]
            case _:
                data[at : at + 4] = chance.randbytes(4)
    return bytes(data)
