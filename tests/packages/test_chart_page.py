"""The chart's values for the page: on loopback by default, by a Service with TLS, and who sees it."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml

from queuecontroller.server import config as queue_config
from queuecontroller.server.page import viewers
from tests.packages.chart import CHART, SECRETS, helm, needs_helm, of, rendered, rights, template


@needs_helm
@pytest.mark.parametrize("mode", ["standalone", "kubernetes"])
def test_the_page_is_on_loopback_until_its_service_is_asked_for(mode: str) -> None:
    plain = rendered(*SECRETS, f"queue.mode={mode}")
    page = queue_config.parse(
        tomllib.loads(of(plain, "ConfigMap", "queue")["data"]["queue.toml"])
    ).page
    assert (page.listen, page.certificate, page.url) == ("127.0.0.1:9467", "", "")
    assert "page" not in _ports(plain)
    assert [one for one in plain if one["kind"] == "Ingress"] == []
    none = rendered(*SECRETS, f"queue.mode={mode}", "queue.page.enabled=false")
    text = of(none, "ConfigMap", "queue")["data"]["queue.toml"]
    assert queue_config.parse(tomllib.loads(text)).page.listen == ""
    assert [one for one in none if "-page-" in one["metadata"]["name"]] == []


def _ports(objects: list[Any]) -> dict[str, int]:
    service = of(objects, "Service", "s-queue")["spec"]["ports"]
    return {one["name"]: one["port"] for one in service}


@needs_helm
@pytest.mark.parametrize(("secret", "at"), [("", "/etc/sluice/tls"), ("p", "/etc/sluice/page-tls")])
def test_the_pages_service_has_tls_and_lets_in_who_is_named(secret: str, at: str) -> None:
    opened = (*SECRETS, "queue.page.service=true", f"queue.page.tlsSecret={secret}")
    blind = template(*opened)
    assert blind.returncode != 0
    assert "networkPolicy.pageFrom: is empty" in blind.stderr
    objects = rendered(*opened, "networkPolicy.pageFrom[0].podSelector.matchLabels.a=b")
    page = queue_config.parse(
        tomllib.loads(of(objects, "ConfigMap", "queue")["data"]["queue.toml"])
    ).page
    assert (page.listen, page.certificate, page.key) == (
        "0.0.0.0:9467",
        f"{at}/tls.crt",
        f"{at}/tls.key",
    )
    assert page.url == f"https://s-queue.gpu.svc:{_ports(objects)['page']}"
    pod = of(objects, "Deployment", "queue")["spec"]["template"]["spec"]
    mounted = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    (volume,) = [one for one in pod["volumes"] if one["name"] == mounted[at]]
    assert volume["secret"]["secretName"] == (secret or "q")
    ingress = of(objects, "NetworkPolicy", "queue")["spec"]["ingress"]
    (rule,) = [one for one in ingress if {"protocol": "TCP", "port": "page"} in one["ports"]]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"a": "b"}}}]
    assert {one["name"]: one["containerPort"] for one in pod["containers"][0]["ports"]}[
        "page"
    ] == 9467


@needs_helm
def test_people_see_the_page_by_roles_that_the_page_asks_about() -> None:
    who = "queue.page.viewers={ann,group:sre,system:serviceaccount:ops:bot}"
    done = helm(
        *("template", "s", CHART, "-n", "gpu", "--kube-version", "1.31.0"),
        *(
            "--set",
            ",".join((*SECRETS, "queue.mode=kubernetes", who, "queue.page.operators={eve}")),
        ),
    )
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    viewer, operator = (rights(of(objects, "ClusterRole", f"page-{one}")) for one in ("viewer", "operator"))  # fmt: skip
    listed = {(group, resource) for group, resource, verbs in viewer if "list" in verbs}
    assert listed >= {(one.group, one.plural) for one, _ in viewers.SIGHTS}
    assert (viewers.WORKLOADS.group, viewers.WORKLOADS.plural) in listed
    assert all(verbs == "get,list" for _, _, verbs in viewer)
    patched = {
        (group, resource) for group, resource, verbs in operator - viewer if verbs == "patch"
    }
    assert patched == {(one.group, one.plural) for one in viewers.ACTED_ON.values()}
    subjects = of(objects, "ClusterRoleBinding", "page-viewer")["subjects"]
    assert [(one["kind"], one["name"]) for one in subjects] == [
        ("User", "ann"),
        ("Group", "sre"),
        ("ServiceAccount", "bot"),
    ]
    assert subjects[2]["namespace"] == "ops"
    (only,) = of(objects, "ClusterRoleBinding", "page-operator")["subjects"]
    assert only["name"] == "eve"
    bare = rendered(*SECRETS, "queue.mode=kubernetes")
    bound = [one["metadata"]["name"] for one in bare if one["kind"] == "ClusterRoleBinding"]
    assert not [one for one in bound if "page" in one], "no user, until one is named"
