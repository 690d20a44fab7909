"""Kernel headers are found where bcc finds them, and as the host's first process sees them where they are hidden."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from nodeagent.adapters.ebpf.loaders.headers import Headers, kernel_headers

RELEASE = Path("lib/modules") / platform.release()
HIDDEN = Path("/nonexistent/modules")


def headers_at(place: Path) -> Path:
    (place / "include" / "linux").mkdir(parents=True)
    (place / "include" / "linux" / "kconfig.h").write_text("")
    return place


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / RELEASE).mkdir(parents=True)
    return tmp_path


def found(host: Path) -> Headers | None:
    """Headers as in a sandbox without /lib/modules: only the host's root is left, below which all
    is."""
    return kernel_headers({}, Path("/lib/modules"), host, ())


def test_what_is_in_its_place_is_left_to_bcc(tmp_path: Path) -> None:
    place = headers_at(tmp_path / platform.release() / "build")
    assert kernel_headers({}, tmp_path, HIDDEN, ()) == Headers(place)


def test_what_the_operator_names_goes_first(tmp_path: Path) -> None:
    headers_at(tmp_path / platform.release() / "build")
    named = headers_at(tmp_path / "named")
    assert kernel_headers({"BCC_KERNEL_SOURCE": str(named)}, tmp_path, HIDDEN, ()) == Headers(named)


@pytest.fixture
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of these tests has headers of its own perhaps: look for another's."""
    monkeypatch.setattr(platform, "release", lambda: "0.0-test")
    monkeypatch.setattr(
        "tests.unit.nodeagent.ebpf.test_ebpf_headers.RELEASE", Path("lib/modules/0.0-test")
    )


@pytest.mark.usefixtures("nothing_here")
class TestHidden:
    def test_debians_two_directories_are_both_told(self, host: Path) -> None:
        common = headers_at(host / "usr/src/headers-common")
        generated = host / "usr/src/headers-amd64/arch/x86/include/generated"
        generated.mkdir(parents=True)
        (host / RELEASE / "build").symlink_to("/usr/src/headers-amd64")
        (host / RELEASE / "source").symlink_to("/usr/src/headers-common")
        headers = found(host)
        assert headers is not None
        assert headers.where == common
        assert headers.environment == {"BCC_KERNEL_SOURCE": str(common)}
        build = host / "usr/src/headers-amd64"
        assert headers.flags == (
            f"-I{build}/include",
            f"-I{build}/include/generated/uapi",
            f"-I{generated}",
            f"-I{generated}/uapi",
        )

    @pytest.mark.parametrize("link", ["/usr/src/kernels/one", "../../../usr/src/kernels/one"])
    def test_one_directory_behind_a_link_is_enough(self, host: Path, link: str) -> None:
        place = headers_at(host / "usr/src/kernels/one")
        (host / RELEASE / "build").symlink_to(link)
        assert found(host) == Headers(place, {"BCC_KERNEL_SOURCE": str(place)})

    def test_a_directory_among_the_modules_is_too(self, host: Path) -> None:
        place = headers_at(host / RELEASE / "build")
        assert found(host) == Headers(place, {"BCC_KERNEL_SOURCE": str(place)})

    def test_links_in_a_circle_are_none(self, host: Path) -> None:
        for name, target in (("build", "source"), ("source", "build")):
            (host / RELEASE / name).symlink_to(target)
        assert found(host) is None

    def test_the_kernels_own_archive_comes_last(self, host: Path) -> None:
        archive = host / "kheaders.tar.xz"
        assert kernel_headers({}, Path("/lib/modules"), host, (archive,)) is None
        archive.write_bytes(b"")
        assert kernel_headers({}, Path("/lib/modules"), host, (archive,)) == Headers(archive)
