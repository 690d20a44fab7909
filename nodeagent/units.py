"""Names for the quantities that cross module borders, and the few constants that convert between
them.

A number without its unit has cost this field real outages (MiB read as bytes, percent read as a
ratio), so each value that passes from one module to another carries its unit in its type or in its
name.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NewType

GpuUuid = NewType("GpuUuid", str)
"""A GPU's UUID as NVML prints it: `GPU-` and a lower-case UUID."""
GrantId = NewType("GrantId", str)
"""Lower-case UUID of one grant instance; never reused."""
PodUid = NewType("PodUid", str)
"""The UID of a pod's object in Kubernetes."""
ANY_POD: Final = "*"
"""Used in place of a PodUid for a claim that several pods may use."""
RequestId = NewType("RequestId", int)
"""A client's pending request; unique while the daemon runs."""
Bytes = NewType("Bytes", int)
Nanoseconds = NewType("Nanoseconds", int)
Ppm = NewType("Ppm", int)
"""Parts per million: 1,000,000 is the whole GPU. Integer, so that sums are exact."""
SlotIndex = NewType("SlotIndex", int)
"""Slot of one process inside its grant's region, 0 to 255."""

WHOLE_PPM: Final = 1_000_000
NO_CEILING: Final = Ppm(0)
KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

MAX_DEVICES: Final = 16
"""GPUs in one grant; fixed by proto/region.h."""
MAX_SLOTS: Final = 256
"""Processes in one grant; fixed by proto/region.h."""


class SharePolicy(StrEnum):
    """Meaning of a share while its holder is alone on the GPU."""

    HARD = "hard"
    """The share is a cap, even while the grant is alone on the GPU."""
    ELASTIC = "elastic"
    """The whole GPU while alone; otherwise the share is the grant's weight."""
    EXCLUSIVE = "exclusive"
    """No other grant may be placed on the GPU."""


class Injection(StrEnum):
    """How a program is made to load our libcuda in place of the driver's."""

    AUTO = "auto"
    """A mount where possible."""
    MOUNT = "mount"
    ENVIRONMENT = "environment"


MAX_PRIORITY: Final = 1000
"""Priorities range from minus this to plus this."""
