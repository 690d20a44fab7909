"""A certificate authority for tests, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path


class Authority:
    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed: TLS is NOT tested")
        directory.mkdir(parents=True)
        self._directory = directory
        self.ca, self._key = directory / "ca.pem", directory / "ca.key"
        self._run(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", self._key, "-out", self.ca, "-days", "2", "-subj", "/CN=test authority"),
        )

    def issue(self, name: str, alternative: str, days: int = 1) -> Pair:
        """`alternative` as openssl writes it: DNS:name or IP:address."""
        base = self._directory / name
        key, request, certificate = (base.with_suffix(s) for s in (".key", ".csr", ".pem"))
        self._run(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", key, "-out", request, "-subj", f"/CN={name}"),
        )
        extension = base.with_suffix(".ext")
        extension.write_text(f"subjectAltName={alternative}\n")
        self._run(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key),
            *("-CAcreateserial", "-out", certificate, "-days", str(days), "-extfile", extension),
        )
        return Pair(certificate, key)

    def sign_many(self, pair: Pair, alternatives: dict[str, str]) -> dict[str, Pair]:
        """Certificates for one key, by name: making a key and a request for each of a hundred takes too long."""
        found = {}
        request = pair.key.with_suffix(".csr")
        for name, alternative in alternatives.items():
            certificate = self._directory / f"{name}.pem"
            extension = certificate.with_suffix(".ext")
            extension.write_text(f"subjectAltName={alternative}\n")
            self._run(
                *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key),
                *("-CAcreateserial", "-out", certificate, "-days", "1", "-extfile", extension),
            )
            found[name] = Pair(certificate, pair.key)
        return found

    def _run(self, *words: str | Path) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=120)
