"""Documents lead to what is there: links between them, settings and commands they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodeagent import config as node_config
from nodeagent.cli.main import make_parser
from queuecontroller import config as queue_config
from queuecontroller.cli.main import VERBS
from tests.places import REPO

PAGES = sorted([*(REPO / "docs").glob("*.md"), REPO / "README.md", REPO / "CONTRIBUTING.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    broken = [
        link for link in links if link and "://" not in link and not (page.parent / link).exists()
    ]
    # a page in docs/ may name another as docs/NAME, from the root of the repository
    assert [link for link in broken if not (REPO / link).exists()] == []


@pytest.mark.parametrize(
    "name", ["install.md", "operations.md", "troubleshooting.md", "migrating.md"]
)
def test_commands_and_settings_in_the_guides_exist(name: str) -> None:
    text = (REPO / "docs" / name).read_text()
    actions = next(one for one in make_parser()._actions if hasattr(one, "_choices_actions"))
    commands = set(actions.choices or ())
    used = set(re.findall(r"`sluice ([a-z]+)[ `]", text)) | set(
        re.findall(r"^sluice ([a-z]+)", text, re.MULTILINE)
    )
    assert used - commands == set()
    assert set(re.findall(r"`sluice-queue ([a-z]+)[ `]", text)) - VERBS.keys() == set()
    sections = {**node_config.SECTIONS}
    for section, key in re.findall(
        r"`(grants|planner|nvml|metrics|kubelet|queue|nodes|server|tls)\.([a-z_]+)[ `]", text
    ):
        kinds = [known[section] for known in (sections, queue_config.SECTIONS) if section in known]
        from_chart = section == "queue" and key in ("enabled",)
        assert from_chart or any(key in kind.__dataclass_fields__ for kind in kinds), (
            f"{section}.{key}"
        )
