"""A job that can run starts at once, and within a poll of a few seconds whatever happened to who was woken for it."""

from __future__ import annotations

import shutil
import signal
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cutter import Cutter
from servers import RealServer
from stack import Stack, ended, is_stopped, until_exists
from wait import until

from foxqueue import Client
from foxqueue.broker import Broker
from foxqueue.listener import BLOCK_S
from foxqueue.processes import ProcessId

BOUND_MS = 6000  # a poll of 5 s at most, and what a loaded machine adds
WAKE_MS = 1000  # far below the poll: so soon only who was woken

# Runs in a worker: it dies with the token that woke it in its hand.
DIES_WOKEN = """
import os, signal
from workers.inbox import Inbox
put = Inbox.put
def dying(self, kind, *said):
    if kind == "token":
        os.kill(os.getpid(), signal.SIGKILL)
    put(self, kind, *said)
Inbox.put = dying
"""

# Runs in a worker: it asks when it is woken, and else not during a test.
NEVER_POLLS = "import workers.worker\nworkers.worker.POLL_S = 600.0"


def idle(stack: Stack, shape: str = "g1") -> list[str]:
    """Workers that stand idle for a shape, the newest first."""
    names: Any = stack.api.redis.zrevrange(stack.api.broker.keys.idle_for(shape), 0, -1)
    return [name.decode() for name in names]


def start_workers(stack: Stack, simulate: str, *before: str) -> list[str]:
    """One worker a word of ``before``, all idle for a shape that everybody knows; their names."""
    stack.api.job(stack.queue("true")).cancel()
    names: list[str] = []
    for index, code in enumerate(before):
        stack.start_worker(f"sim:{index}", "--simulate", simulate, before=code)
        until(lambda count=index + 1: len(idle(stack)) == count, 20, f"worker {index} idle")  # type: ignore[misc]
        names += set(idle(stack)) - set(names)
    return names


def be_next(stack: Stack, *names: str) -> None:
    """Let these be woken before all others, the last one first."""
    key, now = stack.api.broker.keys.idle_for("g1"), stack.api.broker.server_time_ms()
    for place, name in enumerate(names):
        assert stack.api.redis.zadd(key, {name: now + 500 + place}, xx=True, ch=True) == 1, f"{name} is not idle"


def process_of(stack: Stack, name: str) -> ProcessId:
    found = ProcessId.of(next(worker["pid"] for worker in stack.api.workers() if worker["id"] == name))
    assert found is not None
    return found


def stop(process: ProcessId) -> None:
    process.send(signal.SIGSTOP)
    until(lambda: is_stopped(process.pid), 5, "its stop")


def waited_ms(stack: Stack, number: int) -> int:
    """From the submission to the claim, by the server's clock."""
    stack.await_state(number, "running", "succeeded")
    view = stack.api.job(number).view
    assert view.started_ms and view.submitted_ms
    return view.started_ms - view.submitted_ms


# --- who was woken does not come -------------------------------------------------------------------------------


def test_a_woken_worker_that_dies_at_once(stack: Stack) -> None:
    """Given two idle workers, when the one that was woken dies before it asks, the other takes the job."""
    stack.serve(15_000)
    dying, other = start_workers(stack, "2x24G", DIES_WOKEN, "")
    process = process_of(stack, dying)
    be_next(stack, dying)
    number = stack.queue("true")
    until(lambda: not process.alive(), 5, "its death")
    assert waited_ms(stack, number) <= BOUND_MS
    assert stack.job(number)["worker"] == other
    assert stack.job(number)["losses"] == 0  # it was never given out before


