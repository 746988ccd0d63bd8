"""What GpuLeases and AsyncGpuLeases have in common, and what is done when a process ends or forks."""

from __future__ import annotations

import atexit
import inspect
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from foxqueue.broker import Broker
from foxqueue.config import Config, load_config
from foxqueue.errors import FoxqueueError, InvalidInput, LeaseError, LeaseReleased, NotLeaseHolder
from foxqueue.holders import Holder
from foxqueue.leases import figures
from foxqueue.leases.core import Core
from foxqueue.leases.effects import Local, Steps
from foxqueue.leases.lease import LeaseBase
from foxqueue.leases.places import Place, Places
from foxqueue.leases.renewing import Renewals
from foxqueue.leases.wish import GpuRef, OnLost, label_of
from foxqueue.submission import user

_everyone: weakref.WeakSet[Common] = weakref.WeakSet()


class Common:
    """Args as of :class:`foxqueue.leases.blocking.GpuLeases`; nothing is opened."""

    def __init__(
        self,
        url: str | None,
        namespace: str | None,
        gpus: Any,
        host: str,
        lost: OnLost | None,
        home: str | os.PathLike[str] | None,
    ) -> None:
        if lost is not None and not callable(lost):
            raise InvalidInput(f"lost {lost!r:.60} cannot be called: give a function, or leave it out")
        self.config: Config = load_config(url, namespace, home)
        self._places = Places(self.config, gpus, host)
        self._lost = lost
        self._made: Core | None = None
        self._closed = False
        self._renewing: Renewals | None = None
        self._gone: dict[str, str] = {}  # device -> label of this process's last lease of it

    def _open(self) -> Core:
        """Connect.

        Raises:
            LeaseError: it was closed.
        """
        if self._closed:
            raise LeaseError("these GpuLeases are closed: make new ones")
        if self._made is None:
            self._made = Core(self.config, Broker.open(self.config), self._places)
            self._made.owner = self
            _everyone.add(self)
        return self._made

    @property
    def _core(self) -> Core:
        return self._made or self._open()

    def _close(self) -> None:
        self._closed, made, self._made = True, self._made, None
        renewing, self._renewing = self._renewing, None
        if renewing is not None and renewing.pid == os.getpid():
            renewing.close()
        if made is not None:
            made.close()

    def _renewals(self) -> Renewals:
        if self._renewing is None or self._renewing.pid != os.getpid():
            self._renewing = Renewals(self._core.broker, self._core.settings)
        return self._renewing

    def _keep(self, lease: LeaseBase) -> None:
        core = self._core
        with core.lock:
            core.held[lease.token] = lease
            for device in lease.gpu_uuids:
                self._gone[device] = lease.label
        lease.begin()

    # --- giving back -----------------------------------------------------------------------------------

    def _held_by(self, device: str, holder: str | None) -> LeaseBase | None:
        label = label_of(holder)
        return next((one for one in self._core.leases() if device in one.gpu_uuids and one.label == label), None)

    def _not_held(self, place: Place, holder: str | None) -> Steps[LeaseError]:
        """Why this process cannot release a device in the name of a holder."""
        label = label_of(holder)
        who = yield from figures.holder_of(self._core, place)
        if who is None and self._gone.get(place.uuid) == label:
            return LeaseReleased(f"the lease of {place.name} for {label!r} was released before: nobody has it now")
        return NotLeaseHolder(place.uuid, who, label, place.name)

    def _force(self, gpu: GpuRef, by: str) -> Steps[Holder | None]:
        core = self._core
        place = yield from figures.place_of(core, gpu)
        who = yield from figures.holder_of(core, place)
        word, _ = yield Local(lambda: core.broker.force_release(place.uuid, by))
        return who if word == "ok" else None

    def _bury(self) -> Steps[int]:
        """Give back what dead holders left on devices of this machine. How many leases that were."""
        core = self._core
        yield from figures.fresh(core)
        buried = 0
        for place in core.places.all:
            spot = core.take_spot(place)
            try:
                if place.here and spot.lock() and not spot.is_clean:
                    left = spot.names_a_lease
                    refusal = yield Local(spot.settle)
                    buried += left and refusal is None
            finally:
                core.put_spot(spot)
        return buried


def check_by(by: Any) -> str:
    """Who asks, the user by default.

    Raises:
        InvalidInput: it is no text.
    """
    if by is None:
        return user()
    if not isinstance(by, str) or not by.strip() or not by.isprintable() or len(by) > 100:
        raise InvalidInput(f"by {by!r:.120} is not possible: give a name of 1 to 100 characters")
    return by


def takes_lease(function: Callable[..., Any], *, coroutine: bool = False) -> bool:
    """Whether a function that is to run under a lease has an argument named ``lease``.

    Raises:
        InvalidInput: it goes on after it has returned, so that its lease would be over before.
    """
    if not callable(function):
        raise InvalidInput(f"{function!r:.60} is no function: write @leases.leased(…) above one")
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{name} is a generator, which goes on after its lease: take the lease inside of it")
    if inspect.iscoroutinefunction(function) != coroutine:
        which = (
            "a function of asyncio: use AsyncGpuLeases" if not coroutine else "no function of asyncio: use GpuLeases"
        )
        raise InvalidInput(f"{name} is {which}")
    try:
        return "lease" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _release_all() -> None:
    """The process ends: what it cannot tell now its helper does."""
    for leases in list(_everyone):
        core = leases._made
        for lease in core.leases() if core is not None else ():
            with suppress(FoxqueueError, OSError):
                lease.release_now()


def _forked() -> None:
    """In a forked process: locks, threads and leases are the parent's."""
    for leases in list(_everyone):
        leases._renewing = None
        leases._gone = {}
        if leases._made is not None:
            leases._made.forked()


atexit.register(_release_all)
os.register_at_fork(after_in_child=_forked)
