"""Every reader in the queue of another party's input, and what it may raise. See readers.py."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from queuecontroller import frameworks
from queuecontroller.frameworks.patches import merged
from queuecontroller.gpushares.claims import counting
from queuecontroller.gpushares.claims.cel import Device, matches, quantity, version
from queuecontroller.gpushares.claims.cel_parse import CelError
from queuecontroller.gpushares.claims.mappings import Mapped, Source
from queuecontroller.gpushares.claims.published import published
from queuecontroller.kueueapi.manifests.nodes import read_node
from queuecontroller.server.api import users
from queuecontroller.server.web import reviews
from queuecontroller.server.web.http import HttpServer
from queuecontroller.server.web.posts import PostServer, Response, Route
from queuecontroller.state.access import Names, RoleLists
from queuecontroller.state.access.lists import parse_checks
from queuecontroller.state.nodes.seals import Fence, Seals
from queuecontroller.state.objects.submission import Refused
from sluicecommon.budget import Budget
from sluicecommon.reader import ManifestError, Problem
from sluicecommon.reader import Reader as DocumentReader
from tests.fuzz.http import Connections, Posts
from tests.fuzz.mutation import Reader, Target

LISTS = RoleLists(
    users=Names.parse("ann, team-*"),
    nodes=Names.parse("gpu-1"),
    admins=Names.parse("carol"),
    checks=parse_checks("budget=budget-bot"),
)
SEALS = Seals(b"k" * 32)
FENCE = Fence("c1", "gpu-1", 3, 70)
SEALED = (SEALS.fence(FENCE), SEALS.row(FENCE, {"workload": "a/b", "pod": "main"}))


def certificate(data: bytes) -> object:
    """The names in a certificate, split at NUL: what is listed or of our scheme gives a role, nothing that only looks
    like it."""
    common, *others = [part.decode("utf-8", "replace") for part in data.split(b"\0")]
    uris = [one for one in others if ":" in one]
    names = [one for one in others if ":" not in one]
    found = LISTS.of_certificate(common, names, uris)
    every = {common, *names}
    assert not found.admin or "carol" in every or any(u.startswith("sluice:admin:") for u in uris)
    assert all(node in every or f"sluice:node:{node}" in uris for node in found.nodes)
    assert "*" not in found.nodes, "a certificate is one node"
    return found.roles, found.key


def seal(data: bytes) -> object:
    """Seals that a node brings back: ours to the letter, or refused."""
    text = data.decode("utf-8", "replace")
    fence, row = SEALS.open_fence(text), SEALS.open_row(text)
    assert (fence is not None) == (text == SEALED[0])
    assert (row is not None) == (text == SEALED[1])
    return fence, row


DEVICE = Device(
    driver="sluice.dev",
    attributes={"sluice.dev": {"type": "gpu", "index": 0, "v": version("570.86.15"), "p": ["1g"]}},
    capacity={"sluice.dev": {"memory": quantity("80Gi")}},
    shared=True,
)
SELECTORS = (
    b'device.attributes["sluice.dev"].?index.orValue(3) == 0 && device.driver in ["a", "sluice.dev"]',
    b'device.capacity["sluice.dev"].memory.compareTo(quantity("40Gi")) >= 0',
    b'device.attributes["sluice.dev"].p.exists(x, x.startsWith("1g")) || -1 + 2 < 3',
    b"cel.bind(a, [1, 1], cel.bind(b, [a, a], cel.bind(c, [b, b], c == [b, a] || b in [c])))",
    b'has(device.attributes["sluice.dev"].type) ? semver("1.2.3").major() == 1 : false',
)


def selector(data: bytes) -> object:
    """A device selector, within its budget of steps."""
    budget = Budget(100_000)
    try:
        return matches(data.decode("utf-8", "replace"), DEVICE, budget)
    finally:
        assert budget.spent <= 100_000 + counting.MAX_STEPS


CLAIMS: dict[str, Any] = {
    "template": {
        "spec": {
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": "gpu",
                            "exactly": {
                                "deviceClassName": "gpu.sluice.dev",
                                "count": 1,
                                "capacity": {"requests": {"memory": "8Gi"}},
                                "selectors": [
                                    {"cel": {"expression": SELECTORS[0].decode()}},
                                ],
                            },
                        }
                    ]
                }
            }
        }
    },
    "class": {"spec": {"selectors": [{"cel": {"expression": SELECTORS[1].decode()}}]}},
    "slice": {
        "spec": {
            "driver": "sluice.dev",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": "gpu-0",
                    "attributes": {"index": {"int": 0}},
                    "capacity": {"memory": {"value": "80Gi"}},
                }
            ],
        }
    },
}


def claim_template(data: bytes) -> object:
    """A pod's claim, its template, class and slice: counted, or refused with the field."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    parts = {name: value if isinstance(value := given.get(name), dict) else {} for name in CLAIMS}
    source = Source(False, "memory", "sluice.dev", "device.driver == 'sluice.dev'")
    known = counting.Known(
        {"gpu.sluice.dev": Mapped("", (("sluice.dev/memory", source),))},
        lambda namespace, name: parts["template"],
        lambda name: parts["class"],
        lambda driver: published([parts["slice"]], driver),
    )
    problems: list[Problem] = []
    spec = {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}
    found = counting.claims_of(DocumentReader(spec, "spec", problems), "n", known)
    assert all(isinstance(one, int) and one >= 0 for one in found.values())
    return found


