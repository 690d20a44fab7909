"""Pods as they are made: HAMi's rules one by one, other projects' annotations translated, false ones refused, misspelt ones reported."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import yaml

from queuecontroller.gpushares.admission import (
    Answer,
    Question,
    Quotas,
    Rules,
    admit,
    answer,
    counted,
    refused_change,
)
from queuecontroller.gpushares.admission.pod_review import NO_CHANGE
from queuecontroller.gpushares.vendors import ROWS
from queuecontroller.gpushares.vendors.config import DeviceConfig, Nvidia, read_device_config
from sluicecommon.hami.weights import weights
from tests.queue.gpushares.admission.pods import env_of, limits_of, pod
from tests.queue.gpushares.vendors.plugins import PLUGINS
from tests.queue.manifests.collected import FOLDER

RULES = Rules(scheduler="sluice-scheduler")
GPU, MEM, PCT, CORES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
)


def made(*limits: dict[str, Any], rules: Rules = RULES, **more: Any) -> Any:
    verdict = admit(rules, pod(*limits, **more), "user", "ticket-1")
    assert not verdict.problems
    return verdict.pod


def refused(*limits: dict[str, Any], rules: Rules = RULES, **more: Any) -> str:
    verdict = admit(rules, pod(*limits, **more), "user", "t")
    assert verdict.problems, "it was let in"
    return "; ".join(map(str, verdict.problems))


def configured(**values: Any) -> Rules:
    return replace(RULES, devices=DeviceConfig(Nvidia(**values)))


# -- instances ------------------------------------------------------------------------------------

PROFILES = frozenset(
    f"nvidia.com/mig-{one}" for one in ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb", "1g.20gb")
)
CUT = replace(RULES, profiles=PROFILES)
MODE = {"nvidia.com/vgpu-mode": "mig"}


@pytest.mark.parametrize(
    ("asked", "gets"),
    [
        ({GPU: 1, MEM: 8000}, {"nvidia.com/mig-1g.10gb": "1"}),
        ({GPU: 2, MEM: 10240}, {"nvidia.com/mig-1g.10gb": "2"}),
        ({MEM: 10241}, {"nvidia.com/mig-1g.20gb": "1"}),
        ({GPU: 1, MEM: 10241, CORES: 20}, {"nvidia.com/mig-2g.20gb": "1"}),
        ({GPU: 1, MEM: 1000, CORES: 50}, {"nvidia.com/mig-7g.80gb": "1"}),
        ({GPU: 1, MEM: 40_000, "cpu": 2}, {"nvidia.com/mig-3g.40gb": "1", "cpu": 2}),
    ],
)
def test_a_pod_in_mode_mig_asks_for_the_smallest_profile_that_has_so_much(
    asked: dict[str, Any], gets: dict[str, str]
) -> None:
    verdict = admit(CUT, pod(asked, **MODE), "user", "t")
    assert limits_of(verdict.pod) == gets
    assert "schedulerName" not in verdict.pod["spec"], "any scheduler knows of it"
    assert not verdict.asks
    assert any("requests nvidia.com/mig-" in one for one in verdict.warnings)


def test_a_pod_in_mode_mig_without_an_instance_for_it_waits_and_is_told() -> None:
    for rules, asked, said in (
        (CUT, {GPU: 1, MEM: 90_000}, "there are: 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 7g.80gb"),
        (RULES, {GPU: 1, MEM: 1000}, "there are: none"),
    ):
        verdict = admit(rules, pod(asked, **MODE), "user", "t")
        assert limits_of(verdict.pod)[MEM] == asked[MEM]
        assert any(said in one for one in verdict.warnings)


def test_what_mode_mig_cannot_mean_is_refused_and_others_modes_are_shares() -> None:
    assert "request nvidia.com/gpumem" in refused({GPU: 1, PCT: 50}, rules=CUT, **MODE)
    privileged = {"securityContext": {"privileged": True}}
    document = pod({GPU: 1, MEM: 1000}, **MODE)
    document["spec"]["containers"][0] |= privileged
    assert admit(CUT, document, "user", "t").problems
    both = {"nvidia.com/vgpu-mode": "mig,hami-core"}
    assert limits_of(made({GPU: 1, MEM: 1000}, rules=CUT, **both))[MEM] == 1000
    volcano = {"volcano.sh/vgpu-mode": "mig"}
    asked = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 5000}
    assert limits_of(made(asked, rules=CUT, **volcano)) == {"nvidia.com/mig-1g.10gb": "1"}
    named = made({GPU: 1, MEM: 1000}, rules=CUT, spec={"nodeName": "n1"}, **MODE)
    assert named["spec"]["nodeName"] == "n1", "the kubelet counts them"


# -- defaults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "gets"),
    [
        ({GPU: 1}, {GPU: 1, CORES: "100"}),
        ({GPU: 2, MEM: 8000}, {GPU: 2, MEM: 8000, CORES: "0"}),
        ({GPU: 1, PCT: 50}, {GPU: 1, PCT: 50, CORES: "0"}),
        ({GPU: 1, PCT: 100}, {GPU: 1, PCT: 100, CORES: "100"}),
        ({GPU: 1, PCT: 0}, {GPU: 1, PCT: 0, CORES: "100"}),
        ({MEM: 4000}, {GPU: "1", MEM: 4000, CORES: "0"}),
        ({CORES: 30}, {GPU: "1", CORES: 30}),
        ({GPU: 1, MEM: 100, CORES: 30}, {GPU: 1, MEM: 100, CORES: 30}),
        ({GPU: 1, CORES: 130}, {GPU: 1, CORES: "100"}),
    ],
)
def test_what_a_pod_leaves_out_is_hamis_default(
    asked: dict[str, Any], gets: dict[str, Any]
) -> None:
    assert limits_of(made(asked)) == gets


def test_defaults_are_the_files() -> None:
    rules = configured(default_memory_mib=5000, default_cores=20, default_gpus=2)
    assert limits_of(made({GPU: 1}, rules=rules)) == {GPU: 1, MEM: "5000", CORES: "20"}
    assert limits_of(made({CORES: 10}, rules=rules))[GPU] == "2"
    assert "is requested without nvidia.com/gpu" in refused(
        {MEM: 1}, rules=configured(default_gpus=0)
    )


def test_requests_are_what_limits_are() -> None:
    document = pod({MEM: 4000})
    document["spec"]["containers"][0]["resources"]["requests"] = {MEM: 4000, "cpu": "1"}
    after: Any = admit(RULES, document, "u", "t").pod
    resources = after["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {MEM: 4000, "cpu": "1", GPU: "1", CORES: "0"}


def test_a_pod_without_devices_is_left_as_it_is() -> None:
    document = pod({"cpu": "1", "example.com/disk": "1"})
    verdict = admit(RULES, document, "u", "t")
    assert verdict.pod == document
    assert (verdict.asks, verdict.warnings) == (False, ())


def test_variables_and_the_runtime_class_are_hamis() -> None:
    rules = configured(core_policy="force", runtime_class="nvidia", overwrite_env=True)
    after = made({GPU: 1, "nvidia.com/priority": 0}, {"cpu": "1"}, rules=rules)
    assert env_of(after) == {"CUDA_TASK_PRIORITY": "0", "GPU_CORE_UTILIZATION_POLICY": "force"}
    assert env_of(after, 1) == {"NVIDIA_VISIBLE_DEVICES": "none"}
    assert after["spec"]["runtimeClassName"] == "nvidia"
    own = made({GPU: 1}, rules=rules, spec={"runtimeClassName": "own"})
    assert own["spec"]["runtimeClassName"] == "own"


def test_the_same_pod_twice_is_changed_once() -> None:
    once = made({MEM: 4000, "nvidia.com/priority": 1}, **{"gpu-x": "1"})
    again: Any = copy.deepcopy(once)
    del again["metadata"]["annotations"]["sluice.dev/admitted-as"]
    assert admit(RULES, again, "u", "ticket-1").pod == once


# -- who places it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "gets"),
    [
        (None, "sluice-scheduler"),
        ("default-scheduler", "sluice-scheduler"),
        ("hami-scheduler", "hami-scheduler"),
        ("volcano", "volcano"),
    ],
)
def test_the_schedulers_name(named: str | None, gets: str) -> None:
    spec = {"schedulerName": named} if named else {}
    assert made({GPU: 1}, spec=spec)["spec"]["schedulerName"] == gets


def test_without_a_scheduler_of_ours_the_name_stays() -> None:
    assert "schedulerName" not in made({GPU: 1}, rules=Rules())["spec"]


def test_who_comes_from_kai_says_whose_pods_are_ours() -> None:
    kai = {"schedulerName": "kai-scheduler"}
    verdict = admit(RULES, pod({"cpu": 1}, spec=kai, **{"gpu-fraction": "0.5"}), "u", "t")
    assert verdict.pod["spec"]["schedulerName"] == "kai-scheduler"
    assert "kai-scheduler is kept; add it to shares.replaced_schedulers" in verdict.warnings[0]
    rules = replace(RULES, replaced=frozenset({"default-scheduler", "kai-scheduler"}))
    after = made({"cpu": 1}, rules=rules, spec=kai, **{"gpu-fraction": "0.5"})
    assert after["spec"]["schedulerName"] == "sluice-scheduler"


# -- refusals -------------------------------------------------------------------------------------


def test_a_privileged_container_is_refused_beside_devices_only() -> None:
    privileged = {"name": "x", "image": "none", "securityContext": {"privileged": True}}
    for where in ("containers", "initContainers"):
        document = pod({GPU: 1})
        document["spec"].setdefault(where, []).append(privileged)
        (problem,) = admit(RULES, document, "u", "t").problems
        assert "container x is privileged" in str(problem)
        assert "take privileged out" in problem.fix
    document = pod({"cpu": 1})
    document["spec"]["containers"].append(privileged)
    assert not admit(RULES, document, "u", "t").problems


def test_a_node_of_ones_own_choice_is_refused() -> None:
    why = refused({GPU: 1}, spec={"nodeName": "n1"})
    assert why.startswith("spec.nodeName: the scheduler chooses the node")
    assert made({"cpu": 1}, spec={"nodeName": "n1"})["spec"]["nodeName"] == "n1"


@pytest.mark.parametrize(
    ("asked", "annotations", "why"),
    [
        (
            {GPU: 1, PCT: 101},
            {},
            "container c0: nvidia.com/gpumem-percentage: must be from 0 to 100, got 101",
        ),
        ({GPU: "many"}, {}, "nvidia.com/gpu: expected a quantity"),
        ({GPU: 1, MEM: -1}, {}, "nvidia.com/gpumem: must be from 0 to 1099511627776, got -1"),
        ({GPU: 1, MEM: "8Gi"}, {}, "because the amount is in MiB: write 8192"),
        ({GPU: 1, MEM: "40G"}, {}, "because the amount is in MiB: write 38146"),
        ({GPU: 1, MEM: 3000, PCT: 50}, {}, "nvidia.com/gpumem-percentage: both set the GPU memory"),
        ({GPU: 1}, {"nvidia.com/numa-bind": "yes"}, "must be true or false, got 'yes'"),
        (
            {GPU: 1},
            {"hami.io/node-scheduler-policy": "best"},
            "must be binpack or spread, got 'best'",
        ),
        (
            {GPU: 1},
            {"nvidia.com/vgpu-mode": "fast"},
            "must be one of hami-core, mig, mps, got 'fast'",
        ),
        ({GPU: 1}, {"nvidia.com/vgpu-mode": "mps"}, "mps is not supported"),
        ({GPU: 1}, {"hami.io/device-scoring-weights": "disk=1"}, "memory=N, got 'disk=1'"),
        (
            {"cpu": 1},
            {"gpu-fraction": "1.5"},
            "gpu-fraction: expected a number above 0 and at most 1, got '1.5'",
        ),
        ({"cpu": 1}, {"gpu-fraction": "0"}, "at most 1, got '0'"),
        ({"cpu": 1}, {"gpu-fraction": "NaN"}, "at most 1, got 'NaN'"),
        ({"cpu": 1}, {"gpu-fraction": "0.5", "gpu-memory": "1"}, "together with gpu-memory"),
        ({"cpu": 1}, {"gpu-memory": "2Gi"}, "gpu-memory: expected a whole number"),
        ({GPU: 1}, {"gpu-fraction": "0.5"}, "container c0 requests nvidia.com/gpu as well"),
        ({"cpu": 1}, {"gpu-fraction-num-devices": "2"}, "means nothing without gpu-fraction"),
        (
            {"cpu": 1},
            {"gpu-fraction": "0.5", "gpu-fraction-container-name": "c9"},
            "must be one of c0, got 'c9'",
        ),
        ({"volcano.sh/vgpu-number": 1, GPU: 1}, {}, "is requested together with nvidia.com/gpu"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(
    asked: dict[str, Any], annotations: dict[str, str], why: str
) -> None:
    assert why in refused(asked, **annotations)


FORGED = [
    "sluice.dev/placement",
    "sluice.dev/checkpoint",
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-devices-to-allocate",
    "hami.io/vgpu-node",
    "hami.io/bind-phase",
    "volcano.sh/vgpu-ids-new",
    *(key for one in ROWS for key in one.written),
]


@pytest.mark.parametrize("key", FORGED)
def test_what_says_what_a_pod_was_given_is_refused_from_users(key: str) -> None:
    document = pod({"cpu": 1}, **{key: "x"})
    (problem,) = admit(RULES, document, "somebody", "t").problems
    assert key in problem.field
    assert not admit(replace(RULES, writers=frozenset({"us"})), document, "us", "t").problems


def test_what_was_decided_is_not_changed_afterwards() -> None:
    before = pod({GPU: 1}, **{"hami.io/dcu-devices-allocated": "a", "note": "1"})
    after = pod({GPU: 1}, **{"hami.io/dcu-devices-allocated": "b", "note": "2"})
    guarded = replace(RULES, writers=frozenset({"us"}))
    (problem,) = refused_change(guarded, before, after, "somebody")
    assert "hami.io/dcu-devices-allocated" in problem.field
    assert refused_change(guarded, before, after, "us") == ()
    for was, now in (("", "save 1"), ("save 1", "restore 2"), ("save 1", "")):
        told, then = (
            pod({GPU: 1}, **({"sluice.dev/checkpoint": one} if one else {})) for one in (was, now)
        )
        assert refused_change(guarded, told, then, "somebody")
        assert not refused_change(guarded, told, then, "us")
    # A device plugin takes its part out of what is to be allocated.
    plain = pod({GPU: 1}, **{"hami.io/dcu-devices-to-allocate": "a;"})
    assert refused_change(guarded, plain, pod({GPU: 1}), "plugin") == ()


def test_who_opts_out_is_left_alone() -> None:
    document = pod({MEM: 1})
    document["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert admit(RULES, document, "u", "t").pod == document
    document["metadata"]["annotations"] = {"sluice.dev/placement": "{}"}
    assert admit(RULES, document, "u", "t").problems, "but not to lie"


def test_who_opts_out_stays_within_the_quota_of_the_namespace() -> None:
    """The label is the user's own; with it a pod had no quota."""
    quotas = Quotas(counted(RULES.devices))
    hard = {f"limits.{MEM}": "1000"}
    quotas.quota(
        {
            "metadata": {"name": "q", "namespace": "team"},
            "spec": {"hard": hard},
        }
    )

    def answered(memory: int) -> Answer:
        document = pod({GPU: 1, MEM: memory})
        document["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
        return answer(RULES, quotas, Question(document, None, "team", "ann", "t"), 0)

    assert "exceed" in str(answered(1001).problems[0])
    within = answered(1000)
    assert (within.problems, within.patch) == ((), NO_CHANGE)


# -- others' words --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "gets"),
    [
        ({"gpu-fraction": "0.5"}, {GPU: "1", PCT: "50", CORES: "0"}),
        ({"gpu-fraction": "0.333"}, {GPU: "1", PCT: "33", CORES: "0"}),
        ({"gpu-fraction": "0.001"}, {GPU: "1", PCT: "1", CORES: "0"}),
        ({"gpu-memory": "2000"}, {GPU: "1", MEM: "2000", CORES: "0"}),
        (
            {"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"},
            {GPU: "2", PCT: "25", CORES: "0"},
        ),
    ],
)
def test_kais_fractions_are_shares(annotations: dict[str, str], gets: dict[str, str]) -> None:
    assert limits_of(made({"cpu": 1}, **annotations)) == {"cpu": 1, **gets}


