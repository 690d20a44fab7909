"""`make test-cluster`: builds what the cluster and the image are made of, says how long that took, then runs the scenarios.

What cannot be built fails the scenarios that need it, with the reason; only without any Go are they skipped. Arguments are
pytest's.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import pytest

from tests.cluster import build, images, pins, product, prometheus
from tests.cluster.build import Unbuildable
from tests.places import REPO


def main(arguments: list[str]) -> int:
    for what, make in parts():
        begin_s = time.monotonic()
        try:
            make()
        except (Unbuildable, OSError) as error:
            print(f"test-cluster: {what}: {error}", file=sys.stderr, flush=True)
        else:
            print(f"test-cluster: {what}: {time.monotonic() - begin_s:.0f} s", flush=True)
    return int(pytest.main([str(REPO / "tests" / "cluster"), "-m", "cluster", *arguments]))


def parts() -> list[tuple[str, Callable[[], object]]]:
    minors = dict.fromkeys(
        [pins.wanted_minor(), os.environ.get("SLUICE_KUBERNETES_ALSO") or pins.wanted_minor()]
    )
    kubernetes = [
        (f"Kubernetes {minor}", lambda minor=minor: build.kubernetes(minor)) for minor in minors
    ]
    return [
        *kubernetes,
        ("containerd", build.containerd),
        ("Debian's packages", build.debian),
        ("small images", lambda: images.made(build.programs())),
        ("Prometheus", prometheus.program),
        ("helm", product.helm),
        ("the image of this tree", product.images),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
