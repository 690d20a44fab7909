"""Node identity from a real API server: the controller accepts a pod's bound token as proof of its
node and nothing else. No kubelet runs here: pods and nodes are objects, the tokens are those that
the API server issues for them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from nodeagent import native
from nodeagent.adapters.api.wire import Wire
from nodeagent.adapters.queue.client import GrpcQueueLink
from nodeagent.ports.queue import Capacity, Fence, QueueRefused, Welcome
from nodeagent.settings.daemon import QueueSettings
from queuecontroller.server.api.wire import NODES
from tests.cluster.api import path_of
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.programs.pki import openssl
from tests.kit.node import until
from tests.kit.queue.controller import QueueController
from tests.queue.server.callers import WIRE, message
from tests.queue.server.certificates import Authority

__all__ = ["control_plane"]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="the controller sees a pod's mounts: needs root"),
]
SPACE, AGENT, AUDIENCE = "sluice", "sluice-agent", "sluice-queue"
POD_SEES = (
    "mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount &&"
    ' mount --bind "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"'
)
"""Command in a mount namespace of its own that finds a service account's token below
/var/run/secrets, as in a pod."""
ANSWER_S = 30.0


@dataclass
class Lab:
    plane: ControlPlane
    controller: QueueController
    authority: Path
    shown: set[str]
    """Every token that was sent; none may be in the log."""

    def ask(self, token: str, node: str = "gpu-1", timeout_s: float = ANSWER_S) -> tuple[str, str]:
        """Status and details of a node's first call, over a connection of its own."""
        self.shown.add(token)
        credentials = grpc.ssl_channel_credentials(self.authority.read_bytes())
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        kind = WIRE.methods(NODES)["Connect"]
        with grpc.secure_channel(
            self.controller.tcp_address, credentials, options=options
        ) as channel:
            call = channel.unary_unary(
                f"/{NODES}/Connect",
                request_serializer=kind.request.SerializeToString,
                response_deserializer=kind.response.FromString,
            )
            try:
                metadata = [("authorization", f"Bearer {token}")]
                call(message("NodeHello", node=node), timeout=timeout_s, metadata=metadata)
            except grpc.RpcError as error:
                return error.code().name, error.details() or ""
        return "OK", ""

    def pod(self, name: str, node: str = "", account: str = AGENT, space: str = SPACE) -> str:
        """Its UID."""
        spec: dict[str, Any] = {
            "serviceAccountName": account,
            "containers": [{"name": "c", "image": "none"}],
        }
        if node:
            spec["nodeName"] = node
        made = self.plane.api.create("pods", space, {"metadata": {"name": name}, "spec": spec})
        return str(made["metadata"]["uid"])

    def token(
        self,
        pod: str = "",
        uid: str = "",
        *,
        account: str = AGENT,
        space: str = SPACE,
        audience: str = AUDIENCE,
    ) -> str:
        """Request a token as the kubelet does; without a pod it is bound to none."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if audience:
            spec["audiences"] = [audience]
        if pod:
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        path = f"{path_of('serviceaccounts', space, account)}/token"
        return str(self.plane.api.call("POST", path, {"spec": spec})["status"]["token"])

    def agent(self, node: str = "gpu-1") -> str:
        """A token of a new pod of the chart's agents, on `node`."""
        name = f"agent-{secrets.token_hex(4)}"
        return self.token(name, self.pod(name, node))


