"""Throw-away certificates of one cluster, made with openssl: authorities, servers, the clients of each part, kubeconfigs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

DAYS = "30"
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
}
"""Certificate subjects of the users that have a kubeconfig in every cluster; a node's kubelet has
one besides."""


@dataclass(frozen=True)
class Authority:
    directory: Path
    name: str = "ca"

    @property
    def certificate(self) -> Path:
        return self.directory / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        return self.directory / f"{self.name}.key"

    def create(self, common_name: str) -> Authority:
        self.directory.mkdir(parents=True, exist_ok=True)
        subject = ("-subj", f"/CN={common_name}")
        openssl(
            *("req", "-x509", *EC, "-days", DAYS, "-keyout", self.key, "-out", self.certificate),
            *subject,
        )
        return self

    def issue(self, name: str, subject: str, usage: str, alternatives: Sequence[str] = ()) -> None:
        """NAME.crt and NAME.key; `usage` as openssl writes it (clientAuth, serverAuth), alternatives as DNS:… and IP:…"""
        key, certificate = (self.directory / f"{name}.{ending}" for ending in ("key", "crt"))
        request, extensions = (self.directory / f"{name}.{ending}" for ending in ("csr", "ext"))
        lines = ["keyUsage=digitalSignature,keyEncipherment", f"extendedKeyUsage={usage}"]
        if alternatives:
            lines.append(f"subjectAltName={','.join(alternatives)}")
        extensions.write_text("\n".join(lines) + "\n")
        openssl("req", *EC, "-keyout", key, "-out", request, "-subj", subject)
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key),
            *("-CAcreateserial", "-days", DAYS, "-out", certificate, "-extfile", extensions),
        )
        key.chmod(0o600)
        request.unlink()
        extensions.unlink()


@dataclass(frozen=True)
class Pki:
    """Certificates and kubeconfigs that `create` wrote into a directory."""

    directory: Path

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    def kubeconfig(self, name: str) -> Path:
        return self.directory / f"{name}.kubeconfig"


def create(directory: Path, server: str, names: Iterable[str], node: str = "") -> Pki:
    """Create certificates for a cluster whose API server is `server` (https://…) and has those
    names and addresses. With `node` also those of its kubelet. Existing ones are kept: a machine
    that boots again has the same."""
    made = Pki(directory)
    if made.kubeconfig("admin").exists():
        return made
    authority = Authority(directory).create("sluice-test-cluster")
    authority.issue("apiserver", "/CN=kube-apiserver", "serverAuth", list(names))
    front = Authority(directory, "front").create("sluice-test-front-proxy")
    front.issue("front-client", "/CN=front-proxy-client", "clientAuth")
    clients = dict(CLIENTS)
    if node:
        clients["kubelet"] = _kubelet(node)
        authority.issue("to-kubelet", "/O=system:masters/CN=apiserver-kubelet", "clientAuth")
        _issue_kubelet_server(authority, node)
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", made / "tokens.key")
    openssl("ec", "-in", made / "tokens.key", "-pubout", "-out", made / "tokens.pub")
    for name, subject in clients.items():
        authority.issue(name, subject, "clientAuth")
    for name in (
        *(one for one in clients if one != "admin"),
        "admin",
    ):
        # Last: it says that all is there.
        _write_kubeconfig(made, name, server)
    return made


def join(directory: Path, of: Pki, server: str, node: str) -> Pki:
    """Create the certificates of one more node of a cluster, from which the API server is `server`. Existing ones are kept."""
    made = Pki(directory)
    if made.kubeconfig("admin").exists():
        return made
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("ca", "admin"):
        for ending in ("crt", "key"):
            shutil.copy(of / f"{name}.{ending}", directory)
    authority = Authority(directory)
    authority.issue("kubelet", _kubelet(node), "clientAuth")
    _issue_kubelet_server(authority, node)
    for name in ("kubelet", "admin"):
        _write_kubeconfig(made, name, server)
    return made


def _kubelet(node: str) -> str:
    return f"/O=system:nodes/CN=system:node:{node}"


def _issue_kubelet_server(authority: Authority, node: str) -> None:
    names = [f"DNS:{node}", "IP:127.0.0.1"]
    authority.issue("kubelet-server", f"/CN={node}", "serverAuth", names)


def _write_kubeconfig(pki: Pki, name: str, server: str) -> None:
    cluster = {"server": server, "certificate-authority": str(pki / "ca.crt")}
    user = {"client-certificate": str(pki / f"{name}.crt"), "client-key": str(pki / f"{name}.key")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
        "current-context": "test",
    }
    pki.kubeconfig(name).write_text(json.dumps(document, indent=1))


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=120)
