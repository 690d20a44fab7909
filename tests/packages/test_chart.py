"""The Helm chart: valid for Kubernetes, no more than it needs, and our own services accept what it configures.

Rendering needs helm (`packaging/helm-tool.sh` builds it; `make test-packages` does), the schemas come with the Python
package kubernetes-validate. What needs neither is always checked.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent import config as node_config
from queuecontroller import config as queue_config
from tests.places import BUILD, REPO

CHART = REPO / "packaging" / "helm" / "sluice"
STATIC = REPO / "packaging" / "kubernetes" / "sluice.yaml"
HELM = shutil.which("helm") or (
    str(BUILD / "tools" / "helm") if (BUILD / "tools" / "helm").is_file() else None
)
needs_helm = pytest.mark.skipif(HELM is None, reason="no helm: packaging/helm-tool.sh")
SECRETS = ("queue.tlsSecret=q", "agent.tlsSecret=n")
ALL = (
    *SECRETS,
    "simulatedGpus=2xh100-80gb",
    "queue.podDisruptionBudget.enabled=true",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring",
    "serviceMonitor.enabled=true",
    "prometheusRule.enabled=true",
    "dashboard.enabled=true",
)
KUBERNETES = ("1.28", "1.31", "1.34")


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run(
        [HELM, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def template(*values: str, kubernetes: str = "1.31") -> subprocess.CompletedProcess[str]:
    words = (word for one in values for word in ("--set", one))
    return helm("template", "s", CHART, "-n", "gpu", "--kube-version", f"{kubernetes}.0", *words)


def rendered(*values: str, kubernetes: str = "1.31") -> list[Any]:
    """Hooks too; see of()."""
    done = template(*values, kubernetes=kubernetes)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def static() -> list[Any]:
    return [one for one in yaml.safe_load_all(STATIC.read_text()) if one]


def of(objects: Iterable[Any], kind: str, name: str = "") -> Any:
    """What an install makes; hooks are looked at by themselves."""
    (found,) = [
        one
        for one in objects
        if one["kind"] == kind
        and one["metadata"]["name"].endswith(name)
        and "helm.sh/hook" not in one["metadata"].get("annotations", {})
    ]
    return found


# --- without helm: the rendered file that is checked in ---


def test_versions_are_those_of_the_file_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = (REPO / "VERSION").read_text().strip()
    assert (chart["version"], chart["appVersion"]) == (version, version)


PASSED_ON = frozenset(
    [
        "image",
        "pullPolicy",
        "imagePullSecrets",
        "agent",
        "queue",
        "affinity",
        "nodeSelector",
        "tolerations",
        "resources",
        "podAnnotations",
        "extraEnv",
        "metricsPort",
        "priorityClassName",
        "persistence",
        "interval",
        "labels",
        "storageClass",
        "size",
        "repository",
        "timeoutSeconds",
    ]
)
"""Keys whose names say it, or whose values go to Kubernetes as they are."""


def test_every_value_says_what_it_is() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    keys = [
        (number, re.fullmatch(r"(?:  ){0,2}([A-Za-z]+):.*", line))
        for number, line in enumerate(lines)
    ]
    named = [
        (number, key[1])
        for number, key in keys
        if key
        and not key[1].startswith(
            ("privileged", "readOnly", "requests", "limits", "operator", "effect")
        )
    ]
    assert len(named) > 40
    silent = [key for number, key in named if not lines[number - 1].strip().startswith("#")]
    nested = {"enabled"}  # explained by the comment inside its section
    assert [
        key
        for key in silent
        if key
        not in PASSED_ON
        | nested
        | {
            "serviceMonitor",
            "prometheusRule",
            "dashboard",
            "networkPolicy",
            "securityContext",
            "fullnameOverride",
        }
    ] == []


def test_the_daemonset_never_has_two_on_a_node_and_mounts_what_it_needs_and_no_more() -> None:
    spec = of(static(), "DaemonSet")["spec"]
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    }
    pod = spec["template"]["spec"]
    assert pod["hostPID"] is True
    assert "hostNetwork" not in pod
    assert pod["priorityClassName"] == "system-node-critical"
    host = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert host == {
        "/run/sluice",
        "/var/lib/sluice",
        "/var/lib/sluice-libraries",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/var/lib/kubelet/pods-api",
        "/var/run/cdi",
        "/etc/cdi",
    }
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["run"]["mountPropagation"] == "HostToContainer"
    assert mounts["pod-resources"]["readOnly"]
    assert mounts["pods-api"]["readOnly"]
    assert pod["tolerations"]


def test_the_controller_is_one_without_root_or_capabilities() -> None:
    spec = of(static(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    container = pod["containers"][0]["securityContext"]
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert not container["allowPrivilegeEscalation"]
    assert container["readOnlyRootFilesystem"]


RIGHTS = {
    "agent": {
        ("", "pods", "get,list,watch"),
        ("apps", "replicasets", "get"),
        ("apps", "deployments", "get"),
        ("apps", "statefulsets", "get"),
        ("apps", "daemonsets", "get"),
        ("batch", "cronjobs", "get"),
        ("batch", "jobs", "get"),
        ("", "events", "create,patch"),
        ("", "nodes", "get,list,watch"),
        ("", "nodes/status", "patch"),
    },
    "queue": {("authentication.k8s.io", "tokenreviews", "create")},
}
"""What each may ask the API server: (group, resource, verbs). A wider role is a decision, made here."""


def rights(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, ",".join(sorted(rule["verbs"])))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_each_has_the_rights_that_are_listed_and_no_more() -> None:
    objects = static()
    found = {
        one["metadata"]["name"].rpartition("-")[2]: rights(one)
        for one in objects
        if one["kind"] in ("Role", "ClusterRole")
    }
    assert found == RIGHTS
    for one in objects:
        if one["kind"] == "ServiceAccount":
            assert one["automountServiceAccountToken"] is False
        if one["kind"] in ("DaemonSet", "Deployment"):
            pod = one["spec"]["template"]["spec"]
            has_role = pod["serviceAccountName"].rpartition("-")[2] in RIGHTS
            assert pod["automountServiceAccountToken"] is has_role


def test_no_rule_has_a_star() -> None:
    for one in static():
        if one["kind"] in ("Role", "ClusterRole"):
            assert "*" not in json.dumps(one["rules"])


def test_our_services_accept_the_settings_they_are_given() -> None:
    objects = static()
    node = node_config.parse(
        tomllib.loads(of(objects, "ConfigMap", "agent")["data"]["sluice.toml"])
    )
    queue = queue_config.parse(
        tomllib.loads(of(objects, "ConfigMap", "queue")["data"]["queue.toml"])
    )
    service = of(objects, "Service", "queue")
    host, _, port = node.queue.server.partition(":")
    assert host == f"{service['metadata']['name']}.sluice.svc"
    assert int(port) in [one["port"] for one in service["spec"]["ports"]]
    assert queue.kubernetes.audience
    assert node.queue.token


def test_each_agent_has_an_identity_of_its_own() -> None:
    """A token bound to its pod, for the controller alone; no key that another agent has too."""
    objects = static()
    volumes = {
        one["name"]: one for one in of(objects, "DaemonSet")["spec"]["template"]["spec"]["volumes"]
    }
    (source,) = volumes["queue-token"]["projected"]["sources"]
    queue = queue_config.parse(
        tomllib.loads(of(objects, "ConfigMap", "queue")["data"]["queue.toml"])
    )
    assert source["serviceAccountToken"]["audience"] == queue.kubernetes.audience
    assert volumes["tls"]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    account = of(objects, "ServiceAccount", "agent")["metadata"]
    assert (
        queue.kubernetes.nodes == f"system:serviceaccount:{account['namespace']}:{account['name']}"
    )


def test_services_select_the_pods_of_their_own_component() -> None:
    objects = static()
    for name, kind in (("agent", "DaemonSet"), ("queue", "Deployment")):
        labels = of(objects, kind)["spec"]["template"]["metadata"]["labels"]
        assert of(objects, "Service", name)["spec"]["selector"].items() <= labels.items()
        assert (
            of(objects, "NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"].items()
            <= labels.items()
        )


def test_what_the_chart_reads_itself_is_a_copy_of_the_one_source() -> None:
    sources = [
        REPO / "packaging" / "prometheus" / "sluice-alerts.yaml",
        *(REPO / "packaging" / "grafana").glob("*.json"),
    ]
    sources.append(CHART / "values.yaml")
    assert len(sources) == 4
    copies = {path.name: path.read_bytes() for path in (CHART / "files").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in sources}, "packaging/monitoring.sh"


# --- with helm ---


@needs_helm
def test_helm_finds_nothing_wrong() -> None:
    done = helm("lint", "--strict", CHART, "--set", "queue.tlsSecret=x")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


@needs_helm
def test_the_static_file_is_what_the_chart_renders() -> None:
    made = subprocess.run(
        [REPO / "packaging" / "static.sh", str(HELM)], capture_output=True, text=True, check=True
    ).stdout
    assert STATIC.read_text() == made


@needs_helm
def test_without_a_secret_the_chart_makes_one_that_the_controller_and_its_clients_believe(
    tmp_path: Path,
) -> None:
    objects = rendered()
    secret = of(objects, "Secret", "queue-tls")
    assert secret["type"] == "kubernetes.io/tls"
    for name, text in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    for purpose in ("sslserver", "sslclient"):
        subprocess.run(
            [
                "openssl",
                "verify",
                "-purpose",
                purpose,
                "-verify_hostname",
                "s-queue.gpu.svc",
                "-CAfile",
                tmp_path / "ca.crt",
                tmp_path / "tls.crt",
            ],
            check=True,
            capture_output=True,
        )
    mounted = of(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"secretName": "s-queue-tls", "defaultMode": 0o440} in [
        one.get("secret") for one in mounted
    ]
    assert [one for one in rendered("queue.tlsSecret=q") if one["kind"] == "Secret"] == []
    issued = rendered("queue.certManager.issuer=house")
    assert [one for one in issued if one["kind"] == "Secret"] == []
    certificate = of(issued, "Certificate")["spec"]
    assert (certificate["secretName"], certificate["issuerRef"]) == (
        "s-queue-tls",
        {"name": "house", "kind": "Issuer"},
    )
    assert "s-queue.gpu.svc" in certificate["dnsNames"]


@needs_helm
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "agent.noodeSelector.a=b",
            "unknown value agent.noodeSelector: did you mean agent.nodeSelector?",
        ),
        ("imgae.tag=1", "unknown value imgae: did you mean image?"),
        ("queue.storageClass=fast", "did you mean queue.persistence.storageClass?"),
        ("image.repository=x", "did you mean agent.image.repository?"),
        ("networkPolicy.metricFrom=x", "did you mean networkPolicy.metricsFrom?"),
    ],
)
def test_an_unknown_value_is_refused_with_the_nearest_known_one(value: str, said: str) -> None:
    done = template(*SECRETS, value)
    assert done.returncode != 0
    assert said in done.stderr


@needs_helm
def test_keys_of_kubernetes_and_of_parent_charts_are_not_ours_to_know() -> None:
    objects = rendered(
        "agent.podAnnotations.a=b",
        "agent.nodeSelector.c=d",
        "queue.resources.limits.cpu=2",
        "agent.securityContext.runAsUser=0",
        "dashboard.labels.x=y",
        "global.anything=1",
    )
    pod = of(objects, "DaemonSet")["spec"]["template"]
    assert pod["metadata"]["annotations"]["a"] == "b"
    assert pod["spec"]["nodeSelector"] == {"c": "d"}
    assert "affinity" not in pod["spec"], "the operator's own choice of nodes is all there is"


@needs_helm
@pytest.mark.parametrize(
    "value",
    [
        "queue.port=0",
        "queue.port=dns",
        "agent.image.digest=sha256:abc",
        "agent.kubeletRoot=var/lib/kubelet",
        "simulatedGpus=2 x h100",
        "image.pullPolicy=sometimes",
        "queue.persistence.size=plenty",
        "agent.enabled=perhaps",
        "agent.resourceNames.count=gpu",
    ],
)
def test_a_value_of_the_wrong_form_is_refused(value: str) -> None:
    done = template(*SECRETS, value)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_the_schema_knows_every_value() -> None:
    def keys(node: Any) -> Any:
        return {key: keys(value) for key, value in node.items()} if isinstance(node, dict) else None

    def known(schema: dict[str, Any]) -> Any:
        if "properties" not in schema:
            return None
        return {key: known(value) for key, value in schema["properties"].items()}

    def same(values: Any, schema: Any) -> bool:
        if schema is None or values is None:
            return True  # a form, or Kubernetes' own
        return values.keys() == schema.keys() and all(
            same(values[key], schema[key]) for key in values
        )

    values = keys(yaml.safe_load((CHART / "values.yaml").read_text()))
    schema = known(json.loads((CHART / "values.schema.json").read_text()))
    assert same(values, schema)


@needs_helm
def test_settings_of_the_operator_and_of_the_chart_are_one_document() -> None:
    config = '[kubelet]\ndefault_memory_mib = 8000\ncdi_dir = "/x"\n[queue]\nlabels = "a=b"\n'
    document = tomllib.loads(
        of(rendered(*SECRETS, f"agent.config={config}".replace(",", "\\,")), "ConfigMap", "agent")[
            "data"
        ]["sluice.toml"]
    )
    node = node_config.parse(document)
    assert document["kubelet"]["cdi_dir"] == "/x", "the operator's goes before the chart's"
    assert document["kubelet"]["enabled"] is True
    assert node.queue.labels
    assert node.queue.server == "s-queue.gpu.svc:9465"


@needs_helm
def test_the_commands_in_both_pods_need_no_flags() -> None:
    objects = rendered(*SECRETS)
    found = {}
    for kind in ("Deployment", "DaemonSet"):
        (container,) = of(objects, kind)["spec"]["template"]["spec"]["containers"]
        env = {one["name"]: one.get("value") or "" for one in container["env"]}
        mounted = {one["mountPath"] for one in container["volumeMounts"]}
        for name in ("SLUICE_QUEUE_CA", "SLUICE_QUEUE_TOKEN_FILE"):
            assert name not in env or Path(env[name]).parent.as_posix() in mounted
        found[kind] = env
    settings = tomllib.loads(of(objects, "ConfigMap", "queue")["data"]["queue.toml"])
    assert found["Deployment"]["SLUICE_QUEUE_SERVER"] == f"unix:{settings['server']['socket']}"
    assert found["DaemonSet"]["SLUICE_QUEUE_SERVER"]
    assert found["DaemonSet"]["SLUICE_QUEUE_TOKEN_FILE"]
    assert found["DaemonSet"]["SLUICE_QUEUE_SERVER_NAME"] == "s-queue.gpu.svc"


@needs_helm
def test_simulated_gpus_are_laid_out_before_the_agent_starts_and_found_by_it() -> None:
    plain = of(rendered(), "DaemonSet")["spec"]["template"]["spec"]
    assert "initContainers" not in plain
    assert plain["runtimeClassName"] == "nvidia"
    assert "sluice-sim" not in json.dumps(plain)
    pod = of(rendered("simulatedGpus=2xh100-80gb"), "DaemonSet")["spec"]["template"]["spec"]
    assert "runtimeClassName" not in pod
    (first,) = pod["initContainers"]
    assert first["command"][-2:] == ["up", "2xh100-80gb"]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    for container in (first, pod["containers"][0]):
        mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        # The same path on the host and in both: the CDI specification names it for the runtime.
        assert mounts["sim-libraries"] == paths["sim-libraries"] == env["LD_LIBRARY_PATH"]
        assert mounts["sim-state"] == paths["sim-state"] == env["SLUICE_SIM_DIR"]


def terms(pod: dict[str, Any]) -> list[list[dict[str, Any]]]:
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"] for term in required["nodeSelectorTerms"]]


@needs_helm
def test_the_agent_runs_where_gpus_are_and_simulated_ones_where_none_are() -> None:
    real = terms(of(rendered(), "DaemonSet")["spec"]["template"]["spec"])
    assert all(len(term) == 1 for term in real), "any of them will do"
    keys = {term[0]["key"] for term in real}
    assert {"nvidia.com/gpu.present", "sluice.dev/gpu"} <= keys
    (sim,) = terms(of(rendered("simulatedGpus=h100-80gb"), "DaemonSet")["spec"]["template"]["spec"])
    assert {one["key"] for one in sim} == keys, "none of them"
    assert {one["operator"] for one in sim} == {"NotIn", "DoesNotExist"}


@needs_helm
def test_metrics_are_read_by_those_who_are_named() -> None:
    for component in ("agent", "queue"):
        policy = of(rendered(), "NetworkPolicy", component)["spec"]
        ports = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
        assert "metrics" not in ports
        assert all(rule.get("from") for rule in policy["ingress"]), "no `from` would be everybody"
    named = of(
        rendered("networkPolicy.metricsFrom[0].podSelector.matchLabels.a=b"),
        "NetworkPolicy",
        "agent",
    )["spec"]
    assert named["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"a": "b"}}}]
    blind = template("serviceMonitor.enabled=true")
    assert blind.returncode != 0
    assert "networkPolicy.metricsFrom: names nobody" in blind.stderr


@needs_helm
def test_the_queue_can_be_kept_thrown_away_and_guarded() -> None:
    claim = of(rendered(), "PersistentVolumeClaim")
    assert "annotations" not in claim["metadata"]
    kept = of(rendered("queue.persistence.keep=true"), "PersistentVolumeClaim")
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    thrown = rendered("queue.persistence.enabled=false")
    assert [one for one in thrown if one["kind"] == "PersistentVolumeClaim"] == []
    volumes = of(thrown, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "state", "emptyDir": {"sizeLimit": "2Gi"}} in volumes
    assert [one for one in rendered() if one["kind"] == "PodDisruptionBudget"] == []
    budget = of(rendered("queue.podDisruptionBudget.enabled=true"), "PodDisruptionBudget")["spec"]
    assert (budget["minAvailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


@needs_helm
@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_for_kubernetes(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    checked = 0
    for one in rendered(*ALL, kubernetes=version):
        if one["apiVersion"].startswith("monitoring.coreos.com/"):
            continue  # not of Kubernetes; see the next test
        validate.validate(one, version, strict=True)
        checked += 1
    assert checked >= 11


@needs_helm
def test_no_pod_has_two_containers_of_one_name() -> None:
    """What the schemas cannot say and an API server refuses."""
    looked_at = 0
    for one in rendered(*ALL):
        pod = (
            one["spec"]
            if one["kind"] == "Pod"
            else one.get("spec", {}).get("template", {}).get("spec")
        )
        if not pod:
            continue
        for group in (
            [*pod["containers"], *pod.get("initContainers", [])],
            pod.get("volumes", []),
        ):
            names = [part["name"] for part in group]
            assert len(names) == len(set(names)), (one["metadata"]["name"], names)
        mounted = {
            mount["name"]
            for container in [*pod["containers"], *pod.get("initContainers", [])]
            for mount in container.get("volumeMounts", [])
        }
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
        looked_at += 1
    assert looked_at == 6


@needs_helm
def test_a_wrong_field_would_be_found() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    wrong = of(rendered(*ALL), "DaemonSet")
    wrong["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, KUBERNETES[0], strict=True)


@needs_helm
def test_the_monitor_keeps_the_labels_of_jobs_and_finds_both_services() -> None:
    objects = rendered(*ALL)
    monitor = of(objects, "ServiceMonitor")["spec"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["honorLabels"] is True
    for service in (one for one in objects if one["kind"] == "Service"):
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    rules = of(objects, "PrometheusRule")["spec"]
    assert rules == yaml.safe_load((CHART / "files" / "sluice-alerts.yaml").read_text())
    dashboards = of(objects, "ConfigMap", "dashboards")["data"]
    assert {name: json.loads(text)["uid"] for name, text in dashboards.items()} == {
        "sluice-node.json": "sluice-node",
        "sluice-queue.json": "sluice-queue",
    }


@needs_helm
def test_each_part_can_be_left_out() -> None:
    assert [
        one["kind"] for one in rendered("queue.enabled=false") if "queue" in one["metadata"]["name"]
    ] == []
    assert [
        one["kind"]
        for one in rendered("agent.enabled=false", "queue.tlsSecret=q")
        if "agent" in one["metadata"]["name"]
    ] == []
    tls = [
        one
        for one in of(rendered(), "DaemonSet")["spec"]["template"]["spec"]["volumes"]
        if one["name"] == "tls"
    ]
    assert [one["secret"]["secretName"] for one in tls] == ["s-queue-tls"], "known without a word"
    alone = tomllib.loads(
        of(rendered("queue.enabled=false"), "ConfigMap", "agent")["data"]["sluice.toml"]
    )
    assert "queue" not in alone


def hooks(objects: Iterable[Any], when: str) -> list[Any]:
    """In the order in which helm makes them."""
    found = [
        one for one in objects if one["metadata"].get("annotations", {}).get("helm.sh/hook") == when
    ]
    return sorted(
        found, key=lambda one: int(one["metadata"]["annotations"].get("helm.sh/hook-weight", 0))
    )


CLEANUP_RIGHTS = {
    ("", "pods", "delete"),
    ("", "pods", "list"),
    ("", "nodes", "list"),
    ("", "nodes/status", "patch"),
    ("apps", "daemonsets", "delete,get"),
    ("apps", "daemonsets", "get"),
}


@needs_helm
def test_before_an_uninstall_agents_end_then_nodes_are_cleaned_then_what_was_counted_goes() -> None:
    objects = rendered("agent.nodeSelector.a=b")
    steps = hooks(objects, "pre-delete")
    assert [
        f"{one['kind']} {one['metadata']['name']}"
        for one in steps
        if one["kind"] in ("Job", "DaemonSet")
    ] == ["Job s-cleanup-agents", "DaemonSet s-cleanup", "Job s-cleanup-cluster"]
    kinds = [one["kind"] for one in steps]
    assert kinds.index("Job") > max(kinds.index("ClusterRoleBinding"), kinds.index("RoleBinding"))
    assert (
        set().union(*(rights(one) for one in steps if one["kind"].endswith("Role")))
        == CLEANUP_RIGHTS
    )
    (role,) = [one for one in steps if one["kind"] == "Role"]
    assert [rule["resourceNames"] for rule in role["rules"]] == [
        ["s-agent"],
        ["s-cleanup"],
        ["s-test"],
    ]
    for one in steps:
        assert "hook-succeeded" in one["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    (cleaner,) = [one for one in steps if one["kind"] == "DaemonSet"]
    agent = of(objects, "DaemonSet", "agent")["spec"]["template"]["spec"]
    pod = cleaner["spec"]["template"]["spec"]
    for key in ("nodeSelector", "tolerations", "hostPID", "priorityClassName"):
        assert pod[key] == agent[key], "on the same nodes"
    assert pod["initContainers"][0]["command"][1:3] == ["uninstall", "node"]
    assert "securityContext" not in pod
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for one in steps:
        if one["kind"] == "Job":
            spec = one["spec"]["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"]
            name = next(
                word.partition("=")[2]
                for word in spec["containers"][0]["command"]
                if word.startswith("--daemonset=")
            )
            assert name in ("s-agent", "s-cleanup")
    assert hooks(rendered("cleanup.enabled=false"), "pre-delete") == []
    assert hooks(rendered("agent.enabled=false"), "pre-delete") == []


@needs_helm
def test_an_agent_may_change_the_status_of_its_own_node_alone() -> None:
    objects = rendered()
    policy = of(objects, "ValidatingAdmissionPolicy")["spec"]
    account = of(objects, "ServiceAccount", "agent")["metadata"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert user in policy["matchConditions"][0]["expression"]
    assert policy["failurePolicy"] == "Fail"
    bound = of(objects, "ValidatingAdmissionPolicyBinding")["spec"]
    assert bound["policyName"] == of(objects, "ValidatingAdmissionPolicy")["metadata"]["name"]
    assert bound["validationActions"] == ["Deny"]
    before = helm("template", "s", CHART, "--kube-version", "1.29.4").stdout
    assert "ValidatingAdmissionPolicy" not in before, "their API servers have no such kind"


@needs_helm
def test_helm_test_asks_for_what_it_compares_with() -> None:
    names = {"count": "a.b/gpu", "memory": "a.b/mem", "cores": "a.b/time"}
    (pod,) = hooks(
        rendered(*(f"agent.resourceNames.{key}={name}" for key, name in names.items())), "test"
    )
    (container,) = pod["spec"]["containers"]
    limits = container["resources"]["limits"]
    words = container["command"]
    assert limits["a.b/gpu"] == 1
    assert str(limits["a.b/mem"]) == words[words.index("--gpumem") + 1]
    assert str(limits["a.b/time"]) == words[words.index("--cores") + 1]
    assert pod["spec"]["restartPolicy"] == "Never", "its exit status decides"


@needs_helm
def test_each_image_has_its_registry_tag_and_digest() -> None:
    def images(*values: str) -> list[str]:
        objects = rendered(*values)
        return [
            of(objects, kind)["spec"]["template"]["spec"]["containers"][0]["image"]
            for kind in ("DaemonSet", "Deployment")
        ]

    version = (REPO / "VERSION").read_text().strip()
    assert images() == [
        f"localhost/sluice-nodeagent:{version}",
        f"localhost/sluice-queue:{version}",
    ]
    digest = "sha256:" + "0a" * 32
    assert images(
        "image.registry=r.example/gpu", f"agent.image.digest={digest}", "image.tag=next"
    ) == [f"r.example/gpu/sluice-nodeagent@{digest}", "r.example/gpu/sluice-queue:next"]
    assert images("image.tag=a", "queue.image.tag=b") == [
        "localhost/sluice-nodeagent:a",
        "localhost/sluice-queue:b",
    ]
