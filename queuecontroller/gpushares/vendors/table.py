"""The table of vendors: names of their resources and annotations, and the rules for their devices.
Names are the defaults of HAMi v2.10; `config` reads a cluster's own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from queuecontroller.gpushares.vendors.ascend import ASCEND, Chip, Template
from queuecontroller.gpushares.vendors.enflame import DRS
from queuecontroller.gpushares.vendors.kunlunxin import VIRTUAL, XPU
from queuecontroller.gpushares.vendors.metax import SGPU
from queuecontroller.gpushares.vendors.neuron import NEURON
from queuecontroller.gpushares.vendors.rules import Vendor
from queuecontroller.gpushares.vendors.special import (
    Amd,
    Cambricon,
    EnflameGcu,
    EnflameShared,
    Iluvatar,
    MetaxGpu,
    MooreThreads,
    Vastai,
    Whole,
)
from sluicecommon.hami.names import (
    devices_allocated,
    devices_to_allocate,
    no_use_uuid,
    node_handshake,
    node_register,
    use_uuid,
)


def ascend(word: str, chip: Chip, resource: str = "", memory: str = "", cores: str = "") -> Vendor:
    """The row of one Ascend chip."""
    resource = resource or f"huawei.com/{word}"
    return Vendor(
        section="vnpus",
        title=f"Huawei {word}",
        word=word,
        count=resource,
        memory=memory or f"{resource}-memory",
        cores=cores or f"{resource}-core",
        register=f"hami.io/node-register-{word}",
        handshake=node_handshake(word),
        use_ids=use_uuid(word),
        nouse_ids=no_use_uuid(word),
        rules=ASCEND,
        more={"chip": chip},
        to_allocate=devices_to_allocate(word),
        allocated=devices_allocated(word),
    )


def iluvatar(word: str, resource: str = "", memory: str = "", cores: str = "") -> Vendor:
    return Vendor(
        section="iluvatars",
        title=f"Iluvatar {word}",
        word=word,
        count=resource or f"iluvatar.ai/{word}-vgpu",
        memory=memory or f"iluvatar.ai/{word}.vMem",
        cores=cores or f"iluvatar.ai/{word}.vCore",
        unit_mib=256,
        register=node_register(word),
        handshake=node_handshake(word),
        use_ids=use_uuid(word),
        nouse_ids=no_use_uuid(word),
        rules=Iluvatar(),
        to_allocate=devices_to_allocate(word),
        allocated=devices_allocated(word),
    )


def _chip(allocatable: int, capacity: int, *templates: tuple[str, int, int, int]) -> Chip:
    return Chip(allocatable, capacity, tuple(Template(*one) for one in templates))


_910B = (("vir05_1c_16g", 16384, 5, 1), ("vir10_3c_32g", 32768, 10, 3))
CHIPS: Final[Mapping[str, Chip]] = MappingProxyType(
    {
        "Ascend910A": _chip(
            32768,
            32768,
            ("vir02", 2184, 2, 0),
            ("vir04", 4369, 4, 0),
            ("vir08", 8738, 8, 0),
            ("vir16", 17476, 16, 0),
        ),
        "Ascend910B2": _chip(
            65536,
            65536,
            ("vir03_1c_8g", 8192, 3, 1),
            ("vir06_1c_16g", 16384, 6, 1),
            ("vir12_3c_32g", 32768, 12, 3),
        ),
        "Ascend910B3": _chip(65536, 65536, *_910B),
        "Ascend910B4-1": _chip(65536, 65536, *_910B),
        "Ascend910B4": _chip(
            32768, 32768, ("vir05_1c_8g", 8192, 5, 1), ("vir10_3c_16g", 16384, 10, 3)
        ),
        "Ascend310P": _chip(
            21527, 24576, ("vir01", 3072, 1, 1), ("vir02", 6144, 2, 2), ("vir04", 12288, 4, 4)
        ),
        "Ascend910C": _chip(65536, 65536, *_910B),
    }
)
ROWS: Final[tuple[Vendor, ...]] = (
    *(ascend(word, chip) for word, chip in CHIPS.items()),
    Vendor(
        section="cambricon",
        title="Cambricon MLU",
        word="MLU",
        count="cambricon.com/vmlu",
        memory="cambricon.com/mlu.smlu.vmemory",
        cores="cambricon.com/mlu.smlu.vcore",
        unit_mib=256,
        default_cores=100,
        use_types="cambricon.com/use-mlutype",
        nouse_types="cambricon.com/nouse-mlutype",
        use_ids="cambricon.com/use-gpuuuid",
        nouse_ids="cambricon.com/nouse-gpuuuid",
        rules=Cambricon(),
        to_allocate=devices_to_allocate("cambricon-mlu"),
        allocated=devices_allocated("cambricon-mlu"),
    ),
    Vendor(
        section="hygon",
        title="Hygon DCU",
        word="DCU",
        count="hygon.com/dcunum",
        memory="hygon.com/dcumem",
        cores="hygon.com/dcucores",
        register=node_register("dcu"),
        handshake=node_handshake("dcu"),
        use_types="hygon.com/use-dcutype",
        nouse_types="hygon.com/nouse-dcutype",
        use_ids="hygon.com/use-gpuuuid",
        nouse_ids="hygon.com/nouse-gpuuuid",
        to_allocate=devices_to_allocate("dcu"),
        allocated=devices_allocated("dcu"),
    ),
    *(iluvatar(word) for word in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")),
    Vendor(
        section="mthreads",
        title="Moore Threads",
        word="Mthreads",
        count="mthreads.com/vgpu",
        memory="mthreads.com/sgpu-memory",
        cores="mthreads.com/sgpu-core",
        unit_mib=512,
        use_ids="mthreads.ai/use-gpuuuid",
        nouse_ids="mthreads.ai/nouse-gpuuuid",
        rules=MooreThreads(),
        allocated=devices_allocated("mthreads-vgpu"),
    ),
    Vendor(
        section="metax",
        title="MetaX GPU",
        word="Metax-GPU",
        count="metax-tech.com/gpu",
        default_cores=100,
        use_ids="metax-tech.com/use-gpuuuid",
        nouse_ids="metax-tech.com/nouse-gpuuuid",
        rules=MetaxGpu(),
        to_allocate=devices_to_allocate("metax-gpu"),
        allocated=devices_allocated("metax-gpu"),
    ),
    Vendor(
        section="metax",
        title="MetaX sGPU",
        word="Metax-SGPU",
        count="metax-tech.com/sgpu",
        memory="metax-tech.com/vmemory",
        cores="metax-tech.com/vcore",
        unit_mib=1024,
        default_cores=100,
        register="metax-tech.com/node-gpu-devices",
        use_ids="metax-tech.com/use-gpuuuid",
        nouse_ids="metax-tech.com/nouse-gpuuuid",
        rules=SGPU,
        to_allocate=devices_to_allocate("metax-sgpu"),
        allocated=devices_allocated("metax-sgpu"),
    ),
    Vendor(
        section="enflame",
        title="Enflame GCU",
        word="GCU",
        count="enflame.com/gcu",
        default_cores=100,
        use_ids="enflame.com/use-gpuuuid",
        nouse_ids="enflame.com/nouse-gpuuuid",
        rules=EnflameGcu(),
        to_allocate=devices_to_allocate("enflame-gcu"),
        allocated=devices_allocated("enflame-gcu"),
    ),
    Vendor(
        section="enflame",
        title="Enflame DRS",
        word="Enflame",
        count="enflame.com/drs-gcu",
        memory="enflame.com/gcu-memory",
        cores="enflame.com/gcu-core",
        register="enflame.com/gcu-drs-capacity",
        allocated=devices_allocated("enflame-vgpu"),
        use_ids="enflame.com/use-gpuuuid",
        nouse_ids="enflame.com/nouse-gpuuuid",
        rules=DRS,
    ),
    Vendor(
        section="enflame",
        title="Enflame vGCU",
        word="Enflame-vGCU",
        count="enflame.com/vgcu",
        percent="enflame.com/vgcu-percentage",
        allocated=devices_allocated("enflame-vgcu"),
        use_ids="enflame.com/use-gpuuuid",
        nouse_ids="enflame.com/nouse-gpuuuid",
        rules=EnflameShared(),
    ),
    Vendor(
        section="kunlun",
        title="Kunlunxin XPU",
        word="kunlun",
        count="kunlunxin.com/xpu",
        allocated="hami.io/kunlun-allocated",
        use_ids="baidu.com/use-gpuuuid",
        nouse_ids="baidu.com/nouse-gpuuuid",
        rules=XPU,
    ),
    Vendor(
        section="kunlun",
        title="Kunlunxin vXPU",
        word="XPU",
        count="kunlunxin.com/vxpu",
        memory="kunlunxin.com/vxpu-memory",
        register="hami.io/node-register-xpu",
        handshake=node_handshake("xpu"),
        use_ids=use_uuid("xpu"),
        nouse_ids=no_use_uuid("xpu"),
        rules=VIRTUAL,
        to_allocate=devices_to_allocate("xpu"),
        allocated=devices_allocated("xpu"),
    ),
    Vendor(
        section="amd",
        title="AMD GPU",
        word="AMD",
        count="amd.com/gpu",
        memory="amd.com/gpumem",
        cores="amd.com/gpucores",
        default_cores=100,
        register=node_register("amd"),
        use_types="amd.com/use-gputype",
        nouse_types="amd.com/nouse-gputype",
        use_ids="amd.com/use-gpu-uuid",
        nouse_ids="amd.com/nouse-gpu-uuid",
        rules=Amd(),
        to_allocate=devices_to_allocate("amd"),
        allocated=devices_allocated("amd"),
    ),
    Vendor(
        section="awsneuron",
        title="AWS Neuron",
        word="AWSNeuron",
        count="aws.amazon.com/neuron",
        cores="aws.amazon.com/neuroncore",
        allocated=devices_allocated("aws-neuron"),
        use_ids="aws.amazon.com/use-neuron-uuid",
        nouse_ids="aws.amazon.com/nouse-neuron-uuid",
        rules=NEURON,
    ),
    Vendor(
        section="vastai",
        title="Vastai",
        word="Vastai",
        count="vastaitech.com/va",
        register=node_register("va"),
        handshake=node_handshake("va"),
        use_types="vastaitech.com/use-va",
        nouse_types="vastaitech.com/nouse-va",
        use_ids="vastaitech.com/use-gpuuuid",
        nouse_ids="vastaitech.com/nouse-gpuuuid",
        rules=Vastai(),
        to_allocate=devices_to_allocate("Vastai"),
        allocated=devices_allocated("Vastai"),
    ),
    Vendor(
        section="biren",
        title="Biren",
        word="Biren",
        count="birentech.com/gpu",
        register=node_register("biren"),
        handshake=node_handshake("biren"),
        use_types="birentech.com/use-biren",
        nouse_types="birentech.com/nouse-biren",
        use_ids="birentech.com/use-gpuuuid",
        nouse_ids="birentech.com/nouse-gpuuuid",
        rules=Whole(),
        to_allocate=devices_to_allocate("Biren"),
        allocated=devices_allocated("Biren"),
    ),
)
