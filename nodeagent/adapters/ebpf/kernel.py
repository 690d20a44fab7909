"""The calls of bpf(2) and perf_event_open(2) that the child needs, through libbpf and libc.

Programs and maps are file descriptors here, whichever loader made them. libbpf is what both loaders
need; bcc's own Python layer would keep a hundred megabytes of compiler in a process that only reads
maps. Sources: libbpf's bpf.h and libbpf.h, perf_event_open(2), the kernel's
include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import struct
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

BPF_CGROUP_DEVICE: Final = 6
BPF_PERF_EVENT: Final = 41
BPF_F_ALLOW_MULTI: Final = 2
PERF_FLAG_FD_CLOEXEC: Final = 8
PERF_EVENT_IOC_ENABLE: Final = 0x2400
PERF_EVENT_IOC_SET_BPF: Final = 0x40042408
UPROBE_TYPE: Final = Path("/sys/bus/event_source/devices/uprobe/type")
_PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}
_PERF_ATTR_BYTES: Final = 112
_SONAMES: Final = ("libbpf.so.1", "libbpf.so.0")
_RING_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class LibbpfMissing(Exception):
    """No supported libbpf on this host."""


def load_libbpf() -> ctypes.CDLL:
    """Load libbpf. Raises LibbpfMissing."""
    for name in _SONAMES:
        try:
            library = ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
        library.ring_buffer__new.restype = ctypes.c_void_p
        return library
    raise LibbpfMissing(f"none of {', '.join(_SONAMES)} can be loaded")


class Kernel:
    """The system calls. Raises LibbpfMissing when it is created; methods raise OSError."""

    def __init__(self) -> None:
        self.libbpf = load_libbpf()
        self._libc = ctypes.CDLL(None, use_errno=True)

    # --- maps ---

    def lookup(self, map_fd: int, key: bytes, value_bytes: int) -> bytes | None:
        value = ctypes.create_string_buffer(value_bytes)
        if self._refused(self.libbpf.bpf_map_lookup_elem(map_fd, key, value)):
            return None
        return value.raw

    def update(self, map_fd: int, key: bytes, value: bytes) -> None:
        self._check(self.libbpf.bpf_map_update_elem(map_fd, key, value, ctypes.c_uint64(0)))

    def delete(self, map_fd: int, key: bytes) -> None:
        """Delete a key. Idempotent."""
        self._refused(self.libbpf.bpf_map_delete_elem(map_fd, key))

    def keys(self, map_fd: int, key_bytes: int) -> Iterator[bytes]:
        """The current keys. A key deleted meanwhile makes the kernel start again, so a key may be
        returned twice."""
        following = ctypes.create_string_buffer(key_bytes)
        current: ctypes.Array[ctypes.c_char] | None = None
        while self.libbpf.bpf_map_get_next_key(map_fd, current, following) == 0:
            yield following.raw
            current = ctypes.create_string_buffer(following.raw, key_bytes)

    # --- attaching ---

    def attach_cgroup(self, program_fd: int, directory: str) -> int:
        """Attach a cgroup/dev program to a cgroup, beside those of others. Returns the descriptor
        of the link, which ends when it is closed."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self._check(self.libbpf.bpf_link_create(program_fd, fd, BPF_CGROUP_DEVICE, None))
        finally:
            os.close(fd)

    def attach_raw_tracepoint(self, program_fd: int, name: str) -> int:
        return self._check(self.libbpf.bpf_raw_tracepoint_open(name.encode(), program_fd))

    def attach_uprobe(self, program_fd: int, path: str, offset: int) -> int:
        """Attach to every process that maps the file, at `offset` in it, until the descriptor is
        closed."""
        attributes = bytearray(_PERF_ATTR_BYTES)
        name = ctypes.create_string_buffer(path.encode())
        kind = int(UPROBE_TYPE.read_text(encoding="ascii"))
        struct.pack_into("<IIQ", attributes, 0, kind, _PERF_ATTR_BYTES, 0)
        struct.pack_into("<QQ", attributes, 56, ctypes.addressof(name), offset)
        event = self._check(
            self._libc.syscall(
                ctypes.c_long(_PERF_EVENT_OPEN[platform.machine()]),
                bytes(attributes),
                ctypes.c_int(-1),
                ctypes.c_int(0),
                ctypes.c_int(-1),
                ctypes.c_ulong(PERF_FLAG_FD_CLOEXEC),
            )
        )
        try:
            fcntl.ioctl(event, PERF_EVENT_IOC_SET_BPF, program_fd)
            fcntl.ioctl(event, PERF_EVENT_IOC_ENABLE, 0)
        except OSError:
            os.close(event)
            raise
        return event

    def pin(self, fd: int, path: str) -> None:
        self._check(self.libbpf.bpf_obj_pin(fd, path.encode()))

    # --- helpers ---

    def _check(self, result: int) -> int:
        """Raise OSError for an error: libbpf before 1.0 returns -1, later ones the negative errno;
        both set errno."""
        if result < 0:
            error = ctypes.get_errno() or -result
            raise OSError(error, os.strerror(error))
        return result

    def _refused(self, result: int) -> bool:
        return result < 0


class Ring:
    """The consumer of one BPF ring buffer. Raises OSError."""

    def __init__(self, kernel: Kernel, map_fd: int, call: Callable[[bytes], None]) -> None:
        self._libbpf = kernel.libbpf

        def received(_context: int, data: int, size: int) -> int:
            call(ctypes.string_at(data, size))
            return 0

        self._callback = _RING_CALLBACK(received)
        self._ring = self._libbpf.ring_buffer__new(map_fd, self._callback, None, None)
        if not self._ring:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot open the BPF ring buffer: {os.strerror(error)}")
        self._close = weakref.finalize(
            self, self._libbpf.ring_buffer__free, ctypes.c_void_p(self._ring)
        )

    def fileno(self) -> int:
        fd: int = self._libbpf.ring_buffer__epoll_fd(ctypes.c_void_p(self._ring))
        return fd

    def consume(self) -> None:
        self._libbpf.ring_buffer__consume(ctypes.c_void_p(self._ring))

    def close(self) -> None:
        self._close()


def close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    fds.clear()