@pytest.fixture(scope="module")
def lab(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    api, place = control_plane.api, tmp_path_factory.mktemp("tokens")
    for space in (SPACE, "other"):
        api.create("namespaces", "", {"metadata": {"name": space}})
        for account in (AGENT, "somebody"):
            api.create("serviceaccounts", space, {"metadata": {"name": account}})
    api.create("serviceaccounts", SPACE, {"metadata": {"name": "sluice-queue"}})
    for node in ("gpu-1", "gpu-2"):
        api.create("nodes", "", {"metadata": {"name": node}})
    role = ("--verb=create", "--resource=tokenreviews.authentication.k8s.io")
    control_plane.kubectl("create", "clusterrole", "reviews", *role)
    bind_reviews(control_plane)
    own = place / "own"
    own.mkdir()
    (own / "token").write_text(api.token(SPACE, "sluice-queue"))
    (own / "ca.crt").write_bytes((control_plane.pki / "ca.crt").read_bytes())
    (own / "namespace").write_text(SPACE)
    authority = Authority(place / "pki")
    pair = authority.issue("queue", "DNS:localhost")
    controller = QueueController(
        place / "queue",
        host="localhost",
        both=True,
        prefix=("unshare", "--mount", "--propagation", "private", "sh", "-c", POD_SEES, str(own)),
        environment={
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(control_plane.ports["kube-apiserver"]),
        },
        settings=[
            *(f"tls.certificate={pair.certificate}", f"tls.key={pair.key}"),
            *(f"kubernetes.audience={AUDIENCE}", "server.log_level=debug"),
            f"kubernetes.nodes=system:serviceaccount:{SPACE}:{AGENT}",
        ],
    )
    made = Lab(control_plane, controller, authority.ca, set())
    try:
        controller.start()
        yield made
    finally:
        controller.stop()
    log = controller.log
    assert "Traceback" not in log
    parts = {part for token in made.shown for part in token.split(".") if len(part) >= 8}
    assert not [part for part in parts if part in log], "something of a token is in the log"


def bind_reviews(plane: ControlPlane) -> None:
    bound = ("--clusterrole=reviews", f"--serviceaccount={SPACE}:sluice-queue")
    plane.kubectl("create", "clusterrolebinding", "reviews", *bound)


# -- tokens that the API server did not give ---------------------------------------------------------------------------


def signed(claims: dict[str, Any], header: dict[str, Any], key: Path, scratch: Path) -> str:
    """A JWT as the API server makes them, with a key of ours; ES256, RFC 7518."""
    text = ".".join(packed(json.dumps(one).encode()) for one in (header, claims))
    (scratch / "text").write_text(text)
    openssl("dgst", "-sha256", "-sign", key, "-out", scratch / "signature", scratch / "text")
    return f"{text}.{packed(raw_signature((scratch / 'signature').read_bytes()))}"


def raw_signature(der: bytes) -> bytes:
    """Two numbers of 32 bytes, out of openssl's SEQUENCE of two INTEGERs."""
    found, at = b"", 2
    for _ in range(2):
        length = der[at + 1]
        found += der[at + 2 : at + 2 + length].lstrip(b"\0").rjust(32, b"\0")
        at += 2 + length
    return found


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unpacked(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def expired(lab: Lab, scratch: Path) -> str:
    header, claims, _ = lab.agent().split(".")
    past = {"iat": 1_600_000_000, "nbf": 1_600_000_000, "exp": 1_600_003_600}
    key = lab.plane.pki / "tokens.key"
    return signed(unpacked(claims) | past, unpacked(header), key, scratch)


def signed_anew(lab: Lab, scratch: Path) -> str:
    """A token that is signed correctly here: without this check the other cases could be refused
    for their signing alone."""
    header, claims, _ = lab.agent().split(".")
    return signed(unpacked(claims), unpacked(header), lab.plane.pki / "tokens.key", scratch)


def of_another_cluster(lab: Lab, scratch: Path) -> str:
    """One that calls itself the same, down to the pod's UID and the key's id."""
    key = scratch / "other.key"
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    header, claims, _ = lab.agent().split(".")
    return signed(unpacked(claims), unpacked(header), key, scratch)


def of_another_node(lab: Lab, scratch: Path) -> str:
    """A good one with the node in it written over."""
    header, claims, signature = lab.agent("gpu-2").split(".")
    inside = unpacked(claims)
    inside["kubernetes.io"]["node"]["name"] = "gpu-1"
    return f"{header}.{packed(json.dumps(inside).encode())}.{signature}"


def unsigned(lab: Lab, scratch: Path) -> str:
    header, claims, _ = lab.agent().split(".")
    return f"{packed(json.dumps(unpacked(header) | {'alg': 'none'}).encode())}.{claims}."


def of_a_deleted_pod(lab: Lab, scratch: Path, again: bool = False) -> str:
    name = f"short-lived-{secrets.token_hex(4)}"
    token = lab.token(name, lab.pod(name, "gpu-1"))
    lab.plane.api.delete(path_of("pods", SPACE, name), grace_s=0)
    if again:
        lab.pod(name, "gpu-1")
    return token


def of_a_pod_that_was_made_again(lab: Lab, scratch: Path) -> str:
    return of_a_deleted_pod(lab, scratch, again=True)


def bound(account: str, space: str) -> Callable[[Lab, Path], str]:
    def token(lab: Lab, scratch: Path) -> str:
        name = f"of-{account}-{secrets.token_hex(4)}"
        uid = lab.pod(name, "gpu-1", account, space)
        return lab.token(name, uid, account=account, space=space)

    return token


def unscheduled(lab: Lab, scratch: Path) -> str:
    return lab.token("waiting", lab.pod("waiting"))


def for_audience(audience: str) -> Callable[[Lab, Path], str]:
    def token(lab: Lab, scratch: Path) -> str:
        name = f"agent-{secrets.token_hex(4)}"
        return lab.token(name, lab.pod(name, "gpu-1"), audience=audience)

    return token


NOT_GOOD, NO_ROLE = "UNAUTHENTICATED", "PERMISSION_DENIED"
REFUSED: dict[str, tuple[Callable[[Lab, Path], str], str, str]] = {
    "for another audience": (for_audience("vault"), NOT_GOOD, "audience"),
    "for the API server itself": (for_audience(""), NOT_GOOD, "audience"),
    "of another service account": (bound("somebody", SPACE), NO_ROLE, ":somebody has no role here"),
    "of that name in another namespace": (bound(AGENT, "other"), NO_ROLE, ":other:sluice-agent has no role"),
    "bound to no pod": (lambda lab, _: lab.token(), NO_ROLE, "bound to no pod on a node"),
    "of a pod on no node": (unscheduled, NO_ROLE, "bound to no pod on a node"),
    "of a deleted pod": (of_a_deleted_pod, NOT_GOOD, "invalid"),
    "of a pod that was made again": (of_a_pod_that_was_made_again, NOT_GOOD, "invalid"),
    "expired": (expired, NOT_GOOD, "expired"),
    "of another cluster": (of_another_cluster, NOT_GOOD, "invalid"),
    "with another node in it": (of_another_node, NOT_GOOD, "invalid"),
    "unsigned": (unsigned, NOT_GOOD, "rejects the token"),
    "garbage": (lambda lab, _: "garbage." * 20, NOT_GOOD, "rejects the token"),
    "empty": (lambda lab, _: "", NOT_GOOD, ""),
    "longer than any": (lambda lab, _: f"{lab.agent()}{'x' * 8192}", NOT_GOOD, "8192"),
}  # fmt: skip


def test_a_bound_token_is_the_node_of_its_pod_and_no_other(lab: Lab) -> None:
    one, two = lab.agent("gpu-1"), lab.agent("gpu-2")
    assert lab.ask(one) == ("OK", "")
    assert lab.ask(two, "gpu-2") == ("OK", "")
    for token, node in ((one, "gpu-2"), (two, "gpu-1"), (one, "gpu-3"), (one, "*")):
        status, why = lab.ask(token, node)
        assert status in ("PERMISSION_DENIED", "INVALID_ARGUMENT"), why
        assert node in why


def test_the_tokens_that_are_made_here_would_be_good(lab: Lab, tmp_path: Path) -> None:
    assert lab.ask(signed_anew(lab, tmp_path)) == ("OK", "")


@pytest.mark.parametrize("what", REFUSED)
def test_a_token_is_refused_that_is(lab: Lab, tmp_path: Path, what: str) -> None:
    make, status, says = REFUSED[what]
    token = make(lab, tmp_path)
    found, why = lab.ask(token)
    assert found == status, why
    assert says in why
    assert not [part for part in token.split(".") if len(part) >= 8 and part in why]
    if found == NOT_GOOD and 0 < len(token) < 8192:
        assert re.search(r"warning .*rejects the token", lab.controller.log)


def test_64_kib_of_token_are_no_call_at_all(lab: Lab) -> None:
    """gRPC's own bound on headers: nothing of ours sees it, and the next call is served."""
    status, why = lab.ask("x" * (64 << 10))
    assert status in ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL"), why
    assert lab.ask(lab.agent()) == ("OK", "")


def test_no_refused_one_became_a_node(lab: Lab) -> None:
    names = {one["metadata"]["name"] for one in lab.controller.get("nodes")["items"]}
    assert names <= {"gpu-1", "gpu-2"}


def test_while_the_api_server_is_away_it_says_so_and_then_takes_the_same_token(lab: Lab) -> None:
    known, fresh = lab.agent(), lab.agent()
    began_s = time.monotonic()
    assert lab.ask(known)[0] == "OK"
    lab.plane.kill("kube-apiserver")
    try:
        status, why = lab.ask(fresh)
        assert (status, "the token cannot be reviewed" in why) == ("UNAVAILABLE", True), why
        believed = lab.ask(known)
        if time.monotonic() - began_s < 50:  # for a minute; later it is another question
            assert believed[0] == "OK"
        assert lab.controller.http("/readyz")[0] == 200
    finally:
        lab.plane.start("kube-apiserver")
        lab.plane.wait_until_ready()
    until("it is taken", lambda: lab.ask(fresh)[0] == "OK", 60)


def test_an_api_server_that_hangs_is_waited_for_no_longer_than_a_node_waits(lab: Lab) -> None:
    token = lab.agent()
    server = lab.plane._running["kube-apiserver"]
    server.send_signal(signal.SIGSTOP)
    try:
        status, why = lab.ask(token)
    finally:
        server.send_signal(signal.SIGCONT)
    assert status == "UNAVAILABLE", why
    assert "no answer in time" in why
    until("it is taken", lambda: lab.ask(token)[0] == "OK", 60)


def test_a_controller_that_may_not_ask_says_so(lab: Lab) -> None:
    lab.plane.kubectl("delete", "clusterrolebinding", "reviews")
    try:
        until("the API server refuses", lambda: "refuses to review" in lab.ask(lab.agent())[1], 60)
    finally:
        bind_reviews(lab.plane)
    until("it may again", lambda: lab.ask(lab.agent())[0] == "OK", 60)


def test_the_daemons_own_client_is_that_node(lab: Lab, tmp_path: Path) -> None:
    """The agent's link with its token's file, as the chart mounts it; renewed in place."""
    file = tmp_path / "token"
    settings = QueueSettings(
        server=lab.controller.tcp_address, ca=str(lab.authority), token=str(file)
    )

    async def connect(node: str) -> Welcome:
        link = GrpcQueueLink(settings, node, "boot", "1", Wire(native.locate().wire_descriptors))
        try:
            return await link.connect(Fence(), [], [], Capacity())
        finally:
            await link.close()

    for own, other in (("gpu-2", "gpu-1"), ("gpu-1", "gpu-2")):
        file.write_text(lab.agent(own))
        lab.shown.add(file.read_text())
        assert asyncio.run(connect(own)).epoch > 0
        with pytest.raises(QueueRefused, match="this requires its node"):
            asyncio.run(connect(other))
