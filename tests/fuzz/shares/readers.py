"""Readers of the queue's of what plugins, schedulers and users of shares write, beside queue_readers.py: HAMi's configuration, vendors'
registers and allocations, kube-scheduler's questions, pods as they are made, what the page is asked.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from queuecontroller.gpushares.admission import Question, Quotas, Rules, answer, counted
from queuecontroller.gpushares.extender import wire
from queuecontroller.gpushares.extender.answers import Defaults, Extender
from queuecontroller.gpushares.extender.ledger import PodLedger
from queuecontroller.gpushares.extender.pods import place_of, read_pod
from queuecontroller.gpushares.vendors import ROWS, asks_of, cards_of, fit
from queuecontroller.gpushares.vendors.book import ForeignBook
from queuecontroller.gpushares.vendors.config import read_device_config
from queuecontroller.kueueapi.manifests.documents import misread_of
from queuecontroller.kueueapi.manifests.sources import sources_of
from queuecontroller.scheduler.placement.stock import Stock
from queuecontroller.server.page import questions
from sluicecommon.hami.devices import BadRegister, decode, read_register
from sluicecommon.page.board import Board
from sluicecommon.settings import ConfigError
from tests.fuzz.mutation import Target
from tests.queue.gpushares.extender.rooms import node as gpu_node
from tests.queue.gpushares.vendors.plugins import NODE, PLUGINS

NOW_NS = 1_795_000_000 * 10**9


def device_config(data: bytes) -> object:
    try:
        found = yaml.safe_load(data.decode("utf-8", "replace"))
    except (yaml.YAMLError, RecursionError, ValueError):  # ConfigError at the file's reader
        return None
    if not isinstance(found, dict):
        return None
    config = read_device_config(found, "f")
    counted(config)
    return config


def register(data: bytes) -> object:
    """Annotation of a node, for every vendor at once; devices given from it come back by its
    allocation."""
    text = data.decode("utf-8", "replace")
    annotations = {one.register: text for one in ROWS if one.register}
    annotations |= {one.handshake: text for one in ROWS if one.handshake}
    counts = {one.count: text[:40] for one in ROWS}
    document = {
        "metadata": {"name": NODE, "annotations": annotations},
        "status": {"capacity": counts, "allocatable": dict.fromkeys(counts, "0")},
    }
    book = ForeignBook(ROWS)
    book.node(NODE, book.pruned_node(document))
    book.handshakes(NODE, NOW_NS)
    told: list[str] = []
    cards = cards_of(ROWS, document, [], told)
    for plugin in PLUGINS:
        chosen = fit(ROWS, cards, asks_of(ROWS, plugin.pod()))
        if isinstance(chosen, dict):
            assert all(
                part.device in {card.device.id for card in cards[word]}
                for word, given in chosen.items()
                for parts in given
                for part in parts
            )
    return read_register(text)


def allocation(data: bytes) -> object:
    """Annotation of a pod, for every vendor: read, or the pod holds nothing by it."""
    text = data.decode("utf-8", "replace")
    for plugin in PLUGINS:
        row = next(one for one in ROWS if one.word == plugin.word)
        held = plugin.pod(**{row.allocated: text})
        told: list[str] = []
        cards = cards_of((row,), plugin.node(), [held], told)
        assert all(card.slots >= 0 for each in cards.values() for card in each)
    return decode(text)


def scheduler_question(data: bytes) -> object:
    stock = Stock()
    stock.report("n", gpu_node("n"))
    asked = Extender(stock, PodLedger(stock), Defaults())
    found: list[object] = []
    for read in (wire.read_question, wire.read_preemption, wire.read_bind):
        try:
            found.append(read(data))
        except wire.BadQuestion:
            continue
    if found and isinstance(found[0], wire.Question):
        question = found[0]
        try:
            read_pod(question.pod)
            place_of(question.pod)
            passed = asked.filter(question.pod, question.names)
            wire.write_points(asked.prioritize(question.pod, question.names))
        except (KeyError, TypeError, AttributeError, ValueError):  # the desk's own answer to these
            return None
        assert set(passed.names) <= set(question.names)
        wire.write_filter(question, passed)
    return found


def made_pod(data: bytes) -> object:
    """A pod as it is made, and as a change of another: an answer, never an exception."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    quotas = Quotas(counted(RULES.devices))
    quotas.quota(QUOTA)
    for old in (None, POD):
        answer(RULES, quotas, Question(document, old, "t", "user", "k"), NOW_NS)
    return document


