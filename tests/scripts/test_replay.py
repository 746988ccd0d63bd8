"""Every call may arrive twice, at once or much later: the answer is the same and nothing more happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from queue_driver import Queue

from foxqueue.broker import Claimed, Reply
from foxqueue.codec import pack
from foxqueue.scripts import Call


def twice(queue: Queue, call: Call) -> Reply:
    """Send a call again and again; return its first answer, which must be the answer to all."""
    first = queue.broker.send(call)[0]
    after = queue.snapshot()
    assert queue.broker.send(call)[0] == first
    assert queue.broker.send(call, call) == [first, first]
    assert queue.snapshot() == after
    return first


def enqueue_call(queue: Queue, token: str, candidate: str = "aa") -> Call:
    return queue.broker.scripts.call(
        "enqueue",
        env_blob=queue.broker.keys.env("d"),
        token=token,
        candidate=candidate,
        env_digest="d",
        env=pack({}),
        user="ann",
        sweep="",
        jobs=["job", "g1", 5, 0, 1000, pack({"v": 1}), ""],
    )


def test_enqueue_twice_is_one_job(queue: Queue) -> None:
    reply = twice(queue, enqueue_call(queue, "aabb"))
    assert reply.word == "ok"
    assert twice(queue, enqueue_call(queue, "ccdd")).rest != reply.rest
    assert queue.broker.redis.zcard(queue.broker.keys.pending("g1")) == 2


@pytest.mark.parametrize("periods_ago", [0, 1])
def test_a_request_is_known_for_two_minutes_at_least(queue: Queue, periods_ago: int) -> None:
    call = enqueue_call(queue, "aabb")
    first = queue.broker.send(call)[0]
    redis, keys = queue.broker.redis, queue.broker.keys
    period = queue.broker.server_time_ms() // 120_000
    newest = next(p for p in (period, period - 1) if redis.exists(keys.requests(p)))
    assert 240_000 < redis.pttl(keys.requests(newest)) <= 360_000
    if periods_ago:
        redis.rename(keys.requests(newest), keys.requests(period - periods_ago))
    assert queue.broker.send(call)[0] == first


def test_answers_of_one_period_go_together(queue: Queue) -> None:
    queue.enqueue()
    (key,) = queue.broker.redis.keys("*requests:*")
    queue.broker.redis.pexpire(key, 250_000)
    queue.enqueue()
    assert queue.broker.redis.pttl(key) <= 250_000, "its time to live was set once"
    assert queue.broker.redis.hlen(key) == 3


def test_a_request_is_known_before_any_other_test(queue: Queue) -> None:
    """Even where it would be refused by now: the job is there, the client has to hear its number."""
    call = enqueue_call(queue, "aabb")
    first = queue.broker.send(call)[0]
    run = queue.worker().claim()
    queue.complete(run)
    assert queue.broker.send(call)[0] == first
    cancel = queue.broker.scripts.call("cancel", token="ee", number=run.number, born="", by="me")
    assert queue.broker.send(cancel)[0].word == "succeeded"
    queue.broker.redis.delete(queue.broker.keys.job(run.number))
    assert queue.broker.send(cancel)[0].word == "succeeded"


def test_claim_ok_twice_is_one_run(queue: Queue) -> None:
    queue.enqueue()
    queue.enqueue()
    worker = queue.worker()
    call = worker.claim_call()
    reply = queue.broker.send(call)[0]
    if reply.word == "shapes":
        worker.version = reply.rest[0].decode()
        call = worker.claim_call()
    assert Claimed.of(twice(queue, call)).number == 1
    assert queue.broker.redis.zcard(queue.broker.keys.running) == 1


@pytest.mark.parametrize("word", ["empty", "taken", "shapes"])
def test_claim_without_a_job_twice_is_stale(queue: Queue, word: str) -> None:
    """A new job may be there by now: whoever asks again with the old question must not get one."""
    worker = queue.worker()
    queue.complete(queue.worker_with_job())
    worker = queue.worker("w2")
    assert worker.ask().word == "empty"
    if word == "taken":
        queue.enqueue()
        queue.worker("w3").claim()
    if word == "shapes":
        worker.version = "other"
    call = worker.claim_call()
    assert queue.broker.send(call)[0].word == word
    queue.enqueue()
    if word == "taken":
        queue.broker.redis.hdel(queue.broker.keys.granted, worker.device)
        queue.broker.redis.delete(queue.broker.keys.lease(worker.device))
    before = queue.snapshot()
    assert queue.broker.send(call)[0].word == "stale"
    assert queue.snapshot() == before


def test_a_smaller_question_is_stale(queue: Queue) -> None:
    worker = queue.worker()
    early = worker.claim_call()
    queue.enqueue()
    run = worker.claim()
    queue.complete(run)
    queue.enqueue()
    before = queue.snapshot()
    assert queue.broker.send(early)[0].word == "stale"
    assert queue.snapshot() == before


def test_questions_are_compared_as_numbers(queue: Queue) -> None:
    worker = queue.worker()
    worker.question = 8
    worker.version = "0"
    for _ in range(3):  # 9, 10, 11
        assert worker.ask().word == "empty"


def test_heartbeat_twice_changes_deadlines_only(queue: Queue) -> None:
    run = queue.worker_with_job()
    before = queue.snapshot(deadlines=False)
    call = queue.broker.heartbeat_call(run.number, run.fence)
    replies = queue.broker.send(call, call, call)
    assert {reply.word for reply in replies} == {"ok"}
    assert queue.snapshot(deadlines=False) == before


ENDS: dict[str, Callable[[Queue, Claimed], Call]] = {
    "complete": lambda q, run: q.broker.complete_call(run.number, run.fence, pack({"end": "exit_code"})),
    "fail": lambda q, run: q.broker.fail_call(run.number, run.fence, "exit_code", "", 3, pack({}), None),
    "retry": lambda q, run: q.broker.fail_call(run.number, run.fence, "exit_code", "", 3, pack({}), 60_000),
    "retry at once": lambda q, run: q.broker.fail_call(run.number, run.fence, "signal", "", None, pack({}), 0),
    "release": lambda q, run: q.broker.release_call(run.number, run.fence, "shutdown", "worker stops"),
    "lose": lambda q, run: q.broker.lose_call(run.number, run.fence),
}
WORDS = {
    "complete": "succeeded",
    "fail": "failed",
    "retry": "failed",
    "retry at once": "failed",
    "release": "released",
    "lose": "lost",
}


@pytest.mark.parametrize("cancelled", [False, True], ids=["", "cancelled"])
@pytest.mark.parametrize("end", ENDS)
def test_an_end_twice_is_one_end(queue: Queue, end: str, cancelled: bool) -> None:
    number = queue.enqueue(retries=1)
    run = queue.worker().claim()
    if cancelled:
        assert queue.broker.cancel(number, "", "me") == "ok"
    reply = twice(queue, ENDS[end](queue, run))
    expected = WORDS[end] if not cancelled or end == "lose" else "cancelled"
    assert reply.word == expected
    assert (queue.job(number)["state"] == "cancelled") == cancelled


@pytest.mark.parametrize("other", ENDS)
@pytest.mark.parametrize("end", ENDS)
def test_the_first_end_of_a_run_is_the_only_one(queue: Queue, end: str, other: str) -> None:
    """Whatever else comes for this run later hears what its end was."""
    queue.enqueue(retries=1)
    run = queue.worker().claim()
    assert queue.broker.send(ENDS[end](queue, run))[0].word == WORDS[end]
    before = queue.snapshot()
    assert queue.broker.send(ENDS[other](queue, run))[0].word == WORDS[end]
    assert queue.beat(run) == WORDS[end]
    assert queue.snapshot() == before


@pytest.mark.parametrize("end", ["release", "lose", "retry at once"])
def test_late_copies_after_the_job_is_claimed_again(queue: Queue, end: str) -> None:
    """Each call of the first run comes once more while another worker has the job, and after that one's end."""
    queue.enqueue(retries=3)
    worker = queue.worker("w1")
    asked = worker.claim_call()
    reply = queue.broker.send(asked)[0]
    if reply.word == "shapes":
        worker.version = reply.rest[0].decode()
        asked = worker.claim_call()
        reply = queue.broker.send(asked)[0]
    first = Claimed.of(reply)
    assert queue.send(queue.broker.log_call(first.number, first.fence, 0, 0, b"one")) == "ok"
    copies = [
        asked,
        queue.broker.heartbeat_call(first.number, first.fence),
        queue.broker.log_call(first.number, first.fence, 0, 0, b"one"),
        queue.broker.log_call(first.number, first.fence, 3, 0, b"two"),
        *(make(queue, first) for make in ENDS.values()),
    ]
    queue.broker.send(ENDS[end](queue, first))
    second = queue.worker("w2").claim()
    assert second.number == first.number
    for expected in ({"stale", WORDS[end]}, {"stale"}):
        before = queue.snapshot()
        assert {reply.word for reply in queue.broker.send(*copies)} == expected
        assert queue.snapshot() == before
        assert queue.complete(second) == "succeeded"


