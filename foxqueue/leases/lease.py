"""A lease as its holder has it, but for how it is given back."""

from __future__ import annotations

import logging
import os
from typing import Any

from foxqueue.errors import LeaseForked, LeaseLost, LeaseReleased, ServerError, ServerUnavailable
from foxqueue.leases import visible
from foxqueue.leases.core import Core
from foxqueue.leases.driving import drive
from foxqueue.leases.grant import Grant, release, write_down
from foxqueue.leases.renewing import Renewals
from foxqueue.leases.wish import OnLost

_log = logging.getLogger(__name__)


class LeaseBase:
    """One or several devices, or none, for this process.

    Attributes:
        gpu_uuid: UUID of the device, of the first where there are several; None for a lease of no device.
        gpu_uuids: all of them.
        index: of the first device on its machine, as nvidia-smi counts; None likewise.
        indices: of all.
        grant: as it was granted.
        fence: a number that only grows with each grant of a device; 0 for no device.
        token: the random name of the lease.
        label: what it is for.
        instance: life of the namespace in which it was granted.
        until_ms: epoch ms until which it is meant to be held, None where that was not said.
        waited_s: how long it was waited for.
        pid: the process that holds it.
        lost: why it is lost, None while it is not.
    """

    def __init__(self, core: Core, grant: Grant, renewals: Renewals | None, on_lost: OnLost | None) -> None:
        self._core = core
        self.grant = grant
        self._renewals = renewals
        self._on_lost = on_lost
        self._released = False
        self._facts: dict[str, Any] = {}
        devices = [spot.place.device for spot in grant.spots]
        self.gpu_uuids = tuple(device.uuid for device in devices)
        self.gpu_uuid = self.gpu_uuids[0] if devices else None
        self.indices = tuple(device.index for device in devices)
        self.index = self.indices[0] if devices else None
        self.fence = grant.fence
        self.token = grant.token
        self.label = grant.label
        self.instance = grant.instance
        self.until_ms = grant.until_ms
        self.waited_s = grant.waited_s
        self.pid = os.getpid()
        self.lost: LeaseLost | None = None

    def __repr__(self) -> str:
        state = "released" if self._released else "lost" if self.lost else "held"
        return f"<{type(self).__name__} {self.names} fence={self.fence} {state}>"

    @property
    def names(self) -> str:
        """The devices for people: ``gpu:0, gpu:1``."""
        return ", ".join(spot.place.name for spot in self.grant.spots) or "no device"

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return self._released

    def env(self) -> dict[str, str]:
        """Variables that show CUDA these devices and no others, for a process that is started under the lease."""
        return visible.variables([spot.place.device for spot in self.grant.spots])

    def apply(self) -> None:
        """Put :meth:`env` into this process's environment. CUDA reads it once: call this before it is used."""
        self.check()
        visible.apply(self.env())

    def check(self) -> None:
        """Make sure that the lease is ours still, as far as is known here; asks nobody.

        Raises:
            LeaseForked: this process was forked from the one that holds it.
            LeaseReleased: it was given back.
            LeaseLost: somebody took the device, or the server knows the lease no longer.
        """
        if self.pid != os.getpid():
            raise LeaseForked(
                f"the lease of {self.names} belongs to process {self.pid}, which this one was forked from: acquire one "
                "here, or leave it to that process"
            )
        if self._released:
            raise LeaseReleased(f"the lease of {self.names} (fence {self.fence}) was released: acquire another one")
        if self.lost is None and self._renewals is not None:
            self._renewals.hear()
        if self.lost is not None:
            raise self.lost

    # --- for who runs a command under it ---------------------------------------------------------------

    @property
    def lock_fds(self) -> list[int]:
        """Descriptors of the file locks, for a process that shall keep the devices too."""
        return [fd for spot in self.grant.spots if spot.hold is not None for fd in spot.hold.gpu.fds]

    def note(self, **facts: Any) -> None:
        """Add to what the locks say of the holder: ``mark`` of processes to be ended after it, ``runner``, ``command``.

        Raises:
            OSError: it cannot be written.
        """
        self._facts |= facts
        write_down(self.grant, **self._facts)

    # --- the end ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Have it renewed."""
        if self._renewals is not None:
            self._renewals.begin(self.grant, self._is_lost)

    def _is_lost(self, why: str) -> None:
        """Called in the thread that hears of it."""
        self.lost = LeaseLost(f"the lease of {self.names} (fence {self.fence}) is lost: {why}")
        _log.warning("%s", self.lost)
        if self._on_lost is not None:
            try:
                self._on_lost(self.lost)
            except Exception:  # noqa: BLE001 - the user's; renewing goes on
                _log.exception("the function that is told of lost leases failed")

    def release_now(self) -> None:
        """Give it back, whatever asks for it; see :meth:`foxqueue.leases.blocking.Lease.release`."""
        self._leave()
        told = not self.gpu_uuids
        try:
            if not told:
                drive(self._core, release(self._core.broker, self.grant))
                told = True
        except ServerError as error:
            self._untold(error)
        finally:
            self._over(told)

    def _untold(self, error: ServerError) -> None:
        log = _log.info if isinstance(error, ServerUnavailable) else _log.error
        log("that the lease of %s is over is told later: %s", self.names, error)

    def _leave(self) -> None:
        """Take the state of a lease that is given back; raises as :meth:`check` where it cannot be."""
        if self.pid != os.getpid() or self._released:
            self.check()
        self._released = True

    def _over(self, told: bool) -> None:
        """Drop the locks, and renew it no longer. ``told``: whether the server knows."""
        for spot in self.grant.spots:
            if told:
                spot.blank()
            self._core.put_spot(spot)
        if self._renewals is not None:
            self._renewals.end(self.grant, told=told)
            _log.debug("released a lease, fence %d", self.fence)
        with self._core.lock:
            self._core.held.pop(self.token, None)
