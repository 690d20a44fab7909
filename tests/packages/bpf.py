"""BPF objects of the kernel by their ids, which are the same in every container."""

from __future__ import annotations

import ctypes
import errno
import os

from nodeagent.adapters.ebpf.kernel import load_libbpf


def exists(kind: str, number: int) -> bool:
    """`kind`: prog, map or link. Raises OSError."""
    fd = getattr(load_libbpf(), f"bpf_{kind}_get_fd_by_id")(number)
    if fd >= 0:
        os.close(fd)
        return True
    error = ctypes.get_errno()
    if error == errno.ENOENT:
        return False
    raise OSError(error, os.strerror(error))
