"""Groups: so many at once, so many failures in a row, whole or not at all."""

from __future__ import annotations

import pytest
from key_owners import unexplained
from queue_driver import ENVIRONMENT, Queue, Worker

from foxqueue.broker import NewJob
from foxqueue.codec import pack
from foxqueue.errors import GroupExists

GROUP = "sweep"
SHAPES = ("g1", "g1.m1", f"g1@{GROUP}", f"g1.m1@{GROUP}")


def fill(
    queue: Queue, count: int, sweep: str = "s1", shape: str = "g1", more: str = "", user: str = "ann"
) -> list[int]:
    """One piece of a group."""
    jobs = [NewJob("", f"{shape}@{GROUP}", 5, 0, 0, pack({"v": 1}), more)] * count
    return [number for number, _ in queue.broker.enqueue_many(jobs, ENVIRONMENT, user=user, filling=sweep)]


def opened(queue: Queue, count: int, max_concurrent: int = 0, max_fails: int = 0) -> list[int]:
    numbers = fill(queue, count)
    assert queue.broker.open_group(GROUP, "s1", count, max_concurrent, max_fails, "ann") == "ok"
    return numbers


def worker(queue: Queue, at: int) -> Worker:
    return queue.worker(f"w{at}", f"GPU-{at}", SHAPES)


def group(queue: Queue) -> dict[str, str]:
    found = queue.broker.redis.hgetall(queue.broker.keys.group(GROUP))
    return {name.decode(): value.decode() for name, value in found.items()}


def nothing_is_left_of_it(queue: Queue) -> bool:
    redis, keys = queue.broker.redis, queue.broker.keys
    assert not unexplained(redis, keys)
    return not redis.exists(keys.group(GROUP), keys.members(GROUP), keys.groups, keys.filling)


# --- whole or not at all -------------------------------------------------------------------------------------


def test_nothing_starts_before_the_group_is_whole(queue: Queue) -> None:
    queue.enqueue(shape=f"g1@{GROUP}-2")  # its neighbour by name
    first = worker(queue, 1)
    fill(queue, 2)
    fill(queue, 1, shape="g1.m1")
    assert first.ask().word == "empty"
    assert queue.broker.open_group(GROUP, "s2", 3) == "no", "another sweep's"
    assert queue.broker.open_group(GROUP, "s1", 4) == "no", "a piece is missing"
    assert first.ask().word == "empty"
    assert queue.broker.open_group(GROUP, "s1", 3) == "ok"
    assert first.tokens(), "an idle worker comes at once, also for a shape that it had not seen"
    assert first.claim().number == 2
    assert queue.broker.open_group(GROUP, "s1", 3) == "no", "it is open"


def test_the_name_is_one_sweep_s_for_as_long_as_it_has_jobs(queue: Queue) -> None:
    opened(queue, 1)
    before = queue.snapshot()
    with pytest.raises(GroupExists):
        fill(queue, 1, "s2")
    assert queue.snapshot() == before


@pytest.mark.parametrize("how", ["given up", "abandoned"])
def test_a_group_that_nobody_completes_goes_with_its_jobs(queue: Queue, how: str) -> None:
    fill(queue, 3, more="expires_ms=3600000\nnotify=1\n")
    fill(queue, 1, more="unique=k\nexists=refuse\ndelay_ms=60000\n")
    redis, keys = queue.broker.redis, queue.broker.keys
    if how == "given up":
        assert queue.broker.give_up_group(GROUP, "s1") == "ok"
    else:
        assert queue.sweep()[4] == 0
        redis.zincrby(keys.filling, -601_000, GROUP)
    assert queue.sweep(3)[4] == 3, "bounded"
    with pytest.raises(GroupExists):  # a piece that comes late
        fill(queue, 1)
    assert queue.broker.open_group(GROUP, "s1", 4) == "no"
    queue.sweep(3)
    assert nothing_is_left_of_it(queue)
    assert not redis.exists(keys.expiry, keys.unfinished, keys.unique, keys.pending(f"g1@{GROUP}"), keys.scheduled)
    assert not any(queue.state(number) for number in range(1, 5))
    assert fill(queue, 1, "s2") == [5], "the name is free"


