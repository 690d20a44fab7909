"""Grants as the runtime reads them, on a real file system."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from nodeagent.adapters.containers import cdi_files
from nodeagent.adapters.containers.cdi_files import OURS, CdiFiles, RegionLinks, cdi_port
from nodeagent.core.kubelet import cdi
from nodeagent.ports.containers import GrantMounts
from nodeagent.units import GpuUuid
from tests.kit.cdi import GPU_A, GPU_B, LIBRARIES, NONCE, grant
from tests.kit.fakes.nvidia_cdi import installed_spec, write_installed
from tests.kit.node import until

OTHER_NONCE = NONCE[::-1]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    write_installed(tmp_path / "etc", installed_spec([GPU_A, GPU_B], LIBRARIES))
    return tmp_path / "etc"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run" / "cdi"


def port(installed: Path, run: Path) -> CdiFiles:
    return CdiFiles(cdi.by_cri, dict, (installed, run))


def settle(path: Path) -> None:
    until("the file is old", lambda: time.time() - path.stat().st_ctime > 2 * cdi.SETTLES_S)


def test_one_file_with_one_device_readable_by_the_runtime(
    installed: Path, run: Path, request: pytest.FixtureRequest
) -> None:
    before = os.umask(0o077)
    request.addfinalizer(lambda: os.umask(before))
    assert port(installed, run).write(NONCE, grant(), "")
    (path,) = run.iterdir()
    assert path.name == f"sluice.dev-grant_{NONCE}.json"
    document = json.loads(path.read_text())
    assert document["kind"] == "sluice.dev/grant"
    assert [device["name"] for device in document["devices"]] == [NONCE]
    assert path.stat().st_mode & 0o777 == 0o644


def test_written_again_it_is_the_same_file_and_settled(installed: Path, run: Path) -> None:
    files = port(installed, run)
    files.write(NONCE, grant(), "")
    path = run / f"{OURS}{NONCE}.json"
    inode = path.stat().st_ino
    settle(path)
    assert files.write(NONCE, grant(), "") == 0.0
    assert path.stat().st_ino == inode


def test_a_file_that_is_new_to_the_runtime_is_so_after_our_restart_too(
    installed: Path, run: Path
) -> None:
    first = port(installed, run).write(NONCE, grant(), "")
    assert first > cdi.SETTLES_S
    (path,) = run.iterdir()
    before_s = time.time() - path.stat().st_ctime
    again = port(installed, run).write(NONCE, grant(), "")
    after_s = time.time() - path.stat().st_ctime
    assert max(0.0, first - after_s) <= again <= max(0.0, first - before_s), "what is left of it"


def test_the_more_the_runtime_has_to_read_the_longer_it_takes(installed: Path, run: Path) -> None:
    files = port(installed, run)
    first = files.write(NONCE, grant(), "")
    (installed / "large.yaml").write_text("# " + "x" * 1_000_000)
    (installed / "not-read.txt").write_text("x" * 1_000_000)
    second = files.write(OTHER_NONCE, grant(), "")
    assert 0.45 < second - first < 0.55, "0.5 s for the MB that it reads"


def test_other_contents_replace_the_file_at_once(installed: Path, run: Path) -> None:
    files = port(installed, run)
    files.write(NONCE, grant(), "")
    path = run / f"{OURS}{NONCE}.json"
    settle(path)
    held = path.open("rb")
    assert files.write(NONCE, grant(gpus=(GPU_B,)), "")
    assert b"nvidia1" not in held.read(), "a reader keeps the whole old file"
    assert b"nvidia1" in path.read_bytes()
    held.close()


def test_nobody_ever_sees_a_part_of_a_file(installed: Path, run: Path) -> None:
    """The runtime lists the directory: every .json and .yaml in it, at any time, is whole."""
    files = port(installed, run)
    run.mkdir(parents=True)
    ended = threading.Event()
    torn: list[str] = []
    seen = 0

    def watch() -> None:
        nonlocal seen
        while not ended.is_set():
            for path in run.glob("*.json"):
                try:
                    json.loads(path.read_text())
                    seen += 1
                except FileNotFoundError:
                    continue
                except ValueError as error:
                    torn.append(f"{path}: {error}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(200):
        files.write(NONCE, grant(gpus=((GPU_A, GPU_B)[number % 2],)), "")
    until("the watcher has looked", lambda: seen > 20)
    ended.set()
    watcher.join()
    assert torn == []


def test_the_temporary_file_is_beside_its_place_and_synced_before_it_is_renamed(
    installed: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(fd: int) -> None:
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def noted_rename(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        assert src_dir_fd == dst_dir_fd, "the runtime never sees a file that comes from elsewhere"
        calls.append(("rename", target))
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    port(installed, run).write(NONCE, grant(), "")
    assert [what for what, _ in calls] == ["fsync", "rename", "fsync"]
    assert Path(calls[0][1]).parent == run
    assert calls[0][1].endswith(".tmp")
    assert calls[2][1] == str(run)


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_disk_that_fails_leaves_nothing_behind(
    installed: Path, run: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fails(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(OSError, match="No space"):
        port(installed, run).write(NONCE, grant(), "")
    assert list(run.iterdir()) == []


def test_names_are_ours_alone_and_what_a_kill_left_is_removed(installed: Path, run: Path) -> None:
    files = port(installed, run)
    files.write(NONCE, grant(), "")
    files.write(OTHER_NONCE, grant(), "")
    leftover = run / f".{OURS}{NONCE}.0123456789abcdef.tmp"
    strangers = [
        run / "nvidia.yaml",
        run / f"{OURS}short.json",
        run / f"vendor_{NONCE}.json",
        run / f".{OURS}{NONCE}.mine.tmp",
    ]
    for path in (leftover, *strangers):
        path.write_text("{}")
    assert files.names() == sorted([NONCE, OTHER_NONCE])
    assert not leftover.exists()
    assert all(path.exists() for path in strangers)


def test_removing_is_idempotent(installed: Path, run: Path) -> None:
    files = port(installed, run)
    files.remove(NONCE)
    files.write(NONCE, grant(), "")
    files.remove(NONCE)
    files.remove(NONCE)
    assert files.names() == []


# --- safety of paths ------------------------------------------------------------------------------


def test_a_link_in_the_files_place_is_replaced_and_not_followed(
    installed: Path, run: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    run.mkdir(parents=True)
    path = run / f"{OURS}{NONCE}.json"
    path.symlink_to(victim)
    assert port(installed, run).write(NONCE, grant(), "")
    assert victim.read_text() == "mine"
    assert not path.is_symlink()


def test_a_pipe_in_the_files_place_does_not_hold_us(installed: Path, run: Path) -> None:
    run.mkdir(parents=True)
    os.mkfifo(run / f"{OURS}{NONCE}.json")
    assert port(installed, run).write(NONCE, grant(), "")
    assert (run / f"{OURS}{NONCE}.json").is_file()


def test_a_directory_that_others_may_write_to_is_refused_with_the_remedy(
    installed: Path, run: Path
) -> None:
    run.mkdir(parents=True)
    run.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod go-w"):
        port(installed, run).write(NONCE, grant(), "")


def test_a_directory_that_is_a_link_is_refused(installed: Path, run: Path, tmp_path: Path) -> None:
    run.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    run.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        port(installed, run).write(NONCE, grant(), "")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("nonce", ["../../../etc/cron.d/x", "a" * 31, NONCE + "/", "A" * 32])
def test_names_that_are_no_nonces_touch_no_file(installed: Path, run: Path, nonce: str) -> None:
    for files in (port(installed, run), RegionLinks(run)):
        with pytest.raises(ValueError, match="nonce"):
            files.write(nonce, grant(), "")
        with pytest.raises(ValueError, match="nonce"):
            files.remove(nonce)
    assert not run.exists() or list(run.iterdir()) == []


# --- what is installed ----------------------------------------------------------------------------


def test_nothing_installed_says_what_to_run(tmp_path: Path, run: Path) -> None:
    with pytest.raises(ValueError, match="nvidia-ctk cdi generate"):
        port(tmp_path / "none", run).write(NONCE, grant(), "")


def test_a_broken_specification_is_named_when_no_other_helps(tmp_path: Path, run: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ncdiVersion: [")
    with pytest.raises(ValueError, match=r"etc/nvidia\.yaml"):
        port(tmp_path / "etc", run).write(NONCE, grant(), "")


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "kind: 1", "when: 2020-01-01", "- &a [*a]", "\xff\xfe", "kind: !!python/x 1"],
)
def test_a_broken_file_of_another_vendor_does_not_stop_us(
    installed: Path, run: Path, text: str
) -> None:
    (installed / "a.yaml").write_bytes(text.encode("latin-1"))
    (installed / "z.json").write_bytes(text.encode("latin-1"))
    assert port(installed, run).write(NONCE, grant(), "")


def test_the_specification_that_is_read_last_goes_first_and_a_new_one_is_seen(
    installed: Path, run: Path
) -> None:
    files = port(installed, run)
    path = run / f"{OURS}{NONCE}.json"
    files.write(NONCE, grant(), "")
    assert "/dev/full" not in path.read_text()
    write_installed(run, installed_spec([GPU_A], LIBRARIES, node="/dev/full"))
    assert files.write(NONCE, grant(), "")
    assert "/dev/full" in path.read_text()
    (run / "nvidia.yaml").unlink()
    files.write(NONCE, grant(), "")
    assert "/dev/full" not in path.read_text()


def test_a_file_is_parsed_once_for_each_version_of_it(
    installed: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    real = cdi_files.InstalledSpecs.__init__.__globals__["_parse"]

    def noted(data: bytes, path: Path) -> object:
        parsed.append(path.name)
        return real(data, path)

    monkeypatch.setitem(cdi_files.InstalledSpecs.__init__.__globals__, "_parse", noted)
    files = port(installed, run)
    for number in range(5):
        files.write(f"{number:032x}", grant(), "")
    assert parsed == ["nvidia.yaml"]
    write_installed(installed, installed_spec([GPU_A], LIBRARIES, version="0.6.0"))
    files.write(NONCE, grant(), "")
    assert parsed == ["nvidia.yaml"] * 2


@pytest.mark.parametrize(
    ("gpus", "change", "level", "words"),
    [
        ([GPU_A, GPU_B], "", "ok", "etc/nvidia.yaml"),
        ([GPU_A], "remove", "missing", "nvidia-ctk cdi generate"),
        (["GPU-cccccccc-0000-0000-0000-00000000000c"], "", "missing", "GPU-cccccccc"),
        ([GPU_A], "open", "missing", "chown root"),
        ([GPU_A], "broken", "warning", "other.yaml"),
    ],
)
def test_doctor_says_whether_containers_could_be_given_the_gpus(
    installed: Path, run: Path, gpus: list[GpuUuid], change: str, level: str, words: str
) -> None:
    if change == "remove":
        (installed / "nvidia.yaml").write_text("kind: [")
    elif change == "open":
        run.mkdir(parents=True)
        run.chmod(0o777)
    elif change == "broken":
        (installed / "other.yaml").write_text("kind: [")
    found = port(installed, run).finding(gpus)
    assert found.level == level
    assert words in found.what + found.remedy
    assert (level == "ok") == (not found.remedy)


# --- strategies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", cdi_files.STRATEGIES)
def test_each_strategy_answers_writes_and_removes(
    installed: Path, run: Path, tmp_path: Path, strategy: str
) -> None:
    made = real_grant(tmp_path)
    files = cdi_port(strategy, tmp_path / "links", dict, (installed, run))
    files.renew_driver(made.files)
    assert bool(files.driver) is (strategy != "envvar")
    answer = files.answer(NONCE, [GPU_A], files.driver)
    told = [
        *answer.cdi_devices,
        *answer.annotations.values(),
        *(m.host_path for m in answer.mounts),
    ]
    assert told
    assert all(NONCE in text or "sluice.dev/driver=" in text for text in told)
    assert NONCE in told[-1], "the grant's own comes last"
    assert bool(files.write(NONCE, made, files.driver)) is (strategy != "envvar"), (
        "no cache stands between"
    )
    assert files.names() == [NONCE]
    for mount in answer.mounts:
        assert Path(mount.host_path).exists(), "the kubelet would make a directory of it"
    files.remove(NONCE)
    assert files.names() == []
    assert files.fixes_gpus is (strategy == "envvar")


def real_grant(tmp_path: Path) -> GrantMounts:
    region = tmp_path / "region"
    region.mkdir()
    for name in ("usage.shm", "policy.shm", "libsluice.so", "ld.so.preload"):
        (region / name).write_text(name)
    return grant(
        region,
        preload_path=str(region / "libsluice.so"),
        preload_list_path=str(region / "ld.so.preload"),
    )


def test_links_follow_a_new_driver_and_are_left_alone_otherwise(tmp_path: Path) -> None:
    made, links = real_grant(tmp_path), RegionLinks(tmp_path / "links")
    links.write(NONCE, made, "")
    inode = (tmp_path / "links" / NONCE / "grant").lstat().st_ino
    links.write(NONCE, made, "")
    assert (tmp_path / "links" / NONCE / "grant").lstat().st_ino == inode
    newer = tmp_path / "newer.so"
    newer.write_text("newer")
    links.write(NONCE, grant(tmp_path / "region", **_paths(made, preload_path=str(newer))), "")
    assert (tmp_path / "links" / NONCE / "libsluice.so").read_text() == "newer"
    assert (tmp_path / "links" / NONCE / "grant" / "policy.shm").read_text() == "policy.shm"


def _paths(made: GrantMounts, **changes: str) -> dict[str, str]:
    return {
        "preload_path": made.files.preload_path,
        "preload_list_path": made.files.preload_list_path,
        **changes,
    }


def test_links_are_not_made_to_what_is_not_there(tmp_path: Path) -> None:
    links = RegionLinks(tmp_path / "links")
    with pytest.raises(FileNotFoundError):
        links.write(NONCE, grant(tmp_path / "nowhere"), "")
    assert not (tmp_path / "links" / NONCE).exists()


def test_removing_links_leaves_what_they_led_to(tmp_path: Path) -> None:
    made, links = real_grant(tmp_path), RegionLinks(tmp_path / "links")
    links.write(NONCE, made, "")
    links.remove(NONCE)
    links.remove(NONCE)
    assert len(list((tmp_path / "region").iterdir())) == 4
