"""Programs for which no preloaded library exists: musl reads no /etc/ld.so.preload, and a static program has no loader.
The mounts over the driver hold for both: our library or no CUDA."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.pods.containers import container, result
from tests.kit.places import REPO, SIM
from tests.kit.pods import PodNode, pod_node
from tests.kit.workplace import workplace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="making containers needs root"),
]
CAP_MIB = 2048
OUT_OF_MEMORY = 2
IN_CONTAINER = ("libcuda.so.1", "/usr/lib64/libcuda.so.1")
SOURCE = """
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *driver = dlopen(argv[1], RTLD_NOW);
	if (!driver) {
		printf("{\\"cuda\\": false, \\"why\\": \\"%s\\"}\\n", dlerror());
		return 0;
	}
	int ours = dlsym(driver, "sluice_interposer_major") != NULL;
	if (argc > 2) {
		printf("{\\"cuda\\": true, \\"ours\\": %d}\\n", ours);
		return 0;
	}
	void *context = NULL;
	unsigned long long at = 0;
	size_t free_bytes = 0, total = 0;
	int began = ((int (*)(unsigned))dlsym(driver, "cuInit"))(0);
	((int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0);
	((int (*)(void *))dlsym(driver, "cuCtxSetCurrent"))(context);
	((int (*)(size_t *, size_t *))dlsym(driver, "cuMemGetInfo_v2"))(&free_bytes, &total);
	int big = ((int (*)(unsigned long long *, size_t))dlsym(driver, "cuMemAlloc_v2"))(&at, (size_t)3 << 30);
	printf("{\\"cuda\\": true, \\"ours\\": %d, \\"init\\": %d, \\"total\\": %zu, \\"big\\": %d}\\n",
		ours, began, total, big);
	return 0;
}
"""


@pytest.fixture(scope="module")
def place() -> Iterator[PodNode]:
    with workplace() as directory, pod_node(directory, gpus="1xh100-80gb", devices=10) as made:
        yield made


def musl_gcc() -> str:
    done = subprocess.run(
        [REPO / "packaging" / "fetch" / "musl-tool.sh"], capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip()


def compiled(place: PodNode, name: str, compiler: str, *flags: str) -> Path:
    """In a directory that the container sees, too."""
    source = place.node.directory / "gpu" / f"{name}.c"
    source.write_text(SOURCE)
    program = source.with_suffix("")
    made = subprocess.run(
        [compiler, "-o", program, source, *flags], capture_output=True, text=True, timeout=120
    )
    assert made.returncode == 0, made.stderr
    return program


def attempts(
    place: PodNode, name: str, program: Path, libraries: tuple[str, ...], *more: str
) -> list[Any]:
    uid = place.kubelet.admit(name, gpumem=CAP_MIB, gpucores=30)
    devices = place.kubelet.cdi_devices(uid)
    path = f"/usr/lib64:{SIM}"
    return [
        result(container(place, devices, str(program), one, *more, env={"LD_LIBRARY_PATH": path}))
        for one in libraries
    ]


def test_the_program_of_these_tests_is_held_where_the_library_loads(place: PodNode) -> None:
    program = compiled(place, "plain", "gcc")
    for found in attempts(place, "plain", program, IN_CONTAINER):
        assert found == {
            "cuda": True,
            "ours": 1,
            "init": 0,
            "total": CAP_MIB << 20,
            "big": OUT_OF_MEMORY,
        }


def test_a_musl_program_has_no_cuda(place: PodNode) -> None:
    """Neither our library nor a driver for glibc loads under musl: there is nothing to exceed."""
    program = compiled(place, "musl", musl_gcc())
    libraries = (*IN_CONTAINER, "/run/sluice/driver/libcuda.so.1")
    for found in attempts(place, "musl", program, libraries):
        assert found["cuda"] is False
        # It was found, and refused for what it needs of glibc.
        assert re.search(r"relocating .*libcuda|needed by .*libcuda", found["why"]), found


def test_a_static_program_that_opens_the_driver_gets_our_library(place: PodNode) -> None:
    """It is only loaded: in a static program the simulated driver crashes by itself,
    for what glibc's loader lacks there."""
    program = compiled(place, "static", "gcc", "-static")
    found = attempts(place, "static", program, IN_CONTAINER, "load")
    assert found == [{"cuda": True, "ours": 1}] * len(IN_CONTAINER)
