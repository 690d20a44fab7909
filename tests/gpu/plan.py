"""The scenes of tests/gpu/run, most valuable first, with the seconds that each may take of a run of 540."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from tests.gpu.budget import Scene
from tests.gpu.scenes import (
    card,
    costs,
    faults,
    frameworks,
    hami,
    hooks,
    kept,
    kv,
    libraries,
    mps,
    serving,
    sharing,
    slices,
    unusual,
)
from tests.gpu.stage import Stage

Run = Callable[[Stage], None]
PLAN: tuple[tuple[Scene, Run], ...] = (
    (Scene("0", "card", 40, "the card, doctor, what the daemon reports"), card.run),
    (Scene("A", "slices", 30, "time slices and changes of contexts, without Sluice"), slices.run),
    (Scene("B", "costs", 15, "costs of driver calls"), costs.run),
    (Scene("C", "shares", 95, "shares side by side, bare and with Sluice"), sharing.run),
    (Scene("D", "serving", 50, "a server beside a training job"), serving.run),
    (Scene("E", "hooks", 40, "hooks and ever new shapes"), hooks.run),
    (Scene("F", "fills", 45, "memory: everything fills its grant at once"), libraries.run),
    (Scene("G", "mps", 30, "the same jobs under MPS"), mps.run),
    (Scene("H", "frameworks", 85, "PyTorch, steps interleaved"), frameworks.run),
    (Scene("I", "kv", 20, "a server's cache: measure, take, sleep, wake"), kv.run),
    (Scene("J", "kept", 40, "spill to the host and return"), kept.run),
    (Scene("K", "faults", 45, "kills, a program without a grant, resizing"), faults.run),
    (Scene("L", "hami", 20, "HAMi-core, where its library lies beside the run"), hami.run),
    (Scene("M", "unusual", 30, "GPUs by UUID, several processes of a grant"), unusual.run),
    (Scene("N", "lone", 40, "one capped job alone"), sharing.run_lone),
)
SCENES = tuple(scene for scene, _ in PLAN)
RUNS = MappingProxyType({scene.name: run for scene, run in PLAN})
