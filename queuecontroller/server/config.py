"""Settings of `sluice-queue serve`: frozen dataclasses, one per TOML section, each field with its
unit, its default and the reason for it.

`parse` reports every mistake at once. Nothing here reads a file or the environment. The file is
long: each setting is described where it is defined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, get_type_hints

from queuecontroller.state.access.lists import parse_checks
from sluicecommon.hami import names as hami
from sluicecommon.page.settings import PageSettings, check_page
from sluicecommon.settings import ConfigError, check_table, nearest
from sluicecommon.settings import absolute_path as _path
from sluicecommon.settings import choice as _choice
from sluicecommon.settings import choices as _choices
from sluicecommon.settings import number as _number

__all__ = ["ConfigError", "Settings", "parse", "split_address"]

SYSTEM_SOCKET: Final = Path("/run/sluice-queue/queue.sock")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """[server]: the controller's addresses, database and limits."""

    socket: str = _path("", "none")
    """Unix socket for callers on this machine, authenticated by the kernel. Default:
    /run/sluice-queue/queue.sock as root or as a service, else below $XDG_RUNTIME_DIR. none: no
    socket."""
    listen: str = ""
    """ADDRESS:PORT of gRPC over TCP; requires [tls]. Empty: only the Unix socket."""
    metrics_listen: str = "127.0.0.1:9466"
    """Address of /metrics, /healthz and /readyz; empty: not served. Labels name users' queues."""
    probes_listen: str = ""
    """Second address of /healthz and /readyz, for probes alone, which scrapes cannot delay. Empty:
    not served."""
    database: str = _path()
    """SQLite file of the queue. Default: /var/lib/sluice-queue/queue.sqlite as root, else below
    $XDG_STATE_HOME."""
    log_level: str = _choice("info", "debug", "info", "warning", "error")
    """Lowest level written to stderr."""
    max_message_kib: int = _number(4096, 64, 65_536)
    """Largest message accepted. 4096: 500 workloads, or a node with 1,000 pods."""
    max_connections: int = _number(2000, 16, 100_000)
    """Concurrent connections, a quarter of them reserved for nodes and admins; three file
    descriptors each. 2000: a thousand nodes that all reconnect."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """[tls]: PEM files, which are reloaded when they change."""

    certificate: str = _path()
    """Certificate of the server, with its chain."""
    key: str = _path()
    """Key of the certificate; as a systemd credential it stays readable for root alone:
    docs/install.md."""
    client_ca: str = _path()
    """CA of client certificates (mutual TLS). Roles follow from a URI in the certificate
    (`sluice:user:NAME`, `sluice:node:NAME`, `sluice:admin:NAME`, `sluice:check:NAME`) and from the
    lists below; without either it has no rights."""
    admins: str = ""
    """Certificate names (common or alternative), separated by commas, that have all rights except a
    node's. A trailing `*` matches any suffix."""
    nodes: str = ""
    """Certificate names that are nodes, each for the node of that name, as in `gpu-*`."""
    users: str = ""
    """Certificate names that are users, who submit and change their own work; `*`: every
    certificate of the CA."""
    checks: str = ""
    """Controllers of admission checks as CHECK=NAME, as in `budget=budget-bot`: the certificate
    names that may report each check's result."""


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """[kubernetes]: the queue in a cluster, and callers with a Kubernetes token, which is validated
    by TokenReview."""

    mode: str = _choice("standalone", "standalone", "kubernetes", "beside")
    """Place of the queue's state. standalone: the controller's own database. kubernetes: Kueue's
    objects in the API server. beside: Kueue's own manager, which requests placement through an
    AdmissionCheck of the controller `sluice.dev/placement`."""
    namespace: str = ""
    """Namespace of the Lease and the webhooks' Service. Empty: the pod's."""
    kubeconfig: str = _path()
    """Access to the API server. Empty: the pod's service account."""
    kueue_configuration: str = _path()
    """Kueue's Configuration file, for mode kubernetes: queued frameworks and namespaces,
    transformations, fair sharing, waitForPodsReady; it overrides [engine]. Sections without effect
    are logged. Empty: every framework, and only jobs with a queue."""
    compatibility: str = _choice("0.20", "0.19", "0.20")
    """Line of Kueue whose behaviour counts where the two differ (docs/queue/kueue-api.md has the
    table); the Configuration's featureGates turn single features on and off."""
    events: str = _choice("few", "few", "all")
    """few: one event for each change of a job, pod or Workload. all: also Kueue's repetitions of
    conditions: four more API writes per admitted job."""
    leader_lease_s: float = _number(15.0, 1.0, 600.0)
    """Seconds without a renewal of the Lease until another replica takes over."""
    webhooks_listen: str = ""
    """ADDRESS:PORT of the webhooks in mode kubernetes: conversion, validation, new jobs. Empty:
    none, and only v1beta2 is served."""
    webhooks_url: str = ""
    """https://HOST:PORT of the webhooks for an API server outside the cluster. Empty: the Service
    `sluice-queue-webhooks` in the namespace."""
    webhooks_certificate: str = _path()
    """PEM certificate of the webhooks' server, with its chain; reloaded when it changes."""
    webhooks_key: str = _path()
    """PEM key of that certificate."""
    webhooks_ca: str = _path()
    """PEM of the CA that signed it, registered as the webhooks' caBundle."""
    webhooks_queued_policy: str = _choice("Fail", "Fail", "Ignore")
    """failurePolicy of the webhooks for a new job, pod or Deployment that names a queue, and for a
    new pod that requests memory or time of GPUs, while no replica answers. Fail: it is refused,
    and controllers of Kubernetes try again. Ignore: it is created; without GPUs its pods run
    uncounted until a replica ends them, and no scheduler places a pod with GPU shares."""
    webhooks_queued_timeout_s: int = _number(10, 1, 30)
    """Seconds until the API server gives up on an answer for such an object."""
    webhooks_policy: str = _choice("Ignore", "Ignore", "Fail")
    """The same for all other jobs and pods. Ignore: they are created unchanged. Fail: no
    pod can be created while no replica answers, outside kube-system and the controller's
    namespace."""
    webhooks_timeout_s: int = _number(3, 1, 30)
    """Seconds until the API server gives up on an answer for these."""
    drain_s: int = _number(5, 0, 60)
    """Seconds after SIGTERM in which a replica with webhooks works on as before, and closes each of
    their connections after its next answer. API servers and schedulers then find other replicas;
    a request on a connection that is closed without it fails."""
    visibility_listen: str = ""
    """ADDRESS:PORT of Kueue's visibility API (pending workloads in order), to which the API server
    proxies through the Service `sluice-queue-visibility`; the webhooks' certificate must have that
    name. Empty: not served."""
    audience: str = ""
    """Audience that a token must have, `sluice-queue` in the chart. Empty: no tokens are
    accepted."""
    api_server: str = ""
    """URL of the API server. Empty: $KUBERNETES_SERVICE_HOST."""
    nodes: str = ""
    """Service accounts whose tokens authenticate the node that their pod runs on, as in
    `system:serviceaccount:sluice:sluice-agent`."""
    admins: str = ""
    """User names, and groups as `group:NAME`, that are admins."""
    users: str = ""
    """User names, and groups as `group:NAME`, that are users; `group:system:authenticated`: every
    valid token."""
    checks: str = ""
    """Controllers of admission checks as CHECK=USER, as in
    `budget=system:serviceaccount:finance:budget`."""


