"""Scene L: HAMi-core in the same scenes, as a baseline, only where its library lies beside the run (`libvgpu.so`). It is no
part of this repository and is never fetched."""

from __future__ import annotations

import functools
from pathlib import Path

from tests.gpu.play import play
from tests.gpu.stage import JOB, WAYS, Stage, rate
from tests.kit.places import REPO

PLACES = (Path("libvgpu.so"), REPO / "libvgpu.so", REPO / "tests" / "gpu" / "libvgpu.so")


def library() -> Path | None:
    return next((place.resolve() for place in PLACES if place.is_file()), None)


def _env(stage: Stage, hami: Path, name: str, percent: int) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(hami),
        "CUDA_DEVICE_MEMORY_LIMIT_0": "6g",
        "CUDA_DEVICE_SM_LIMIT": str(percent),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(stage.node.directory / f"hami-{name}.cache"),
    }


def shares(stage: Stage, hami: Path, parts: tuple[int, ...]) -> None:
    alone = stage.alone(stage.per_ms)
    times = ("--warm", f"{stage.seconds(1.5)}", "--seconds", f"{stage.seconds(3)}")
    arguments = ("train", *stage.work(stage.per_ms), *times)
    start = stage.start_ns(len(parts), under_us=False)
    jobs = [
        stage.bare(JOB, *arguments, "--start-ns", start, env=_env(stage, hami, f"{i}", cores))
        for i, cores in enumerate(parts)
    ]
    got = [rate(job.result(60)) / alone for job in jobs]
    name = "/".join(map(str, parts))
    stage.report.facts[name] = got
    shown = " / ".join(f"{one:.1%}" for one in got)
    stage.report.figure(f"HAMi-core, {name} %", f"{shown}, sum {sum(got):.1%}")


def fill(stage: Stage, hami: Path) -> None:
    job = stage.bare(WAYS, "driver", env=_env(stage, hami, "fill", 100))
    out, _ = job.process.communicate("\n", timeout=60)
    stage.report.figure("HAMi-core, 6 GiB filled by cuMemAlloc", out.splitlines()[0])


def run(stage: Stage) -> None:
    hami = library()
    if hami is None:
        stage.report.figure("HAMi-core", "no libvgpu.so beside the run")
        return
    stage.node.directory.mkdir(parents=True, exist_ok=True)
    play(
        stage.report,
        {
            "50": functools.partial(shares, stage, hami, (50,)),
            "30/70": functools.partial(shares, stage, hami, (30, 70)),
            "fill": functools.partial(fill, stage, hami),
        },
    )
