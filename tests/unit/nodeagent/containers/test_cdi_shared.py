"""The CDI file shared by all containers: names, contents, and how long it lives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.adapters.containers.cdi_files import OUR_DRIVERS, OURS, CdiFiles
from nodeagent.adapters.kubelet.wire import driver_of, nonce_of
from nodeagent.core.kubelet import cdi, cdi_base
from nodeagent.ports.containers import ContainerAnswer
from tests.kit.cdi import CUDA, FILES, GPU_A, GPU_B, LIBRARIES, NONCE, OTHER, grant, library
from tests.kit.fakes.cdi_cache import CdiCache, Edits
from tests.kit.fakes.nvidia_cdi import installed_spec, write_installed
from tests.kit.node import until

OTHER_NONCE = NONCE[::-1]
NEWER = {path.replace("570.86.15", "575.51.03"): path for path in LIBRARIES}
LINK_HOOK = {
    "hookName": "createContainer",
    "path": "/usr/bin/nvidia-cdi-hook",
    "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "../card1::/dev/dri/by-path/card"],
}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    write_installed(tmp_path / "etc", installed_spec([GPU_A, GPU_B], LIBRARIES, hook="/bin/true"))
    return tmp_path / "etc"


@pytest.fixture
def files(installed: Path, tmp_path: Path) -> CdiFiles:
    made = CdiFiles(cdi.by_cri, lambda: {GPU_A: 0, GPU_B: 1}, (installed, tmp_path / "run"))
    made.renew_driver(FILES)
    return made


def given_to(files: CdiFiles, nonce: str, driver: str) -> Edits:
    """Edits that the runtime makes from an answer."""
    cache = CdiCache(files.directories)
    try:
        assert cache.errors == {}
        return cache.inject(cdi.device_names(nonce, driver))
    finally:
        cache.close()


def as_a_runtime_has_it(edits: Edits) -> dict[str, Any]:
    """Mounts and nodes by their place in the container, the last one of each: what counts."""
    return {
        **edits,
        "mounts": {one["containerPath"]: one for one in edits["mounts"]},
        "deviceNodes": {one["path"]: one for one in edits["deviceNodes"]},
    }


def drivers(files: CdiFiles) -> list[str]:
    return sorted(path.name for path in files.directories[-1].glob(f"{OUR_DRIVERS}*"))


# --- contents -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [(GPU_A,), (GPU_B,), (GPU_A, GPU_B)])
@pytest.mark.parametrize("hook", ["", "/opt/sluice/hook/sluice-container-hook"])
def test_both_files_together_are_what_the_one_file_was(
    files: CdiFiles, gpus: tuple[Any, ...], hook: str
) -> None:
    made = grant(gpus=gpus, hook_path=hook)
    files.write(NONCE, made, "")
    files.write(OTHER_NONCE, made, files.driver)
    whole = as_a_runtime_has_it(given_to(files, NONCE, ""))
    assert as_a_runtime_has_it(given_to(files, OTHER_NONCE, files.driver)) == whole
    assert whole["mounts"][CUDA]["hostPath"] == "/opt/sluice/shim/libcuda.so.1"
    assert whole["mounts"]["/run/sluice/driver/libcuda.so.1"]["hostPath"] == CUDA


def test_a_grants_own_file_has_its_gpu_its_region_and_nothing_else(files: CdiFiles) -> None:
    files.write(NONCE, grant(), files.driver)
    path = files.directories[-1] / f"{OURS}{NONCE}.json"
    (device,) = json.loads(path.read_text())["devices"]
    assert set(device["containerEdits"]) == {"deviceNodes", "mounts"}
    assert [one["path"] for one in device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia0"]
    assert [one["containerPath"] for one in device["containerEdits"]["mounts"]] == [
        "/run/sluice/grant",
        "/run/sluice/grant/usage.shm",
    ]
    assert path.stat().st_size < 800, "a node has a hundred of them"


def test_what_all_have_names_no_gpu_and_no_grant(files: CdiFiles) -> None:
    text = (files.directories[-1] / drivers(files)[0]).read_text()
    for own in (GPU_A, GPU_B, "/dev/nvidia0", "/dev/nvidia1", "/run/sluice/grant"):
        assert own not in text


_PART = st.fixed_dictionaries(
    {},
    optional={
        "env": st.lists(st.sampled_from(["A=1", "A=2", "B=1"]), max_size=2, unique=True),
        "deviceNodes": st.lists(
            st.sampled_from([{"path": f"/dev/{name}"} for name in ("ctl", "uvm", "gpu")]),
            max_size=3,
        ),
        "mounts": st.lists(
            st.sampled_from(
                [
                    {"hostPath": path, "containerPath": path}
                    for path in (CUDA, OTHER, "/usr/lib32/libcuda.so.1", "/usr/share/x")
                ]
            ),
            max_size=4,
        ),
        "hooks": st.lists(
            st.sampled_from([LINK_HOOK, {**LINK_HOOK, "args": ["x", cdi.COMPAT_HOOK]}]), max_size=2
        ),
        "additionalGids": st.lists(st.integers(1, 3), max_size=2),
        "intelRdt": st.sampled_from([{"closID": "a"}, {"closID": "b"}]),
    },
)


@given(common=_PART, own=_PART, other=_PART)
def test_however_a_driver_is_described_two_files_say_what_one_did(
    common: dict[str, Any], own: dict[str, Any], other: dict[str, Any]
) -> None:
    common = {
        **common,
        "mounts": [{"hostPath": CUDA, "containerPath": CUDA}, *common.get("mounts", [])],
    }
    document = {
        **installed_spec([], {}),
        "containerEdits": common,
        "devices": [
            {"name": GPU_A, "containerEdits": own},
            {"name": GPU_B, "containerEdits": other},
        ],
    }
    spec = cdi_base.parse(document, "nvidia.yaml")
    assert spec is not None
    made = grant(gpus=(GPU_A, GPU_B))
    base, version = cdi_base.edits_of([spec], made.gpus, {})
    shared, needs = cdi_base.common_edits([spec], made.gpus, {})
    one = _edits(cdi.document(NONCE, base, version, made))
    first = _edits(cdi.driver_document(NONCE, needs, cdi.driver_edits(shared, made.files)))
    second = _edits(cdi.own_document(NONCE, base, shared, version, made))
    joined: dict[str, Any] = {
        key: first.get(key, []) + second.get(key, []) for key in cdi_base.LISTS
    } | {"intelRdt": second.get("intelRdt", first.get("intelRdt"))}
    for key, by in (("mounts", "containerPath"), ("deviceNodes", "path")):
        assert {e[by]: e for e in joined[key]} == {e[by]: e for e in one.get(key, [])}
    for key in ("env", "additionalGids"):
        assert joined[key] == one.get(key, []), "in the same order: the last one of a name holds"
    assert sorted(map(str, joined["hooks"])) == sorted(map(str, one.get("hooks", [])))
    assert joined["intelRdt"] == one.get("intelRdt")


def _edits(document: dict[str, Any]) -> dict[str, Any]:
    (device,) = document["devices"]
    edits: dict[str, Any] = device["containerEdits"]
    return edits


def test_a_library_of_one_gpu_alone_is_covered_in_the_grants_own_file() -> None:
    narrow = "/usr/lib32/libcuda.so.570.86.15"
    spec = cdi_base.parse(
        {
            **installed_spec([GPU_A], {narrow: narrow}),
            "devices": [
                {
                    "name": GPU_A,
                    "containerEdits": {"mounts": [{"hostPath": CUDA, "containerPath": CUDA}]},
                }
            ],
        },
        "nvidia.yaml",
    )
    assert spec is not None
    made = grant(libraries=(library("libcuda.so.1", CUDA),))
    base, version = cdi_base.edits_of([spec], made.gpus, {})
    shared, _ = cdi_base.common_edits([spec], made.gpus, {})
    own = _edits(cdi.own_document(NONCE, base, shared, version, made))
    mounted = {one["containerPath"]: one["hostPath"] for one in own["mounts"]}
    assert mounted[CUDA] == "/opt/sluice/shim/libcuda.so.1"
    assert mounted["/run/sluice/driver/libcuda.so.1"] == CUDA, "not the 32-bit one"


# --- names ----------------------------------------------------------------------------------------


def test_the_name_stays_while_what_is_installed_stays(files: CdiFiles) -> None:
    before = files.driver
    files.renew_driver(FILES)
    again = CdiFiles(cdi.by_cri, dict, files.directories)
    again.renew_driver(FILES)
    assert files.driver == again.driver == before
    assert drivers(files) == [f"{OUR_DRIVERS}{before}.json"]


def test_another_driver_has_another_name_and_the_old_file_stays_as_it_is(
    files: CdiFiles, installed: Path
) -> None:
    before = files.driver
    text = (files.directories[-1] / drivers(files)[0]).read_text()
    write_installed(installed, installed_spec([GPU_A, GPU_B], NEWER))
    files.renew_driver(FILES)
    assert files.driver != before
    assert (files.directories[-1] / f"{OUR_DRIVERS}{before}.json").read_text() == text
    assert len(drivers(files)) == 2


def test_files_of_ours_at_another_place_have_another_name_too(files: CdiFiles) -> None:
    before = files.driver
    files.renew_driver(grant(preload_path="/opt/sluice-2/libsluice.so").files)
    assert files.driver != before


def test_generations_that_no_answer_names_are_removed_but_never_the_newest(
    files: CdiFiles, installed: Path
) -> None:
    first = files.driver
    write_installed(installed, installed_spec([GPU_A, GPU_B], NEWER))
    files.renew_driver(FILES)
    stranger = files.directories[-1] / f"{OUR_DRIVERS}mine.json"
    stranger.write_text("{}")
    files.write(NONCE, grant(), first)
    files.keep_drivers({first})
    assert len(drivers(files)) == 3
    files.keep_drivers(frozenset())
    assert drivers(files) == sorted([f"{OUR_DRIVERS}{files.driver}.json", stranger.name])
    assert files.names() == [NONCE], "a grant's file is not a driver's"


def test_a_container_that_starts_again_after_an_upgrade_is_given_the_new_driver_under_its_old_name(
    files: CdiFiles, installed: Path
) -> None:
    """The kubelet repeats the old answer, and the old libraries are gone."""
    old = files.driver
    files.write(NONCE, grant(), old)
    write_installed(installed, installed_spec([GPU_A, GPU_B], NEWER))
    files.renew_driver(FILES)
    files.write(OTHER_NONCE, grant(), files.driver)
    assert files.write(NONCE, grant(), old) > cdi.SETTLES_S, "the runtime has to read it first"
    again, fresh = given_to(files, NONCE, old), given_to(files, OTHER_NONCE, files.driver)
    assert as_a_runtime_has_it(again) == as_a_runtime_has_it(fresh)
    assert CUDA not in as_a_runtime_has_it(again)["mounts"]


def test_what_somebody_removed_or_a_reboot_took_is_written_again_for_who_names_it(
    files: CdiFiles,
) -> None:
    files.write(NONCE, grant(), files.driver)
    before = given_to(files, NONCE, files.driver)
    for path in files.directories[-1].iterdir():
        path.unlink()
    assert files.write(NONCE, grant(), files.driver) > cdi.SETTLES_S
    assert given_to(files, NONCE, files.driver) == before


def test_a_start_waits_for_the_younger_of_its_two_files(files: CdiFiles) -> None:
    directory = files.directories[-1]
    files.write(NONCE, grant(), files.driver)
    until(
        "both are old",
        lambda: (
            time.time() - max(path.stat().st_ctime for path in directory.iterdir())
            > 2 * cdi.SETTLES_S
        ),
    )
    assert files.write(NONCE, grant(), files.driver) == 0.0
    (directory / f"{OUR_DRIVERS}{files.driver}.json").unlink()
    assert files.write(NONCE, grant(), files.driver) > cdi.SETTLES_S


def test_an_answer_of_an_earlier_release_has_everything_in_its_own_file(files: CdiFiles) -> None:
    files.write(NONCE, grant(), "")
    mounts = as_a_runtime_has_it(given_to(files, NONCE, ""))["mounts"]
    assert mounts[CUDA]["hostPath"] == "/opt/sluice/shim/libcuda.so.1"
    assert "/run/sluice/grant" in mounts


def test_a_release_that_knows_no_driver_may_write_everything_beside_it(files: CdiFiles) -> None:
    """After a downgrade: the answer names both, the earlier release writes the grant's file."""
    files.write(NONCE, grant(), files.driver)
    together = given_to(files, NONCE, files.driver)
    files.write(NONCE, grant(), "")
    doubled = given_to(files, NONCE, files.driver)
    for key in ("mounts", "deviceNodes"):
        assert as_a_runtime_has_it(doubled)[key] == as_a_runtime_has_it(together)[key]
    assert [one for one in doubled["hooks"] if one not in together["hooks"]] == []


