"""Waiting in line for a device."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from leases_place import gpus, in_line, is_free, leases, lock_of, start
from nvml_stub import Child
from queue_driver import Queue
from servers import RealServer
from wait import until

from foxqueue.errors import GpuAlreadyLeased, InsufficientMemory, LeaseError, NoGpuAvailable, ServerUnavailable
from foxqueue.leases import GpuLeases, Lease

__all__ = ["gpus", "leases", "start"]

Start = Callable[..., Child]


class Waiting(threading.Thread):
    """A thread that acquires; ``got`` is the lease or the error, ``at`` when it came."""

    def __init__(self, acquire: Callable[[], Lease]) -> None:
        super().__init__(daemon=True)
        self._acquire = acquire
        self.got: Any = None
        self.at = 0.0
        self.start()

    def run(self) -> None:
        try:
            self.got = self._acquire()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.got = error
        self.at = time.monotonic()


def stands(queue: Queue, device: str, count: int = 1) -> None:
    until(lambda: in_line(queue, device) == count, 10, f"{count} in line")
    until(lambda: queue.broker.redis.info("clients")["blocked_clients"] >= count, 10, "blocked waiters", every=0.002)


@pytest.mark.soak
def test_who_waits_has_the_device_soon_after_its_release(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    took = []
    for _ in range(20):
        lease = leases.acquire(0)
        waiting = Waiting(lambda: leases.acquire(0, timeout=30))
        stands(queue, gpus[0])
        began = time.monotonic()
        lease.release()
        waiting.join(10)
        took.append(waiting.at - began)
        waiting.got.release()
        assert in_line(queue, gpus[0]) == 0
    assert sorted(took)[10] < 0.05  # the benchmark is stricter, on a quiet machine


def test_they_come_by_priority_then_by_time(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    lease = leases.acquire(0)
    came: list[str] = []

    def acquire(name: str, priority: int) -> Callable[[], Lease]:
        def run() -> Lease:
            with leases.acquire(0, timeout=60, priority=priority) as mine:
                came.append(name)
            return mine

        return run

    threads = []
    for count, (name, priority) in enumerate([("a", 5), ("b", 5), ("c", 9), ("d", 0)], 1):
        threads.append(Waiting(acquire(name, priority)))
        stands(queue, gpus[0], count)
    lease.release()
    for thread in threads:
        thread.join(20)
    assert came == ["c", "a", "b", "d"]


def test_time_runs_out_and_the_line_is_left(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    leases.acquire(0, holder="first")
    began = time.monotonic()
    with pytest.raises(GpuAlreadyLeased, match="first"):
        leases.acquire(0, timeout=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert in_line(queue, gpus[0]) == 0
    assert not queue.broker.redis.keys("*waiter:*")
    for device in (1, 2):
        leases.acquire(device)
    with pytest.raises(NoGpuAvailable):
        leases.acquire_any(timeout=0.2)
    assert [in_line(queue, gpu) for gpu in gpus] == [0, 0, 0]


def test_any_takes_the_first_that_comes_free(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    held = [leases.acquire(device) for device in range(3)]
    waiting = Waiting(lambda: leases.acquire_any(timeout=30, memory="9G"))
    until(lambda: [in_line(queue, gpu) for gpu in gpus] == [0, 1, 1], 10, "both lines")
    held[0].release()
    held[2].release()
    waiting.join(10)
    assert waiting.got.gpu_uuid == gpus[2]
    assert [in_line(queue, gpu) for gpu in gpus] == [0, 0, 0]


def test_many_wait_until_all_are_free_at_once(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    held = [leases.acquire(device) for device in range(3)]
    waiting = Waiting(lambda: leases.acquire_many(2, timeout=30))
    until(lambda: [in_line(queue, gpu) for gpu in gpus] == [1, 1, 1], 10, "all lines")
    held[0].release()
    with leases.acquire(0, timeout=5):  # it keeps none meanwhile
        assert waiting.got is None
    held[1].release()
    waiting.join(10)
    assert sorted(waiting.got.gpu_uuids) == sorted(gpus[:2])
    assert [in_line(queue, gpu) for gpu in gpus] == [0, 0, 0]


def test_ctrl_c_leaves_the_line(start: Start, leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    leases.acquire(0)
    child = start()
    child.run(
        "def interrupt():\n"
        "    while not leases._core.broker.redis.keys('*lease_waiting*'): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        "try:\n    leases.acquire(0)\nexcept KeyboardInterrupt:\n    came = True"
    )
    assert child.ask("came") and in_line(queue, gpus[0]) == 0


def test_who_died_in_line_holds_nobody_up(start: Start, leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    lease = leases.acquire(0)
    child = start()
    child.run("threading.Thread(target=leases.acquire, args=(0,), daemon=True).start()")
    stands(queue, gpus[0])
    waiting = Waiting(lambda: leases.acquire(0, timeout=30))
    stands(queue, gpus[0], 2)
    child.process.kill()
    child.process.wait()
    began = time.monotonic()
    lease.release()
    waiting.join(10)
    assert isinstance(waiting.got, Lease) and waiting.at - began < 4
    waiting.got.release()


def test_a_holder_that_dies_with_its_helper_is_noticed(
    start: Start, leases: GpuLeases, queue: Queue, gpus: list[str]
) -> None:
    child = start()
    child.run("lease = leases.acquire(0)")
    helper = child.ask("leases._renewing.helper")
    waiting = Waiting(lambda: leases.acquire(0, timeout=30))
    stands(queue, gpus[0])
    os.kill(helper, signal.SIGKILL)
    child.process.kill()
    began = time.monotonic()
    waiting.join(10)
    assert isinstance(waiting.got, Lease) and waiting.at - began < 4
    waiting.got.release()


@pytest.mark.soak
@pytest.mark.parametrize("foreign", [False, True])
def test_called_while_the_lock_is_taken_it_comes_when_it_is_free(
    leases: GpuLeases, start: Start, queue: Queue, gpus: list[str], tmp_path: Path, foreign: bool
) -> None:
    lease = leases.acquire(0)
    child = start()  # with a lock that the server knows nothing of
    child.run(
        "from foxqueue.locks import DeviceLock\nfrom pathlib import Path\n"
        f"lock = DeviceLock({gpus[0]!r}, 'gpu', [Path({str(lock_of(tmp_path, gpus[0]).paths[0].parent)!r})])"
    )
    if foreign:
        child.run(
            "from foxqueue.processes import ProcessId\n"
            "record = {'home': '/other', 'namespace': 'x', 'lease': '00ff', 'fence': 7}\n"
            "record['worker'] = ProcessId.of().to_dict()"
        )
    waiting = Waiting(lambda: leases.acquire(0, timeout=30))
    stands(queue, gpus[0])
    child.run(
        "import threading\nready = threading.Event()\n"
        "def take():\n"
        "    ready.set()\n"
        "    while not lock.acquire(): pass\n"
        + ("    lock.write(record)\n" if foreign else "    lock.write({'home': 'x'})\n")
        + "threading.Thread(target=take).start(); ready.wait()"
    )
    lease.release()
    until(lambda: waiting.got or child.ask("lock.held"), 5, "one of the two")
    if waiting.got is None:
        time.sleep(1.1)  # longer than a turn
        assert waiting.got is None
        if foreign:
            until(lambda: in_line(queue, gpus[0]) == 0, 5, "a step out of the line")
        child.run("lock.write({'home': 'x'}); lock.release()")
    waiting.join(10)
    assert isinstance(waiting.got, Lease)
    waiting.got.release()


@pytest.mark.soak
def test_redis_may_go_away_while_it_waits(leases: GpuLeases, server: RealServer, queue: Queue, gpus: list[str]) -> None:
    lease = leases.acquire(0)
    waiting = Waiting(lambda: leases.acquire(0, timeout=30))
    stands(queue, gpus[0])
    server.restart()
    queue.broker.redis.ping()
    stands(queue, gpus[0])
    lease.release()
    waiting.join(15)
    assert isinstance(waiting.got, Lease)
    waiting.got.release()


def test_while_redis_is_away_a_time_runs_out(leases: GpuLeases, server: RealServer, gpus: list[str]) -> None:
    leases.acquire(0).release()
    server.stop()
    try:
        began = time.monotonic()
        with pytest.raises(ServerUnavailable):
            leases.acquire(0, timeout=0)
        with pytest.raises(ServerUnavailable):
            leases.acquire(0, timeout=0.3)
        assert 0.3 <= time.monotonic() - began < 10
    finally:
        server.start()
    leases.acquire(0, timeout=5).release()


@pytest.mark.soak
def test_whom_it_waits_for_is_told(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    told: list[LeaseError] = []
    first = leases.acquire(0, holder="first")
    leases.acquire(1), leases.acquire(2)
    waiting = Waiting(lambda: leases.acquire_any(timeout=30, on_wait=told.append))
    stands(queue, gpus[0])
    until(lambda: told, 5, "what is told")
    assert isinstance(told[0], NoGpuAvailable) and told[0].holders[gpus[0]].label == "first"
    first.release()
    waiting.join(10)
    waiting.got.release()
    assert len(told) == 1


def test_a_waiter_is_ranked_with_jobs(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    lease = leases.acquire(0)
    number = queue.enqueue(priority=9)
    waiting = Waiting(lambda: leases.acquire(0, timeout=60))
    stands(queue, gpus[0])
    worker = queue.worker("w0", gpus[0])
    assert worker.ask().word == "taken"
    lease.release()
    run = worker.claim()  # the job ranks first
    assert run.number == number and waiting.got is None
    later = queue.enqueue(priority=5)
    queue.complete(run)
    waiting.join(10)  # now the waiter does, whatever the worker asks
    assert isinstance(waiting.got, Lease)
    assert worker.ask().word == "taken"
    waiting.got.release()
    assert worker.claim().number == later


def test_memory_that_others_use_is_waited_for_in_vain(leases: GpuLeases, gpus: list[str]) -> None:
    with pytest.raises(InsufficientMemory) as caught:
        leases.acquire(0, memory="20G", timeout=None)  # never: so it does not wait for ever
    assert caught.value.ever is False


@pytest.mark.soak
def test_many_waiters_cost_the_server_next_to_nothing(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    first = leases.acquire(0)

    def once() -> Lease:
        with leases.acquire(0, timeout=60) as lease:
            return lease

    threads = [Waiting(once) for _ in range(30)]
    stands(queue, gpus[0], 30)
    redis = queue.broker.redis

    def commands() -> int:
        return int(redis.info("stats")["total_commands_processed"])

    before, began = commands(), time.monotonic()
    until(lambda: time.monotonic() - began > 3, 5, "three seconds")
    assert commands() - before <= 6  # nothing but what is due after 25 s, and our own question
    first.release()
    for thread in threads:
        thread.join(20)
        assert isinstance(thread.got, Lease)
    assert is_free(queue, gpus[0])
