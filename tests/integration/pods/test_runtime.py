"""The runtime that others are tested with does what a container runtime does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fakes.cdi_cache import CdiCache, Unresolvable
from tests.kit.fakes.container import inside
from tests.kit.node import until
from tests.kit.places import REPO


def spec(kind: str = "vendor.com/thing", **devices: dict[str, Any]) -> str:
    return json.dumps(
        {
            "cdiVersion": "0.6.0",
            "kind": kind,
            "devices": [{"name": name, "containerEdits": edits} for name, edits in devices.items()],
        }
    )


def put(directory: Path, name: str, text: str) -> Path:
    """Write a file as every careful writer does: beside its place, then renamed."""
    temporary = directory / f".{name}.tmp"
    temporary.write_text(text)
    return temporary.rename(directory / name)


# --- the cache ------------------------------------------------------------------------------------


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    made = (tmp_path / "etc", tmp_path / "run")
    for directory in made:
        directory.mkdir()
    return made


def test_a_later_directory_goes_first_and_a_name_twice_in_one_is_in_neither(
    directories: tuple[Path, Path],
) -> None:
    early, late = directories
    put(early, "a.json", spec(one={"env": ["FROM=etc"]}, two={"env": ["FROM=etc"]}))
    put(late, "b.json", spec(one={"env": ["FROM=run"]}, three={}))
    put(late, "c.json", spec(three={}))
    cache = CdiCache(directories)
    assert cache.inject(["vendor.com/thing=one"]) == {"env": ["FROM=run"]}
    assert cache.names() == ["vendor.com/thing=one", "vendor.com/thing=two"]
    with pytest.raises(Unresolvable, match="three"):
        cache.inject(["vendor.com/thing=three"])
    cache.close()


def test_a_file_that_cannot_be_read_is_told_and_leaves_the_others_alone(
    directories: tuple[Path, Path],
) -> None:
    put(directories[1], "a.json", "{")
    put(directories[1], "b.json", spec(one={}))
    cache = CdiCache(directories)
    assert [path.name for path in cache.errors] == ["a.json"]
    assert cache.names() == ["vendor.com/thing=one"]
    cache.close()


def test_a_file_renamed_in_its_directory_is_noticed_and_one_from_elsewhere_is_not(
    directories: tuple[Path, Path], tmp_path: Path
) -> None:
    cache = CdiCache(directories, watch=True)
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(spec(foreign={}))
    elsewhere.rename(directories[1] / "foreign.json")
    (tmp_path / "linked").write_text(spec(linked={}))
    os.link(tmp_path / "linked", directories[1] / "linked.json")
    before = cache.scans
    assert cache.names() == [], "nothing tells the library of these"
    assert cache.scans == before
    put(directories[1], "own.json", spec(own={}))
    until("the rename is noticed", lambda: "vendor.com/thing=own" in cache.names())
    assert "vendor.com/thing=foreign" in cache.names(), "found by the way"
    (directories[1] / "own.json").unlink()
    until("the removal is noticed", lambda: "vendor.com/thing=own" not in cache.names())
    cache.close()


@pytest.mark.parametrize(
    ("link", "found"),
    [("/etc", "etc/x"), ("../../../etc", "etc/x"), ("sub", "a/sub/x"), ("/a/link", None)],
)
def test_links_of_an_image_stay_in_its_root(tmp_path: Path, link: str, found: str | None) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to(link)
    if found is None:
        with pytest.raises(Exception, match="too many links"):
            inside(tmp_path, "/a/link/x")
    else:
        assert inside(tmp_path, "/a/link/x") == tmp_path / found


# --- the container --------------------------------------------------------------------------------


def run(
    directory: Path, *arguments: str, command: tuple[str, ...] = ("true",)
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.kit.fakes.runtime", "run"),
            *("--cdi-dir", str(directory), *arguments, "--", *command),
        ],
        capture_output=True,
        text=True,
        cwd=REPO,
        timeout=120,
    )


@pytest.fixture
def cdi(tmp_path: Path) -> Path:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "inner" / "file").touch()
    (tmp_path / "data" / "file").write_text("host\n")
    hook = tmp_path / "hook"
    hook.write_text(
        '#!/bin/sh\nread -r state\nprintf "%s %s %s\\n" "$1" "$PWD" "$state" >> "$2"\n'
        'exit "${3:-0}"\n'
    )
    hook.chmod(0o755)
    edits: dict[str, Any] = {
        "env": ["FROM=device"],
        "deviceNodes": [{"path": "/dev/thing", "hostPath": "/dev/zero", "fileMode": 0o600}],
        "mounts": [
            {"hostPath": f"{tmp_path}/data/file", "containerPath": "/data/inner/file"},
            {"hostPath": f"{tmp_path}/data", "containerPath": "/data", "options": ["ro", "rbind"]},
        ],
        "additionalGids": [4242],
    }
    hooks = [
        {"hookName": moment, "path": str(hook), "args": ["hook", moment, f"{tmp_path}/log"]}
        for moment in ("createRuntime", "createContainer", "poststop")
    ]
    failing = {
        "hookName": "createRuntime",
        "path": str(hook),
        "args": ["hook", "x", "/dev/null", "3"],
    }
    put(
        tmp_path / "cdi",
        "thing.json",
        spec(
            one={**edits, "hooks": hooks},
            failing={"hooks": [failing]},
            gone={"mounts": [{"hostPath": "/nonexistent", "containerPath": "/x"}]},
            odd={"mounts": [{"hostPath": "/etc", "containerPath": "/x", "options": ["odd"]}]},
            file={"deviceNodes": [{"path": "/dev/x", "hostPath": "/etc/passwd"}]},
        ),
    )
    return tmp_path / "cdi"


def mounts() -> set[str]:
    """Mounts of the machine, except for the grants of daemons that run beside these tests and come
    at any time."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if " - tmpfs sluice " not in line}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root")
