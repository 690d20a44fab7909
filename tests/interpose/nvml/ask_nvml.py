"""Run as a program: what a libnvidia-ml.so.1 answers on a machine without a card."""

from __future__ import annotations

import ctypes as c
import json
import sys

library = c.CDLL(sys.argv[1])
library.nvmlErrorString.restype = c.c_char_p
answer: dict[str, object] = {}
for name in ("nvmlInit", "nvmlInit_v2", "nvmlShutdown"):
    answer[name] = getattr(library, name)()
answer["nvmlInitWithFlags"] = library.nvmlInitWithFlags(0)
number = c.c_uint(77)
for name in ("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2", "nvmlUnitGetCount"):
    answer[name] = [getattr(library, name)(c.byref(number)), number.value]
handle = c.c_void_p(0x5EED)
answer["nvmlDeviceGetHandleByIndex_v2"] = [
    library.nvmlDeviceGetHandleByIndex_v2(0, c.byref(handle)),
    handle.value,
]
answer["nvmlDeviceGetHandleByUUID"] = [
    library.nvmlDeviceGetHandleByUUID(b"GPU-0", c.byref(handle)),
    handle.value,
]
text = c.create_string_buffer(b"as it was", 80)
for name in ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"):
    answer[name] = [getattr(library, name)(text, 80), text.value.decode()]
answer["nvmlErrorString"] = [library.nvmlErrorString(i).decode() for i in range(32)]
print(json.dumps(answer))
