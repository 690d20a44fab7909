"""`kill -9` of the daemon, and its return: jobs notice nothing, nothing is lost, nothing is
left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nodeagent import native
from nodeagent.adapters.region import layout as c
from nodeagent.ports.regions import TurnMode
from tests.kit.daemon.harness import Daemon, daemon, until
from tests.kit.damage import damage
from tests.kit.places import REPO


def grant_named(node: Daemon, name: str) -> object:
    (found,) = [grant for grant in node.grants() if grant.name == name]
    return found


def _planned(turn: dict[str, int]) -> dict[str, int] | None:
    return turn if turn["plan_ppm"] else None


def test_a_registered_process_survives_the_daemon_and_is_adopted() -> None:
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "job")
        reply = tenant.do("register")
        tenant.do("set", reply["slot"], "charged_bytes", 3 << 30)
        before = until("its turn is planned", lambda: _planned(tenant.do("turn", 0)))
        node.kill()
        assert tenant.do("turn", 0) == before, "limits stay while the daemon is away"
        node.start()
        grant = grant_named(node, "job")
        assert grant.processes == 1
        assert tenant.do("entry", reply["slot"])["generation"] == reply["generation"]
        until(
            "the charge is counted again",
            lambda: grant_named(node, "job").devices[0].memory_used_bytes == 3 << 30,
        )
        assert node.sluice("resize", "job", "--cores", "40").returncode == 0
        assert tenant.do("turn", 0)["share_ppm"] == 400_000
        tenant.kill()
        until("the grant ends", lambda: not node.grants())


def test_a_grant_whose_owner_died_meanwhile_is_removed_at_the_start() -> None:
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30")
        tenant.do("register")
        node.kill()
        tenant.kill()
        node.start()
        assert node.grants() == []
        assert list((node.runtime / "grants").iterdir()) == []


def test_a_slot_claimed_while_the_daemon_was_away_is_adopted() -> None:
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "claimer")
        node.kill()
        tenant.do("claim", 5)
        tenant.do("set", 5, "charged_bytes", 1 << 30)
        node.start()
        entry = until("an owner", lambda: _odd(tenant.do("entry", 5)))
        assert entry["host_pid"] == tenant.pid
        assert tenant.do("get", 5, "charged_bytes") == 1 << 30, "adoption keeps the usage"
        again = tenant.do("register", 6)
        assert (again["error"], again["slot"]) == (0, 5)
        assert again["generation"] == entry["generation"]


def test_a_program_that_became_another_while_the_daemon_was_away_keeps_no_slot() -> None:
    """No daemon noticed its hang-up: a registration or claim of the earlier program is not adopted
    for the new one."""
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "job")
        assert tenant.do("register")["slot"] == 0
        tenant.do("set", 0, "charged_bytes", 1 << 30)
        node.kill()
        tenant.do("claim", 5)
        tenant.do("set", 5, "charged_bytes", 1 << 30)
        assert tenant.do("become") == "ready"
        node.start()
        until("nothing is charged", lambda: tenant.do("get", 5, "charged_bytes") == 0)
        assert tenant.do("get", 0, "charged_bytes") == 0
        assert grant_named(node, "job").processes == 0
        assert tenant.do("register")["slot"] == 0
        assert grant_named(node, "job").processes == 1


def test_a_program_that_becomes_another_after_a_restart_of_the_daemon_has_one_slot() -> None:
    """The socket that would tell is the former daemon's: the registration of the next one tells."""
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "job")
        assert tenant.do("register")["slot"] == 0
        tenant.do("set", 0, "charged_bytes", 1 << 30)
        node.kill()
        node.start()
        assert grant_named(node, "job").processes == 1
        assert tenant.do("become") == "ready"
        assert tenant.do("register")["slot"] == 1
        assert grant_named(node, "job").processes == 1
        assert tenant.do("get", 0, "charged_bytes") == 0


