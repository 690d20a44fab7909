"""NVML readings as lines of JSON arrays, from the reader process to the daemon.

Positional and typed by the dataclasses; both ends are of the same release. Written by hand because
the general codec of `sluicecommon.plain` looks up every field: with 8 GPUs and 400 processes that
alone took several percent of a core per sweep.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final

from nodeagent.ports.gpus import (
    CardProblem,
    GpuReading,
    MigReading,
    NodeReading,
    ProcessReading,
    ProfileReading,
)

_GPU: Final = tuple(f.name for f in fields(GpuReading))
_MIG: Final = tuple(f.name for f in fields(MigReading))
_PROCESS: Final = tuple(f.name for f in fields(ProcessReading))
_PROFILE: Final = tuple(f.name for f in fields(ProfileReading))
_NODE: Final = tuple(f.name for f in fields(NodeReading))
_PROCESSES: Final = _GPU.index("processes")
_THROTTLE: Final = _GPU.index("throttle_reasons")
_MIGS: Final = _GPU.index("mig")
_PROFILED: Final = _GPU.index("profile")
_GPUS: Final = _NODE.index("gpus")
_XIDS: Final = _NODE.index("xid_events")
_PROBLEM: Final = tuple(f.name for f in fields(CardProblem))
_PROBLEMS: Final = (_NODE.index("unread"), _NODE.index("without_xids"))


def encode(reading: NodeReading) -> str:
    """One line, without its newline."""
    node = [getattr(reading, name) for name in _NODE]
    node[_GPUS] = [_gpu_out(gpu) for gpu in reading.gpus]
    for place in _PROBLEMS:
        node[place] = [[getattr(one, name) for name in _PROBLEM] for one in node[place]]
    return json.dumps(node, separators=(",", ":"))


def decode(line: bytes | str) -> NodeReading:
    """The reading of a line. Raises ValueError or TypeError for anything that `encode` does not
    write."""
    try:
        plain = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply for a reading") from None
    node = _row(plain, len(_NODE))
    node[_GPUS] = tuple(_gpu_in(row) for row in node[_GPUS])
    node[_XIDS] = tuple((uuid, int(code)) for uuid, code in node[_XIDS])
    for place in _PROBLEMS:
        node[place] = tuple(CardProblem(*_row(one, len(_PROBLEM))) for one in node[place])
    return NodeReading(*node)


def _gpu_out(gpu: GpuReading) -> list[Any]:
    row = [getattr(gpu, name) for name in _GPU]
    row[_PROCESSES] = [[getattr(one, name) for name in _PROCESS] for one in gpu.processes]
    if gpu.mig is not None:
        row[_MIGS] = [[getattr(one, name) for name in _MIG] for one in gpu.mig]
    if gpu.profile is not None:
        row[_PROFILED] = [getattr(gpu.profile, name) for name in _PROFILE]
    return row


def _gpu_in(plain: Any) -> GpuReading:
    row = _row(plain, len(_GPU))
    row[_PROCESSES] = tuple(ProcessReading(*one) for one in row[_PROCESSES])
    if row[_THROTTLE] is not None:
        row[_THROTTLE] = tuple(row[_THROTTLE])
    if row[_MIGS] is not None:
        row[_MIGS] = tuple(MigReading(*one) for one in row[_MIGS])
    if row[_PROFILED] is not None:
        row[_PROFILED] = ProfileReading(*row[_PROFILED])
    return GpuReading(*row)


def _row(plain: Any, length: int) -> list[Any]:
    if not isinstance(plain, list) or len(plain) != length:
        raise ValueError(f"expected an array of {length}")
    return plain
