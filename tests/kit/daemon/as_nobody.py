"""`sluice` as another user, even where that user may not execute the interpreter: load
everything, then change user."""

from __future__ import annotations

import encodings.idna
import os
import socket
import sys

import nodeagent.cli.grants.change
import nodeagent.cli.grants.run
import nodeagent.cli.grants.show
import nodeagent.cli.mig
import nodeagent.cli.watch.contained
from nodeagent.cli import main

NOBODY = 65534

if __name__ == "__main__":
    assert encodings.idna
    assert nodeagent.cli
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    if sys.argv[1] == "connect":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(sys.argv[2])
    sys.exit(main(sys.argv[1:]))
