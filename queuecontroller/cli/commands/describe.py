"""`sluice-queue describe KIND NAME`: one object in full as text; a workload with its history."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import yaml

from queuecontroller.cli.files import complain, printable
from queuecontroller.cli.session import (
    Failed,
    add_endpoint,
    add_object,
    add_output,
    connect,
    object_of,
    print_object,
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_object(parser)
    add_output(parser)
    add_endpoint(parser)


def run(options: argparse.Namespace) -> int:
    try:
        kind, namespace, name = object_of(options)
        with connect(options) as client:
            if kind == "Workload":
                found = json.loads(client.explain(namespace, name).json)
            else:
                found = client.get(kind, namespace, name)
    except Failed as failed:
        complain(str(failed))
        return failed.status
    if options.output:
        print_object(found, options.output)
        return 0
    events = found.pop("events", [])
    for line in yaml.safe_dump(found, sort_keys=False).splitlines():
        print(printable(line))
    if events:
        print("events:")
        for one in events:
            print(printable(f"  {_event(one)}"))
    return 0


def _event(one: Mapping[str, Any]) -> str:
    moment = datetime.fromtimestamp(one["atUnixSeconds"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{moment}  {one['kind']:14} {one['text']}"
