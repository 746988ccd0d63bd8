"""Groups: seen whole or not at all, counted rightly, listed cheaply."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from pretend import register
from queue_driver import ENVIRONMENT, Queue
from shell import Shell
from wait import until

from foxqueue import Client, JobNotFound
from foxqueue.broker import Claimed, NewJob
from foxqueue.codec import pack
from foxqueue.errors import GroupNotFound
from foxqueue.paging import Reader
from foxqueue.statistics import recount
from foxqueue.submission import user

ME = user()
FILLING = "0011223344556677"


def fill(queue: Queue, group: str, count: int, filling: str = "", more: str = "", shape: str = "g1") -> list[int]:
    """Enqueue so many jobs of a group."""
    spec = pack({"v": 1, "argv": ["true"], "user": ME})
    jobs = [NewJob(f"run {at}", f"{shape}@{group}", 5, 0, 1000, spec, more) for at in range(count)]
    return [
        number
        for start in range(0, count, 100)
        for number, _ in queue.broker.enqueue_many(jobs[start : start + 100], ENVIRONMENT, user=ME, filling=filling)
    ]


def open_up(queue: Queue, group: str, total: int, **limits: int) -> None:
    assert queue.broker.open_group(group, FILLING, total, **limits) == "ok"


def numbers(jobs: Sequence[Any]) -> list[int]:
    return [job.number for job in jobs]


def right(queue: Queue) -> None:
    """Counters are what the jobs say."""
    for name, (written, counted) in recount(Reader(queue.broker)).items():
        assert written == counted, name


# --- filled, then seen -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "state"), [("", "pending"), ("delay_ms=3600000\n", "scheduled"), ("held=ann\n", "blocked")]
)
def test_what_is_being_filled_is_in_no_listing_and_no_count(
    fox: Client, shell: Shell, queue: Queue, more: str, state: str
) -> None:
    before = [queue.enqueue() for _ in range(2)]
    hidden = fill(queue, "lr", 150, FILLING, more)
    assert numbers(fox.jobs()) == before
    assert {name: count for name, count in fox.inspector.counts().items() if count} == {"pending": 2}
    assert [job.number for job in fox.inspector.every(())] == before
    assert list(fox.inspector.every((), None, "lr")) == [] == fox.jobs(group="lr")
    assert fox.stats()["queued_jobs"] == 2
    assert fox.job(before[0]).waiting_for == "no_worker"
    [group] = shell.json("groups")
    assert (group["name"], group["state"], group["total"]) == ("lr", "filling", 150)
    with pytest.raises(JobNotFound, match="still being submitted"):
        fox.job(hidden[0])
    open_up(queue, "lr", 150)
    assert len(fox.jobs(limit=1000)) == 152 and fox.inspector.counts()[state] >= 150
    assert numbers(fox.jobs(group="lr", limit=1000)) == hidden
    assert shell.json("groups")[0]["state"] == "open"
    right(queue)


def test_a_job_cancelled_while_its_group_is_filled_is_not_seen_either(fox: Client, queue: Queue) -> None:
    hidden = fill(queue, "lr", 3, FILLING)
    assert queue.broker.cancel(hidden[0], "", ME) == "cancelled"
    assert fox.jobs() == [] and not any(fox.inspector.counts().values())
    open_up(queue, "lr", 3)
    assert numbers(fox.jobs()) == [*hidden[1:], hidden[0]]
    right(queue)


# --- counted and shown -----------------------------------------------------------------------------------


def test_a_group_counts_what_becomes_of_its_jobs(shell: Shell, queue: Queue) -> None:
    jobs = fill(queue, "lr", 6, FILLING)
    open_up(queue, "lr", 6, max_concurrent=2, max_fails=3)
    other = fill(queue, "bs", 1)
    queue.broker.redis.zincrby(queue.broker.keys.groups, 1, "bs")  # not in the same millisecond
    worker = queue.worker(shapes=("g1@lr",))
    queue.complete(worker.claim())
    queue.fail(worker.claim(), delay_ms=None)
    queue.broker.cancel(jobs[-1], "", ME)
    run = worker.claim()
    assert shell.json("groups", "lr") == [
        {
            "name": "lr",
            "created_at": shell.json("groups")[1]["created_at"],
            "by": ME,
            "state": "open",
            "paused": None,
            "max_concurrent": 2,
            "max_fails": 3,
            "total": 6,
            "waiting": 2,
            "running": 1,
            "succeeded": 1,
            "failed": 1,
            "cancelled": 1,
        }
    ]
    assert [group["name"] for group in shell.json("groups")] == ["bs", "lr"], "the newest first"
    said = shell.fox("groups")[0].splitlines()
    assert said[0].startswith("GROUP  TOTAL  WAITING  RUNNING  SUCCEEDED  FAILED  CANCELLED  STATE")
    assert said[1].split() == ["bs", "1", "1", "0", "0", "0", "0", "open", "-"]
    assert "lr" in said[2] and "at most 2 at once; pauses after 3 failures in a row" in said[2]
    out, err = shell.fox("groups", "--limit", "1")
    assert "lr" not in out and "the newest 1; --limit shows more" in err
    assert "there is no group 'none'" in shell.fox("groups", "none", code=1)[1]
    queue.release(run)
    queue.broker.requeue(jobs[1], "", ME)
    assert shell.json("groups", "lr")[0]["waiting"] == 4 and other
    right(queue)


def test_a_group_at_its_most_says_so_and_holds_nobody_else(fox: Client, queue: Queue) -> None:
    for at in range(4):
        register(queue, f"SIM-{at}", f"w{at}", index=at)
    jobs = fill(queue, "lr", 4, FILLING)
    open_up(queue, "lr", 4, max_concurrent=2)
    other = queue.enqueue()
    workers = [queue.worker(f"w{at}", f"SIM-{at}", ("g1", "g1@lr")) for at in range(4)]
    runs = [workers[0].claim(), workers[1].claim()]
    assert [run.number for run in runs] == jobs[:2]
    waiting = {job.number: (job.waiting_for, job.detail) for job in fox.jobs(state="pending")}
    assert waiting[jobs[2]] == waiting[jobs[3]] == ("limit", "group lr runs 2 at once, its most")
    assert waiting[other][1].startswith("next in line")
    assert fox.job(jobs[2]).waiting_for == "limit"
    assert workers[2].claim().number == other and workers[3].ask().word == "empty"
    queue.complete(runs[0])
    assert workers[3].claim().number == jobs[2]
    right(queue)


def test_failures_in_a_row_pause_a_group_and_say_so(shell: Shell, queue: Queue) -> None:
    jobs = fill(queue, "lr", 5, FILLING)
    open_up(queue, "lr", 5, max_fails=2)
    worker = queue.worker(shapes=("g1@lr",))
    for _ in range(2):
        queue.fail(worker.claim(), delay_ms=None)
    assert worker.ask().word == "empty"
    why = "foxqueue: 2 failures in a row (exit_code)"
    assert shell.json("groups")[0]["paused"] == why
    shown = shell.json("show", str(jobs[2]))
    assert (shown["waiting_for"], shown["detail"]) == ("paused", f"group lr is paused by {why}")
    assert f"paused  by {why}; pauses after 2 failures in a row" in shell.fox("groups")[0]


# --- listed ----------------------------------------------------------------------------------------------


def test_a_listing_of_a_group_has_the_order_of_all_listings(fox: Client, queue: Queue) -> None:
    queue.enqueue()
    jobs = fill(queue, "lr", 8)
    worker = queue.worker(shapes=("g1@lr",))
    queue.complete(worker.claim())
    queue.fail(worker.claim(), delay_ms=None)
    queue.fail(queue.worker("w2", "GPU-2", ("g1@lr",)).claim(), delay_ms=None)
    running = worker.claim().number
    queue.broker.hold(jobs[6], "", ME)
    fill(queue, "lr", 1, more="delay_ms=3600000\n")
    listing = fox.jobs(group="lr")
    assert [job.state for job in listing] == [
        *("pending", "pending", "pending", "scheduled", "blocked", "running", "failed", "failed", "succeeded"),
    ]
    assert running in numbers(listing) and len(numbers(listing)) == 9
    assert numbers(fox.jobs(group="lr", state="failed")) == [jobs[2], jobs[1]]
    assert numbers(fox.jobs(group="lr", state="pending", limit=2)) == [jobs[4], jobs[5]]
    assert [job.number for job in fox.inspector.every({"pending", "failed"}, None, "lr")] == [
        *(jobs[1], jobs[2], jobs[4], jobs[5], jobs[7]),
    ]
    assert all(job.group == "lr" and job.shape == "g1" for job in listing)
    for ask in (lambda: fox.jobs(group="none"), lambda: list(fox.inspector.every((), None, "none"))):
        with pytest.raises(GroupNotFound, match="none"):
            ask()


def test_a_walk_over_all_jobs_is_lazy_and_misses_none_that_moves_on(
    fox: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given 700 jobs in five states, of which many start while they are read, each that stays is told once."""
    pending = fill(queue, "lr", 300)
    scheduled = fill(queue, "bs", 200, more="delay_ms=3600000\n")
    fill(queue, "cs", 200, more="held=ann\n")
    reader, asked = fox.inspector._reader, []
    ask = reader.ask
    monkeypatch.setattr(reader, "ask", lambda commands: asked.append(len(commands)) or ask(commands))
    walk = fox.inspector.every(())
    first = next(walk)
    assert first.state == "blocked" and sum(asked) < 500, "one page"
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.zadd(keys.scheduled, dict.fromkeys(map(str, scheduled[:100]), 0.0))
    redis.delete(keys.swept)
    queue.broker.sweep()
    worker = queue.worker(shapes=("g1@lr", "g1@bs"))
    queue.complete(worker.claim())
    told = [first.number, *(job.number for job in walk)]
    assert len(told) == len(set(told)) == 700
    assert set(pending + scheduled) <= set(told)
    assert len(list(fox.inspector.every({"pending"}, lambda job: job.number % 2 == 0))) == 200


