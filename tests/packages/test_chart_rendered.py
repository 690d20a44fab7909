"""The chart as helm renders it: valid for Kubernetes, and every value does what it says.

Rendering needs helm (`packaging/fetch/helm-tool.sh` builds it; `make test-packages` does), the schemas come with the Python
package kubernetes-validate. What needs neither is in test_chart.py. Long, for every part of the chart has its tests here.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.settings import daemon as node_config
from queuecontroller.gpushares.vendors import ROWS
from queuecontroller.server import config as queue_config
from queuecontroller.server.hami_file import rules_of
from tests.packages.chart import (
    ALL,
    CHART,
    KUBERNETES,
    SECRETS,
    helm,
    kubernetes_validate,
    needs_helm,
    of,
    rendered,
    rights,
    static,
    static_text,
    template,
)


@needs_helm
def test_helm_finds_nothing_wrong() -> None:
    done = helm("lint", "--strict", CHART, "--set", "queue.tlsSecret=x")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


@needs_helm
def test_the_static_file_is_what_the_chart_renders() -> None:
    assert "sluice-queue --from-file=tls.crt" in static_text()
    done = helm(
        *("template", "sluice", CHART, "-n", "sluice", "--kube-version", "1.31.0"),
        *("--set", "queue.tlsSecret=sluice-queue"),
    )
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert static() == [
        one for one in objects if "helm.sh/hook" not in one["metadata"].get("annotations", {})
    ]


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
    for name in ("ca.crt", "tls.crt"):
        command = ["openssl", "x509", "-noout", "-text", "-in", tmp_path / name]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "id-ecPublicKey" in shown, "RSA signs ten times as slowly"
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
    default = pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]
    assert default in [one["name"] for one in pod["spec"]["containers"]]
    assert pod["spec"]["nodeSelector"] == {"c": "d"}
    assert "affinity" not in pod["spec"], "the operator's own choice of nodes is all there is"


@needs_helm
def test_what_is_told_after_an_install_is_where_to_look_and_what_is_still_needed(
    tmp_path: Path,
) -> None:
    """helm renders NOTES.txt for an install only, and that needs a cluster: here as a manifest."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes.txt")
    as_yaml = 'notes: {{ tpl (.Files.Get "notes.txt") . | toJson }}\n'
    (chart / "templates" / "notes.yaml").write_text(as_yaml)

    def told(*values: str) -> str:
        words = [word for one in (*SECRETS, *values) for word in ("--set", one)]
        done = helm(
            *("template", "s", chart, "-n", "gpu", "--kube-version", "1.36.0"),
            *("-s", "templates/notes.yaml", *words),
        )
        assert done.returncode == 0, done.stderr
        return str(yaml.safe_load(done.stdout)["notes"])

    image = "registry.example.org/kube-scheduler:v1"
    notes = told("queue.mode=kubernetes", f"scheduler.image={image}")
    assert f"stay Pending until the scheduler's image is there: {image}\n" in notes
    assert "kubectl -n gpu exec ds/s-agent -- sluice ps" in notes
    assert "Pending" not in told(), "the cluster's own scheduler places them"
    assert "sluice ps" not in told("agent.enabled=false")


