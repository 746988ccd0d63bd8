"""Jobs that wait for others: N2 (a parent fails), N3 (it is lost), N4 (there is none)."""

from __future__ import annotations

import itertools

import pytest
from key_owners import unexplained
from queue_driver import ENVIRONMENT, Queue

from foxqueue.broker import CHUNK_PARENTS, NewJob
from foxqueue.codec import pack
from foxqueue.errors import JobGone, JobNotFound

LIVES = itertools.count()  # a worker's name is new for each process
ENDS = ("succeeded", "failed", "cancelled")
MET = {"succeeded": {"succeeded"}, "any": {"succeeded", "failed"}, "failed": {"failed"}, "ended": set(ENDS)}


def after(number: int, condition: str = "succeeded", born: str = "") -> str:
    return f"after={number}:{born}:{condition}\n"


def end(queue: Queue, how: str) -> None:
    """End the job that is next."""
    run = queue.worker(f"parents{next(LIVES)}").claim()
    if how == "cancelled":
        queue.broker.cancel(run.number, "", "me")
    assert (queue.fail(run, delay_ms=None) if how == "failed" else queue.complete(run)) == how


def nothing_is_left_over(queue: Queue) -> None:
    assert not unexplained(queue.broker.redis, queue.broker.keys)


@pytest.mark.parametrize("condition", MET)
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("first", [True, False], ids=["ended before", "ends later"])
def test_each_condition_with_each_end(queue: Queue, condition: str, how: str, first: bool) -> None:
    parent = queue.enqueue()
    if first:
        end(queue, how)
    child = queue.enqueue(more=after(parent, condition))
    if not first:
        assert queue.state(child) == "blocked" and queue.job(child)["parents"] == "1"
        assert queue.worker("w2", "GPU-2").claim().number == parent  # and not the child
        queue.reap()
        queue.broker.redis.delete(queue.broker.keys.lease("GPU-2"))
        queue.overdue(parent)
        queue.reap()  # lost and put back: nothing was released by that
        assert queue.state(child) == "blocked"
        end(queue, how)
    if how in MET[condition]:
        assert queue.state(child) == "pending"
        assert queue.worker("w3", "GPU-3").claim().number == child
    else:
        job = queue.job(child)
        assert (job["state"], job["reason"]) == ("cancelled", "dependency_failed")
        assert job["detail"].startswith(f"job {parent} {how}")
    nothing_is_left_over(queue)


def test_the_reasons_are_a_chain_that_ends_at_its_cause(queue: Queue) -> None:
    first = queue.enqueue()
    second = queue.enqueue(more=after(first))
    third = queue.enqueue(more=after(second, "any"))
    fourth = queue.enqueue(more=after(third, "ended"))
    end(queue, "failed")
    assert queue.job(second)["detail"] == f"job {first} failed (exit_code)"
    assert queue.job(third)["detail"] == (f"job {second} cancelled (dependency_failed: job {first} failed (exit_code))")
    assert queue.state(fourth) == "pending"


def test_a_parent_that_is_tried_again_releases_nothing(queue: Queue) -> None:
    parent = queue.enqueue(retries=1)
    child, other = queue.enqueue(more=after(parent)), queue.enqueue(more=after(parent, "failed"))
    queue.fail(queue.worker().claim())
    assert [queue.state(number) for number in (parent, child, other)] == ["scheduled", "blocked", "blocked"]
    queue.complete(queue.worker("w2").claim())
    assert [queue.state(number) for number in (child, other)] == ["pending", "cancelled"]


@pytest.mark.parametrize("losses", [1, 3])
def test_a_lost_parent_releases_nothing_before_it_is_given_up(queue: Queue, losses: int) -> None:
    parent = queue.enqueue()
    child, other = queue.enqueue(more=after(parent)), queue.enqueue(more=after(parent, "failed"))
    for at in range(losses):
        assert queue.state(child) == queue.state(other) == "blocked"
        queue.lose(queue.worker(f"w{at}").claim())
    if losses == 1:
        assert queue.state(child) == "blocked"
        end(queue, "succeeded")
        assert queue.state(child) == "pending"
    else:
        assert queue.job(child)["detail"] == f"job {parent} failed (poison)"
        assert queue.state(other) == "pending"


def test_parents_that_are_not_there_are_refused_before_anything_is_changed(queue: Queue) -> None:
    parent, born = queue.enqueue_born()
    before = queue.snapshot()
    with pytest.raises(JobNotFound):
        queue.enqueue(more=after(99))
    with pytest.raises(JobNotFound):  # a job cannot wait for itself
        queue.enqueue(more=after(parent + 1))
    with pytest.raises(JobGone):
        queue.enqueue(more=after(parent, born="1"))
    good = NewJob("", "g1", 5, 0, 0, pack({}), after(parent, born=born))
    with pytest.raises(JobNotFound):
        queue.broker.enqueue_many([good, good._replace(more=after(99))], ENVIRONMENT)
    assert queue.snapshot() == before