def cancel_call(queue: Queue, number: int, token: str = "77") -> Call:
    return queue.broker.scripts.call("cancel", token=token, number=number, born="", by="me")


@pytest.mark.parametrize("state", ["scheduled", "pending", "running", "succeeded", "failed", "cancelled", "missing"])
def test_cancel_twice_in_every_state(queue: Queue, state: str) -> None:
    number = queue.enqueue(retries=1) if state != "missing" else 99
    if state in ("scheduled", "running", "succeeded", "failed"):
        run = queue.worker().claim()
        if state == "scheduled":
            queue.fail(run, delay_ms=60_000)
        elif state == "succeeded":
            queue.complete(run)
        elif state == "failed":
            queue.fail(run, delay_ms=None)
    if state == "cancelled":
        queue.broker.cancel(number, "", "me")
    word = twice(queue, cancel_call(queue, number)).word
    assert word == {"scheduled": "cancelled", "pending": "cancelled", "running": "ok"}.get(state, state)
    if state == "missing":
        return
    ends = {"scheduled": "cancelled", "pending": "cancelled", "running": "running"}
    assert queue.job(number)["state"] == ends.get(state, state)


def test_a_cancel_that_is_late_does_not_hit_a_later_life(queue: Queue) -> None:
    """The answer was `missing`; a job that has the number by now is not the one that was meant."""
    call = cancel_call(queue, 1)
    assert queue.send(call) == "missing"
    queue.enqueue()
    before = queue.snapshot()
    assert queue.send(call) == "missing"
    assert queue.snapshot() == before
    number, born = queue.enqueue_born()
    assert queue.broker.cancel(number, str(int(born) - 1), "me") == "stale"
    assert queue.job(number)["state"] == "pending"
    assert queue.broker.cancel(number, born, "me") == "cancelled"


