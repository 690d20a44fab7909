"""Workloads that have quota and are not admitted, or are on hold."""

from __future__ import annotations

from dataclasses import replace

from queuecontroller.scheduler.model.reasons import SCALED_TO_ZERO
from queuecontroller.state.book import Book
from queuecontroller.state.records import Desired
from tests.queue.state.world import TEAMS, World


class Unplaced(World):
    """A queue that only gives quota, as in mode kubernetes."""

    def _book(self) -> Book:
        book = Book(self.settings, False, lambda: f"uid-{next(self._uids)}")
        book.restore(self.store.load(), self.now_ns)
        return book


def test_checks_of_a_queue_reach_what_holds_quota_and_is_not_admitted() -> None:
    def checks(*names: str) -> str:
        listed = ", ".join(names)
        return TEAMS.replace(
            "metadata: {name: a}\nspec:",
            f"metadata: {{name: a}}\nspec:\n  admissionChecks: [{listed}]",
        )

    def required() -> list[str]:
        return [one.name for one in world.record(key).workload.admission_checks]

    world = World(checks("budget"))
    world.connect()
    key = world.submit()
    world.settle()
    assert required() == ["budget"]
    world.apply(checks("budget", "license"))
    assert required() == ["budget", "license"]
    world.apply(checks("license"))
    assert required() == ["license"]
    assert not world.record(key).workload.is_true("Admitted")
    world.apply(checks())
    assert required() == []
    assert world.record(key).workload.is_true("Admitted"), "it waits for none any more"
    world.apply(checks("budget"))
    assert required() == [], "an admitted workload has passed its checks"


def test_a_workload_on_hold_has_no_quota_until_it_is_wanted_again() -> None:
    world = Unplaced()
    key = world.submit()
    world.settle()
    assert world.used("a")
    world.step("hold", lambda book, now: book.workloads.put_on_hold(key, SCALED_TO_ZERO, now))
    world.settle()
    assert not world.used("a")
    assert world.status(key).reason == "OnHold"
    world.restart()
    world.settle()
    assert not world.used("a"), "it is stored"
    world.step("resume", lambda book, now: book.workloads.take_off_hold(key, now))
    world.settle()
    assert world.used("a")


def test_admission_checks_hold_back_what_has_quota() -> None:
    world = World(
        TEAMS.replace(
            "metadata: {name: a}\nspec:", "metadata: {name: a}\nspec:\n  admissionChecks: [budget]"
        )
    )
    world.connect()
    one = world.submit(name="w")
    assert world.status(one).message == "waits for budget"
    assert world.told(one) is None
    record = world.record(one)
    checks = tuple(type(c)(c.name, type(c.state).READY) for c in record.workload.admission_checks)
    world.step(
        "check",
        lambda book, now: book.workloads.change(
            one, replace(record.workload, admission_checks=checks), now
        ),
    )
    assert world.told(one) is Desired.RUN
