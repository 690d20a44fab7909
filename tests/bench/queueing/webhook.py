"""Cost of the webhook for pods that request shares: bytes in, bytes out, in a namespace whose quota
counts a thousand pods."""

from __future__ import annotations

import json
import time
from functools import partial

from queuecontroller.gpushares.admission import Question, Quotas, Rules, answer, counted
from queuecontroller.gpushares.admission.quota import PodUse
from queuecontroller.server.web.reviews import reviewed
from tests.bench.entries import Entry, entry, quantile

MEM = "nvidia.com/gpumem"
PODS = 1000


def question(number: int) -> bytes:
    """A pod of usual size: three containers, one of them with a share."""
    plain = {
        "name": "sidecar",
        "image": "registry.example/sidecar:1",
        "env": [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(20)],
        "volumeMounts": [{"name": f"v{i}", "mountPath": f"/mnt/{i}"} for i in range(5)],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }
    amounts = {"nvidia.com/gpu": "1", MEM: "8", "cpu": "4"}
    main = {**plain, "name": "main", "resources": {"limits": amounts}}
    head = {
        "name": f"pod-{number}",
        "namespace": "team",
        "labels": {f"label-{i}": "value" for i in range(10)},
        "annotations": {
            "nvidia.com/use-gputype": "H100",
            "hami.io/gpu-scheduler-policy": "binpack",
            **{f"example.com/annotation-{i}": "value" for i in range(10)},
        },
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": head}
    pod["spec"] = {"containers": [main, plain, {**plain, "name": "other"}]}
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": f"uid-{number}",
            "namespace": "team",
            "userInfo": {"username": "somebody"},
            "object": pod,
        },
    }
    return json.dumps(review).encode()


def run(quick: bool = False) -> list[Entry]:
    rules = Rules(scheduler="sluice-scheduler")
    quotas = Quotas(counted(rules.devices))
    head = {"name": "q", "namespace": "team"}
    quotas.quota({"metadata": head, "spec": {"hard": {f"limits.{MEM}": 10**9}}})
    for i in range(PODS):
        quotas.pod(f"there-{i}", PodUse("team", {MEM: 8000}))
    rounds = 500 if quick else 3000

    def judge(number: int, asked: Question) -> object:
        # Let in and heard of at once: what is expected stays small, as it does in a cluster.
        given = answer(rules, quotas, asked, time.monotonic_ns())
        quotas.pod("newest", PodUse("team", {MEM: 8}, asked.uid))
        return given

    taken_ms = []
    for number in range(rounds):
        body = question(number)
        begin = time.perf_counter()
        reply = reviewed(body, partial(judge, number))  # type: ignore[arg-type]
        taken_ms.append((time.perf_counter() - begin) * 1e3)
        assert json.loads(reply)["response"]["allowed"], reply
    p99 = quantile(taken_ms, 0.99)
    return [entry("webhook_p99_ms", "ms", taken_ms, value=p99, baseline=5.0, target="<= 5 ms")]
