"""The configuration: every mistake told at once, and docs/configuration.md true to the code."""

from __future__ import annotations

import ast
import inspect
import tomllib
from dataclasses import fields

import pytest

from nodeagent import config
from nodeagent.config import SECTIONS, ConfigError, Settings, parse, split_address
from tests.golden import check
from tests.places import REPO


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(tomllib.loads(text))
    return caught.value.problems


def test_nothing_said_means_the_defaults() -> None:
    assert parse({}) == Settings()


def test_what_is_said_holds() -> None:
    settings = parse(tomllib.loads('[planner]\nperiod_ms = 5\n[grants]\nstrategy = "spread"\n'))
    assert settings.planner.period_ms == 5.0
    assert isinstance(settings.planner.period_ms, float)
    assert settings.grants.strategy == "spread"


def test_every_mistake_is_told_at_once_and_named() -> None:
    found = problems(
        """
        [plannner]
        period_ms = 5
        [grants]
        slots_per_gpu = "ten"
        strategie = "pack"
        strategy = "middle"
        memory_reserve_mib = -1
        [nvml]
        deadline_s = inf
        [paths]
        native = "lib"
        [metrics]
        enabled = 1
        """
    )
    assert len(found) == 8
    text = "\n".join(found)
    for named in (
        "[plannner]: no such section (did you mean 'planner'?)",
        "grants.slots_per_gpu: must be a whole number, not 'ten'",
        "grants.strategie: no such key (did you mean 'strategy'?)",
        "grants.strategy: must be one of pack, spread, not 'middle'",
        "grants.memory_reserve_mib: must be between 0 and 1e+06, not -1",
        "nvml.deadline_s: must be between",
        "paths.native: must be an absolute path, not 'lib'",
        "metrics.enabled: must be true or false, not 1",
    ):
        assert named in text


def test_values_that_do_not_go_together() -> None:
    assert problems("[planner]\nperiod_ms = 50\nlongest_period_ms = 20") == [
        "planner.longest_period_ms: 20 is below planner.period_ms (50)"
    ]
    (problem,) = problems("[planner]\nperiod_ms = 3")
    assert problem.startswith("planner.smallest_quantum_ms: two turns of 2 ms do not fit")
    (problem,) = problems('[metrics]\nlisten = "localhost"')
    assert "metrics.listen" in problem
    assert "127.0.0.1:9464" in problem


def test_a_section_that_is_no_section() -> None:
    assert problems("daemon = 3") == ["daemon: must be a section, [daemon]"]


def test_addresses() -> None:
    assert split_address("[::1]:9464") == ("::1", 9464)
    for bad in ("9464", ":9464", "host:", "host:70000", "host:http"):
        with pytest.raises(ValueError, match="ADDRESS:PORT"):
            split_address(bad)


def said_of(kind: type) -> dict[str, str]:
    """The text below each field, as the source has it."""
    (node,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(node, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, text in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return texts


def plain(number: object) -> str:
    assert isinstance(number, int | float)
    return str(int(number)) if number == int(number) else str(number)


def allowed(meta: dict[str, object]) -> str:
    if "low" in meta:
        return f"{plain(meta['low'])} to {plain(meta['high'])}"
    if "allowed" in meta:
        return ", ".join(f"`{value}`" for value in meta["allowed"])  # type: ignore[attr-defined]
    return "absolute path" if meta.get("absolute") else ""


def documented() -> str:
    lines = [
        "# Configuration",
        "",
        "`sluice serve --config FILE`; without the flag `/etc/sluice/sluice.toml` if it is there. TOML, every key optional. A file with",
        "mistakes stops the daemon from starting and lists all of them. Tenants are not affected: their limits are in their regions.",
        "",
        "```toml",
        "[grants]",
        "slots_per_gpu = 4",
        "memory_reserve_mib = 512",
        "",
        "[planner]",
        "period_ms = 5        # latency-bound inference",
        "```",
        "",
    ]
    for section, kind in SECTIONS.items():
        lines += [
            f"## `[{section}]`",
            "",
            "| Key | Default | Allowed | Meaning |",
            "|---|---|---|---|",
        ]
        texts = said_of(kind)
        for field in fields(kind):
            default = field.default
            if isinstance(default, bool):
                shown = str(default).lower()
            elif isinstance(default, int | float):
                shown = plain(default)
            else:
                shown = str(default)
            lines.append(
                f"| `{field.name}` | {f'`{shown}`' if shown else ''} | {allowed(dict(field.metadata))} | {texts[field.name]} |"
            )
        lines.append("")
    return "\n".join(lines)


def test_the_page_says_what_the_code_does() -> None:
    assert inspect.getmodule(parse) is config
    check(REPO / "docs" / "configuration.md", documented())
