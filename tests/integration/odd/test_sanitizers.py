"""Programs built with a sanitizer, with and without CUDA, in a grant by both ways of injection."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.odd.programs import BY_MOUNT, started
from tests.kit.node import Node, running
from tests.kit.places import BUILD, SIM

GCC = shutil.which("gcc")
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv)
{
	size_t bytes = 0;
	char *text = strdup(argv[0]);
	void *cuda = argc > 1 ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;

	if (cuda && ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0))
		return 1;
	if (cuda && ((int (*)(size_t *, int))dlsym(cuda, "cuDeviceTotalMem_v2"))(&bytes, 0))
		return 1;
	printf("%zu MiB\\n", bytes >> 20);
	free(text);
	return argc > 2 ? text[0] : 0;
}
"""

pytestmark = pytest.mark.skipif(GCC is None, reason="gcc builds the programs")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("sanitized"), gpus="h100-80gb") as started:
        yield started


def built(directory: Path, *flags: str) -> Path:
    program = directory / "program"
    (directory / "program.c").write_text(PROGRAM)
    done = subprocess.run(
        [str(GCC), "-g", "-O1", *flags, "-o", program, directory / "program.c", "-ldl"],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"this gcc has no {' '.join(flags)}: {done.stderr[-200:]}")
    return program


@pytest.mark.parametrize(
    ("sanitizer", "way"),
    [
        ("address", "mount"),
        ("address", "environment"),
        ("undefined", "environment"),
        ("leak", "environment"),
    ],
)
def test_a_sanitized_program_starts_in_a_grant_and_is_capped(
    node: Node, tmp_path: Path, sanitizer: str, way: str
) -> None:
    if way == "mount" and not BY_MOUNT:
        pytest.skip("mounting takes root")
    program = built(tmp_path, f"-fsanitize={sanitizer}")
    flags = ("--gpumem", "2Gi", "--inject", way)
    # What the simulator and the interposer keep until the end is no leak of the program.
    env = {"LSAN_OPTIONS": "detect_leaks=0", "ASAN_OPTIONS": "detect_leaks=0"}
    for arguments, printed in (((), "0 MiB\n"), (("cuda",), "2048 MiB\n")):
        done = started(node, str(program), *arguments, flags=flags, env=env)
        assert (done.stdout, done.returncode) == (printed, 0), done.stderr[-2000:]


def test_the_sanitizer_still_finds_what_it_is_for(node: Node, tmp_path: Path) -> None:
    program = built(tmp_path, "-fsanitize=address")
    done = started(node, str(program), "cuda", "wrong", flags=("--gpumem", "2Gi"))
    assert done.returncode != 0
    assert "heap-use-after-free" in done.stderr


def test_the_preloaded_library_alone_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    """As a pod has it by /etc/ld.so.preload, which is searched in the same order."""
    program = built(tmp_path, "-fsanitize=address")
    done = subprocess.run(
        [program],
        env={"LD_PRELOAD": str(BUILD / "preload" / "libsluice.so"), "LD_LIBRARY_PATH": str(SIM)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("0 MiB\n", 0), done.stderr
