"""Certificates that ran out, of somebody else, of another name, and none at all: refused, and the others are served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pond import Pond
from tests.queue.service.certificates import Authority, Pair

pytestmark = pytest.mark.faults


@dataclass
class Guarded:
    pond: Pond
    authority: Authority

    def asked_with(self, ca: Path, pair: Pair | None) -> tuple[int, str]:
        flags = ["--ca", str(ca)]
        if pair is not None:
            flags += ["--certificate", str(pair.certificate), "--key", str(pair.key)]
        before, self.pond.client_flags = self.pond.client_flags, flags
        try:
            done = self.pond.cli("get", "nodes", check=False)
        finally:
            self.pond.client_flags = before
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    base = tmp_path_factory.mktemp("guarded")
    authority = Authority(base / "pki")
    server = authority.issue("queue", "IP:127.0.0.1")
    good = authority.issue("admin", "DNS:admin,URI:sluice:admin")
    settings = [
        *(f"tls.certificate={server.certificate}", f"tls.key={server.key}"),
        *(f"tls.client_ca={authority.ca}", "tls.admins=admin"),
    ]
    flags = [
        "--ca",
        str(authority.ca),
        "--certificate",
        str(good.certificate),
        "--key",
        str(good.key),
    ]
    pond = Pond(base / "queue", settings=settings, client_flags=flags)
    try:
        pond.start()
        yield Guarded(pond, authority)
    finally:
        pond.stop()


def test_g9_certificates_that_are_none_are_refused(
    guarded: Guarded, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ours = guarded.authority
    other = Authority(tmp_path_factory.mktemp("other") / "pki")
    foreign = other.issue("admin", "DNS:admin,URI:sluice:admin")
    expired = ours.issue("admin-of-old", "DNS:admin,URI:sluice:admin", days=0)
    itself = Pair(other.ca, other._key)
    for what, pair in {
        "expired": expired,
        "foreign": foreign,
        "signed by itself": itself,
        "none": None,
    }.items():
        status, text = guarded.asked_with(ours.ca, pair)
        assert status != 0, what
        assert "Traceback" not in text, what
    assert guarded.pond.cli("get", "nodes").returncode == 0, "the others are served"


def test_g9_a_server_of_another_name_or_authority_is_not_believed(
    guarded: Guarded, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ours = guarded.authority
    good = ours.issue("reader", "DNS:admin,URI:sluice:admin")
    other = Authority(tmp_path_factory.mktemp("another") / "pki")
    status, text = guarded.asked_with(other.ca, good)
    assert status != 0
    assert "Traceback" not in text
    elsewhere = ours.issue("elsewhere", "DNS:queue.example.com")
    settings = [
        *(f"tls.certificate={elsewhere.certificate}", f"tls.key={elsewhere.key}"),
        *(f"tls.client_ca={ours.ca}", "tls.admins=admin"),
    ]
    flags = ["--ca", str(ours.ca), "--certificate", str(good.certificate), "--key", str(good.key)]
    wrong = Pond(tmp_path_factory.mktemp("wrong") / "queue", settings=settings, client_flags=flags)
    try:
        wrong.launch()
        assert wrong.process is not None
        for _ in range(3):
            assert wrong.cli("get", "nodes", check=False).returncode != 0
        assert wrong.process.poll() is None, "it serves whoever knows it by its name"
    finally:
        wrong.stop()
