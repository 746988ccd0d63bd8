"""What a listing and one job say of jobs that wait for others, and what it costs to say it."""

from __future__ import annotations

import pytest
from pretend import register
from queue_driver import ENVIRONMENT, Queue
from shell import Shell

from foxqueue import Client
from foxqueue.broker import NewJob
from foxqueue.codec import pack


def enqueue(queue: Queue, more: str = "", after: dict[int, str] | None = None, retries: int = 0) -> int:
    """Enqueue a job that waits for others, under these conditions."""
    parents = "".join(f"after={parent}::{cond}\n" for parent, cond in (after or {}).items())
    spec = {"v": 1, "argv": ["true"], **({"after": {str(n): cond for n, cond in after.items()}} if after else {})}
    job = NewJob("job", "g1", 5, retries, 1000, pack(spec), parents + more)
    return queue.broker.enqueue(job, ENVIRONMENT, user="ann")[0]


def test_a_job_that_waits_for_others_names_them(shell: Shell, fox: Client, queue: Queue) -> None:
    register(queue)
    first, second = enqueue(queue), enqueue(queue)
    child = enqueue(queue, after={first: "succeeded", second: "any"})
    both = f"waits for {first} (succeeded) and {second} (any end)"
    job = fox.job(child)
    assert (job.state, job.waiting_for, job.detail) == ("blocked", "dependencies", both)
    assert job.blocked_by == {first: "succeeded", second: "any"} == job.after and job.parents_open == 2
    shown = shell.json("show", str(child))
    assert shown["parents"] == {str(first): "succeeded", str(second): "any"}
    assert "blocked" in shell.fox("ls")[0] and f"dependencies: {both}" in shell.fox("ls")[0]
    queue.complete(queue.worker().claim())
    job = fox.job(child)
    assert job.blocked_by == {second: "any"} and job.detail == f"waits for {second} (any end)"
    listed = next(job for job in fox.jobs() if job.number == child)
    assert listed.detail == f"waits for 1 of {first} (succeeded) and {second} (any end)"
    queue.broker.hold(child, "", "bob")
    assert fox.job(child).detail == f"waits for {second} (any end), and held by bob"
    queue.fail(queue.worker("w2").claim(), delay_ms=None)
    job = fox.job(child)
    assert (job.waiting_for, job.detail, job.held) == ("held", "held by bob: foxqueue unhold", "bob")
    queue.broker.unhold(child, "", "bob")
    assert fox.job(child).state == "pending" and fox.job(child).held is None


def test_states_follow_each_other_in_a_listing(fox: Client, queue: Queue) -> None:
    running, pending = enqueue(queue), enqueue(queue)
    queue.worker().claim()
    held = enqueue(queue, "held=ann\n")
    scheduled = enqueue(queue, "delay_ms=3600000\n")
    ended = enqueue(queue)
    queue.broker.cancel(ended, "", "ann")
    assert [job.number for job in fox.jobs()] == [pending, scheduled, held, running, ended]
    assert [job.waiting_for for job in fox.jobs()][1:3] == ["scheduled", "held"]
    assert [job.number for job in fox.inspector.every(())] == [held, scheduled, pending, running, ended]
    assert fox.inspector.counts() == {
        "pending": 1,
        "scheduled": 1,
        "blocked": 1,
        "running": 1,
        "finished": 1,
        "failed": 0,
    }
    stats = fox.stats()
    assert (stats["queued_jobs"], stats["scheduled"], stats["blocked"], stats["unfinished"]) == (3, 1, 1, 4)
    due = fox.job(scheduled)
    assert due.due_ms and due.detail and due.detail.startswith("due in ")


def test_one_job_tells_how_its_earlier_runs_ended(fox: Client, queue: Queue) -> None:
    number = enqueue(queue, retries=2)
    worker = queue.worker()
    queue.lose(worker.claim())
    queue.release(worker.claim())
    queue.fail(worker.claim(), delay_ms=0)
    runs = fox.job(number).view.history
    assert [(run.how, run.reason, run.exit_code) for run in runs] == [
        ("lose", "worker_lost", None),
        ("release", "shutdown", None),
        ("fail", "exit_code", 1),
    ]
    assert all(run.host == "host" and run.device == "GPU-1" and run.started_ms and run.ended_ms for run in runs)
    assert fox.inspector.views([number])[0].history == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("group", [None, "lr"])
def test_the_first_page_is_asked_for_alike_among_few_and_many(
    fox: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    """Given 200 and 20,000 pending jobs, a first page takes the same commands, each of the same size."""
    reader = fox.inspector._reader
    ask = reader.ask
    asked: list[list[tuple[object, ...]]] = []
    monkeypatch.setattr(reader, "ask", lambda commands: asked.append(list(commands)) or ask(commands))

    def page() -> list[list[object]]:
        asked.clear()
        assert len(fox.inspector.jobs((), None, 51, group).jobs) == 51
        return [[command[0] for command in commands] for commands in asked]

    chunk = [NewJob("job", "g1" if group is None else f"g1@{group}", 5, 0, 0, pack({"argv": []}))] * 100
    for _ in range(2):
        queue.broker.enqueue_many(chunk, ENVIRONMENT)
    few = page()
    for _ in range(198):
        queue.broker.enqueue_many(chunk, ENVIRONMENT)
    assert page() == few and len(few) <= 8
    assert sum(map(len, few)) < 200
