"""The NVML binding `pynvml`: the one that our package brings, otherwise the environment's.

Distributions have none or a version that is years old; the package brings the version we test with.
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
