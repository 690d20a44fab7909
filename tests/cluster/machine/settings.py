"""The configuration files of a node's programs, as text, and the arguments they are started with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.control_plane import apiserver_identity, controller_manager, scheduler
from tests.cluster.programs.build import Programs
from tests.cluster.programs.pki import Pki

SERVICE_IP = "10.96.0.1"
DNS_IP = "10.96.0.10"
API_PORT = 6443
ETCD = "http://127.0.0.1:2379"
PEER = "http://127.0.0.1:2380"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
PAUSE = "localhost/pause:1"


@dataclass(frozen=True)
class Place:
    """A node's name and addresses."""

    hostname: str
    ip: str
    """Address of its bridge, which its pods have as their gateway."""
    pods: str
    link: str
    """Address on the link to the other node."""
    kubelet: str
    """Address on which its kubelet listens."""


FIRST = Place("gpu-node", "10.88.0.1", "10.88.0.0/24", "10.89.0.1", "127.0.0.1")
SECOND = Place("gpu-node-2", "10.88.1.1", "10.88.1.0/24", "10.89.0.2", "0.0.0.0")


@dataclass(frozen=True)
class NodeSettings:
    directory: Path
    programs: Programs
    pki: Pki
    gates: Mapping[str, bool] = field(default_factory=dict)
    """Feature gates of the kubelet."""
    place: Place = FIRST
    lost_s: int = 0
    """Seconds without a sign of life after which a node is not ready, and again until its pods are evicted; 0: Kubernetes' own 50 and 300."""

    def kubernetes_at_least(self, minor: int) -> bool:
        return int(self.programs.version.split(".")[1]) >= minor


def containerd(node: NodeSettings) -> str:
    """NVIDIA's runtime class beside runc; CDI is on, as containerd 2 has it."""
    runtimes = ""
    for name, program in (
        ("runc", node.programs.debian / "usr/sbin/runc"),
        ("nvidia", node.directory / "nvidia-runtime"),
    ):
        place = f'[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}'
        runtimes += f"""
{place}]
runtime_type = "io.containerd.runc.v2"
{place}.options]
SystemdCgroup = false
BinaryName = "{program}"
"""
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing", "io.containerd.nri.v1.nri"]
[grpc]
address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
disable_apparmor = true
restrict_oom_score_adj = true
disable_hugetlb_controller = true
tolerate_missing_hugetlb_controller = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{node.programs.debian}/usr/lib/cni"]
conf_dir = "{node.directory}/cni"
{runtimes}
[plugins."io.containerd.grpc.v1.cri"]
stream_server_address = "127.0.0.1"
"""


def network(node: NodeSettings) -> str:
    ipam = {
        "type": "host-local",
        "dataDir": "/var/lib/cni",
        "ranges": [[{"subnet": node.place.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": ipam,
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})


def kubelet(node: NodeSettings) -> str:
    keys = node.pki
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.place.kubelet,
        "healthzBindAddress": "127.0.0.1",
        "readOnlyPort": 0,
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        # The machine's sysctls stay as they are: the node is shown files with the values that it wants.
        "protectKernelDefaults": True,
        "makeIPTablesUtilChains": False,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(keys / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(keys / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(keys / "kubelet-server.key"),
        "resolvConf": "/etc/resolv.conf",
        "clusterDNS": [DNS_IP],
        "clusterDomain": "cluster.local",
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        # The disk is the machine's: what else lies on it must not evict the pods.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "5s",
        "registerWithTaints": [],
        "featureGates": dict(node.gates),
    }
    if node.kubernetes_at_least(31):
        # Control groups of version 1 are refused by default since 1.35.
        document["failCgroupV1"] = False
    if node.lost_s:
        # The kubelet renews its lease four times in this time.
        document["nodeLeaseDurationSeconds"] = node.lost_s
    return json.dumps(document, indent=1)


def etcd(node: NodeSettings) -> list[str]:
    return [
        str(node.programs["etcd"]),
        *(f"--data-dir={node.directory / 'etcd'}", "--log-level=warn"),
        *(f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}"),
        *(f"--listen-peer-urls={PEER}", f"--initial-advertise-peer-urls={PEER}"),
        f"--initial-cluster=default={PEER}",
    ]


def apiserver(node: NodeSettings) -> list[str]:
    keys = node.pki
    return [
        str(node.programs["kube-apiserver"]),
        # All addresses of the node's own network, which has no way out: pods come by the bridge's.
        *(f"--etcd-servers={ETCD}", "--bind-address=0.0.0.0", f"--secure-port={API_PORT}"),
        f"--advertise-address={FIRST.ip}",
        *apiserver_identity(keys),
        f"--kubelet-certificate-authority={keys / 'ca.crt'}",
        f"--kubelet-client-certificate={keys / 'to-kubelet.crt'}",
        f"--kubelet-client-key={keys / 'to-kubelet.key'}",
        "--kubelet-preferred-address-types=Hostname",
        *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
        "--enable-aggregator-routing=true",
        *(
            f"--default-{taint}-toleration-seconds={node.lost_s}"
            for taint in ("not-ready", "unreachable")
            if node.lost_s
        ),
    ]


def commands(node: NodeSettings) -> dict[str, list[str]]:
    """Command lines of the node's programs by name, in the order in which they are started. Those of the control plane run on
    the first node only."""
    volumes = f"--flex-volume-plugin-dir={node.directory / 'volumes'}"
    patience = (f"--node-monitor-grace-period={node.lost_s}s", "--node-monitor-period=1s")
    kubelet_arguments = [
        f"--config={node.directory / 'kubelet.json'}",
        f"--kubeconfig={node.pki.kubeconfig('kubelet')}",
        *(
            f"--hostname-override={node.place.hostname}",
            f"--node-ip={node.place.ip}",
            "--root-dir=/var/lib/kubelet",
            "--v=2",
        ),
    ]
    return {
        "etcd": etcd(node),
        "containerd": [
            str(node.programs["containerd"]),
            "-c",
            str(node.directory / "containerd.toml"),
        ],
        "kube-apiserver": apiserver(node),
        "kube-controller-manager": [
            str(node.programs["kube-controller-manager"]),
            *controller_manager(node.pki),
            *(patience if node.lost_s else ()),
            volumes,
        ],
        "kube-scheduler": [str(node.programs["kube-scheduler"]), *scheduler(node.pki)],
        "kubelet": [str(node.programs["kubelet"]), *kubelet_arguments],
    }
