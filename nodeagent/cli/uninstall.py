"""`sluice uninstall agents | node | cluster`: the hooks of `helm uninstall`.

There are three steps, because a node is cleaned after its daemon has ended and by a pod on it:
first the agents are deleted (refused while pods use their GPUs, since a container could not start
again), then a pod on each node removes our files, then the sums in the Node objects are removed. An
upgrade runs none of them. Each step is idempotent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from nodeagent import native
from nodeagent.adapters.host import left_on_node
from nodeagent.adapters.ledger.instance_lock import InstanceLock, Taken
from nodeagent.cli.main import EXIT_REFUSED, EXIT_UNREACHABLE
from nodeagent.cli.session import Failed, complain
from nodeagent.paths import runtime_dir
from sluicecommon.hami.names import HANDSHAKE, REGISTER, SCORE
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Credentials, NoAccess, in_cluster
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import DAEMON_SETS, NODES, PODS, Resource

COUNTED: Final = "sluice.dev/counted"
"""Annotation of a Node: the names of the resources that its agent counts there."""
HAMI_REGISTER: Final = (HANDSHAKE, REGISTER, SCORE)
"""HAMi's register of a node's GPUs, which the queue controller writes for other tools."""
OUR_HANDSHAKE: Final = " sluice"
"""End of the queue controller's handshakes; with another the register is another plugin's."""
LOOK_S: Final = 0.5
RIGHTS_S: Final = 20.0
"""How long `403` may be the answer: the rights of this pod were made a moment before it, and each
API server learns of them by itself."""
PAGE: Final = 500
MAX_NAMED: Final = 10


class Api(Protocol):
    """Calls to the API server that this needs; sluicecommon's client has them."""

    async def get(self, resource: Resource, name: str, namespace: str = "") -> dict[str, Any]: ...
    async def delete(
        self, resource: Resource, name: str, namespace: str = "", uid: str = ""
    ) -> dict[str, Any]: ...
    async def list_page(
        self, resource: Resource, parameters: Any = (), namespace: str = ""
    ) -> bytes: ...
    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
        resource_version: str = "",
    ) -> dict[str, Any]: ...


Say = Callable[[str], None]


def uninstall(options: argparse.Namespace, environment: dict[str, str]) -> int:
    try:
        if options.part == "node":
            _node(options, environment)
        else:
            asyncio.run(_cluster(options, environment))
    except Failed as failed:
        complain(f"uninstall: {failed}")
        return failed.status
    except ApiRefused as refused:
        complain(f"uninstall: the API server: {refused}")
        return EXIT_REFUSED
    except ApiAway as away:
        complain(f"uninstall: {away}")
        return EXIT_UNREACHABLE
    return 0


# --- a node ---


