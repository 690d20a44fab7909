"""The list of what the development environment is made of, and the check against it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.kit.places import REPO
from tests.supply.scripts import script

lock, audit, index = script("lock"), script("audit"), script("package_index")
LOCKED = lock.locked(lock.LOCK.read_text())


def test_everything_that_is_asked_for_is_there_in_a_version_that_fits() -> None:
    for text in lock.wanted():
        requirement = Requirement(text)
        version, _ = LOCKED[index.name_of(text)]
        assert requirement.specifier.contains(version), text


def test_every_package_has_hashes_and_there_is_nothing_without() -> None:
    assert len(LOCKED) > 20
    assert [name for name, (_, hashes) in LOCKED.items() if not hashes] == []
    lines = [line for line in lock.LOCK.read_text().splitlines() if line and line[0] not in "# "]
    assert all("==" in line and line.endswith("\\") for line in lines)
    assert len(lines) == len(LOCKED)


def test_the_setup_takes_nothing_else() -> None:
    text = (REPO / "packaging" / "development" / "setup.sh").read_text()
    installs = [
        line for line in text.splitlines() if "pip" in line and "install" in line and "venv" in line
    ]
    assert (
        len(
            [
                line
                for line in installs
                if "--require-hashes -r packaging/development/requirements-dev.txt" in line
            ]
        )
        == 1
    )
    assert [
        line for line in installs if "/bin/pip" in line and "--require-hashes" not in line
    ] == []


def test_what_the_makefile_adds_has_hashes_too() -> None:
    """One of its installations had neither a version nor a hash."""
    text = (REPO / "Makefile").read_text()
    installs = re.findall(r"pip install[^\n]*", text)
    assert installs
    assert [one for one in installs if "--require-hashes -r packaging/" not in one] == []
    added = lock.locked(lock.MORE.read_text())
    assert added
    assert [name for name, (_, hashes) in added.items() if not hashes] == []


def test_pip_refuses_a_file_of_another_hash(tmp_path: Path) -> None:
    """--require-hashes refuses the file; without a network, from a directory."""
    wheel = tmp_path / "odd-1.0-py3-none-any.whl"
    import zipfile

    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("odd.py", "")
        made.writestr(
            "odd-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n"
        )
        made.writestr(
            "odd-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        made.writestr("odd-1.0.dist-info/RECORD", "")
    listed = tmp_path / "requirements.txt"
    listed.write_text(f"odd==1.0 --hash=sha256:{'0' * 64}\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--no-index", "--find-links", tmp_path),
            *("--require-hashes", "-r", listed, "-d", tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "DO NOT MATCH" in done.stderr


@pytest.mark.parametrize(
    ("file", "is_it"),
    [
        ("a_b-1.2-py3-none-any.whl", True),
        ("a.b-1.2-cp311-cp311-manylinux_2_17_aarch64.whl", True),
        ("a-b-1.2.tar.gz", True),
        ("a_b-1.2.tar.gz", True),
        ("a_b-1.20-py3-none-any.whl", False),
        ("a_b-1.2.1.tar.gz", False),
        ("a_b_c-1.2.tar.gz", False),
        ("a_b-1.2-py3-none-any.whl.metadata", False),
    ],
)
def test_files_of_a_version_are_told_from_those_of_others(file: str, is_it: bool) -> None:
    assert index.is_of(file, "a-b", "1.2") is is_it


def test_what_is_installed_beside_the_list_is_named() -> None:
    wanted = {"one": "1", "two": "2"}
    assert audit.differences({"one": "1", "pip": "99"}, wanted) == []
    assert audit.differences({"one": "3", "evil": "1"}, wanted) == [
        "evil 1 is not in the list",
        "one is 3, the list has 1",
    ]


def test_where_nobody_can_be_asked_that_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nowhere = ("environment", str(tmp_path), "--osv", "http://127.0.0.1:9/none")
    assert audit.main([*nowhere]) == 0
    assert "OSV could not be reached" in capsys.readouterr().out
    assert audit.main([*nowhere, "--required"]) == 1


def test_an_answer_with_a_vulnerability_names_it(tmp_path: Path) -> None:
    import http.server
    import threading

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            results = [
                {"vulns": [{"id": "X-1"}]} if q["package"]["name"] == "bad" else {} for q in asked
            ]
            body = json.dumps({"results": results}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        assert audit.vulnerabilities({"bad": "1", "good": "2"}, url) == ["bad 1: X-1"]


def test_a_bill_that_does_not_fit_what_is_installed_is_told(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dpkg/info").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(
        "Package: sluice-sim\nStatus: install ok installed\nMaintainer: x\nArchitecture: all\n"
        "Version: 1.0\nDescription: x\n"
    )
    bill = {
        "components": [
            {"bom-ref": "deb:sluice-sim", "name": "sluice-sim", "version": "1.0"},
            {"bom-ref": "deb:sluice-queue", "name": "sluice-queue", "version": "1.0"},
        ]
    }
    if subprocess.run(["which", "dpkg-query"], capture_output=True).returncode:
        pytest.skip("no dpkg here")
    assert audit.bill_differences(bill, tmp_path) == ["sluice-queue is not installed"]
    bill["components"][0]["version"] = "2.0"
    assert "sluice-sim is 1.0, the bill has 2.0" in audit.bill_differences(bill, tmp_path)


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ("", None),
        ("global.cert='/a'", None),
        ("global.index-url='https://one.example/simple/'", "https://one.example/simple"),
        (
            "global.index-url='https://one.example/simple'\n:env:.index-url='https://two.example/s'",
            "https://two.example/s",
        ),
    ],
    ids=["none", "other settings", "a file's", "the environment before a file"],
)
def test_the_index_is_the_one_that_pip_is_told(settings: str, address: str | None) -> None:
    assert index.address(settings) == address
