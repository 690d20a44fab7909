"""The queue's page in mode kubernetes, by a real API server's word: a token sees what RBAC lets it list, and writes what RBAC lets it
patch, as itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.api_only.users.viewer import Viewer
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import KUEUE, apply, define, door, job, of_kueue, quota, serving
from tests.kit.node import until
from tests.kit.workplace import free_port

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SPACES = ("team-a", "team-b")


@dataclass
class Page:
    plane: ControlPlane
    port: int

    def viewer(self, name: str, *roles: tuple[str, str]) -> Viewer:
        """A service account with these (role of the cluster, namespace; empty: everywhere)."""
        head = {"name": name, "namespace": "default"}
        documents: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head}
        ]
        for role, space in roles:
            kind = "RoleBinding" if space else "ClusterRoleBinding"
            where = {"namespace": space} if space else {}
            documents.append(
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": kind,
                    "metadata": {"name": f"{name}-{role}", **where},
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io",
                        "kind": "ClusterRole",
                        "name": role,
                    },
                    "subjects": [{"kind": "ServiceAccount", **head}],
                }
            )
        apply(self.plane, *documents)
        return Viewer(self.port, self.plane.token("default", name))


def role(name: str, verbs: list[str], *resources: str) -> dict[str, Any]:
    rule = {"apiGroups": ["kueue.x-k8s.io"], "resources": list(resources), "verbs": verbs}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [rule],
    }


@pytest.fixture(scope="module")
def page(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    define(control_plane)
    apply(control_plane, of_kueue("ResourceFlavor", "plain", {}))
    apply(control_plane, quota("shared", 1))
    for space in SPACES:
        apply(control_plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
        local = door("main", "shared")
        local["metadata"]["namespace"] = space
        apply(control_plane, local)
        one = job(f"job-{space}", "main")
        one["metadata"]["namespace"] = space
        apply(control_plane, one)
    apply(
        control_plane,
        role("sees-work", ["list", "get"], "workloads"),
        role("changes-work", ["patch"], "workloads"),
        role("sees-queues", ["list", "get"], "clusterqueues", "cohorts", "resourceflavors"),
    )
    port = free_port()
    settings = (f"page.listen=127.0.0.1:{port}",)
    with serving(control_plane, tmp_path_factory.mktemp("page"), *settings) as replica:
        until("it decides", replica.leads, 60)
        made = Page(control_plane, port)
        admin = made.viewer("admin", ("cluster-admin", ""))
        until("both jobs' workloads are on the page", lambda: len(work(admin)) == 2, 60)
        yield made
        secret = [one for one in admin.token.split(".") if len(one) > 8]
        assert not [part for part in secret if part in replica.text], "a token is in the log"


def work(viewer: Viewer) -> set[str]:
    return {space for kind, space, _ in viewer.sees() if kind == "Workload"}


def test_a_token_without_rights_sees_nothing_and_changes_nothing(page: Page) -> None:
    nobody = page.viewer("nobody")
    assert nobody.call("session")[1]["viewer"] == "system:serviceaccount:default:nobody"
    assert nobody.sees() == set()
    ((_, space, name),) = [
        k for k in page.viewer("admin").sees() if k[:2] == ("Workload", "team-a")
    ]
    for path in ("explain", "object", "may"):
        status, answer = nobody.call(f"{path}?kind=Workload&namespace={space}&name={name}")
        assert (status, name in json.dumps(answer)) == (404, True), path
    given = {"kind": "Workload", "namespace": space, "name": name}
    assert nobody.call("hold", given)[0] == 404
    assert nobody.call("whatif", {"yaml": "kind: Node"})[0] == 403


def test_what_is_no_token_is_nobodys(page: Page) -> None:
    for token in ("x", "a.b.c", "ü" * 20, page.viewer("gone").token[:-3] + "xxx"):
        stranger = Viewer(page.port, token.encode().decode("latin-1"))
        assert stranger.call("explain?namespace=team-a&name=x")[0] == 401
        assert stranger.call("session")[1]["viewer"] is None


def test_who_may_list_in_one_namespace_sees_that_one(page: Page) -> None:
    ann = page.viewer("ann", ("sees-work", "team-a"))
    seen = ann.sees()
    assert {space for _, space, _ in seen} == {"team-a"}
    kinds = {kind for kind, _, _ in seen} - {"Event"}  # of its workloads, once there are some
    assert kinds == {"Workload", "LocalQueue"}
    queues = page.viewer("ben", ("sees-queues", ""))
    assert {kind for kind, _, _ in queues.sees()} == {"Overview", "ClusterQueue", "ResourceFlavor"}
    both = page.viewer("cleo", ("sees-work", ""))
    assert work(both) == set(SPACES)


def test_an_action_is_the_viewers_own_write(page: Page) -> None:
    dan = page.viewer("dan", ("sees-work", "team-a"), ("changes-work", "team-a"), ("sees-work", "team-b"))  # fmt: skip
    names = {space: name for kind, space, name in dan.sees() if kind == "Workload"}

    def given(space: str) -> dict[str, str]:
        return {"kind": "Workload", "namespace": space, "name": names[space]}

    def verbs(space: str) -> list[str]:
        found: list[str] = dan.call(f"may?kind=Workload&namespace={space}&name={names[space]}")[1]["verbs"]  # fmt: skip
        return found

    assert (verbs("team-a"), verbs("team-b")) == (["hold", "resume"], [])
    status, answer = dan.call("hold", given("team-b"))
    assert (status, "system:serviceaccount:default:dan" in answer["error"]) == (403, True)
    status, answer = dan.call("hold", given("team-a"))
    assert status == 200, answer
    path = f"{KUEUE}/namespaces/team-a/workloads/{names['team-a']}"
    assert page.plane.api.get(path)["spec"]["active"] is False
    until("the page shows it", lambda: dan.call(f"explain?namespace=team-a&name={names['team-a']}")[1]["phase"] == "Held", 30)  # fmt: skip
    assert dan.call("resume", given("team-a"))[0] == 200
    assert page.plane.api.get(path)["spec"]["active"] is True


def test_a_post_of_another_site_is_refused(page: Page) -> None:
    admin = page.viewer("admin")
    assert admin.call("hold", {}, **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert admin.call("explain?namespace=a&name=b", **{"Sec-Fetch-Site": "same-site"})[0] == 403
