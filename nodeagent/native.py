"""Locates the native files (the interposer, the region library, the wire descriptors) and the
product's version.

They are in `nodeagent/native/` in an installed wheel and in `build/` in a checkout. Only this
module knows both places.
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
        """Directory of our libcuda.so.1; it comes first on the tenant's LD_LIBRARY_PATH."""
        return self.root / "shim"

    @property
    def preload_library(self) -> Path:
        return self.root / "preload" / "libsluice.so"

    @property
    def preload_list(self) -> Path:
        """An /etc/ld.so.preload that lists only our library, as a container sees it."""
        return self.root / "preload" / "ld.so.preload"

    @property
    def container_hook(self) -> Path:
        """The OCI hook that a container runtime starts; absent where no static program could be
        built."""
        return self.root / "hook" / "sluice-container-hook"

    @property
    def wire_descriptors(self) -> Path:
        return self.root / "proto" / "sluice.binpb"

    @property
    def kubelet_descriptors(self) -> Path:
        """Descriptors of the kubelet's APIs: device plugin, PodResources and Pods."""
        return self.root / "proto" / "kubelet.binpb"

    @property
    def bpf_object(self) -> Path:
        """The eBPF programs, compiled ahead of time; absent where the build had no clang with the
        BPF target. libbpf names a map after this file: see adapters/ebpf/loaders/prebuilt.py."""
        return self.root / "bpf" / "watch.bpf.o"

    @property
    def vendored(self) -> Path:
        """Third-party Python modules that a package bundles; absent in a checkout or wheel."""
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
    """Locate the native files: in `override` (the `[paths] native` setting) if it is set, else
    beside the package, else in the checkout's build directory."""
    if override:
        return NativeFiles(Path(override))
    installed = PACKAGE / "native"
    if installed.is_dir():
        return NativeFiles(installed)
    return NativeFiles(PACKAGE.parent / "build")


@cache
def version() -> str:
    """Read the product's version from the file VERSION, which an installed package has beside its
    modules; "unknown" if there is none."""
    for place in (PACKAGE, PACKAGE.parent):
        try:
            return (place / "VERSION").read_text(encoding="ascii").strip()
        except OSError:
            continue
    return "unknown"
