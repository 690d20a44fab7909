"""Starting and stopping a job, each as one merge patch.

A start adds the fields of the admission to the pod templates, and stores the original values in an
annotation of the job: a stop restores exactly these, also where the Workload has been deleted
meanwhile. A job that another controller started has no annotation; its original values are taken
from its Workload.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.patches import (
    ABSENT,
    Change,
    Document,
    Path,
    at,
    copied,
    difference,
    same,
    text_of,
    wrong,
)
from queuecontroller.frameworks.slots import (
    PATCHED_JOBS,
    RUNTIME_PATCHES,
    Runtime,
    Slot,
    own_runtime_patch,
    slots,
)
from queuecontroller.frameworks.table import Framework, Holding, OfRuntime
from sluicecommon.reader import ManifestError, Problem, shown

_NOTE: Final = ("metadata", "annotations", names.BEFORE_START)
_LONGEST_NOTE: Final = 200_000
"""Characters; Kubernetes allows 262,144 bytes of all annotations together."""
_DEEPEST_PATH: Final = 40


@dataclass(frozen=True, slots=True)
class PodSetInfo:
    """Fields that an admission adds to the pods of one pod set."""

    name: str
    count: int | None = None
    """Number of admitted pods; None: as many as the job states."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    gates: Sequence[str] = ()


def is_suspended(fw: Framework, document: Document) -> bool:
    """True if it is suspended; for a pod, if it is gated. A kind that is never suspended gives
    False."""
    if fw.holding is Holding.GATE:
        gates = at(document, ("spec", "schedulingGates"))
        return isinstance(gates, list) and any(_is_gate(one) for one in gates)
    return bool(fw.suspend) and at(document, fw.suspend) is True


def has_note(document: Document) -> bool:
    """True if original values remain to be restored."""
    return at(document, _NOTE) is not ABSENT


def start_patch(
    fw: Framework, document: Document, infos: Sequence[PodSetInfo], runtime: Runtime = None
) -> dict[str, Any]:
    """The patch that starts a job; empty if it is started. Raises ManifestError. Where a kind
    rejects changes of its pods in the write that unsuspends it, the first patch prepares it and the
    next one, made from the document at that time, unsuspends it."""
    if fw.holding is Holding.PODS:
        return {}
    change = Change(document)
    digest = _digest(infos)
    noted = fw.fixed_at_start and _note(document).get("for") == digest
    dropped = noted and _runtime_patch_was_dropped(document)
    if dropped or not noted:
        _put_back(change, _undo_of(document))
        change.undo.clear()
        if dropped:
            change.put(("spec", "podTemplateOverrides"), [])
        prepared = slots(fw, change.document, runtime)
        _same_pod_sets(fw, prepared, infos)
        _add(change, prepared, {one.name: one for one in infos})
        added = change.undo and fw.holding is Holding.SUSPEND
        if added:
            _annotate(change, {"undo": list(change.undo), "for": digest})
        if fw.fixed_at_start and added:
            return difference(document, change.document)
    _let_run(fw, change)
    return difference(document, change.document)


def stop_patch(
    fw: Framework,
    document: Document,
    originals: Sequence[Mapping[str, Any]] = (),
    runtime: Runtime = None,
) -> dict[str, Any]:
    """The patch that stops a job; empty if it is stopped. `originals` are the pod sets of the
    Workload. Where a kind must have stopped before its pods can be changed, the first patch
    suspends it and the next one, made from the document at that time, restores the original values.
    Raises ManifestError."""
    if fw.holding is not Holding.SUSPEND:
        return {}
    change = Change(document)
    running = not is_suspended(fw, document)
    if running:
        change.put(fw.suspend, True)
    noted = has_note(document)
    undo = _undo_of(document) if noted else _undo_by(fw, change.document, originals, runtime)
    if running and fw.fixed_while_running:
        if undo and not noted:
            _annotate(change, {"undo": undo})
    else:
        _put_back(change, undo)
    return difference(document, change.document)


def before_start(document: Document) -> Document:
    """The document as if it had never been started, except for its suspension."""
    if not has_note(document):
        return document
    change = Change(document)
    _put_back(change, _undo_of(document))
    made: Document = change.document
    return made


def _is_gate(one: object) -> bool:
    return isinstance(one, Mapping) and one.get("name") == names.ADMISSION_GATE