def test_a_second_request_to_cancel_a_running_job_changes_nothing(queue: Queue) -> None:
    run = queue.worker_with_job()
    queue.broker.cancel(run.number, "", "me")
    queue.broker.cancel(run.number, "", "somebody else")
    assert queue.job(run.number)["cancel_requested"] == "me"
    events = [entry[1][b"event"] for entry in queue.broker.redis.xrange(queue.broker.keys.events)]
    assert events.count(b"cancel") == 1
    reply = queue.broker.send(queue.broker.heartbeat_call(run.number, run.fence))[0]
    assert (reply.word, reply.rest) == ("ok", (b"me", b""))


def test_register_twice(queue: Queue) -> None:
    call = queue.broker.register_call("w1", "GPU-1", 1, pack({}))
    assert queue.send(call) == "ok"
    before = queue.snapshot()
    assert queue.send(call) == "stale"
    assert queue.snapshot() == before


def test_log_twice(queue: Queue) -> None:
    run = queue.worker_with_job()
    assert twice(queue, queue.broker.log_call(run.number, run.fence, 0, 0, b"line")).word == "ok"
    assert twice(queue, queue.broker.log_call(run.number, run.fence, 900, 4, b"line")).word == "ok"


def test_sweep_twice_sweeps_once(queue: Queue) -> None:
    number = queue.enqueue()
    queue.worker().claim()
    queue.overdue(number)
    assert queue.reap().word == "ok"
    assert queue.job(number)["losses"] == "1"
    before = queue.snapshot()
    assert queue.broker.sweep().word == "no"
    assert queue.snapshot() == before


def test_a_reaped_run_and_its_own_lose_count_once(queue: Queue) -> None:
    number = queue.enqueue()
    run = queue.worker().claim()
    queue.overdue(number)
    queue.reap()
    assert queue.lose(run) == "lost"
    assert queue.job(number)["losses"] == "1"
    assert queue.job(number)["attempts"] == "0"


def test_configure_twice(queue: Queue) -> None:
    call = queue.broker.configure_call(2000)
    assert twice(queue, call).word == "ok"
