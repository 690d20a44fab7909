"""The hook a runtime starts while it makes a container: our line first in the image's own /etc/ld.so.preload, whatever
the image has there, and nothing outside of the image touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.places import CONTAINER_HOOK

LIBRARY = "/run/sluice/lib/libsluice.so"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root"),
]


@dataclass
class Bundle:
    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / "rootfs"

    @property
    def preload(self) -> Path:
        return self.root / "etc" / "ld.so.preload"

    def state(self) -> str:
        return json.dumps(
            {"ociVersion": "1.1.0", "id": "c", "status": "creating", "bundle": str(self.directory)}
        )

    def run(
        self,
        after: str = "cat rootfs/etc/ld.so.preload",
        state: str | None = None,
        before: str = "true",
        **env: str,
    ) -> subprocess.CompletedProcess[str]:
        """The hook, and then `after`, in one mount namespace, as a runtime has it before it changes its root."""
        return subprocess.run(
            [
                "unshare",
                "--mount",
                "--propagation=private",
                "sh",
                "-c",
                f'mount --rbind rootfs rootfs && {before} && "$0" preload {LIBRARY} && {after}',
                CONTAINER_HOOK,
            ],
            input=self.state() if state is None else state,
            capture_output=True,
            text=True,
            cwd=self.directory,
            timeout=120,
            env=os.environ | env,
        )


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    made = Bundle(tmp_path / "bundle")
    (made.root / "etc").mkdir(parents=True)
    # The runtime's, for the mount of our library.
    (made.root / "run/sluice/lib").mkdir(parents=True)
    (made.directory / "config.json").write_text(
        json.dumps({"ociVersion": "1.1.0", "root": {"path": "rootfs"}, "linux": {}})
    )
    return made


@pytest.mark.parametrize(
    ("link", "covered", "after"),
    [
        ("/data/key", "data/key", f"{LIBRARY}\n"),
        ("../data/key", "data/key", f"{LIBRARY}\n"),
        # A link in the volume that leads back is to the image's own file.
        ("/data/back", "etc/own", f"{LIBRARY}\n/own.so\n"),
    ],
    ids=["absolute", "relative", "back into the image"],
)
def test_a_file_of_a_volume_is_not_read(
    bundle: Bundle, tmp_path: Path, link: str, covered: str, after: str
) -> None:
    """The image leads to a file that its user may not read; the hook reads as root."""
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "key").write_text("secret-words\n")
    (volume / "key").chmod(0o600)
    (volume / "back").symlink_to("/etc/own")
    (bundle.root / "etc" / "own").write_text("/own.so\n")
    (bundle.root / "data").mkdir()
    bundle.preload.symlink_to(link)
    done = bundle.run(before=f"mount --bind {volume} rootfs/data", after=f"cat rootfs/{covered}")
    assert (done.returncode, done.stdout) == (0, after), done.stderr
    assert (volume / "key").read_text() == "secret-words\n"


def test_a_volume_as_etc_is_covered_unread(bundle: Bundle, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "ld.so.preload").write_text("/theirs.so\n")
    done = bundle.run(before=f"mount --bind {volume} rootfs/etc")
    assert (done.returncode, done.stdout) == (0, f"{LIBRARY}\n"), done.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, f"{LIBRARY}\n"),
        ("", f"{LIBRARY}\n"),
        ("/usr/lib/libjemalloc.so\n", f"{LIBRARY}\n/usr/lib/libjemalloc.so\n"),
        ("/usr/lib/libjemalloc.so", f"{LIBRARY}\n/usr/lib/libjemalloc.so\n"),
        (f"# {LIBRARY}\n/a.so\n", f"{LIBRARY}\n/a.so\n"),
        (f"{LIBRARY}.old\n", f"{LIBRARY}\n{LIBRARY}.old\n"),
        (f"/a.so:{LIBRARY} /b.so\n", f"{LIBRARY}\n/a.so\n/b.so\n"),
        (f"{LIBRARY}\n", f"{LIBRARY}\n"),
        (f"/evil.so {LIBRARY}\n", f"{LIBRARY}\n/evil.so\n"),
        (f"x#y {LIBRARY}\n", f"{LIBRARY}\nx\n"),
        (f"x#y {LIBRARY}", f"{LIBRARY}\nx\n"),
        (f"a #\n\t:{LIBRARY}:: b#{LIBRARY}#\n#\nc", f"{LIBRARY}\na\nb\nc\n"),
        (f"/a.so\0{LIBRARY}\n", f"{LIBRARY}\n/a.so\n"),
    ],
    ids=[
        "none",
        "an empty one",
        "another library",
        "no newline at its end",
        "ours in a comment",
        "a longer name",
        "ours already, behind another",
        "ours already, alone",
        "ours already, behind an evil one",
        "ours behind a comment in the middle of a word",
        "the same without a newline",
        "comments and ends of names of every kind",
        "nothing counts behind a NUL",
    ],
)
def test_ours_goes_before_what_the_image_has(
    bundle: Bundle, before: str | None, after: str
) -> None:
    if before is not None:
        bundle.preload.write_text(before)
    done = bundle.run()
    assert (done.returncode, done.stdout) == (0, after), done.stderr
    assert bundle.preload.read_text() == (before or ""), "the image itself is not written to"


def test_the_container_cannot_write_it_and_nothing_else_stays_mounted(bundle: Bundle) -> None:
    bundle.preload.write_text("/a.so\n")
    done = bundle.run(
        "{ echo x >> rootfs/etc/ld.so.preload; ls -a rootfs/run/sluice/lib; cat /proc/self/mountinfo; }"
    )
    assert "Read-only file system" in done.stderr
    ours = [line.split() for line in done.stdout.splitlines() if str(bundle.directory) in line]
    targets = [line[4].removeprefix(str(bundle.root)) for line in ours]
    assert targets == ["", "/etc/ld.so.preload"]
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(ours[1][5].split(","))
    assert done.stdout.splitlines()[:2] == [".", ".."]


@pytest.mark.parametrize("at", ["etc/ld.so.preload", "etc"])
def test_links_of_the_image_lead_nowhere_on_the_host(
    bundle: Bundle, tmp_path: Path, at: str
) -> None:
    outside = tmp_path / "host"
    outside.mkdir()
    (outside / "ld.so.preload").write_text("the host's\n")
    place = bundle.root / at
    if at == "etc":
        place.rmdir()
        place.symlink_to(outside)
    else:
        place.symlink_to(outside / "ld.so.preload")
    done = bundle.run()
    assert done.returncode == 1
    assert done.stderr.startswith("sluice-container-hook: ")
    assert (outside / "ld.so.preload").read_text() == "the host's\n"
    assert list(outside.iterdir()) == [outside / "ld.so.preload"]


def test_a_link_within_the_image_is_followed_as_its_programs_would(bundle: Bundle) -> None:
    (bundle.root / "opt").mkdir()
    (bundle.root / "opt" / "list").write_text("/a.so\n")
    bundle.preload.symlink_to("/opt/list")
    done = bundle.run("cat rootfs/opt/list")
    assert (done.returncode, done.stdout) == (0, f"{LIBRARY}\n/a.so\n"), done.stderr


@pytest.mark.parametrize("kind", ["directory", "pipe", "too large"])
def test_what_is_no_file_is_refused_at_once(bundle: Bundle, kind: str) -> None:
    if kind == "directory":
        bundle.preload.mkdir()
    elif kind == "pipe":
        os.mkfifo(bundle.preload)
    else:
        bundle.preload.write_text("x" * (1 << 17))
    done = bundle.run()
    assert done.returncode == 1
    assert "/etc/ld.so.preload of the image" in done.stderr


@pytest.mark.parametrize(
    ("kind", "path"),
    [("proc", "keys"), ("proc", "kmsg"), ("sysfs", "kernel/notes"), ("proc", "self/environ")],
)
def test_a_link_to_a_file_of_the_kernel_is_refused_unread(
    bundle: Bundle, kind: str, path: str
) -> None:
    """Reading /proc/kmsg takes the messages away and waits for the next one."""
    (bundle.root / "kernel").mkdir()
    bundle.preload.symlink_to(f"/kernel/{path}")
    done = bundle.run(before=f"mount -t {kind} none rootfs/kernel")
    assert (done.returncode, done.stdout) == (1, "")
    assert "/etc/ld.so.preload of the image leads to a file of the kernel" in done.stderr


def test_a_runtime_that_never_ends_its_sentence_is_not_waited_for(bundle: Bundle) -> None:
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [CONTAINER_HOOK, "preload", LIBRARY],
            stdin=reader,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(reader)
        os.close(writer)
    assert (done.returncode, done.stdout) == (1, "")
    assert "timed out" in done.stderr


FUSE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("/dev/fuse", os.O_RDWR)
os.set_inheritable(fd, True)
options = f"fd={fd},rootmode=100644,user_id=0,group_id=0".encode()
if libc.mount(b"image", b"rootfs/etc/ld.so.preload", b"fuse", 0, options) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])
"""


