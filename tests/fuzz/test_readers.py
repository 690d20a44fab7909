"""Each reader with good input and with some thousand bent ones; `make fuzz` goes on for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import readers

NAMES = (
    *("cdi json", "cdi yaml", "kubelet checkpoint", "nvml child", "proc cgroup", "elf symbols"),
    *("elf probes", "registration", "kernel record", "launch row", "uevent", "container toolkit"),
    *("settings", "quantities", "record of a region"),
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, readers.Target]:
    made = readers.targets(tmp_path_factory.mktemp("kubelet"))
    return {target.name: target for target in made}


def test_the_list_is_this_one(targets: dict[str, readers.Target]) -> None:
    assert tuple(targets) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_bent_input_is_read_or_refused_as_the_reader_says(
    targets: dict[str, readers.Target], name: str
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
    assert readers.fuzz(target, seed=1, inputs=300 if name.startswith("elf") else 1500) > 0


def test_what_a_reader_does_not_say_is_a_finding(tmp_path: Path) -> None:
    def stumbles(data: bytes) -> object:
        return data[10]

    target = readers.Target("stumbles", stumbles, (), (b"eleven bytes",), "a test")
    with pytest.raises(readers.Finding, match="IndexError"):
        readers.fuzz(target, seed=1, inputs=1000)
