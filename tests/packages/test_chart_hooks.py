"""The chart before an uninstall and in `helm test`, and what its parts may do and where they come from; needs helm."""

from __future__ import annotations

from tests.kit.places import REPO
from tests.packages.chart import (
    CHART,
    helm,
    hooks,
    needs_helm,
    of,
    rendered,
    rights,
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
    policy = of(objects, "ValidatingAdmissionPolicy", "own-node")["spec"]
    account = of(objects, "ServiceAccount", "agent")["metadata"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert user in policy["matchConditions"][0]["expression"]
    assert policy["failurePolicy"] == "Fail"
    bound = of(objects, "ValidatingAdmissionPolicyBinding", "own-node")["spec"]
    assert (
        bound["policyName"]
        == of(objects, "ValidatingAdmissionPolicy", "own-node")["metadata"]["name"]
    )
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
