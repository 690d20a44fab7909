"""The client and the follower over real HTTP, against an API server that behaves."""

from __future__ import annotations

import asyncio
import base64
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from sluicecommon import yaml_text
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import (
    AGAIN_S,
    Access,
    Credentials,
    NoAccess,
    Secret,
    from_kubeconfig,
    in_cluster,
)
from sluicecommon.kubernetes.decoding import Decoder
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.following import Follower
from sluicecommon.kubernetes.reflector import Change, Changed, Reflector, Removed, Synced
from sluicecommon.kubernetes.resources import NODES, PODS
from sluicecommon.kubernetes.reviews import NODE_NAME, review
from tests.kit.apiserver import ApiServer


def pod(name: str, node: str = "n1", namespace: str = "default") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"nodeName": node}}


def scene(
    play: Callable[[ApiServer, ApiClient], Awaitable[None]], server: ApiServer | None = None
) -> None:
    async def run() -> None:
        api = server or ApiServer()
        await api.start()
        client = ApiClient(Credentials(Access(api.url, token=Secret(b"t"))), "test", deadline_s=5)
        try:
            async with asyncio.timeout(30):
                await play(api, client)
        finally:
            await client.close()
            await api.close()

    asyncio.run(run())


def test_a_cancellation_at_the_moment_of_the_timeout_is_not_lost() -> None:
    """aiohttp's own timer takes the cancellation back, too: a controller that had lost its lease went on, and its session never ended."""

    async def play(api: ApiServer, client: ApiClient) -> None:
        loop = asyncio.get_running_loop()
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1")
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        slow = ApiClient(Credentials(Access(url, token=Secret(b"t"))), "test", deadline_s=0.5)
        asking = asyncio.create_task(slow.get(NODES, "n1"))
        await asyncio.sleep(0.2)
        loop.call_at(loop.time() + 0.5, asking.cancel)
        time.sleep(1.0)  # Both are due when the loop goes on, the timeout first.
        done, _ = await asyncio.wait({asking}, timeout=10)
        assert done
        assert asking.cancelled()
        with pytest.raises(ApiAway, match="no answer in time"):
            await slow.get(NODES, "n1")
        await slow.close()
        silent.close()

    scene(play)


def test_objects_are_made_read_and_patched_under_their_version() -> None:
    async def play(api: ApiServer, client: ApiClient) -> None:
        made = await client.create(PODS, pod("a"), "default")
        version = made["metadata"]["resourceVersion"]
        assert (await client.get(PODS, "a", "default"))["spec"]["nodeName"] == "n1"
        patch = {"metadata": {"labels": {"x": "1"}}}
        await client.merge_patch(PODS, "a", patch, "default", resource_version=version)
        with pytest.raises(ApiRefused) as refused:
            await client.merge_patch(PODS, "a", patch, "default", resource_version=version)
        assert refused.value.conflict
        api.put("/api/v1/nodes", {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "2"}}})
        status = {"status": {"capacity": {"x/y": "3"}}, "spec": {"unschedulable": True}}
        await client.merge_patch(NODES, "n1", status, subresource="status")
        node = await client.get(NODES, "n1")
        assert node["status"]["capacity"] == {"cpu": "2", "x/y": "3"}
        assert "spec" not in node
        with pytest.raises(ApiRefused) as refused:
            await client.get(PODS, "b", "default")
        assert refused.value.not_found
        assert refused.value.reason == "NotFound"

    scene(play)


