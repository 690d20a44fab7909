"""`sluice` as another user, even where that user may not execute the interpreter: load
everything, then change user."""

from __future__ import annotations

import encodings.idna
import importlib
import os
import pkgutil
import socket
import sys

import grpc._channel

import nodeagent.cli
from nodeagent import native
from nodeagent.cli import main, session

NOBODY = 65534

if __name__ == "__main__":
    assert encodings.idna
    # A command's module is loaded when the command is called.
    for found in pkgutil.walk_packages(nodeagent.cli.__path__, "nodeagent.cli."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    assert grpc._channel
    # The user may not look into the checkout either, where that lies in another's home directory.
    files = native.locate(os.environ.get("SLUICE_TEST_NATIVE"))
    wire = session.Wire(files.wire_descriptors)
    native.locate = lambda override=None: files
    session.Wire = lambda path: wire  # type: ignore[assignment,misc]
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    if sys.argv[1] == "connect":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(sys.argv[2])
    sys.exit(main(sys.argv[1:]))