@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK), reason="no FUSE in this kernel")
def test_a_server_of_the_image_that_never_answers_is_not_waited_for(
    bundle: Bundle, tmp_path: Path
) -> None:
    bundle.preload.write_text("")
    script = tmp_path / "fuse.py"
    script.write_text(FUSE)
    hook = f"{CONTAINER_HOOK} preload {LIBRARY}; echo status $?"
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation=private", "sh", "-c"),
            'mount --rbind rootfs rootfs && exec "$0" "$1" "$2"',
            *(sys.executable, script, hook),
        ],
        input=bundle.state(),
        capture_output=True,
        text=True,
        cwd=bundle.directory,
        timeout=60,
    )
    assert done.stdout in ("status 1\n", "status 137\n"), done  # a sentence, or the kernel's
    assert done.returncode == 0, done


def test_no_library_of_the_image_gets_into_it(bundle: Bundle, tmp_path: Path) -> None:
    """Runtimes have started hooks with the container's environment, in its root: CVE-2025-23266."""
    listing = subprocess.run(["readelf", "-ld", CONTAINER_HOOK], capture_output=True, text=True)
    assert "INTERP" not in listing.stdout
    assert "NEEDED" not in listing.stdout
    source, library = tmp_path / "evil.c", tmp_path / "evil.so"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void)"
        f'{{ FILE *f = fopen("{tmp_path}/was-here", "a"); fclose(f); }}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    done = subprocess.run(
        [CONTAINER_HOOK, "preload", LIBRARY],
        input="{}",
        capture_output=True,
        text=True,
        env={"LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(tmp_path)},
        timeout=120,
    )
    assert done.returncode == 1
    assert not (tmp_path / "was-here").exists()
    subprocess.run(
        ["true"], env={"LD_PRELOAD": str(library), "PATH": os.environ["PATH"]}, check=True
    )
    assert (tmp_path / "was-here").exists(), "the library would have run elsewhere"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("", 'no "bundle"'),
        ("[]", 'no "bundle"'),
        ('{"bundle": 7}', 'no "bundle"'),
        ('{"bundle": ""}', 'no "bundle"'),
        ('{"x": {"bundle": "/"}}', 'no "bundle"'),
        ('{"bundle": "\\u0000"}', 'no "bundle"'),
        ('{"bundle": "/nonexistent"}', "config.json in /nonexistent"),
        (
            '{"a": "}", "b": [{"c": "\\""}], "bundle": "/non\\u0065xistent"}',
            "config.json in /nonexistent",
        ),
    ],
)
def test_a_state_that_is_not_understood_ends_it_with_a_sentence(
    bundle: Bundle, state: str, message: str
) -> None:
    done = bundle.run(state=state)
    assert done.returncode == 1
    assert message in done.stderr


def test_every_part_of_a_state_and_of_a_configuration_is_survived(bundle: Bundle) -> None:
    state = json.dumps({"a": ["\\", {"b": "\u00e9\U0001f600"}], "bundle": "/nonexistent"})
    for length in range(len(state) + 1):
        done = subprocess.run(
            [CONTAINER_HOOK, "preload", LIBRARY],
            input=state[:length],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 1, (length, done)
    config = (bundle.directory / "config.json").read_text()
    for length in range(config.index("}")):
        (bundle.directory / "config.json").write_text(config[:length])
        assert bundle.run().returncode == 1


@pytest.mark.parametrize(
    "arguments", [[], ["preload"], ["preload", "relative.so"], ["other", "/a"]]
)
def test_a_wrong_call_says_how_it_is_used(arguments: list[str]) -> None:
    done = subprocess.run(
        [CONTAINER_HOOK, *arguments], capture_output=True, text=True, input="", timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
