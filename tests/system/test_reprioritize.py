"""Jobs that are moved in the queue: by priority, and to the front."""

from __future__ import annotations

import pytest
from queue_driver import Queue
from shell import Shell

from foxqueue import Client, InvalidInput, NotChanged


@pytest.fixture
def five(fox: Client) -> list[int]:
    return [job.number for job in fox.submit_many([{"argv": ["true"]} for _ in range(5)])]


def order(shell: Shell) -> list[int]:
    return [job["number"] for job in shell.json("ls", "--state", "pending")]


def claimed(queue: Queue, count: int, shapes: tuple[str, ...] = ("g1",)) -> list[int]:
    worker = queue.worker("last", shapes=shapes)
    found = []
    for _ in range(count):
        run = worker.claim()
        found.append(run.number)
        queue.complete(run)
    return found


@pytest.mark.usefixtures("five")
def test_a_higher_priority_runs_first_and_ls_shows_the_order(shell: Shell, queue: Queue) -> None:
    assert shell.fox("reprioritize", "high", "4")[0] == "4 priority 8\n"
    assert shell.fox("reprioritize", "2", "1-2")[0] == "1 priority 2\n2 priority 2\n"
    assert order(shell) == [4, 3, 5, 1, 2]
    assert shell.json("show", "4")["priority"] == 8
    assert claimed(queue, 5) == [4, 3, 5, 1, 2]


@pytest.mark.usefixtures("five")
def test_the_front_is_before_everything_that_is_pending(shell: Shell, fox: Client, queue: Queue) -> None:
    other = fox.submit(["true"], priority=9, gpu_memory="8G").number
    assert shell.fox("reprioritize", "--front", "3,5")[0] == "3 at the front\n5 at the front\n"
    assert order(shell) == [3, 5, other, 1, 2, 4], "in the order in which they were named"
    assert claimed(queue, 6, ("g1", "g1.m8192")) == [3, 5, other, 1, 2, 4]


@pytest.mark.usefixtures("five")
def test_a_selection_keeps_its_order_at_the_front(shell: Shell, fox: Client) -> None:
    fox.job(4).reprioritize(9)
    fox.submit_many([{"argv": ["true"], "name": "b"} for _ in range(30)])
    assert shell.fox("reprioritize", "--front", "--name", "b", "--yes")[0] == "30 moved\n"
    assert order(shell) == [*range(6, 36), 4, 1, 2, 3, 5]


def test_a_scheduled_job_comes_to_the_front_when_it_is_due(fox: Client, queue: Queue, shell: Shell) -> None:
    retried = fox.submit(["true"], retries=1)
    queue.fail(queue.worker().claim(), delay_ms=0)
    fox.submit(["true"], priority=9)
    assert shell.fox("reprioritize", "--front", "1", "2")[0] == "1 at the front\n2 at the front\n"
    assert retried.refresh().state in ("pending", "scheduled")
    assert claimed(queue, 2) == [1, 2]


def test_what_cannot_be_moved_says_why(shell: Shell, fox: Client, queue: Queue) -> None:
    job, held = fox.submit(["true"]), fox.submit(["true"], hold=True)
    with pytest.raises(InvalidInput, match="nothing to change"):
        job.reprioritize()
    with pytest.raises(InvalidInput, match="0 to 9"):
        job.reprioritize(10)
    assert job.reprioritize("high").priority == 8
    assert held.reprioritize(7).priority == 7
    with pytest.raises(NotChanged, match="job 2 cannot be moved: it is blocked"):
        held.reprioritize(front=True)
    run = queue.worker().claim()
    assert job.reprioritize(3).priority == 3, "for when it is put back"
    queue.complete(run)
    assert "job 1 cannot be moved: it had succeeded before" in shell.fox("reprioritize", "1", "1", code=1)[1]
    assert "priority '42' is not understood" in shell.fox("reprioritize", "42", "2", code=2)[1]
    assert fox.job(2).priority == 7
