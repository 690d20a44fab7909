"""`sluice-queue` at 3 a.m.: whatever is typed, clear lines, a status, never a traceback."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuecontroller.server import standalone
from queuecontroller.server.config import parse
from queuecontroller.server.store.sqlite import SqliteStore
from tests.kit.queue.controller import SLUICE_QUEUE, QueueController
from tests.queue.state.world import TEAMS

QUEUE = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: LocalQueue\n"


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueController]:
    made = QueueController(tmp_path_factory.mktemp("controller"))
    made.start()
    made.apply(TEAMS)
    yield made
    made.stop()


def run(*words: str | Path, stdout: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Standard output into the file named, if any."""
    with open(stdout or os.devnull, "w") as out:
        done = subprocess.run(
            [SLUICE_QUEUE, *words],
            stdout=out if stdout else subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=os.environ | more,
            timeout=60,
        )
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["delete", "-f", ""], "-f/--filename: is empty"),
        (["lint", "-f", ""], "-f/--filename: is empty"),
        (["simulate", "-f", "/dev/null", "--trace", ""], "--trace: is empty"),
        (["serve", "--database", ""], "--database: is empty"),
        (["serve", "--config", ""], "--config: is empty"),
        (["get", "workload", ""], "'' is not NAME or NAMESPACE/NAME"),
        (["delete", "workload", "/x"], "'/x' is not NAME or NAMESPACE/NAME"),
        (["get", "cq", "-q", "a"], "--queue is for workloads"),
        (["get", "nodes", "--server", "here"], "--server: 'here' is not ADDRESS:PORT"),
        (
            ["get", "nodes", "--server", "10.0.0.1:9465"],
            "--server: 10.0.0.1:9465 is TCP, which requires TLS",
        ),
        (["get", "nodes", "--server", "a:1", "--ca", "/none"], "--ca: /none: No such file"),
        (
            ["get", "nodes", "--server", "a:1", "--ca", "/dev/null"],
            "--ca: /dev/null: does not contain a PEM CERTIFICATE",
        ),
        (
            ["get", "nodes", "--key", "/none"],
            "--certificate and --key, or --token-file, require --ca",
        ),
    ],
)
def test_wrong_words_are_told_with_their_flag(words: list[str], said: str) -> None:
    done = run(*words, SLUICE_QUEUE_SERVER="unix:/nowhere")
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) == 1 or done.stderr.startswith("usage: ")


def test_without_a_service_it_says_where_it_looked() -> None:
    done = run("get", "nodes", "--server", "unix:/nowhere")
    assert done.returncode == 69
    assert "the queue controller at unix:/nowhere: " in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_answer_that_cannot_be_written_is_a_failure(controller: QueueController) -> None:
    done = run("get", "cq", "--server", controller.address, stdout="/dev/full")
    assert done.returncode == 74
    assert done.stderr == "sluice-queue: get: cannot write: No space left on device\n"