@dataclass(frozen=True, slots=True)
class SharesSettings:
    """[shares]: admission of pods that request shares of GPUs or of other accelerators; requires
    kubernetes.webhooks_listen."""

    scheduler: str = ""
    """schedulerName for such pods that name none: one that calls the extender. Empty: unchanged."""
    replaced_schedulers: tuple[str, ...] = ("default-scheduler",)
    """Scheduler names that it replaces; add kai-scheduler or volcano to migrate without changing
    manifests."""
    served_schedulers: tuple[str, ...] = ("sluice-scheduler", hami.SCHEDULER)
    """Schedulers that call the extender; pods that name one keep it."""
    hami_devices: str = _path()
    """HAMi's device-config.yaml, bare or as its ConfigMap: resource names, defaults, other vendors'
    devices. Empty: HAMi's defaults."""
    writers: tuple[str, ...] = ()
    """Users besides this controller that may write a pod's allocation annotations, as another
    scheduler's service account."""
    register_nodes: bool = True
    """Annotate nodes with HAMi's register of their GPUs (hami.io/node-nvidia-register, handshake)
    for other tools. false: where HAMi's own plugin writes it."""
    as_claims: bool = False
    """Replace requests for nvidia.com/gpu, gpumem and gpucores with ResourceClaims of class
    gpu.sluice.dev, for agents with door = "dra" (Kubernetes 1.36). Templates are created in the
    pods' namespaces."""
    visible_devices: str = _choice("allow", "allow", "void", "refuse")
    """NVIDIA_VISIBLE_DEVICES in containers that request no GPU, also of pods with the label
    hami.io/webhook: ignore. void: it becomes void, whatever the image and the pod set. refuse: as
    void, and a pod that sets it to show GPUs is refused."""


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """[extender]: the scheduler extender that kube-scheduler calls for pods that request GPUs, in
    mode kubernetes."""

    callers: str = ""
    """Names of schedulers that may call the extender, and so bind pods; separated by commas, a
    trailing `*` matches any suffix. A certificate of kubernetes.webhooks_ca has its scheduler's
    name in the URI `sluice:scheduler:NAME`. Empty: the extender is
    off."""
    listen: str = ""
    """ADDRESS:PORT on the loopback where a kube-scheduler in the same pod calls without TLS; every
    process on that loopback can bind pods. Time saved: docs/queue/scheduling.md. Empty: only
    kubernetes.webhooks_listen."""
    own_address: str = ""
    """ADDRESS:PORT of this replica's webhooks, to which others forward requests while it leads.
    Empty: replicas that do not lead answer with an error."""
    node_policy: str = _choice("binpack", "binpack", "spread", "topology")
    """Node policy of pods that name none. binpack: the fullest; spread: the emptiest; topology:
    GPUs linked or on one NUMA node."""
    answers: str = _choice("all", "all", "best")
    """Nodes that the filter returns. all: every node with room, scores added to the scheduler's
    own; best: only the best by node policy, as HAMi does: faster, but the pod's other preferences
    are ignored."""
    gpu_policy: tuple[str, ...] = _choices(
        (), "binpack", "spread", "topology-aware", "mutex", "numa"
    )
    """GPU policy of pods that name none, in HAMi's words. binpack: the fullest GPUs with room;
    spread: the emptiest; topology-aware: the best linked, a single one from the worst linked;
    mutex: only unused GPUs; numa: one NUMA node first. Empty: binpack, or with shares.hami_devices
    spread."""
    preemption: bool = True
    """A pod that lacks only GPU shares preempts pods of lower priority, unless its preemptionPolicy
    is Never. false: only victims that kube-scheduler chooses are completed so that the GPUs
    suffice."""
    resource_count: str = hami.GPU
    """Resource name of the number of GPUs, as in the agents' [kubelet]. If all four are unset,
    HAMi's file (shares.hami_devices) gives them."""
    resource_memory: str = hami.GPU_MEMORY
    """Resource name of the memory of each GPU, MiB."""
    resource_memory_percentage: str = hami.GPU_MEMORY_PERCENT
    """Resource name of the memory of each GPU, percent."""
    resource_cores: str = hami.GPU_CORES
    """Resource name of the time of each GPU, percent."""


