"""The loader that uses bcc: compiles nodeagent/bpf on this host, for kernels that do not accept the
prebuilt programs, and hands over descriptors (programs.py).

It is a process of its own, because LLVM needs 180 MiB to compile and never releases them. Started
as `python -m nodeagent.adapters.ebpf.loaders.bcc`. bcc is imported from the distribution's
directory, which a virtual environment does not search.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

from nodeagent.adapters.ebpf.loaders.headers import kernel_headers
from nodeagent.adapters.ebpf.loaders.programs import MAPS, PROGRAMS, hand_over, pid_namespace

DIST_PACKAGES: Final = Path("/usr/lib/python3/dist-packages")
"""Debian's and Ubuntu's directory; Fedora's and SUSE's Python have bcc on their own path."""
BPF: Final = Path(__file__).resolve().parents[3] / "bpf"
PROTO: Final = (BPF.parents[1] / "proto", BPF.parent / "native" / "proto")
"""Directories of launch_event.h: in a checkout, and installed."""
_DIALECT: Final = (
    (r"\bbpf_map_lookup_elem\(&(\w+), ", r"\1.lookup("),
    (r"\bbpf_map_delete_elem\(&(\w+), ", r"\1.delete("),
    (r"\bbpf_map_update_elem\(&(\w+), ([^;]*), BPF_ANY\);", r"\1.update(\2);"),
    (r"\bbpf_map_update_elem\(&(\w+), ([^;]*), BPF_NOEXIST\);", r"\1.insert(\2);"),
    (r"\bbpf_ringbuf_output\(&(\w+), ", r"\1.ringbuf_output("),
)
"""Calls of helpers that take a map, and bcc's form of them: it recognises its maps by these calls
only, and rejects them inside a macro."""


def find_bcc() -> bool:
    """True if `import bcc` works; extends the path for bcc alone if that is needed."""
    if importlib.util.find_spec("bcc") is not None:
        return True
    place = DIST_PACKAGES / "bcc" / "__init__.py"
    if not place.is_file():
        return False
    spec = importlib.util.spec_from_file_location(
        "bcc", place, submodule_search_locations=[str(place.parent)]
    )
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    assert spec.loader is not None
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError):  # libbcc cannot be loaded.
        del sys.modules["bcc"]
        return False
    return True


def translated(source: str) -> str:
    """watch.c in bcc's form. Raises ValueError for a call that bcc would not understand."""
    for call, member in _DIALECT:
        source = re.sub(call, member, source)
    left = re.search(r"\bbpf_(map_\w+_elem|ringbuf_\w+)\(", source)
    if left is not None:
        raise ValueError(f"{left[0]}…) in watch.c has no known form for bcc")
    return source


def load() -> dict[str, int]:
    """Descriptors of programs and maps. Raises what bcc raises, which is Exception."""
    if not find_bcc():
        raise ImportError("bcc cannot be imported")
    headers = kernel_headers()
    if headers is not None:
        os.environ.update(headers.environment)
    from bcc import BPF as Module

    proto = next((place for place in PROTO if (place / "launch_event.h").is_file()), PROTO[0])
    ours = pid_namespace()
    module: Any = Module(
        text=translated((BPF / "watch.c").read_text(encoding="utf-8")),
        cflags=[
            *(headers.flags if headers is not None else ()),
            *(
                (f"-DPID_NAMESPACE_DEVICE={ours.device}ULL", f"-DPID_NAMESPACE={ours.inode}ULL")
                if ours is not None
                else ()
            ),
            f"-I{BPF}",
            f"-I{proto}",
            "-Wno-macro-redefined",
            "-Wno-unused-function",
        ],
    )
    return {
        **{
            name: module.load_func(name, getattr(Module, kind)).fd
            for name, kind in PROGRAMS.items()
        },
        **{name: module[name].map_fd for name in MAPS},
    }


if __name__ == "__main__":
    sys.exit(hand_over(load))
