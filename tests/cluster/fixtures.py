"""Fixtures for tests of other directories: `from tests.cluster.fixtures import control_plane` and
mark them `cluster`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server with its etcd, empty, for the tests of one file."""
    directory = Path(tempfile.mkdtemp(prefix="control-plane-"))
    try:
        with ControlPlane(directory) as plane:
            yield plane
    finally:
        shutil.rmtree(directory, ignore_errors=True)