def test_a_name_that_is_free_again_has_nothing_to_do_with_the_group_before(queue: Queue) -> None:
    """As many jobs as one sweep takes out: the next one must not look for more of them."""
    fill(queue, 2)
    queue.broker.give_up_group(GROUP, "s1")
    queue.sweep(2)
    assert nothing_is_left_of_it(queue)
    number = queue.enqueue(shape=f"g1@{GROUP}")
    run = worker(queue, 1).claim()
    queue.sweep()
    assert run.number == number and queue.complete(run) == "succeeded"
    assert group(queue)["total"] == "1"


def test_what_others_know_of_an_abandoned_group_stays_without_it(queue: Queue) -> None:
    known, cancelled, unknown = fill(queue, 3)
    child = queue.enqueue(more=f"after={known}::any\n")
    other = queue.enqueue(more=f"after={cancelled}::ended\n")
    queue.broker.cancel(cancelled, "", "me")
    queue.broker.give_up_group(GROUP, "s1")
    queue.sweep()
    queue.sweep()  # who waited for it hears of it
    assert queue.job(known)["detail"] == "its sweep was never completed"
    assert queue.job(child)["reason"] == "dependency_failed" and queue.state(other) == "pending"
    assert [queue.state(number) for number in (known, cancelled, unknown)] == ["cancelled", "cancelled", ""]
    assert nothing_is_left_of_it(queue)
    opened_again = fill(queue, 2, "s2")
    for number in (known, cancelled):
        assert queue.broker.requeue(number, "", "me").word == "ok"
        assert queue.job(number)["shape"] == "g1"
    assert group(queue)["total"] == "2", f"they are none of {opened_again}"


def test_a_parent_s_end_is_told_to_those_of_a_group_when_it_is_shown(queue: Queue) -> None:
    early, late = queue.enqueue(), queue.enqueue()
    queue.broker.cancel(early, "", "me")
    never, open_ = fill(queue, 1, more=f"after={early}::any\n") + fill(queue, 1, more=f"after={late}::any\n")
    queue.complete(worker(queue, 1).claim())
    queue.sweep()
    assert [queue.state(number) for number in (never, open_)] == ["blocked", "blocked"], "nobody sees them yet"
    assert queue.broker.open_group(GROUP, "s1", 2) == "ok"
    queue.sweep()
    assert [queue.state(number) for number in (never, open_)] == ["cancelled", "pending"]
    assert not unexplained(queue.broker.redis, queue.broker.keys)


def test_what_nobody_sees_does_not_expire(queue: Queue) -> None:
    numbers = fill(queue, 2, more="expires_ms=60000\n")
    redis, keys = queue.broker.redis, queue.broker.keys
    for number in numbers:
        redis.zadd(keys.expiry, {str(number): 1})
    queue.sweep()
    assert [queue.state(number) for number in numbers] == ["pending", "pending"]
    assert queue.broker.open_group(GROUP, "s1", 2) == "ok"
    for number in numbers:
        redis.zadd(keys.expiry, {str(number): 1})
    queue.sweep()
    assert [queue.job(number)["reason"] for number in numbers] == ["expired", "expired"]


def test_a_group_whose_parent_was_purged_meanwhile_cannot_be_shown(queue: Queue) -> None:
    parent = queue.enqueue()
    fill(queue, 1, more=f"after={parent}::any\n")
    queue.complete(worker(queue, 1).claim())
    queue.sweep()  # its dependents were told, as far as anybody sees them
    queue.broker.change_settings({"retain_finished_ms": "1000"}, "me")
    queue.broker.redis.zadd(queue.broker.keys.finished, {str(parent): 1})
    queue.sweep()
    assert not queue.job(parent)
    assert queue.broker.open_group(GROUP, "s1", 1) == "no", "its job would wait for ever"
    queue.broker.give_up_group(GROUP, "s1")
    queue.sweep()
    assert nothing_is_left_of_it(queue)


def test_a_group_goes_with_its_last_job(queue: Queue) -> None:
    numbers = opened(queue, 2)
    queue.broker.change_settings({"retain_finished_ms": "1000"}, "me")
    for number in numbers:
        queue.broker.cancel(number, "", "me")
        queue.broker.redis.zadd(queue.broker.keys.dropped, {str(number): 1})
        queue.sweep()
    assert nothing_is_left_of_it(queue)


# --- so many at once -----------------------------------------------------------------------------------------