def test_a_claim_in_the_name_of_a_stranger_is_zeroed() -> None:
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30")
        node.kill()
        tenant.do("claim", 5)
        tenant.do("set", 5, "charged_bytes", 1 << 30)
        tenant.do("disguise", 5, os.getpid())  # alive, but has not mapped the region
        node.start()
        until("the slot is zero", lambda: tenant.do("get", 5, "charged_bytes") == 0)
        assert tenant.do("entry", 5)["generation"] == 0


def test_leftovers_of_nobody_are_removed() -> None:
    with daemon(start=False) as node:
        leftover = node.runtime / "grants" / "11111111-2222-3333-4444-555555555555"
        leftover.mkdir(parents=True)
        (leftover / "policy.shm").write_bytes(b"old")
        (node.runtime / "grants" / "not-a-grant").mkdir()
        node.start()
        assert not leftover.exists()
        (node.runtime / "grants" / "not-a-grant").rmdir()


def test_a_corrupt_ledger_is_put_aside_and_the_regions_say_what_lives() -> None:
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "survivor")
        reply = tenant.do("register")
        node.kill()
        state = node.directory / "st"
        for file in state.iterdir():
            file.write_bytes(os.urandom(8192))
        node.start()
        assert [p.name for p in state.iterdir() if ".corrupt-" in p.name]
        grant = grant_named(node, "survivor")
        assert (grant.processes, grant.devices[0].memory_limit_bytes) == (1, 8 << 30)
        assert tenant.do("entry", reply["slot"])["generation"] == reply["generation"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_flipped_bits_in_every_file_of_the_state_keep_the_daemon_from_nothing(seed: int) -> None:
    """The process itself; tests/properties/nodeagent/test_damaged_state.py tries its stores by the hundred."""
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "survivor")
        reply = tenant.do("register")
        node.kill()
        dice = random.Random(seed)
        for file in sorted((node.directory / "st").rglob("*")):
            if file.is_file():
                damage(file, dice)
        node.start()
        grant = grant_named(node, "survivor")
        assert (grant.processes, grant.devices[0].memory_limit_bytes) == (1, 8 << 30)
        assert tenant.do("entry", reply["slot"])["generation"] == reply["generation"]
        log = node.log.read_text()
        assert "Traceback" not in log
        for aside in (node.directory / "st").glob("*.corrupt-*"):
            assert aside.name.removesuffix("-wal").removesuffix("-shm") in log
        tenant.kill()


@pytest.mark.parametrize("copy", [True, False], ids=["an earlier copy", "moved away"])
def test_what_the_ledger_does_not_know_is_adopted_by_its_region(copy: bool) -> None:
    with daemon() as node:
        early = node.run("--gpumem", "1Gi", "--cores", "10", "--name", "early")
        over = node.run("--gpumem", "1Gi", "--cores", "10", "--name", "over")
        node.kill()
        state = node.directory / "st"
        kept = {file.name: file.read_bytes() for file in state.glob("ledger.sqlite*")}
        node.start()
        late = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "late")
        waits = node.run("--gpumem", "1Gi", "--cores", "10", "--name", "waits")  # no CUDA yet
        reply = late.do("register")
        over.kill()
        until("it is over", lambda: "over" not in {one.name for one in node.grants()})
        node.kill()
        for file in state.glob("ledger.sqlite*"):
            file.unlink()
        if copy:
            for name, content in kept.items():
                (state / name).write_bytes(content)
        node.start()
        assert {one.name for one in node.grants()} == {"early", "late", "waits"}
        assert late.do("entry", reply["slot"])["generation"] == reply["generation"]
        for one in (early, late, waits):
            one.kill()