def test_kais_container_is_the_one_that_is_named() -> None:
    after = made(
        {"cpu": 1}, {"cpu": 2}, **{"gpu-fraction": "0.5", "gpu-fraction-container-name": "c1"}
    )
    assert limits_of(after) == {"cpu": 1}
    assert limits_of(after, 1)[PCT] == "50"


def test_volcanos_resources_are_renamed() -> None:
    after = made(
        {"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 40},
        **{"volcano.sh/vgpu-use-gpuuuid": "GPU-1"},
    )
    assert limits_of(after) == {GPU: 2, MEM: 3000, CORES: 40}
    assert after["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] == "GPU-1"


# -- warnings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("nvidia.com/use-gputypes", "nvidia.com/use-gputype"),
        ("nvidia.com/nouse-gpuuid", "nvidia.com/nouse-gpuuuid"),
        ("hami.io/gpu-schedular-policy", "hami.io/gpu-scheduler-policy"),
        ("sluice.dev/share-polcy", "sluice.dev/share-policy"),
        ("sluice.dev/something", ""),
        ("gpu-fractions", "gpu-fraction"),
        ("hygon.com/use-gpuuid", "hygon.com/use-gpuuuid"),
        ("metax-tech.com/sgpu-qos-polcy", "metax-tech.com/sgpu-qos-policy"),
    ],
)
def test_a_misspelt_annotation_is_told_with_the_nearest(key: str, near: str) -> None:
    (warning,) = admit(RULES, pod({"cpu": 1}, **{key: "x"}), "u", "t").warnings
    assert f"annotation {key} is unknown here" in warning
    assert warning.endswith(f"did you mean {near}?") == bool(near)


