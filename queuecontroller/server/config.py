"""Settings of `sluice-queue serve`: frozen dataclasses, one per TOML section, each field with its
unit, its default and the reason for it.

`parse` reports every mistake at once. Nothing here reads a file or the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from queuecontroller.state.access.lists import parse_checks
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
    """[server]: where the controller listens and keeps its things."""

    socket: str = _path("", "none")
    """Unix socket for callers on this machine: the kernel says who they are. Default:
    /run/sluice-queue/queue.sock as root or as a service, else below $XDG_RUNTIME_DIR. none: no
    socket."""
    listen: str = ""
    """gRPC over TCP, ADDRESS:PORT; needs [tls]. Empty: the socket alone."""
    metrics_listen: str = "127.0.0.1:9466"
    """/metrics, /healthz and /readyz; empty: none. The labels name users' queues."""
    probes_listen: str = ""
    """/healthz and /readyz once more, where only probes come. Empty: none. With it, nobody who
    may scrape can keep a probe from its answer."""
    database: str = _path()
    """Default: /var/lib/sluice-queue/queue.sqlite as root, else below $XDG_STATE_HOME."""
    log_level: str = _choice("info", "debug", "info", "warning", "error")
    """Lowest level written to stderr."""
    max_message_kib: int = _number(4096, 64, 65_536)
    """Largest message taken, KiB. 4096: a list of 500 workloads, or a node with 1,000 pods."""
    max_connections: int = _number(2000, 16, 100_000)
    """Connections served at once; a quarter is kept free for nodes and admins. 2000: a thousand
    nodes, and as many again while they come back. Each takes three file descriptors."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """[tls]: PEM files. They are read again when they change."""

    certificate: str = _path()
    """Of the server, with its chain."""
    key: str = _path()
    """Of the certificate. As a systemd credential it stays readable for root alone; see
    docs/install.md."""
    client_ca: str = _path()
    """Callers must have a certificate of this authority (mutual TLS). What its name may follows
    from a URI in it (`sluice:user:NAME`, `sluice:node:NAME`, `sluice:admin:NAME`,
    `sluice:check:NAME`) and from the lists below; without either it may nothing."""
    admins: str = ""
    """Names in certificates (common or alternative), separated by commas, that are admins: they
    may everything but speak for a node. A `*` at the end stands for any rest. Empty: nobody."""
    nodes: str = ""
    """Names in certificates that are nodes, each for the node of that name, as in `gpu-*`. Empty:
    nobody."""
    users: str = ""
    """Names in certificates that are users, who submit and change their own work; `*`: every
    certificate of the authority. Empty: nobody."""
    checks: str = ""
    """Controllers of admission checks, as in `budget=budget-bot`: what may say which check's
    result. Empty: nobody."""


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """[kubernetes]: the queue in a cluster, and callers with a Kubernetes token, which TokenReview
    vouches for."""

    mode: str = _choice("standalone", "standalone", "kubernetes", "beside")
    """Who keeps the queue. standalone: the controller's own database. kubernetes: Kueue's objects
    in the API server; nothing is kept here. beside: Kueue's own manager, which asks us by an
    AdmissionCheck of the controller `sluice.dev/placement` whether there are shares, and where."""
    namespace: str = ""
    """Where the Lease and the webhooks' certificate are. Empty: the pod's own."""
    kubeconfig: str = _path()
    """Of an API server outside, for modes kubernetes and beside. Empty: as in a pod."""
    kueue_configuration: str = _path()
    """Kueue's own Configuration file, for mode kubernetes: which frameworks and namespaces are
    queued, transformations, fair sharing, waitForPodsReady, where it says so instead of [engine].
    Sections without effect are named in the log. Empty: every framework, jobs with a queue."""
    events: str = _choice("few", "few", "all")
    """few: what became of jobs, pods and Workloads, one event each. all: also those of Kueue's that
    say what conditions say anyway, four more API writes for an admitted job."""
    leader_lease_s: float = _number(15.0, 1.0, 600.0)
    """Seconds without a word from the leader until another replica decides. 15: what Kubernetes'
    own controllers take."""
    webhooks_listen: str = ""
    """ADDRESS:PORT where the API server asks in mode kubernetes: conversions, validation, new
    jobs. Empty: nowhere, and only v1beta2 is served."""
    webhooks_url: str = ""
    """https://HOST:PORT at which the API server finds that from outside a cluster. Empty: the
    Service `sluice-queue-webhooks` in the namespace."""
    webhooks_certificate: str = _path()
    """PEM of the webhooks' server, with its chain. It is read again when it changes."""
    webhooks_key: str = _path()
    """Of the certificate."""
    webhooks_ca: str = _path()
    """PEM of the authority that signed it: the API server is told to trust it."""
    visibility_listen: str = ""
    """ADDRESS:PORT of Kueue's visibility API (who waits in a queue, in what order), to which the
    API server passes `visibility.kueue.x-k8s.io` on: by the Service `sluice-queue-visibility`,
    whose name the webhooks' certificate has to have. Empty: it is not served."""
    audience: str = ""
    """The audience a token must be for, `sluice-queue` in the chart. Empty: no tokens are taken.
    Others' tokens are of no use here, and ours of none elsewhere."""
    api_server: str = ""
    """URL of the API server. Empty: as in a pod, by $KUBERNETES_SERVICE_HOST."""
    nodes: str = ""
    """Service accounts whose tokens speak for the node their pod runs on, as in
    `system:serviceaccount:sluice:sluice-agent`. Empty: nobody."""
    admins: str = ""
    """User names, and groups as `group:NAME`, that are admins. Empty: nobody."""
    users: str = ""
    """User names, and groups as `group:NAME`, that are users; `group:system:authenticated` is
    everybody with a token. Empty: nobody."""
    checks: str = ""
    """Controllers of admission checks, as in
    `budget=system:serviceaccount:finance:budget`. Empty: nobody."""


