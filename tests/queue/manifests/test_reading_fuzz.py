"""Whatever a file holds: it is read, or every complaint names the file, a line, and what to do.

Texts are made in three ways: from nothing, by putting odd values into the places of good manifests,
and by cutting and mixing good text, which finds what the first two do not come by.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from queuecontroller.cli.lint import lint
from queuecontroller.cli.main import main
from queuecontroller.cli.simulate.run import Player
from queuecontroller.cli.simulate.trace import TraceError, read_trace
from queuecontroller.kueueapi.manifests.documents import Documents, load
from sluicecommon.kubernetes.quantity import (
    MAX_AMOUNT,
    QuantityError,
    format_amount,
    parse_amount,
)
from tests.queue.manifests.texts import CONFIGURATION, GOOD, POD

T = TypeVar("T")

SHARING = """admissionFairSharing:
  usageHalfLifeTime: 168h
  usageSamplingInterval: 5m
  resourceWeights: {cpu: 2.0}
"""
EVERYTHING = (
    GOOD
    + "---"
    + CONFIGURATION.replace("resources:", SHARING + "resources:")
    + POD % "a: 1"
    + """---
kind: Workload
metadata: {name: w, namespace: team-a, annotations: {x: y}, ownerReferences: [{controller: true, uid: u}]}
spec:
  queueName: main
  priority: 3
  active: true
  maximumExecutionTimeSeconds: 60
  podSets:
  - name: main
    count: 2
    minCount: 1
    topologyRequest: {required: rack}
    template:
      spec:
        nodeSelector: {pool: gpu}
        tolerations: [{key: k, operator: Equal, value: v, effect: NoSchedule}]
        affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [gpu]}]}]}}}
        initContainers: [{restartPolicy: Always, resources: {requests: {cpu: 1}}}]
        containers: [{resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 1}}}]
        overhead: {cpu: 250m}
status:
  conditions: [{type: Evicted, status: "True", reason: r, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}]
  admissionChecks: [{name: c, state: Pending}]
  reclaimablePods: [{name: main, count: 1}]
  requeueState: {count: 1, requeueAt: "2026-01-01T00:00:00Z"}
---
kind: Cohort
metadata: {name: c}
spec: {parentName: d, fairSharing: {weight: 2}}
---
kind: Topology
metadata: {name: t}
spec: {levels: [{nodeLabel: rack}]}
---
kind: LimitRange
metadata: {name: l, namespace: team-a}
spec: {limits: [{type: Container, max: {cpu: 4}, min: {cpu: 1m}}]}
---
kind: WorkloadPriorityClass
metadata: {name: p}
value: 5
---
kind: PriorityClass
metadata: {name: p}
value: 5
globalDefault: true
---
kind: Deployment
metadata: {name: d, namespace: team-a, labels: {kueue.x-k8s.io/queue-name: main}}
spec: {replicas: 2, template: {spec: {containers: [{resources: {requests: {nvidia.com/gpu: 1}}}]}}}
---
kind: List
items:
- kind: Job
  metadata: {name: k, namespace: team-a, labels: {kueue.x-k8s.io/queue-name: main}, annotations: {kueue.x-k8s.io/job-min-parallelism: "1"}}
  spec: {parallelism: 2, completions: 4, template: {spec: {containers: [{resources: {requests: {nvidia.com/gpu: 1}}}]}}}