# --- when nothing can be shared -------------------------------------------------------------------


def test_gpus_whose_specifications_differ_have_nothing_in_common(
    files: CdiFiles, installed: Path
) -> None:
    named = files.driver
    later = installed_spec([GPU_B], NEWER)
    later["devices"] = [one for one in later["devices"] if one["name"] == GPU_B]
    (installed / "z.json").write_text(json.dumps(later))
    with pytest.raises(ValueError, match=r"nvidia\.yaml and .*z\.json .*: remove the one"):
        files.renew_driver(FILES)
    assert files.driver == ""
    files.write(NONCE, grant(gpus=(GPU_B,)), files.driver)
    assert CUDA not in as_a_runtime_has_it(given_to(files, NONCE, ""))["mounts"]
    with pytest.raises(ValueError, match="out of date"):
        files.write(OTHER_NONCE, grant(), named)
    finding = files.finding([GPU_A, GPU_B])
    assert finding.level == "warning"
    assert "remove the one that is out of date" in finding.remedy
    (installed / "z.json").unlink()
    files.renew_driver(FILES)
    assert files.driver == named


def test_gpus_that_no_specification_has_do_not_count() -> None:
    document = installed_spec([GPU_A], LIBRARIES)
    early, late = (cdi_base.parse(document, name) for name in ("a.yaml", "b.yaml"))
    assert early is not None
    assert late is not None
    common, _ = cdi_base.common_edits([early, late], [GPU_A, GPU_B], {})
    assert common == late.edits


