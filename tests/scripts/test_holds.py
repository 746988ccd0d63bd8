"""Hold, unhold, reprioritize: a job's place is kept, or changed on purpose (M6: put back, a job loses neither)."""

from __future__ import annotations

import pytest
from queue_driver import Queue

HOUR_MS = 3_600_000


def hold(queue: Queue, number: int) -> str:
    return queue.broker.hold(number, "", "ann")


def unhold(queue: Queue, number: int) -> str:
    return queue.broker.unhold(number, "", "ben")


def test_a_held_job_is_passed_over_and_takes_its_place_again(queue: Queue) -> None:
    first, second, third = (queue.enqueue() for _ in range(3))
    rank = queue.job(first)["rank"]
    assert hold(queue, first) == "ok"
    job = queue.job(first)
    assert (job["state"], job["held"]) == ("blocked", "ann")
    assert queue.worker("w1", "GPU-1").claim().number == second
    assert unhold(queue, first) == "ok"
    assert queue.job(first)["rank"] == rank and "held" not in queue.job(first)
    assert [queue.worker(f"w{at}", f"GPU-{at}").claim().number for at in (2, 3)] == [first, third]


def test_unhold_wakes_a_worker(queue: Queue) -> None:
    number = queue.enqueue(more="held=ann\n")
    assert queue.state(number) == "blocked"
    queue.broker.cancel(queue.enqueue(), "", "me")  # the shape is known from here on
    worker = queue.worker()
    assert worker.ask().word == "empty"
    unhold(queue, number)
    assert worker.tokens() == ["g1"] and worker.claim().number == number


def test_a_retry_or_a_later_job_that_is_held_is_due_when_it_was(queue: Queue) -> None:
    later = queue.enqueue(more=f"delay_ms={HOUR_MS}\n")
    retried = queue.enqueue(retries=1)
    queue.fail(queue.worker().claim(), delay_ms=HOUR_MS)
    for number in (later, retried):
        due, rank = queue.job(number)["due_at"], queue.job(number)["rank"]
        assert hold(queue, number) == "ok" and queue.state(number) == "blocked"
        assert queue.broker.redis.zscore(queue.broker.keys.scheduled, number) is None
        assert unhold(queue, number) == "ok" and queue.state(number) == "scheduled"
        assert queue.broker.redis.zscore(queue.broker.keys.scheduled, number) == float(due)
        assert queue.job(number)["rank"] == rank
        hold(queue, number)
        queue.broker.redis.hset(queue.broker.keys.job(number), "due_at", 1)
        assert unhold(queue, number) == "ok" and queue.state(number) == "pending"


def test_who_waits_for_parents_and_is_held_needs_both(queue: Queue) -> None:
    parent, other = queue.enqueue(), queue.enqueue()
    held = queue.enqueue(more=f"after={parent}::any\n")
    unheld = queue.enqueue(more=f"after={other}::any\nheld=ann\n")
    assert hold(queue, held) == "ok" and unhold(queue, unheld) == "ok"
    for at in range(2):
        queue.complete(queue.worker(f"w{at}").claim())
    assert [queue.state(number) for number in (held, unheld)] == ["blocked", "pending"]
    assert unhold(queue, held) == "ok" and queue.state(held) == "pending"


@pytest.mark.parametrize("verb", ["hold", "unhold"])
def test_what_does_not_wait_cannot_be_held(queue: Queue, verb: str) -> None:
    ask = getattr(queue.broker, verb)
    running, ended = queue.enqueue(), queue.enqueue()
    queue.broker.cancel(ended, "", "me")
    queue.worker().claim()
    assert [ask(number, "", "me") for number in (running, ended, 99)] == ["no", "no", "missing"]
    assert ask(running, "1", "me") == "stale"
    assert queue.state(running) == "running"


def test_a_held_job_may_be_cancelled_and_comes_back_without_the_hold(queue: Queue) -> None:
    number = queue.enqueue(more="held=ann\n")
    assert queue.broker.cancel(number, "", "me") == "cancelled"
    assert queue.broker.requeue(number, "", "me").word == "ok"
    assert queue.state(number) == "pending" and "held" not in queue.job(number)


def test_each_is_done_once_however_often_it_is_sent(queue: Queue) -> None:
    number = queue.enqueue()
    broker = queue.broker
    held, unheld = broker.hold_call(number, "", "me", "a1"), broker.unhold_call(number, "", "me", "a2")
    front = broker.reprioritize_call(number, "", None, "me", "a3", front=True)
    for call in (held, unheld, front):
        assert queue.send(call) == "ok"
        before = queue.snapshot()
        assert queue.send(call) == "ok"
        assert queue.snapshot() == before
    assert [queue.send(call) for call in (held, unheld, front)] == ["ok"] * 3  # late: nothing again
    assert queue.snapshot() == before


def test_priorities_and_the_front(queue: Queue) -> None:
    first, second, third = queue.enqueue(), queue.enqueue(shape="g1.m1"), queue.enqueue()
    assert queue.broker.reprioritize(third, "", 9, "me") == "ok"
    shapes = ("g1", "g1.m1")
    assert queue.worker("w1", "GPU-1", shapes).claim().number == third
    assert queue.broker.reprioritize(second, "", None, "me", front=True) == "ok"
    assert queue.worker("w2", "GPU-2", shapes).claim().number == second, "before those of other shapes too"
    assert queue.broker.reprioritize(first, "", 0, "me") == "ok"
    assert queue.job(first)["priority"] == "0"


def test_what_runs_has_its_new_priority_when_it_is_put_back(queue: Queue) -> None:
    low, high = queue.enqueue(), queue.enqueue(priority=6)
    run = queue.worker("w1", "GPU-1").claim()
    assert run.number == high
    assert queue.broker.reprioritize(high, "", 0, "me") == "ok"
    assert queue.broker.reprioritize(high, "", None, "me", front=True) == "no"
    queue.release(run)
    assert queue.worker("w2", "GPU-2").claim().number == low


@pytest.mark.parametrize("how", ["release", "lose"])
def test_a_job_put_back_loses_neither_place_nor_attempt(queue: Queue, how: str) -> None:
    first, second = queue.enqueue(), queue.enqueue()
    rank = queue.job(first)["rank"]
    for at in range(2):
        run = queue.worker(f"w{at}").claim()
        assert run.number == first and run.attempt == 1
        getattr(queue, how)(run)
    assert (queue.job(first)["rank"], queue.job(first)["attempts"]) == (rank, "0")
    assert queue.worker("w9").claim().number == first and queue.state(second) == "pending"


def test_what_is_given_back_for_later_waits_so_long_and_costs_no_attempt(queue: Queue) -> None:
    number = queue.enqueue()
    run = queue.worker().claim()
    assert (
        queue.send(queue.broker.release_call(run.number, run.fence, "later", "exited with 75", HOUR_MS)) == "released"
    )
    job = queue.job(number)
    assert (job["state"], job["reason"], job["attempts"]) == ("scheduled", "later", "0")
    assert abs(int(job["due_at"]) - queue.broker.server_time_ms() - HOUR_MS) < 10_000
    queue.broker.redis.zadd(queue.broker.keys.scheduled, {str(number): 1})
    assert queue.worker("w2").claim().attempt == 1
