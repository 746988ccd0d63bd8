"""One process of a history: it takes devices, looks after them, gives them back, and writes down what it was told."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foxqueue.errors import FoxqueueError, GpuAlreadyLeased, LeaseLost, NoGpuAvailable
from foxqueue.leases import GpuLeases, Lease
from leases_history.history import Book

PAUSE_S = 0.05  # of one who was refused, or whose server is away
HELD_S = (0.0, 0.01, 0.05, 0.3, 0.8)
LOOKS_EVERY_S = 0.05


class Actor:
    """Args: as `act`."""

    def __init__(self, url: str, devices: list[str], book: Book, chance: random.Random) -> None:
        self.leases = GpuLeases(url, gpus=devices)
        self.devices = devices
        self.book = book
        self.chance = chance

    def turn(self) -> None:
        """Ask once, and if it is ours, hold it for a while."""
        asked = time.monotonic_ns()
        try:
            lease = self._ask()
        except (GpuAlreadyLeased, NoGpuAvailable) as error:
            self.book.note("refused", asked=asked, more=str(error))
            time.sleep(self.chance.random() * PAUSE_S)
            return
        except FoxqueueError as error:  # the server is away
            self.book.note("away", asked=asked, more=f"{type(error).__name__}: {error}")
            time.sleep(PAUSE_S)
            return
        for device in lease.gpu_uuids:
            self.book.note("acquired", device, lease.fence, asked)
        try:
            with lease:
                self._hold(lease)
        except LeaseLost as error:
            self._note(lease, "lost", str(error))
        except _Changed:
            pass
        else:
            self._note(lease, "released")

    def _ask(self) -> Lease:
        """One of the ways to ask."""
        timeout = self.chance.choice((0, 0, 0.3, 2.0, 5.0))
        ways: list[Callable[[], Lease]] = [
            lambda: self.leases.acquire(self.chance.choice(self.devices), holder=self.book.who, timeout=timeout),
            lambda: self.leases.acquire_any(holder=self.book.who, timeout=timeout),
            lambda: self.leases.acquire_many(2, holder=self.book.who, timeout=timeout),
        ]
        return self.chance.choices(ways, (5, 4, 1))[0]()

    def _hold(self, lease: Lease) -> None:
        """Look at it until the time is over; leave it by its end, by release, or by an error."""
        ends = time.monotonic() + self.chance.choice(HELD_S)
        while time.monotonic() < ends:
            lease.check()
            self._note(lease, "holds")
            time.sleep(LOOKS_EVERY_S)
        self._note(lease, "releasing")
        how = self.chance.randrange(3)
        if how == 0:
            lease.release()
        elif how == 1:
            raise _Changed

    def _note(self, lease: Lease, what: str, more: str = "") -> None:
        for device in lease.gpu_uuids:
            self.book.note(what, device, lease.fence, more=more)


class _Changed(Exception):
    """The holder's own error: the lease is to be released all the same."""


def act(url: str, devices: list[str], folder: str, who: str, seed: int, ends: float) -> dict[str, Any]:
    """Take turns until the end.

    Args:
        url: of the server.
        devices: UUIDs to take.
        folder: where the history goes, into a file of its own.
        who: name of this process.
        seed: of its choices.
        ends: second of CLOCK_MONOTONIC.

    Returns:
        How many turns it had.
    """
    actor = Actor(url, devices, Book(Path(folder) / f"{who}.history", who), random.Random(seed))
    turns = 0
    with contextlib.closing(actor.leases):
        while time.monotonic() < ends:
            actor.turn()
            turns += 1
    return {"turns": turns}
