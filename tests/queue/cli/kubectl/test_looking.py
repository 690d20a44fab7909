"""`kubectl sluice web` and `top`: which runs of kubectl they are, and what is made of the answers."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.cli.kubectl.looking import Refused, top, top_lines, web
from queuecontroller.cli.kubectl.plan import LEASE, Usage, looking
from queuecontroller.cluster import controller


class Scripted:
    """A kubectl with fixed answers, which keeps its arguments."""

    def __init__(self, services: list[tuple[str, str]], leader: str | None = None) -> None:
        self.items = [{"metadata": {"namespace": n, "name": name}} for n, name in services]
        self.leader = leader
        self.queues: list[dict[str, Any]] = []
        self.told: list[tuple[str, ...]] = []

    def read(self, *words: str) -> Any:
        self.told.append(words)
        return {"items": self.items if words[1] == "services" else self.queues}

    def ask(self, *words: str) -> str | None:
        self.told.append(words)
        if words[:3] == ("get", "lease", "sluice-queue"):
            return self.leader
        return "http://127.0.0.1:9467/#ticket=abc\n"

    def become(self, *words: str) -> int:
        self.told.append(words)
        return 0


def opened(kubectl: Scripted, words: str = "web") -> int:
    found = looking(words.split())
    assert found is not None
    return web(kubectl, *found)


def test_the_lease_is_the_controllers() -> None:
    assert LEASE == controller.LEASE


def test_the_port_leads_to_the_replica_that_leads(capsys: pytest.CaptureFixture[str]) -> None:
    kubectl = Scripted([("gpu", "s-queue")], "s-queue-7f_c0ffee")
    assert opened(kubectl, "web --context there") == 0
    assert kubectl.told[0][:3] == ("get", "services", "--all-namespaces")
    assert kubectl.told[-1] == (
        *("port-forward", "pod/s-queue-7f", "-n", "gpu", "9467"),
        *("--context", "there"),
    )
    assert "kubectl create token" in capsys.readouterr().out


def test_of_a_service_of_its_own_the_pod_gives_the_url(capsys: pytest.CaptureFixture[str]) -> None:
    kubectl = Scripted([("gpu", "s-queue")])
    assert opened(kubectl, "web -n gpu --port 9999") == 0
    assert kubectl.told[0][2:4] == ("-n", "gpu")
    assert kubectl.told[-2][:2] == ("exec", "deploy/s-queue")
    assert kubectl.told[-1] == ("port-forward", "deploy/s-queue", "-n", "gpu", "9999")
    assert capsys.readouterr().out == "http://127.0.0.1:9467/#ticket=abc\n"


@pytest.mark.parametrize(
    ("services", "said"),
    [
        ([], "no Service of a queue"),
        ([("a", "x"), ("b", "y")], "more than one queue controller: a/x, b/y"),
    ],
)
def test_which_one_is_meant_must_be_clear(services: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(Usage, match=said):
        opened(Scripted(services))


@pytest.mark.parametrize("words", ["web x", "web --port 0", "web --port x", "top --interval 0"])
def test_odd_words_are_refused(words: str) -> None:
    with pytest.raises(Usage):
        looking(words.split())


def queue(name: str, used: str, nominal: str, pending: int = 0) -> dict[str, Any]:
    quota = {"name": "cpu", "nominalQuota": nominal}
    return {
        "metadata": {"name": name},
        "spec": {"resourceGroups": [{"flavors": [{"name": "f", "resources": [quota]}]}]},
        "status": {
            "pendingWorkloads": pending,
            "flavorsUsage": [{"name": "f", "resources": [{"name": "cpu", "total": used}]}],
        },
    }


def test_top_shows_load_round_by_round_and_forgets_what_is_gone() -> None:
    kubectl = Scripted([])
    kubectl.queues = [queue("a", "500m", "1"), queue("b", "0", "0", pending=3)]
    rounds: list[float] = []
    found = looking(["top", "--rounds", "2", "--interval", "7"])
    assert found is not None
    assert top(kubectl, *found, rounds.append) == 0
    assert rounds == [7.0]
    loads: Any = {}
    top_lines(kubectl.queues, loads)
    lines = top_lines(kubectl.queues, loads)
    assert [line.split()[0] for line in lines[1:]] == ["b", "a"], "the longest line first"
    assert lines[2].split()[-2:] == ["50%", "▅▅"]
    assert "-" in lines[1].split(), "of nothing there is no ratio"
    top_lines([queue("a", "1", "auto")], loads)
    assert [key[0] for key in loads] == ["a"]
    assert list(loads["a", "f", "cpu"])[-1] is None
    assert top_lines([], loads) == ["no ClusterQueue"]


def test_a_no_of_kubectls_is_its_status() -> None:
    assert Refused(3).status == 3