def test_nobody_there_and_nonsense_are_the_same_trouble() -> None:
    async def play(api: ApiServer, client: ApiClient) -> None:
        nobody = ApiClient(Credentials(Access("http://127.0.0.1:9")), "test")
        with pytest.raises(ApiAway):
            await nobody.get(PODS, "a", "default")
        await nobody.close()

        async def nonsense(request: web.Request) -> web.Response:
            return web.Response(text="<html>")

        api._handle = nonsense  # type: ignore[method-assign]
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", nonsense)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        other = ApiClient(Credentials(Access(f"http://127.0.0.1:{port}")), "test")
        with pytest.raises(ApiAway, match="not JSON"):
            await other.get(PODS, "a", "default")
        await other.close()
        await runner.cleanup()

    scene(play)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_answer_without_a_length_is_not_read_for_ever(compressed: bool) -> None:
    limit = 1 << 20

    async def play() -> None:
        sent = 0

        async def endless(request: web.Request) -> web.StreamResponse:
            nonlocal sent
            answer = web.StreamResponse()
            if compressed:
                answer.enable_compression(web.ContentCoding.gzip)
            await answer.prepare(request)
            while sent < 64 * limit:
                sent += 1 << 16
                await answer.write(b" " * (1 << 16))
            return answer

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", endless)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        access = Credentials(Access(f"http://127.0.0.1:{port}"))
        client = ApiClient(access, "test", largest_bytes=limit)
        with pytest.raises(ApiAway, match="bytes or more"):
            await client.get(PODS, "a", "default")
        await client.close()
        await runner.cleanup()

    asyncio.run(play())


async def following(
    api: ApiServer,
    client: ApiClient,
    play: Callable[[dict[str, str], asyncio.Event], Awaitable[None]],
) -> Reflector[str]:
    known: dict[str, str] = {}
    news = asyncio.Event()

    def changed(change: Change[str]) -> None:
        match change:
            case Changed(item):
                known[item.key] = item.value
            case Removed(key):
                del known[key]
            case Synced():
                pass
        news.set()

    selector = (("fieldSelector", "spec.nodeName=n1"),)
    reflector = Reflector(
        Decoder(lambda document: str(document["spec"].get("note", ""))), selector, lambda: 0.02
    )
    task = asyncio.create_task(Follower(client, PODS, reflector, changed).run())
    try:
        await play(known, news)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return reflector


async def until(news: asyncio.Event, true: Callable[[], bool]) -> None:
    while not true():
        news.clear()
        await news.wait()


@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "in pages"])
def test_it_follows_this_nodes_pods_through_cuts_and_compaction(streaming: bool) -> None:
    async def play(api: ApiServer, client: ApiClient) -> None:
        pods = "/api/v1/pods"
        for number in range(3):
            api.put(pods, pod(f"p{number}"))
        api.put(pods, pod("elsewhere", "n2"))

        async def story(known: dict[str, str], news: asyncio.Event) -> None:
            await until(news, lambda: len(known) == 3)
            api.remove(pods, "default/p1")
            api.put(pods, pod("p3"))
            await until(news, lambda: sorted(known) == [f"default/p{i}" for i in (0, 2, 3)])
            api.cut()
            api.put(pods, pod("p4"))
            await until(news, lambda: "default/p4" in known)
            api.remove(pods, "default/p0")
            api.put(pods, pod("p5"))
            api.compact()  # what was removed is in no history any more
            api.cut()
            await until(news, lambda: "default/p5" in known and "default/p0" not in known)

        reflector = await following(api, client, story)
        assert reflector.synced

    scene(play, ApiServer(streaming))


def test_a_token_that_was_renewed_is_read_again(tmp_path: Path) -> None:
    async def play(api: ApiServer, client: ApiClient) -> None:
        token = tmp_path / "token"
        token.write_text("old")
        own = ApiClient(Credentials(Access(api.url, token=Secret(path=token))), "test")
        with pytest.raises(ApiRefused) as refused:
            await own.get(NODES, "n1")
        assert refused.value.denied
        token.write_text("new\n")
        api.put("/api/v1/nodes", {"metadata": {"name": "n1"}})
        assert (await own.get(NODES, "n1"))["metadata"]["name"] == "n1"
        await own.close()

    scene(play, ApiServer(token="new"))


def test_tokens_and_certificates_are_read_again_each_minute(tmp_path: Path) -> None:
    token, now = tmp_path / "token", [0.0]
    token.write_text("one")
    held = Credentials(Access("http://x", token=Secret(path=token)), lambda: now[0])
    assert held.token() == "one"
    token.write_text("two")
    assert held.token() == "one"
    now[0] = AGAIN_S
    assert held.token() == "two"
    token.unlink()
    now[0] = 2 * AGAIN_S
    with pytest.raises(NoAccess, match="token"):
        held.token()


