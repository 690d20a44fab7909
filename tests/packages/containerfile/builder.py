"""Carries out a Containerfile in chroots, as a builder of images would, for machines that have none.

It knows what ours uses: ARG, FROM … AS, WORKDIR, COPY, COPY --from, RUN, ENV, USER, EXPOSE, LABEL, ENTRYPOINT. Needs root.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

KEPT = ("/dev", "/proc", "/etc/resolv.conf", "/etc/hosts")
"""Mounted while a command runs, as builders do; they never become part of an image."""
ENTER = """
set -e
root=$1; shift
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
for file in /etc/resolv.conf /etc/hosts; do
	[ -e "$root$file" ] || : >"$root$file"
	mount --bind "$file" "$root$file"
done
exec chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
"""


@dataclass
class Stage:
    root: Path
    config: dict[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"


def instructions(path: Path) -> list[tuple[str, str]]:
    """Word and rest of each line."""
    text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def build(path: Path, base: Path, work: Path, arguments: dict[str, str]) -> dict[str, Stage]:
    """All stages by name; `base`: the archive of a root that stands for the image BASE."""
    context, stages = path.parent, dict[str, Stage]()
    stage = Stage(work)
    for word, rest in instructions(path):
        match word:
            case "FROM":
                image, _, name = rest.partition(" AS ")
                stage = _begin(image, work / name, base, stages)
                stages[name] = stage
            case "ARG":
                name, _, default = rest.partition("=")
                value = arguments.get(name, default)
                if value and stage.root != work:
                    stage.environment[name] = value
            case "ENV":
                stage.environment |= dict(one.split("=", 1) for one in shlex.split(rest))
            case "WORKDIR":
                stage.directory = rest
                _inside(stage, rest).mkdir(parents=True, exist_ok=True)
            case "COPY":
                _copy(stage, rest, context, stages)
            case "RUN":
                _run(stage, rest)
            case "ENTRYPOINT":
                stage.config[word] = json.loads(rest)
            case "USER" | "EXPOSE" | "LABEL":
                stage.config[word] = rest
            case _:
                raise ValueError(f"{word}: not known here")
    return stages


def _begin(image: str, root: Path, base: Path, stages: dict[str, Stage]) -> Stage:
    if image in stages:  # it only adds settings: the files are its base's
        known = stages[image]
        return Stage(known.root, dict(known.config), dict(known.environment), known.directory)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    if image != "scratch":
        assert image == "${BASE}", image
        subprocess.run(["tar", "-C", root, "-xf", base], check=True)
    return Stage(root)


def _inside(stage: Stage, path: str) -> Path:
    return stage.root / Path(stage.directory, path).relative_to("/")


def _copy(stage: Stage, rest: str, context: Path, stages: dict[str, Stage]) -> None:
    *sources, target = shlex.split(rest)
    where = context
    if sources[0].startswith("--from="):
        where = stages[sources.pop(0).removeprefix("--from=")].root
    left_out = _ignored(context) if where == context else []
    into = _inside(stage, target)
    into.mkdir(parents=True, exist_ok=True)
    for source in sources:
        found = where / source.lstrip("/")
        if found.is_dir():
            excluded = [f"--exclude={one}" for one in left_out]
            _tar(found, into, *excluded, ".")
            if where == context:
                _tar(found, into, *_taken_back(context))
        else:
            shutil.copy2(found, into)


def _tar(source: Path, target: Path, *words: str) -> None:
    pack = ["tar", "-C", str(source), "-cf", "-", *words]
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
        subprocess.run(["tar", "-C", target, "-xpf", "-"], stdin=packing.stdout, check=True)
    assert packing.returncode == 0


def _taken_back(context: Path) -> list[str]:
    """Paths that .dockerignore takes back out of a directory that it leaves out."""
    lines = (context / ".dockerignore").read_text().splitlines()
    wanted = [one.removeprefix("!") for one in lines if one.startswith("!")]
    return [one for one in wanted if (context / one).exists()] or ["--files-from=/dev/null"]


def _ignored(context: Path) -> list[str]:
    """Patterns of .dockerignore for tar."""
    lines = (context / ".dockerignore").read_text().splitlines()
    wanted = [one for one in lines if one and not one.startswith(("#", "!"))]
    return [one.removeprefix("**/") if "**" in one else f"./{one}" for one in wanted]


def _run(stage: Stage, command: str) -> None:
    environment = [f"{name}={value}" for name, value in stage.environment.items()]
    inside = ["/bin/sh", "-c", f"cd {shlex.quote(stage.directory)} && {command}"]
    words: list[str | Path] = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        ENTER,
        "enter",
        stage.root,
        *environment,
        *inside,
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1500, env=os.environ)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
