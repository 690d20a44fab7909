"""Types of command-line arguments: each function parses its text, or raises with the values that
are accepted (argparse puts the option's name before it)."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from nodeagent.core.gpus.mig_geometry import GeometryError, parse_geometry
from nodeagent.core.grants import quantities
from nodeagent.core.watch.detection import Rule
from nodeagent.ports.clients import MemoryAsk
from nodeagent.ports.views import EventKind
from nodeagent.units import MAX_DEVICES, MAX_PRIORITY, Ppm

K = TypeVar("K", bound=StrEnum)

LARGEST_PID: Final = 1 << 22
"""PID_MAX_LIMIT of 64-bit Linux."""
LONGEST_S: Final = 365 * 86_400.0
"""A year. gRPC keeps deadlines as nanoseconds in 64 bits, so a larger one overflows and expires at
once."""
LARGEST_ROW: Final = (1 << 63) - 1
"""Largest row number of SQLite."""
MAX_ROUNDS: Final = 10**9
EVENT_KINDS: Final = tuple(sorted([*Rule, *EventKind]))


def memory(text: str) -> MemoryAsk:
    try:
        return quantities.parse_memory(text)
    except quantities.QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def cores(text: str) -> Ppm:
    try:
        return quantities.parse_cores(text)
    except quantities.QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def priority(text: str) -> int:
    return _whole(text, -MAX_PRIORITY, MAX_PRIORITY, "a priority")


def gpus(text: str) -> int:
    return _whole(text, 1, MAX_DEVICES, "a number of GPUs")


def pid(text: str) -> int:
    return _whole(text, 1, LARGEST_PID, "a process id")


def geometry(text: str) -> tuple[str, ...]:
    try:
        return parse_geometry(text)
    except GeometryError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def gpu(text: str) -> str:
    """A UUID or an index; the daemon checks that the GPU exists."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a UUID or an index")
    return text


def number(text: str) -> int:
    return _whole(text, 1, LARGEST_ROW, "a number of `sluice contained`")


def rounds(text: str) -> int:
    return _whole(text, 0, MAX_ROUNDS, "a number of rounds")


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"expected a number of seconds, 0 to {LONGEST_S:.0f} (a year)"
        )
    return value


def path(text: str) -> str:
    """A path. An empty one comes from an unset variable of a script, so it is refused."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a path, or leave the option out")
    return text


def file(text: str) -> Path:
    return Path(path(text))


def one_of(kind: type[K]) -> Callable[[str], K]:
    """Converter for `type=` beside `choices=list(kind)`, whose error lists the values instead of
    Python's names."""

    def choice(text: str) -> K:
        try:
            return kind(text)
        except ValueError:
            known = ", ".join(kind)
            raise argparse.ArgumentTypeError(f"must be one of {known}, got {text!r}") from None

    return choice


def _whole(text: str, least: int, most: int, what: str) -> int:
    digits = text.removeprefix("-")
    # int() accepts digits of every script, and raises for thousands of digits.
    number = int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None
    if number is None or not least <= number <= most:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not {what}, a whole number from {least} to {most}"
        )
    return number
