"""Texts as documents with positions: YAML or JSON, many documents a text, Lists expanded.

PyYAML keeps a mark for each node, so that an error in a field can name its line. Features of YAML
that Kubernetes' objects cannot hold are rejected here: aliases (a few of them make 300 bytes expand
without end), keys that are not text or are repeated, deep nesting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from sluicecommon import yaml_text
from sluicecommon.reader import Problem

DEEPEST: Final = 32
"""Levels of nesting; a pod template needs about 12."""

LONGEST_KEY: Final = 317
"""Characters of a label's key: 253 of its prefix, a slash, 63 of its name."""
LONGEST_NAME: Final = 253

CLUSTER_WIDE: Final = (
    "Namespace",
    "ResourceFlavor",
    "Topology",
    "Cohort",
    "ClusterQueue",
    "WorkloadPriorityClass",
    "PriorityClass",
    "AdmissionCheck",
    "Configuration",
)
"""Kinds the queue keeps that have no namespace."""

_NO_NAMESPACE: Final = frozenset({*CLUSTER_WIDE, "Node", "List"})


def _without_dates(loader: Any) -> Any:
    """A loader that reads a date as text, as Kubernetes does, which converts YAML to JSON first."""
    resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
        for first, known in loader.yaml_implicit_resolvers.items()
    }
    return type("Loader", (loader,), {"yaml_implicit_resolvers": resolvers})


_LOADER: Final[Any] = _without_dates(yaml_text.LOADER)
_TEXT: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Source:
    """One object and its position."""

    file: str
    first_line: int
    """Line of its first field; 0: unknown."""
    kind: str = ""
    namespace: str = ""
    """`default` where a namespaced object names none."""
    name: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    node: Any = None

    @property
    def label(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind}/{where}{self.name}" if self.kind else self.file

    def line(self, path: str = "") -> int:
        """Line of a field such as `spec.resourceGroups[0].flavors[h100].resources`, counted from 1:
        an item by number or by its name, or any item where none is given. Where the field is
        missing, the line of its nearest parent."""
        if self.node is None:
            return self.first_line
        return _seek(self.node, path, self.first_line)[1]


def sources_of(texts: Mapping[str, str]) -> tuple[list[Source], list[tuple[Source, Problem]]]:
    """Every object of all texts (by file name), and the problems of those that are not objects."""
    found: list[Source] = []
    wrong: list[tuple[Source, Problem]] = []
    generated: dict[tuple[str, str, str], int] = {}
    for file, text in texts.items():
        for one in _documents(file, text, wrong):
            found += _objects(one, wrong, generated)
    return found, wrong