def test_counters_do_not_drift_whatever_happens(fox: Client, queue: Queue) -> None:
    """All transitions at once from four sides, then a recount."""
    fill(queue, "lr", 120, FILLING)
    open_up(queue, "lr", 120, max_concurrent=3)
    fox.submit_many([{"argv": ["true"], "group": "bs"} for _ in range(60)])

    def work(at: int) -> None:
        own = Queue(fox.config.url or "", "test")
        worker = own.worker(f"w{at}", f"GPU-{at}", ("g1", "g1@lr", "g1@bs"))
        for turn in range(40):
            reply = worker.ask()
            if reply.word != "ok":
                continue
            run = Claimed.of(reply)
            (own.complete, own.fail, own.release, own.lose)[(turn + at) % 4](run)
            own.broker.cancel(run.number + 7, "", ME)
            own.broker.requeue(run.number, "", ME)
            own.broker.hold(run.number + 3, "", ME)
            own.broker.unhold(run.number + 3, "", ME)
        own.broker.close()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = recount(Reader(queue.broker))
    assert set(found) == {"unfinished", "@lr", "@bs"} and found["unfinished"][0]
    right(queue)
    assert sum(found["unfinished"][0].values()) == fox.stats()["unfinished"]


def test_a_group_that_was_given_up_goes_with_all_its_jobs(fox: Client, shell: Shell, queue: Queue) -> None:
    fill(queue, "lr", 120, FILLING)
    assert queue.broker.give_up_group("lr", FILLING) == "ok"

    def gone() -> bool:
        queue.broker.redis.delete(queue.broker.keys.swept)
        queue.broker.sweep()
        return shell.json("groups") == []

    until(gone, 10, "no group")
    assert fox.stats()["unfinished"] == 0 and fox.jobs() == []
    right(queue)