def _is_ours(one: object) -> bool:
    """True for gates that are removed at a start. Kueue removes its topology gate later than the
    other; here an admitted pod has its place."""
    return _is_gate(one) or (isinstance(one, Mapping) and one.get("name") == names.TOPOLOGY_GATE)


def _let_run(fw: Framework, change: Change) -> None:
    if fw.holding is Holding.SUSPEND:
        change.put(fw.suspend, False)
        return
    path: Path = ("spec", "schedulingGates")
    gates = at(change.document, path)
    if isinstance(gates, list):
        rest = [one for one in gates if not _is_ours(one)]
        change.take_back([[list(path), rest] if rest else [list(path)]])


def _same_pod_sets(fw: Framework, found: Sequence[Slot], infos: Sequence[PodSetInfo]) -> None:
    mine, given = [one.name for one in found], [one.name for one in infos]
    if sorted(mine) != sorted(given):
        what = f"the Workload has pod sets {shown(given)}, the {fw.kind} has {shown(mine)}"
        raise wrong((), what, "delete the Workload; it is created again")


def _add(change: Change, found: Sequence[Slot], infos: Mapping[str, PodSetInfo]) -> None:
    problems: list[Problem] = []
    for slot in found:
        info = infos[slot.name]
        if info.count is not None and info.count != slot.count:
            for path in slot.counted:
                change.put(path, info.count)
        if not (
            info.labels or info.annotations or info.node_selector or info.tolerations or info.gates
        ):
            continue
        for path, value in slot.first:
            if at(change.document, path) is ABSENT:
                change.put(path, copied(value))
        problems += _add_texts(change, slot.places.labels, info.labels)
        problems += _add_texts(change, slot.places.annotations, info.annotations)
        problems += _add_texts(change, slot.places.node_selector, info.node_selector)
        _append(change, slot.places.tolerations, info.tolerations)
        if slot.places.gates:
            _append(change, slot.places.gates, [{"name": one} for one in info.gates])
    if problems:
        raise ManifestError(problems)


def _add_texts(change: Change, path: Path, more: Mapping[str, str]) -> Iterator[Problem]:
    for name, value in more.items():
        known = at(change.document, (*path, name))
        if known is ABSENT:
            change.put((*path, name), value)
        elif known != value:
            what = f"is {shown(known)} already, and admission gives it {shown(value)}"
            yield Problem(text_of((*path, name)), what, "take it out of the job")


def _append(change: Change, path: Path, more: Iterable[Mapping[str, Any]]) -> None:
    known = at(change.document, path)
    if known is ABSENT or known is None:
        known = []
    if not isinstance(known, list):
        raise wrong(path, f"expected a list, got {shown(known)}", "write a list")
    wanted = list(known)
    for one in more:
        if not any(same(one, other) for other in wanted):
            wanted.append(dict(one))
    if len(wanted) > len(known):
        change.put(path, wanted)


def _annotate(change: Change, note: dict[str, Any]) -> None:
    annotations = at(change.document, _NOTE[:2])
    if annotations is ABSENT:
        note = {**note, "bare": True}
    text = json.dumps(note, separators=(",", ":"), sort_keys=True)
    if len(text) > _LONGEST_NOTE:
        what = f"what a start changes takes {len(text)} characters to note"
        raise wrong(_NOTE[:2], what, f"keep it below {_LONGEST_NOTE}: make tolerations fewer")
    change.put(_NOTE, text)


def _put_back(change: Change, undo: Sequence[Sequence[Any]]) -> None:
    bare = _note(change.document).get("bare") is True
    annotations = change.own(_NOTE[:2])
    if isinstance(annotations, dict):
        annotations.pop(names.BEFORE_START, None)
        if bare and not annotations:
            change.own(_NOTE[:1]).pop("annotations")
    change.take_back(undo)


def _note(document: Document) -> Mapping[str, Any]:
    text = at(document, _NOTE)
    if not isinstance(text, str) or len(text) > 2 * _LONGEST_NOTE:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _undo_of(document: Document) -> list[list[Any]]:
    """The valid part of the annotation, which any user may have written."""
    found = _noted_undo(document)
    lengths = [len(path) for path, *_ in found if _is_of_runtime_patches(path)]
    if not lengths:
        return found
    rest = [one for one in found if not _is_of_runtime_patches(one[0])]
    return [*rest, *_undo_runtime_patch(document, was_there=min(lengths) > 3)]


