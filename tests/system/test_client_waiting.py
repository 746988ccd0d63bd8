"""Cancelling, waiting and following through the Python client on a real server; workers are played by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pretend import output
from queue_driver import Queue
from servers import RealServer
from wait import until

from foxqueue import Client, JobGone, JobNotFound, NotCancelled, ServerUnavailable, WaitTimeout
from foxqueue.changing import CANCEL, change_many
from foxqueue.job import JobView
from foxqueue.submission import user


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Runs something beside the test and shows its error at the end."""
    with ThreadPoolExecutor(8) as pool:
        futures = []
        yield lambda body: futures.append(pool.submit(body))
        for future in futures:
            future.result(timeout=30)


def test_a_job_that_waits_for_a_device_that_never_comes_is_cancelled_at_once(fox: Client) -> None:
    job = fox.submit(["true"], gpu_memory="80G")
    assert job.cancel().state == "cancelled"
    assert (job.reason, job.detail) == ("cancelled_by_user", f"cancelled by {user()}")
    assert fox.job(1).cancel().state == "cancelled"
    assert job.wait(0).ended


def test_what_cannot_be_cancelled_says_why(fox: Client, queue: Queue) -> None:
    job = fox.submit(["true"])
    queue.complete(queue.worker().claim())
    with pytest.raises(NotCancelled, match="succeeded"):
        job.cancel()
    with pytest.raises(JobNotFound):
        fox.job(99)


def test_a_running_job_is_asked_to_stop_and_ends_cancelled(
    fox: Client, queue: Queue, background: Callable[[Callable[[], object]], None]
) -> None:
    job = fox.submit(["true"])
    run = queue.worker().claim()
    job.cancel()
    assert (job.state, job.cancel_requested) == ("running", user())
    background(lambda: queue.fail(run))
    assert job.wait(10).state == "cancelled"


def test_waiting_ends_with_the_job_or_with_the_time(
    fox: Client, queue: Queue, background: Callable[[Callable[[], object]], None]
) -> None:
    first, second = fox.submit(["true"]), fox.submit(["true"])
    with pytest.raises(WaitTimeout, match="1 is pending, 2 is pending"):
        fox.wait([first, second], 0.05)
    worker = queue.worker()
    ended: list[int] = []

    def play() -> None:
        queue.complete(worker.claim())
        until(lambda: ended == [1], what="the first end")
        queue.fail(worker.claim(), delay_ms=None)

    background(play)
    begin = time.monotonic()
    fox.wait([first, second], 20, on_end=lambda job: ended.append(job.number))
    assert ended == [1, 2]
    assert (first.succeeded, second.succeeded, second.exit_code) == (True, False, 1)
    assert time.monotonic() - begin < 5


def test_a_wait_for_thousands_reads_again_what_events_speak_of(
    fox: Client, queue: Queue, background: Callable[[Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = fox.submit_many([{"argv": ["true"]}] * 3000)
    views, read, ended = fox.inspector.views, [], []

    def counting(numbers: Sequence[int]) -> list[JobView | None]:
        read.append(len(numbers))
        return views(numbers)

    monkeypatch.setattr(fox.inspector, "views", counting)

    def play() -> None:
        until(lambda: read, what="the waiter")
        worker = queue.worker()
        for _ in range(200):
            queue.complete(worker.claim())
        list(change_many(queue.broker, CANCEL, ((job.number, job.born) for job in jobs[200:]), "me"))

    background(play)
    fox.wait(jobs, 60, on_end=lambda job: ended.append(job.number))
    assert sorted(ended) == [job.number for job in jobs]
    assert sum(read) < 5 * len(jobs), "not all of them again with each piece of news"


def test_a_waiting_client_starts_what_is_due_and_survives_restarts(
    tmp_path: Path, background: Callable[[Callable[[], object]], None]
) -> None:
    with RealServer(None, tmp_path / "server").start() as server, Client(server.url, "test", tmp_path) as fox:
        queue = Queue(server.url, "test")
        job = fox.submit(["true"], retries=1)
        queue.fail(queue.worker().claim(), delay_ms=10)
        waiting = threading.Event()

        def play() -> None:
            until(waiting.is_set, what="the waiter")
            for _ in range(3):
                server.restart()
            for name in ("w2", "w3"):  # while the disk is slow, a killed server may forget its last moments
                worker = queue.worker(name)
                run = until(lambda worker=worker: (reply := worker.ask()).word == "ok" and reply, what="the retry")
                server.restart()
                call = queue.broker.complete_call(int(run.rest[0]), run.rest[1].decode(), b"\x80")
                if queue.send(call) == "succeeded":
                    break

        background(play)
        waiting.set()
        assert job.wait(30).state == "succeeded"
        assert job.attempts == 2


def test_a_server_that_stays_away_ends_a_wait_with_its_time(tmp_path: Path) -> None:
    with RealServer(None, tmp_path / "server").start() as server, Client(server.url, "test", tmp_path) as fox:
        job = fox.submit(["true"])
        server.kill()
        with pytest.raises(WaitTimeout, match="does not answer"):
            job.wait(0.3)
        with pytest.raises(ServerUnavailable):
            fox.stats()


def test_a_number_that_was_given_out_again_is_not_the_job(fox: Client, queue: Queue) -> None:
    job = fox.submit(["true"])
    queue.broker.redis.flushall()
    with pytest.raises(JobNotFound):
        job.refresh()
    fox.submit(["false"])
    for act in (job.refresh, job.cancel, job.wait):
        with pytest.raises(JobGone, match="another job"):
            act()


# Output


def test_output_is_followed_over_all_attempts(
    fox: Client, queue: Queue, background: Callable[[Callable[[], object]], None]
) -> None:
    job = fox.submit(["true"], retries=1)
    worker = queue.worker()
    run = worker.claim()
    output(queue, run, 0, b"one\r")
    seen: list[bytes] = []

    def play() -> None:
        until(lambda: seen, what="the first piece")
        output(queue, run, 4, b"\xfftwo\n")
        queue.fail(run, delay_ms=0)
        again = until(lambda: (reply := worker.ask()).word == "ok" and reply, what="the retry")
        number, fence = int(again.rest[0]), again.rest[1].decode()
        queue.broker.send(queue.broker.log_call(number, fence, 0, 0, b"three"))
        queue.broker.send(queue.broker.complete_call(number, fence, b"\x80"))

    background(play)
    for data in job.follow():
        seen.append(data)
    assert b"".join(seen) == b"one\r\xfftwo\nthree"
    assert job.state == "succeeded"
    assert fox.job(1).logs() == b"one\r\xfftwo\nthree"


def test_following_an_ended_job_ends(fox: Client, queue: Queue) -> None:
    job = fox.submit(["true"])
    run = queue.worker().claim()
    for at in range(1200):
        output(queue, run, at, b"x")
    queue.complete(run)
    assert b"".join(job.follow()) == b"x" * 1200
    assert fox.submit(["true"]).cancel().logs() == b""
