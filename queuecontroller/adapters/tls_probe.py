"""Whether a server that did not understand a plain call speaks TLS: asked once, after a failure, so
that the message can name the flag that is missing."""

from __future__ import annotations

import socket
import ssl

PATIENCE_S = 2.0


def speaks_tls(host: str, port: int) -> bool:
    """True also where it would refuse us: an alert is an answer in TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent; who answers does not matter
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout=PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        # What is no TLS at all is told apart by OpenSSL itself.
        return error.reason not in (None, "WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING")
    except (OSError, ValueError):
        return False