def test_a_garbled_region_of_a_live_grant_is_not_believed_and_its_quota_is_kept() -> None:
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "broken")
        (grant,) = node.grants()
        node.kill()
        policy = Path(grant.directory) / c.POLICY_FILE
        policy.chmod(0o644)
        policy.write_bytes(b"\xff" * c.POLICY_BYTES)
        node.start()
        (kept,) = node.grants()
        assert (kept.grant, kept.state, kept.directory) == (grant.grant, "lost", "")
        tenant.kill()
        until("its quota is back", lambda: not node.grants())
        assert not Path(grant.directory).exists()


def _remove_files(directory: Path, how: str) -> None:
    if how == "umount":
        subprocess.run(["umount", "-l", directory], check=True)
        directory.rmdir()
        return
    for file in directory.iterdir():
        file.unlink()
    if how == "rmdir":
        subprocess.run(["umount", "-l", directory], check=False, capture_output=True)
        directory.rmdir()


@pytest.mark.parametrize("how", ["unlink", "rmdir", "umount"])
def test_region_files_that_root_removed_give_nobody_their_quota_twice(how: str) -> None:
    """80 GiB of one card: 60 are held by a, whose files go; b must not be given 60, too."""
    with daemon() as node:
        with node.client() as client:
            card = client.node_info().gpus[0].uuid
        wanted = ("--gpumem", "60Gi", "--cores", "70", "--gpu-uuid", card)
        a = node.run(*wanted, "--name", "a")
        a.do("register")
        (grant,) = node.grants()
        if how == "umount" and not os.path.ismount(grant.directory):
            pytest.skip("regions have no mounts of their own here")
        node.kill()
        _remove_files(Path(grant.directory), how)
        node.start()
        (kept,) = node.grants()
        assert (kept.name, kept.state, kept.pid, kept.processes) == ("a", "lost", a.pid, 1)
        asked = ("run", *wanted, "--", "true")
        done = node.sluice(*asked)
        assert done.returncode == 125
        assert "do not fit" in done.stderr or "free" in done.stderr, done.stderr
        assert f"grant {grant.grant}: region files are missing or corrupt" in node.log.read_text()
        node.kill()
        node.start()
        assert [one.name for one in node.grants()] == ["a"], "over another restart, too"
        a.kill()
        until("its quota is back", lambda: not node.grants())
        assert node.sluice(*asked).returncode == 0


def test_children_of_an_owner_that_ended_keep_the_quota_of_removed_files() -> None:
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "family")
        child = tenant.do("fork")["pid"]
        (grant,) = node.grants()
        node.kill()
        _remove_files(Path(grant.directory), "unlink")
        tenant.kill()
        node.start()
        (kept,) = node.grants()
        assert (kept.name, kept.state, kept.processes) == ("family", "lost", 1)
        os.kill(child, signal.SIGKILL)
        until("its quota is back", lambda: not node.grants())


