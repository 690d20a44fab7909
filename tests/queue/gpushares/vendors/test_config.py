"""HAMi's device-config.yaml: every section gives a row, and an error names its key."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from queuecontroller.gpushares.vendors import ROWS
from queuecontroller.gpushares.vendors.config import read_device_config
from sluicecommon.hami.documents import PartKind, split
from sluicecommon.settings import ConfigError
from tests.queue.manifests.collected import FOLDER


def rows(document: dict[str, Any]) -> dict[str, Any]:
    return {one.word: one for one in read_device_config(document, "f").vendors}


def test_without_a_file_rows_have_hamis_names() -> None:
    assert rows({}).keys() == {one.word for one in ROWS}
    assert not read_device_config({}, "f").warnings


@pytest.mark.parametrize(
    ("section", "key", "word", "field"),
    [
        ("cambricon", "resourceCountName", "MLU", "count"),
        ("cambricon", "resourceMemoryName", "MLU", "memory"),
        ("hygon", "resourceCoreName", "DCU", "cores"),
        ("metax", "resourceCountName", "Metax-GPU", "count"),
        ("metax", "resourceVCountName", "Metax-SGPU", "count"),
        ("metax", "resourceVMemoryName", "Metax-SGPU", "memory"),
        ("enflame", "resourceNameGCU", "GCU", "count"),
        ("enflame", "resourceNameDRSGCU", "Enflame", "count"),
        ("enflame", "resourceNameVGCUPercentage", "Enflame-vGCU", "percent"),
        ("kunlun", "resourceCountName", "kunlun", "count"),
        ("kunlunxin", "resourceVCountName", "XPU", "count"),
        ("mthreads", "resourceCoreName", "Mthreads", "cores"),
        ("awsneuron", "resourceCoreName", "AWSNeuron", "cores"),
        ("amd", "resourceMemoryName", "AMD", "memory"),
        ("vastai", "resourceCountName", "Vastai", "count"),
        ("biren", "resourceCountName", "Biren", "count"),
    ],
)
def test_a_name_of_a_section_is_the_rows(section: str, key: str, word: str, field: str) -> None:
    assert (
        getattr(rows({section: {key: "ours.example/thing"}})[word], field) == "ours.example/thing"
    )


def test_chips_are_those_that_the_file_lists() -> None:
    chip = {
        "chipName": "910Z",
        "commonWord": "Ascend910Z",
        "resourceName": "huawei.com/Z",
        "resourceMemoryName": "huawei.com/Z-memory",
        "memoryAllocatable": 1000,
        "memoryCapacity": 1100,
        "templates": [{"name": "b", "memory": 500}, {"name": "a", "memory": 100, "aiCore": 1}],
    }
    for body in ([chip], {"configs": [chip], "hamiVnpuCore": True}):
        found = rows({"vnpus": body})
        assert [word for word in found if word.startswith("Ascend")] == ["Ascend910Z"]
        row = found["Ascend910Z"]
        assert row.register == "hami.io/node-register-Ascend910Z"
        assert [one.name for one in row.more["chip"].templates] == ["a", "b"]
    found = rows({"iluvatars": [{"commonWord": "MR-X", "resourceCountName": "iluvatar.ai/x"}]})
    assert [one.word for one in found.values() if one.section == "iluvatars"] == ["MR-X"]


def test_a_vendor_that_is_no_row_is_described_in_the_file() -> None:
    entry = {
        "commonWord": "Teco",
        "title": "Tecorigin",
        "resourceCountName": "example.com/teco",
        "resourceMemoryName": "example.com/teco-memory",
    }
    row = rows({"others": [entry]})["Teco"]
    assert (row.title, row.register) == ("Tecorigin", "hami.io/node-Teco-register")
    assert row.allocated == "hami.io/Teco-devices-allocated"


WRONG = [
    ({"nvidia": []}, "f: nvidia: must be a mapping"),
    ({"nvidia": {"defaultCores": "ten"}}, "f: nvidia.defaultCores: must be a whole number"),
    ({"nvidia": {"defaultCores": 101}}, "f: nvidia.defaultCores: must be at most 100"),
    ({"nvidia": {"gpuCorePolicy": "hard"}}, "f: nvidia.gpuCorePolicy: must be one of default"),
    ({"nvidia": {"overwriteEnv": "no"}}, "f: nvidia.overwriteEnv: must be true or false"),
    ({"hygon": {"resourceCountName": "dcu"}}, "must be a resource such as a.com/b"),
    ({"vnpus": [{}]}, "f: vnpus[0].commonWord: must be a name"),
    ({"vnpus": {"hamiVnpuMode": "enpu"}}, "must be template or hami-core"),
    ({"vnpus": [{"commonWord": "A", "memoryAllocatable": -1}]}, "memoryAllocatable: must be a"),
    (
        {"ascend": {"resourceCountName": "huawei.com/Ascend911"}},
        "unknown chip 'huawei.com/Ascend911'",
    ),
    ({"others": [{"commonWord": "T"}]}, "f: others[0].resourceCountName: is needed"),
    (
        {"amd": {"resourceCountName": "hygon.com/dcunum"}},
        "hygon.com/dcunum is a resource of Hygon DCU and of AMD GPU",
    ),
]


@pytest.mark.parametrize(("document", "why"), WRONG, ids=[why[:40] for _, why in WRONG])
def test_what_cannot_be_meant_is_told_with_its_key(document: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_device_config(document, "f")
    assert why in str(caught.value)


def test_what_is_not_known_is_a_warning_with_the_nearest() -> None:
    found = read_device_config({"nvidia": {"defaultCore": 1}, "cambrikon": {}}, "f")
    assert "f: nvidia.defaultCore: is not applied" in found.warnings[0]
    assert "did you mean 'defaultCores'?" in found.warnings[0]
    assert "did you mean 'cambricon'?" in found.warnings[1]


@pytest.mark.parametrize(
    "name", ["00-scheduler-device-configmap.yaml", "01-multi-vendor-configmap.yaml"]
)
def test_the_owners_files_are_read_as_they_are(name: str) -> None:
    document = yaml.safe_load((FOLDER / "from-hami" / name).read_text())
    parts = [
        one for one in split(name, document, yaml.safe_load) if one.kind is PartKind.DEVICE_CONFIG
    ]
    assert parts
    for part in parts:
        found = read_device_config(part.document, part.source)
        words = {one.word: one for one in found.vendors}
        assert "MLU" in words
        if "metax" in part.document:
            assert words["Metax-SGPU"].count == "metax-tech.com/sgpu"
            assert words["Metax-GPU"].count == "metax-tech.com/gpu"
            assert words["Enflame-vGCU"].count == "enflame.com/vgcu"
            assert words["Ascend910B3"].memory == "huawei.com/Ascend910B3-memory"
