"""Records and rows: what the C says against what the Python reads, and the parts that need no kernel."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

from nodeagent import native
from nodeagent.adapters.ebpf import audit as ebpf_audit
from nodeagent.adapters.ebpf import host as ebpf_host
from nodeagent.adapters.ebpf import kernel as ebpf_kernel
from nodeagent.adapters.ebpf import records as rec
from nodeagent.adapters.ebpf.loaders import bcc as ebpf_bcc
from nodeagent.adapters.ebpf.loaders import headers as ebpf_headers
from nodeagent.adapters.ebpf.loaders import prebuilt as ebpf_prebuilt
from nodeagent.adapters.ebpf.loaders.programs import MAPS, PROGRAMS
from nodeagent.settings.daemon import device_numbers
from tests.kit.places import REPO

SIZES = {
    "record": rec.RECORD.size,
    "device_key": rec.DEVICE_KEY.size,
    "launch_key": rec.LAUNCH_KEY.size,
    "launch_row": rec.LAUNCH_ROW.size,
    "pid_namespace": ebpf_prebuilt.PID_NAMESPACE.size,
}
SOURCE = REPO / "nodeagent" / "bpf" / "watch.c"
OBJECT = native.locate().bpf_object
COSTS = ebpf_audit.Costs(trap_ns=10_000, nop_ns=500)


def test_structs_have_the_sizes_that_are_read(tmp_path: Path) -> None:
    checks = "\n".join(
        f'_Static_assert(sizeof(struct {name}) == {size}, "{name}");'
        for name, size in SIZES.items()
    )
    source = f"""
        #include <linux/types.h>
        #include <stddef.h>
        #include "records.h"
        {checks}
        _Static_assert(offsetof(struct record, command) == 48, "command");
        _Static_assert(offsetof(struct launch_row, wait) == 64, "wait");
        _Static_assert(ANY_MINOR == {rec.ANY_MINOR}u, "any");
        _Static_assert(RECORD_OPEN == {rec.RECORD_OPEN}, "open");
        _Static_assert(RECORD_EXEC == {rec.RECORD_EXEC}, "exec");
        _Static_assert(RECORD_EXIT == {rec.RECORD_EXIT}, "exit");
        _Static_assert(DROPPED_RECORDS == {rec.DROPPED_RECORDS}, "records");
        _Static_assert(DROPPED_ROWS == {rec.DROPPED_ROWS}, "rows");
    """
    file = tmp_path / "sizes.c"
    file.write_text(source)
    made = subprocess.run(
        ["gcc", "-fsyntax-only", f"-I{REPO}/nodeagent/bpf", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr


def test_every_program_and_map_that_is_loaded_is_in_the_source() -> None:
    source = SOURCE.read_text()
    programs = set(re.findall(r'^PROGRAM\("[^"]+"\) (\w+)\(struct', source, re.MULTILINE))
    assert programs == set(PROGRAMS)
    maps = set(re.findall(r"^MAP\([^;]*?(\w+), \w+\);", source, re.MULTILINE)) | {"records"}
    assert set(MAPS) <= maps


def test_each_call_with_a_map_is_translated_for_bcc() -> None:
    source = SOURCE.read_text()
    translated = ebpf_bcc.translated(source)
    calls = len(re.findall(r"bpf_(?:map_\w+_elem|ringbuf_output)\(&", source))
    members = re.findall(r"\b(\w+)\.(lookup|update|insert|delete|ringbuf_output)\(", translated)
    assert len(members) == calls > 15
    assert "opened.update(&key, &now_ns);" in translated
    assert "launch_rows.insert(key, zero);" in translated
    assert "refused_now.delete(&thread);" in translated


@pytest.mark.parametrize(
    "call",
    ["bpf_map_update_elem(&opened, &key, &value, BPF_EXIST);", "bpf_ringbuf_reserve(&records, 8);"],
)
def test_a_call_that_bcc_has_no_form_for_is_named(call: str) -> None:
    with pytest.raises(ValueError, match=re.escape(call.partition("(")[0])):
        ebpf_bcc.translated(call)


@pytest.mark.skipif(not OBJECT.is_file(), reason="built without clang's BPF target")
@pytest.mark.parametrize("name", [OBJECT.name, ebpf_prebuilt.OLD])
def test_a_prebuilt_object_is_for_bpf_and_tells_nothing_of_where_it_was_built(name: str) -> None:
    data = OBJECT.with_name(name).read_bytes()
    (machine,) = struct.unpack_from("<H", data, 18)
    assert machine == 247, "EM_BPF"
    assert str(REPO).encode() not in data
    assert ebpf_prebuilt.CONSTANTS.partition(".")[0] == name.partition(".")[0], "libbpf's way"


def test_a_record_is_read_back() -> None:
    data = rec.RECORD.pack(7, 8, rec.RECORD_OPEN, 9, 1000, 195, 255, 6, 1, 0, b"python3\0")
    record = rec.read_record(data)
    assert record == rec.Record(7, 8, rec.RECORD_OPEN, 9, 1000, 195, 255, "rw", True, "python3")


def test_devices_are_the_drivers_unless_they_are_named() -> None:
    listing = "Character devices:\n  1 mem\n195 nvidia-frontend\n511 nvidia-uvm\n\nBlock devices:\n195 sd\n"
    assert rec.gpu_devices("", listing) == ((195, rec.ANY_MINOR), (511, rec.ANY_MINOR))
    assert rec.gpu_devices("1:5, 195:*", listing) == ((1, 5), (195, rec.ANY_MINOR))
    assert rec.gpu_devices("", "Character devices:\n  1 mem\n") == ()


@pytest.mark.parametrize("text", ["195", "a:1", "1:b", "1:-1", "1:2:3", "*:1"])
def test_device_numbers_that_are_none_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="MAJOR:MINOR"):
        device_numbers(text)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        pytest.param(b"\xcc\x1f\x44\x00\x00", None, id="a breakpoint of the kernel"),
        pytest.param(b"\xe8\x00\x10\x00\x00", None, id="its call in the place of the nop"),
        pytest.param(b"\x0f\x1f\x44\x00\x00", "restored", id="the file's own code"),
        pytest.param(b"\xe9\x00\x10\x00\x00", "patched", id="somebody's jump"),
        pytest.param(b"\xc3\x1f\x44\x00\x00", "patched", id="a return"),
    ],
)
def test_code_under_a_probe_is_judged(found: bytes, verdict: str | None) -> None:
    assert ebpf_audit.altered(b"\x0f\x1f\x44\x00\x00", found) == verdict


def test_a_window_ends_by_time_or_by_what_it_took() -> None:
    budget = ebpf_audit.Budget(10.0, 0.1, 0.01, COSTS)
    assert not budget.ends(0.05, budget.cost_ratio(0.05, 100, 100))
    assert budget.ends(0.1, 0.0)
    # 8,000 launches lose 80 ms of 10 s: four fifths of one percent.
    assert budget.ends(0.09, budget.cost_ratio(0.09, 8_000, 0))
    # Threads lose side by side, so the process no more than the window.
    assert budget.cost_ratio(0.02, 1_000_000, 0) == pytest.approx(0.002)
    assert budget.slice_s < budget.window_s


@pytest.fixture
def bare_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a host without bcc and headers, as root on a kernel that is new enough."""
    monkeypatch.setattr(ebpf_host, "_has_bcc", lambda: False)
    monkeypatch.setattr(ebpf_host, "kernel_headers", lambda: None)
    monkeypatch.setattr(ebpf_host, "_may_load", lambda: True)
    monkeypatch.setattr(ebpf_host, "OLDEST", (1, 0))
    monkeypatch.setattr(ebpf_host, "load_libbpf", lambda: None)