@dataclass(frozen=True, slots=True)
class SharesSettings:
    """[shares]: pods that ask for parts of GPUs or of other accelerators, as they are made; needs
    kubernetes.webhooks_listen."""

    scheduler: str = ""
    """The scheduler such pods are given where they name none: one that asks the extender. Empty:
    the name stays."""
    replaced_schedulers: tuple[str, ...] = ("default-scheduler",)
    """Schedulers in whose place it comes. Who moves here from KAI or Volcano adds kai-scheduler or
    volcano, and leaves the manifests as they are."""
    served_schedulers: tuple[str, ...] = ("sluice-scheduler", "hami-scheduler")
    """Schedulers that ask the extender: pods that name one keep it."""
    hami_devices: str = _path()
    """HAMi's device-config.yaml, bare or as its ConfigMap's manifest: names of resources, what
    pods get that leave something out, other vendors' devices. Empty: HAMi's defaults."""
    writers: tuple[str, ...] = ()
    """Users who may write what a pod was given, besides this controller: another scheduler's
    service account. Others are refused."""
    register_nodes: bool = True
    """Nodes carry HAMi's register of their GPUs (hami.io/node-nvidia-register, handshake), for
    tools that read it; nothing here does. false: where HAMi's own plugin has nodes of the same
    cluster and something else is to write there."""
    as_claims: bool = False
    """Pods that ask for nvidia.com/gpu, gpumem and gpucores come with ResourceClaims of class
    gpu.sluice.dev instead, for clusters whose agents have door = "dra" (Kubernetes 1.36 and
    later). Their templates are made in the pods' namespaces, and named by what they ask for."""


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """[extender]: what kube-scheduler asks about pods that want GPUs, in mode kubernetes."""

    callers: str = ""
    """Names in client certificates of kubernetes.webhooks_ca that may ask, and bind pods by it,
    separated by commas; a `*` at the end stands for any rest. Empty: nobody is answered."""
    listen: str = ""
    """ADDRESS:PORT on the loopback where a kube-scheduler asks without TLS, as from a container of
    the same pod: whoever gets there may bind pods, so nobody else may share that loopback. What it
    saves: docs/queue/scheduling.md. Empty: schedulers ask at kubernetes.webhooks_listen only."""
    own_address: str = ""
    """ADDRESS:PORT at which the other replicas find this one's webhooks: whoever does not lead asks
    the leader there. Empty: who does not lead answers with an error."""
    node_policy: str = _choice("binpack", "binpack", "spread", "topology")
    """Which node suits a pod best that does not say. binpack: the fullest; spread: the emptiest;
    topology: one on which its GPUs are linked, or of one NUMA node."""
    answers: str = _choice("all", "all", "best")
    """Which nodes with room a scheduler is told of. all: every one, and their points count beside
    the scheduler's own; best: the one that suits best by the node policy, as HAMi does it, so that
    nothing is ranked: less for each pod, but what else a pod prefers does not count."""
    gpu_policy: tuple[str, ...] = _choices(
        (), "binpack", "spread", "topology-aware", "mutex", "numa"
    )
    """Which GPUs of a node, where the pod does not say, in HAMi's words. binpack: the fullest that
    will do; spread: the emptiest; topology-aware: the best linked, and a single one from among the
    worst linked; mutex: such as nobody uses; numa: of one NUMA node first. Empty: binpack, or with
    shares.hami_devices spread, as HAMi has it."""
    preemption: bool = True
    """A pod that lacks nothing but shares displaces pods of lower priority, unless its
    preemptionPolicy is Never. kube-scheduler displaces none for shares by itself. false: whom
    kube-scheduler displaces for its own reasons is still completed card by card."""
    resource_count: str = "nvidia.com/gpu"
    """What the resources are called at pods, as in the agents' [kubelet]: how many GPUs. Where
    nothing is said, HAMi's file (shares.hami_devices) says it, here and for the other three."""
    resource_memory: str = "nvidia.com/gpumem"
    """MiB on each."""
    resource_memory_percentage: str = "nvidia.com/gpumem-percentage"
    """Percent of each one's memory."""
    resource_cores: str = "nvidia.com/gpucores"
    """Percent of each one's time."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """[nodes]: how long a node may be silent."""

    lease_s: float = _number(15.0, 1.0, 3600.0)
    """A node starts nothing new this many seconds after its last good report. 15: what
    Kubernetes' leader election takes."""
    report_s: float = _number(5.0, 0.1, 600.0)
    """Seconds between reports. A third of the lease: two may be lost."""
    lost_after_s: float = _number(60.0, 1.0, 86_400.0)
    """Seconds after the end of its lease until a node counts as lost."""
    lost_policy: str = _choice("keep", "keep", "requeue")
    """keep: what ran there may still run, so it keeps its quota. requeue: it queues again, and
    the node pauses it by itself at the end of the lease."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """[engine]: choices of the whole queue, as in Kueue's Configuration."""

    fair_sharing: bool = False
    """Order and preempt by dominant resource share."""
    omitted_resource_is_unlimited: bool = True
    """A flavor that leaves out a covered resource does not limit it; false is Kueue's reading."""
    missing_selector_admits_all: bool = False
    """A ClusterQueue without namespaceSelector serves every namespace; false is Kueue's reading."""
    requeue_delay_s: float = _number(0.0, 0.0, 60.0)
    """Freed quota is collected this long, s. 0: decided at once; Kueue takes 1."""
    protect_from_reclaim_s: float = _number(0.0, 0.0, 31_536_000.0)
    """Seconds from its admission in which a workload is not preempted by a ClusterQueue that takes
    back what it lent; `preemptionProtection.reclaimWithinCohort.minAdmitDuration` in Kueue's
    Configuration, which comes first where one was applied."""
    protect_from_fair_sharing_s: float = _number(0.0, 0.0, 31_536_000.0)
    """The same from a ClusterQueue with a smaller share; `preemptionProtection.fairSharing`
    there."""
    protect_within_queue_s: float = _number(0.0, 0.0, 31_536_000.0)
    """The same from a higher priority in its own ClusterQueue."""
    never_preempted: str = ""
    """WorkloadPriorityClasses that are never preempted, separated by commas."""
    preempted_rests_s: float = _number(0.0, 0.0, 86_400.0)
    """Seconds until a preempted workload is queued again. 0: at once."""
    pods_ready_timeout_s: int = _number(0, 0, 604_800)
    """Seconds from admission until all pods must run; 0: no limit."""
    pods_ready_attempts: int = _number(0, 0, 1000)
    """Timeouts until the workload is deactivated; 0: never."""


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """[placement]: who chooses the GPUs."""

    mode: str = _choice("nodes", "nodes", "none")
    """nodes: admitted only onto shares that nodes have reported. none: quota alone decides and
    somebody else places, as Kubernetes does."""


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """[workloads]: what happens to them."""

    grace_s: float = _number(30.0, 0.0, 3600.0)
    """Seconds between SIGTERM and SIGKILL for who has to stop. 30: Kubernetes' default."""
    keep_finished_s: float = _number(86_400.0, 0.0, 31_536_000.0)
    """Finished workloads are shown this long, s. A day; at most 10,000 are kept."""
    max_per_user: int = _number(10_000, 1, 1_000_000)
    """Workloads of one user, finished ones among them; 10,000 take about 100 MB. Admins may have
    any number."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration file."""

    server: ServerSettings = field(default_factory=ServerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    shares: SharesSettings = field(default_factory=SharesSettings)
    extender: ExtenderSettings = field(default_factory=ExtenderSettings)
    nodes: NodeSettings = field(default_factory=NodeSettings)
    engine: EngineOptions = field(default_factory=EngineOptions)
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    workloads: WorkloadSettings = field(default_factory=WorkloadSettings)
    page: PageSettings = field(default_factory=PageSettings)


SECTIONS: Final[Mapping[str, type[Any]]] = {
    "server": ServerSettings,
    "tls": TlsSettings,
    "kubernetes": KubernetesSettings,
    "shares": SharesSettings,
    "extender": ExtenderSettings,
    "nodes": NodeSettings,
    "engine": EngineOptions,
    "placement": PlacementSettings,
    "workloads": WorkloadSettings,
    "page": PageSettings,
}


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
    """Of a controller that an ordinary user runs for itself."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    state = environment.get("XDG_STATE_HOME") or f"{environment.get('HOME', '/tmp')}/.local/state"
    return Path(runtime or state) / "sluice-queue" / "queue.sock"


def _check_together(settings: Settings) -> list[str]:
    problems = _check_addresses(settings.server)
    server, tls, tokens = settings.server, settings.tls, settings.kubernetes
    secured = bool(tls.certificate)
    if server.listen and not secured:
        problems.append(
            f"server.listen: {server.listen} would be TCP without TLS, where anybody is anybody:"
            " remove it, and nodes and users of this machine come over server.socket"
            ' (queue.server = "unix:/run/sluice-queue/queue.sock" in the daemon\'s settings); for'
            " other machines set tls.certificate, tls.key and tls.client_ca"
        )
    served = tokens.mode == "standalone"  # in a cluster people ask the API server
    if served and not server.listen and server.socket == "none":
        problems.append("server.socket: is none and server.listen is empty: nobody could come")
    if bool(tls.certificate) != bool(tls.key):
        lacking = "key" if tls.certificate else "certificate"
        problems.append(f"tls.{lacking}: is missing; certificate and key belong together")
    if tls.client_ca and not secured:
        problems.append("tls.client_ca: needs tls.certificate and tls.key too")
    if secured and not tls.client_ca and not tokens.audience:
        problems.append(
            "tls.client_ca: is missing, and so is kubernetes.audience: callers over TLS would have"
            " neither certificate nor token, and nobody without a name may anything"
        )
    for section, lists, needed in (
        ("tls", tls, "client_ca" if not tls.client_ca else ""),
        ("kubernetes", tokens, "audience" if not tokens.audience else ""),
    ):
        for name in ("admins", "nodes", "users", "checks"):
            if getattr(lists, name) and needed:
                problems.append(f"{section}.{name}: needs {section}.{needed}, or nobody has a name")
        try:
            parse_checks(lists.checks)
        except ValueError as error:
            problems.append(f"{section}.checks: {error}")
    if tokens.audience and not secured:
        problems.append("kubernetes.audience: needs tls.certificate: a token must not be overheard")
    problems += _check_mode(settings)
    problems += check_page(settings.page, split_address)
    problems += _check_extender(settings)
    if settings.nodes.report_s * 2 > settings.nodes.lease_s:
        problems.append(
            f"nodes.report_s: {settings.nodes.report_s:g} leaves no room for one lost report"
            f" within nodes.lease_s ({settings.nodes.lease_s:g})"
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
                problems.append(f"kubernetes.webhooks_{name}: is missing, and {listener} needs it")
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
            "extender.callers: needs kubernetes.webhooks_listen, where schedulers ask, and"
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


def _check_loopback(given: ExtenderSettings) -> list[str]:
    problems = []
    if not given.callers:
        problems.append("extender.listen: needs extender.callers, whom the other replicas let ask")
    try:
        host, _ = split_address(given.listen)
        if not ip_address(host).is_loopback:
            problems.append(
                f"extender.listen: {given.listen} is not on the loopback (127.0.0.1): who comes"
                " there is not asked who it is, and may bind pods"
            )
    except ValueError as error:
        problems.append(f"extender.listen: {error}")
    return problems


def _check_beside(settings: Settings) -> list[str]:
    problems = []
    if not settings.server.listen and settings.server.socket in ("", "none"):
        problems.append(
            "server.listen: is empty, and mode beside answers by what nodes report there: set it,"
            " with [tls], or server.socket for the node of this machine"
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
