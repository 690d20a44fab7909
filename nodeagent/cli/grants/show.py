"""`sluice ps | top | events | web | version`: show what runs."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import webbrowser
from pathlib import Path

from nodeagent import native
from nodeagent.cli.session import Failed, complain, connect, print_json
from nodeagent.cli.tables import History, TopView, event_line, ps_lines, top_lines, wide_lines
from sluicecommon.plain import write_all_fields

EXIT_UNREACHABLE = 69
HOME_AND_CLEAR = "\x1b[H\x1b[J"


def ps(options: argparse.Namespace, environment: dict[str, str]) -> int:
    try:
        with connect(options, environment) as client:
            grants = client.list_grants()
            gpus = () if options.json else client.node_info().gpus
    except Failed as failed:
        complain(f"ps: {failed}")
        return failed.status
    if options.json:
        print_json(grants)
    else:
        wide = options.output == "wide"
        lines = wide_lines(grants, gpus) if wide else ps_lines(grants, _width(), gpus)
        print("\n".join(lines))
    return 0


def top(options: argparse.Namespace, environment: dict[str, str]) -> int:
    if options.cluster:
        return _cluster_top(options)
    live = sys.stdout.isatty() and not options.json
    rounds = 0
    shown = TopView(options.sort, options.filter, options.processes)
    history = History()
    try:
        with connect(options, environment) as client:
            for view in client.watch(options.interval):
                rounds += 1
                if options.json:
                    print(json.dumps(write_all_fields(view)), flush=True)
                else:
                    history.take(view)
                    now = time.strftime("%H:%M:%S")
                    lines = top_lines(view, _width(), now, shown, history, command_of)
                    print((HOME_AND_CLEAR if live else "") + "\n".join(lines), flush=True)
                if rounds == options.rounds:
                    return 0
    except Failed as failed:
        complain(f"top: {failed}")
        return failed.status
    return 0


def _cluster_top(options: argparse.Namespace) -> int:
    """Another program's: it becomes this process."""
    words = ["top", "--interval", f"{options.interval:g}", "--rounds", str(options.rounds)]
    beside = Path(sys.argv[0]).resolve().with_name("sluice-queue")
    program = str(beside) if beside.exists() else shutil.which("sluice-queue")
    if program is not None:
        sys.stdout.flush()
        os.execv(program, [program, *words])
    complain("top: --cluster: sluice-queue is not installed here (package sluice-queue)")
    return EXIT_UNREACHABLE


def events(options: argparse.Namespace, environment: dict[str, str]) -> int:
    try:
        with connect(options, environment) as client:
            found = client.events(follow=options.follow)
            wanted = (one for one in found if options.kind in ("", one.kind))
            if options.json and not options.follow:
                print_json(list(wanted))
                return 0
            for one in wanted:
                line = json.dumps(write_all_fields(one)) if options.json else event_line(one)
                print(line, flush=True)
    except Failed as failed:
        complain(f"events: {failed}")
        return failed.status
    return 0


def web(options: argparse.Namespace, environment: dict[str, str]) -> int:
    try:
        with connect(options, environment) as client:
            url, valid_s = client.open_page()
    except Failed as failed:
        complain(f"web: {failed}")
        return failed.status
    if options.json:
        print_json({"url": url, "valid_seconds": valid_s})
    else:
        print(url)
        complain(f"web: valid once, within {valid_s:g} s, with your rights")
    if options.open:
        webbrowser.open(url)
    return 0


def version(options: argparse.Namespace, environment: dict[str, str]) -> int:
    if options.json:
        print_json({"version": native.version()})
    else:
        print(f"sluice {native.version()}")
    return 0


def command_of(pid: int) -> str:
    """Its command line; in brackets its name, where it has none or we may not see it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        if words != [b""]:
            return b" ".join(words).decode(errors="replace")
        return f"[{Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()}]"
    except OSError:
        return "?"


def _width() -> int:
    return max(80, shutil.get_terminal_size((80, 24)).columns)
