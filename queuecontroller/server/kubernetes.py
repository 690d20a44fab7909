"""The composition root of `sluice-queue serve` in a cluster: in mode kubernetes Kueue's objects in
the API server are the queue; in mode beside Kueue itself admits and Sluice checks placement.

Exit status as in `standalone`: 0 stopped by a signal, 69 a dependency is missing or Kueue runs in
the cluster, 70 a defect.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from queuecontroller.cluster.cache.kinds import CLUSTER_QUEUES
from queuecontroller.cluster.cache.kinds import LOCAL_QUEUES as QUEUES
from queuecontroller.cluster.controller import Controller
from queuecontroller.cluster.leader.shell import LeaderShell
from queuecontroller.cluster.plan import Plan
from queuecontroller.cluster.podplacement.extender_service import VERBS, refusal
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.cluster.setup.configuration import Given, given_by, without_file
from queuecontroller.cluster.setup.front_proxy import Access as MayDo
from queuecontroller.cluster.setup.front_proxy import read_front_proxy
from queuecontroller.cluster.setup.job_webhooks import (
    MUTATE_PATH,
    SHARES_PATH,
    Missed,
    json_patch,
    patch_of,
    problems_of,
)
from queuecontroller.cluster.setup.preflight import Unfit, check_beside, check_cluster
from queuecontroller.cluster.setup.registration import keep_registered
from queuecontroller.cluster.status.visibility import Question, answer
from queuecontroller.gpushares.admission import Rules
from queuecontroller.gpushares.extender.answers import Defaults, with_policies
from queuecontroller.kueueapi.crds import Webhook
from queuecontroller.scheduler.model.compatibility import Feature, Line
from queuecontroller.scheduler.placement.request import Policy, gpu_policies
from queuecontroller.server.api.calls import Calls
from queuecontroller.server.api.loop import GrpcLoop
from queuecontroller.server.api.nodes import NodesApi
from queuecontroller.server.api.server import GrpcServer, TlsUnusable
from queuecontroller.server.api.wire import Wire, find_descriptors
from queuecontroller.server.callers.fair_calls import FairCalls
from queuecontroller.server.callers.listeners import Listeners
from queuecontroller.server.callers.token_review import DEADLINE_S, KubernetesReviewer
from queuecontroller.server.collector import Collector
from queuecontroller.server.config import (
    ConfigError,
    ExtenderSettings,
    KubernetesSettings,
    Settings,
    split_address,
)
from queuecontroller.server.hami_file import rules_of
from queuecontroller.server.metrics.exposition import render
from queuecontroller.server.metrics.kueue import Around
from queuecontroller.server.node_templates import autoscaling_of
from queuecontroller.server.standalone import (
    EXIT_UNAVAILABLE,
    SWITCH_S,
    SystemClock,
    Uids,
    authenticator,
    book_settings,
    kernel_callers,
    make_page_listener,
    open_listeners,
    page_head,
    start_logging,
)
from queuecontroller.server.stopping import cancel_at, drain, run_until
from queuecontroller.server.web.extender import ExtenderEndpoint, LoopbackServer
from queuecontroller.server.web.http import HttpServer
from queuecontroller.server.web.reviews import patched, reviewed
from queuecontroller.server.web.visibility import VisibilityServer
from queuecontroller.server.web.webhooks import WebhookServer, word_of
from queuecontroller.state.access.lists import Names
from queuecontroller.state.shell import EXIT_OK
from queuecontroller.version import version
from sluicecommon import yaml_text
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import (
    Access,
    Credentials,
    NoAccess,
    from_kubeconfig,
    in_cluster,
)
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import NAMESPACES
from sluicecommon.reader import ManifestError, Problem

if TYPE_CHECKING:
    from sluicecommon.web.page import Backend

log = logging.getLogger("sluice-queue")
DEFAULT_NAMESPACE: Final = "sluice"
WATCHES: Final = 64
"""Connections for watches, one for each kind."""
WRITES: Final = 32
"""Connections for writes: the sum of the writers' widths."""
ANSWER_S: Final = 10.0
"""Timeout of a write: a longer one might take effect after another replica has become leader."""
AGAIN_S: Final = 2.0
WITHDRAWN_S: Final = 5.0
"""Seconds that the end of the process waits until its registrations are removed."""


