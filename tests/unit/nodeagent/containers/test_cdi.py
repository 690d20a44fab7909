"""CDI files written for the runtime, as values: the driver's edits with ours in their place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.core.kubelet import cdi, cdi_base
from tests.kit.cdi import CUDA, GPU_A, GPU_B, LIBRARIES, NONCE, NVML, OTHER, grant, library
from tests.kit.fakes.nvidia_cdi import installed_spec


def base(*gpus: str, libraries: dict[str, str] | None = None, **options: Any) -> cdi_base.BaseSpec:
    document = installed_spec(
        gpus or (GPU_A, GPU_B), LIBRARIES if libraries is None else libraries, **options
    )
    found = cdi_base.parse(document, "nvidia.yaml")
    assert found is not None
    return found


def written(spec: cdi_base.BaseSpec | None = None, **changes: Any) -> dict[str, Any]:
    made = grant(**changes)
    edits, version = cdi_base.edits_of([spec or base(hook="/usr/bin/hook")], made.gpus, {})
    return cdi.document(NONCE, edits, version, made)


def edits_of(document: dict[str, Any]) -> dict[str, Any]:
    (device,) = document["devices"]
    edits: dict[str, Any] = device["containerEdits"]
    return edits


def hosts(document: dict[str, Any]) -> dict[str, str]:
    """Host path by container path."""
    return {one["containerPath"]: one["hostPath"] for one in edits_of(document)["mounts"]}


def test_ours_lie_over_the_driver_and_the_real_ones_are_kept() -> None:
    mounted = hosts(written())
    assert mounted[CUDA] == "/opt/sluice/shim/libcuda.so.1"
    assert mounted[NVML] == "/opt/sluice/shim/libnvidia-ml.so.1"
    assert mounted["/run/sluice/driver/libcuda.so.1"] == CUDA
    assert mounted["/run/sluice/driver/libnvidia-ml.so.1"] == NVML
    assert mounted[OTHER] == OTHER, "what is not ours to replace is copied"


def test_the_region_is_read_only_but_for_the_usage_page() -> None:
    options = {
        one["containerPath"]: one["options"]
        for one in edits_of(written())["mounts"]
        if one["containerPath"].startswith("/run/sluice/grant")
    }
    assert set(options) == {"/run/sluice/grant", "/run/sluice/grant/usage.shm"}
    assert "ro" in options["/run/sluice/grant"]
    assert "rw" in options["/run/sluice/grant/usage.shm"]
    assert all({"nosuid", "nodev", "noexec"} <= set(each) for each in options.values())


def test_nodes_and_environment_are_the_drivers_and_no_limit_is_in_them() -> None:
    edits = edits_of(written())
    assert [node["path"] for node in edits["deviceNodes"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
    ]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_the_hook_that_puts_the_images_own_libcuda_in_front_is_left_out() -> None:
    hooks = edits_of(written())["hooks"]
    assert [hook["args"][1] for hook in hooks] == ["create-symlinks", "update-ldcache", "preload"]
    assert hooks[-1] == {
        "hookName": "createContainer",
        "path": "/opt/sluice/hook/sluice-container-hook",
        "args": ["sluice-container-hook", "preload", cdi.LIBRARY_PATH],
    }


def test_without_the_hook_the_images_preload_file_is_replaced() -> None:
    with_hook, without = written(), written(hook_path="")
    assert cdi.PRELOAD_FILE not in hosts(with_hook)
    assert hosts(without)[cdi.PRELOAD_FILE] == "/opt/sluice/preload/ld.so.preload"
    assert all("preload" not in hook["args"] for hook in edits_of(without)["hooks"])


def test_without_either_nothing_is_written() -> None:
    with pytest.raises(ValueError, match=r"ld\.so\.preload"):
        written(hook_path="", preload_list_path="")


def test_several_gpus_are_one_device_with_each_thing_once() -> None:
    edits = edits_of(written(gpus=(GPU_A, GPU_B)))
    paths = [node["path"] for node in edits["deviceNodes"]]
    assert paths == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"]
    targets = [mount["containerPath"] for mount in edits["mounts"]]
    assert len(targets) == len(set(targets))


@pytest.mark.parametrize(
    ("version", "expected", "annotated"),
    [("0.3.0", "0.5.0", False), ("0.5.0", "0.5.0", False), ("0.8.0", "0.8.0", True)],
)
def test_the_version_is_the_installed_one_and_new_enough_for_our_name(
    version: str, expected: str, annotated: bool
) -> None:
    document = written(base(version=version))
    assert document["cdiVersion"] == expected
    notes = document["devices"][0].get("annotations", {})
    assert bool(notes) is annotated
    if annotated:
        assert notes["sluice.dev/pod"] == "team-a/train-0"


@pytest.mark.parametrize(
    "found",
    [
        {"/usr/lib64/libcuda.so": CUDA},
        {"/usr/lib64/libcuda.so.1": CUDA},
        {"/usr/lib/i386-linux-gnu/libcuda.so.570.86.15": "/usr/lib32/libcuda.so.1", CUDA: CUDA},
        {CUDA: "/run/nvidia/driver" + CUDA},
    ],
    ids=["by its plain name", "by its soname", "32 bits beside 64", "below the driver's root"],
)
def test_every_libcuda_of_the_specification_is_covered(found: dict[str, str]) -> None:
    mounted = hosts(written(base(libraries=found)))
    for path in found:
        assert mounted[path] == "/opt/sluice/shim/libcuda.so.1"
    real = mounted["/run/sluice/driver/libcuda.so.1"]
    assert real in found.values()
    assert "lib32" not in real


def test_a_directory_mounted_whole_is_covered_inside() -> None:
    real = "/usr/lib/wsl/drivers/nv1/libcuda.so.1.1"
    spec = base(libraries={"/usr/lib/wsl/drivers": "/usr/lib/wsl/drivers"})
    mounted = hosts(written(spec, libraries=(library("libcuda.so.1", real),)))
    assert mounted["/usr/lib/wsl/drivers"] == "/usr/lib/wsl/drivers"
    assert mounted[real] == "/opt/sluice/shim/libcuda.so.1"
    assert mounted["/run/sluice/driver/libcuda.so.1"] == real


@pytest.mark.parametrize(
    "found",
    [{}, {OTHER: OTHER}, {NVML: NVML}, {"/usr/lib64/libcudart.so.12": "/usr/lib64/libcudart.so"}],
    ids=["no library", "another", "NVML alone", "the runtime library"],
)
def test_a_specification_without_libcuda_gives_no_gpu_without_limits(
    found: dict[str, str],
) -> None:
    with pytest.raises(ValueError, match="without limits"):
        written(base(libraries=found))


def test_no_driver_known_to_us_is_no_gpu_without_limits_either() -> None:
    with pytest.raises(ValueError, match="without limits"):
        written(libraries=())


# --- what is installed ----------------------------------------------------------------------------


def test_nothing_installed_says_what_to_run() -> None:
    with pytest.raises(ValueError, match="nvidia-ctk cdi generate --output"):
        cdi_base.edits_of([], [GPU_A], {}, ["/etc/cdi/x.yaml: not a mapping"])


def test_a_gpu_that_is_not_in_the_file_is_named_with_the_file() -> None:
    with pytest.raises(ValueError, match=f"{GPU_B} is not in nvidia.yaml.*again"):
        cdi_base.edits_of([base(GPU_A)], [GPU_B], {})


def test_devices_named_by_index_are_found_by_it() -> None:
    document = installed_spec([GPU_A], LIBRARIES)
    document["devices"] = [one for one in document["devices"] if one["name"] == "0"]
    document["devices"][0]["name"] = 0  # as YAML reads it
    spec = cdi_base.parse(document, "nvidia.yaml")
    assert spec is not None
    edits, _ = cdi_base.edits_of([spec], [GPU_A], {GPU_A: 0})
    assert edits["deviceNodes"][-1]["path"] == "/dev/nvidia0"


def test_the_later_specification_goes_first() -> None:
    early, late = base(GPU_A, node="/dev/zero"), base(GPU_A, node="/dev/full")
    edits, _ = cdi_base.edits_of([early, late], [GPU_A], {})
    assert {node["hostPath"] for node in edits["deviceNodes"]} == {"/dev/full"}


def test_other_kinds_are_no_concern_of_ours() -> None:
    assert cdi_base.parse({"kind": "vendor.com/nic", "cdiVersion": "9.9.9"}, "nic.yaml") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cdiVersion": "1.2.0"}, "newer than this release"),
        ({"cdiVersion": 0.5}, "cdiVersion"),
        ({"devices": {}}, "devices: not a list"),
        ({"devices": [{"name": True}]}, r"devices\[0\]\.name"),
        ({"containerEdits": {"seccomp": []}}, "seccomp"),
        ({"containerEdits": {"mounts": [{"hostPath": "a", "containerPath": "/b"}]}}, "absolute"),
        ({"containerEdits": {"env": ["PATH"]}}, "NAME=VALUE"),
        ({"containerEdits": {"hooks": "x"}}, "not a list"),
        ({"containerEdits": {"deviceNodes": ["/dev/nvidia0"]}}, "not a mapping"),
        ({"containerEdits": []}, "not a mapping"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        cdi_base.parse(installed_spec([GPU_A], LIBRARIES) | change, "nvidia.yaml")
    assert "nvidia.yaml" in str(raised.value)


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "cdiVersion", "devices", "name", "containerEdits", "mounts"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_PLAIN)
def test_any_document_is_read_or_refused_with_the_files_name(document: Any) -> None:
    if isinstance(document, dict):
        document |= {"kind": cdi_base.KIND, "cdiVersion": "0.6.0"}
    refusal = ""
    try:
        cdi_base.parse(document, "x.yaml")
    except ValueError as error:
        refusal = str(error)
    assert not refusal or "x.yaml" in refusal


# --- names and answers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nonce", ["", "../../etc/passwd", NONCE.upper(), NONCE[:-1], NONCE + "0", NONCE[:-1] + "\n"]
)
def test_what_is_no_nonce_never_becomes_a_name(nonce: str) -> None:
    for call in (
        lambda: cdi.device_name(nonce),
        lambda: cdi.driver_name(nonce),
        lambda: cdi.by_cri(NONCE, nonce or "-"),
        lambda: cdi.driver_document(nonce, (0, 5, 0), {}),
        lambda: cdi.own_document(nonce, {}, {}, (0, 5, 0), grant()),
        lambda: cdi.by_cri(nonce, ""),
        lambda: cdi.by_annotation(nonce, ""),
        lambda: cdi.by_environment(nonce, [GPU_A], "/run/sluice/links"),
        lambda: cdi.document(nonce, {}, (0, 5, 0), grant()),
        lambda: cdi.links(nonce, grant()),
    ):
        with pytest.raises(ValueError, match="nonce"):
            call()


@pytest.mark.parametrize("driver", ["", "d" * 32])
def test_cri_and_annotation_say_the_same_names_the_grants_own_last(driver: str) -> None:
    names = [f"sluice.dev/driver={driver}"] * bool(driver) + [f"sluice.dev/grant={NONCE}"]
    assert list(cdi.by_cri(NONCE, driver).cdi_devices) == names
    ((key, value),) = cdi.by_annotation(NONCE, driver).annotations.items()
    assert value.split(",") == names
    prefix, _, name = key.partition("/")
    assert prefix == "cdi.k8s.io"
    assert len(name) <= 63, "Kubernetes' bound for the name of an annotation"


def test_the_environment_names_gpus_and_nothing_else_and_mounts_lead_to_the_nonce() -> None:
    answer = cdi.by_environment(NONCE, [GPU_A, GPU_B], "/run/sluice/links")
    assert answer.environment == {"NVIDIA_VISIBLE_DEVICES": f"{GPU_A},{GPU_B}"}
    assert all(one.host_path.startswith(f"/run/sluice/links/{NONCE}/") for one in answer.mounts)
    assert [one.container_path for one in answer.mounts if not one.read_only] == [
        "/run/sluice/grant/usage.shm"
    ]


def test_links_are_refused_where_the_container_was_given_other_gpus() -> None:
    with pytest.raises(ValueError, match="cdi-cri"):
        cdi.links(NONCE, grant(gpus=(GPU_B,)))


def test_the_document_is_plain_json() -> None:
    document = written()
    assert json.loads(json.dumps(document)) == document