def _noted_undo(document: Document) -> list[list[Any]]:
    undo = _note(document).get("undo")
    return [one for one in undo if _is_undo(one)] if isinstance(undo, list) else []


def _is_of_runtime_patches(path: Sequence[str | int]) -> bool:
    return tuple(path[:2]) == RUNTIME_PATCHES


def _runtime_patch_was_dropped(document: Document) -> bool:
    """True if the API server did not store what was written to a TrainJob's runtimePatches, a field
    that Trainer has since 2.2: before it had podTemplateOverrides."""
    written = any(_is_of_runtime_patches(path) for path, *_ in _noted_undo(document))
    return written and at(document, RUNTIME_PATCHES) is ABSENT


def _undo_runtime_patch(document: Document, was_there: bool) -> Iterator[list[Any]]:
    """Remove what was written to a TrainJob's entry of runtimePatches, wherever it is in the list
    by now: other managers add and remove theirs. `was_there`: the entry was there before."""
    patches = at(document, RUNTIME_PATCHES)
    mine = own_runtime_patch(patches)
    if mine is None:
        return
    if was_there:
        yield [[*RUNTIME_PATCHES, mine, *PATCHED_JOBS]]
    elif len(patches) == 1:
        yield [[*RUNTIME_PATCHES]]
    else:
        yield [[*RUNTIME_PATCHES, mine]]


def _is_undo(one: object) -> bool:
    if not isinstance(one, list) or len(one) not in (1, 2) or not isinstance(one[0], list):
        return False
    path = one[0]
    steps = all(isinstance(step, str) or (type(step) is int and step >= 0) for step in path)
    return steps and 2 <= len(path) <= _DEEPEST_PATH and path[0] == "spec"


def _undo_by(
    fw: Framework, document: Document, originals: Sequence[Mapping[str, Any]], runtime: Runtime
) -> list[list[Any]]:
    """Changes that restore the pod sets of the Workload in the slots."""
    if isinstance(fw.pods, OfRuntime):
        return list(_undo_runtime_patch(document, was_there=True))
    if not originals:
        return []
    by_name = {str(one.get("name", "main")): one for one in originals}
    undo: list[list[Any]] = []
    for slot in slots(fw, document, runtime):
        original = by_name.get(slot.name)
        if original is None:
            continue
        count = original.get("count", 1)
        if slot.counted and type(count) is int and count != slot.count:
            undo += [[list(path), count] for path in slot.counted]
        if slot.of_template:
            undo += _undo_places(document, slot, original.get("template"))
    return undo


_BELOW: Final[tuple[Path, ...]] = (
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("spec", "nodeSelector"),
    ("spec", "tolerations"),
    ("spec", "schedulingGates"),
)
"""Paths in a template, in the order of `Places`."""


def _undo_places(document: Document, slot: Slot, template: object) -> Iterator[list[Any]]:
    places = slot.places
    paths = places.labels, places.annotations, places.node_selector, places.tolerations
    for path, below in zip((*paths, places.gates), _BELOW, strict=True):
        here, now, was = at(document, path), at(slot.template, below), at(template, below)
        if here is ABSENT or isinstance(here, list):
            if not same(now, was):
                yield _as_was(path, was)
        elif isinstance(here, Mapping) and isinstance(now, Mapping):
            texts = was if isinstance(was, Mapping) else {}
            if was is ABSENT and here.keys() == now.keys():
                yield [list(path)]
                continue
            # Labels are restored one by one: the job's own controller may have set labels that no
            # Workload has.
            for name in sorted({*now, *texts}):
                if now.get(name) != texts.get(name):
                    yield _as_was((*path, name), texts.get(name, ABSENT))


def _as_was(path: Path, was: object) -> list[Any]:
    return [list(path)] if was is ABSENT else [list(path), copied(was)]


def _digest(infos: Sequence[PodSetInfo]) -> str:
    fields = [
        [
            one.name,
            one.count,
            dict(one.labels),
            dict(one.annotations),
            dict(one.node_selector),
            [dict(each) for each in one.tolerations],
            list(one.gates),
        ]
        for one in infos
    ]
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