def test_workers_that_stand_still_while_idle(stack: Stack) -> None:
    """Given the two that would be woken first stopped, jobs go to the third; continued, they serve as before."""
    stack.serve(15_000)
    *still, third = start_workers(stack, "3x24G", "", "", "")
    processes = [process_of(stack, name) for name in still]
    be_next(stack, *still)
    for process in processes:
        stop(process)
    numbers = [stack.queue("true") for _ in range(2)]
    assert max(waited_ms(stack, number) for number in numbers) <= BOUND_MS
    assert {stack.job(number)["worker"] for number in numbers} == {third}
    for process in processes:
        process.send(signal.SIGCONT)
    until(lambda: set(idle(stack)) == {*still, third}, BOUND_MS / 1000, "all three idle")
    be_next(stack, *still)
    flag = stack.root / "flag"
    again = [stack.queue(*until_exists(flag)) for _ in range(3)]
    assert max(waited_ms(stack, number) for number in again) <= WAKE_MS
    assert {stack.job(number)["worker"] for number in again} == {*still, third}
    assert {stack.job(number)["losses"] for number in again} == {0}


def test_a_worker_killed_while_it_stands_still(stack: Stack) -> None:
    """A pause that ends in a kill: what it was woken for was never given out."""
    stack.serve(15_000)
    still, other = start_workers(stack, "2x24G", "", "")
    process = process_of(stack, still)
    be_next(stack, still)
    stop(process)
    number = stack.queue("true")
    until(lambda: stack.api.redis.exists(stack.api.broker.keys.wake(still)) == 0, 5, "its token taken")
    process.send(signal.SIGKILL)
    assert waited_ms(stack, number) <= BOUND_MS
    assert (stack.job(number)["worker"], stack.job(number)["losses"]) == (other, 0)


# --- who is woken ----------------------------------------------------------------------------------------------


def test_shapes_nobody_has_seen_start_at_once(stack: Stack) -> None:
    stack.serve(15_000)
    start_workers(stack, "1x24G,1x8G", "", "")
    sizes = ["100M", "1.5G", "3G", "7.9G", "8.1G", "13G", "23.9G"]
    waited = []
    for size in sizes:
        number = stack.queue("true", gpu_memory=size)
        stack.await_state(number, "succeeded")
        waited.append(waited_ms(stack, number))
        until(lambda: len(idle(stack)) == 2, 5, "both idle")
    assert max(waited) <= WAKE_MS and statistics.median(waited) <= 100, dict(zip(sizes, waited, strict=True))


def questions(stack: Stack) -> dict[str, int]:
    """How often each worker has asked for a job."""
    found: Any = stack.api.redis.hgetall(stack.api.broker.keys.claims)
    return {name.decode(): int(last.partition(b":")[0]) for name, last in found.items()}


def test_no_herd(stack: Stack) -> None:
    """Given eight idle workers, when a job comes, then one of them asks; with three at once, three and two in vain."""
    stack.serve(600_000)
    names = start_workers(stack, "8x24G", *[NEVER_POLLS] * 8)
    flag = stack.root / "flag"
    start = {name: count + 1 for name, count in questions(stack).items()}
    for name in names:  # idle entries are believed for 12 s
        stack.api.redis.lpush(stack.api.broker.keys.wake(name), "*")
    until(lambda: questions(stack) == start and len(idle(stack)) == 8, 10, "all asked once more, and are idle")

    numbers, workers = [], set[str]()
    for _ in range(3):
        numbers.append(stack.queue(*until_exists(flag)))
        assert waited_ms(stack, numbers[-1]) <= WAKE_MS
        workers.add(stack.job(numbers[-1])["worker"])
        assert set(idle(stack)) == set(names) - workers
        assert questions(stack) == {name: count + (name in workers) for name, count in start.items()}

    at_once = [job.number for job in stack.api.submit_many([{"argv": until_exists(flag)}] * 3)]
    assert max(waited_ms(stack, number) for number in at_once) <= WAKE_MS
    workers |= {stack.job(number)["worker"] for number in at_once}
    assert len(workers) == 6
    until(lambda: set(idle(stack)) == set(names) - workers, 5, "the others idle")
    # Who takes a job and sees more waiting wakes one more, who may be too late: the others take them meanwhile.
    assert sum(questions(stack).values()) - sum(start.values()) in (6, 7, 8)

    before = questions(stack)
    flag.touch()
    for number in (*numbers, *at_once):
        stack.await_state(number, "succeeded")
    until(lambda: len(idle(stack)) == 8, 10, "all idle")
    # Each end carries one question with it; the end of the runner may cut the wait after it short, once.
    more = {name: count - before[name] for name, count in questions(stack).items()}
    assert {name for name, count in more.items() if count} == workers and max(more.values()) <= 2, more


