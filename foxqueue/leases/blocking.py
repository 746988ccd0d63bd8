"""GPU leases for programs with threads, or none: calls that wait."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from foxqueue.holders import Holder
from foxqueue.leases import figures
from foxqueue.leases.common import Common, check_by, takes_lease
from foxqueue.leases.driving import drive
from foxqueue.leases.figures import ActiveHolder, GpuMemoryInfo, GpuStatistics
from foxqueue.leases.lease import LeaseBase
from foxqueue.leases.steps import Acquisition
from foxqueue.leases.wish import GpuRef, OnLost, Options, Wish, check_ref, wish, wished

F = TypeVar("F", bound=Callable[..., Any])


class Lease(LeaseBase):
    """As of :class:`foxqueue.leases.lease.LeaseBase`; leaving a ``with`` block releases it."""

    def release(self) -> None:
        """Give it back: another may have the device at once.

        While the server is away the helper tells it later. A lease that was lost is given up likewise.

        Raises:
            LeaseReleased: it was given back before.
            LeaseForked: it is the process's that this one was forked from.
        """
        self.release_now()

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pid == os.getpid() and not self._released:  # a process forked in the block comes by here too
            self.release()


class GpuLeases(Common):
    """Leases of GPUs, for while a program uses them.

    Args:
        url: of the server; by default the configured one, else our own.
        namespace: name of the queue; by default the configured one, else ``default``.
        gpus: devices that may be used, in order of preference: indices, ``gpu:0``, ``sim:0``, UUIDs. None for all of
            this machine: what NVML finds here and CUDA_VISIBLE_DEVICES leaves, and simulated ones that a worker of
            this home serves.
        host: ``this`` machine; ``any``: also devices that workers of other machines serve; the name of one: those of
            that machine alone. For those of others there is no file lock: only the server tells them apart.
        lost: called with a LeaseLost, in a thread, when a lease is lost.
        home: state directory; the configured one by default.

    Raises:
        InvalidInput: something configured or given is malformed.
        NoServer, ServerUnavailable, ServerRefused: no usable server.
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
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what this process holds by this object, and close its connections."""
        for lease in self.leases():
            lease.__exit__(None, None, None)
        self._close()

    # --- acquiring -------------------------------------------------------------------------------------

    def acquire(self, gpu: GpuRef, **options: Unpack[Options]) -> Lease:
        """Acquire one device.

        Args:
            gpu: index, ``gpu:0``, ``sim:0``, a UUID or the beginning of one.
            options: see :class:`foxqueue.leases.wish.Options`.

        Raises:
            InvalidInput: something is malformed, or several devices may be meant.
            GpuNotFound: there is no such device, or not among those that may be used.
            GpuAlreadyLeased: somebody has it, and the time is over.
            InsufficientMemory: it has too little memory free, and the time is over, or too little in all.
            NoGpuAvailable: it is paused, withheld, occupied, or somebody ranks before, and the time is over.
            ServerUnavailable, ServerRefused: the server cannot be asked.
        """
        check_ref(gpu)  # None would be any
        return self._acquire(wished(gpu, 1, options))

    def acquire_any(self, **options: Unpack[Options]) -> Lease:
        """Acquire any one device: of those that can be had the smallest that will do, unless ``gpus`` gives an order.

        Args:
            options: see :class:`foxqueue.leases.wish.Options`.

        Raises:
            NoGpuAvailable: none can be had, and the time is over; it has the reason of each device.
            Others as of :meth:`acquire`.
        """
        return self._acquire(wished(None, 1, options))

    def acquire_many(self, count: int, **options: Unpack[Options]) -> Lease:
        """Acquire several devices, all or none. It waits until as many are free at the same moment: while others take
        single ones all the time that may be long.

        Args:
            count: how many.
            options: see :class:`foxqueue.leases.wish.Options`; memory is that of each.

        Raises:
            Unsatisfiable: there are not as many.
            Others as of :meth:`acquire_any`.
        """
        return self._acquire(wished(None, count, options))

    def _acquire(self, wanted: Wish) -> Lease:
        core = self._core
        grant = drive(core, Acquisition(core, wanted).run())
        lease = Lease(core, grant, self._renewals() if grant.spots else None, wanted.lost or self._lost)
        self._keep(lease)
        return lease

    def leased(self, gpu: GpuRef | None = None, count: int = 1, **options: Unpack[Options]) -> Callable[[F], F]:
        """A decorator: the function runs under a lease, and gets it if it has an argument named ``lease``.

        Args:
            gpu: the device; any by default.
            count: how many devices, of any.
            options: see :class:`foxqueue.leases.wish.Options`.

        Raises:
            InvalidInput: something is malformed, or the function is one that goes on after it has returned.
        """
        wanted = wish(gpu, count, **options)

        def decorate(function: F) -> F:
            gets = takes_lease(function)

            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                with self._acquire(wanted) as lease:
                    return function(*args, **({"lease": lease} if gets else {}), **kwargs)

            return run  # type: ignore[return-value]

        return decorate

    # --- giving back -----------------------------------------------------------------------------------

    def leases(self) -> list[Lease]:
        """The leases that this process holds by this object."""
        held = [] if self._made is None else self._made.leases()
        return [lease for lease in held if isinstance(lease, Lease)]

    def release(self, gpu: GpuRef, holder: str | None = None) -> None:
        """Release this process's lease of a device.

        Args:
            gpu: of the device.
            holder: as it was acquired; the name of the program by default.

        Raises:
            NotLeaseHolder: this process has no such lease.
            LeaseReleased: it was released before, and nobody has the device.
            GpuNotFound, InvalidInput: there is no such device.
        """
        place = drive(self._core, figures.place_of(self._core, gpu))
        lease = self._held_by(place.uuid, holder)
        if isinstance(lease, Lease):
            return lease.release()
        raise drive(self._core, self._not_held(place, holder))

    def force_release(self, gpu: GpuRef, by: str | None = None) -> Holder | None:
        """Take a device from whoever has it, a job too: its holder is told, and it is written into the audit trail.

        The device is free when the holder has given it up, or is not heard of any more.

        Args:
            gpu: of the device.
            by: who does it; the user by default.

        Returns:
            Who had it, None for nobody.

        Raises:
            GpuNotFound, InvalidInput: there is no such device.
            OutcomeUnknown, ServerUnavailable: no answer came.
        """
        return drive(self._core, self._force(gpu, check_by(by)))

    def cleanup_all(self) -> int:
        """Release what this process holds by this object, and what dead processes of this machine left behind.

        Returns:
            How many leases were released.
        """
        own = self.leases()
        for lease in own:
            lease.__exit__(None, None, None)
        return len(own) + drive(self._core, self._bury())

    # --- questions -------------------------------------------------------------------------------------

    def memory(self, gpu: GpuRef) -> GpuMemoryInfo:
        """Memory of a device, in MiB.

        Raises:
            MemoryQueryFailed: it cannot be told.
            GpuNotFound, InvalidInput: there is no such device.
        """
        return drive(self._core, figures.memory(self._core, gpu))

    def utilization(self, gpu: GpuRef) -> int:
        """How busy a device is, percent of its last sample period.

        Raises:
            UtilizationQueryFailed: it cannot be told.
            GpuNotFound, InvalidInput: there is no such device.
        """
        return drive(self._core, figures.utilization(self._core, gpu))

    def statistics(self) -> GpuStatistics:
        """How many devices there are, are leased, and could be acquired."""
        return drive(self._core, figures.statistics(self._core))

    def active(self) -> list[ActiveHolder]:
        """Who has devices now, by leases and by jobs."""
        return drive(self._core, figures.active(self._core))

    def counters(self) -> dict[str, int]:
        """Counts of the namespace; see :func:`foxqueue.leases.figures.counters`."""
        return drive(self._core, figures.counters(self._core))


__all__ = ["GpuLeases", "Lease"]
