"""Cases as data: YAML in, verdicts and runs out. data/README.md describes the notation."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from queuecontroller.frameworks import framework_of
from queuecontroller.frameworks.patches import merged
from queuecontroller.kueueapi import GROUP, KINDS
from tests.kit.places import REPO
from tests.queue.frameworks.samples import QUEUE, SAMPLES, sample

DATA: Final = Path(__file__).resolve().parent / "data"
EXPLANATIONS: Final = REPO / "docs" / "queue" / "kueue-api.md"
OK, NO = "takes", "refuses"
Document = dict[str, Any]


class BadCase(ValueError):
    """A case that cannot be read, with its place."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    explained: str = ""
    """Text of the line in EXPLANATIONS that says why Sluice differs on purpose."""
    known: str = ""
    """Finding for which the case differs until it is mended."""


@dataclass(frozen=True, slots=True)
class VerdictCase(Case):
    document: Document = field(default_factory=dict)
    """The object; for an update, the one that is stored."""
    change: Document = field(default_factory=dict)
    """Values by path that are written."""
    is_update: bool = False
    subresource: str = ""
    is_accepted: bool = True
    names: str = ""
    """Text that the refusal contains."""
    code: int = 0
    stored: Document = field(default_factory=dict)
    """Values by path of the accepted object."""


@dataclass(frozen=True, slots=True)
class RunCase(Case):
    given: Document = field(default_factory=dict)
    steps: tuple[Document, ...] = ()
    configuration: str = ""
    """Kueue's Configuration in JSON, without kind and version; "": none."""
    since: int = 0
    """Minor of the first Kubernetes that has what it needs."""


@dataclass(frozen=True, slots=True)
class Cases:
    around: list[Document]
    """Objects that exist before any verdict."""
    verdicts: list[VerdictCase]
    runs: list[RunCase]


def read(paths: Iterable[Path]) -> Cases:
    """Read the cases of the files. Raises BadCase, OSError, yaml.YAMLError."""
    cases = Cases([], [], [])
    for path in paths:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        bases = {name: _sample(name) for name in SAMPLES}
        bases |= {name: _whole(one) for name, one in (content.get("bases") or {}).items()}
        cases.around.extend(_whole(one) for one in content.get("around") or ())
        for group in content.get("verdicts") or ():
            cases.verdicts.extend(_verdicts(bases, group))
        for one in content.get("runs") or ():
            cases.runs.extend(_runs(one))
    every: list[Case] = [*cases.verdicts, *cases.runs]
    twice = {one.name for one in every if sum(one.name == other.name for other in every) > 1}
    if twice:
        raise BadCase(f"two cases of one name: {sorted(twice)[:5]}")
    text = " ".join(EXPLANATIONS.read_text(encoding="utf-8").split())
    for case in every:
        if case.explained and case.explained not in text:
            raise BadCase(f"{case.name}: {EXPLANATIONS.name} has no text {case.explained!r}")
    return cases


def _whole(document: Mapping[str, Any]) -> Document:
    """Fill in what every object has: version, name and namespace."""
    made = copy.deepcopy(dict(document))
    kind = KINDS.get(made["kind"])
    made.setdefault("apiVersion", f"{GROUP}/v1beta2")
    made.setdefault("metadata", {}).setdefault("name", "sample")
    if made["kind"] != "Namespace" and (kind is None or kind.namespaced):
        made["metadata"].setdefault("namespace", "default")
    return made


def _sample(name: str) -> Document:
    """A queued job of that framework that Kueue takes."""
    made = sample(name)
    made["metadata"] = {"name": "sample", "namespace": "default", "labels": {QUEUE: "q"}}
    if made["kind"] == "RayJob":
        made["spec"]["shutdownAfterJobFinishes"] = True
    if made["kind"] == "RayService":
        made["spec"]["upgradeStrategy"] = {"type": "None"}
    return made


_GROUP_KEYS: Final = {"of", "with", "before", "part", "rows", "from", "explained", "known", "code"}
_ROW_KEYS: Final = {
    *("set", "do", OK, NO, "field", "code", "stores"),
    *("with", "before", "part", "explained", "known", "from"),
}


def _verdicts(bases: Mapping[str, Document], group: Mapping[str, Any]) -> Iterator[VerdictCase]:
    _only(group, _GROUP_KEYS)
    if isinstance(group["of"], list):
        for one in group["of"]:
            yield from _verdicts(bases, {**group, "of": one})
        return
    for row in group["rows"]:
        _only(row, _ROW_KEYS)
        merge = {**group, **row}
        document = bases[group["of"]]
        for changes in (group.get("with"), row.get("with"), group.get("before"), row.get("before")):
            document = changed(document, changes or {})
        is_update = "before" in merge
        for answer in (OK, NO):
            for value in _values(row, answer):
                change = {row["set"]: value} if "set" in row else dict(row.get("do") or {})
                if "set" not in row and isinstance(value, Mapping):
                    change |= value
                before = {**(group.get("before") or {}), **(row.get("before") or {})}
                yield VerdictCase(
                    _name(group["of"], {**(group.get("with") or {}), **(row.get("with") or {})}, before if is_update else None, change, answer),
                    merge.get("explained", ""),
                    str(merge.get("known", "")),
                    document,
                    change,
                    is_update,
                    merge.get("part", ""),
                    answer == OK,
                    merge.get("field", "") if answer == NO else "",
                    merge.get("code", 0) if answer == NO else 0,
                    merge.get("stores") or {} if answer == OK else {},
                )  # fmt: skip


