"""Kubeconfigs of workers: what they may not ask of the manager."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cluster.multikueue.kubeconfig import (
    BAD,
    INSECURE,
    LARGEST_BYTES,
    Unusable,
    at_path,
    read_access,
)
from sluicecommon import yaml_text


def text(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> bytes:
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://w:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": "secret-token", **(user or {})}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    return json.dumps(document).encode()


def test_a_token_and_a_ca_are_taken() -> None:
    ca = base64.b64encode(b"ca").decode()
    found = read_access(text({"certificate-authority-data": ca}), yaml_text.read)
    assert (found.server, found.token.data, found.ca.data) == ("https://w:6443", b"secret-token", b"ca")  # fmt: skip
    assert not found.insecure


@pytest.mark.parametrize(
    ("cluster", "user", "reason"),
    [
        pytest.param({"insecure-skip-tls-verify": True}, {}, INSECURE, id="without TLS checks"),
        pytest.param({"certificate-authority": "/etc/passwd"}, {}, INSECURE, id="a CA file"),
        pytest.param({"proxy-url": "http://p"}, {}, INSECURE, id="a proxy"),
        pytest.param({"server": "http://w:8080"}, {}, INSECURE, id="plain HTTP"),
        pytest.param({"server": "https://"}, {}, INSECURE, id="no host"),
        pytest.param({"server": "https://w:99999"}, {}, INSECURE, id="a port that is none"),
        pytest.param({"server": "https://u:p@w"}, {}, INSECURE, id="a password in the address"),
        pytest.param({"server": "file:///etc/passwd"}, {}, BAD, id="a file as server"),
        pytest.param({"server": None}, {}, BAD, id="no server"),
        pytest.param({"certificate-authority-data": "%"}, {}, BAD, id="a CA that is none"),
        pytest.param({}, {"exec": {"command": "sh"}}, INSECURE, id="a program"),
        pytest.param({}, {"auth-provider": {"name": "gcp"}}, INSECURE, id="a provider"),
        pytest.param({}, {"tokenFile": "/var/run/secrets/token"}, INSECURE, id="a token file"),
        pytest.param({}, {"client-certificate": "/a"}, INSECURE, id="a certificate file"),
        pytest.param({}, {"client-key": "/a"}, INSECURE, id="a key file"),
        pytest.param({}, {"username": "u", "password": "p"}, INSECURE, id="a password"),
        pytest.param({}, {"as": "system:admin"}, INSECURE, id="another user"),
    ],
)
def test_unsafe_kubeconfigs_are_refused(
    cluster: dict[str, Any], user: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unusable) as caught:
        read_access(text(cluster, user), yaml_text.read)
    assert caught.value.reason == reason
    assert "secret-token" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b"[1, 2]", id="a list"),
        pytest.param(b"a: [secret-token", id="broken"),
        pytest.param(b"a" * (LARGEST_BYTES + 1), id="too large"),
        pytest.param(b"users: 3", id="users that are none"),
        pytest.param(b"users: [3]\nclusters: [{cluster: 3}]", id="a cluster that is none"),
        pytest.param(b"current-context: x\ncontexts: [3]", id="contexts that are none"),
        pytest.param(b"[" * 5000, id="nested"),
        pytest.param(b"users:\n" + b"- {name: u}\n" * 200, id="too many users"),
    ],
)
def test_what_is_no_kubeconfig_is_refused(data: bytes) -> None:
    with pytest.raises(Unusable) as caught:
        read_access(data, yaml_text.read)
    assert "secret-token" not in str(caught.value)


def test_files_are_read_from_one_directory_only(tmp_path: Path) -> None:
    below, outside = tmp_path / "kubeconfigs", tmp_path / "other"
    below.mkdir()
    outside.mkdir()
    (below / "w1").write_bytes(b"content")
    (outside / "secret").write_bytes(b"secret")
    (below / "link").symlink_to(outside / "secret")
    os.mkfifo(below / "fifo")
    assert at_path(str(below / "w1"), below) == b"content"
    for path in (
        *(str(outside / "secret"), f"{below}/../other/secret", str(below / "link")),
        *(str(below), str(below / "fifo"), str(below / "none"), "w1", "", "a\0b"),
    ):
        with pytest.raises(Unusable):
            at_path(path, below)
    with pytest.raises(Unusable):
        at_path(str(below / "w1"), tmp_path / "missing")