@pytest.mark.parametrize(
    "key",
    ["nvidia.com/gpu.product", "example.com/x", "kubectl.kubernetes.io/x", "prometheus.io/scrape"],
)
def test_annotations_of_others_are_nobodys_mistake(key: str) -> None:
    assert admit(RULES, pod({"cpu": 1}, **{key: "x"}), "u", "t").warnings == ()


@pytest.mark.parametrize(
    ("resource", "near"),
    [
        ("nvidia.com/gpumen", MEM),
        ("nvidia.com/gpucore", CORES),
        ("hygon.com/dcunun", "hygon.com/dcunum"),
    ],
)
def test_a_misspelt_resource_is_told_with_the_nearest(resource: str, near: str) -> None:
    warnings = admit(RULES, pod({GPU: 1, resource: 1}), "u", "t").warnings
    assert any(f"resource {resource} is unknown here" in one and near in one for one in warnings)


def test_a_mig_resource_is_no_misspelling() -> None:
    assert admit(RULES, pod({"nvidia.com/mig-1g.10gb": 1}), "u", "t").warnings == ()


def test_warnings_are_few_and_short() -> None:
    many = {f"hami.io/{'x' * 200}-{i}": "1" for i in range(100)}
    warnings = admit(RULES, pod({"cpu": 1}, **many), "u", "t").warnings
    assert len(warnings) == 8
    assert max(map(len, warnings)) <= 250


