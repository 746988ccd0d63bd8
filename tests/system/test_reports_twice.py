"""One execution and one accepted result, whatever happens to leases, replies and connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cutter import Cutter
from servers import RealServer
from stack import Stack, ended, gone, until_exists
from wait import until

from foxqueue.listening import look
from foxqueue.scripts import load

LEASE_S = 4.0
SLOW_START = ("--key-load-delay", "160")  # us a command of the append-only file


def marking(marks: Path, *then: str) -> tuple[str, ...]:
    """A job that leaves one line a run before it goes on."""
    return ("sh", "-c", f'echo $FOXQUEUE_FENCE >> {marks}; exec "$@"', "sh", *(then or ("true",)))


def test_a_lease_says_nothing_about_how_long_a_job_takes(stack: Stack) -> None:
    """B1: a job of three leases among four workers runs once; a retry far beyond every lease is held by nobody."""
    stack.up("--simulate", "4x24G", "--lease-ttl", "2s", workers=4)
    marks, keys = stack.root / "marks", stack.api.broker.keys
    delayed = stack.queue("false", retries=1, retry_delay="1h")
    number = stack.queue(*marking(marks, "sleep", "5.5"))
    waiting = stack.await_state(delayed, "scheduled")
    began = time.monotonic()
    held: set[Any] = set()

    def over() -> bool:
        stack.api.look()
        redis: Any = stack.api.redis
        held.update(grant for grant in redis.hgetall(keys.granted).values() if grant.endswith(b"job:%d" % delayed))
        held.update(member for member in redis.zrange(keys.running, 0, -1) if int(member) == delayed)
        return bool(stack.job(number)["state"] == "succeeded")

    until(over, 15, "the end of the long job", every=0.1)
    assert time.monotonic() - began > 5
    assert len(marks.read_text().split()) == 1 and not held
    assert [event["event"] for event in stack.events(number)] == ["enqueue", "claim", "complete"]
    now = stack.job(delayed)
    assert (now["state"], now["waiting_for"], now["attempts"], now["losses"]) == ("scheduled", "backoff", 1, 0)
    assert now["fence"] == waiting["fence"] and "attempt 1 failed, the next one is due in " in now["detail"]
    assert "59m" in now["detail"] or "due in 1h" in now["detail"]  # up to a quarter is added to the hour
    assert [device["state"] for device in stack.devices().values()] == ["free"] * 4


# --- replies that are lost ----------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    with RealServer(None, tmp_path / "server").start() as server:
        yield server


@pytest.mark.parametrize("how", ["reply", "request"])
def test_lost_replies_and_requests_double_and_lose_nothing(server: RealServer, tmp_path: Path, how: str) -> None:
    """B4: enqueue, claim, complete, log, retry, heartbeat and both cancels, with a real worker behind the cuts."""
    with (
        Cutter(server.socket, server.socket.with_name("cut.sock")) as cutter,
        ended(Stack(tmp_path / "home", {"FOXQUEUE_URL": cutter.url})) as stack,
    ):
        stack.up("--simulate", "1x24G", "--lease-ttl", "2s", workers=1)
        flag, marks = tmp_path / "flag", tmp_path / "marks"

        def lose(script: str, times: int = 1) -> None:
            cutter.cuts = 0
            cutter.lose(how, load(script).sha, times)

        def lost(times: int = 1) -> None:
            until(lambda: cutter.cuts == times, 10, "the cut")

        lose("enqueue")
        first = stack.queue(*marking(marks, *until_exists(flag)))
        lost()
        assert len(stack.api.jobs()) == 1
        stack.await_state(first, "running")
        lose("heartbeat", 2)
        lost(2)

        lose("claim")  # rides with the end of the first job
        second = stack.queue(*marking(marks))
        flag.touch()
        lost()
        stack.await_state(second, "succeeded")

        lose("claim", 2)  # of an idle worker: the same question, until there is an answer
        idle = stack.queue(*marking(marks))
        lost(2)
        stack.await_state(idle, "succeeded")

        lose("complete")
        third = stack.queue(*marking(marks))
        lost()
        lose("log")
        fourth = stack.queue(*marking(marks, "echo", "out"))
        lost()
        lose("fail")
        stack.await_state(fourth, "succeeded")
        retried = stack.queue(
            "sh", "-c", f"echo x >> {marks}; [ $FOXQUEUE_ATTEMPT = 2 ]", retries=1, retry_delay="100ms"
        )
        lost()
        stack.await_state(retried, "succeeded")

        numbers = (first, second, idle, third, fourth)
        assert [stack.job(number)["state"] for number in numbers] == ["succeeded"] * 5
        for number in numbers:
            assert (stack.job(number)["attempts"], stack.job(number)["losses"]) == (1, 0)
            assert [event["event"] for event in stack.events(number)] == ["enqueue", "claim", "complete"]
        assert (stack.job(retried)["attempts"], stack.job(retried)["losses"]) == (2, 0)
        assert len(stack.events(retried, "claim")) == 2 and len(stack.events(retried, "fail")) == 1
        assert len(marks.read_text().split()) == 7
        assert stack.fox("logs", str(fourth)).stdout == "out\n"

        running, pending = stack.queue("sleep", "300"), stack.queue("sleep", "300")
        stack.await_state(running, "running")
        for number in (pending, running):
            lose("cancel")
            assert stack.fox("cancel", str(number)).stdout == f"{number} cancelled\n"
            lost()
            assert len(stack.events(number, "cancel")) == 1
        assert not stack.events(pending, "claim")


# --- leases that are lost -----------------------------------------------------------------------------


def test_a_deleted_lease_heals_with_the_next_beat(quick: Stack) -> None:
    """C1: somebody deletes the lease key of a running job."""
    flag, marks = quick.root / "flag", quick.root / "marks"
    number = quick.queue(*marking(marks, *until_exists(flag)))
    job = quick.await_state(number, "running")
    key = quick.api.broker.keys.lease(job["gpu_uuids"][0])
    assert quick.api.redis.get(key) == job["fence"].encode()
    quick.api.redis.delete(key)
    began = time.monotonic()
    until(lambda: quick.api.redis.get(key), 5, "the lease again")
    assert time.monotonic() - began < 1.5
    assert quick.api.redis.get(key) == job["fence"].encode()
    flag.touch()
    done = quick.await_state(number, "succeeded")
    assert (done["attempts"], done["losses"]) == (1, 0) and len(marks.read_text().split()) == 1
    assert quick.api.redis.get(key) is None


@pytest.mark.parametrize("how", ["lease", "grant"])
def test_a_lease_that_is_anothers_ends_the_job_and_stays_anothers(stack: Stack, how: str) -> None:
    """C1: the lease is set to another owner; the grant is given to another."""
    stack.up("--simulate", "1x24G", "--lease-ttl", "2s", workers=1)
    pid, overlap = stack.root / "pid", stack.root / "overlap"
    number = stack.queue("sh", "-c", f"trap '' TERM; echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 300")
    until(pid.exists, 10, "the job")
    behind = stack.queue("sh", "-c", f"kill -0 $(cat {pid}) && echo overlap > {overlap}; true")
    processes = stack.processes_of(number)
    keys, redis = stack.api.broker.keys, stack.api.redis
    device = stack.job(number)["gpu_uuids"][0]
    other = str(int(stack.job(number)["fence"]) + 1)
    if how == "lease":
        redis.set(keys.lease(device), other)
    else:
        redis.hset(keys.granted, device, f"{other} lease:somebody")
        redis.set(keys.lease(device), other)
    began = time.monotonic()

    def over() -> dict[str, Any] | None:
        alive = not gone(processes)()
        job, next_one = stack.job(number), stack.job(behind)
        assert not (alive and next_one["state"] != "pending"), "the device was granted while the old run lived"
        return job if job["state"] != "running" else None

    job = until(over, 10, "the end of the job")
    assert job is not None and (job["state"], job["reason"]) == ("failed", "lease_lost")
    assert time.monotonic() - began < LEASE_S, "it must be dead before the lease of others could run out"
    assert gone(processes)()
    assert "another owner" in stack.fox("show", str(number)).stdout
    assert redis.get(keys.lease(device)) == other.encode()
    beats = len(stack.api.redis.xrange(keys.events))
    until(lambda: "is leased" in str(stack.job(behind)["detail"]) or stack.job(behind)["waiting_for"], 5, "a reason")
    assert stack.job(behind)["state"] == "pending" and len(stack.api.redis.xrange(keys.events)) == beats
    redis.delete(keys.lease(device))  # its owner lets go
    stack.await_state(behind, "succeeded")
    assert not overlap.exists()


def test_hiccups_of_the_server_start_no_second_run(server: RealServer, tmp_path: Path) -> None:
    """C4: connections killed, a second of silence, and LOADING while a job runs beside an idle worker."""
    with ended(Stack(tmp_path / "home", {"FOXQUEUE_URL": server.url})) as stack:
        stack.up("--simulate", "2x24G", "--lease-ttl", "2s")
        redis: Any = stack.api.redis
        with redis.pipeline(transaction=False) as pipeline:  # what takes its time to be loaded
            for number in range(5000):
                pipeline.set(f"ballast:{number}", number)
            pipeline.execute()
        flag, marks = tmp_path / "flag", tmp_path / "marks"
        number = stack.queue(*marking(marks, *until_exists(flag)))
        fence = stack.await_state(number, "running")["fence"]
        key = stack.api.broker.keys.lease(stack.job(number)["gpu_uuids"][0])

        def beats_again() -> None:
            until(lambda: redis.pttl(key) < 3600, 10, "an older lease")
            until(lambda: redis.pttl(key) > 3700, 10, "a beat")

        for _ in range(3):
            redis.client_kill_filter(_type="normal", skipme=True)
        beats_again()
        server.freeze()
        frozen = time.monotonic()
        until(lambda: time.monotonic() - frozen > 1.0, 5, "a second of silence")
        server.thaw()
        beats_again()
        server.kill()
        server.flags = SLOW_START
        server.start(wait=False)
        until(lambda: look(server.socket) == "loading", 10, "LOADING")
        stack.fox("ls")
        beats_again()
        flag.touch()
        done = stack.await_state(number, "succeeded")
        assert (done["attempts"], done["losses"], done["fence"]) == (1, 0, fence)
        assert len(marks.read_text().split()) == 1
        assert [event["event"] for event in stack.events(number)] == ["enqueue", "claim", "complete"]
        assert "answers again" in stack.log("up")
