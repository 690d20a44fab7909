"""The loader of the prebuilt programs: loads an object that clang compiled when Sluice was built
into the kernel through libbpf, and hands over the descriptors (programs.py).

It needs no compiler, no bcc and no kernel headers: libbpf is a library of 400 KiB, and loading
takes tens of milliseconds. Started as `python -m nodeagent.adapters.ebpf.loaders.prebuilt OBJECT`;
output of libbpf and the verifier goes to standard error. The calls exist in libbpf since 0.3
(libbpf.h); 0.x reports errors in the pointer that it returns, 1.x by errno, and libbpf_get_error()
handles both.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Any, Final

from nodeagent.adapters.ebpf.kernel import load_libbpf
from nodeagent.adapters.ebpf.loaders.programs import (
    MAPS,
    PROGRAMS,
    PidNamespace,
    hand_over,
    pid_namespace,
)

CONSTANTS: Final = "watch.rodata"
"""The map of the object's constants, which every libbpf names after the object's file,
watch.bpf.o."""
PID_NAMESPACE: Final = struct.Struct("=QQ")
"""`struct pid_namespace` of nodeagent/bpf/records.h, the only constant."""


OLD: Final = "watch.old.bpf.o"
"""The object for kernels before 6.1, which must have BTF. It is tried when the kernel rejects the
other one, because some kernels have later helpers than their version says."""


class NotLoaded(Exception):
    """Loading failed; the text says what was rejected and why."""


class Refused(NotLoaded):
    """The kernel rejected the object; the verifier's messages are in libbpf's output."""


def load(file: Path, namespace: PidNamespace | None) -> dict[str, int]:
    """Descriptors of programs and maps. Raises NotLoaded, LibbpfMissing."""
    libbpf = load_libbpf()
    for name in ("bpf_object__open_file", "bpf_object__find_program_by_name"):
        getattr(libbpf, name).restype = ctypes.c_void_p
    libbpf.bpf_object__find_map_by_name.restype = ctypes.c_void_p
    libbpf.bpf_map__value_size.restype = ctypes.c_uint32
    libbpf.libbpf_get_error.restype = ctypes.c_long
    try:
        return _load(libbpf, file, namespace)
    except Refused as error:
        old = file.with_name(OLD)
        if file == old or not old.is_file():
            raise
        try:
            return _load(libbpf, old, namespace)
        except Refused as again:
            raise NotLoaded(f"{error}; {again}") from again


def _load(libbpf: Any, file: Path, namespace: PidNamespace | None) -> dict[str, int]:
    module = ctypes.c_void_p(libbpf.bpf_object__open_file(os.fsencode(file), None))
    error = libbpf.libbpf_get_error(module)
    if error or not module:
        text = _text(libbpf, error)
        raise NotLoaded(f"libbpf cannot open {file}: {text}")
    if namespace is not None:
        _set_namespace(libbpf, _map(libbpf, module, CONSTANTS), namespace)
    refused = libbpf.bpf_object__load(module)
    if refused < 0:
        raise Refused(f"the kernel rejected {file.name}: {_text(libbpf, refused)}")
    programs = {name: libbpf.bpf_program__fd(_program(libbpf, module, name)) for name in PROGRAMS}
    maps = {name: libbpf.bpf_map__fd(_map(libbpf, module, name)) for name in MAPS}
    return {**programs, **maps}


def _text(libbpf: Any, error: int) -> str:
    """The text of an error; libbpf has numbers of its own above the kernel's."""
    text = ctypes.create_string_buffer(256)
    libbpf.libbpf_strerror(ctypes.c_int(error), text, ctypes.c_size_t(len(text)))
    return text.value.decode("utf-8", "replace")


def _set_namespace(libbpf: Any, constants: ctypes.c_void_p, namespace: PidNamespace) -> None:
    data = PID_NAMESPACE.pack(namespace.device, namespace.inode)
    if libbpf.bpf_map__value_size(constants) != len(data):
        raise NotLoaded("the prebuilt programs are of another version: their constants differ")
    refused = libbpf.bpf_map__set_initial_value(constants, data, ctypes.c_size_t(len(data)))
    if refused:
        raise NotLoaded(f"setting their PID namespace failed: {_text(libbpf, refused)}")


def _program(libbpf: Any, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
    return _known(libbpf.bpf_object__find_program_by_name(module, name.encode()), name)


def _map(libbpf: Any, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
    return _known(libbpf.bpf_object__find_map_by_name(module, name.encode()), name)


def _known(found: int | None, name: str) -> ctypes.c_void_p:
    if not found:
        raise NotLoaded(f"the prebuilt programs are of another version: no {name} in them")
    return ctypes.c_void_p(found)


if __name__ == "__main__":
    sys.exit(hand_over(lambda: load(Path(sys.argv[1]), pid_namespace())))
