"""Waiting in line for a device. Who waits is called by the server when it is its turn, and asks nobody meanwhile.

Once a second it tries whether the file lock is free: somebody who died on this machine tells no server. Once in half a
minute it says that it is still there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

from foxqueue.errors import LeaseError, ServerUnavailable
from foxqueue.leases.effects import Ask, Listen, Pause, Read, Steps
from foxqueue.leases.grant import Grant
from foxqueue.leases.spot import Spot
from foxqueue.leases.steps import Acquisition
from foxqueue.scripts import Call

CALLED_S: Final = 0.9  # that a called waiter tries to use the device: a turn lasts a second
SURE_S: Final = 0.02  # in which whoever gave the device back drops its lock, on a machine that is not loaded
QUICK_STEP_S: Final = 0.001
LONG_STEP_S: Final = 0.005
LOOK_STEP_S: Final = 0.05  # between looks at what the last holder may have left on a GPU
LOOK_S: Final = 1.0  # between looks at the file lock
SOON_S: Final = (
    0.15  # and at a device that is free for somebody else, who may be dead: so long the server waits for him
)
SAY_S: Final = 25.0  # between two signs of life; the server takes who was silent for a minute out of its lines
KEPT_MS: Final = 60_000
ANEW_TIMES: Final = 10  # signs of life after which one stands in line anew, for the lines themselves run out too
LATER_S: Final = 25.0  # between two questions for a device that nobody here holds and the server refuses all the same


class InLine:
    """One wish in the lines of the devices that would do.

    Args:
        acquisition: of the wish; it has tried once.
        spots: the devices.
    """

    def __init__(self, acquisition: Acquisition, spots: Sequence[Spot]) -> None:
        self._acquisition = acquisition
        self._core = acquisition.core
        self._spots = {spot.place.uuid: spot for spot in spots}
        self._unusable: set[str] = set()  # called for, and could not be used: out of their lines until they can be
        self._key = self._core.broker.keys.wake(acquisition.token)
        self._said_at = 0.0
        self._said = 0  # signs of life since one stood in line anew
        self._asked_at = dict.fromkeys(self._spots, time.monotonic())
        self._behind: set[str] = set()  # free by the server's word, or somebody else's turn, who may never come
        self._told = ""
        self._pause = 0.0

    def run(self) -> Steps[Grant]:
        """Wait for a grant.

        Raises:
            GpuAlreadyLeased, NoGpuAvailable, InsufficientMemory: the time is over.
            ServerUnavailable: the time is over and the server is away.
        """
        acquisition = self._acquisition
        yield from self._stand()
        grant = yield from acquisition.attempts(list(self._spots.values()))
        if grant is None:
            grant = yield from self._catch()
        look_at = time.monotonic() + LOOK_S * random.uniform(0.5, 1.0)
        while grant is None:
            yield from self._tell()
            now = time.monotonic()
            if now >= acquisition.deadline:
                raise (yield from acquisition.refused(list(self._spots.values())))
            if self._behind:
                look_at = min(look_at, now + SOON_S)
            until = min(look_at, self._said_at + SAY_S, acquisition.deadline)
            called = yield from self._listen(max(until - now, 0.0))
            if called is not None:
                grant = yield from self._come(called)
                continue
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_S * random.uniform(0.8, 1.2)
                grant = yield from self._look()
            if grant is None and now - self._said_at >= SAY_S:
                yield from self._say()
        return grant

    def _catch(self) -> Steps[Grant | None]:
        """Take what was given back while we were about to stand in line: nobody has called us for that."""
        self._note_turns(list(self._spots.values()))
        refusals = self._acquisition.refusals
        for name in sorted(self._behind):
            if refusals[name].kind == "held" and refusals[name].local and not refusals[name].foreign:
                return (yield from self._come(name))  # who has given it back is about to drop its lock
        return None

    # --- the lines -------------------------------------------------------------------------------------

    def _stand(self) -> Steps[None]:
        """Stand in the lines of all devices that can be used, and leave those of others."""
        self._acquisition.standing = True
        devices = [name for name in self._spots if name not in self._unusable]
        yield from self._acquisition.patiently(Ask((self._wait_call(devices),)))
        self._said_at, self._said = time.monotonic(), 0
        if devices:
            # What was given back before we stood there has called nobody: it is asked for at the next look.
            keys = self._core.broker.keys
            reads = tuple(("EXISTS", keys.lease(name)) for name in devices)
            given = yield from self._acquisition.patiently(Read(reads))
            self._behind |= {name for name, exists in zip(devices, given, strict=True) if not exists}

    def _wait_call(self, devices: Sequence[str]) -> Call:
        acquisition = self._acquisition
        return self._core.broker.lease_wait_call(
            acquisition.token,
            devices,
            acquisition.holder,
            priority=acquisition.wish.priority,
            needs=acquisition.wish.count,
        )

    def _say(self) -> Steps[None]:
        """Say that we are still there: one cheap command, unless the server has forgotten us."""
        self._said += 1
        key = self._core.broker.keys.waiter(self._acquisition.token)
        if self._said < ANEW_TIMES:
            kept = yield from self._acquisition.patiently(Read((("PEXPIRE", key, KEPT_MS),)))
            if kept == [1]:
                self._said_at = time.monotonic()
                return
        yield from self._stand()

    def _listen(self, seconds: float) -> Steps[str | None]:
        try:
            called: str | None = yield Listen(self._key, seconds)
        except ServerUnavailable:
            if time.monotonic() >= self._acquisition.deadline:
                raise
            self._pause = min(max(self._pause * 2, 0.05), 1.0)
            yield Pause(min(self._pause, max(self._acquisition.deadline - time.monotonic(), 0.0)))
            yield from self._stand()  # it may have lost its data meanwhile, and our place with them
            return None
        self._pause = 0.0
        return called

    # --- trying ----------------------------------------------------------------------------------------

    def _come(self, device: str) -> Steps[Grant | None]:
        """It is our turn, perhaps: take the device as long as the turn lasts, or say that we cannot use it."""
        acquisition = self._acquisition
        if device not in self._spots:
            return None
        among = [self._spots[device]] if acquisition.wish.count == 1 else list(self._spots.values())
        began, asked = time.monotonic(), False
        while True:
            grant = yield from acquisition.attempt(among)
            if grant is not None:
                return grant
            refusal, spent = acquisition.refusals[device], time.monotonic() - began
            if not refusal.local or spent > CALLED_S:
                break
            if refusal.kind == "held" and spent > SURE_S and not asked:
                if (yield from self._is_granted(device)):
                    return None  # another one who was called came first
                asked = True
            step = LOOK_STEP_S if refusal.kind != "held" else QUICK_STEP_S if spent < SURE_S else LONG_STEP_S
            yield Pause(step)
        self._asked_at[device] = time.monotonic()
        self._note_turns(among)
        if refusal.local:
            if refusal.kind == "held" and not refusal.foreign:
                self._behind.add(device)  # who has the lock is about to drop it
            else:
                self._unusable.add(device)
            yield from self._stand()  # the turn is over
        return None

    def _is_granted(self, device: str) -> Steps[bool]:
        """Whether the server has given the device to somebody: then who holds its lock goes on holding it."""
        found = yield from self._acquisition.patiently(Read((("EXISTS", self._core.broker.keys.lease(device)),)))
        return bool(found[0])

    def _look(self) -> Steps[Grant | None]:
        """Try what the server cannot tell: whether a device is free on this machine."""
        acquisition = self._acquisition
        worth = [spot for name, spot in self._spots.items() if self._is_worth_asking(name, spot)]
        if not worth:
            return None
        now = time.monotonic()
        grant = yield from acquisition.attempt(worth if acquisition.wish.count == 1 else list(self._spots.values()))
        for spot in worth:
            self._asked_at[spot.place.uuid] = now
        self._note_turns(worth)
        if grant is None:
            usable = {spot.place.uuid for spot in worth if not acquisition.refusals[spot.place.uuid].local}
            if usable & self._unusable:
                self._unusable -= usable
                yield from self._stand()
        return grant

    def _note_turns(self, spots: Sequence[Spot]) -> None:
        """Devices that are free for somebody else are asked for again at the next look: a turn lasts a second."""
        for spot in spots:
            name, refusal = spot.place.uuid, self._acquisition.refusals[spot.place.uuid]
            if refusal.kind == "line":
                self._behind.add(name)
            elif not refusal.local:
                self._behind.discard(name)

    def _is_worth_asking(self, name: str, spot: Spot) -> bool:
        late = time.monotonic() - self._asked_at[name] >= LATER_S
        try:
            if not spot.lock():
                return False
            return late or name in self._unusable or name in self._behind or not spot.is_clean
        except OSError:
            return False
        finally:
            spot.unlock()

    def _tell(self) -> Steps[None]:
        """Tell who wants to know whom we wait for, when that has changed."""
        on_wait = self._acquisition.wish.on_wait
        if on_wait is None:
            return
        error: LeaseError = yield from self._acquisition.refused(list(self._spots.values()))
        if str(error) != self._told:
            self._told = str(error)
            on_wait(error)