def _values(row: Mapping[str, Any], answer: str) -> list[Any]:
    if answer not in row:
        return []
    found = row[answer]
    if "set" not in row and not isinstance(found, list):
        return [found]
    if not isinstance(found, list):
        raise BadCase(f"{row}: {answer} is not a list")
    return found


def _name(
    base: str, given: Document, before: Document | None, change: Document, answer: str
) -> str:
    words = [base]
    words += [_short(given)] if given else []
    words += [f"after {_short(before)}" if before else "changed"] if before is not None else []
    return f"{' '.join(words)}: {_short(change) or 'as it is'} -> {answer}"


def _short(values: Document) -> str:
    return ", ".join(
        f"{path.removeprefix('spec.')}={json.dumps(value, separators=(',', ':'))}"
        for path, value in values.items()
    )


_RUN_KEYS: Final = {
    *("run", "each", "given", "steps", "configuration", "since"),
    *("explained", "known", "from"),
}


def _runs(one: Mapping[str, Any]) -> Iterator[RunCase]:
    _only(one, _RUN_KEYS)
    every: Iterable[Mapping[str, Any]] = one.get("each") or ({},)
    for values in every:
        name = one["run"]
        if values:
            name += f" [{', '.join(f'{key}={value}' for key, value in values.items())}]"
        configuration = one.get("configuration")
        yield RunCase(
            name,
            one.get("explained", ""),
            str(one.get("known", "")),
            _filled(one["given"], values),
            tuple(_filled(one["steps"], values)),
            json.dumps(configuration, sort_keys=True) if configuration else "",
            int(one.get("since", 0)),
        )


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Replace `$name` by the value of that name, also as a key."""
    if isinstance(value, Mapping):
        return {_filled(key, values): _filled(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, values) for one in value]
    if isinstance(value, str) and value.startswith("$"):
        return copy.deepcopy(values[value[1:]])
    return value


def _only(found: Mapping[str, Any], known: set[str]) -> None:
    if other := set(found) - known:
        raise BadCase(f"{found}: unknown: {sorted(other)}")


def changed(document: Mapping[str, Any], changes: Mapping[str, Any]) -> Document:
    """Return the document with the values at their paths: a mapping is merged, None removes."""
    made = copy.deepcopy(dict(document))
    for path, value in changes.items():
        if path == "suspended":
            _suspend(made, value)
            continue
        if path == "templates":
            _annotate(made, value)
            continue
        at: Any = made
        steps = [int(one) if one.isdigit() else one for one in path.split(".")]
        for index, step in enumerate(steps[:-1]):
            if isinstance(at, list):
                at = at[int(step)]
            else:
                if at.get(step) is None:
                    at[step] = [] if isinstance(steps[index + 1], int) else {}
                at = at[step]
        last: Any = steps[-1]
        if isinstance(at, list) and last == len(at):
            at.append(None)
        known = at[last] if isinstance(at, list) else at.get(last)
        if value is None and (isinstance(at, list) or last in at):
            del at[last]
        elif value is not None:
            merge = isinstance(value, Mapping) and isinstance(known, Mapping) and value
            at[last] = merged(known, value) if merge else copy.deepcopy(value)
    return made


def _suspend(document: Document, value: bool) -> None:
    """Set the field by which this kind of job is held."""
    fw = framework_of(document)
    assert fw is not None
    at: Any = document
    for step in fw.suspend[:-1]:
        at = at.setdefault(step, {})
    at[fw.suspend[-1]] = value


def _annotate(value: Any, annotations: Mapping[str, Any]) -> None:
    """Write annotations on every pod template of a job."""
    if isinstance(value, list):
        for one in value:
            _annotate(one, annotations)
    elif isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            head = value.setdefault("metadata", {})
            head["annotations"] = {**(head.get("annotations") or {}), **annotations}
            return
        for one in value.values():
            _annotate(one, annotations)


def value_at(document: Any, path: str) -> Any:
    """Return the value at the path; None if there is none. `a/b` in a step stands for a key with
    dots, which is the rest of the path."""
    at = document
    steps = path.split(".")
    for index, step in enumerate(steps):
        if isinstance(at, list):
            at = at[int(step)] if step.isdigit() and int(step) < len(at) else None
        elif isinstance(at, Mapping):
            rest = ".".join(steps[index:])
            if rest in at:
                return at[rest]
            at = at.get(step)
        else:
            return None
    return at
