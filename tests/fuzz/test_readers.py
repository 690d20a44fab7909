"""Each reader with good input and with some thousand bent ones; `make fuzz` goes on for longer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodeagent.adapters.host import elf
from tests.fuzz import mutation, queue_readers, readers
from tests.fuzz.__main__ import TARGETS
from tests.fuzz.shares import claims
from tests.fuzz.shares import readers as shares
from tests.kit.places import REPO

NAMES = (
    *("cdi json", "cdi yaml", "kubelet checkpoint", "nvml child", "proc cgroup", "elf symbols"),
    *("elf probes", "registration", "kernel record", "launch row", "uevent", "container toolkit"),
    *(
        "settings",
        "quantities",
        "record of a region",
        "cgroup of a user",
        "mount table",
        "usage page",
    ),
    *("http request", "watch of pods", "hami files", "kubeconfig", "token review"),
    *(
        "certificate",
        "seal",
        "device selector",
        "claim template",
        "http request of the queue",
        "webhook request",
        "applied object",
        "place in a list",
    ),
    *("node object", "queued job", "conversion review", "admission review"),
    "resource claim",
    *("hami device config", "vendor register", "vendor allocation", "scheduler question"),
    *("pod with shares", "what-if of the page", "stamp of the page"),
)
SLOW = ("hami files", "hami device config", "usage page", "cdi yaml")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, mutation.Target]:
    made = [
        *readers.targets(tmp_path_factory.mktemp("node")),
        *queue_readers.targets(),
        *claims.targets(),
        *shares.targets(),
    ]
    return {target.name: target for target in made}


def test_the_list_is_this_one(targets: dict[str, mutation.Target]) -> None:
    assert tuple(targets) == NAMES


def test_the_page_on_security_lists_every_target() -> None:
    page = (REPO / "docs" / "security.md").read_text()
    table = page.partition("## Untrusted input")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|")[-1] for line in table.splitlines() if line.startswith("|")]
    listed = {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}
    assert listed == {*NAMES, *TARGETS}


@pytest.mark.parametrize("name", NAMES)
def test_bent_input_is_read_or_refused_as_the_reader_says(
    targets: dict[str, mutation.Target], name: str
) -> None:
    target = targets[name]
    good = 0
    for seed in target.seeds:
        try:
            target.read(seed)
            good += 1
        except target.may_raise:
            continue
    assert good or name == "record of a region", "no seed leads into the reader"
    tried = mutation.fuzz(target, seed=1, inputs=300 if name in SLOW else 1500)
    assert tried.lines > 0, "none of our lines was reached"


def test_the_small_library_has_all_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(readers.small_library())
    assert elf.exports(path) == {"", "cuInit", "sluice_interposer_major"}
    assert elf.probes(path) == [elf.Probe("sluice", "launch", 8, "8@%rdi")]


def test_what_a_reader_does_not_say_is_a_finding(tmp_path: Path) -> None:
    def stumbles(data: bytes) -> object:
        return data[10]

    target = mutation.Target("stumbles", stumbles, (), (b"eleven bytes",), "a test")
    with pytest.raises(mutation.Finding, match="IndexError"):
        mutation.fuzz(target, seed=1, inputs=1000)
