"""The answer gets lost, the request gets lost, or it arrives long after it was sent again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cutter import Cutter
from queue_driver import Queue, Worker
from servers import RealServer

from foxqueue import sender as sender_module
from foxqueue.broker import Claimed, Reply
from foxqueue.codec import pack
from foxqueue.errors import OutcomeUnknown, ServerUnavailable
from foxqueue.scripts import Call, load

HOW = ["reply", "request", "late"]


@pytest.fixture
def cutter(server: RealServer, tmp_path: Path) -> Iterator[Cutter]:
    with Cutter(server.socket, tmp_path / "p") as proxy:
        yield proxy


@pytest.fixture
def cut(cutter: Cutter, queue: Queue) -> Iterator[Queue]:
    """The same namespace through the proxy. Scripts are known to the server, so that cut replies are answers."""
    for name in ("enqueue", "cancel", "claim", "complete", "fail", "release", "lose", "heartbeat"):
        queue.broker.redis.script_load(load(name).text)
    through = Queue(cutter.url, queue.broker.keys.namespace)
    yield through
    through.broker.close()


def resent(cut: Queue, call: Call) -> Reply:
    """Send as a worker does: the same bytes until an answer is read."""
    for _ in range(10):
        try:
            return cut.broker.send(call)[0]
        except ServerUnavailable as error:
            assert not error.definite and error.exit_code == 1
    raise AssertionError("no answer")


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("how", HOW)
def test_enqueue_is_one_job(queue: Queue, cut: Queue, cutter: Cutter, how: str, times: int) -> None:
    cutter.lose(how, load("enqueue").sha, times)
    number, born = cut.enqueue_born()
    assert cutter.cuts == times
    assert (number, queue.job(number)["born"]) == (1, born)
    before = queue.snapshot()
    cutter.deliver()
    assert queue.snapshot() == before
    assert queue.broker.redis.get(queue.broker.keys.next) == b"1"
    assert len(queue.broker.redis.xrange(queue.broker.keys.events)) == 1


def test_enqueue_without_a_word_in_time_is_one_job(queue: Queue, cut: Queue, cutter: Cutter) -> None:
    impatient = Queue(cutter.url, queue.broker.keys.namespace, timeout_s=0.1)
    cutter.lose("silence", load("enqueue").sha, 2)
    assert impatient.enqueue() == 1
    assert cutter.cuts == 2
    assert queue.broker.redis.get(queue.broker.keys.next) == b"1"
    impatient.broker.close()


@pytest.mark.parametrize("how", HOW)
def test_a_request_that_never_got_through_keeps_its_token(
    queue: Queue, cut: Queue, cutter: Cutter, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "RESEND_S", 0.1)
    cutter.lose(how, load("enqueue").sha, 1000)
    with pytest.raises(OutcomeUnknown) as caught:
        cut.enqueue()
    assert caught.value.exit_code == 75
    cutter.lose("reply", load("cancel").sha, 1)  # another plan: enqueue gets through again
    number = cut.enqueue(token=caught.value.token)
    before = queue.snapshot()
    cutter.deliver()
    assert queue.snapshot() == before
    assert number == 1 and queue.broker.redis.get(queue.broker.keys.next) == b"1"


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("running", [False, True], ids=["pending", "running"])
def test_cancel(queue: Queue, cut: Queue, cutter: Cutter, how: str, running: bool) -> None:
    number, born = queue.enqueue_born()
    run = queue.worker().claim() if running else None
    cutter.lose(how, load("cancel").sha, 2)
    word = cut.broker.cancel(number, born, "me")
    assert word == ("ok" if run else "cancelled")
    if run:
        assert queue.complete(run) == "cancelled"
    before = queue.snapshot()
    cutter.deliver()  # after all that: the token is known
    assert queue.snapshot() == before
    events = [entry[1][b"event"] for entry in queue.broker.redis.xrange(queue.broker.keys.events)]
    assert events.count(b"cancel") == 1


@pytest.mark.parametrize("how", HOW)
def test_claim_leaves_no_job_without_an_owner(queue: Queue, cut: Queue, cutter: Cutter, how: str) -> None:
    queue.enqueue()
    queue.enqueue()
    worker = _knowing(cut)
    cutter.lose(how, load("claim").sha, 2)
    run = Claimed.of(resent(cut, worker.claim_call()))
    assert run.number == 1
    before = queue.snapshot()
    cutter.deliver()
    assert queue.snapshot() == before
    assert queue.broker.redis.zcard(queue.broker.keys.running) == 1
    assert queue.job(1)["attempts"] == "1"
    assert queue.complete(run) == "succeeded"


def test_a_claim_that_arrives_after_its_worker_died(queue: Queue, cut: Queue, cutter: Cutter) -> None:
    """Nobody knows of that run: the reaper gives the job to the next worker."""
    number = queue.enqueue()
    worker = _knowing(cut)
    cutter.lose("late", load("claim").sha, 1)
    with pytest.raises(ServerUnavailable):
        cut.broker.send(worker.claim_call())
    cutter.deliver()
    assert queue.job(number)["state"] == "running"
    successor = queue.worker("w2")
    assert successor.ask().word == "taken"
    queue.overdue(number)
    queue.reap()
    assert successor.claim().number == number


def test_a_claim_that_arrives_after_a_later_question(queue: Queue, cut: Queue, cutter: Cutter) -> None:
    worker = _knowing(cut)
    cutter.lose("late", load("claim").sha, 1)
    with pytest.raises(ServerUnavailable):
        cut.broker.send(worker.claim_call())
    queue.enqueue()
    queue.complete(worker.claim())
    queue.enqueue()
    before = queue.snapshot()
    assert b"stale" in cutter.deliver()[0]
    assert queue.snapshot() == before


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("end", ["complete", "fail", "retry", "release", "lose"])
def test_ends(queue: Queue, cut: Queue, cutter: Cutter, how: str, end: str) -> None:
    number = queue.enqueue(retries=1)
    run = queue.worker().claim()
    broker = cut.broker
    call, word = {
        "complete": (broker.complete_call(number, run.fence, pack({})), "succeeded"),
        "fail": (broker.fail_call(number, run.fence, "exit_code", "", 3, pack({}), None), "failed"),
        "retry": (broker.fail_call(number, run.fence, "exit_code", "", 3, pack({}), 0), "failed"),
        "release": (broker.release_call(number, run.fence, "shutdown", ""), "released"),
        "lose": (broker.lose_call(number, run.fence), "lost"),
    }[end]
    cutter.lose(how, call.script.sha, 3)
    assert resent(cut, call).word == word
    assert cutter.cuts == 3
    if end in ("retry", "release", "lose"):
        again = queue.worker("w2").claim()  # the copies arrive while the job runs elsewhere
        assert again.number == number
    before = queue.snapshot()
    cutter.deliver()
    assert queue.snapshot() == before
    job = queue.job(number)
    if end == "lose":
        assert (job["attempts"], job["losses"]) == ("1", "1")
    if end in ("retry", "release"):
        assert job["attempts"] == ("2" if end == "retry" else "1")


@pytest.mark.parametrize("how", HOW)
def test_complete_and_claim_in_one_round_trip(queue: Queue, cut: Queue, cutter: Cutter, how: str) -> None:
    """Either is sent again as it was: the job ends once, and the next one has one owner."""
    for _ in range(3):
        queue.enqueue()
    worker = _knowing(cut)
    run = worker.claim()
    calls = (cut.broker.complete_call(run.number, run.fence, pack({})), worker.claim_call())
    cutter.lose(how, load("claim").sha, 1)
    with pytest.raises(ServerUnavailable):
        cut.broker.send(*calls)
    ended, claimed = cut.broker.send(*calls)
    assert (ended.word, claimed.word) == ("succeeded", "ok")
    before = queue.snapshot()
    cutter.deliver()
    assert queue.snapshot() == before
    assert queue.broker.redis.zrange(queue.broker.keys.running, 0, -1) == [b"2"]


def _knowing(cut: Queue) -> Worker:
    """A worker that has judged the shapes, so that its next claim is a real one."""
    worker = cut.worker()
    worker.version = (cut.broker.redis.get(cut.broker.keys.shapes_version) or b"0").decode()
    return worker
