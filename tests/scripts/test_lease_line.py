"""Waiting in line for a lease: who ranks first gets the device, is called when it is free, and keeps nobody waiting."""

from __future__ import annotations

import pytest
from changed_rules import changed
from lease_driver import Holder, lapse, lease, served, turn_over
from queue_driver import Queue, Worker

DEVICE, OTHER = "GPU-1", "GPU-2"
BOTH = (DEVICE, OTHER)
JOBS = "jobs:GPU-1"  # whose turn it is for the device, where a job ranks before all who wait


def line(queue: Queue, device: str = DEVICE) -> list[str]:
    """Tokens in line, the first one first."""
    return [token.decode() for token in queue.broker.redis.zrange(queue.broker.keys.lease_waiting(device), 0, -1)]


def idle(queue: Queue, device: str = DEVICE, name: str = "w1") -> Worker:
    """A worker that asked in vain, and waits."""
    worker = queue.worker(name, device)
    assert worker.ask().word in ("empty", "taken")
    return worker


def known(queue: Queue) -> None:
    """The shape of all jobs has been seen."""
    queue.broker.cancel(queue.enqueue(), "", "me")


# --- among those who wait ---------------------------------------------------------------------------------


def test_the_first_is_called_when_the_device_is_given_back_and_the_others_stand_behind(queue: Queue) -> None:
    first = Holder(queue).acquire()
    waiting = [Holder(queue).wait() for _ in range(3)]
    assert line(queue) == [waits.token for waits in waiting]
    first.release()
    assert waiting[0].called() == [DEVICE]
    reply = waiting[1].ask()
    assert (reply.word, *reply.rest) == ("yield", DEVICE.encode(), b"lease")
    waiting[0].acquire()
    assert line(queue) == [waits.token for waits in waiting[1:]]
    assert not queue.broker.redis.exists(queue.broker.keys.waiter(waiting[0].token))
    waiting[0].release()
    assert DEVICE in waiting[1].called()
    waiting[1].acquire()


