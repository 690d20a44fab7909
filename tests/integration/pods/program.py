"""A program that asks a driver for its memory, and for more than it may have."""

from __future__ import annotations

TRY = """
import ctypes, json, os, sys
out = {}
try:
    cuda = ctypes.CDLL(sys.argv[1])
    context, p, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
    out["init"] = cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    out["total"] = total.value
    out["big"] = cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(3 << 30))
except OSError as error:
    out["error"] = str(error)
print(json.dumps(out))
"""
