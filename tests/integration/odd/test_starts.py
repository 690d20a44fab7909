"""Programs that start in odd ways in a grant, what they then see of it, and what else lies around on the node."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.odd.programs import BY_MOUNT, GIB, in_grant, python, started
from tests.kit.node import Node, running, until
from tests.kit.places import AT_REST

FLAGS = ("--gpumem", "4Gi")
TOTAL = "ok(cuda.cuInit(0))\nprint(total() >> 20)"
CONSTRUCTOR = """
#include <dlfcn.h>
#include <stdio.h>
__attribute__((constructor)) static void early(void)
{
	size_t bytes = 0;
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);

	if (!cuda || ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0))
		return;
	((int (*)(size_t *, int))dlsym(cuda, "cuDeviceTotalMem_v2"))(&bytes, 0);
	printf("%zu\\n", bytes >> 20);
}
int main(void)
{
	return 0;
}
"""
WAYS = {
    "limit of descriptors": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))",
    "closed input": "os.close(0)",
    "closed error": "os.close(2)",
    "no core files, small stack": "import resource; resource.setrlimit(8, (1 << 16, 1 << 16))",
    "a session of its own": "os.setsid()",
    "another directory that goes": "os.mkdir('/tmp/gone-%d' % os.getpid());"
    " os.chdir('/tmp/gone-%d' % os.getpid()); os.rmdir(os.getcwd())",
    "umask 077": "os.umask(0o77)",
    "signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))",
    "children ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "a locale that is none": "os.environ['LC_ALL'] = 'xx_YY.none'",
    "an environment variable of a megabyte": "os.environ['X'] = 'x' * 100_000",
}
CLEARED = {
    "env -i": ("env", "-i"),
    "a shell of its own": ("env", "-i", "/bin/sh", "-c", '"$0" "$@"'),
    "setsid": ("env", "-i", "setsid", "--wait"),
    "chroot to /": (shutil.which("chroot") or "/usr/sbin/chroot", "/", "/usr/bin/env", "-i"),
    "unset": ("env", "-u", "LD_LIBRARY_PATH", "-u", "LD_PRELOAD", "-u", "SLUICE_GRANT_DIR"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("starts"), gpus="h100-80gb") as started:
        yield started


@pytest.mark.parametrize("way", WAYS)
def test_a_start_in_an_odd_place_is_a_start_in_the_grant(node: Node, way: str) -> None:
    done = started(node, *python(f"{WAYS[way]}\n{TOTAL}"), flags=FLAGS)
    assert (done.stdout, done.returncode) == ("4096\n", 0), done.stderr


@pytest.mark.skipif(not BY_MOUNT, reason="mounting takes root")
@pytest.mark.parametrize("way", CLEARED)
def test_a_cleared_environment_has_the_same_limits(node: Node, way: str) -> None:
    # The simulated driver is found by no name of its own: what is mounted over it is.
    flags = (*FLAGS, "--inject", "mount")
    program = python(TOTAL)
    code = program[-1].replace(
        'c.CDLL("libcuda.so.1")', f"c.CDLL({node.environment()['SLUICE_DRIVER']!r})"
    )
    keep = {name: node.environment()[name] for name in ("SLUICE_SIM_DIR", "SLUICE_SIM_GPUS")}
    code = f"import os\nos.environ.update({keep!r})\n{code}"
    done = started(node, *CLEARED[way], program[0], "-c", code, flags=flags)
    assert (done.stdout, done.returncode) == ("4096\n", 0), done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the program")
def test_cuda_from_a_constructor_before_main(node: Node, tmp_path: Path) -> None:
    (tmp_path / "early.c").write_text(CONSTRUCTOR)
    subprocess.run(
        ["gcc", "-o", tmp_path / "early", tmp_path / "early.c", "-ldl"], check=True, timeout=60
    )
    done = started(node, str(tmp_path / "early"), flags=FLAGS)
    assert (done.stdout, done.returncode) == ("4096\n", 0), done.stderr


def test_cuda_and_nvml_have_one_figure_at_every_step(node: Node) -> None:
    code = """
    class Memory(c.Structure):
        _fields_ = [(name, c.c_ulonglong) for name in ("total", "free", "used")]
    class Memory2(c.Structure):
        _fields_ = [("version", c.c_uint)] + [(name, c.c_ulonglong)
                    for name in ("total", "reserved", "free", "used")]
    init()
    nvml, handle = management(), pointer()
    ok(nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle)))
    def figures():
        one, two = Memory(), Memory2(c.sizeof(Memory2) | 2 << 24)
        ok(nvml.nvmlDeviceGetMemoryInfo(handle, byref(one)))
        ok(nvml.nvmlDeviceGetMemoryInfo_v2(handle, byref(two)))
        free_bytes, all_bytes = info()
        return [[all_bytes, one.total, two.total, total()], [free_bytes, one.free, two.free]]
    steps = [figures()]
    code, p = alloc(3 * GIB)
    ok(code)
    steps.append(figures())
    ok(free(p))
    steps.append(figures())
    answer(steps=steps)
    """
    steps = in_grant(node, code, flags=FLAGS)["steps"]
    for totals, free in steps:
        assert set(totals) == {4 * GIB}
        assert max(free) - min(free) <= 2 << 20, free
    assert steps[0] == steps[2]
    assert 3 * GIB <= steps[0][1][0] - steps[1][1][0] <= 3 * GIB + (2 << 20)


def test_a_process_that_is_killed_or_stopped_leaves_its_sibling_alone(node: Node) -> None:
    code = """
    CHILD = PRELUDE_OF_ALL + "init(); ok(alloc(GIB)[0]); print(1, flush=True); sys.stdin.read()"
    def child():
        one = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
        one.stdout.readline()
        return one
    init()
    before = info()[0]
    codes = []
    for number in range(6):
        one = child()
        one.send_signal(signal.SIGSTOP if number % 2 else signal.SIGKILL)
        codes.append(alloc(64 * MIB))
        ok(free(codes[-1][1]))
        one.kill()
        one.wait()
    deadline = time.monotonic() + 60
    while info()[0] != before and time.monotonic() < deadline:
        time.sleep(0.05)
    answer(codes=[one[0] for one in codes], back=info()[0] == before)
    """
    code = f"PRELUDE_OF_ALL = {python('')[2]!r}\n" + "\n".join(
        line[4:] for line in code.splitlines()
    )
    got = in_grant(node, code, flags=FLAGS)
    assert got["codes"] == [0] * 6
    assert got["back"]


def test_odd_files_beside_the_regions_are_left_alone_over_a_restart(tmp_path: Path) -> None:
    with running(tmp_path / "n", gpus="h100-80gb") as node:
        job = node.run_tenant("job", *AT_REST, flags=("--gpumem", "2Gi", "--cores", "20"))
        until("it is registered", lambda: (node.grant("job") or {}).get("processes") == 1)
        places = [node.directory / "state", node.directory / "run"]
        places += [one for one in (node.directory / "run").iterdir() if one.is_dir()]
        made = [path for place in places for path in odd_files(place)]
        for place in ("grants", "pods"):
            region = node.directory / "run" / place / "00000000-0000-4000-8000-000000000001"
            if region.parent.is_dir():
                odd_files(region / "x")
        node.kill_daemon()
        node.start()
        found = node.grant("job")
        assert found is not None
        assert found["pid"] == job.process.pid
        assert found["processes"] == 1
        again = node.cli(
            "run", "--quiet", "--cores", "20", "--gpumem", "2Gi", "--", "true", check=False
        )
        assert again.returncode == 0, again.stderr
        assert "Traceback" not in (node.directory / "daemon.log").read_text()
        foreign = [path for path in made if not os.path.lexists(path)]
        assert not foreign, "a file that is not ours was removed"
        job.process.send_signal(signal.SIGKILL)


def odd_files(place: Path) -> list[Path]:
    place.mkdir(parents=True, exist_ok=True)
    made = [place / "empty", place / "x", place / "sparse", place / "pipe", place / "socket"]
    made += [place / "dangling", place / ("n" * 255), place / "lost+found"]
    made[0].touch()
    made[1].mkdir()
    with made[2].open("wb") as sparse:
        sparse.truncate(4 * GIB)
    os.mkfifo(made[3])
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(place)  # a path of a socket has 107 bytes at most
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    made[5].symlink_to("/nowhere/at/all")
    made[6].touch()
    made[7].mkdir()
    odd = os.fsencode(place) + b"/\xff\xfe"
    with open(odd, "wb"):
        pass
    return made
