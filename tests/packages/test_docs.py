"""Documents lead to what is there: links, files, commands with their flags, settings, metrics.

docs/reference/commands.md and docs/reference/configuration.md are generated and held against the code by
test_reference.py; here the other pages are held against them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nodeagent.core.metrics import catalogue as node_metrics
from nodeagent.settings import daemon as node_config
from queuecontroller.server import config as queue_config
from queuecontroller.server.metrics import catalogue as queue_metrics
from tests.kit.places import REPO

DOCS = REPO / "docs"
OTHER_PAGES = ("README.md", "CONTRIBUTING.md", "examples/README.md", "proto/README.md")
PAGES = sorted([*DOCS.rglob("*.md"), *(REPO / name for name in OTHER_PAGES)])
SHIPPED = sorted(
    path
    for pattern in ("prometheus/*.yaml", "grafana/*.json", "helm/sluice/files/*")
    for path in (REPO / "packaging").glob(pattern)
)
SETTINGS = {
    section: {
        name
        for known in (node_config.SECTIONS, queue_config.SECTIONS)
        if section in known
        for name in known[section].__dataclass_fields__
    }
    for section in {*node_config.SECTIONS, *queue_config.SECTIONS}
}
NO_SETTING = {
    "kubelet": {"nodes"},  # sections of their own
    "queue": {"enabled", "mode", "replicas", "admins", "users", "checks"},  # the chart's
    "tls": {"crt"},  # a file's ending
}
STRUCT = re.compile(r"\bstruct (sluice_\w+) {")
OTHERS_TABLES = {"xid", "condition", "verdict"}
"""Tables of docs/node/health.md that are no settings of the daemon: the table of XIDs is a file of
its own."""

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def code(page: Path) -> Iterator[str]:
    """Lines of blocks, continued ones as one, and spans."""
    for block in re.findall(r"```[a-z]*\n(.*?)```", page.read_text(), re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(r"`([^`\n]+)`", prose(page))


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub makes of headings."""
    heads = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def flags() -> dict[str, set[str]]:
    """Flags by command, such as `sluice run`."""
    found: dict[str, set[str]] = {}
    for part in (DOCS / "reference" / "commands.md").read_text().split("\n## `")[1:]:
        name, _, rest = part.partition("`")
        options = re.findall(
            r"`(--?[a-z][a-z-]*)", "\n".join(re.findall(r"^- (`.*?`): ", rest, re.M))
        )
        found[name] = {*options, "--help"}
    return found


FLAGS = flags()


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        name, _, anchor = link.partition("#")
        # a page in docs/ may name another as docs/NAME, from the root of the repository
        target = next(
            (one for one in (page.parent / name, REPO / name) if name and one.exists()), None
        )
        if name == "":
            target = page
        if "://" not in link and (
            target is None or (anchor and anchor not in anchors(target.resolve()))
        ):
            broken.append(link)
    assert broken == []


@each_page
def test_files_and_targets_it_names_are_there(page: Path) -> None:
    roots = "nodeagent|queuecontroller|sluicecommon|tests|packaging|proto|interpose|nativecommon|systemd|docs"
    named = re.findall(rf"(?<![\w/.-])((?:{roots})/[\w./*-]*\w)", page.read_text())
    assert [one for one in set(named) if not list(REPO.glob(one))] == []
    makefile = (REPO / "Makefile").read_text()
    targets = [one for line in code(page) for one in re.findall(r"^make ([a-z-]+)", line)]
    assert [one for one in targets if f"\n{one}:" not in makefile] == []


@each_page
def test_commands_and_their_flags_exist(page: Path) -> None:
    wrong = []
    for line in code(page):
        # at the start, after a shell's operator, or by its path
        for program, verb, rest in re.findall(
            r"(?:^|[|&;(=] *|^\S*/)(sluice-queue|sluice(?: queue)?) ([a-z]+)([^|;&#]*)", line
        ):
            name = f"{program.replace('sluice queue', 'sluice-queue')} {verb}"
            if name == "sluice queue":
                continue
            if name not in FLAGS:  # a command that has commands of its own
                name = " ".join([name, *rest.split()[:1]])
            given = set(re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", rest.split(" -- ")[0]))
            if name not in FLAGS or given - FLAGS[name]:
                wrong.append(f"{line}: {name} {given - FLAGS.get(name, set())}")
        if flag := re.match(r"(--[a-z][a-z-]*)(?:[ =][A-Z\d].*)?$", line):
            known = set().union(*FLAGS.values())
            if flag[1] not in known:
                wrong.append(line)
    assert wrong == []


def test_every_command_is_told_of_outside_of_the_reference() -> None:
    text = "\n".join(p.read_text() for p in PAGES if p.name != "commands.md")
    text = text.replace("sluice queue ", "sluice-queue ")
    assert [name for name in FLAGS if not re.search(rf"\b{name}\b", text)] == []


@each_page
def test_settings_it_names_exist(page: Path) -> None:
    sections = "|".join(SETTINGS)
    spans = [one for one in code(page) if " " not in one]
    named = [
        found.groups()
        for one in spans
        if (found := re.fullmatch(rf"({sections})\.([a-z][a-z0-9_]*)", one))
    ]
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
        for section, keys in tomllib.loads(block).items():
            if section not in OTHERS_TABLES:
                named += [(section, key) for key in keys]
    files = {"py", "c", "md", "toml", "yaml", "json", "binpb"}
    assert [
        f"{section}.{key}"
        for section, key in named
        if key not in SETTINGS.get(section, set()) | NO_SETTING.get(section, set()) | files
    ] == []


@pytest.mark.parametrize("page", [*PAGES, *SHIPPED], ids=lambda page: str(page.relative_to(REPO)))
def test_metrics_it_names_are_in_a_catalogue(page: Path) -> None:
    known = {one.name for one in (*node_metrics.CATALOGUE, *queue_metrics.CATALOGUE)}
    records = {
        name for one in (REPO / "proto").glob("*.h") for name in STRUCT.findall(one.read_text())
    }
    settings = set().union(*SETTINGS.values())
    wrong = set()
    for name in re.findall(
        r"\b(?:sluice|kueue)_[a-z0-9_]*[a-z0-9]\b(?!\.[ch]\b|/)", page.read_text()
    ):
        base = re.sub(r"_(total|bucket|sum|count|info)$", "", name)
        if name not in known and base not in known:
            wrong.add(name)
    assert wrong - records - settings - {"sluice_launch_event"} == set(), (
        "that one is a record of BPF's"
    )


def test_no_two_folders_of_examples_have_a_job_of_one_name() -> None:
    """Whoever applies both would change what runs, which is refused."""
    folders: dict[tuple[str, str, str], set[str]] = {}
    for path in sorted((REPO / "examples").glob("*/*.yaml")):
        for one in yaml.safe_load_all(path.read_text()):
            if one and one.get("kind") in ("Job", "Pod") and "name" in one["metadata"]:
                head = one["metadata"]
                key = (one["kind"], head.get("namespace", "default"), head["name"])
                folders.setdefault(key, set()).add(path.parent.name)
    assert len(folders) > 10
    assert {key: found for key, found in folders.items() if len(found) > 1} == {}