def test_no_more_than_its_limit_run_at_once(queue: Queue) -> None:
    numbers = opened(queue, 4, max_concurrent=2)
    other = queue.enqueue()
    workers = [worker(queue, at) for at in range(4)]
    runs = [workers[0].claim(), workers[1].claim()]
    assert [run.number for run in runs] == numbers[:2]
    assert workers[2].claim().number == other, "who is behind the group is not held up"
    assert workers[3].ask().word == "empty"
    assert group(queue)["running"] == "2"
    queue.complete(runs[0])
    assert workers[3].tokens() == [f"g1@{GROUP}"], "an idle worker hears that there is room"
    assert workers[3].claim().number == numbers[2]
    assert workers[0].ask().word == "empty"


@pytest.mark.parametrize("how", ["complete", "fail", "release", "lose", "reap"])
def test_every_end_makes_room_for_any_shape_of_the_group(queue: Queue, how: str) -> None:
    fill(queue, 1)
    fill(queue, 1, shape="g1.m1")
    queue.broker.open_group(GROUP, "s1", 2, max_concurrent=1)
    run = worker(queue, 1).claim()
    queue.broker.hold(run.number, "", "me")
    idle = queue.worker("w2", "GPU-2", ("g1.m1", f"g1.m1@{GROUP}"))
    assert idle.ask().word == "empty"
    if how == "reap":
        queue.overdue(run.number)
        queue.reap()
    else:
        getattr(queue, how)(run)
    assert idle.tokens() == [f"g1.m1@{GROUP}"]
    assert idle.claim().number == 2


def test_counters_are_what_a_recount_says(queue: Queue) -> None:
    numbers = opened(queue, 5, max_concurrent=5)
    runs = [worker(queue, at).claim() for at in range(4)]
    queue.complete(runs[0])
    queue.fail(runs[1], delay_ms=None)
    queue.broker.cancel(runs[2].number, "", "me")
    queue.complete(runs[2])
    counts = {name: group(queue)[name] for name in ("total", "running", "succeeded", "failed", "cancelled")}
    assert counts == {"total": "5", "running": "1", "succeeded": "1", "failed": "1", "cancelled": "1"}
    for number in numbers[1:3]:
        assert queue.broker.requeue(number, "", "me").word == "ok"
    assert (group(queue)["failed"], group(queue)["cancelled"]) == ("0", "0")


# --- failures in a row ---------------------------------------------------------------------------------------


def ends(queue: Queue, *reasons: str) -> None:
    """Runs of the group end, one after the other."""
    for reason in reasons:
        number = int(queue.broker.redis.incr("lives"))
        run = worker(queue, number).claim()
        queue.complete(run) if reason == "succeeded" else queue.fail(run, reason, delay_ms=None)


def test_failures_in_a_row_for_one_reason_pause_the_group_and_say_so(queue: Queue) -> None:
    opened(queue, 6, max_fails=2)
    ends(queue, "exit_code", "signal", "succeeded", "signal")
    assert "paused" not in group(queue), "another reason, or a success, begins anew"
    ends(queue, "signal")
    assert group(queue)["paused"] == "foxqueue: 2 failures in a row (signal)"
    last = [fields for _, fields in queue.broker.redis.xrange(queue.broker.keys.events) if fields[b"event"] == b"pause"]
    assert [(event[b"scope"], event[b"by"], event[b"reason"]) for event in last] == [
        (f"@{GROUP}".encode(), b"foxqueue", b"2 failures in a row (signal)")
    ]
    idle = worker(queue, 99)
    assert idle.ask().word == "empty"
    assert queue.broker.resume(f"@{GROUP}", "ann") == "ok"
    assert idle.tokens(), "and it goes on at once"
    queue.fail(idle.claim(), "signal", delay_ms=None)
    assert "paused" not in group(queue), "failures are counted anew"


def test_retries_and_losses_are_no_failures(queue: Queue) -> None:
    jobs = [NewJob("", f"g1@{GROUP}", 5, 3, 0, pack({"v": 1}))]
    queue.broker.enqueue_many(jobs, ENVIRONMENT, filling="s1")
    queue.broker.open_group(GROUP, "s1", 1, max_fails=1)
    for at in range(3):
        run = worker(queue, at).claim()
        queue.fail(run, delay_ms=0) if at else queue.lose(run)
    assert "paused" not in group(queue)


@pytest.mark.parametrize("what", ["open", "give up"])
def test_sent_again_it_changes_nothing(queue: Queue, what: str) -> None:
    fill(queue, 2)
    call = queue.broker.open_call(GROUP, "s1", 2 if what == "open" else None, "ann", "ab", max_concurrent=1)
    assert queue.send(call) == "ok"
    before = queue.snapshot()
    assert queue.send(call) == "ok"
    assert queue.snapshot() == before
