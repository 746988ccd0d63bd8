"""GPU leases for asyncio: the same steps as in `blocking`, and nothing of them holds the event loop up.

What takes a while (scripts, looks at a GPU) runs in a thread, a call from the line is heard by the loop itself. A task
that is cancelled leaves its line, and a grant that came at that moment is given back.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from foxqueue.errors import LeaseLost, ServerError
from foxqueue.holders import Holder
from foxqueue.leases import figures
from foxqueue.leases.common import Common, check_by, takes_lease
from foxqueue.leases.core import Core
from foxqueue.leases.ear import Ear
from foxqueue.leases.effects import Ask, Listen, Local, Pause, Read, Step, Steps
from foxqueue.leases.figures import ActiveHolder, GpuMemoryInfo, GpuStatistics
from foxqueue.leases.grant import Grant, release
from foxqueue.leases.lease import LeaseBase
from foxqueue.leases.steps import Acquisition
from foxqueue.leases.wish import GpuRef, OnLost, Options, Wish, check_ref, wish, wished

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


class AsyncLease(LeaseBase):
    """As of :class:`foxqueue.leases.lease.LeaseBase`; leaving an ``async with`` block releases it."""

    async def release(self) -> None:
        """Give it back; see :meth:`foxqueue.leases.blocking.Lease.release`. It is over even if this is cancelled."""
        self._leave()
        told = not self.gpu_uuids
        try:
            if not told:
                await drive(self._core, release(self._core.broker, self.grant))
                told = True
        except ServerError as error:
            self._untold(error)
        finally:
            self._over(told)

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pid == os.getpid() and not self._released:
            await self.release()


async def drive(core: Core, steps: Steps[T]) -> T:
    """Do what steps ask for. Cancelled, it first does what they ask for to clean up."""
    doing = _Doing(core)
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                step = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                value, error = await doing.do(step), None
            except BaseException as problem:  # noqa: BLE001 - it cleans up, and raises it again
                value, error = None, problem
    finally:
        doing.close()


class _Doing:
    """Does steps."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ear: Ear | None = None

    async def do(self, step: Step) -> Any:
        """Do one."""
        match step:
            case Ask(calls):
                return await _in_thread(self._core.broker.send, *calls)
            case Read(commands):
                return await _in_thread(self._core.broker.connection.answers, commands, "leases")
            case Local(call):
                return await _in_thread(call)
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Listen(key, seconds):
                return await self._listen(key, seconds)

    async def _listen(self, key: str, seconds: float) -> str | None:
        ear = self._ear = self._ear or Ear(self._core.broker.connection, key)
        now = time.monotonic()
        link = ear.ask(now) if ear.open else await _in_thread(ear.ask, now)
        heard = ear.take(0)
        if heard is not None or seconds <= 0:
            return heard
        loop, there = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(link.fileno(), there.set)
        try:
            async with asyncio.timeout(seconds):
                await there.wait()
        except TimeoutError:
            return None
        finally:
            loop.remove_reader(link.fileno())
        return ear.take(0)

    def close(self) -> None:
        """Hear no more."""
        if self._ear is not None:
            self._ear.close()


async def _in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Call it in a thread. A thread cannot be cancelled: who cancels waits for its end, which has a time-out."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                continue  # asked again: the answer decides what is left behind
        if not task.cancelled():
            task.exception()
        raise