@pytest.mark.parametrize("change", ["nothing", "no libcuda"])
def test_without_a_driver_there_is_no_generation(tmp_path: Path, change: str) -> None:
    if change == "no libcuda":
        write_installed(tmp_path / "etc", installed_spec([GPU_A], {OTHER: OTHER}))
    files = CdiFiles(cdi.by_cri, dict, (tmp_path / "etc", tmp_path / "run"))
    with pytest.raises(ValueError, match=r"nvidia-ctk cdi generate"):
        files.renew_driver(FILES)
    assert files.driver == ""
    assert not (tmp_path / "run").exists()
    finding = files.finding([GPU_A])
    assert finding.level == "missing"
    assert "nvidia-ctk cdi generate" in finding.remedy


# --- out of the kubelet's checkpoint --------------------------------------------------------------


@pytest.mark.parametrize("driver", ["", "d" * 32])
@pytest.mark.parametrize("strategy", [cdi.by_cri, cdi.by_annotation])
def test_both_names_are_found_in_the_answer_that_the_kubelet_keeps(
    strategy: Callable[[str, str], ContainerAnswer], driver: str
) -> None:
    answer = strategy(NONCE, driver)
    assert (nonce_of(answer), driver_of(answer)) == (NONCE, driver)


@pytest.mark.parametrize("name", ["D" * 32, "d" * 31, "d" * 33, "d" * 32 + ".1", "570"])
def test_a_driver_named_in_another_way_is_none_of_ours(name: str) -> None:
    """Then the grant's own file has everything."""
    assert driver_of(ContainerAnswer(cdi_devices=(f"sluice.dev/driver={name}",))) == ""