@pytest.mark.usefixtures("bare_host")
@pytest.mark.parametrize(
    ("loader", "built", "topics"),
    [
        pytest.param("auto", True, set(), id="the prebuilt programs need neither bcc nor headers"),
        pytest.param("prebuilt", True, set(), id="the same when they are demanded"),
        pytest.param(
            "auto",
            False,
            {"ebpf prebuilt", "ebpf bcc", "ebpf headers"},
            id="nothing is there: both ways are shown",
        ),
        pytest.param("prebuilt", False, {"ebpf prebuilt"}, id="bcc is not asked for"),
        pytest.param("bcc", True, {"ebpf bcc", "ebpf headers"}, id="bcc is demanded"),
    ],
)
def test_what_is_missing_depends_on_the_loader(
    loader: str, built: bool, topics: set[str], tmp_path: Path
) -> None:
    file = tmp_path / "watch.bpf.o"
    if built:
        file.touch()
    found = {finding.topic: finding for finding in ebpf_host.missing(loader, file)}
    assert found.keys() == topics
    if "ebpf prebuilt" in topics:
        assert str(file) in found["ebpf prebuilt"].what
        assert "libbpf-dev" in found["ebpf prebuilt"].remedy


@pytest.mark.usefixtures("bare_host")
def test_bcc_alone_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ebpf_host, "_has_bcc", lambda: True)
    monkeypatch.setattr(ebpf_host, "kernel_headers", lambda: ebpf_headers.Headers(tmp_path))
    assert ebpf_host.missing("auto", tmp_path / "none") == []


def test_what_is_missing_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_libbpf() -> None:
        raise ebpf_kernel.LibbpfMissing("no libbpf")

    monkeypatch.setattr(ebpf_host, "_has_bcc", lambda: False)
    monkeypatch.setattr(ebpf_host, "kernel_headers", lambda: None)
    monkeypatch.setattr(ebpf_host, "_may_load", lambda: False)
    monkeypatch.setattr(ebpf_host, "load_libbpf", no_libbpf)
    monkeypatch.setattr(ebpf_host, "OLDEST", (99, 0))
    found = {finding.topic: finding for finding in ebpf_host.missing("auto", tmp_path / "none")}
    assert found.keys() == {
        *("ebpf", "ebpf kernel", "ebpf bcc", "ebpf headers", "ebpf libbpf", "ebpf prebuilt")
    }
    assert all(finding.level == "warning" for finding in found.values()), "grants work without"
    assert "install python3-b" in found["ebpf bcc"].remedy
    assert "install libbpf" in found["ebpf libbpf"].remedy
    assert "docs/node/telemetry.md" in found["ebpf headers"].remedy
    assert all("sluice trace" in finding.remedy for finding in found.values())