"""
)
BODIES = [one for one in yaml.safe_load_all(EVERYTHING) if one]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["", "auto", "-1", "1e999", "List", "default", "a/b", "\ufeff", "٣", "9" * 5000]
    )
)
ODD = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in pairs:
        found += places(item, (*path, key))
    return found


def told(found: Documents, files: set[str]) -> None:
    """Each problem says where, and what to write instead."""
    for one in found.problems:
        text = str(one)
        assert re.match(rf"({'|'.join(map(re.escape, files))})(:[1-9]\d*)?: ", text), text
        assert one.line > 0, text
        assert one.message, text
        assert one.fix, text
        assert len(text) < 1000, "a value is shown, not the whole of it"


def read_and_play(text: str) -> Documents:
    found = load({"x.yaml": text})
    told(found, {"x.yaml"})
    for finding in lint({"x.yaml": text}):
        assert finding.file == "x.yaml" or not finding.file
        assert finding.text
        assert finding.fix
        assert finding.object
    if not found.problems:
        player = Player(found)
        player.run()
        json.dumps(player.report())
    return found


SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def test_the_manifests_that_are_bent_are_good() -> None:
    found = read_and_play(EVERYTHING)
    assert found.problems == []
    assert len(found.workloads) == 6


@SLOW
@given(st.data())
def test_an_odd_value_anywhere_is_read_or_told(data: st.DataObject) -> None:
    bodies = deepcopy(BODIES)
    for _ in range(data.draw(st.integers(1, 3))):
        body = data.draw(st.sampled_from(bodies))
        if not isinstance(body, dict) or not places(body):
            continue
        *way, last = data.draw(st.sampled_from(places(body)))
        at = body
        for key in way:
            at = at[key]
        what = data.draw(st.sampled_from(["put", "drop", "rename"]))
        if what == "drop":
            del at[last]
        elif what == "rename" and isinstance(at, dict):
            at[data.draw(SCALARS)] = at.pop(last)
        else:
            at[last] = data.draw(ODD)
    read_and_play(yaml.safe_dump_all(bodies, allow_unicode=True))


@SLOW
@given(st.data())
def test_cut_and_mixed_text_is_read_or_told(data: st.DataObject) -> None:
    lines = EVERYTHING.splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        column = data.draw(st.integers(0, len(line)))
        more = data.draw(st.sampled_from(["", " ", "- ", "{", "}", "[", ": ", "&a ", "*a", "!!int ", "\t", "'", "---\n", "\0", "\ufffe", "0x_", "2001-99-99", "? "]))  # fmt: skip
        lines[at] = line[:column] + more + line[column + data.draw(st.integers(0, 5)) :]
        if data.draw(st.booleans()):
            lines.insert(data.draw(st.integers(0, len(lines))), lines[at])
    read_and_play("\n".join(lines))


@SLOW
@given(st.text(max_size=60) | st.text(alphabet="{}[]:,-&*!|>'\"#%@ \nabk1", max_size=60))
@example("a: " + "[" * 5000)
@example("[" * 40 + "]" * 40)
@example("a: &a [*a]")
@example("? {a: b}\n: c")
@example("a: !!timestamp x")
@example("a: !!float x\n---\nb: !!set {c}")
@example("a: !!python/object:os.system x")
@example("a: 0x" + "f" * 9000)
@example("%YAML 9.9\n---\na")
@example("kind: Pod\nmetadata: {name: [x]}\nitems: 5")
@example("kind: List\nitems:\n- kind: List\n  items: []")
def test_any_text_is_read_or_told(text: str) -> None:
    read_and_play(text)


LINE = {"at_s": 1, "queue": "team-a/main", "requests": {"nvidia.com/gpu": 1}, "count": 1,
        "runs_s": 60, "priority": 0, "name": "job-7"}  # fmt: skip


@SLOW
@given(st.data())
def test_any_trace_is_read_or_its_line_and_field_told(data: st.DataObject) -> None:
    given = dict(LINE)
    for name in data.draw(st.lists(st.sampled_from([*LINE, "other"]), max_size=3)):
        given[name] = data.draw(ODD.filter(lambda one: _is_json(one)))
    line = json.dumps(given)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(line)))
        line = (
            line[:at] + data.draw(st.text(max_size=3)) + line[at + data.draw(st.integers(0, 3)) :]
        )
    check_trace(line)


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


@SLOW
@given(st.text(max_size=80))
@example("[" * 100_000)
@example('{"at_s":' + "9" * 5000 + "}")
def test_any_text_is_a_trace_or_told(text: str) -> None:
    check_trace(text)


def tried(read: Callable[[], T], refusal: type[Exception]) -> tuple[T | None, str]:
    """The value that was read, or the text of the refusal."""
    try:
        return read(), ""
    except refusal as error:
        return None, str(error)


def check_trace(text: str) -> None:
    found, said = tried(lambda: read_trace("# a remark\n" + text), TraceError)
    if found is None:
        assert re.match(r"line \d+: .+", said)
        assert len(said) < 500
        return
    player = Player(load({"x.yaml": GOOD}), found)
    player.run()
    report = player.report()
    assert report["ended_s"] >= 0
    for amounts in report["used"].values():
        assert all(isinstance(one, str) or one >= 0 for one in amounts.values())


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?", re.ASCII)
UNITS = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": 10**3}
UNITS |= {one: 10 ** (3 * n) for n, one in enumerate("MGTPE", 2)}
UNITS |= {f"{one}i": 1 << (10 * n) for n, one in enumerate("KMGTPE", 1)}


@settings(max_examples=400)
@given(
    st.sampled_from(["cpu", "memory", "pods"]),
    SCALARS
    | st.from_regex(
        r"[+-]?\d{0,25}\.?\d{0,25}([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?", fullmatch=True
    ),
)
@example("cpu", "9" * 300)
@example("memory", "1e-999")
@example("memory", float("nan"))
def test_a_quantity_is_exact_or_refused(resource: str, quantity: object) -> None:
    amount, said = tried(lambda: parse_amount(resource, quantity), QuantityError)
    if amount is None:
        assert 0 < len(said) < 200
        text = str(quantity).strip()
        assert isinstance(quantity, bool | None) or len(text) > 256 or not NUMBER.fullmatch(text)
        return
    match = re.fullmatch(r"([+-]?[\d.]+)(.*)", str(quantity).strip())
    assert match is not None
    unit = match[2]
    factor = Fraction(UNITS[unit]) if unit in UNITS else Fraction(10) ** int(unit[1:] or 0)
    exact = Fraction(match[1]) * factor * (1000 if resource == "cpu" else 1)
    rounded = -(-exact.numerator // exact.denominator)
    assert amount == max(-MAX_AMOUNT, min(MAX_AMOUNT, rounded))
    assert parse_amount(resource, format_amount(resource, amount)) == amount


@pytest.mark.parametrize("verb", ["lint", "simulate", "apply"])
@pytest.mark.parametrize(
    "text", ["kind: [", "a: *b", "kind: List\nitems: [5]", "x: 2001-99-99", "7"]
)
def test_each_verb_tells_it_and_ends_with_a_status(
    verb: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    assert main([verb, "-f", str(file)]) == (1 if verb == "lint" else 2)
    done = capsys.readouterr()
    assert re.search(rf"{re.escape(str(file))}:[12]: ", done.out + done.err)
    assert "fix: " in done.out + done.err
