"""A job of each kind with the operator that its users install: held, admitted, run, preempted, run again, finished and deleted. Pods
are made by that operator, and the quota is exact at each step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.operators.jobs import CASES, Case
from tests.cluster.operators.lab import Lab, labs
from tests.cluster.operators.running import Process, running
from tests.cluster.queueing import is_true

pytestmark = [pytest.mark.operators, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    place: Path = tmp_path_factory.mktemp("operators")
    with labs(place, _operators(request.session.items)) as made:
        yield made


def _operators(items: list[pytest.Item]) -> set[str]:
    """Operators of the tests that were selected: each kind costs the API server memory and time."""
    found = (getattr(one, "callspec", None) for one in items)
    return {one.params["case"].operator for one in found if one and "case" in one.params}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_job_is_held_run_preempted_and_given_back(lab: Lab, case: Case) -> None:
    with ExitStack() as stack:
        processes = stack.enter_context(running(lab.plane, lab.place, case.operator))
        try:
            for path, document in case.before:
                lab.create(document, path)
            story(lab, case)
        except BaseException as error:
            error.add_note(last_words(processes))
            raise
        finally:
            lab.plane.api.delete(f"{case.path}/sample")
            lab.clear()


def story(lab: Lab, case: Case) -> None:
    lab.queue(case.cpus, hold=True)
    lab.create(case.document, case.path)
    lab.wait("its Workloads wait", lambda: len(lab.workloads()) == case.workloads)
    lab.stays_held()

    lab.release()
    lab.wait_running(case.pods)
    lab.wait_held(case.cpus)
    made = set(lab.seen)
    assert len(made) == case.workloads, "Workloads are made once"

    lab.preempt()
    lab.end_high()
    lab.wait_running(case.pods)
    lab.wait_held(case.cpus)

    if case.done is not None:
        lab.kubelets.done = case.done
        lab.wait(
            "its Workloads are finished",
            lambda: all(is_true(one, "Finished") for one in lab.workloads()),
        )
        lab.wait_held(0)
    lab.plane.api.delete(f"{case.path}/sample")
    lab.empty()
    assert lab.seen >= made


def last_words(processes: dict[str, Process]) -> str:
    return "\n".join(
        f"{name}: {line}" for name, one in processes.items() for line in one.text.splitlines()[-25:]
    )