def _node(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    # In a process of its own: this one must have a single thread to go to the host's namespace.
    done = subprocess.run(
        [sys.executable, "-I", "-m", "nodeagent.cli", "uncontain", "--all"],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise Failed(EXIT_REFUSED, done.stderr.strip().removeprefix("sluice: "))
    directory = runtime_dir("", environment)
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = InstanceLock(directory)
    except (Taken, OSError) as error:
        raise Failed(EXIT_REFUSED, str(error)) from None
    host = left_on_node.Host(Path(options.kubelet), Path(options.cdi_dir))
    try:
        left_on_node.enter_host()
        troubles = left_on_node.remove(host)
    except OSError as error:
        raise Failed(EXIT_REFUSED, f"the host's mount namespace: {error.strerror}") from None
    finally:
        lock.close()
    if troubles:
        raise Failed(EXIT_REFUSED, "not removed: " + "; ".join(troubles))
    print("nothing of Sluice is left on this node")


# --- the cluster ---


async def _cluster(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    if not options.daemonset:
        raise Failed(2, "--daemonset: name it")
    access = in_cluster(environment)
    if access is None:
        raise Failed(2, "this is for a pod with a service account's token")
    namespace = options.namespace or access.namespace
    try:
        api = ApiClient(Credentials(access), f"sluice-uninstall/{native.version()}")
    except NoAccess as error:
        raise Failed(EXIT_UNREACHABLE, str(error)) from None
    begun = time.monotonic()
    late = _until(begun + options.timeout)

    async def step() -> None:
        if options.part == "agents":
            if options.test_pod:
                await end_test(api, namespace, options.test_pod)
            await end_agents(api, namespace, options.daemonset, options.resource, late, print)
        else:
            await end_nodes(api, namespace, options.daemonset, late, print)

    try:
        await patiently(step, late, _until(begun + RIGHTS_S), print)
    finally:
        await api.close()


async def patiently(
    step: Callable[[], Awaitable[None]],
    late: Callable[[], Awaitable[bool]],
    late_for_rights: Callable[[], Awaitable[bool]],
    say: Say,
) -> None:
    """Does `step`, which can be done again, until the API server is there and knows our rights.

    Raises what `step` does."""
    while True:
        try:
            return await step()
        except ApiAway as away:
            if await late():
                raise
            say(f"again: {away}")
        except ApiRefused as refused:
            if not refused.denied or await late_for_rights():
                raise
            say(f"again: {refused}")


def _until(deadline: float) -> Callable[[], Awaitable[bool]]:
    async def late() -> bool:
        if time.monotonic() >= deadline:
            return True
        await asyncio.sleep(LOOK_S)
        return False

    return late


async def end_test(api: Api, namespace: str, pod: str) -> None:
    """The last pod of `helm test`, which helm itself leaves. Raises ApiRefused, ApiAway."""
    try:
        await api.delete(PODS, pod, namespace)
    except ApiRefused as refused:
        if not refused.not_found:
            raise


async def end_agents(
    api: Api,
    namespace: str,
    daemonset: str,
    resource: str,
    late: Callable[[], Awaitable[bool]],
    say: Say,
) -> None:
    """Raises Failed, ApiRefused, ApiAway. `late` waits a moment; True: no longer. Pods that end
    already are waited for."""
    while found_users := [one async for one in _users(api, resource)]:
        users = sorted(name for name, ends in found_users if not ends)
        if not users and not await late():
            continue
        users = users or sorted(name for name, _ in found_users)
        named = ", ".join(users[:MAX_NAMED])
        more = f" and {len(users) - MAX_NAMED} more" if len(users) > MAX_NAMED else ""
        raise Failed(
            EXIT_REFUSED,
            f"{len(users)} pods use GPUs of Sluice: {named}{more}. Delete them first; or `helm"
            " uninstall --no-hooks`, which leaves them running and the nodes as they are",
        )
    try:
        found = await api.get(DAEMON_SETS, daemonset, namespace)
        await api.delete(DAEMON_SETS, daemonset, namespace)
    except ApiRefused as refused:
        if not refused.not_found:
            raise
        say(f"{namespace}/{daemonset} is gone already")
        return
    selector = found["spec"]["selector"]["matchLabels"]
    wanted = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    while left := [
        pod["metadata"]["name"] async for pod in _all(api, PODS, namespace, labelSelector=wanted)
    ]:
        if await late():
            raise Failed(EXIT_REFUSED, f"these agents do not end: {', '.join(left[:MAX_NAMED])}")
    say("the agents have ended")


async def end_nodes(
    api: Api, namespace: str, daemonset: str, late: Callable[[], Awaitable[bool]], say: Say
) -> None:
    """Raises Failed, ApiRefused, ApiAway."""
    while not _everywhere(found := await api.get(DAEMON_SETS, daemonset, namespace)):
        if await late():
            await _judge_late(api, namespace, found, say)
            break
    cleaned = 0
    async for node in _all(api, NODES):
        annotations = node["metadata"].get("annotations") or {}
        ours = [COUNTED] if COUNTED in annotations else []
        handshake = str(annotations.get(HANDSHAKE, ""))
        # The queue controller ends the handshake of a node whose agent has gone.
        ended = handshake.startswith("Deleted_") and COUNTED in annotations
        if ended or handshake.endswith(OUR_HANDSHAKE):
            ours += [key for key in HAMI_REGISTER if key in annotations]
        if not ours:
            continue
        names = str(annotations.get(COUNTED, ""))
        gone = {name.strip(): None for name in names.split(",") if name.strip()}
        patch = {
            "metadata": {"annotations": dict.fromkeys(ours)},
            "status": {"capacity": gone, "allocatable": gone},
        }
        await api.merge_patch(NODES, node["metadata"]["name"], patch, subresource="status")
        cleaned += 1
    say(f"all nodes are clean; GPU sums were removed from {cleaned}")


def _everywhere(daemonset: Mapping[str, Any]) -> bool:
    status = daemonset.get("status") or {}
    seen = status.get("observedGeneration", 0) >= daemonset["metadata"].get("generation", 1)
    return bool(seen and status.get("numberReady", 0) >= status.get("desiredNumberScheduled", 0))


async def _judge_late(api: Api, namespace: str, found: Mapping[str, Any], say: Say) -> None:
    """A node that is down cannot be cleaned, and must not keep the rest from going."""
    selector = found["spec"]["selector"]["matchLabels"]
    wanted = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    waiting = {
        pod["spec"].get("nodeName", "")
        async for pod in _all(api, PODS, namespace, labelSelector=wanted)
        if not _is(pod, "Ready")
    }
    down = {node["metadata"]["name"] async for node in _all(api, NODES) if not _is(node, "Ready")}
    if stuck := sorted(waiting - down):
        raise Failed(EXIT_REFUSED, f"not clean in time: {', '.join(stuck)}; see the pods' logs")
    for node in sorted(waiting & down):
        say(f"node {node} is down and was not cleaned: run `sluice uninstall node` on it")


def _is(thing: Mapping[str, Any], condition: str) -> bool:
    conditions = (thing.get("status") or {}).get("conditions") or []
    return any(one.get("type") == condition and one.get("status") == "True" for one in conditions)


async def _users(api: Api, resource: str) -> Any:
    """(namespace/name, whether it ends) of each pod that has a container with such a limit."""
    async for pod in _all(api, PODS, fieldSelector="status.phase!=Succeeded,status.phase!=Failed"):
        spec = pod["spec"]
        if not spec.get("nodeName"):
            continue
        for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
            limits = (container.get("resources") or {}).get("limits") or {}
            if resource in limits:
                metadata = pod["metadata"]
                yield f"{metadata['namespace']}/{metadata['name']}", "deletionTimestamp" in metadata
                break


async def _all(api: Api, resource: Resource, namespace: str = "", **selectors: str) -> Any:
    """Every object, page by page."""
    after = ""
    while True:
        parameters = [*selectors.items(), ("limit", str(PAGE))]
        if after:
            parameters.append(("continue", after))
        page = json.loads(await api.list_page(resource, parameters, namespace))
        for item in page.get("items") or []:
            yield item
        after = page["metadata"].get("continue", "")
        if not after:
            return
