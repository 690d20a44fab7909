"""Fixtures of all tests against the kubelet of the kit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodeagent.shell.pods.deviceplugin import undisturbed


@pytest.fixture(autouse=True, scope="session")
def stores_at_once() -> Iterator[None]:
    """This kubelet stores an answer to Allocate before it does anything else."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(undisturbed, "STORED_S", 0.0)
        yield
