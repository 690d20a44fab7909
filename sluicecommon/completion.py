"""Shell completion scripts, generated from the command line's parsers. Pure.

Commands, their options, and the values of options that have a few; everything else completes as
file names. Help texts are quoted for the shell that reads them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SHELLS: Final = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Option:
    flags: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    """`run`, or `mig show`: a command that has commands of its own."""
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...] = ()
    """Choices of its first argument, if limited."""


def command_of(name: str, parser: argparse.ArgumentParser) -> Command:
    options: list[Option] = []
    words: tuple[str, ...] = ()
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        choices = tuple(str(one) for one in action.choices or ())
        if action.option_strings:
            takes = action.nargs != 0
            flags = tuple(action.option_strings)
            options.append(Option(flags, _line(action.help), takes, choices if takes else ()))
        elif choices and not words:
            words = choices
    return Command(name, _line(parser.description), tuple(options), words)


def script(program: str, commands: Sequence[Command], shell: str) -> str:
    return _MAKERS[shell](program, commands)


def _line(text: str | None) -> str:
    """The first sentence of a help text on one line, with argparse's escapes resolved."""
    plain = re.sub(r"%%", "%", re.sub(r"\s+", " ", text or ""))
    return plain.split(". ")[0][:100].strip()


def _firsts(commands: Sequence[Command]) -> dict[str, str]:
    """First words of commands, each with the help of the first command that begins with it."""
    found: dict[str, str] = {}
    for one in commands:
        found.setdefault(one.name.split(" ")[0], one.help)
    return found


def _seconds(commands: Sequence[Command], first: str) -> list[str]:
    return [one.name.split(" ")[1] for one in commands if one.name.startswith(f"{first} ")]


def _under(commands: Sequence[Command], first: str) -> tuple[list[str], list[Option]]:
    """The words that may follow a first word, and all its options."""
    mine = [one for one in commands if one.name.split(" ")[0] == first]
    words = _seconds(commands, first) + [word for one in mine for word in one.words]
    options = {one.flags: one for command in mine for one in command.options}
    return list(dict.fromkeys(words)), list(options.values())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _name(program: str) -> str:
    return "_" + re.sub(r"\W", "_", program)


def _bash(program: str, commands: Sequence[Command]) -> str:
    firsts, name = _firsts(commands), _name(program)
    lines = [
        f"# bash completion for {program}: source it, or put it where bash-completion looks",
        f"{name}() {{",
        '\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command="" word at',
        "\tfor ((at = 1; at < COMP_CWORD; at++)); do",
        "\t\tword=${COMP_WORDS[at]}",
        "\t\tif [[ $word == -- ]]; then COMPREPLY=(); return; fi",
        "\t\tif [[ -z $command && $word != -* ]]; then command=$word; fi",
        "\tdone",
        '\tcase "$command $prev" in',
    ]
    for first in firsts:
        for option in _under(commands, first)[1]:
            if option.takes_value:
                pattern = "|".join(_quoted(f"{first} {flag}") for flag in option.flags)
                reply = _among(" ".join(option.choices)) if option.choices else "COMPREPLY=()"
                lines.append(f"\t{pattern}) {reply}; return ;;")
    lines += ["\tesac", '\tcase "$command" in']
    for first, words, options in [
        ("", list(firsts), []),
        *((first, *_under(commands, first)) for first in firsts),
    ]:
        flags = " ".join(flag for one in options for flag in one.flags)
        lines += [
            f"\t{_quoted(first)})",
            f"\t\tif [[ $cur == -* ]]; then {_among(flags)}",
            f"\t\telse {_among(' '.join(words))}; fi ;;",
        ]
    lines += ["\tesac", "}", f"complete -o default -F {name} {program}", ""]
    return "\n".join(lines)


def _among(words: str) -> str:
    """Bash's answer: those of the words that begin as what is typed."""
    return f'mapfile -t COMPREPLY < <(compgen -W {_quoted(words)} -- "$cur")'


def _zsh(program: str, commands: Sequence[Command]) -> str:
    firsts, name = _firsts(commands), _name(program)
    lines = [
        f"#compdef {program}",
        f"# zsh completion for {program}: source it, or put it on fpath as _{program}",
        f"{name}() {{",
        "\tlocal -a commands",
        "\tcommands=(",
        *(
            f"\t\t{_quoted(f'{_zsh_text(first)}:{_zsh_text(text)}')}"
            for first, text in firsts.items()
        ),
        "\t)",
        "\tif (( CURRENT == 2 )); then _describe -t commands command commands; return; fi",
        "\tlocal command=$words[2]",
        "\tshift words; (( CURRENT-- ))",
        "\tcase $command in",
    ]
    for first in firsts:
        words, options = _under(commands, first)
        specs = []
        for one in options:
            for flag in one.flags:
                value = f":value:({' '.join(one.choices)})" if one.choices else ":value:_files"
                specs.append(f"{flag}[{_zsh_text(one.help)}]{value if one.takes_value else ''}")
        rest = f"1:what:({' '.join(words)})" if words else "*:file:_files"
        lines.append(f"\t{first}) _arguments {' '.join(_quoted(one) for one in [*specs, rest])} ;;")
    lines += ["\tesac", "}", f"compdef {name} {program}", ""]
    return "\n".join(lines)


def _zsh_text(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def _fish(program: str, commands: Sequence[Command]) -> str:
    firsts = _firsts(commands)
    lines = [
        f"# fish completion for {program}: source it, or put it into ~/.config/fish/completions"
    ]
    for first, text in firsts.items():
        lines.append(
            f"complete -c {program} -n __fish_use_subcommand -f -a {first} -d {_fish_text(text)}"
        )
    for first in firsts:
        words, options = _under(commands, first)
        when = f"-n '__fish_seen_subcommand_from {first}'"
        if words:
            lines.append(f"complete -c {program} {when} -f -a {_fish_text(' '.join(words))}")
        for one in options:
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in one.flags
            )
            value = f" -x -a {_fish_text(' '.join(one.choices))}" if one.choices else " -r"
            value = value if one.takes_value else ""
            lines.append(f"complete -c {program} {when} {flags}{value} -d {_fish_text(one.help)}")
    return "\n".join([*lines, ""])


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_MAKERS: Final[Mapping[str, Callable[[str, Sequence[Command]], str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