class AsyncGpuLeases(Common):
    """Leases of GPUs for asyncio.

    Args:
        url, namespace, gpus, host, home: as of :class:`foxqueue.leases.blocking.GpuLeases`.
        lost: called with a LeaseLost in the event loop when a lease is lost; may be a coroutine function.

    Raises:
        InvalidInput: something configured or given is malformed. The server is asked by the first call.
    """

    def __init__(
        self,
        url: str | None = None,
        namespace: str | None = None,
        gpus: Any = None,
        host: str = "this",
        *,
        lost: OnLost | None = None,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(url, namespace, gpus, host, lost, home)
        self._opening: asyncio.Lock | None = None

    async def __aenter__(self) -> Self:
        await self._ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release what this process holds by this object, and close its connections."""
        for lease in self.leases():
            await lease.__aexit__(None, None, None)
        await _in_thread(self._close)

    async def _ready(self) -> Core:
        if self._made is None:
            self._opening = self._opening or asyncio.Lock()
            async with self._opening:
                await _in_thread(self._open)
        return self._core

    # --- acquiring -------------------------------------------------------------------------------------

    async def acquire(self, gpu: GpuRef, **options: Unpack[Options]) -> AsyncLease:
        """Acquire one device; see :meth:`foxqueue.leases.blocking.GpuLeases.acquire`."""
        check_ref(gpu)  # None would be any
        return await self._acquire(wished(gpu, 1, options))

    async def acquire_any(self, **options: Unpack[Options]) -> AsyncLease:
        """Acquire any one device; see :meth:`foxqueue.leases.blocking.GpuLeases.acquire_any`."""
        return await self._acquire(wished(None, 1, options))

    async def acquire_many(self, count: int, **options: Unpack[Options]) -> AsyncLease:
        """Acquire several devices, all or none; see :meth:`foxqueue.leases.blocking.GpuLeases.acquire_many`."""
        return await self._acquire(wished(None, count, options))

    async def _acquire(self, wanted: Wish) -> AsyncLease:
        core = await self._ready()
        task = asyncio.current_task()
        asked = task.cancelling() if task else 0
        grant: Grant = await drive(core, Acquisition(core, wanted).run())
        renewals = self._renewals() if grant.spots else None
        lost = wanted.lost or self._lost
        lease = AsyncLease(core, grant, renewals, None if lost is None else _in_loop(lost))
        self._keep(lease)
        if task and task.cancelling() > asked:  # the cancellation came with the grant
            await lease.release()
            raise asyncio.CancelledError
        return lease

    def leased(self, gpu: GpuRef | None = None, count: int = 1, **options: Unpack[Options]) -> Callable[[F], F]:
        """A decorator for coroutine functions; see :meth:`foxqueue.leases.blocking.GpuLeases.leased`."""
        wanted = wish(gpu, count, **options)

        def decorate(function: F) -> F:
            gets = takes_lease(function, coroutine=True)

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                async with await self._acquire(wanted) as lease:
                    return await function(*args, **({"lease": lease} if gets else {}), **kwargs)

            return run  # type: ignore[return-value]

        return decorate

    # --- giving back -----------------------------------------------------------------------------------

    def leases(self) -> list[AsyncLease]:
        """The leases that this process holds by this object."""
        held = [] if self._made is None else self._made.leases()
        return [lease for lease in held if isinstance(lease, AsyncLease)]

    async def release(self, gpu: GpuRef, holder: str | None = None) -> None:
        """Release this process's lease of a device; see :meth:`foxqueue.leases.blocking.GpuLeases.release`."""
        core = await self._ready()
        place = await drive(core, figures.place_of(core, gpu))
        lease = self._held_by(place.uuid, holder)
        if isinstance(lease, AsyncLease):
            return await lease.release()
        raise await drive(core, self._not_held(place, holder))

    async def force_release(self, gpu: GpuRef, by: str | None = None) -> Holder | None:
        """Take a device from whoever has it; see :meth:`foxqueue.leases.blocking.GpuLeases.force_release`."""
        who = check_by(by)
        return await drive(await self._ready(), self._force(gpu, who))

    async def cleanup_all(self) -> int:
        """Release all; see :meth:`foxqueue.leases.blocking.GpuLeases.cleanup_all`."""
        core, own = await self._ready(), self.leases()
        for lease in own:
            await lease.__aexit__(None, None, None)
        return len(own) + await drive(core, self._bury())

    # --- questions -------------------------------------------------------------------------------------

    async def memory(self, gpu: GpuRef) -> GpuMemoryInfo:
        """Memory of a device, in MiB; see :meth:`foxqueue.leases.blocking.GpuLeases.memory`."""
        core = await self._ready()
        return await drive(core, figures.memory(core, gpu))

    async def utilization(self, gpu: GpuRef) -> int:
        """How busy a device is, percent; see :meth:`foxqueue.leases.blocking.GpuLeases.utilization`."""
        core = await self._ready()
        return await drive(core, figures.utilization(core, gpu))

    async def statistics(self) -> GpuStatistics:
        """How many devices there are, are leased, and could be acquired."""
        core = await self._ready()
        return await drive(core, figures.statistics(core))

    async def active(self) -> list[ActiveHolder]:
        """Who has devices now, by leases and by jobs."""
        core = await self._ready()
        return await drive(core, figures.active(core))

    async def counters(self) -> dict[str, int]:
        """Counts of the namespace; see :func:`foxqueue.leases.figures.counters`."""
        core = await self._ready()
        return await drive(core, figures.counters(core))


_tasks: set[asyncio.Future[Any]] = set()  # the loop itself keeps only weak references


def _in_loop(lost: OnLost) -> OnLost:
    """Have a callback called in the loop that runs now."""
    loop = asyncio.get_running_loop()

    def call(error: LeaseLost) -> None:
        found = lost(error)
        if inspect.isawaitable(found):
            task = asyncio.ensure_future(found)
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)

    def tell(error: LeaseLost) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call, error)

    return tell
