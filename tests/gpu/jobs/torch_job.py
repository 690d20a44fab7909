"""A PyTorch program like any other, for the measurements on a real card. Prints one JSON object.

torch_job.py turns --kind train|small|shapes|graphs             a line when it is ready; then for each line with seconds: steps a second
torch_job.py nccl                                             an all-reduce of one process
torch_job.py keep --gib N                                     memory with content, steps until a line comes, then a look at it
"""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found]


def model() -> Any:
    """Matrix products (cuBLAS), norms and element-wise kernels, as in a transformer's block."""
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, 4).cuda()


def training(batch_size: int = 96) -> Callable[[], None]:
    """96: the GPU is to be busy, not the processor."""
    net = model()
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-4)
    batch = torch.randn(batch_size, 128, 512, device="cuda")

    def step() -> None:
        optimiser.zero_grad(set_to_none=False)
        net(batch).square().mean().backward()
        optimiser.step()

    return step


def changing() -> Callable[[], None]:
    """Another length in each step, as prompts have: most launches have a shape of their own."""
    net = model().eval()
    tokens = torch.randn(16, 1024, 512, device="cuda")
    length = 64

    def step() -> None:
        nonlocal length
        length = 64 + (length * 5 + 37) % 961
        with torch.no_grad():
            net(tokens[:, :length])

    return step


def captured() -> Callable[[], None]:
    """A graph for each batch size from 1 to 8 in one private pool, replayed in turn, as inference servers do."""
    net = model().eval()
    tokens = torch.randn(8, 128, 512, device="cuda")
    pool = torch.cuda.graph_pool_handle()
    graphs = []
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                net(tokens)
        torch.cuda.current_stream().wait_stream(side)
        for size in range(8, 0, -1):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                net(tokens[:size])
            graphs.append(graph)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        graphs[turn % len(graphs)].replay()

    return step


KINDS: dict[str, Callable[[], Callable[[], None]]] = {
    "train": training,
    "small": lambda: training(4),
    "shapes": changing,
    "graphs": captured,
}


def turns(kind: str) -> None:
    """Works only when a line says for how long, so that others can have the GPU between."""
    step = KINDS[kind]()
    loop(step, 1.0)
    print(json.dumps({"ready": True}), flush=True)
    for text in sys.stdin:
        print(json.dumps({"steps_per_s": loop(step, float(text))}), flush=True)


def loop(step: Callable[[], None], seconds: float) -> float:
    """Steps a second; never more than 16 steps ahead of the GPU."""
    steps, begin = 0, time.monotonic()
    while time.monotonic() - begin < seconds:
        step()
        steps += 1
        if steps % 16 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return steps / (time.monotonic() - begin)


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
    parser.add_argument("what", choices=["turns", "nccl", "keep"])
    parser.add_argument("--kind", choices=list(KINDS), default="train")
    parser.add_argument("--gib", type=int, default=4)
    options = parser.parse_args()
    if options.what == "turns":
        turns(options.kind)
        return 0
    answer = nccl() if options.what == "nccl" else keep(options.gib)
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