# --- what time brings ------------------------------------------------------------------------------------------


def fails_once(stack: Stack, delay: str) -> int:
    """A job whose first run fails; it is scheduled then."""
    mark = stack.root / f"failed-{delay}"
    number = stack.queue("sh", "-c", f"[ -e {mark} ] || ! touch {mark}", retries=1, retry_delay=delay)
    stack.await_state(number, "scheduled")
    return number


def late_ms(stack: Stack, number: int, event: str) -> int:
    """From the moment when a job was due to its last event of this name, by the server's clock."""
    entries: Any = stack.api.redis.xrevrange(stack.api.broker.keys.events)
    wanted = {b"event": event.encode(), b"job": str(number).encode()}
    at = next(entry for entry, fields in entries if wanted.items() <= fields.items())
    due = stack.api.job(number).view.due_ms
    assert due
    return int(at.partition(b"-")[0]) - due


def test_a_retry_is_promoted_while_all_workers_are_busy(stack: Stack) -> None:
    """Given one worker, when a retry becomes due during a long job, then it is pending within a beat."""
    stack.serve(2000)
    start_workers(stack, "1x24G", "")
    number, flag = fails_once(stack, "1s"), stack.root / "flag"
    long = stack.queue(*until_exists(flag))
    stack.await_state(long, "running")
    assert stack.job(number)["state"] == "scheduled"
    stack.await_state(number, "pending", seconds=5)
    beat_ms = stack.api.broker.settings().beat_ms
    assert 0 <= late_ms(stack, number, "promote") <= beat_ms + 300
    assert stack.job(long)["state"] == "running"
    flag.touch()
    assert stack.await_state(number, "succeeded")["attempts"] == 2


def test_a_retry_starts_when_it_is_due_on_an_idle_device(stack: Stack) -> None:
    """Beside a busy one; under the default lease, so that no beat and no poll comes so soon."""
    stack.serve(15_000)
    start_workers(stack, "2x24G", "", "")
    flag = stack.root / "flag"
    stack.await_state(stack.queue(*until_exists(flag)), "running")
    late = []
    for delay in ("300ms", "400ms", "500ms", "1100ms", "1200ms"):
        number = fails_once(stack, delay)
        assert stack.await_state(number, "succeeded", seconds=3)["attempts"] == 2
        late.append(late_ms(stack, number, "claim"))
    assert min(late) >= 0 and statistics.median(late) <= 100 and max(late) <= WAKE_MS, late


def test_a_retry_of_which_the_idle_worker_does_not_know(stack: Stack) -> None:
    """Who saw it fail has another job by then: the other one's poll finds it."""
    stack.serve(15_000)
    other, failing = start_workers(stack, "2x24G", "", "")
    be_next(stack, failing)
    number, flag = fails_once(stack, "300ms"), stack.root / "flag"
    be_next(stack, failing)
    long = stack.queue(*until_exists(flag))
    assert stack.await_state(long, "running")["worker"] == failing
    assert stack.await_state(number, "succeeded")["worker"] == other
    assert late_ms(stack, number, "claim") <= BOUND_MS


# --- connections that say nothing ------------------------------------------------------------------------------


