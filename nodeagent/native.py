"""Finds the native files (the interposer, the region library, the wire descriptors) and the
product's version.

One module knows both places: `nodeagent/native/` in an installed wheel, `build/` in a checkout.
Everything else asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class NativeFiles:
    root: Path

    @property
    def region_library(self) -> Path:
        return self.root / "libsluice_region.so"

    @property
    def shim_dir(self) -> Path:
        """Stands first on the tenant's LD_LIBRARY_PATH; holds our libcuda.so.1."""
        return self.root / "shim"

    @property
    def preload_library(self) -> Path:
        return self.root / "preload" / "libsluice.so"

    @property
    def preload_list(self) -> Path:
        """An /etc/ld.so.preload with our library alone, as a container sees it."""
        return self.root / "preload" / "ld.so.preload"

    @property
    def container_hook(self) -> Path:
        """What a container runtime starts; absent where no static program could be built."""
        return self.root / "hook" / "sluice-container-hook"

    @property
    def wire_descriptors(self) -> Path:
        return self.root / "proto" / "sluice.binpb"

    @property
    def kubelet_descriptors(self) -> Path:
        """What the kubelet speaks: device plugin, PodResources and Pods."""
        return self.root / "proto" / "kubelet.binpb"

    @property
    def bpf_object(self) -> Path:
        """The programs for the kernel, built ahead of time; absent where the build had no clang
        with the BPF target. libbpf names a map after it: see adapters/ebpf/loaders/prebuilt.py."""
        return self.root / "bpf" / "watch.bpf.o"

    @property
    def vendored(self) -> Path:
        """Python modules of others that a package brings; there is none in a checkout or wheel."""
        return self.root / "vendor"

    def missing(self) -> list[Path]:
        wanted = [
            self.region_library,
            self.shim_dir / "libcuda.so.1",
            self.preload_library,
            self.wire_descriptors,
            self.kubelet_descriptors,
        ]
        return [path for path in wanted if not path.is_file()]


def locate(override: str | None = None) -> NativeFiles:
    """`override` is the `[paths] native` setting; None: beside the package, else the checkout's
    build directory."""
    if override:
        return NativeFiles(Path(override))
    installed = PACKAGE / "native"
    if installed.is_dir():
        return NativeFiles(installed)
    return NativeFiles(PACKAGE.parent / "build")


@cache
def version() -> str:
    """From the file VERSION, which an installed package has beside its modules."""
    for place in (PACKAGE, PACKAGE.parent):
        try:
            return (place / "VERSION").read_text(encoding="ascii").strip()
        except OSError:
            continue
    return "unknown"