def test_priority_is_a_head_start_in_line_and_ageing_limits_it(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    plain, low, high = (Holder(queue, priority=priority).wait() for priority in (5, 2, 9))
    assert line(queue) == [high.token, plain.token, low.token]
    old = Holder(queue, priority=5)
    queue.broker.redis.hset(queue.broker.keys.settings, "aging_us", 1)
    old.wait()
    assert line(queue)[-1] == old.token, "by ticks alone: what came before is first"
    holder.release()
    assert [waits.ask().word for waits in (old, low, plain)] == ["yield"] * 3
    assert high.ask().word == "ok"


def test_who_does_not_stand_in_line_goes_behind_those_who_do(queue: Queue) -> None:
    holder, waits = Holder(queue).acquire(), Holder(queue).wait()
    holder.release()
    assert Holder(queue).ask().word == "yield"
    assert Holder(queue, priority=6).ask().word == "ok", "with more priority before them"
    assert waits.ask().word == "taken"


def test_standing_again_keeps_the_place(queue: Queue) -> None:
    Holder(queue).acquire()
    first, second = Holder(queue).wait(), Holder(queue).wait()
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.pexpire(keys.waiter(first.token), 1_000)
    first.wait()
    assert line(queue) == [first.token, second.token]
    assert 50_000 < redis.pttl(keys.waiter(first.token)) <= 60_000
    assert redis.pttl(keys.lease_waiting(DEVICE)) > 0
    rank = redis.zscore(keys.lease_waiting(DEVICE), first.token)
    first.wait(OTHER)
    assert line(queue) == [second.token] and line(queue, OTHER) == [first.token]
    queue.send(first.wait_call(needs=1))  # in no line, for a while
    assert line(queue, OTHER) == []
    first.wait()
    assert redis.zscore(keys.lease_waiting(DEVICE), first.token) == rank


def test_the_silent_are_skipped(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    dead, alive = Holder(queue).wait(), Holder(queue).wait()
    dead.fall_silent()
    holder.release()
    assert DEVICE in alive.called(), "some in front may be dead: not only the first is called"
    assert alive.ask().word == "ok"
    assert line(queue) == []


def test_one_who_does_not_come_has_a_second_and_stands_in_nobodys_way_then(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    slow, behind = Holder(queue).wait(), Holder(queue).wait()
    holder.release()
    assert behind.ask().word == "yield"
    assert behind.ask().word == "yield", "its turn is not over"
    turn_over(queue, DEVICE)
    assert behind.ask().word == "ok"
    assert slow.ask().word == "taken"
    assert line(queue) == []
    slow.wait()
    assert line(queue) == [slow.token]
    behind.release()
    assert slow.acquire()


def test_one_who_stands_again_after_a_missed_turn_gets_another(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    slow, behind = Holder(queue).wait(), Holder(queue).wait()
    holder.release()
    assert behind.ask().word == "yield"
    turn_over(queue, DEVICE)
    queue.send(slow.wait_call(needs=1))
    slow.wait()
    assert behind.ask().word == "yield" and slow.ask().word == "ok"


@pytest.mark.parametrize("how", ["leaves the line", "leaves for good", "takes another device"])
def test_a_turn_that_is_not_used_is_passed_on(queue: Queue, how: str) -> None:
    holders = [Holder(queue, (device,)).acquire() for device in BOTH]
    first, behind = Holder(queue).wait(*BOTH), Holder(queue).wait()
    worker = idle(queue)
    for holder in holders:
        holder.release()
    assert behind.ask().word == "yield" and worker.ask().word == "yield"
    assert behind.called() == [DEVICE] and first.called()
    if how == "takes another device":
        first.acquire(OTHER)
    else:
        queue.send(first.wait_call(*([OTHER] if how == "leaves the line" else ()), needs=int(how != "leaves for good")))
    assert behind.called() == [DEVICE]
    assert worker.tokens() == [DEVICE]
    assert worker.ask().word == "yield" and behind.ask().word == "ok"


def test_the_clock_went_back_and_no_turn_lasts_for_ever(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    Holder(queue).wait()
    behind = Holder(queue).wait()
    holder.release()
    assert behind.ask().word == "yield"
    redis, key = queue.broker.redis, queue.broker.keys.turn(DEVICE)
    assert 0 < redis.pttl(key) <= 5_000
    who, since = redis.get(key).decode().split(" ")
    redis.set(key, f"{who} {int(since) + 3_600_000}")
    assert behind.ask().word == "ok"


def test_who_needs_several_waits_until_there_are_as_many_and_keeps_none_meanwhile(queue: Queue) -> None:
    one, two = (Holder(queue, (device,)).acquire() for device in BOTH)
    pair = Holder(queue, BOTH, needs=2).wait()
    single = Holder(queue).wait()
    one.release()
    assert pair.ask().word == "taken"
    assert single.ask().word == "ok", "a device that does not suffice is not kept free"
    single.release()
    late = Holder(queue).wait()
    two.release()
    assert late.ask().word == "yield"
    pair.acquire()
    assert (lease(queue, DEVICE), lease(queue, OTHER)) == (pair.fence, pair.fence)


def test_a_lapsed_lease_is_the_first_ones_who_asks(queue: Queue) -> None:
    Holder(queue).acquire()
    first, second = Holder(queue).wait(), Holder(queue).wait()
    lapse(queue, DEVICE)
    assert second.ask().word == "yield"
    assert first.called() == [DEVICE]
    assert first.ask().word == "ok"


@pytest.mark.parametrize("what", ["resume", "clear"])
def test_a_device_that_may_be_used_again_calls_those_who_wait(queue: Queue, what: str) -> None:
    served(queue)
    if what == "resume":
        queue.broker.pause(DEVICE, "", "me")
    else:
        queue.send(queue.broker.withhold_call(DEVICE, "dirty", "memory", "", "", "w1"))
    waits = Holder(queue)
    assert waits.ask().word == ("paused" if what == "resume" else "withheld")
    waits.wait()
    if what == "resume":
        queue.broker.resume(DEVICE, "me")
    else:
        queue.broker.clear(DEVICE, "me")
    assert waits.called() == [DEVICE] and waits.ask().word == "ok"


# --- jobs and leases rank by one measure ------------------------------------------------------------------


def test_a_claim_yields_to_one_who_came_before_and_calls_it(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    waits = Holder(queue).wait()
    queue.enqueue()
    worker = queue.worker()
    assert worker.ask().word == "taken"
    holder.release()
    waits.called()
    assert worker.tokens() == [DEVICE]
    assert worker.ask().word == "yield"
    assert waits.called() == [DEVICE]
    assert worker.ask().word == "yield" and waits.called() == [], "called once"
    waits.acquire()
    assert worker.ask().word == "taken"
    waits.release()
    assert worker.tokens() == [DEVICE]
    assert worker.claim().number == 1


def test_a_waiter_without_any_job_is_called_by_the_worker_that_asks(queue: Queue) -> None:
    Holder(queue).acquire()
    waits = Holder(queue).wait()
    lapse(queue, DEVICE)
    assert queue.worker().ask().word == "yield"
    assert waits.called() == [DEVICE]


@pytest.mark.parametrize("why", ["earlier", "priority"])
def test_a_job_that_ranks_before_a_waiter_is_claimed(queue: Queue, why: str) -> None:
    holder = Holder(queue).acquire()
    number = queue.enqueue() if why == "earlier" else 0
    waits = Holder(queue).wait()
    number = number or queue.enqueue(priority=6)
    holder.release()
    assert queue.worker().claim().number == number
    assert waits.ask().word == "taken" and line(queue) == [waits.token]


def test_one_who_does_not_come_leaves_the_device_to_the_jobs(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    Holder(queue).wait()
    queue.enqueue()
    holder.release()
    worker = queue.worker()
    assert worker.ask().word == "yield"
    turn_over(queue, DEVICE)
    assert worker.claim().number == 1
    assert not queue.broker.redis.exists(queue.broker.keys.turn(DEVICE))


def test_a_lease_yields_to_a_job_of_a_live_worker_for_a_second(queue: Queue) -> None:
    known(queue)
    served(queue)
    worker = idle(queue)
    number = queue.enqueue()
    worker.tokens()
    holder = Holder(queue)
    reply = holder.ask()
    assert (reply.word, *reply.rest) == ("yield", DEVICE.encode(), b"job")
    assert holder.ask().word == "yield"
    assert worker.claim().number == number
    assert holder.ask().word == "taken"


def test_a_job_that_nobody_takes_in_a_second_does_not_keep_the_device(queue: Queue) -> None:
    """Its worker hangs, or finds that it has not the memory."""
    queue.enqueue()
    served(queue)
    holder = Holder(queue)
    assert holder.ask().word == "yield"
    turn_over(queue, JOBS)
    assert holder.ask().word == "ok"


def test_a_job_that_its_worker_cannot_take_now_does_not_keep_the_device(queue: Queue) -> None:
    """Its memory does not suffice at the moment. The worker and who waits do not wake each other for ever."""
    queue.enqueue()
    served(queue)
    waits = Holder(queue).wait()
    worker = queue.worker(shapes=())
    rounds = 0
    worker.ask()
    while waits.called() and rounds < 20:
        assert waits.ask().word == "yield"
        while worker.tokens():
            assert worker.ask().word == "yield"
        rounds += 1
    assert rounds < 4
    assert waits.ask().word == "yield", "a second for the job"
    for turn in (DEVICE, JOBS):
        turn_over(queue, turn)
    waits.wait()  # as it does from time to time
    assert waits.ask().word == "ok"


def test_the_worker_is_woken_for_the_job_that_goes_first(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    number = queue.enqueue()
    served(queue)
    worker = queue.worker()
    assert worker.ask().word == "taken"
    lapse(queue, DEVICE)
    other = Holder(queue)
    assert other.ask().word == "yield"
    assert worker.tokens() == [DEVICE]
    assert worker.claim().number == number
    assert holder.renew().word == "lost"


@pytest.mark.parametrize("why", ["no worker", "silent worker", "paused", "does not fit", "later", "full group"])
def test_jobs_that_cannot_start_hold_no_lease_back(queue: Queue, why: str) -> None:
    number = queue.enqueue(shape="g1@a" if why == "full group" else "g1")
    fitting = ("g1@a",) if why == "full group" else ("g1",)
    if why != "no worker":
        served(queue)
    redis, keys = queue.broker.redis, queue.broker.keys
    match why:
        case "silent worker":
            redis.zadd(keys.workers, {"w1": 1})
        case "paused":
            queue.broker.pause("*", "", "me")
        case "does not fit":
            fitting = ("g1.m4096",)
        case "later":
            queue.broker.reprioritize(number, "", 0, "me")
        case "full group":
            redis.hset(keys.group("a"), mapping={"max_concurrent": 1, "running": 1})
    assert Holder(queue, fitting=fitting).ask().word == "ok"


def test_shapes_are_judged_only_where_a_worker_serves_the_device(queue: Queue) -> None:
    queue.enqueue(shape="g1.m4096")
    holder = Holder(queue)
    assert holder.acquire().version == "?"
    holder.release()
    served(queue)
    reply = queue.broker.send(Holder(queue).acquire_call())[0]
    version = queue.broker.redis.get(queue.broker.keys.shapes_version)
    assert (reply.word, *reply.rest) == ("shapes", version, b"g1.m4096")


def test_a_stream_of_jobs_does_not_starve_a_waiter_nor_waiters_the_jobs(queue: Queue) -> None:
    """Twenty of each, all with the same priority, in the order in which they came."""
    holder = Holder(queue).acquire()
    came: list[Holder | int] = []
    for _ in range(20):
        came += [queue.enqueue(), Holder(queue).wait()]
    holder.release()
    served(queue)
    worker = queue.worker()
    for one in came:
        if isinstance(one, int):
            behind = came[-1]
            assert isinstance(behind, Holder) and behind.ask().word == "yield"
            run = worker.claim()
            assert run.number == one
            queue.complete(run)
        else:
            assert worker.ask().word == "yield"
            one.acquire()
            one.release()


RULES = {
    "the waiter's rank": ("claim", "waiter_rank < rank", "false"),
    "the waiter without a job": ("claim", "if waiter and (not n or", "if waiter and n and ("),
    "the turn": ("_line", "if turn_of(name) ~= token then", "do"),
    "a turn that is over": ("_line", "(token == who and missed)", "false"),
    "the silent": ("_line", "not waiter[1] or", ""),
    "the job's rank": ("lease_acquire", "tonumber(first[2]) < rank", "false"),
    "the jobs' turn": ("lease_acquire", "who ~= 'jobs' or not missed", "true"),
    "the turn passed on": ("_leave_line", "    freed(name)\n", ""),
    "enough devices": ("_line", "enough(name, waiter[1], count(waiter[2]))", "true"),
    "those called": ("_idle", "'lease_waiting:' .. name, 0, 2)", "'lease_waiting:', 0, 2)"),
}  # fmt: skip
FINDS = {
    "the waiter's rank": test_a_claim_yields_to_one_who_came_before_and_calls_it,
    "the waiter without a job": test_a_waiter_without_any_job_is_called_by_the_worker_that_asks,
    "the turn": test_a_claim_yields_to_one_who_came_before_and_calls_it,
    "a turn that is over": test_one_who_does_not_come_leaves_the_device_to_the_jobs,
    "the silent": test_the_silent_are_skipped,
    "the job's rank": test_a_lease_yields_to_a_job_of_a_live_worker_for_a_second,
    "the jobs' turn": test_a_job_that_nobody_takes_in_a_second_does_not_keep_the_device,
    "enough devices": test_who_needs_several_waits_until_there_are_as_many_and_keeps_none_meanwhile,
    "those called": test_the_first_is_called_when_the_device_is_given_back_and_the_others_stand_behind,
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_missing_is_found(queue: Queue, rule: str) -> None:
    with changed(*RULES[rule]), pytest.raises(AssertionError):
        if rule in FINDS:
            FINDS[rule](queue)
        else:
            test_a_turn_that_is_not_used_is_passed_on(queue, "takes another device")
