"""HAMi's configuration: what it means here, who wins, and that nothing of it is left out in silence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.adapters.host.config_files import load, read_hami
from nodeagent.core.reload import Loaded
from nodeagent.settings.daemon import ConfigError
from nodeagent.settings.kubelet import DEFAULTS
from sluicecommon.hami.sections import NODE_KEYS, NVIDIA_KEYS, VENDORS
from tests.golden import check_entry
from tests.kit.places import REPO

FILES = sorted((REPO / "examples" / "from-hami").glob("*.yaml"))
GOLDEN = REPO / "tests" / "golden" / "hami.json"
UUID = "GPU-12345678-1234-1234-1234-123456789012"


def config_map(name: str, text: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "any"},
            "data": {name: text, "other.conf": "left alone"},
        }
    )


def nodes(*entries: Mapping[str, Any]) -> str:
    return json.dumps({"nodeconfig": list(entries)})


def read(tmp_path: Path, *texts: str, toml: str = "", node: str = "node1") -> Loaded:
    files = []
    for index, text in enumerate(texts):
        files.append(tmp_path / f"hami-{index}.yaml")
        files[-1].write_text(text)
    own = tmp_path / "sluice.toml"
    own.write_text(toml)
    return load(own, "host", node, files)


def problems(tmp_path: Path, *texts: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, *texts)
    return [one.replace(f"{tmp_path}/", "") for one in caught.value.problems]


def told(loaded: Loaded) -> str:
    return "\n".join(loaded.kubelet.warnings)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_as_it_is(path: Path) -> None:
    """Unmodified; the whole meaning for each node, and every warning, is in the golden file."""
    named = ["node1", "node2", "node3"] if "node-config" in path.stem else ["node1"]
    lines = []
    for node in named:
        found = load(None, "host", node, [path]).kubelet
        said = {
            key: getattr(found.config, key) for key, by in found.sources.items() if by != DEFAULTS
        }
        lines.append(f"{node}: {json.dumps(said)}")
        lines += [f"  warning: {one}" for one in found.warnings]
        lines += [f"  refused: {one}" for one in found.problems]
    lines = [line.replace(f"{path.parent}/", "") for line in lines]
    check_entry(GOLDEN, path.stem, lines)


def test_a_config_map_and_the_bare_file_mean_the_same(tmp_path: Path) -> None:
    bare = "nvidia:\n  deviceSplitCount: 4\n  defaultMem: 3000\n  gpuCorePolicy: disable\n"
    node = nodes({"name": "node1", "filterdevices": {"uuid": [UUID], "index": [2]}})
    one = read(tmp_path, bare, node).kubelet
    two = read(
        tmp_path, config_map("device-config.yaml", bare), config_map("config.json", node)
    ).kubelet
    assert one.config == two.config
    assert one.config.slots_per_gpu == 4
    assert one.config.default_memory_mib == 3000
    assert one.config.cores_policy == "elastic"
    assert (one.config.exclude_uuids, one.config.exclude_indexes) == ((UUID,), (2,))


def test_later_hands_win_and_are_remembered(tmp_path: Path) -> None:
    device = (
        "nvidia: {deviceSplitCount: 4, deviceMemoryScaling: 2, defaultCores: 7, memoryFactor: 3}"
    )
    node = nodes({"name": "node1", "devicesplitcount": 5, "devicememoryscaling": 1.5})
    toml = "[kubelet]\nmemory_scaling = 1.25\n[kubelet.nodes.node1]\ndefault_cores_percent = 9\n"
    found = read(tmp_path, node, device, toml=toml).kubelet  # the order of the files is no matter
    config = found.config
    assert (config.memory_factor, config.slots_per_gpu) == (3, 5)
    assert (config.memory_scaling, config.default_cores_percent) == (1.25, 9)
    assert "hami-1.yaml" in found.sources["memory_factor"]
    assert "nodeconfig[0] (node1)" in found.sources["slots_per_gpu"]
    assert found.sources["memory_scaling"] == "[kubelet]"
    assert found.sources["default_cores_percent"] == "[kubelet.nodes.node1]"
    assert found.sources["strategy"] == DEFAULTS
    other = read(tmp_path, node, device, toml=toml, node="node9").kubelet.config
    assert (other.slots_per_gpu, other.default_cores_percent) == (4, 7)


def test_an_entry_is_for_the_exact_name_in_any_case_of_keys(tmp_path: Path) -> None:
    text = nodes(
        {"name": "node10", "devicesplitcount": 2}, {"Name": "node1", "deviceSplitCount": 6}
    )
    assert read(tmp_path, text).kubelet.config.slots_per_gpu == 6
    assert read(tmp_path, text, node="node").kubelet.config.slots_per_gpu == 10


def test_overcommit_is_off_and_warns_when_somebody_sets_it(tmp_path: Path) -> None:
    assert read(tmp_path).kubelet.config.memory_scaling == 1.0
    assert read(tmp_path, "nvidia: {deviceMemoryScaling: 1}").kubelet.warnings == ()
    (warning,) = read(tmp_path, toml="[kubelet]\nmemory_scaling = 2.0\n").kubelet.warnings
    assert warning.startswith("kubelet.memory_scaling (by [kubelet]): 2 promises more memory")
    assert "out of memory" in warning


@pytest.mark.parametrize("vendor", sorted(VENDORS))
def test_other_vendors_are_one_warning_each(tmp_path: Path, vendor: str) -> None:
    body = {vendor: [{"resourceCountName": f"{vendor}.com/one"}, {"x": {"resourceName": "a.b/c"}}]}
    (warning,) = read(tmp_path, yaml.safe_dump({"nvidia": {}, **body})).kubelet.warnings
    assert f"{vendor}: {VENDORS[vendor]} is not served" in warning
    assert f"{vendor}.com/one, a.b/c" in warning


def test_nothing_is_left_out_in_silence(tmp_path: Path) -> None:
    """Every key of both files either changes a value here, or is warned about, or asks for nothing."""
    loud = {
        "defaultGPUNum": 1,
        "deviceCoreScaling": 1.2,
        "libCudaLogLevel": 1,
        "preConfiguredDeviceMemory": 1000,
        "overwriteEnv": True,
        "runtimeClassName": "nvidia",
        "migProfileAllowlist": [{"models": ["A30"]}],
        "knownMigGeometries": [{"models": ["A30"]}],
        "deviceSplitCont": 3,
    }
    found = read(tmp_path, yaml.safe_dump({"nvidia": loud, "nvidai": {}})).kubelet
    for key in loud:
        assert sum(f"nvidia.{key}: " in one for one in found.warnings) == 1, key
    assert "deviceSplitCont: is not applied: no such key is known here (did you mean 'dev" in told(
        read(tmp_path, yaml.safe_dump({"nvidia": loud}))
    )
    assert "nvidai: is not applied: no such section is known here (did you mean 'nvidia'?)" in (
        "\n".join(found.warnings)
    )
    quiet = {
        "deviceCoreScaling": 1.0,
        "preConfiguredDeviceMemory": 0,
        "overwriteEnv": False,
        "runtimeClassName": "",
    }
    assert read(tmp_path, yaml.safe_dump({"nvidia": quiet})).kubelet.warnings == ()
    entry = {
        "name": "node1",
        "devicecorescaling": 2,
        "libcudaloglevel": 0,
        "preconfigureddevicememory": 5,
        "enablegetpreferredallocation": False,
        "speling": 1,
    }
    found = read(tmp_path, nodes(entry)).kubelet
    assert len(found.warnings) == len(entry) - 1
    for key in entry.keys() - {"name"}:
        assert f"nodeconfig[0] (node1).{key}: " in "\n".join(found.warnings)


def test_a_list_in_the_place_of_a_word_is_a_mistake_like_others(tmp_path: Path) -> None:
    entry = {"name": "node1", "operatingmode": {"a": 1}}
    found = problems(tmp_path, "nvidia: {gpuCorePolicy: [force]}", nodes(entry))
    assert found == [
        "hami-0.yaml: nvidia.gpuCorePolicy: must be one of default, force, disable, got ['force']",
        "hami-1.yaml: nodeconfig[0] (node1).operatingmode: must be one of hami-core, mig, mps, got"
        " {'a': 1}",
    ]


def test_a_key_that_is_no_text_is_unknown(tmp_path: Path) -> None:
    (warning,) = read(tmp_path, "{nodeconfig: [], 1: x}").kubelet.warnings
    assert warning.endswith("1: is not applied: no such key is known here; known: nodeconfig")


def test_mistakes_name_the_file_and_the_key(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "nvidia: {deviceSplitCount: ten, defaultMem: -1, gpuCorePolicy: never, disableCoreLimit: 1}",
        nodes(
            {"name": "node1", "operatingmode": "timeslice", "filterdevices": {"uuid": UUID}},
            {"devicesplitcount": 1},
        ),
    )
    assert found == [
        "hami-0.yaml: nvidia.deviceSplitCount: must be a whole number, got 'ten'",
        "hami-0.yaml: nvidia.defaultMem: must be between 0 and 1e+09, got -1",
        "hami-0.yaml: nvidia.gpuCorePolicy: must be one of default, force, disable, got 'never'",
        "hami-0.yaml: nvidia.disableCoreLimit: must be true or false, got 1",
        "hami-1.yaml: nodeconfig[0] (node1).operatingmode: must be one of hami-core, mig, mps, got 'timeslice'",
        f"hami-1.yaml: nodeconfig[0] (node1).filterdevices: uuid must be a list of texts, got '{UUID}'",
        "hami-1.yaml: nodeconfig[1].name: must be the name of a node, got None",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("- 1\n", "contains no HAMi configuration"),
        ("a: [", "not YAML or JSON"),
        ("kind: Service\nmetadata: {}\n", "expected a ConfigMap, HAMi's"),
        ("kind: ConfigMap\ndata: {a: b}\n", "its data has a"),
        ("kind: ConfigMap\n", "its data has nothing"),
        (config_map("config.json", "{"), "config.json: not YAML or JSON"),
        (config_map("config.json", "3"), "config.json: must be a mapping, got 3"),
        ('{"nodeconfig": 3}', "nodeconfig: must be a list of nodes, got 3"),
        ('{"nodeconfig": [3]}', "nodeconfig[0]: must be a mapping, got 3"),
        ("nvidia: 3", "nvidia: must be a mapping, got 3"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, text: str, said: str) -> None:
    (problem,) = problems(tmp_path, text)
    assert problem.startswith("hami-0.yaml: ")
    assert said in problem


def test_files_that_cannot_be_read_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"nvidia: \xff")
    with pytest.raises(ConfigError) as caught:
        load(None, "host", "", [tmp_path / "absent", tmp_path / "binary"])
    absent, binary = caught.value.problems
    assert absent == f"{tmp_path}/absent: No such file or directory"
    assert "not UTF-8" in binary


def test_modes_that_are_not_there_are_refused_by_name(tmp_path: Path) -> None:
    loaded = read(tmp_path, nodes({"name": "node1", "operatingmode": "mps"}))
    assert not loaded.refused  # the kubelet is not served at all
    loaded = read(
        tmp_path,
        nodes({"name": "node1", "operatingmode": "mps"}),
        toml="[kubelet]\nenabled = true\n",
    )
    assert loaded.refused
    (problem,) = loaded.kubelet.problems
    assert problem.startswith("kubelet.mode (by ")
    assert "mps is not supported yet" in problem


def test_mode_mig_needs_a_strategy(tmp_path: Path) -> None:
    served = "[kubelet]\nenabled = true\n"
    loaded = read(tmp_path, nodes({"name": "node1", "operatingmode": "mig"}), toml=served)
    (problem,) = loaded.kubelet.problems
    assert problem.startswith("kubelet.mig_strategy: mode mig needs single")
    for strategy in ("single", "mixed"):
        toml = f'{served}mig_strategy = "{strategy}"\n'
        assert not read(
            tmp_path, nodes({"name": "node1", "operatingmode": "mig"}), toml=toml
        ).refused


def test_single_cards_have_slots_of_their_own(tmp_path: Path) -> None:
    served = "[kubelet]\nenabled = true\n"
    found = read(tmp_path, toml=f'{served}card_slots = ["0=1", "{UUID}=256"]\n')
    assert found.kubelet.config.slots_of_cards == {"0": 1, UUID: 256}
    wrong = '["0=0", "1=257", "GPU-1=2", "2", "0=1=1", "3=4", "3=5"]'
    refused = read(tmp_path, toml=f"{served}card_slots = {wrong}\n")
    assert refused.refused
    key = "kubelet.card_slots (by [kubelet])"
    assert list(refused.kubelet.problems) == [
        f"{key}: 0 is there 2 times",
        f"{key}: 3 is there 2 times",
        *(
            f"{key}: {one!r} is not UUID=NUMBER or INDEX=NUMBER, 1 to 256"
            for one in ("0=0", "1=257", "GPU-1=2", "2", "0=1=1")
        ),
    ]
    whole = read(tmp_path, toml=f'{served}mode = "exclusive"\ncard_slots = ["0=2"]\n').kubelet
    assert whole.config.slots_of_cards == {}
    assert [one.split(" ")[0] for one in whole.warnings] == ["kubelet.card_slots"]


def test_exclusive_is_one_slot_and_says_what_it_overrides(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "nvidia: {deviceSplitCount: 8, deviceMemoryScaling: 2}",
        toml='[kubelet]\nmode = "exclusive"\n',
    ).kubelet
    assert (found.config.slots_per_gpu, found.config.memory_scaling) == (1, 1.0)
    assert [one.split(" ")[0] for one in found.warnings] == [
        "kubelet.slots_per_gpu",
        "kubelet.memory_scaling",
    ]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpu", "is not DOMAIN/NAME"),
        ("kubernetes.io/gpu", "belongs to Kubernetes"),
        ("x.kubernetes.io/gpu", "belongs to Kubernetes"),
        ("requests.nvidia.com/gpu", "belongs to quotas"),
        ("nvidia.com/gpumem", "is resource_memory already"),
    ],
)
def test_names_that_the_kubelet_would_refuse(tmp_path: Path, name: str, why: str) -> None:
    toml = f'[kubelet]\nresource_cores = "{name}"\n'
    (problem,) = read(tmp_path, toml=toml).kubelet.problems
    assert problem.startswith("kubelet.resource_cores (by [kubelet]): ")
    assert why in problem


def test_pods_of_jobs_are_looked_into(tmp_path: Path) -> None:
    job = {
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {
            "jobTemplate": {
                "spec": {
                    "template": {
                        "metadata": {"annotations": {"hami.io/anything": "1"}},
                        "spec": {
                            "initContainers": [
                                {"name": "a", "env": [{"name": "CUDA_DEVICE_MEMORY_LIMIT_0"}]}
                            ],
                            "containers": [
                                {
                                    "name": "b",
                                    "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 1}},
                                },
                                {"name": "c", "resources": {"requests": {"nvidia.com/gpumen": 1}}},
                            ],
                        },
                    }
                }
            }
        },
    }
    found = read(tmp_path, yaml.safe_dump({"kind": "List", "items": [job]})).kubelet.warnings
    assert [one.replace(f"{tmp_path}/", "").split(": ")[1] for one in found] == [
        "annotation hami.io/anything",
        "variable CUDA_DEVICE_MEMORY_LIMIT_0",
        "resource nvidia.com/gpumen",
    ]
    assert all(one.endswith("(in CronJob nightly)") for one in found)


def test_our_own_names_are_known_in_pods(tmp_path: Path) -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/vgpu": 1}}}]},
    }
    config = "nvidia: {resourceCountName: nvidia.com/vgpu}"
    assert read(tmp_path, yaml.safe_dump(pod), config).kubelet.warnings == ()
    assert len(read(tmp_path, yaml.safe_dump(pod)).kubelet.warnings) == 1


def test_the_page_has_every_key() -> None:
    page = (REPO / "docs" / "hami.md").read_text()
    assert [key for key in (*NVIDIA_KEYS, *NODE_KEYS) if f"`{key}`" not in page] == []


def test_a_file_read_twice_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(config_map("device-config.yaml", "nvidia: {}"))
    assert read_hami(path) == read_hami(path)
