"""The page for people who log in at an OpenID Connect issuer that a real API server believes: with the ID token that a proxy in front passes
on in the header Authorization, each sees the own namespaces. The proxy itself is not here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.api_only.users.issuer import CLIENT, Issuer
from tests.cluster.api_only.users.viewer import Viewer
from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import apply, define, door, job, of_kueue, quota, serving
from tests.kit.node import until
from tests.kit.workplace import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SPACES = ("team-a", "team-b")


@dataclass
class Behind:
    issuer: Issuer
    port: int

    def viewer(self, user: str, *groups: str) -> Viewer:
        return Viewer(self.port, self.issuer.token(user, *groups))


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    place = tmp_path_factory.mktemp("oidc")
    directory = Path(tempfile.mkdtemp(prefix="control-plane-"))
    port = free_port()
    with Issuer(place / "issuer") as issuer:
        believed = (
            f"--oidc-issuer-url={issuer.url}",
            f"--oidc-ca-file={issuer.authority.certificate}",
            f"--oidc-client-id={CLIENT}",
            "--oidc-username-claim=preferred_username",
            "--oidc-username-prefix=oidc:",
            "--oidc-groups-claim=groups",
            "--oidc-groups-prefix=oidc:",
        )
        try:
            with ControlPlane(directory, apiserver_args=believed) as plane:
                _prepare(plane)
                with serving(plane, place, f"page.listen=127.0.0.1:{port}") as replica:
                    until("it decides", replica.leads, 60)
                    made = Behind(issuer, port)
                    ann = made.viewer("ann", "team-a")
                    # The API server fetches the issuer's keys some time after its start.
                    until("ann is known", lambda: ann.call("session")[1]["viewer"] is not None, 60)
                    yield made
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _prepare(plane: ControlPlane) -> None:
    define(plane)
    apply(plane, of_kueue("ResourceFlavor", "plain", {}), quota("shared", 1))
    rules = [
        {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["list", "get"]}
    ]
    rbac = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "sees-work"},
        "rules": rules,
    }
    apply(plane, role)
    for space in SPACES:
        local, one = door("main", "shared"), job(f"job-{space}", "main")
        local["metadata"]["namespace"] = one["metadata"]["namespace"] = space
        binding = {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "people", "namespace": space},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "sees-work"},
            "subjects": [{"kind": "Group", "apiGroup": rbac, "name": f"oidc:{space}"}],
        }
        apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
        apply(plane, local, one, binding)


def spaces(viewer: Viewer) -> set[str]:
    return {space for _, space, _ in viewer.sees()}


def test_each_sees_the_namespaces_of_the_own_groups(behind: Behind) -> None:
    ann = behind.viewer("ann", "team-a")
    assert ann.call("session")[1]["viewer"] == "oidc:ann"
    until("ann's work is there", lambda: any(one[0] == "Workload" for one in ann.sees()), 60)
    assert spaces(ann) == {"team-a"}
    assert spaces(behind.viewer("ben", "team-b")) == {"team-b"}
    assert spaces(behind.viewer("eve", *SPACES)) == set(SPACES)
    assert spaces(behind.viewer("dan")) == set()


def test_a_token_that_ran_out_or_is_forged_or_of_another_audience_is_nobodys(
    behind: Behind,
) -> None:
    header, claims, _ = behind.issuer.token("ann", "team-a").split(".")
    _, _, signature = behind.issuer.token("ann").split(".")
    for token in (
        behind.issuer.token("ann", "team-a", exp=1_600_000_000, iat=1_500_000_000),
        f"{header}.{claims}.{signature}",
        behind.issuer.token("ann", "team-a", aud="another"),
    ):
        stranger = Viewer(behind.port, token)
        assert stranger.call("session")[1]["viewer"] is None
        assert stranger.call("explain?namespace=team-a&name=x")[0] == 401
