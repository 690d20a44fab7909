"""Access to the API server, and what reads it: the node's pods, and the queue's decisions about
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.core.kubelet import sums as kubelet_sums
from nodeagent.native import version as native_version
from nodeagent.ports.kubelet import Admissions
from nodeagent.settings.kubelet import KubeletConfig
from nodeagent.shell.pods.allocation_modes import CLAIMS
from sluicecommon.kubernetes.credentials import Access, NoAccess, from_kubeconfig, in_cluster

if TYPE_CHECKING:
    from nodeagent.adapters.kubelet.cluster import Cluster


def access_of(config: KubeletConfig, environment: Mapping[str, str]) -> tuple[Access | None, str]:
    """Returns the access to the API server, or None and the reason why there is none."""
    if "api" not in config.pod_sources and not config.advertise_sums and config.door != CLAIMS:
        return None, "kubelet.pod_sources does not name api"
    try:
        if config.kubeconfig:
            from sluicecommon import yaml_text

            return from_kubeconfig(Path(config.kubeconfig), yaml_text.read), ""
    except NoAccess as error:
        return None, f"kubelet.kubeconfig: {error}"
    found = in_cluster(environment)
    return found, "" if found is not None else "no service account and no kubelet.kubeconfig"


def make_cluster(access: Access, node: str, fatal: Callable[[BaseException], None]) -> Cluster:
    """Loads the HTTP client; raises NoAccess."""
    from nodeagent.adapters.kubelet.cluster import Cluster

    return Cluster(access, node, native_version(), kubelet_sums.ANNOTATION, fatal)


def make_admissions(cluster: Cluster) -> Admissions:
    from nodeagent.adapters.kubelet.admissions import ApiAdmissions

    return ApiAdmissions(cluster.client)