def what_if(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    found, wrong = sources_of({"what-if": text})
    for one in wrong[:20]:
        str(misread_of(*one))
    return questions.replaced(
        [{"kind": "Node", "metadata": {"name": "n"}}], [dict(one.body) for one in found]
    )


def stamp(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    found = BOARD.read_stamp(text)
    assert found is None or found >= 0
    return found


BOARD = Board("b0")
RULES = Rules(scheduler="sluice-scheduler", writers=frozenset({"us"}))
QUOTA: dict[str, Any] = {
    "metadata": {"name": "q", "namespace": "t"},
    "spec": {"hard": {"limits.nvidia.com/gpumem": "10000"}},
}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "namespace": "t",
        "uid": "u",
        "annotations": {
            "resize.sluice.dev/main": "gpumem=500 gpucores=5",
            "hami.io/device-scoring-weights": "slot=1,core=1,memory=3",
            "nvidia.com/use-gpuindexes": "0,1",
            "nvidia.com/vgpu-mode": "hami-core",
        },
    },
    "spec": {
        "containers": [
            {
                "name": "main",
                "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "1000"}},
            },
            {"name": "dcu", "resources": {"limits": {"hygon.com/dcunum": 1}}},
        ]
    },
}
FRACTION = {
    **POD,
    "metadata": {"name": "f", "annotations": {"gpu-fraction": "0.5"}},
    "spec": {"containers": [{"name": "c", "resources": {}}]},
}
ELASTIC = {
    **FRACTION,
    "metadata": {
        "name": "e",
        "annotations": {
            "nvidia.com/container.c.gpu-memory.request": "4Gi",
            "nvidia.com/container.c.gpu-memory.limit": "8Gi",
            "kai.scheduler/gpu-compute-sharing-mode": "time-slicing",
            "kai.scheduler/preemption-delay": "5m",
        },
    },
}
CONFIG = """
nvidia: {resourceCountName: a.com/gpu, defaultCores: 10, gpuCorePolicy: force, memoryFactor: 2}
hygon: {resourceCountName: hygon.com/dcunum, memoryFactor: 4}
metax: {resourceCountName: metax-tech.com/gpu, sgpuTopologyAware: true}
vnpus:
  - {commonWord: X, resourceName: huawei.com/X, memoryAllocatable: 32768, templates: [{name: v1, memory: 1024, aiCore: 4}]}
iluvatars: [{commonWord: BI, resourceCountName: iluvatar.ai/BI}]
others: [{commonWord: T, resourceCountName: teco.com/t, memoryFactor: 2}]
"""


def targets() -> list[Target]:
    questions_ = (
        {"Pod": POD, "NodeNames": ["n", "m"]},
        {"pod": POD, "nodes": {"items": [{"metadata": {"name": "n"}}]}},
        {
            "Pod": POD,
            "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}},
        },
        {"PodName": "p", "PodNamespace": "t", "PodUID": "u", "Node": "n"},
    )
    registers = {
        text
        for plugin in PLUGINS
        for key, text in plugin.annotations.items()
        if "register" in key or "capacity" in key or "devices" in key
    }
    return [
        Target(
            "hami device config", device_config, (ConfigError,), (CONFIG.encode(),), "an operator"
        ),
        Target(
            "vendor register",
            register,
            (BadRegister,),
            tuple(sorted(one.encode() for one in registers)),
            "a vendor's plugin, or who may change Nodes",
        ),
        Target(
            "vendor allocation",
            allocation,
            (BadRegister,),
            (b"DCU-0,DCU,16000,30:;", b";Ascend910B3-0,Ascend910B3,16384,5:;;"),
            "who may write allocations",
        ),
        Target(
            "scheduler question",
            scheduler_question,
            (),
            tuple(json.dumps(one).encode() for one in questions_),
            "a scheduler",
        ),
        Target(
            "pod with shares",
            made_pod,
            (),
            tuple(json.dumps(one).encode() for one in (POD, FRACTION, ELASTIC)),
            "users, by way of an API server",
        ),
        Target(
            "what-if of the page",
            what_if,
            (),
            (b"kind: Node\nmetadata: {name: n}\n---\nkind: ClusterQueue\nmetadata: {name: q}\n",),
            "a viewer of the page",
        ),
        Target("stamp of the page", stamp, (), (b"b0.7", b"b0.", b"x.1"), "a viewer of the page"),
    ]
