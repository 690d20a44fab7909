"""CUDA_VISIBLE_DEVICES of every kind in a grant of two of a machine's three GPUs: an index counts the grant's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.odd.programs import BY_MOUNT, GIB, in_grant
from tests.kit.node import Node, running

V100, H100, A100 = "V100", "H100", "A100"

SEEN = """
import os
{before}
code = cuda.cuInit(0)
cards = []
for device in range(device_count() if code == 0 else 0):
    context = pointer()
    retained = cuda.cuDevicePrimaryCtxRetain(byref(context), device)
    cards.append([name(device), total(device), retained])
answer(init=code, cards=cards, nvml=nvml_names(management()))
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("visible")
    with running(directory, gpus="v100-32gb,h100-80gb,a100-40gb") as started:
        yield started


def uuids(node: Node) -> list[str]:
    return [gpu["uuid"] for gpu in node.info()["gpus"]]


def seen(node: Node, before: str, *more: str, order: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    own = uuids(node)
    flags = ("--gpumem", "4Gi", *(f"--gpu-uuid={own[i]}" for i in order), *more)
    return in_grant(node, SEEN.format(before=before), flags=flags)


def models(cards: list[list[Any]]) -> list[str]:
    return [next(model for model in (V100, H100, A100) if model in card[0]) for card in cards]


def set_to(value: str) -> str:
    return f"os.environ['CUDA_VISIBLE_DEVICES'] = {value!r}"


UNSET = "os.environ.pop('CUDA_VISIBLE_DEVICES')"


@pytest.mark.parametrize(
    ("value", "cards"),
    [
        ("0", [H100]),
        ("1", [A100]),
        ("0,1", [H100, A100]),
        ("1,0", [A100, H100]),
        ("2", []),
        ("0,2,1", [H100]),
        ("0,0", []),
        ("0,x,1", [H100]),
        (" 1", [A100]),
        ("-1", []),
        ("", []),
    ],
)
def test_an_index_counts_the_gpus_of_the_grant(node: Node, value: str, cards: list[str]) -> None:
    got = seen(node, set_to(value))
    assert models(got["cards"]) == cards
    assert got["init"] == (0 if cards else 100)
    assert all(card[1:] == [4 * GIB, 0] for card in got["cards"]), got["cards"]


def test_without_the_variable_the_grants_gpus_are_shown_and_no_other(node: Node) -> None:
    got = seen(node, UNSET)
    assert models(got["cards"]) == [H100, A100]
    assert all(card[1:] == [4 * GIB, 0] for card in got["cards"])


def test_a_uuid_names_the_same_gpu_as_before(node: Node) -> None:
    own = uuids(node)
    assert models(seen(node, set_to(own[2]))["cards"]) == [A100]
    assert models(seen(node, set_to(f"{own[2][:12]},0"))["cards"]) == [A100, H100]


def test_a_gpu_of_another_grant_gives_no_context(node: Node) -> None:
    got = seen(node, set_to(uuids(node)[0]))
    assert [card[2] for card in got["cards"]] == [46]


def test_cuda_and_nvml_number_the_grant_alike_in_whatever_order_its_gpus_were_named(
    node: Node,
) -> None:
    got = seen(node, set_to("0,1"), order=(2, 1))
    assert models([[name] for name in got["nvml"]]) == [H100, A100]
    assert models(got["cards"]) == [H100, A100]


@pytest.mark.skipif(not BY_MOUNT, reason="mounting takes root")
def test_by_environment_and_by_mount_are_the_same(node: Node) -> None:
    for way in ("mount", "environment"):
        assert models(seen(node, set_to("1"), "--inject", way)["cards"]) == [A100], way


def test_a_mig_device_has_its_cards_index(tmp_path: Path) -> None:
    with running(tmp_path / "mig", gpus="v100-32gb,h100-80gb:1g.10gb+1g.10gb") as node:
        instances = [uuid for uuid in uuids(node) if uuid.startswith("MIG-")]
        flags = ("--gpumem", "2Gi", "--gpu-uuid", instances[1])
        got = in_grant(node, SEEN.format(before=set_to("0")), flags=flags)
        assert [card[1:] for card in got["cards"]] == [[2 * GIB, 0]]


@pytest.mark.parametrize("first", ["cuda", "nvml"])
def test_nvml_shows_the_grant_whichever_library_is_loaded_first(node: Node, first: str) -> None:
    """The interposer reads the card's figures from the real NVML, whose name the program requests later."""
    code = """
    names = nvml_names(management()) if {nvml_first} else None
    init()
    answer(names=names or nvml_names(management()))
    """.replace("{nvml_first}", str(first == "nvml"))
    for way in ("mount", "environment") if BY_MOUNT else ("environment",):
        flags = ("--gpumem", "4Gi", "--gpu-uuid", uuids(node)[2], "--inject", way)
        assert models([[name] for name in in_grant(node, code, flags=flags)["names"]]) == [A100], (
            way
        )
