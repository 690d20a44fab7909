"""Checks the layers of the C files of interpose/, simgpu/ and nativecommon/, as import-linter does for
Python: no file uses a higher layer, no two files use each other, and the simulated GPU uses nothing
of Sluice.

A file uses another if it includes its header, or if its object file refers to a symbol that the
other defines (a function may be called through a declaration in a lower header). The object files
are those of build/meson; without a build only the includes are checked, and a line reports that.

    python packaging/development/c_layers.py            check; exit status 1 and a line for each mistake
    python packaging/development/c_layers.py --table    the tables of docs/node/interposer.md and simulator.md
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

REPO: Final = Path(__file__).resolve().parents[2]
BUILD: Final = REPO / "build" / "meson"
PAGES: Final = {
    "interpose": REPO / "docs" / "node" / "interposer.md",
    "simgpu": REPO / "docs" / "node" / "simulator.md",
}
"""Page with the table of the folders that have this prefix; the longest prefix counts."""

LAYERS: Final[tuple[dict[str, str], ...]] = (
    {"interpose": "entry points of both caps: cuInit, cuGetProcAddress, contexts, synchronization"},
    {"interpose/graph": "executable graphs: memory and launches"},
    {
        "interpose/memory": "memory cap: allocations, pools, reported sizes",
        "interpose/compute": "compute cap: launches, copies, the gate, work in flight",
    },
    {"interpose/compute/timing": "what measured times show: prices, siblings, changes of contexts"},
    {
        "interpose/compute/rules": "arithmetic of the compute cap: prices, estimates, fairness between processes"
    },
    {
        "interpose/tenant": "this process in its grant: slot, devices, charges",
        "interpose/nvml": "libnvidia-ml, with the grant's devices and limits",
    },
    {
        "simgpu/cuda": "libcuda: contexts, devices, older and newer forms of calls",
        "simgpu/nvml": "libnvidia-ml",
    },
    {"simgpu/cuda/work": "stream work: launches, copies, events, graph nodes, synchronization"},
    {"simgpu/cuda/modules": "modules, functions, variables"},
    {
        "simgpu/cuda/memory": "memory types, pointer attributes",
        "simgpu/cuda/images": "parsers of code images",
    },
    {"simgpu/cuda/pools": "memory pools, stream-ordered allocation, graph memory"},
    {
        "simgpu/cuda/ranges": "device addresses, backing bytes, memory accounting",
        "simgpu/cuda/graphs": "graph structures, stream capture",
    },
    {"simgpu/cuda/streams": "streams, operations of blocked ones"},
    {"simgpu/cuda/base": "process, devices, the queue of a context, entry checks"},
    {"simgpu/node": "the shared node: cards, timelines, injected faults"},
    {"simgpu/kernel": "this process's cgroups"},
    {"interpose/driver": "list of hooks, the real driver, trampolines to it"},
    {
        "interpose/attach": "joining a grant: region, registration, settings, loading the real libraries",
        "interpose/hook": "program for the container runtime; standalone",
    },
    {"proto": "shared memory and messages between processes"},
    {
        "nativecommon": "shared by interposer and simulated driver: driver types, rounding of sizes, the kernel's clock"
    },
)
"""Layers from the top down. A folder may use those below it, not those beside it; one that is not
named belongs to its parent's."""

APART: Final = "simgpu"
"""Used by no file outside of it: a tenant does not know whether its GPU is simulated."""

SHARED: Final = "nativecommon"
"""All that simgpu/ may use outside of itself. The build also reads the names of driver functions out of interpose's lists
(simgpu/meson.build)."""

ONE: Final = {
    "interpose/driver/forward": "interpose/driver/driver",
    "interpose/nvml/forward": "interpose/nvml/nvml",
}
"""Trampolines in assembly, and the C file that resolves their targets: each pair counts as one file."""

BUILT: Final = ("interpose", "simgpu", "nativecommon")

INCLUDE: Final = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

Edge = tuple[Path, Path]
"""A file and one that it needs, both relative to the repository."""


def level(folder: str) -> tuple[int, str]:
    """Number of a folder's layer, counted from the top, and the folder's name in the table."""
    while folder:
        for i, layer in enumerate(LAYERS):
            if folder in layer:
                return i, folder
        folder = folder.rpartition("/")[0]
    raise LookupError("a folder that is in no layer")


def sources() -> Iterator[Path]:
    for folder in (*BUILT, "proto"):
        for path in sorted((REPO / folder).rglob("*")):
            if path.suffix in {".c", ".h", ".S", ".def"}:
                yield path.relative_to(REPO)