class TestContainer:
    def test_edits_are_applied_and_nothing_of_it_stays(self, cdi: Path) -> None:
        script = (
            'echo "$FROM $(id -G) $(stat -c %F:%t:%a /dev/thing) $$";'
            "cat /data/inner/file; touch /data/x; ls /run /tmp; mount -t tmpfs x /mnt;"
            "echo gone > /made-in-container; exit 7"
        )
        before = mounts()
        done = run(
            cdi,
            *("--device", "vendor.com/thing=one", "--env", "FROM=container"),
            command=("sh", "-c", script),
        )
        assert done.stdout == "device 0 4242 character special file:1:600 1\nhost\n/run:\n\n/tmp:\n"
        assert "Read-only file system" in done.stderr
        assert "permission denied" in done.stderr.lower(), "a container's root cannot mount"
        assert done.returncode == 7
        assert not Path("/made-in-container").exists()
        assert mounts() <= before

    def test_hooks_run_in_their_order_with_the_state_and_the_last_after_the_end(
        self, cdi: Path
    ) -> None:
        assert run(cdi, "--device", "vendor.com/thing=one").returncode == 0
        lines = [line.split(" ", 2) for line in (cdi.parent / "log").read_text().splitlines()]
        assert [line[0] for line in lines] == ["createRuntime", "createContainer", "poststop"]
        states = [json.loads(line[2]) for line in lines]
        assert [state["status"] for state in states] == ["creating", "creating", "stopped"]
        assert lines[1][1] == states[1]["bundle"].replace("/bundle", "/layers/root")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("none", "unresolvable CDI devices vendor.com/thing=none"),
            ("failing", "createRuntime hook"),
            ("gone", "/nonexistent does not exist"),
            ("odd", "mount option 'odd'"),
            ("file", "/etc/passwd is no device"),
        ],
    )
    def test_what_cannot_be_made_is_not_started_and_says_why(
        self, cdi: Path, name: str, message: str
    ) -> None:
        done = run(cdi, "--device", f"vendor.com/thing={name}", command=("echo", "started"))
        assert (done.returncode, done.stdout) == (125, "")
        assert message in done.stderr

    def test_everything_that_the_kubelet_hands_over_is_done(self, cdi: Path) -> None:
        answer = {
            "annotations": {"cdi.k8s.io/x": "vendor.com/thing=one", "other": "vendor.com/thing=x"},
            "environment": {"OWN": "1"},
            "mounts": [
                {"container_path": "/m", "host_path": f"{cdi.parent}/made", "read_only": False}
            ],
        }
        done = run(
            cdi,
            *("--answer", json.dumps(answer), "--user", "12:34"),
            command=("sh", "-c", 'echo "$OWN $FROM $(id -u):$(id -g)"; ls -d /m'),
        )
        assert done.stdout == "1 device 12:34\n/m\n", done.stderr
        assert (cdi.parent / "made").is_dir(), "as the CRI does with a path that is not there"

    @pytest.mark.parametrize(
        ("command", "status"),
        [(("/nonexistent",), 127), (("sh", "-c", "kill -9 $$; exit 3"), 3)],
        ids=["no such command", "the first process cannot kill itself"],
    )
    def test_the_status_is_the_commands(
        self, cdi: Path, command: tuple[str, ...], status: int
    ) -> None:
        assert run(cdi, command=command).returncode == status

    def test_another_image_is_its_root(self, cdi: Path, tmp_path: Path) -> None:
        image = tmp_path / "image"
        (image / "bin").mkdir(parents=True)
        source = tmp_path / "show.c"
        source.write_text(
            '#include <stdio.h>\n#include <unistd.h>\nint main(void) { puts(access("/etc", 0) ?'
            ' "empty" : "host"); return 0; }\n'
        )
        subprocess.run(["cc", "-static", "-o", image / "bin/show", source], check=True)
        done = run(cdi, "--rootfs", str(image), command=("/bin/show",))
        assert done.stdout == "empty\n", done.stderr
        assert sorted(path.name for path in image.iterdir()) == ["bin"]