@needs_helm
@pytest.mark.parametrize(
    "value",
    [
        "queue.port=0",
        "queue.port=dns",
        "queue.mode=both",
        "queue.replicas=0",
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
    assert first["command"][1:3] == ["--node", "$(NODE_NAME)"], "UUIDs of its own on each node"
    assert first["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
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
        assert all(rule.get("from") for rule in policy["ingress"]), (
            "no `from` would allow every peer"
        )
    named = of(
        rendered("networkPolicy.metricsFrom[0].podSelector.matchLabels.a=b"),
        "NetworkPolicy",
        "agent",
    )["spec"]
    assert named["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"a": "b"}}}]
    blind = template("serviceMonitor.enabled=true")
    assert blind.returncode != 0
    assert "networkPolicy.metricsFrom: is empty" in blind.stderr


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
@pytest.mark.parametrize("mode", ["standalone", "kubernetes", "beside"])
def test_every_object_is_valid_for_kubernetes(version: str, mode: str) -> None:
    validate = kubernetes_validate()
    checked = 0
    for one in rendered(*ALL, f"queue.mode={mode}", kubernetes=version):
        if one["apiVersion"].startswith("monitoring.coreos.com/"):
            continue  # not of Kubernetes; see the next test
        if one["kind"] == "CustomResourceDefinition":
            continue  # a real API server takes them: tests/cluster/api_only/test_queueing_chart.py
        validate.validate(one, version, strict=True)
        checked += 1
    assert checked >= 11


@needs_helm
def test_in_mode_kubernetes_the_queue_is_the_api_servers_objects() -> None:
    objects = rendered(*SECRETS, "queue.mode=kubernetes", "queue.replicas=3")
    text = of(objects, "ConfigMap", "queue")["data"]["queue.toml"]
    queue = queue_config.parse(tomllib.loads(text))
    deployment = of(objects, "Deployment", "queue")["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert queue.kubernetes.mode == "kubernetes"
    assert queue.kubernetes.webhooks_listen == f"0.0.0.0:{ports['webhooks']}"
    assert queue.server.probes_listen == f"0.0.0.0:{ports['probes']}"
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (3, "RollingUpdate")
    assert not [one for one in objects if one["kind"] == "PersistentVolumeClaim"]
    assert queue.server.listen == f"0.0.0.0:{ports['grpc']}"
    (token,) = _queue_tokens(of(objects, "DaemonSet", "agent"))
    assert token["audience"] == queue.kubernetes.audience
    node = tomllib.loads(of(objects, "ConfigMap", "agent")["data"]["sluice.toml"])
    service = of(objects, "Service", "s-queue")
    (port,) = (one["port"] for one in service["spec"]["ports"] if one["name"] == "grpc")
    assert node["queue"]["server"].endswith(f":{port}")
    assert node["kubelet"]["limits"] == ["admission", "placement", "pod", "defaults"]
    node_config.parse(node)
    names = {one["metadata"]["name"] for one in objects if one["kind"] == "Role"}
    assert "s-queue" in names
    role = of(objects, "ClusterRole", "queue")["rules"]
    rules = yaml.safe_load((CHART / "files" / "queue-rules.yaml").read_text())
    assert role == rules["cluster"]
    assert all(one in of(objects, "ClusterRole", "agent")["rules"] for one in rules["agent"])
    plain = of(rendered(*SECRETS), "ClusterRole", "agent")["rules"]
    assert not [one for one in rules["agent"] if one in plain], "only with Kueue's objects"
    roles = {one["metadata"]["name"] for one in objects if one["kind"] == "ClusterRole"}
    for_users = {one for one in roles if one.startswith("kueue-")}
    assert {"kueue-batch-admin-role", "kueue-batch-user-role", "kueue-metrics-reader"} <= for_users
    assert len(for_users) > 50
    without = {one["metadata"]["name"] for one in static() if one["kind"] == "ClusterRole"}
    assert not for_users & without, "there are no objects of Kueue's in mode standalone"


@needs_helm
@pytest.mark.parametrize(
    ("given", "model"),
    [("2xh100", "h100"), ("h100-80gb,3xb300", "b300"), ("a100-40gb:1g.5gb,x", "x")],
)
def test_a_model_that_the_simulator_does_not_have_is_refused(given: str, model: str) -> None:
    with pytest.raises(AssertionError, match=f"there is no model {model}; there are h200-141gb, "):
        rendered(f"simulatedGpus={given}".replace(",", "\\,"))


@needs_helm
def test_every_model_of_the_simulator_may_be_named() -> None:
    models = (CHART / "files" / "simulated-models.txt").read_text().split()
    assert {"h100-80gb", "a100-40gb", "v100-32gb"} <= {*models}
    rendered("simulatedGpus=" + "\\,".join(f"2x{one}" for one in models))


@needs_helm
def test_pods_that_name_resources_get_claims_where_nodes_give_gpus_by_claims() -> None:
    """No scheduler fits gpucores there, which the webhook adds to a plain nvidia.com/gpu."""

    def claims(kubernetes: str, *values: str) -> bool:
        objects = rendered(*SECRETS, "queue.mode=kubernetes", *values, kubernetes=kubernetes)
        text = of(objects, "ConfigMap", "queue")["data"]["queue.toml"]
        return queue_config.parse(tomllib.loads(text)).shares.as_claims

    assert claims("1.36", "agent.door=dra")
    assert not claims("1.36")
    assert not claims("1.35", "agent.door=dra"), "a device has no shares there"
    assert not claims("1.36", "agent.door=dra", "queue.config=[shares]\nas_claims = false")


@needs_helm
def test_pods_that_show_themselves_gpus_are_refused_in_every_mode_and_changed_in_one() -> None:
    def policy(*values: str) -> tuple[str, bool]:
        objects = rendered(*SECRETS, *values)
        text = of(objects, "ConfigMap", "queue")["data"]["queue.toml"]
        given = queue_config.parse(tomllib.loads(text)).shares.visible_devices
        names = [
            one["metadata"]["name"]
            for one in objects
            if one["kind"] == "ValidatingAdmissionPolicyBinding"
        ]
        return given, "sluice-visible-devices" in names

    refuse = "shares.visibleDevices=refuse"
    assert policy("queue.mode=kubernetes") == ("allow", False)
    assert policy("queue.mode=kubernetes", "shares.visibleDevices=void") == ("void", False)
    assert policy("queue.mode=kubernetes", refuse) == ("refuse", True)
    for mode in ("standalone", "beside"):
        assert policy(f"queue.mode={mode}", refuse) == ("allow", True)
        with pytest.raises(AssertionError, match=r"void is for queue\.mode=kubernetes"):
            policy(f"queue.mode={mode}", "shares.visibleDevices=void")


@needs_helm
def test_no_sums_over_cards_where_the_extender_places_every_pod() -> None:
    """The kubelet fails a pod for good (OutOfnvidia.com/gpucores) whose requests exceed them."""

    def advertised(*values: str) -> bool:
        text = of(rendered(*SECRETS, *values), "ConfigMap", "agent")["data"]["sluice.toml"]
        return bool(tomllib.loads(text)["kubelet"].get("advertise_sums", True))

    assert not advertised("queue.mode=kubernetes")
    assert advertised()
    assert advertised("queue.mode=beside")
    assert advertised("queue.mode=kubernetes", "shares.takeOver=false"), "others place by them"
    assert advertised("queue.mode=kubernetes", "scheduler.enabled=false")
    config = "agent.config=[kubelet]\nadvertise_sums = true"
    assert advertised("queue.mode=kubernetes", config), "the user's own wins"


@needs_helm
def test_what_the_api_server_does_while_no_replica_answers_are_values() -> None:
    def missed(*values: str) -> tuple[str, int, str, int]:
        objects = rendered(*SECRETS, "queue.mode=kubernetes", *values)
        text = of(objects, "ConfigMap", "queue")["data"]["queue.toml"]
        given = queue_config.parse(tomllib.loads(text)).kubernetes
        return (
            given.webhooks_queued_policy,
            given.webhooks_queued_timeout_s,
            given.webhooks_policy,
            given.webhooks_timeout_s,
        )

    assert missed() == ("Fail", 10, "Ignore", 3)
    values = (
        "queue.webhooks.queuedFailurePolicy=Ignore",
        "queue.webhooks.queuedTimeoutSeconds=4",
        "queue.webhooks.failurePolicy=Fail",
        "queue.webhooks.timeoutSeconds=5",
    )
    assert missed(*values) == ("Ignore", 4, "Fail", 5)


@needs_helm
def test_replicas_are_on_different_nodes_where_there_are_some() -> None:
    def spec(*values: str) -> dict[str, Any]:
        found: dict[str, Any] = of(rendered(*SECRETS, *values), "Deployment", "queue")["spec"]
        return found

    made = spec("queue.mode=kubernetes")
    assert made["replicas"] == 1, "no cluster is known here; in one of two nodes there are 2"
    (spread,) = made["template"]["spec"]["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert spread["labelSelector"] == made["selector"]
    assert spread["matchLabelKeys"] == ["pod-template-hash"], (
        "in an upgrade those of before do not count"
    )
    assert "topologySpreadConstraints" not in spec()["template"]["spec"]


@needs_helm
def test_beside_kueue_nothing_of_it_is_made_and_what_is_done_takes_few_rights() -> None:
    objects = rendered(*SECRETS, "queue.mode=beside", "queue.replicas=2")
    text = of(objects, "ConfigMap", "queue")["data"]["queue.toml"]
    queue = queue_config.parse(tomllib.loads(text))
    assert (queue.kubernetes.mode, queue.kubernetes.webhooks_listen) == ("beside", "")
    assert queue.page.listen == ""
    deployment = of(objects, "Deployment", "queue")["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports.keys() == {"grpc", "metrics", "probes"}
    assert queue.server.listen == f"0.0.0.0:{ports['grpc']}"
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (2, "RollingUpdate")
    kinds = {one["kind"] for one in objects}
    assert not kinds & {
        "CustomResourceDefinition",
        "APIService",
        "PersistentVolumeClaim",
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    }
    assert not [one for one in objects if one["metadata"]["name"].endswith("-scheduler")]
    assert not [one for one in objects if one["metadata"].get("namespace") == "kube-system"]
    rules = yaml.safe_load((CHART / "files" / "queue-rules.yaml").read_text())
    assert of(objects, "ClusterRole", "queue")["rules"] == rules["beside"]
    assert of(objects, "Role", "s-queue")["rules"] == rules["besideNamespace"]
    (token,) = _queue_tokens(of(objects, "DaemonSet", "agent"))
    assert token["audience"] == queue.kubernetes.audience
    node = tomllib.loads(of(objects, "ConfigMap", "agent")["data"]["sluice.toml"])
    assert node["kubelet"]["limits"] == ["pod", "defaults"]
    assert node["queue"]["server"].startswith("s-queue.gpu.svc:")
    node_config.parse(node)


@needs_helm
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("queue.users={ada}", "queue.users: has no effect beside Kueue"),
        ("queue.checks={b=c}", "queue.checks: has no effect beside Kueue"),
        ("queue.persistence.existingClaim=c", "queue.persistence.existingClaim: has no effect"),
        ("queue.page.service=true", "queue.page: there is no page"),
        ("scheduler.callers={default-scheduler}", "scheduler: has no effect"),
        ("shares.writers={ada}", "shares.writers: has no effect"),
        ("agent.enabled=false", "agent.enabled=false: beside Kueue"),
        (
            'queue.config=[kubernetes]\nwebhooks_listen = "0.0.0.0:1"',
            "queue.config: webhooks_listen has no effect",
        ),
    ],
)
def test_what_makes_no_sense_beside_kueue_is_refused_by_name(
    value: str, said: str, tmp_path: Path
) -> None:
    path, _, text = value.partition("=")
    if path == "queue.config":
        given = tmp_path / "values.yaml"
        given.write_text(yaml.safe_dump({"queue": {"config": text}}))
        done = template(*SECRETS, "queue.mode=beside", files=(given,))
    else:
        done = template(*SECRETS, "queue.mode=beside", value)
    assert done.returncode != 0
    assert said in done.stderr


DEVICES = """
nvidia:
  resourceCountName: "example.com/gpu"
  resourceMemoryName: example.com/mem
vnpus:
  - {chipName: 910X, commonWord: Ascend910X, resourceName: huawei.com/Ascend910X, memoryAllocatable: 32768}
"""


@needs_helm
def test_hamis_file_names_the_resources_everywhere(tmp_path: Path) -> None:
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump({"shares": {"deviceConfig": DEVICES}}))
    objects = rendered(*SECRETS, "queue.mode=kubernetes", files=(given,))
    data = of(objects, "ConfigMap", "queue")["data"]
    queue = queue_config.parse(tomllib.loads(data["queue.toml"]))
    (tmp_path / "device-config.yaml").write_text(data["device-config.yaml"])
    shares = replace(queue.shares, hami_devices=str(tmp_path / "device-config.yaml"))
    nvidia = rules_of(shares, queue.extender).devices.nvidia
    agent = tomllib.loads(of(objects, "ConfigMap", "agent")["data"]["sluice.toml"])["kubelet"]
    assert nvidia.count == "example.com/gpu" == agent["resource_count"]
    assert nvidia.memory == "example.com/mem" == agent["resource_memory"]
    assert nvidia.cores == "nvidia.com/gpucores" == agent["resource_cores"]
    config = yaml.safe_load(of(objects, "ConfigMap", "scheduler")["data"]["config.yaml"])
    managed = {one["name"] for one in config["extenders"][0]["managedResources"]}
    assert {"example.com/gpu", "example.com/mem", "huawei.com/Ascend910X"} <= managed
    assert "nvidia.com/gpu" not in managed
    (container,) = of(objects, "Deployment", "queue")["spec"]["template"]["spec"]["containers"]
    mounted = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert str(Path(queue.shares.hami_devices).parent) in mounted


NODES = '{"nodeconfig": [{"name": "m5", "devicesplitcount": 7}]}'
KUEUE = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
resources:
  transformations:
    - {input: nvidia.com/gpumem, strategy: Replace, outputs: {example.com/credits: "1"}}
"""
FOREIGN = {
    "shares.deviceConfig": DEVICES,
    "shares.nodeConfig": NODES,
    "queue.kueueConfiguration": KUEUE,
}
CONFIG_MAPS = {
    "shares.deviceConfigMap": "hami-scheduler-device",
    "shares.nodeConfigMap": "hami-device-plugin",
    "queue.kueueConfigMap": "kueue-manager-config",
}


def values_file(directory: Path, given: dict[str, str]) -> Path:
    document: dict[str, dict[str, str]] = {}
    for path, value in given.items():
        part, _, key = path.partition(".")
        document.setdefault(part, {})[key] = value
    made = directory / "values.yaml"
    made.write_text(yaml.safe_dump(document))
    return made


def files_of(objects: list[Any], kind: str, component: str) -> dict[str, tuple[str, str]]:
    """Path in the container to the ConfigMap and key that it comes from."""
    spec = of(objects, kind, component)["spec"]["template"]["spec"]
    volumes = {one["name"]: one.get("configMap") for one in spec["volumes"]}
    found = {}
    for container in spec["containers"]:
        for mount in container.get("volumeMounts", ()):
            source = volumes.get(mount["name"])
            for item in (source or {}).get("items", ()):
                found[f"{mount['mountPath']}/{item['path']}"] = (source["name"], item["key"])
    return found


@needs_helm
@pytest.mark.parametrize("by_name", [False, True], ids=["as text", "by the name of a ConfigMap"])
def test_kueues_and_hamis_files_are_taken_as_they_are(tmp_path: Path, by_name: bool) -> None:
    given = values_file(tmp_path, CONFIG_MAPS if by_name else FOREIGN)
    objects = rendered(*SECRETS, "queue.mode=kubernetes", files=(given,))
    data = of(objects, "ConfigMap", "queue")["data"]
    queue = queue_config.parse(tomllib.loads(data["queue.toml"]))
    agent_data = of(objects, "ConfigMap", "agent")["data"]
    agent = tomllib.loads(agent_data["sluice.toml"])["kubelet"]
    mounted = files_of(objects, "Deployment", "queue")
    on_nodes = files_of(objects, "DaemonSet", "agent")
    kueue, devices = queue.kubernetes.kueue_configuration, queue.shares.hami_devices
    assert {kueue, devices} == mounted.keys()
    assert agent["hami"] == list(on_nodes)
    names = {at.rpartition("/")[2]: source for at, (source, _) in (mounted | on_nodes).items()}
    if by_name:
        assert set(names.values()) == set(CONFIG_MAPS.values())
        return
    assert data[mounted[kueue][1]] == KUEUE
    assert yaml.safe_load(data[mounted[devices][1]]) == yaml.safe_load(DEVICES)
    assert agent_data["config.json"].strip() == NODES
    (tmp_path / "sluice.toml").write_text(agent_data["sluice.toml"])
    assert "config.json" in names


@needs_helm
def test_a_file_given_twice_or_without_effect_is_refused(tmp_path: Path) -> None:
    for text, name in zip(FOREIGN, CONFIG_MAPS, strict=True):
        both = values_file(tmp_path, {text: FOREIGN[text], name: CONFIG_MAPS[name]})
        done = template(*SECRETS, "queue.mode=kubernetes", files=(both,))
        assert done.returncode != 0
        assert f"{text} and {name}: set one of them" in done.stderr
    beside = values_file(tmp_path, {"queue.kueueConfigMap": "kueue-manager-config"})
    done = template(*SECRETS, "queue.mode=beside", files=(beside,))
    assert "queue.kueueConfigMap: have no effect beside Kueue" in done.stderr


NODE_TEMPLATES = """\
kind: Node
metadata: {name: large, annotations: {sluice.dev/gpus: '[{"memory": "80Gi"}]'}}
status: {allocatable: {nvidia.com/gpu: "1"}}
"""


@needs_helm
def test_node_templates_are_mounted_and_placeholders_get_their_right(tmp_path: Path) -> None:
    create = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    for requests, extra in (("none", {}), ("pods", {"queue.nodeTemplates": NODE_TEMPLATES})):
        given = values_file(tmp_path, {"queue.nodeRequests": requests, **extra})
        objects = rendered(*SECRETS, "queue.mode=kubernetes", files=(given,))
        data = of(objects, "ConfigMap", "queue")["data"]
        queue = queue_config.parse(tomllib.loads(data["queue.toml"]))
        assert queue.autoscaling.requests == requests
        roles = [one for one in objects if one["kind"] == "Role" and create in one["rules"]]
        assert len(roles) == (requests == "pods")
    templates = queue.autoscaling.templates
    _, key = files_of(objects, "Deployment", "queue")[templates]
    assert data[key] == NODE_TEMPLATES


@needs_helm
def test_requests_for_nodes_without_effect_are_refused(tmp_path: Path) -> None:
    for settings, text in (
        ({"queue.nodeRequests": "pods"}, "queue.nodeTemplates: is missing"),
        ({"queue.nodeRequests": "pods", "queue.mode": "standalone"}, "queue.nodeRequests: is for"),
    ):
        given = values_file(tmp_path, {"queue.mode": "kubernetes", **settings})
        done = template(*SECRETS, files=(given,))
        assert done.returncode != 0
        assert text in done.stderr


@needs_helm
def test_agents_read_hamis_files_in_every_mode(tmp_path: Path) -> None:
    given = values_file(tmp_path, {"shares.nodeConfig": NODES})
    for mode in ("standalone", "beside", "kubernetes"):
        objects = rendered(*SECRETS, f"queue.mode={mode}", files=(given,))
        on_nodes = files_of(objects, "DaemonSet", "agent")
        text = of(objects, "ConfigMap", "agent")["data"]["sluice.toml"]
        assert tomllib.loads(text)["kubelet"]["hami"] == list(on_nodes)
        assert len(on_nodes) == 1


@needs_helm
def test_the_scheduler_shows_what_the_queue_lets_ask() -> None:
    values = ("queue.mode=kubernetes", "agent.resourceNames.memory=example.com/mem")
    objects = rendered(*SECRETS, *values, "scheduler.callers={default-scheduler}")
    text = of(objects, "ConfigMap", "queue")["data"]["queue.toml"]
    queue = queue_config.parse(tomllib.loads(text))
    assert queue.extender.callers == "s-queue,default-scheduler"
    config = yaml.safe_load(of(objects, "ConfigMap", "scheduler")["data"]["config.yaml"])
    (extender,) = config["extenders"]
    managed = {one["name"] for one in extender["managedResources"]}
    names = queue.extender
    own = {
        names.resource_count,
        "example.com/mem",
        names.resource_memory_percentage,
        names.resource_cores,
        "nvidia.com/priority",
    }
    assert managed == own | {one for row in ROWS for one in row.resources}
    assert queue.shares.scheduler == "sluice-scheduler"
    assert queue.shares.served_schedulers == ("sluice-scheduler", "hami-scheduler")
    assert names.resource_memory == "example.com/mem"
    service = of(objects, "Service", "sluice-queue-webhooks")["metadata"]
    address = f"https://{service['name']}.{service['namespace']}.svc/scheduler"
    assert extender["urlPrefix"] == address
    assert [one["schedulerName"] for one in config["profiles"]] == [
        "sluice-scheduler",
        "hami-scheduler",
    ]
    deployment = of(objects, "Deployment", "scheduler")["spec"]["template"]["spec"]
    mounted = {one["name"]: one for one in deployment["volumes"]}
    assert mounted["tls"]["secret"]["secretName"] == "q"
    assert deployment["containers"][0]["image"].endswith("kube-scheduler:v1.31.0")
    (container,) = of(objects, "Deployment", "queue")["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert container["command"][-1] == f"extender.own_address=$(POD_IP):{ports['webhooks']}"
    more = (
        "scheduler.vendors=false",
        "scheduler.managedResources={a.com/b}",
        "shares.takeOver=false",
    )
    other = rendered(*SECRETS, *values, *more)
    config = yaml.safe_load(of(other, "ConfigMap", "scheduler")["data"]["config.yaml"])
    (extender,) = config["extenders"]
    assert {one["name"] for one in extender["managedResources"]} == own | {"a.com/b"}
    text = of(other, "ConfigMap", "queue")["data"]["queue.toml"]
    assert queue_config.parse(tomllib.loads(text)).shares.scheduler == ""
    without = rendered(*SECRETS, "queue.mode=kubernetes", "scheduler.enabled=false")
    text = of(without, "ConfigMap", "queue")["data"]["queue.toml"]
    assert queue_config.parse(tomllib.loads(text)).extender.callers == ""
    assert not [one for one in without if one["metadata"]["name"].endswith("-scheduler")]


@needs_helm
def test_a_scheduler_beside_the_queue_asks_over_the_pods_loopback() -> None:
    more = ("scheduler.besideQueue=true", "scheduler.answers=best")
    objects = rendered(*SECRETS, "queue.mode=kubernetes", *more)
    text = of(objects, "ConfigMap", "queue")["data"]["queue.toml"]
    queue = queue_config.parse(tomllib.loads(text))
    config = yaml.safe_load(of(objects, "ConfigMap", "scheduler")["data"]["config.yaml"])
    (extender,) = config["extenders"]
    assert extender["urlPrefix"] == f"http://{queue.extender.listen}/scheduler"
    assert "tlsConfig" not in extender
    assert "enableHTTPS" not in extender
    assert queue.extender.answers == "best"
    assert config["leaderElection"]["leaderElect"], "one for each replica"
    pod = of(objects, "Deployment", "queue")["spec"]["template"]["spec"]
    first, second = pod["containers"]
    assert (first["name"], second["name"]) == ("queue", "scheduler")
    volumes = {one["name"] for one in pod["volumes"]}
    assert {one["name"] for each in (first, second) for one in each["volumeMounts"]} <= volumes
    assert "readinessProbe" not in second
    with_names = [one for one in objects if one["metadata"]["name"].endswith("-scheduler")]
    assert not [one for one in with_names if one["kind"] in ("Deployment", "ServiceAccount")]
    subjects = [
        one["subjects"] for one in objects if "-scheduler" in one.get("roleRef", {}).get("name", "")
    ]
    assert subjects
    assert {each["name"] for one in subjects for each in one} == {pod["serviceAccountName"]}


@needs_helm
def test_a_replica_reaches_the_one_that_leads() -> None:
    objects = rendered(*SECRETS, "queue.mode=kubernetes", "queue.replicas=2")
    policy = of(objects, "NetworkPolicy", "queue")["spec"]
    own = policy["podSelector"]["matchLabels"]
    (container,) = of(objects, "Deployment", "queue")["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert {
        "to": [{"podSelector": {"matchLabels": own}}],
        "ports": [{"protocol": "TCP", "port": ports["webhooks"]}],
    } in policy["egress"]


def _queue_tokens(daemon_set: dict[str, Any]) -> list[dict[str, Any]]:
    volumes = daemon_set["spec"]["template"]["spec"]["volumes"]
    sources = [one for volume in volumes for one in volume.get("projected", {}).get("sources", ())]
    return [one["serviceAccountToken"] for one in sources if "serviceAccountToken" in one]


@needs_helm
def test_kueues_definitions_ask_the_release_and_outlive_it() -> None:
    found = [
        one
        for one in rendered(*SECRETS, "queue.mode=kubernetes")
        if one["kind"] == "CustomResourceDefinition"
    ]
    assert len(found) == 13
    converted = [one for one in found if len(one["spec"]["versions"]) > 1]
    assert len(converted) == 11
    for one in converted:
        service = one["spec"]["conversion"]["webhook"]["clientConfig"]["service"]
        assert (service["namespace"], service["name"]) == ("gpu", "sluice-queue-webhooks")
    for one in found:
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    none = rendered(*SECRETS, "queue.mode=kubernetes", "queue.crds=false")
    assert not [one for one in none if one["kind"] == "CustomResourceDefinition"]


@needs_helm
def test_no_pod_has_two_containers_of_one_name() -> None:
    """An API server refuses such a pod, and the schemas cannot express the rule."""
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
    validate = kubernetes_validate()
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


@needs_helm
@pytest.mark.parametrize("door", ["device-plugin", "dra"])
@pytest.mark.parametrize("kubernetes", ["1.28", "1.31", "1.34"])
def test_what_an_agent_may_write_of_claims_is_kept_to_its_own_node(
    door: str, kubernetes: str
) -> None:
    """The policy was made with door dra only, and the rights always."""
    objects = rendered(*SECRETS, f"agent.door={door}", kubernetes=kubernetes)
    (role,) = [
        one
        for one in objects
        if one["kind"] == "ClusterRole" and one["metadata"]["name"].endswith("-agent")
    ]
    writes = {
        resource
        for rule in role["rules"]
        for resource in rule["resources"]
        if {"create", "update", "patch", "delete"} & set(rule["verbs"])
    }
    guarded = {
        resource
        for one in objects
        if one["kind"] == "ValidatingAdmissionPolicy"
        and "agent" in json.dumps(one["spec"]["matchConditions"])
        for rule in one["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    assert writes == {"events", "nodes/status", "resourceclaims/status", "resourceslices"}
    assert guarded == (set() if kubernetes == "1.28" else writes - {"events"})
    bound = {
        one["spec"]["policyName"]
        for one in objects
        if one["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    policies = {
        one["metadata"]["name"] for one in objects if one["kind"] == "ValidatingAdmissionPolicy"
    }
    assert bound == policies


@needs_helm
@pytest.mark.parametrize("kubernetes", ["1.28", "1.31", "1.34"])
def test_the_controllers_token_registers_nothing_new_and_has_policies(kubernetes: str) -> None:
    """It created any webhook, and wrote any field of nodes, pods and definitions. APIServices are created by each leader, within a policy."""
    objects = rendered(*SECRETS, "queue.mode=kubernetes", kubernetes=kubernetes)
    role = of(objects, "ClusterRole", "-queue")
    made = {resource for _, resource, verbs in rights(role) if "create" in verbs.split(",")}
    assert not made & {"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
    assert "customresourcedefinitions" not in made
    written = {
        resource
        for _, resource, verbs in rights(role)
        if {"patch", "update", "delete"} & set(verbs.split(","))
        and resource.partition("/")[2] != "finalizers"
    }
    policies = [
        one
        for one in objects
        if one["kind"] == "ValidatingAdmissionPolicy"
        and "s-queue" in json.dumps(one["spec"]["matchConditions"])
    ]
    guarded = {
        resource
        for one in policies
        for rule in one["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    if kubernetes == "1.28":
        assert not policies
        return
    free = {one for one in written - guarded if not one.endswith("/status")}
    assert free == {
        "admissionchecks",
        "clusterqueues",
        "podtemplates",
        "provisioningrequests",
        "resourceflavors",
        "topologies",
        "workloads",
    }
    assert "pods/status" in guarded


@needs_helm
def test_a_certificate_of_cert_manager_has_the_schedulers_role() -> None:
    objects = rendered("queue.certManager.issuer=i", "queue.mode=kubernetes", *SECRETS[1:])
    (certificate,) = [one for one in objects if one["kind"] == "Certificate"]
    assert certificate["spec"]["uris"] == ["sluice:scheduler:s-queue"]


@needs_helm
def test_only_the_named_kubeconfigs_of_workers_can_be_read() -> None:
    given = (*SECRETS, "queue.mode=kubernetes")
    rules = yaml.safe_load((CHART / "files" / "queue-rules.yaml").read_text())["namespace"]
    assert of(rendered(*given), "Role", "s-queue")["rules"] == rules
    wanted = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    found = of(rendered(*given, "queue.multiKueue.secrets={west,east}"), "Role", "s-queue")
    assert found["rules"] == [*rules, {**wanted, "resourceNames": ["west", "east"]}]
    beside = (*SECRETS, "queue.mode=beside", "queue.multiKueue.secrets={west}")
    assert "secrets" not in str(of(rendered(*beside), "Role", "s-queue")["rules"])