def includes() -> dict[Edge, str]:
    """All includes of one of our files by another, with their text."""
    found = {}
    for path in sources():
        for name in INCLUDE.findall((REPO / path).read_text()):
            if (REPO / name).is_file():
                found[path, Path(name)] = f'#include "{name}"'
    return found


def objects() -> dict[Path, list[tuple[Path, Path]]]:
    """Object files of each target of the build, with their sources."""
    commands = BUILD / "compile_commands.json"
    targets: dict[Path, list[tuple[Path, Path]]] = defaultdict(list)
    for one in json.loads(commands.read_text()) if commands.is_file() else []:
        source = Path(one["directory"], one["file"]).resolve()
        made = Path(one["directory"], one["output"])
        ours = any(source.is_relative_to(REPO / folder) for folder in BUILT) and made.is_file()
        if ours and any(BUILD / folder in made.parents for folder in BUILT):  # not tests' variants
            targets[made.parent].append((made, source.relative_to(REPO)))
    return targets


def symbols(made: Path) -> tuple[set[str], set[str], set[str]]:
    """Symbols of an object file: defined for others, defined weakly (used where no other object
    defines them), and left to others."""
    done = subprocess.run(
        ["nm", "--portability", "--extern-only", made], capture_output=True, text=True, check=True
    )
    defined: set[str] = set()
    weak: set[str] = set()
    undefined: set[str] = set()
    for line in done.stdout.splitlines():
        name, kind, *_ = line.split()
        (undefined if kind in "Uw" else weak if kind in "WV" else defined).add(name)
    return defined, weak, undefined


def calls() -> dict[Edge, str]:
    """All uses of a symbol of one file by another that is linked with it, with the symbol."""
    found = {}
    for files in objects().values():
        tables = {source: symbols(made) for made, source in files}
        home = {name: source for source, (_, weak, _) in tables.items() for name in weak}
        home |= {name: source for source, (defined, _, _) in tables.items() for name in defined}
        for source, (_, _, undefined) in tables.items():
            for name in sorted(undefined & home.keys()):
                found[source, home[name]] = name
    return found


def upwards(edges: Mapping[Edge, str]) -> Iterator[str]:
    for (user, used), how in edges.items():
        (high, above), (low, below) = level(str(user.parent)), level(str(used.parent))
        if above != below and low <= high:
            where = "beside" if low == high else "above"
            yield f"{user}: {how}: {used} lies {where} it ({below}, {above})"
        if below.startswith(APART) and not above.startswith(APART):
            yield f"{user}: {how}: no file outside of {APART} may use {used}"
        if above.startswith(APART) and below not in (APART, SHARED) and not below.startswith(APART):
            yield f"{user}: {how}: {APART} may use nothing of Sluice but {SHARED}"


def cycles(edges: Mapping[Edge, str]) -> Iterator[list[str]]:
    """Cycles: sets of files that use each other, by Tarjan's algorithm. A source and its header count
    as one file."""
    needs: dict[str, set[str]] = defaultdict(set)
    for user, used in edges:
        one, other = (
            ONE.get(name, name) for name in map(str, (user.with_suffix(""), used.with_suffix("")))
        )
        if one != other:
            needs[one].add(other)
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> Iterator[list[str]]:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(needs.get(node, ())):
            if other not in number:
                yield from visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            together = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(together) > 1:
                yield sorted(together)

    for node in sorted(needs):
        if node not in number:
            yield from visit(node)


def page_of(folder: str) -> str:
    return max((start for start in PAGES if folder.startswith(start)), key=len, default="interpose")


def table(page: str) -> str:
    rows = ["| Folder | What it is |", "|---|---|"]
    for layer in LAYERS:
        here = {folder: what for folder, what in layer.items() if page_of(folder) == page}
        if here:
            folders = "<br>".join(f"`{folder}/`" for folder in here)
            rows.append(f"| {folders} | {'<br>'.join(here.values())} |")
    return "\n".join(rows) + "\n"


def errors() -> Iterator[str]:
    called = calls()
    if not called:
        yield "no objects in build/meson to read symbols from: make build"
    yield from upwards(includes())
    yield from upwards(called)
    for together in cycles({**includes(), **called}):
        yield "need each other: " + ", ".join(together)
    for page, path in PAGES.items():
        if table(page) not in path.read_text():
            yield f"{path.relative_to(REPO)} has another table than this file: paste what --table prints"


def main() -> int:
    if sys.argv[1:] == ["--table"]:
        print("\n".join(table(page) for page in PAGES), end="")
        return 0
    found = list(errors())
    print("\n".join(found) or "layers of interpose/ and simgpu/: kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