def http_request() -> Reader:
    class Shell:
        why_not_ready = ""

        def silent_loops(self, silence_s: float) -> list[str]:
            return []

    connections = Connections(HttpServer("", ("", 0), cast(Any, Shell()), None))

    def run(data: bytes) -> object:
        reply = connections.reply(data)
        assert not reply or re.match(rb"HTTP/(1\.[01] (200|404|405)|\d\.\d 400) ", reply), reply
        return reply

    return run


def webhook_request() -> Reader:
    server = PostServer({"/validate/w": Route(lambda asked: Response(asked.body), 64)}, None)
    connections = Posts(server)

    def run(data: bytes) -> object:
        reply = connections.reply(data)
        assert re.match(rb"(HTTP/1\.1 (100|200|400|403|404|405|411|413|431) |$)", reply), reply
        return reply

    return run


def objects(data: bytes) -> object:
    """Documents of one Apply: a text may come as any that protobuf takes."""
    reading = users._documents([data.decode("utf-8", "replace")])
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return json.dumps(end.value).encode()


def node(data: bytes) -> object:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # the reader of the file has checked that
        return None
    return read_node(document) if isinstance(document, dict) else None


def queued_job(data: bytes) -> object:
    """A job of any framework, a pod, and its Workload: what is to be done about them, and their patches."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    fw = frameworks.framework_of(document)
    if fw is None:
        return None
    found: list[object] = [
        frameworks.reconcile(fw, document, None, ALL_JOBS),
        frameworks.reconcile(fw, document, WORKLOAD, ALL_JOBS),
        frameworks.reconcile_pods([document], WORKLOAD, ALL_JOBS),
        frameworks.reconcile_slices(fw, document, [WORKLOAD, WORKLOAD], ALL_JOBS),
        frameworks.reconcile_set(document, [WORKLOAD], ALL_JOBS),
    ]
    infos = [frameworks.PodSetInfo(one["name"]) for one in frameworks.pod_sets(fw, document)]
    for patch in (
        frameworks.on_create(fw, document, ALL_JOBS),
        frameworks.stop_patch(fw, document, WORKLOAD["spec"]["podSets"]),
        frameworks.start_patch(fw, document, infos),
    ):
        json.dumps(merged(document, patch))
    return found


ALL_JOBS = frameworks.Setting(without_queue=True)
POD = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}], "nodeSelector": {"c": "d"}},
}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {
        "name": "j",
        "uid": "u",
        "annotations": {
            "kueue.x-k8s.io/job-min-parallelism": "1",
            "sluice.dev/before-start": '{"undo":[[["spec","parallelism"],3]],"for":"x"}',
        },
    },
    "spec": {"suspend": True, "parallelism": 2, "template": POD},
    "status": {"active": 1, "conditions": [{"type": "Failed", "status": "False"}]},
}
JOB_SET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "s", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
    "spec": {"replicatedJobs": [{"name": "r", "template": {"spec": {"template": POD}}}]},
}
RAY_JOB = {
    "apiVersion": "ray.io/v1",
    "kind": "RayJob",
    "metadata": {"name": "r"},
    "spec": {
        "rayClusterSpec": {
            "headGroupSpec": {"template": POD},
            "workerGroupSpecs": [{"groupName": "w", "replicas": 2, "template": POD}],
        }
    },
}
ONE_POD = {"apiVersion": "v1", "kind": "Pod", **POD}
WORKLOAD: dict[str, Any] = {
    "metadata": {"name": "w", "namespace": "default"},
    "spec": {"podSets": [{"name": "main", "count": 2, "template": POD}]},
    "status": {"conditions": [{"type": "Admitted", "status": "True"}]},
}

OLD_QUEUE = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "ClusterQueue",
    "metadata": {"name": "q", "annotations": {"sluice.dev/v1beta2": '{"spec":{"x":1}}'}},
    "spec": {"cohort": "all", "flavorFungibility": {"whenCanBorrow": "Borrow"}},
}
CONVERSION = {
    "kind": "ConversionReview",
    "apiVersion": "apiextensions.k8s.io/v1",
    "request": {
        "uid": "u",
        "desiredAPIVersion": "kueue.x-k8s.io/v1beta2",
        "objects": [OLD_QUEUE],
    },
}
ADMISSION = {
    "kind": "AdmissionReview",
    "apiVersion": "admission.k8s.io/v1",
    "request": {
        "uid": "u",
        "object": {
            **OLD_QUEUE,
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "spec": {"cohortName": "all"},
        },
        "oldObject": None,
    },
}
NODE = {
    "kind": "Node",
    "metadata": {
        "name": "gpu-1",
        "labels": {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.memory": "81559"},
        "annotations": {"sluice.dev/gpus": '[{"memory":"80Gi","count":2,"mig":["1g.10gb"]}]'},
    },
    "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
    "status": {"capacity": {"cpu": "8"}, "allocatable": {"memory": "64Gi"}},
}


def targets() -> list[Target]:
    bare = json.dumps({**NODE, "metadata": {**NODE["metadata"], "annotations": {}}})  # type: ignore[dict-item]  # it is a mapping
    return [
        Target(
            "certificate",
            certificate,
            (),
            (
                b"ann\0sluice:node:gpu-1",
                b"x\0sluice:admin:carol\0spiffe://a/b",
                b"budget-bot\0team-a",
            ),
            "a client that wants a certificate from the authority",
        ),
        Target("seal", seal, (), tuple(one.encode() for one in SEALED), "a node"),
        Target("device selector", selector, (CelError,), SELECTORS, "users"),
        Target("claim template", claim_template, (), (json.dumps(CLAIMS).encode(),), "users"),
        Target(
            "http request of the queue",
            http_request(),
            (),
            (
                b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n",
                b"GET /healthz?x HTTP/1.0\r\nHost: a\r\n\r\n",
            ),
            "any client that reaches the port",
        ),
        Target(
            "webhook request",
            webhook_request(),
            (),
            (
                b"POST /validate/w HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
                b"POST /validate/w HTTP/1.0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" * 2,
                b"POST /w HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 65\r\n\r\n",
            ),
            "strangers",
        ),
        Target(
            "applied object",
            objects,
            (ManifestError,),
            (json.dumps(NODE).encode(), b'{"a":[1,2.5,"x",null,true,{"b":{}}]}'),
            "a user",
        ),
        Target(
            "place in a list",
            lambda data: users._after(data.decode("utf-8", "replace")),
            (Refused,),
            (b'["Workload","team-a","w"]',),
            "a user",
        ),
        Target(
            "node object",
            node,
            (ManifestError,),
            (json.dumps(NODE).encode(), bare.encode()),
            "a user with a copy of a cluster",
        ),
        Target(
            "queued job",
            queued_job,
            (ManifestError,),
            tuple(json.dumps(one).encode() for one in (JOB, JOB_SET, RAY_JOB, ONE_POD)),
            "users, by way of an API server",
        ),
        Target(
            "conversion review",
            reviews.converted,
            (reviews.BadReview,),
            (json.dumps(CONVERSION).encode(),),
            "users, by way of an API server",
        ),
        Target(
            "admission review",
            reviews.judged,
            (reviews.BadReview,),
            (json.dumps(ADMISSION).encode(),),
            "users, by way of an API server",
        ),
    ]
