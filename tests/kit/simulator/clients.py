"""Clients of the simulated driver: processes of their own in which a test runs functions through ctypes.

`Client.call(f, *args)` runs the importable function `f(cuda, *args)` there; `cuda` is the loaded driver. A CUDA error
is raised as CudaError with the driver's own number.
"""

from __future__ import annotations

import ctypes as c
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.kit.places import SIM

SYNC, PER_THREAD = 0, 2
GIB = 2**30


class CudaError(Exception):
    def __init__(self, name: str, code: int) -> None:
        super().__init__(name, code)
        self.name, self.code = name, code


class Cuda:
    """The driver, every call checked. Pointers are ctypes' own."""

    def __init__(self, path: Path) -> None:
        self.library = c.CDLL(str(path))
        self.held: list[Any] = []

    def try_(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments))

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            code = self.try_(name, *arguments)
            if code:
                raise CudaError(name, code)

        return call

    # What nearly every test needs.

    def context(self, device: int = 0) -> c.c_void_p:
        self.cuInit(0)
        handle = c.c_void_p()
        self.cuCtxCreate_v2(c.byref(handle), 0, device)
        return handle

    def stream(self) -> c.c_void_p:
        handle = c.c_void_p()
        self.cuStreamCreate(c.byref(handle), 1)
        return handle

    def event(self) -> c.c_void_p:
        handle = c.c_void_p()
        self.cuEventCreate(c.byref(handle), 0)
        return handle

    def kernel(self, name: str = "sim_busy_ns") -> c.c_void_p:
        module, function = c.c_void_p(), c.c_void_p()
        self.cuModuleLoadData(c.byref(module), b"any image")
        self.cuModuleGetFunction(c.byref(function), module, name.encode())
        return function

    def launch(
        self,
        kernel: c.c_void_p,
        stream: Any = None,
        ns: int = 0,
        grid: int = 1,
        symbol: str = "cuLaunchKernel",
    ) -> None:
        duration = c.c_uint64(ns)
        params = (c.c_void_p * 1)(c.addressof(duration))
        getattr(self, symbol)(kernel, grid, 1, 1, 32, 1, 1, 0, stream, params, None)

    def elapsed_ms(self, before: c.c_void_p, after: c.c_void_p) -> float:
        ms = c.c_float()
        self.cuEventElapsedTime(c.byref(ms), before, after)
        return ms.value

    def memory(self) -> tuple[int, int]:
        free, total = c.c_size_t(), c.c_size_t()
        self.cuMemGetInfo_v2(c.byref(free), c.byref(total))
        return free.value, total.value

    def alloc(self, size: int) -> int:
        pointer = c.c_uint64()
        self.cuMemAlloc_v2(c.byref(pointer), c.c_size_t(size))
        return pointer.value


_cuda: Cuda | None = None


def _start(environment: dict[str, str]) -> None:
    global _cuda
    os.environ.update(environment)
    _cuda = Cuda(Path(environment.get("TEST_CUDA", SIM / "libcuda.so.1")))


def _run(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    assert _cuda is not None
    return function(_cuda, *arguments)


class Client:
    def __init__(self, environment: dict[str, str]) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _start, (environment,))
        self.pid: int = self.submit(_pid).result(60)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.submit(_run, function, arguments)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.submit(function, *arguments).result(60)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _pid(_cuda: Cuda) -> int:
    return os.getpid()


class Card:
    """One simulated node in a directory of its own."""

    def __init__(self, directory: Path, gpus: str) -> None:
        self.directory = directory
        self._environment = {"SLUICE_SIM_DIR": str(directory), "SLUICE_SIM_GPUS": gpus}
        self._clients: list[Client] = []

    def client(self, **environment: str) -> Client:
        client = Client({**self._environment, **environment})
        self._clients.append(client)
        return client

    def control(self, *lines: str) -> None:
        fresh = self.directory / "control.new"
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.replace(self.directory / "control")

    def close(self) -> None:
        for client in self._clients:
            client.close()


@contextmanager
def card(directory: Path, gpus: str = "h100-80gb") -> Iterator[Card]:
    directory.mkdir(exist_ok=True)
    it = Card(directory, gpus)
    try:
        yield it
    finally:
        it.close()