def test_a_tokens_owner_and_node_are_what_the_api_server_says() -> None:
    async def play(api: ApiServer, client: ApiClient) -> None:
        user = {
            "username": "system:serviceaccount:sluice:sluice-agent",
            "groups": ["system:serviceaccounts"],
            "extra": {NODE_NAME: ["n1"]},
        }
        api.reviews["good"] = {"authenticated": True, "user": user, "audiences": ["sluice"]}
        api.reviews["other"] = {"authenticated": True, "user": user, "audiences": ["api"]}
        api.reviews["unaware"] = {"authenticated": True, "user": user}
        good = await review(client, "good", ["sluice"])
        assert good.authenticated
        assert good.username.endswith("sluice-agent")
        assert good.claim(NODE_NAME) == "n1"
        assert good.claim("nothing") == ""
        for token in ("other", "unaware", "forged"):
            assert not (await review(client, token, ["sluice"])).authenticated

    scene(play)


def openssl(*arguments: str, where: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=where, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_a_kubeconfig_with_a_client_certificate_over_tls(tmp_path: Path) -> None:
    ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    san = ("-addext", "subjectAltName=IP:127.0.0.1")
    for name, more in (("server", san), ("client", ())):
        openssl(
            "req",
            "-x509",
            *ec,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.crt",
            "-subj",
            f"/CN={name}",
            *more,
            where=tmp_path,
        )

    def data(name: str) -> str:
        return base64.b64encode((tmp_path / name).read_bytes()).decode()

    async def play() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
        context.load_verify_locations(tmp_path / "client.crt")
        context.verify_mode = ssl.CERT_REQUIRED

        async def who(request: web.Request) -> web.Response:
            assert request.transport is not None
            peer = request.transport.get_extra_info("peercert")
            return web.json_response({"cn": peer["subject"][0][0][1]})

        app = web.Application()
        app.router.add_get("/version", who)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [
                {
                    "name": "k",
                    "cluster": {
                        "server": f"https://127.0.0.1:{port}/",
                        "certificate-authority": "server.crt",
                    },
                }
            ],
            "users": [
                {
                    "name": "u",
                    "user": {
                        "client-certificate-data": data("client.crt"),
                        "client-key-data": data("client.key"),
                    },
                }
            ],
        }
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump(config))
        client = ApiClient(Credentials(from_kubeconfig(path, yaml_text.read)), "test")
        assert await client.get_path("/version") == {"cn": "client"}
        await client.close()
        del config["clusters"][0]["cluster"]["certificate-authority"]  # type: ignore[index]
        path.write_text(yaml.safe_dump(config))
        stranger = ApiClient(Credentials(from_kubeconfig(path, yaml_text.read)), "test")
        with pytest.raises(ApiAway, match="certificate"):
            await stranger.get_path("/version")
        await stranger.close()
        await runner.cleanup()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "not a kubeconfig"),
        ("{}", "current-context"),
        ("{current-context: a}", "no context named 'a'"),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: k, user: u}}],"
            " clusters: [{name: k, cluster: {server: https://x}}],"
            " users: [{name: u, user: {exec: {command: aws}}}]}",
            "logs in by exec",
        ),
        ("{current-context: [", "not a kubeconfig: not YAML"),
        ("[" * 3000, "not a kubeconfig: not YAML"),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: k}}],"
            " clusters: [{name: k, cluster: {}}]}",
            "no server",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_serve_says_why(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(NoAccess, match=says):
        from_kubeconfig(path, yaml_text.read)


def test_in_a_pod_the_service_account_is_taken(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert in_cluster(environment, tmp_path) is None
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("sluice")
    access = in_cluster(environment, tmp_path)
    assert access is not None
    assert access.server == "https://[fd00::1]:6443"
    assert access.namespace == "sluice"
    assert in_cluster({}, tmp_path) is None


def test_a_name_from_outside_leads_to_no_other_object() -> None:
    assert PODS.path("a/b", "../x") == "/api/v1/namespaces/a%2Fb/pods/..%2Fx"
    assert NODES.path("ignored", "n", "status") == "/api/v1/nodes/n/status"


def test_who_runs_without_kubernetes_loads_no_http_client() -> None:
    text = (
        "import sys, nodeagent.__main__, queuecontroller.cli.main;"
        "print([m for m in sys.modules if m.partition('.')[0] in ('aiohttp', 'multidict', 'yarl')])"
    )
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