def serve_kubernetes(settings: Settings, environment: Mapping[str, str]) -> int:
    """Serve until a signal; returns the exit status."""
    start_logging(settings.server.log_level)
    sys.setswitchinterval(SWITCH_S)
    try:
        access = access_of(settings.kubernetes, environment)
        given = configuration_of(settings)
        for remark in given.remarks:
            log.warning("%s", remark)
        with asyncio.Runner(loop_factory=GrpcLoop) as runner:
            return runner.run(_serve(settings, access, given, environment))
    except (NoAccess, Unfit, OSError, ConfigError, ManifestError, TlsUnusable) as error:
        log.critical("%s", error)
        return EXIT_UNAVAILABLE


def configuration_of(settings: Settings) -> Given:
    """The settings merged with Kueue's Configuration, if one is given. Raises ManifestError,
    OSError."""
    book = book_settings(settings)
    line = Line(settings.kubernetes.compatibility)
    path = settings.kubernetes.kueue_configuration
    if not path:
        return without_file(book, line)
    try:
        document = yaml_text.read(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ManifestError([Problem(path, str(error))]) from error
    return given_by(document, book, line)


def access_of(given: KubernetesSettings, environment: Mapping[str, str]) -> Access:
    """The API server's address and credentials. Raises NoAccess."""
    if given.kubeconfig:
        return from_kubeconfig(Path(given.kubeconfig), yaml_text.read)
    access = in_cluster(environment)
    if access is None:
        raise NoAccess(
            "kubernetes.mode: this is not a pod with a service account's token: set"
            " kubernetes.kubeconfig to reach a cluster from outside"
        )
    return access


class NodeListeners:
    """gRPC listeners for nodes in a cluster, if configured; only the leader has sessions."""

    def __init__(self, settings: Settings, access: Access, controller: Controller) -> None:
        """Raises OSError."""
        self._settings = settings
        self._private = Path(tempfile.mkdtemp(prefix="sluice-queue-"))
        self._listeners = Listeners(
            settings.server.max_connections, self._private, kernel_callers()
        )
        self._reviewer = None
        if audience := settings.kubernetes.audience:
            client = ApiClient(Credentials(access), "sluice-queue", deadline_s=DEADLINE_S)
            self._reviewer = KubernetesReviewer(client, audience)
        acting = LeaderShell(lambda: controller.shell, lambda: controller.leader)
        keeper = authenticator(settings, self._listeners, self._reviewer)
        calls = Calls(acting, keeper, self._listeners, FairCalls(busy=self._listeners.busy))
        try:
            wire = Wire(find_descriptors())
        except ValueError as error:
            raise OSError(str(error)) from error
        nodes = NodesApi(acting, wire, calls, settings.nodes.report_s)
        self._server = GrpcServer(settings, self._listeners, [nodes.handler(), calls.unknown()])

    @staticmethod
    def wanted(settings: Settings) -> bool:
        return bool(settings.server.listen) or settings.server.socket not in ("", "none")

    async def open(self, environment: Mapping[str, str]) -> None:
        """Raises OSError, TlsUnusable."""
        await self._server.start()
        socket_only_if_named = self._settings.server.socket or "none"
        server = replace(self._settings.server, socket=socket_only_if_named)
        await open_listeners(replace(self._settings, server=server), self._listeners, environment)

    async def close(self) -> None:
        await self._server.close()
        await self._listeners.close()
        if self._reviewer is not None:
            await self._reviewer.close()
        shutil.rmtree(self._private, ignore_errors=True)


async def _serve(
    settings: Settings, access: Access, configured: Given, environment: Mapping[str, str]
) -> int:
    given = settings.kubernetes
    uids = Uids()
    namespace = given.namespace or access.namespace or DEFAULT_NAMESPACE
    watching = ApiClient(Credentials(access), "sluice-queue", WATCHES)
    writing = ApiClient(
        Credentials(access), "sluice-queue", WRITES, min(ANSWER_S, given.leader_lease_s / 3)
    )
    sharing = None
    rules = rules_of(settings.shares, settings.extender)
    if given.webhooks_listen:
        sharing = SharePods(rules, SystemClock().now_ns)
    plan = Plan(
        book=configured.book,
        identity=f"{socket.gethostname()}_{uids()}",
        namespace=namespace,
        lease_s=given.leader_lease_s,
        new_uid=uids,
        clock=SystemClock(),
        policy=configured.policy,
        document=configured.document,
        counts_claims=configured.counts_claims,
        checks_devices=configured.counts_claims
        and Feature.FREE_DEVICES in configured.policy.features,
        multikueue=configured.multikueue,
        sharing=sharing,
        extender=_defaults(settings.extender, rules) if settings.extender.callers else None,
        displaces=settings.extender.preemption,
        register_nodes=settings.shares.register_nodes,
        own_url=_own_url(settings.extender.own_address),
        beside=given.mode == "beside",
        records_all_events=given.events == "all",
        report_s=settings.nodes.report_s,
        autoscaling=autoscaling_of(settings.autoscaling, rules.devices.nvidia),
    )
    controller = Controller(watching, writing, plan)
    web = [
        HttpServer(f"server.{name}", split_address(address), controller, metrics)
        for name, address, metrics in (
            ("metrics_listen", settings.server.metrics_listen, lambda: _metrics(controller)),
            ("probes_listen", settings.server.probes_listen, None),
        )
        if address
    ]
    extender = _extender_endpoint(settings, controller)
    posts = [
        one
        for one in (
            _webhooks(settings, controller, sharing, extender),
            _loopback(settings, extender),
        )
        if one
    ]
    visibility = _visibility(given, controller, writing)
    servers = [*posts, *([visibility] if visibility is not None else ())]
    nodes = NodeListeners(settings, access, controller) if NodeListeners.wanted(settings) else None
    page = make_page_listener(settings, lambda: _page_backend(controller, access, settings))
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    collector = Collector()
    collector.start()
    collecting = asyncio.create_task(collector.run())
    try:
        for one in web:
            await one.start()
        if page is not None:
            await page.start()
            page.open()
        if not await _until_fit(watching, stopped, plan.beside):
            return EXIT_OK
        if nodes is not None:
            await nodes.open(environment)
        if not servers:
            return await run_until(controller, stopped)
        for server in servers:
            await server.start()
        registering = asyncio.create_task(
            keep_registered(
                writing,
                partial(webhook_of, given, namespace),
                namespace,
                missed=Missed(
                    given.webhooks_queued_policy,
                    given.webhooks_queued_timeout_s,
                    given.webhooks_policy,
                    given.webhooks_timeout_s,
                    rules.devices.nvidia.parts if rules.scheduler or rules.claims else (),
                ),
                webhooks=bool(given.webhooks_listen),
                visibility=bool(given.visibility_listen),
                leads=lambda: controller.shell is not None,
                is_leaving=partial(_is_leaving, controller, namespace),
            )
        )
        drained = asyncio.Event()
        draining = asyncio.create_task(drain(posts, stopped, given.drain_s, drained))
        ending = asyncio.create_task(cancel_at(drained, registering))
        try:
            return await run_until(controller, drained)
        finally:
            draining.cancel()
            ending.cancel()
            registering.cancel()
            await asyncio.wait({registering}, timeout=WITHDRAWN_S)
    finally:
        collecting.cancel()
        collector.stop()
        for server in servers:
            await server.close()
        if nodes is not None:
            await nodes.close()
        for one in web:
            await one.close()
        if page is not None:
            await page.close()
        await watching.close()
        await writing.close()


def _page_backend(controller: Controller, access: Access, settings: Settings) -> Backend:
    from queuecontroller.server.page.backend import QueuePage
    from queuecontroller.server.page.viewers import ByToken

    def namespaces() -> list[str]:
        return [str(one["metadata"].get("namespace")) for one in controller.cache.all_of(QUEUES)]

    def why_not() -> str:
        return controller.why_not_ready or "another replica is the leader"

    return QueuePage(
        ByToken(access, namespaces),
        lambda: controller.shell,
        lambda: page_head(settings),
        lambda: secrets.token_hex(6),
        why_not,
    )


def _defaults(given: ExtenderSettings, rules: Rules) -> Defaults:
    usual = (Policy.SPREAD,) if rules.devices.is_given else (Policy.BINPACK,)
    policies = gpu_policies("extender.gpu_policy", given.gpu_policy or usual)
    names = rules.devices.nvidia
    made = replace(with_policies(policies), node_policy=given.node_policy, names=names)
    return replace(made, best_only=given.answers == "best")


def _own_url(address: str) -> str:
    if not address:
        return ""
    host, port = split_address(address)
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _extender_endpoint(settings: Settings, controller: Controller) -> ExtenderEndpoint | None:
    given = settings.kubernetes
    if not settings.extender.callers:
        return None
    files = (given.webhooks_certificate, given.webhooks_key, given.webhooks_ca)
    return ExtenderEndpoint(
        controller.answer_scheduler,
        refusal,
        VERBS,
        Names.parse(settings.extender.callers),
        lambda: controller.leader_url,
        (Path(files[0]), Path(files[1]), Path(files[2])),
    )


def _loopback(settings: Settings, extender: ExtenderEndpoint | None) -> LoopbackServer | None:
    if extender is None or not settings.extender.listen:
        return None
    return LoopbackServer(split_address(settings.extender.listen), extender)


def _webhooks(
    settings: Settings,
    controller: Controller,
    sharing: SharePods | None,
    extender: ExtenderEndpoint | None,
) -> WebhookServer | None:
    given = settings.kubernetes
    if not given.webhooks_listen or sharing is None:
        return None

    def patch(document: dict[str, Any], old: dict[str, Any] | None, namespace: str) -> bytes:
        return json_patch(document, patch_of(controller.cache, document, old, namespace))

    return WebhookServer(
        split_address(given.webhooks_listen),
        Path(given.webhooks_certificate),
        Path(given.webhooks_key),
        {
            MUTATE_PATH: partial(
                patched, patch_of=patch, problems_of_change=partial(problems_of, controller.cache)
            ),
            SHARES_PATH: partial(reviewed, judge=sharing.answer),
        },
        extender,
    )


def _visibility(
    given: KubernetesSettings, controller: Controller, client: ApiClient
) -> VisibilityServer | None:
    if not given.visibility_listen:
        return None
    clock = SystemClock()

    def answered(asked: Question) -> dict[str, Any]:
        shell = controller.shell
        book, views = (shell.book, shell.views) if shell is not None else (None, None)
        return answer(asked, controller.cache, book, views, clock.now_ns())

    return VisibilityServer(
        split_address(given.visibility_listen),
        (Path(given.webhooks_certificate), Path(given.webhooks_key)),
        partial(read_front_proxy, client),
        MayDo(client, monotonic).why_not,
        answered,
    )


def webhook_of(given: KubernetesSettings, namespace: str) -> Webhook:
    """The webhooks' CA bundle, address and secret word. Raises OSError."""
    bundle = base64.b64encode(Path(given.webhooks_ca).read_bytes()).decode()
    word = word_of(Path(given.webhooks_key))
    return Webhook(bundle, given.webhooks_url.rstrip("/"), namespace, word=word)


def _is_leaving(controller: Controller, namespace: str) -> bool:
    """True if the controller's own namespace is being deleted."""
    found = controller.cache.get(NAMESPACES, namespace)
    return found is not None and bool(found["metadata"].get("deletionTimestamp"))


async def _until_fit(client: ApiClient, stopped: asyncio.Event, beside: bool) -> bool:
    """Retry the preflight check until the API server answers; returns False if stopped meanwhile,
    also while a check waits for its answer. Raises Unfit."""
    stopping = asyncio.create_task(stopped.wait())
    try:
        while not stopped.is_set():
            check = asyncio.create_task((check_beside if beside else check_cluster)(client))
            await asyncio.wait({check, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not check.done():
                check.cancel()
                await asyncio.gather(check, return_exceptions=True)
                return False
            try:
                check.result()
                return True
            except (ApiAway, ApiRefused, asyncio.CancelledError) as error:
                log.warning("%s", error or "the check was cancelled")
            await asyncio.wait({stopping}, timeout=AGAIN_S)
        return False
    finally:
        stopping.cancel()


def _metrics(controller: Controller) -> bytes:
    """The metrics page; empty on a replica that is not the leader."""
    shell = controller.shell
    sharing = controller.sharing
    if shell is None:
        return b""

    def is_leaving(name: str) -> bool:
        found = controller.cache.get(CLUSTER_QUEUES, name)
        return found is not None and bool(found["metadata"].get("deletionTimestamp"))

    return render(shell, version(), sharing, Around("leader", is_leaving))


__all__ = ["access_of", "serve_kubernetes"]