@dataclass(frozen=True, slots=True)
class AutoscalingSettings:
    """[autoscaling]: new nodes for pending GPU shares, requested from Cluster Autoscaler or
    Karpenter; requires extender.callers."""

    requests: str = _choice("none", "none", "pods", "provisioning-requests")
    """none: none are requested. pods: a placeholder pod for each new node, which never runs, for
    either autoscaler. provisioning-requests: a ProvisioningRequest for each, for Cluster
    Autoscaler."""
    templates: str = _path()
    """YAML file with a Node for each kind of node that can be created (docs/queue/autoscaling.md).
    """
    provisioning_class: str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    """provisioningClassName of the ProvisioningRequests."""
    max_nodes: int = _number(20, 1, 1000)
    """New nodes requested at a time, over all templates."""
    waits_s: float = _number(15.0, 0.0, 86_400.0)
    """Seconds for which a share is pending before a node is requested for it."""
    every_s: float = _number(10.0, 1.0, 3600.0)
    """Seconds between two calculations; at most 10 nodes are requested in each."""
    scale_down_hints: bool = False
    """Annotate the templates' nodes so that an autoscaler does not drain one whose GPU shares fit
    nowhere else: `sluice.dev/scale-down`, and the autoscalers' own annotations."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """[nodes]: timeouts of nodes that do not report."""

    lease_s: float = _number(15.0, 1.0, 3600.0)
    """Seconds after its last acknowledged report from which a node starts no new work."""
    report_s: float = _number(5.0, 0.1, 600.0)
    """Seconds between reports. 5 is a third of the lease, so that two may be lost."""
    lost_after_s: float = _number(60.0, 1.0, 86_400.0)
    """Seconds after the end of its lease until a node counts as lost."""
    lost_policy: str = _choice("keep", "keep", "requeue")
    """keep: work on a lost node keeps its quota. requeue: it is requeued, and the node pauses it at
    the end of the lease."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """[engine]: settings of the scheduler, as in Kueue's Configuration."""

    fair_sharing: bool = False
    """Order and preempt by dominant resource share."""
    omitted_resource_is_unlimited: bool = True
    """A flavor that omits a covered resource does not limit it (Kueue: false)."""
    missing_selector_admits_all: bool = False
    """A ClusterQueue without namespaceSelector matches every namespace (Kueue: false)."""
    requeue_delay_s: float = _number(0.0, 0.0, 60.0)
    """Seconds for which freed quota is batched before the next cycle (Kueue: 1)."""
    protect_from_reclaim_s: float = _number(0.0, 0.0, 31_536_000.0)
    """Seconds after admission in which no ClusterQueue that reclaims quota preempts a workload;
    Kueue's `preemptionProtection.reclaimWithinCohort.minAdmitDuration` overrides it."""
    protect_from_fair_sharing_s: float = _number(0.0, 0.0, 31_536_000.0)
    """Seconds after admission in which no ClusterQueue with a smaller share preempts a workload;
    Kueue's `preemptionProtection.fairSharing` overrides it."""
    protect_within_queue_s: float = _number(0.0, 0.0, 31_536_000.0)
    """Seconds after admission in which no higher priority in its own ClusterQueue preempts a
    workload."""
    never_preempted: str = ""
    """WorkloadPriorityClasses that are never preempted."""
    preempted_rests_s: float = _number(0.0, 0.0, 86_400.0)
    """Seconds until a preempted workload is requeued. 0: at once."""
    consolidation: bool = False
    """Restart workloads on other GPUs where a pending one fits nowhere else: those that permit it
    by the annotation `sluice.dev/consolidation: restart`, theirs or their ClusterQueue's."""
    consolidation_cooldown_s: float = _number(3600.0, 0.0, 31_536_000.0)
    """Seconds in which a workload that was restarted for another one is not restarted again."""
    pods_ready_timeout_s: int = _number(0, 0, 604_800)
    """Seconds from admission until all pods must run; 0: no limit."""
    pods_ready_attempts: int = _number(0, 0, 1000)
    """Timeouts until the workload is deactivated; 0: never."""


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """[placement]: where GPUs are chosen."""

    mode: str = _choice("nodes", "nodes", "none")
    """nodes: workloads are admitted only onto GPU shares that nodes report. none: quota alone
    decides; another scheduler places them."""


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """[workloads]: stopping, retention and limits of workloads."""

    grace_s: float = _number(30.0, 0.0, 3600.0)
    """Seconds between SIGTERM and SIGKILL of a stopped workload."""
    keep_finished_s: float = _number(86_400.0, 0.0, 31_536_000.0)
    """Seconds for which finished workloads are kept, 10,000 at most."""
    max_per_user: int = _number(10_000, 1, 1_000_000)
    """Most workloads of one user, including finished ones; 10,000 take about 100 MB. Admins have no
    limit."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration file."""

    server: ServerSettings = field(default_factory=ServerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    shares: SharesSettings = field(default_factory=SharesSettings)
    extender: ExtenderSettings = field(default_factory=ExtenderSettings)
    autoscaling: AutoscalingSettings = field(default_factory=AutoscalingSettings)
    nodes: NodeSettings = field(default_factory=NodeSettings)
    engine: EngineOptions = field(default_factory=EngineOptions)
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    workloads: WorkloadSettings = field(default_factory=WorkloadSettings)
    page: PageSettings = field(default_factory=PageSettings)


SECTIONS: Final[Mapping[str, type[Any]]] = get_type_hints(Settings)
"""Sections by name."""


def parse(document: Mapping[str, object]) -> Settings:
    """The settings of a parsed TOML document. Raises ConfigError with all mistakes."""
    problems: list[str] = []
    parsed: dict[str, Any] = {}
    for name, table in document.items():
        if name not in SECTIONS:
            problems.append(f"[{name}]: no such section{nearest(name, SECTIONS)}")
        elif not isinstance(table, Mapping):
            problems.append(f"{name}: must be a section, [{name}]")
        else:
            parsed[name] = SECTIONS[name](**check_table(SECTIONS[name], name, table, problems))
    settings = Settings(**parsed)
    problems += _check_together(settings)
    if problems:
        raise ConfigError(problems)
    return settings


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{address!r} is not ADDRESS:PORT, as in 127.0.0.1:9465")
    return host, int(port)


def user_socket(environment: Mapping[str, str]) -> Path:
    """Socket of a controller that an ordinary user runs."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    state = environment.get("XDG_STATE_HOME") or f"{environment.get('HOME', '/tmp')}/.local/state"
    return Path(runtime or state) / "sluice-queue" / "queue.sock"


def _check_together(settings: Settings) -> list[str]:
    problems = _check_addresses(settings.server)
    server, tls, tokens = settings.server, settings.tls, settings.kubernetes
    secured = bool(tls.certificate)
    if server.listen and not secured:
        problems.append(
            f"server.listen: {server.listen} would be TCP without TLS, where callers cannot be"
            " authenticated: remove it, and let nodes and users of this machine use server.socket"
            ' (queue.server = "unix:/run/sluice-queue/queue.sock" in the daemon\'s settings); for'
            " other machines set tls.certificate, tls.key and tls.client_ca"
        )
    served = tokens.mode == "standalone"  # In a cluster, users call the API server instead.
    if served and not server.listen and server.socket == "none":
        problems.append('server.socket: is "none" while server.listen is empty: set one of them')
    if bool(tls.certificate) != bool(tls.key):
        lacking = "key" if tls.certificate else "certificate"
        problems.append(f"tls.{lacking}: is missing; certificate and key must be set together")
    if tls.client_ca and not secured:
        problems.append("tls.client_ca: requires tls.certificate and tls.key")
    if secured and not tls.client_ca and not tokens.audience:
        problems.append(
            "tls.client_ca: is missing, and so is kubernetes.audience: callers over TLS could"
            " authenticate with neither a certificate nor a token, and every call would be refused"
        )
    for section, lists, needed in (
        ("tls", tls, "client_ca" if not tls.client_ca else ""),
        ("kubernetes", tokens, "audience" if not tokens.audience else ""),
    ):
        for name in ("admins", "nodes", "users", "checks"):
            if getattr(lists, name) and needed:
                problems.append(
                    f"{section}.{name}: requires {section}.{needed}, which authenticates the names"
                )
        try:
            parse_checks(lists.checks)
        except ValueError as error:
            problems.append(f"{section}.checks: {error}")
    if tokens.audience and not secured:
        problems.append(
            "kubernetes.audience: requires tls.certificate: tokens must be sent encrypted"
        )
    problems += _check_mode(settings)
    problems += check_page(settings.page, split_address)
    problems += _check_extender(settings)
    problems += _check_autoscaling(settings)
    if settings.nodes.report_s * 2 > settings.nodes.lease_s:
        problems.append(
            f"nodes.report_s: {settings.nodes.report_s:g} is more than half of nodes.lease_s"
            f" ({settings.nodes.lease_s:g}): one lost report would end the lease"
        )
    return problems


def _check_mode(settings: Settings) -> list[str]:
    given, problems = settings.kubernetes, []
    if given.mode == "beside":
        problems += _check_beside(settings)
    for listener in ("webhooks_listen", "visibility_listen"):
        address = getattr(given, listener)
        for name in ("certificate", "key", "ca") if address else ():
            if not getattr(given, f"webhooks_{name}"):
                problems.append(f"kubernetes.webhooks_{name}: is missing; {listener} requires it")
        try:
            if address:
                split_address(address)
        except ValueError as error:
            problems.append(f"kubernetes.{listener}: {error}")
    if given.webhooks_url and not given.webhooks_url.startswith("https://"):
        problems.append(f"kubernetes.webhooks_url: {given.webhooks_url!r} is not https://HOST:PORT")
    return problems


def _check_extender(settings: Settings) -> list[str]:
    given, problems = settings.extender, []
    if given.callers and not settings.kubernetes.webhooks_listen:
        problems.append(
            "extender.callers: requires kubernetes.webhooks_listen, which schedulers call, and"
            " kubernetes.mode = kubernetes"
        )
    if given.listen:
        problems += _check_loopback(given)
    try:
        if given.own_address:
            split_address(given.own_address)
    except ValueError as error:
        problems.append(f"extender.own_address: {error}")
    return problems


def _check_autoscaling(settings: Settings) -> list[str]:
    given, problems = settings.autoscaling, []
    if given.requests == "none":
        return []
    if not given.templates:
        problems.append("autoscaling.templates: is missing; autoscaling.requests requires it")
    if not settings.extender.callers:
        problems.append(
            "autoscaling.requests: requires extender.callers: nodes are requested for GPU shares"
            " that the extender places"
        )
    return problems


def _check_loopback(given: ExtenderSettings) -> list[str]:
    problems = []
    if not given.callers:
        problems.append(
            "extender.listen: requires extender.callers, which other replicas accept calls from"
        )
    try:
        host, _ = split_address(given.listen)
        if not ip_address(host).is_loopback:
            problems.append(
                f"extender.listen: {given.listen} is not on the loopback (127.0.0.1): callers there"
                " are not authenticated, and can bind pods"
            )
    except ValueError as error:
        problems.append(f"extender.listen: {error}")
    return problems


def _check_beside(settings: Settings) -> list[str]:
    problems = []
    if not settings.server.listen and settings.server.socket in ("", "none"):
        problems.append(
            "server.listen: is empty, but mode beside needs the nodes' reports: set it, with [tls],"
            " or server.socket for the node of this machine"
        )
    for name, why in (
        ("webhooks_listen", "Kueue has webhooks of its own"),
        ("kueue_configuration", "Kueue reads its own"),
    ):
        if getattr(settings.kubernetes, name):
            problems.append(f"kubernetes.{name}: has no effect in mode beside, {why}: remove it")
    return problems


def _check_addresses(server: ServerSettings) -> list[str]:
    problems = []
    for name in ("listen", "metrics_listen", "probes_listen"):
        address = getattr(server, name)
        try:
            if address:
                split_address(address)
        except ValueError as error:
            problems.append(f"server.{name}: {error}")
    return problems
