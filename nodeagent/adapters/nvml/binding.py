"""The NVML binding `pynvml`: the one our package brings, or else the one of the environment.

Distributions have none, or one of many years ago; the package brings the version we test with.
"""

from __future__ import annotations

import sys

from nodeagent import native

_brought = str(native.locate().vendored)
sys.path.insert(0, _brought)
try:
    import pynvml
finally:
    sys.path.remove(_brought)

__all__ = ["pynvml"]
