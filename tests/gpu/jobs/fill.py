"""Fills a GPU by one third-party library until the library fails, frees all, and takes a block again.

fill.py WAY     prints one JSON object when it is full and waits for a line; then another at its end
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

BLOCK = 256 << 20
MOST = 40
"""Blocks: where nothing refuses, a card is not filled to its brim by managed memory."""


class Way:
    """How a library spells it."""

    refusal: type[BaseException] | tuple[type[BaseException], ...]

    def total(self) -> int:
        raise NotImplementedError

    def take(self) -> Any:
        raise NotImplementedError

    def clear(self) -> None:
        """Give the memory that the library caches back to the driver."""


class Torch(Way):
    def __init__(self, allocator: str = "") -> None:
        if allocator:
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = allocator
        import torch  # type: ignore[import-not-found]

        self.torch, self.refusal = torch, torch.cuda.OutOfMemoryError

    def total(self) -> int:
        return int(self.torch.cuda.mem_get_info()[1])

    def take(self) -> Any:
        block = self.torch.empty(BLOCK, dtype=self.torch.uint8, device="cuda").fill_(1)
        self.torch.cuda.synchronize()
        return block

    def clear(self) -> None:
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()


class CuPy(Way):
    def __init__(self, kind: str) -> None:
        import cupy  # type: ignore[import-not-found]

        self.cupy = cupy
        self.refusal = (
            cupy.cuda.memory.OutOfMemoryError,
            cupy.cuda.runtime.CUDARuntimeError,
        )
        self.pool = {
            "pool": cupy.cuda.MemoryPool,
            "async": cupy.cuda.MemoryAsyncPool,
            "managed": lambda: cupy.cuda.MemoryPool(cupy.cuda.malloc_managed),
        }[kind]()
        cupy.cuda.set_allocator(self.pool.malloc)

    def total(self) -> int:
        return int(self.cupy.cuda.Device().mem_info[1])

    def take(self) -> Any:
        block = self.cupy.ones(BLOCK, dtype=self.cupy.uint8)
        self.cupy.cuda.Device().synchronize()
        return block

    def clear(self) -> None:
        self.cupy.cuda.Device().synchronize()
        self.pool.free_all_blocks()


class Jax(Way):
    def __init__(self) -> None:
        import jax  # type: ignore[import-not-found]

        self.jax, self.refusal = jax, RuntimeError  # XlaRuntimeError: RESOURCE_EXHAUSTED
        self.device = jax.devices("gpu")[0]

    def total(self) -> int:
        """Size of the GPU as the library believes it: it took 75 % of that in advance."""
        taken = int(self.device.memory_stats()["bytes_limit"])
        return round(taken / 0.75)

    def take(self) -> Any:
        return self.jax.numpy.ones(BLOCK, dtype="uint8").block_until_ready()


class Numba(Way):
    def __init__(self) -> None:
        from numba import cuda  # type: ignore[import-not-found]
        from numba.cuda.cudadrv.driver import CudaAPIError  # type: ignore[import-not-found]

        self.cuda, self.refusal = cuda, (CudaAPIError, MemoryError)

    def total(self) -> int:
        return int(self.cuda.current_context().get_memory_info()[1])

    def take(self) -> Any:
        import numpy

        return self.cuda.device_array(BLOCK, dtype=numpy.uint8)

    def clear(self) -> None:
        self.cuda.current_context().deallocations.clear()


WAYS: dict[str, Callable[[], Way]] = {
    "torch": Torch,
    "torch-segments": lambda: Torch("expandable_segments:True"),
    "torch-async": lambda: Torch("backend:cudaMallocAsync"),
    "cupy": lambda: CuPy("pool"),
    "cupy-async": lambda: CuPy("async"),
    "cupy-managed": lambda: CuPy("managed"),
    "jax": Jax,
    "numba": Numba,
}


def main() -> int:
    way = WAYS[sys.argv[1]]()
    total, refused = way.total(), ""
    held: list[Any] = []
    try:
        while len(held) < MOST:
            held.append(way.take())
    except way.refusal as error:
        refused = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    told = {"total_bytes": total, "held_bytes": len(held) * BLOCK, "refused": refused}
    print(json.dumps(told), flush=True)
    sys.stdin.readline()
    held.clear()
    way.clear()
    held.append(way.take())
    print(json.dumps({"recovered": True}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
