"""A small OpenID Connect issuer, as an API server needs one: discovery, keys, and ID tokens of any user. Signed with openssl; RS256,
RFC 7518."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.programs.pki import Authority, openssl

CLIENT = "sluice"
LIVES_S = 3600
KEY_ID = "one"


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    def __init__(self, place: Path) -> None:
        self.place = place
        self.authority = Authority(place, "issuer-ca").create("issuer")
        self.authority.issue("issuer", "/CN=issuer", "serverAuth", ["IP:127.0.0.1"])
        self._key = place / "signing.key"
        openssl("genrsa", "-out", self._key, "2048")
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.get(self)

            def log_message(self, *_: object) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(place / "issuer.crt", place / "issuer.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Issuer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    # -- what it answers --------------------------------------------------------------------------

    def get(self, asked: BaseHTTPRequestHandler) -> None:
        path = urlsplit(asked.path).path
        if path == "/.well-known/openid-configuration":
            return _json(asked, self._configuration())
        if path == "/keys":
            return _json(asked, {"keys": [self._public()]})
        return asked.send_error(404)

    def _configuration(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def _public(self) -> dict[str, str]:
        done = subprocess.run(
            ["openssl", "rsa", "-in", self._key, "-noout", "-modulus"],
            capture_output=True,
            text=True,
            check=True,
        )
        modulus = bytes.fromhex(done.stdout.strip().partition("=")[2])
        return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID} | {
            "n": packed(modulus),
            "e": packed(b"\1\0\1"),
        }

    def token(self, user: str, *groups: str, **more: Any) -> str:
        """An ID token; `more` are claims."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": user,
            "aud": CLIENT,
            "iat": now,
            "exp": now + LIVES_S,
            "preferred_username": user,
            "email": f"{user}@example.com",
            "email_verified": True,
            "groups": list(groups),
            **more,
        }
        header = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        text = ".".join(packed(json.dumps(one).encode()) for one in (header, claims))
        done = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", self._key],
            input=text.encode(),
            capture_output=True,
            check=True,
        )
        return f"{text}.{packed(done.stdout)}"


def _json(asked: BaseHTTPRequestHandler, value: Any) -> None:
    body = json.dumps(value).encode()
    asked.send_response(200)
    asked.send_header("Content-Type", "application/json")
    asked.send_header("Content-Length", str(len(body)))
    asked.end_headers()
    asked.wfile.write(body)
