"""A PyTorch program like any other, for the measurements on a real card. Prints one JSON object.

torch_job.py train|graph|compile|infer --seconds S [--warm S]   steps a second, latencies
torch_job.py nccl                                             an all-reduce of one process
torch_job.py keep --gib N                                     memory with content, steps until a line comes, then a look at it
"""

from __future__ import annotations

import argparse
import json
import select
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found]


def model() -> Any:
    """Matrix products (cuBLAS), norms and element-wise kernels, as in a transformer's block."""
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, 4).cuda()


def training() -> Callable[[], None]:
    net = model()
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-4)
    batch = torch.randn(96, 128, 512, device="cuda")  # the GPU is to be busy, not the processor

    def step() -> None:
        optimiser.zero_grad(set_to_none=False)
        net(batch).square().mean().backward()
        optimiser.step()

    return step


def captured() -> Callable[[], None]:
    step = training()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def compiled() -> Callable[[], None]:
    net = torch.compile(model().eval())
    batch = torch.randn(16, 128, 512, device="cuda")

    def step() -> None:
        with torch.no_grad():
            net(batch)

    return step


def inference() -> Callable[[], None]:
    net = model().eval()
    batch = torch.randn(1, 64, 512, device="cuda")

    def step() -> None:
        with torch.no_grad():
            net(batch)
        torch.cuda.synchronize()
        time.sleep(0.01)

    return step


def loop(step: Callable[[], None], warm_s: float, seconds: float) -> dict[str, float]:
    end = time.monotonic() + warm_s
    while time.monotonic() < end:
        step()
    torch.cuda.synchronize()
    taken: list[float] = []
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        at = time.monotonic()
        step()
        if len(taken) % 16 == 0:
            torch.cuda.synchronize()
        taken.append(time.monotonic() - at)
    torch.cuda.synchronize()
    wall = time.monotonic() - begin
    taken.sort()
    return {
        "steps_per_s": len(taken) / wall,
        "p50_ms": statistics.median(taken) * 1e3,
        "p99_ms": taken[min(len(taken) - 1, len(taken) * 99 // 100)] * 1e3,
    }


def nccl() -> dict[str, float]:
    import os

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    data = torch.ones(1 << 20, device="cuda")
    torch.distributed.all_reduce(data)
    torch.cuda.synchronize()
    total = float(data.sum())
    torch.distributed.destroy_process_group()
    return {"sum": total, "expected": float(1 << 20)}


def content(gib: int) -> int:
    """The sum of the words of that much memory, which is kept."""
    _kept.extend(
        torch.randint(-(2**62), 2**62, (2**27,), device="cuda", dtype=torch.int64)
        for _ in range(gib - len(_kept))
    )
    return sum(int(block.sum()) for block in _kept)


_kept: list[Any] = []


def keep(gib: int) -> dict[str, float]:
    step = training()
    before = content(gib)
    step()
    torch.cuda.synchronize()
    print(json.dumps({"ready": True}), flush=True)
    steps, longest, after = 0, 0.0, 0
    while not (told := select.select([sys.stdin], [], [], 0)[0]) or after == 0:
        at = time.monotonic()
        step()
        torch.cuda.synchronize()
        steps, longest = steps + 1, max(longest, time.monotonic() - at)
        after += bool(told)
    return {"same": content(gib) == before, "steps": steps, "after": after, "longest_s": longest}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["train", "graph", "compile", "infer", "nccl", "keep"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm", type=float, default=2.0)
    parser.add_argument("--gib", type=int, default=4)
    options = parser.parse_args()
    if options.what == "nccl":
        answer = nccl()
    elif options.what == "keep":
        answer = keep(options.gib)
    else:
        steps = {"train": training, "graph": captured, "compile": compiled, "infer": inference}
        answer = loop(steps[options.what](), options.warm, options.seconds)
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