# -- other vendors --------------------------------------------------------------------------------


@pytest.mark.parametrize("plugin", PLUGINS, ids=[one.word for one in PLUGINS])
def test_pods_of_every_vendor_go_to_the_scheduler_that_knows(plugin: Any) -> None:
    verdict = admit(RULES, plugin.pod(), "u", "t")
    assert not verdict.problems
    assert verdict.asks
    assert verdict.pod["spec"]["schedulerName"] == "sluice-scheduler"


def test_a_vendors_own_changes_are_made() -> None:
    after = made({"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 5000})
    assert limits_of(after)["huawei.com/Ascend910B3-memory"] == "16384"
    after = made({"metax-tech.com/sgpu": 1})
    assert after["metadata"]["annotations"]["metax-tech.com/sgpu-qos-policy"] == "best-effort"
    after = made({"iluvatar.ai/BI-V150-vgpu": 2})
    assert env_of(after) == {"SOL_CONTINER_NAME": "c0"}
    assert "mthreads.com/sgpu-memory: must be one of 2, 4," in refused(
        {"mthreads.com/vgpu": 1, "mthreads.com/sgpu-memory": 3}
    )


# -- patches --------------------------------------------------------------------------------------


def test_weights_are_read_whole() -> None:
    assert weights("slot=2, memory=3") == (2, 1, 3)


@pytest.mark.parametrize("name", ["10-pods-nvidia.yaml", "11-pods-other-vendors.yaml"])
def test_the_owners_pods_are_let_in_without_a_warning(name: str) -> None:
    for document in yaml.safe_load_all((FOLDER / "from-hami" / name).read_text()):
        if document and document["kind"] == "Pod":
            verdict = admit(RULES, document, "u", "t")
            assert verdict.asks, document["metadata"]["name"]
            assert not verdict.problems
            assert not verdict.warnings


def test_rules_of_a_file_are_taken_whole() -> None:
    found = read_device_config(
        {"nvidia": {"resourceCountName": "ex.com/gpu", "resourceMemoryName": "ex.com/mem"}}, "f"
    )
    rules = replace(RULES, devices=found)
    assert limits_of(made({"ex.com/mem": 5}, rules=rules))["ex.com/gpu"] == "1"


def test_containers_without_a_name_are_the_api_servers_to_refuse() -> None:
    document = pod({GPU: 1, MEM: 5}, {GPU: 1, "hygon.com/dcunum": 1})
    for container in document["spec"]["containers"]:
        del container["name"]
    assert admit(RULES, document, "u", "t").asks
