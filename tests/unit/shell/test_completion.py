"""Completion in the shells themselves, where they are installed; bash always is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nodeagent.cli.completion import commands as node_commands
from queuecontroller.cli.commands.completion import commands as queue_commands
from sluicecommon.completion import SHELLS, Command, Option, script

PROGRAMS = {"sluice": node_commands, "sluice-queue": queue_commands}


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(program: str, shell: str, place: Path) -> Path:
    path = place / f"{program}.{shell}"
    path.write_text(script(program, PROGRAMS[program](), shell))
    return path


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_in_every_script_and_the_shell_reads_it(
    program: str, shell: str, tmp_path: Path
) -> None:
    path = written(program, shell, tmp_path)
    text = path.read_text()
    for one in PROGRAMS[program]():
        for word in one.name.split(" "):
            assert word in text
        for option in one.options:
            assert option.flags[-1].lstrip("-") in text
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def bash(path: Path, program: str, *words: str) -> list[str]:
    name = "_" + program.replace("-", "_")
    typed = " ".join(f"'{one}'" for one in (program, *words))
    text = f'source {path}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; {name}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    return [one for one in done.stdout.splitlines() if one]


def test_bash_completes_commands_options_and_their_values(tmp_path: Path) -> None:
    node, queue = written("sluice", "bash", tmp_path), written("sluice-queue", "bash", tmp_path)
    assert bash(node, "sluice", "ru") == ["run"]
    assert set(bash(node, "sluice", "m")) == {"mig"}
    assert bash(node, "sluice", "mig", "s") == ["show", "set"]
    assert "--gpumem" in bash(node, "sluice", "run", "--gpu")
    assert bash(node, "sluice", "run", "--policy", "e") == ["elastic", "exclusive"]
    assert bash(node, "sluice", "run", "--gpumem", "8") == []
    assert bash(node, "sluice", "run", "--gpumem", "8Gi", "--cor") == ["--cores"]
    assert bash(node, "sluice", "run", "--", "--po") == []
    assert bash(queue, "sluice-queue", "expl") == ["explain"]
    assert bash(queue, "sluice-queue", "completion", "f") == ["fish"]
    assert bash(queue, "sluice-queue", "get", "-o", "j") == ["json"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_completes_them_too(tmp_path: Path) -> None:
    path = written("sluice", "fish", tmp_path)

    def typed(text: str) -> set[str]:
        command = ["fish", "-c", f'source {path}; complete -C "{text}"']
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})  # fmt: skip
        return {line.split("\t")[0] for line in done.stdout.splitlines()}

    assert typed("sluice ru") == {"run"}
    assert "--policy" in typed("sluice run --pol")
    assert {"hard", "elastic", "exclusive"} <= typed("sluice run --policy ")


@pytest.mark.parametrize("shell", SHELLS)
def test_no_help_text_breaks_a_script(shell: str, tmp_path: Path) -> None:
    nasty = 'it\'s [a] "test": $(touch /tmp/no) `x` \\ {y}'
    option = Option(("--what", "-w"), nasty, True, ("a", "b"))
    text = script("prog", [Command("do", nasty, (option,))], shell)
    path = tmp_path / "script"
    path.write_text(text)
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