def test_a_parent_that_expires_is_not_met(queue: Queue) -> None:
    parent = queue.enqueue(more="expires_ms=3600000\n")
    child, other = queue.enqueue(more=after(parent, "any")), queue.enqueue(more=after(parent, "ended"))
    queue.broker.redis.zadd(queue.broker.keys.expiry, {str(parent): 1})
    queue.sweep()
    assert queue.job(child)["detail"] == f"job {parent} cancelled (expired)"
    assert queue.state(other) == "pending"


def test_all_parents_must_end_well_and_one_that_does_not_is_enough(queue: Queue) -> None:
    first, second = queue.enqueue(), queue.enqueue()
    child = queue.enqueue(more=after(first) + after(second))
    end(queue, "succeeded")
    assert queue.state(child) == "blocked" and queue.job(child)["parents"] == "1"
    end(queue, "failed")
    assert queue.job(child)["detail"] == f"job {second} failed (exit_code)"


def test_a_child_takes_its_place_when_it_may_start_and_waits_on_for_its_own_time(queue: Queue) -> None:
    parent = queue.enqueue()
    child, late = queue.enqueue(more=after(parent)), queue.enqueue(more=after(parent) + "delay_ms=3600000\n")
    other = queue.enqueue()
    end(queue, "succeeded")
    assert queue.state(late) == "scheduled"
    assert int(queue.job(late)["tick"]) == int(queue.job(late)["due_at"]) * 1000
    assert [queue.worker(f"w{at}", f"GPU-{at}").claim().number for at in range(2)] == [other, child]


def test_one_thousand_parents(queue: Queue) -> None:
    parents: list[int] = []
    for _ in range(CHUNK_PARENTS // 100):
        jobs = [NewJob("", "g1", 5, 0, 0, pack({}))] * 100
        parents += [number for number, _ in queue.broker.enqueue_many(jobs, ENVIRONMENT)]
    child = queue.enqueue(more="".join(map(after, parents)))
    assert queue.job(child)["parents"] == str(CHUNK_PARENTS)
    for number in parents[:-1]:
        queue.broker.cancel(number, "", "me")
    assert queue.job(child)["detail"] == f"job {parents[0]} cancelled (cancelled_by_user)"


def test_requeue_judges_the_parents_anew(queue: Queue) -> None:
    parent = queue.enqueue()
    child = queue.enqueue(more=after(parent))
    end(queue, "failed")
    assert queue.broker.requeue(child, "", "me").word == "never"
    assert queue.broker.requeue(parent, "", "me").word == "ok"
    assert queue.broker.requeue(child, "", "me").word == "ok"
    assert queue.state(child) == "blocked"
    end(queue, "succeeded")
    assert queue.state(child) == "pending"
    nothing_is_left_over(queue)


def test_what_a_job_that_is_gone_has_met_stays_met(queue: Queue) -> None:
    parent = queue.enqueue()
    child = queue.enqueue(more=after(parent))
    end(queue, "succeeded")
    queue.broker.change_settings({"retain_finished_ms": "0"}, "me")
    queue.broker.redis.zadd(queue.broker.keys.finished, {str(parent): 1})
    queue.sweep()
    assert not queue.job(parent)
    queue.broker.change_settings({"retain_finished_ms": ""}, "me")
    queue.broker.cancel(child, "", "me")
    assert queue.broker.requeue(child, "", "me").word == "ok"
    assert queue.state(child) == "pending"
    nothing_is_left_over(queue)


def test_a_requeued_job_still_waits_for_the_one_that_it_replaced(queue: Queue) -> None:
    old = queue.enqueue(more="unique=k\nexists=refuse\n")
    run = queue.worker().claim()
    new = queue.enqueue(more="unique=k\nexists=replace\n")
    queue.broker.cancel(new, "", "me")
    assert queue.broker.requeue(new, "", "me").word == "ok"
    assert queue.state(new) == "blocked"
    assert queue.complete(run) == "cancelled" and queue.state(old) == "cancelled"
    assert queue.state(new) == "pending"


def test_parents_are_not_purged_before_their_children_have_heard(queue: Queue) -> None:
    parent = queue.enqueue()
    children = [queue.enqueue(more=after(parent)) for _ in range(3)]
    queue.broker.change_settings({"retain_finished_ms": "0", "retain_finished_count": "0"}, "me")
    redis, keys = queue.broker.redis, queue.broker.keys
    queue.broker.cancel(parent, "", "me")
    redis.zadd(keys.dropped, {str(parent): 1})
    redis.zadd(keys.unsettled, {str(parent): 0})  # as with more children than one step tells
    queue.sweep(1)
    assert queue.state(parent) == "cancelled"
    assert {queue.state(child) for child in children} == {"cancelled"}