def _documents(file: str, text: str, wrong: list[tuple[Source, Problem]]) -> Iterator[Source]:
    """Documents as they are: `body` may be anything."""
    try:
        yaml_text.check_events(text, _LOADER, DEEPEST, aliases=False)
        loader = _LOADER(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                at = Source(file, node.start_mark.line + 1, node=node)
                problems = _check_keys(node, "")
                wrong += [(at, one) for one in problems]
                if not problems:
                    body = _construct(loader, at, wrong)
                    if body is not None:
                        yield body
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 0
        wrong.append((Source(file, line), _no_yaml(error.problem or str(error))))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 0
        what = f"character {error.character!r}: {error.reason}"
        wrong.append((Source(file, line), _no_yaml(what)))
    except yaml.YAMLError as error:
        wrong.append((Source(file, 0), _no_yaml(str(error))))


def _no_yaml(what: str) -> Problem:
    return Problem(
        "", f"is not valid YAML: {what}", "correct it; `kubectl apply --dry-run` shows the same"
    )


def _check_keys(node: Any, path: str) -> list[Problem]:
    """Problems of keys of mappings, which have to be text and unique."""
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return [one for i, item in items for one in _check_keys(item, f"{path}[{i}]")]
    if not isinstance(node, yaml.MappingNode):
        return []
    found = []
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag not in (_TEXT, _MERGE):
            shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            what = f"line {line}: key {str(shown)[:64]} is not text"
            found.append(Problem(path, what, f'put it in quotes: "{str(shown)[:64]}"'))
            continue
        if len(key.value) > LONGEST_KEY:
            what = f"line {line}: key {key.value[:64]}… has more than {LONGEST_KEY} characters"
            found.append(Problem(path, what, "shorten it"))
            continue
        at = f"{path}.{key.value}" if path else key.value
        if key.value in seen:
            what = f"is given twice (lines {seen[key.value]} and {line})"
            found.append(Problem(at, what, "leave one of them"))
        seen[key.value] = line
        found += _check_keys(value, at)
    return found


def _construct(loader: Any, at: Source, wrong: list[tuple[Source, Problem]]) -> Source | None:
    # For a scalar that does not suit its tag (a date with month 99, `!!int x`) PyYAML lets whatever
    # its constructor met escape.
    try:
        return _with(at, loader.construct_document(at.node))
    except yaml.YAMLError:
        raise
    except (ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
        culprit = _culprit(at.node) or at.node
        shown = str(culprit.value)[:64] if isinstance(culprit, yaml.ScalarNode) else "a value"
        place = Source(at.file, culprit.start_mark.line + 1)
        # Python's own hint, how to read longer numbers, is of no use in a manifest.
        problem = "is a number of thousands of digits" if "digits" in str(error) else str(error)
        wrong.append((place, Problem("", f"{shown}: {problem}", "put it in quotes, if it is text")))
        return None


def _culprit(node: Any) -> Any:
    """The first scalar that cannot be constructed."""
    if isinstance(node, yaml.ScalarNode):
        loader = _LOADER("")
        try:
            loader.construct_document(node)
        except (ValueError, OverflowError, LookupError, AttributeError, TypeError):
            return node
        finally:
            loader.dispose()
        return None
    pairs = (
        node.value if isinstance(node, yaml.SequenceNode) else [n for p in node.value for n in p]
    )
    return next((found for one in pairs if (found := _culprit(one)) is not None), None)


def _with(at: Source, body: Any) -> Source:
    return Source(at.file, at.first_line, body=body, node=at.node)


# -- objects --------------------------------------------------------------------------------------


def _objects(
    document: Source,
    wrong: list[tuple[Source, Problem]],
    generated: dict[tuple[str, str, str], int],
) -> list[Source]:
    body: Any = document.body
    if body is None:
        return []
    if not isinstance(body, Mapping) or not isinstance(body.get("kind"), str) or not body["kind"]:
        fix = "every document is an object with apiVersion, kind and metadata"
        where = "" if not isinstance(body, Mapping) else "kind"
        wrong.append((document, Problem(where, "has no kind", fix)))
        return []
    if body["kind"] != "List":
        return _object(document, wrong, generated)
    items = body.get("items")
    if not isinstance(items, list):
        if items is not None:
            wrong.append((document, Problem("items", "expected a list", "write a list of objects")))
        return []
    found = []
    nodes = next(value.value for key, value in document.node.value if key.value == "items")
    for number, (item, node) in enumerate(zip(items, nodes, strict=True)):
        if isinstance(item, Mapping) and isinstance(item.get("kind"), str) and item["kind"]:
            at = Source(document.file, node.start_mark.line + 1, body=item, node=node)
            found += _object(at, wrong, generated)
        else:
            fix = "every item is an object with apiVersion, kind and metadata"
            wrong.append((document, Problem(f"items[{number}]", "has no kind", fix)))
    return found


def _object(
    at: Source,
    wrong: list[tuple[Source, Problem]],
    generated: dict[tuple[str, str, str], int],
) -> list[Source]:
    body = at.body
    kind = body["kind"]
    head = body.get("metadata")
    head = head if isinstance(head, Mapping) else {}
    given = head.get("namespace")
    namespace = "" if kind in _NO_NAMESPACE else given if isinstance(given, str) else "default"
    name, prefix = head.get("name"), head.get("generateName")
    name = name if isinstance(name, str) else ""
    if not name and isinstance(prefix, str) and prefix:
        # The API server generates another name for each; here they must be equal in every run.
        name = prefix.rstrip("-")
        count = generated[kind, namespace, name] = generated.get((kind, namespace, name), 0) + 1
        name = name if count == 1 else f"{name}-{count}"
        body = {**body, "metadata": {**head, "name": name}}
    for field_, text in (
        ("kind", kind),
        ("metadata.namespace", namespace),
        ("metadata.name", name),
    ):
        if len(text) > LONGEST_NAME:
            what = f"{text[:64]}… has more than {LONGEST_NAME} characters"
            wrong.append((at, Problem(field_, what, "shorten it")))
            return []
    return [Source(at.file, at.first_line, kind, namespace, name, body, at.node)]


# -- lines ----------------------------------------------------------------------------------------


def _seek(node: Any, path: str, line: int) -> tuple[int, int]:
    """Length of the remaining path where it ends, and the line there."""
    if not path:
        return 0, line
    best = len(path), line
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            rest = _after(path, key.value) if isinstance(key, yaml.ScalarNode) else None
            if rest is not None:
                best = min(best, _seek(value, rest, key.start_mark.line + 1))
    elif isinstance(node, yaml.SequenceNode):
        which, bracket, rest = path[1:].partition("]") if path.startswith("[") else ("", "", path)
        for number, item in enumerate(node.value):
            if not bracket or which == str(number) or which == _name_of(item):
                found = _seek(item, rest.removeprefix("."), item.start_mark.line + 1)
                best = min(best, found)
    return best


def _after(path: str, key: str) -> str | None:
    """The rest of the path after the key; None if it does not begin with the key."""
    if not path.startswith(key):
        return None
    rest = path[len(key) :]
    if not rest or rest.startswith("["):
        return rest
    return rest[1:] if rest.startswith(".") else None


def _name_of(item: Any) -> str | None:
    if not isinstance(item, yaml.MappingNode):
        return None
    return next((str(v.value) for k, v in item.value if k.value == "name"), None)
