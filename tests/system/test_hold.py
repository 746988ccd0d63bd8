"""Jobs that are held and let go, through the client and the command line."""

from __future__ import annotations

import pytest
from queue_driver import Queue
from shell import Shell

from foxqueue import Client, JobGone, JobNotFound, NotChanged
from foxqueue.submission import user


def test_a_held_job_does_not_start_and_keeps_its_place(fox: Client, queue: Queue) -> None:
    first, second, third = (fox.submit(["true"]) for _ in range(3))
    assert first.hold().state == "blocked"
    assert (first.held, first.waiting_for, first.waiting) == (user(), "held", True)
    assert first.hold().held == user(), "once more changes nothing"
    worker = queue.worker()
    assert worker.claim().number == second.number
    assert first.unhold().state == "pending" and first.held is None
    queue.broker.redis.delete(queue.broker.keys.claims)
    assert [run.number for run in (queue.worker("w2", "GPU-2").claim(), queue.worker("w3", "GPU-3").claim())] == [
        first.number,
        third.number,
    ]


def test_a_job_may_be_submitted_held(fox: Client, queue: Queue) -> None:
    job = fox.submit(["true"], hold=True)
    assert (job.state, job.held) == ("blocked", user())
    assert job.cancel().state == "cancelled"


def test_what_cannot_be_held_says_why(fox: Client, queue: Queue) -> None:
    job = fox.submit(["true"])
    with pytest.raises(NotChanged, match="job 1 cannot be unheld: it is not held"):
        job.unhold()
    run = queue.worker().claim()
    with pytest.raises(NotChanged, match="job 1 cannot be held: it is running"):
        job.hold()
    queue.complete(run)
    with pytest.raises(NotChanged, match="job 1 cannot be held: it had succeeded before"):
        job.hold()
    queue.broker.redis.flushall()
    with pytest.raises(JobNotFound):
        job.hold()
    fox.submit(["true"])
    with pytest.raises(JobGone):
        job.unhold()


def test_hold_and_unhold_on_the_command_line(shell: Shell, fox: Client, queue: Queue) -> None:
    fox.submit_many([{"argv": ["true"], "name": f"n{at}"} for at in range(4)])
    queue.worker().claim()
    assert shell.fox("hold", "--name", "n*")[0] == "2 held\n3 held\n4 held\n"
    out, err = shell.fox("ls", "--state", "blocked")
    assert out.count(f"held: held by {user()}") == 3
    assert f"\nheld by    {user()}\n" in shell.fox("show", "2")[0]
    assert shell.json("show", "2")["held"] == user()
    assert "no job that these filters choose can be held" in shell.fox("hold", "--all", code=1)[1], "held already"
    assert shell.fox("hold", "2")[0] == "2 held\n", "by number it does no harm"
    out, err = shell.fox("unhold", "1,3,9", code=1)
    assert out == "3 pending\n"
    assert "job 1 cannot be unheld: it is running" in err and "there is no job 9" in err
    assert [job["number"] for job in shell.json("unhold", "--mine")] == [2, 4]


def test_a_held_child_waits_for_its_parents_too(shell: Shell, fox: Client, queue: Queue) -> None:
    parent = fox.submit(["true"])
    child = fox.submit(["true"], after=parent)
    child.hold()
    assert shell.fox("unhold", "2")[0] == "2 blocked\n"
    child.hold()
    queue.complete(queue.worker().claim())
    assert child.refresh().state == "blocked"
    assert child.unhold().state == "pending"