def test_a_second_daemon_in_the_same_place_refuses_to_start() -> None:
    with daemon() as node:
        done = subprocess.run(
            [sys.executable, "-m", "nodeagent", "--config", str(node.config)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=REPO,
        )
        assert done.returncode == 69
        assert node.process is not None
        assert f"another daemon (pid {node.process.pid}, " in done.stderr


def test_two_active_tenants_take_turns_and_one_alone_does_not() -> None:
    # These tenants show a sign of work only when they are polled.
    with daemon("[planner]\nswitch_us = 0\nactive_hold_ms = 1000\n") as node:
        names = ("a", "b")
        tenants = {
            name: node.run("--gpumem", "8Gi", "--cores", cores, "--name", name)
            for name, cores in zip(names, ("30", "70"), strict=True)
        }
        for tenant in tenants.values():
            assert tenant.do("register")["slot"] == 0
        work = dict.fromkeys(names, 0)

        def busy(*who: str) -> list[dict[str, int]]:
            for name in who:
                work[name] += 1_000_000
                tenants[name].do("set", 0, "consumed_ns", work[name])
                tenants[name].do("set", 0, "completed_ns", work[name])
            return [tenants[name].do("turn", 0) for name in names]

        def leases() -> list[dict[str, int]] | None:
            turns = busy("a", "b")
            return turns if all(t["turn_mode"] == TurnMode.LEASE for t in turns) else None

        a, b = until("both have leases", leases)
        assert a["lease_period_ns"] == b["lease_period_ns"] == 10_000_000
        assert (a["lease_quantum_ns"], b["lease_quantum_ns"]) == (3_000_000, 7_000_000)
        assert (b["lease_origin_ns"] - a["lease_origin_ns"]) % 10_000_000 == 3_000_000
        assert (a["plan_ppm"], b["plan_ppm"], a["active_grants"]) == (300_000, 700_000, 2)
        until("a is alone", lambda: busy("a")[0]["turn_mode"] == TurnMode.CAP)
        assert node.sluice("resize", "a", "--policy", "elastic").returncode == 0
        until("a may have it all", lambda: busy("a")[0]["turn_mode"] == TurnMode.OFF)


@pytest.mark.parametrize("module", ["nodeagent"])
def test_without_nvml_the_daemon_serves_and_says_what_is_missing(module: str) -> None:
    with daemon('[nvml]\nlibrary = "/no/such/libnvidia-ml.so.1"\n', module=module) as node:
        done = node.sluice("run", "--cores", "10", "--", "true")
        assert done.returncode == 125
        assert "no GPU is available" in done.stderr
        done = node.sluice("doctor")
        assert done.returncode == 1
        assert "/no/such/libnvidia-ml.so.1" in done.stdout


def test_the_simulated_driver_is_read_like_a_real_one() -> None:
    library = native.locate().root / "sim" / "libnvidia-ml.so.1"
    if not library.is_file():
        pytest.skip(f"{library} is not built")
    with daemon(f'[nvml]\nlibrary = "{library}"\n', module="nodeagent") as node:
        with node.client() as client:
            info = client.node_info()
        assert info.nvml_error is None
        assert info.gpus
        assert all(gpu.memory_total_bytes > 1 << 30 for gpu in info.gpus)


def test_sigterm_ends_it_cleanly_and_leaves_the_jobs_alone() -> None:
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30")
        tenant.do("register")
        assert node.stop() == 0
        assert not node.socket.exists()
        os.kill(tenant.pid, 0)
        started_s = time.monotonic()
        node.start()
        assert time.monotonic() - started_s < 30
        assert [grant.processes for grant in node.grants()] == [1]


def test_a_ledger_that_cannot_be_written_ends_the_daemon_with_75() -> None:
    with daemon(start=False) as node:
        node.start({"SLUICE_TEST_FAIL_LEDGER": "1"})
        done = node.sluice("run", "--cores", "10", "--gpumem", "1Gi", "--", "true")
        assert done.returncode == 125
        assert node.process is not None
        assert node.process.wait(60) == 75
        assert shutil.which("sh")
        assert node.process.returncode != -signal.SIGKILL


def _odd(entry: dict[str, int]) -> dict[str, int] | None:
    return entry if entry["generation"] % 2 else None


def test_a_changed_configuration_is_taken_over_while_jobs_run() -> None:
    with daemon() as node:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "job")
        tenant.do("register")
        before = node.config.read_text()
        assert node.process is not None
        node.config.write_text(f"{before}\n[grants]\nmax_user_priority = -5\nslots_per_gpu = 2\n")
        node.process.send_signal(signal.SIGHUP)
        until(
            "the change is told",
            lambda: "configuration: changed grants.max_user_priority" in node.log.read_text(),
        )
        until(
            "what waits is told",
            lambda: "a restart is needed for grants.slots_per_gpu" in node.log.read_text(),
        )
        node.config.write_text("[grants")
        node.process.send_signal(signal.SIGHUP)
        until("the mistake is told", lambda: "configuration: rejected" in node.log.read_text())
        assert node.process.poll() is None
        assert grant_named(node, "job").processes == 1
        node.config.write_text(before)
