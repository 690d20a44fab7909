"""`grants.managed_oversubscription` from the settings to the program: off by default."""

from __future__ import annotations

import sys

import pytest

from tests.kit.node import running
from tests.kit.workplace import workplace

ASK = """
import ctypes as c
cuda = c.CDLL("libcuda.so.1")
context, at = c.c_void_p(), c.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(c.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
managed = cuda.cuMemAllocManaged(c.byref(at), c.c_size_t(6 << 30), 1)
plain = cuda.cuMemAlloc_v2(c.byref(at), c.c_size_t(6 << 30))
print('{"managed": %d, "plain": %d}' % (managed, plain))
"""


@pytest.mark.parametrize(
    ("settings", "managed"),
    [("", 2), ("[grants]\nmanaged_oversubscription = true\n", 0)],
    ids=["unless said", "said"],
)
def test_managed_memory_beyond_the_grant(settings: str, managed: int) -> None:
    with workplace() as directory, running(directory, gpus="1xh100-80gb", settings=settings) as it:
        job = it.run("job", sys.executable, "-c", ASK, flags=("--gpumem", "4Gi"))
        told = job.result()
        assert (told["managed"], told["plain"], told["exit"]) == (managed, 2, 0)
