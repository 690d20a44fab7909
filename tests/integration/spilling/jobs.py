"""A program in a grant that holds memory with content, and does one thing for each line of its input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tests.kit.node import Node, until

GIB: Final = 1 << 30
PROGRAM: Final = """
import ctypes as c, json, random, subprocess, sys
cuda = c.CDLL("libcuda.so.1")
context, p, module, kernel = c.c_void_p(), c.c_uint64(), c.c_void_p(), c.c_void_p()
data = random.Random(1).randbytes(9 << 20)

def alloc(gib):
    q = c.c_uint64()
    return cuda.cuMemAlloc_v2(c.byref(q), c.c_size_t(int(gib) << 30)), q

def launch(name, ns):
    cuda.cuModuleGetFunction(c.byref(kernel), module, name)
    duration = c.c_uint64(ns)
    params = (c.c_void_p * 1)(c.addressof(duration))
    return cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, params, None)

assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(c.byref(context), 0, 0) == 0
cuda.cuModuleLoadData(c.byref(module), b"any image")
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    word, _, value = line.strip().partition(" ")
    if word == "hold":
        code, p = alloc(value)
        answer = code or cuda.cuMemcpyHtoD_v2(p, data, c.c_size_t(len(data)))
    elif word == "content":
        back = c.create_string_buffer(len(data))
        answer = cuda.cuMemcpyDtoH_v2(back, p, c.c_size_t(len(data))) == 0 and back.raw == data
    elif word == "work":
        answer = launch(b"sim_busy_ns", int(value)) or cuda.cuCtxSynchronize()
    elif word == "forever":
        answer = launch(b"sim_busy_forever", 0)
    elif word == "managed":
        answer = cuda.cuMemAllocManaged(c.byref(c.c_uint64()), c.c_size_t(1 << 20), 1)
    elif word == "alloc":
        answer = alloc(value)[0]
    elif word == "synchronise":
        answer = cuda.cuCtxSynchronize()
    elif word == "child":
        script = "import ctypes, sys; sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0) != 0)"
        answer = subprocess.run([sys.executable, "-c", script]).returncode
    print(json.dumps(answer), flush=True)
"""


class Job:
    def __init__(self, node: Node, name: str, *flags: str) -> None:
        self.name, self._node = name, node
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-m", "nodeagent.cli", "run", "--name", name, *flags),
                *("--", sys.executable, "-c", PROGRAM),
            ],
            env=node.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> Job:
        assert self._answer() == "ready"
        return self

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def do(self, *words: object) -> Any:
        self.tell(*words)
        return self._answer()

    def asked(self, *words: object) -> list[Any]:
        """Has the answer in it once there is one."""
        self.tell(*words)
        found: list[Any] = []
        threading.Thread(target=lambda: found.append(self._answer()), daemon=True).start()
        return found

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name} ended with {self.process.wait()}"
        return json.loads(line)

    def grant(self) -> dict[str, Any]:
        found = self._node.grant(self.name)
        assert found is not None
        return found

    def state(self) -> str:
        return str(self.grant()["state"])

    def pid(self) -> int:
        """PID of the program, which has taken the place of `sluice run`."""
        return int(self.grant()["pid"])

    def becomes(self, state: str) -> None:
        until(f"{self.name} is {state}", lambda: self.state() == state)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def around_sluice(node: Node, ends: ExitStack, gib: int) -> subprocess.Popen[str]:
    """The same program straight on the driver."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=node.on_the_driver(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    ends.callback(process.communicate)
    ends.callback(process.kill)
    assert process.stdin is not None
    process.stdin.write(f"alloc {gib}\n")
    process.stdin.flush()
    return process


CHECKPOINTING: Final = """
import ctypes as c, sys
cuda = c.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
for name in sys.argv[2:]:
    assert getattr(cuda, f"cuCheckpointProcess{name}")(int(sys.argv[1]), None) == 0, name
"""


def checkpointing(node: Node, pid: int, *steps: str) -> None:
    """Checkpoint with the driver's own calls, around Sluice, as any user may."""
    subprocess.run(
        [sys.executable, "-c", CHECKPOINTING, str(pid), *steps],
        env=node.on_the_driver(),
        check=True,
    )


def in_background(node: Node, ends: ExitStack, *words: str) -> subprocess.Popen[str]:
    """A command of `sluice`."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "nodeagent.cli", *words],
        env=node.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    ends.callback(process.communicate)
    ends.callback(process.kill)
    return process


def hangs(node: Node) -> Callable[[], bool]:
    """Probe that is true once the same child of the daemon has been waiting for the driver for half
    a second; if the child has another request to answer just then, the daemon is killed at that
    one."""
    seen: dict[int, float] = {}

    def probe() -> bool:
        now = time.monotonic()
        assert node.daemon is not None
        for pid in children(node.daemon.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"adapters.checkpoint.child" in words and now - seen.setdefault(pid, now) > 0.5:
                return True
        return False

    return probe


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def used_gib(node: Node) -> int:
    """Memory used on the first GPU in GiB, as NVML shows it."""
    return round(int(node.info()["gpus"][0]["memory_used_bytes"]) / GIB)


def control(node: Node, *lines: str) -> None:
    """Write the control file of the simulated driver."""
    fresh = node.directory / "gpu" / "control.new"
    fresh.write_text("".join(f"{line}\n" for line in lines))
    os.replace(fresh, node.directory / "gpu" / "control")