def test_a_mistake_the_service_finds_has_file_and_line(
    controller: QueueController, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(f"{QUEUE}metadata: {{name: x}}\nspec: {{clusterQueue: a}}\n")
    (tmp_path / "b.yaml").write_text(f"{QUEUE}metadata:\n  name: [1]\nspec: {{clusterQueue: a}}\n")
    done = run("apply", "-f", tmp_path, "--server", controller.address)
    assert done.returncode == 2
    first = f"sluice-queue: {tmp_path}/b.yaml:4: LocalQueue.metadata.name: expected text, got [1]"
    assert done.stderr.splitlines()[0].startswith(first)
    assert done.stdout == ""
    gone = run("get", "lq", "x", "--server", controller.address)
    assert gone.returncode == 1, "all or nothing"


@pytest.mark.parametrize("head", ["[1, 2]", "{name: 5}", "{}"])
@pytest.mark.parametrize("verb", ["delete", "hold", "resume"])
def test_a_manifest_without_a_name_is_no_target(
    controller: QueueController, tmp_path: Path, verb: str, head: str
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{QUEUE}metadata: {head}\n")
    done = run(verb, "-f", file, "--server", controller.address)
    assert done.returncode == 2
    assert done.stderr.startswith(f"sluice-queue: {file}:3: LocalQueue.metadata.name: ")


def test_what_was_deleted_before_a_refusal_is_told(
    controller: QueueController, tmp_path: Path
) -> None:
    kind = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: "
    flavor = f"{kind}ResourceFlavor\nmetadata: {{name: spare}}\n"
    (tmp_path / "spare.yaml").write_text(flavor)
    assert run("apply", "-f", tmp_path, "--server", controller.address).returncode == 0
    none = f"{kind}ResourceFlavor\nmetadata: {{name: none}}\n"
    (tmp_path / "spare.yaml").write_text(f"{none}---\n{flavor}")
    done = run("delete", "-f", tmp_path, "--server", controller.address)
    assert done.returncode == 1
    assert done.stdout == "ResourceFlavor spare deleted\n"
    assert "none" in done.stderr


def test_a_date_is_text_to_all_verbs_alike(controller: QueueController, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    text = f"{QUEUE}metadata: {{name: 2024-01-01}}\nspec: {{clusterQueue: a}}\n"
    file.write_text(text)
    done = run("apply", "--dry-run", "-f", file, "--server", controller.address)
    assert (done.returncode, done.stdout) == (0, "LocalQueue default/2024-01-01 valid\n")
    found = json.loads(run("lint", "-o", "json", "-f", file).stdout)
    assert {one["object"] for one in found} == {"LocalQueue/default/2024-01-01"}
    assert {one["rule"] for one in found} == {"dangling"}


# --- serve ------------------------------------------------------------------------------------


def serve(database: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    socket = database.with_name("own.sock")
    own = ["--socket", socket, "--metrics-listen", "", "--database", database]
    return run("serve", *own, *words)


def test_mistakes_in_the_file_have_its_name_and_those_of_flags_have_not(tmp_path: Path) -> None:
    file = tmp_path / "queue.toml"
    file.write_text("[nodes]\nlease_s = 'x'\n")
    done = serve(tmp_path / "queue.sqlite", "--config", file, "--set", "tls.nothing=1")
    assert done.returncode == 2
    assert f"sluice-queue: {file}: nodes.lease_s: must be a number, got 'x'\n" in done.stderr
    assert "sluice-queue: tls.nothing: no such key" in done.stderr


def test_an_empty_database_is_not_begun_anew(tmp_path: Path) -> None:
    database = tmp_path / "queue.sqlite"
    database.touch()
    done = serve(database)
    assert done.returncode == 69
    assert "is empty: restore a backup, or remove it to start a new queue" in done.stderr
    assert database.read_bytes() == b""


@pytest.mark.parametrize("body", ["{broken", "[1]", "{}"])
def test_a_row_that_cannot_be_read_stops_the_start(tmp_path: Path, body: str) -> None:
    database = tmp_path / "queue.sqlite"
    SqliteStore(database).close()
    with sqlite3.connect(database) as made:
        made.execute("INSERT INTO objects VALUES ('Cohort', '', 'c', 1, ?)", (body,))
    done = serve(database)
    assert done.returncode == 69
    assert done.stderr.count("\n") == 1
    assert "critical" in done.stderr


def test_a_directory_is_no_database(tmp_path: Path) -> None:
    done = serve(tmp_path)
    assert done.returncode == 69
    assert "is a directory; server.database must name a file" in done.stderr


def test_a_full_disk_is_status_75_at_the_start_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_store: SqliteStore) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(SqliteStore, "_open", full)
    settings = parse({"server": {"database": str(tmp_path / "queue.sqlite")}})
    assert standalone.serve(settings, {}) == 75


def test_a_port_that_is_taken_is_named_with_its_setting(
    controller: QueueController, tmp_path: Path
) -> None:
    database = tmp_path / "queue.sqlite"
    done = serve(database, "--socket", controller.socket)
    assert done.returncode == 69
    assert (
        f"critical server.socket: {controller.socket}: another process is listening there"
        in done.stderr
    )
    done = serve(database, "--metrics-listen", f"127.0.0.1:{controller.metrics_port}")
    assert done.returncode == 69
    assert "critical server.metrics_listen: " in done.stderr
    with sqlite3.connect(database) as kept:
        assert kept.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_where_the_service_is_may_stand_before_the_verb(controller: QueueController) -> None:
    after = run("get", "--server", controller.address, "cq")
    assert after.returncode == 0, after.stderr
    for words in (
        ("--server", controller.address, "get", "cq"),
        (f"--server={controller.address}", "get", "cq"),
    ):
        done = run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, after.stdout, after.stderr), words
    assert run("--server", controller.address).returncode == 2
    assert run("--no-such", "get", "cq").returncode == 2


def test_in_a_pod_of_mode_kubernetes_it_says_where_the_queue_is(tmp_path: Path) -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "XDG_RUNTIME_DIR": str(tmp_path)}
    done = run("get", "nodes", **pod)
    assert done.returncode == 69
    assert "kubectl get clusterqueues,localqueues,workloads -A" in done.stderr
    assert "running there?" not in done.stderr
    done = run("get", "nodes", "--server", f"unix:{tmp_path}/none", **pod)
    assert "is `sluice-queue serve` running there?" in done.stderr, "a server that was named"