@contextmanager
def behind(folder: Path, where: str) -> Iterator[tuple[Stack, Cutter]]:
    """A home whose worker reaches its server through a proxy; the test's own client reaches it directly."""
    with (
        RealServer(None, folder / "server").start() as server,
        Cutter(server.socket, server.socket.with_name("cut.sock") if where == "socket" else None) as cutter,
        ended(Stack(folder / "home", {"FOXQUEUE_URL": cutter.url})) as stack,
    ):
        stack.api = Client(url=server.url, home=str(stack.home))
        start_workers(stack, "1x24G", "")
        yield stack, cutter


@pytest.mark.parametrize("where", ["port", "socket"])
def test_a_deaf_listener_is_made_up_for_by_the_poll(tmp_path: Path, where: str) -> None:
    """K2: the blocked BLPOP waits on a connection over which nothing comes any more."""
    with behind(tmp_path, where) as (stack, cutter):
        until(lambda: cutter.speaking(b"BLPOP"), 5, "the listener")
        assert cutter.fall_silent(b"BLPOP") == 1
        assert waited_ms(stack, stack.queue("true")) <= BOUND_MS
        until(lambda: cutter.speaking(b"BLPOP"), 2 * BLOCK_S + 3, "the listener again")
        until(lambda: len(idle(stack)) == 1, BOUND_MS / 1000, "an idle worker")
        assert waited_ms(stack, stack.queue("true")) <= WAKE_MS


@pytest.mark.soak
@pytest.mark.parametrize("where", ["port", "socket"])
def test_a_worker_whose_connections_all_fall_silent(tmp_path: Path, where: str) -> None:
    """K2: every connection is half open; new ones are served."""
    with behind(tmp_path, where) as (stack, cutter):
        until(lambda: cutter.speaking(b"BLPOP"), 5, "the listener")
        assert cutter.fall_silent() >= 2
        number = stack.queue("true")
        # The next poll finds out, after the 5 s for which it waits for an answer, and asks again within a second.
        assert waited_ms(stack, number) <= BOUND_MS + 6000
        stack.await_state(number, "succeeded")
        assert (stack.job(number)["attempts"], stack.job(number)["losses"]) == (1, 0)
        until(lambda: cutter.speaking(b"BLPOP"), 2 * BLOCK_S + 3, "the listener again")
        until(lambda: len(idle(stack)) == 1, BOUND_MS / 1000, "an idle worker")
        assert waited_ms(stack, stack.queue("true")) <= WAKE_MS


def test_blocking_clients_wait_longer_than_they_block(tmp_path: Path) -> None:
    """K2: a finite block, a longer time-out, and keepalive on a port."""
    with (
        RealServer(None, tmp_path / "server").start() as server,
        Cutter(server.socket, None) as cutter,
    ):
        broker = Broker.connect(cutter.url, "test")
        for client, least in ((broker.blocking(BLOCK_S), BLOCK_S), (broker.redis, 0)):
            connection: Any = client.connection_pool.get_connection()
            assert connection.socket_keepalive and connection.socket_connect_timeout <= 5
            assert least < connection.socket_timeout <= 2 * BLOCK_S
            client.connection_pool.release(connection)
            client.close()
        broker.close()


@pytest.mark.parametrize("how", ["killed", "stopped", "emptied"])
def test_a_server_restarted_while_all_are_idle(tmp_path: Path, how: str) -> None:
    """One that has lost its data knows of nobody idle: workers ask when it answers again."""
    with (
        RealServer(None, tmp_path / "server").start() as server,
        ended(Stack(tmp_path / "home", {"FOXQUEUE_URL": server.url})) as stack,
    ):
        start_workers(stack, "2x24G", "", "")
        for _ in range(3):
            if how == "emptied":
                server.kill()
                shutil.rmtree(server.directory / "appendonlydir")
                server.start()
            else:
                server.restart(crash=how == "killed")
            assert waited_ms(stack, stack.queue("true")) <= 2000
            until(lambda: len(idle(stack)) == 2, BOUND_MS / 1000, "both idle")
