"""Leases for asyncio: the same devices, and an event loop that is never held up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from leases_place import gpus, in_line, is_free, leases, start
from nvml_stub import Child
from queue_driver import Queue
from servers import RealServer

from foxqueue.errors import GpuAlreadyLeased, InvalidInput, LeaseError, LeaseLost, LeaseReleased, NotLeaseHolder
from foxqueue.leases import AsyncGpuLeases, AsyncLease, GpuLeases

__all__ = ["gpus", "leases", "start"]

Use = Callable[[Callable[[AsyncGpuLeases], Awaitable[None]]], None]


@pytest.fixture
def use(server: RealServer, gpus: list[str], tmp_path: Path) -> Use:
    """Run a coroutine function with AsyncGpuLeases."""

    def run(body: Callable[[AsyncGpuLeases], Awaitable[None]]) -> None:
        async def main() -> None:
            async with AsyncGpuLeases(server.url, "test", home=tmp_path) as made:
                await body(made)

        asyncio.run(main())

    return run


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def test_it_does_all_that_the_other_one_does(use: Use, leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    async def body(mine: AsyncGpuLeases) -> None:
        async with await mine.acquire("sim:0", holder="service") as lease:
            lease.check()
            assert lease.gpu_uuid == gpus[0] and lease.env()["CUDA_VISIBLE_DEVICES"] == ""
            assert [one.holder.label for one in leases.active()] == ["service"]
            assert [one.holder.label for one in await mine.active()] == ["service"]
            assert (await mine.statistics()).leased == 1
            with pytest.raises(GpuAlreadyLeased, match="service"):
                await mine.acquire(0, timeout=0)
            with pytest.raises(NotLeaseHolder):
                await mine.release(0, "another")
        assert is_free(queue, gpus[0])
        with pytest.raises(LeaseReleased):
            lease.check()
        many = await mine.acquire_many(2, memory="9G")
        assert many.gpu_uuids == (gpus[1], gpus[2])
        assert (await mine.memory(0)).total == 8192
        assert (await mine.counters())["acquired"] >= 2
        assert await mine.cleanup_all() == 1
        await mine.acquire(1, holder="x")
        await mine.release(1, "x")
        await mine.acquire_any()

    use(body)
    assert all(is_free(queue, gpu) for gpu in gpus)


def test_the_loop_goes_on_while_it_waits(use: Use, leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    held = leases.acquire(0)

    async def body(mine: AsyncGpuLeases) -> None:
        longest, last, over = 0.0, time.monotonic(), False

        async def tick() -> None:
            nonlocal longest, last
            while not over:
                await asyncio.sleep(0.005)
                now = time.monotonic()
                longest, last = max(longest, now - last), now

        ticking = asyncio.ensure_future(tick())
        task = asyncio.ensure_future(mine.acquire(0, timeout=30))
        await until(lambda: in_line(queue, gpus[0]) == 1)
        await asyncio.sleep(1.2)  # over one look at the lock
        assert not task.done()
        await asyncio.to_thread(held.release)
        lease = await asyncio.wait_for(task, 10)
        over = True
        await ticking
        assert longest < 0.3  # a block of the server's alone would be 25 s
        await lease.release()

    use(body)


def test_a_cancelled_task_leaves_its_line(use: Use, leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    leases.acquire(0)

    async def body(mine: AsyncGpuLeases) -> None:
        task = asyncio.ensure_future(mine.acquire(0))
        await until(lambda: in_line(queue, gpus[0]) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert in_line(queue, gpus[0]) == 0 and mine.leases() == []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await mine.acquire(0)
        assert in_line(queue, gpus[0]) == 0

    use(body)


@pytest.mark.parametrize("after", [0, 1, 3, 8])
def test_cancelled_at_any_moment_nothing_is_left(use: Use, queue: Queue, gpus: list[str], after: int) -> None:
    async def body(mine: AsyncGpuLeases) -> None:
        for more in range(6):
            task = asyncio.ensure_future(mine.acquire(0, timeout=5))
            await asyncio.sleep(after * 0.0007 + more * 0.0001)
            task.cancel()
            try:
                await (await task).release()
            except asyncio.CancelledError:
                assert mine.leases() == []
            assert is_free(queue, gpus[0])
        await (await mine.acquire(0, timeout=0)).release()

    use(body)


@pytest.mark.soak
def test_many_tasks_share_few_devices(use: Use, gpus: list[str]) -> None:
    async def body(mine: AsyncGpuLeases) -> None:
        busy: dict[str, int] = dict.fromkeys(gpus, 0)

        async def work() -> None:
            async with await mine.acquire_any(timeout=60) as lease:
                assert lease.gpu_uuid is not None
                busy[lease.gpu_uuid] += 1
                assert busy[lease.gpu_uuid] == 1
                await asyncio.sleep(0.002)
                busy[lease.gpu_uuid] -= 1

        await asyncio.gather(*(work() for _ in range(24)))

    use(body)


def test_a_loss_is_told_in_the_loop(use: Use, queue: Queue, leases: GpuLeases) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, "beat_ms", 100)
    heard: list[tuple[LeaseLost, Any]] = []

    async def told(error: LeaseLost) -> None:
        await asyncio.sleep(0)
        heard.append((error, asyncio.get_running_loop()))

    async def body(mine: AsyncGpuLeases) -> None:
        lease = await mine.acquire(0, lost=told)
        await mine.force_release(0, by="root")
        await until(lambda: heard)
        assert heard[0][1] is asyncio.get_running_loop() and "root" in str(heard[0][0])
        with pytest.raises(LeaseLost):
            lease.check()
        await lease.release()

    use(body)


def test_coroutine_functions_are_decorated(use: Use, queue: Queue, gpus: list[str]) -> None:
    async def body(mine: AsyncGpuLeases) -> None:
        @mine.leased(0)
        async def work(number: int, lease: AsyncLease | None = None) -> int:
            assert lease is not None and not is_free(queue, gpus[0])
            return number

        assert await work(3) == 3 and is_free(queue, gpus[0])
        with pytest.raises(InvalidInput, match="use GpuLeases"):
            mine.leased()(lambda: None)  # type: ignore[type-var]

    use(body)


def test_what_is_malformed_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        AsyncGpuLeases("redis://nobody.invalid", gpus=[], home=tmp_path)
    mine = AsyncGpuLeases("redis://nobody.invalid", home=tmp_path)
    with pytest.raises(InvalidInput):
        asyncio.run(_first(mine.acquire(0, memory=0)))


async def _first(call: Coroutine[Any, Any, Any]) -> Any:
    return await call


@pytest.mark.soak
def test_a_program_that_ends_releases_all(
    start: Callable[..., Child], server: RealServer, queue: Queue, gpus: list[str], tmp_path: Path
) -> None:
    child = start()
    child.run(
        "import asyncio\nfrom foxqueue.leases import AsyncGpuLeases\n"
        f"mine = AsyncGpuLeases({server.url!r}, 'test', home={str(tmp_path)!r})\n"
        "lease = asyncio.run(mine.acquire(0))"
    )
    assert not is_free(queue, gpus[0])
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.process.wait(20) == 0
    assert is_free(queue, gpus[0])


def test_closed_ones_say_so(use: Use) -> None:
    async def body(mine: AsyncGpuLeases) -> None:
        await mine.close()
        with pytest.raises(LeaseError, match="closed"):
            await mine.acquire(0)

    use(body)


@pytest.mark.soak
def test_in_a_fork_it_is_another(use: Use) -> None:
    async def body(mine: AsyncGpuLeases) -> None:
        async with await mine.acquire(0):
            pid = os.fork()
            if pid == 0:
                os._exit(0 if mine.leases() == [] else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    use(body)
