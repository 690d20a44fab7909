#!/usr/bin/python3 -I
"""Stands for NVIDIA's container runtime on the node: runc, but a container that says NVIDIA_VISIBLE_DEVICES is given the edits
of the CDI specification of kind nvidia.com/gpu before it is created. What the chart's default `runtimeClassName: nvidia` asks for.

Called as containerd calls runc: `… create --bundle DIR …`. Standard library only; RUNC names the program behind it.
"""

import json
import os
import sys
from pathlib import Path

KIND = "nvidia.com/gpu"
CDI = Path("/var/run/cdi")
RUNC = os.environ.get("RUNC", "/usr/sbin/runc")
OFF = ("", "void", "none")


def main() -> None:
    arguments = sys.argv[1:]
    if "create" in arguments and "--bundle" in arguments:
        path = Path(arguments[arguments.index("--bundle") + 1]) / "config.json"
        config = json.loads(path.read_text())
        wanted = visible(config["process"].get("env", []))
        if wanted:
            for edits in edits_for(wanted):
                apply(config, edits)
            path.write_text(json.dumps(config))
    os.execv(RUNC, [RUNC, *arguments])


def visible(environment: list[str]) -> list[str]:
    values = dict(one.partition("=")[::2] for one in environment)
    text = values.get("NVIDIA_VISIBLE_DEVICES", "")
    return [] if text in OFF else text.split(",")


def edits_for(names: list[str]) -> list[dict]:  # type: ignore[type-arg]
    for path in sorted(CDI.glob("*.json")):
        document = json.loads(path.read_text())
        if document["kind"] == KIND:
            chosen = [one["containerEdits"] for one in document["devices"] if one["name"] in names]
            if not chosen:
                sys.exit(f"no GPU {', '.join(names)} in {path}")
            return [document["containerEdits"], *chosen]
    sys.exit(f"no CDI specification of kind {KIND} in {CDI}")


def apply(config: dict, edits: dict) -> None:  # type: ignore[type-arg]
    config["process"].setdefault("env", []).extend(edits.get("env", []))
    mounts = config.setdefault("mounts", [])
    for mount in edits.get("mounts", []):
        entry = {"source": mount["hostPath"], "destination": mount["containerPath"], "type": "bind"}
        mounts.append({**entry, "options": mount.get("options", ["ro", "rbind"])})
    linux = config["linux"]
    there = {one["path"] for one in linux.setdefault("devices", [])}
    rules = linux.setdefault("resources", {}).setdefault("devices", [])
    for node in edits.get("deviceNodes", []):
        status = os.stat(node.get("hostPath", node["path"]))
        numbers = {"major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
        if node["path"] not in there:
            linux["devices"].append(
                {"path": node["path"], "type": "c", "fileMode": 0o666, **numbers}
            )
        rules.append({"allow": True, "type": "c", "access": "rw", **numbers})


if __name__ == "__main__":
    main()
