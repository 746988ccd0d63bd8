"""How a device is acquired and given back, as generators that do no I/O.

They yield what is to be done and are sent what came of it, or the error: `blocking` and `aio` do it. What they do
themselves, like taking a file lock or not, never waits. An error that a driver throws in, like KeyboardInterrupt or
CancelledError, makes them yield what cleans up, and comes out again.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from foxqueue.broker import Reply
from foxqueue.errors import FoxqueueError, GpuNotFound, LeaseError, ServerError, ServerRefused, ServerUnavailable
from foxqueue.holders import holder_text, job_holder, job_number, read_holder
from foxqueue.leases.core import Core
from foxqueue.leases.effects import Ask, Local, Pause, Read, Step, Steps
from foxqueue.leases.grant import Grant, release_call, write_down
from foxqueue.leases.refusing import name_holders, refusal_error
from foxqueue.leases.spot import Refusal, Spot
from foxqueue.leases.wish import Wish
from foxqueue.replies import text
from foxqueue.scripts import Call
from foxqueue.submission import user
from foxqueue.units import format_memory
from foxqueue.withheld import read_withheld

MOMENT_S: Final = 0.05  # that somebody's momentary look at a device may take
NAMELESS_S: Final = 2.0  # that somebody who has it may take until he has said who he is
STEP_S: Final = 0.003  # between two tries to lock a device
AWAY_S: Final = 1.0  # between two tries while the server is away, at most

_log = logging.getLogger(__name__)


class Acquisition:
    """One wish, from the first try to a grant or a refusal.

    Args:
        core: of the GpuLeases.
        wish: what is wanted.
    """

    def __init__(self, core: Core, wish: Wish) -> None:
        self.core = core
        self.wish = wish
        self.token = os.urandom(8).hex()
        self.refusals: dict[str, Refusal] = {}
        self.began = time.monotonic()
        self.deadline = math.inf if wish.timeout_s is None else self.began + wish.timeout_s
        self.standing = False  # in a line, perhaps
        self._open = ""  # devices that were asked for, with no answer yet

    @property
    def until_ms(self) -> int | None:
        """Epoch ms until which it is meant to be held, if it is granted now."""
        lasting = self.wish.lasting_s
        return self.wish.until_ms if lasting is None else round((time.time() + lasting) * 1000)

    @property
    def holder(self) -> str:
        """Text that says who holds it."""
        return holder_text(user(), self.core.places.here, os.getpid(), self.until_ms, self.wish.label)

    def run(self) -> Steps[Grant]:
        """Acquire.

        Raises:
            GpuAlreadyLeased, NoGpuAvailable, InsufficientMemory: it cannot be had in the time given.
            GpuNotFound, InvalidInput, Unsatisfiable: it cannot be had at all.
            ServerUnavailable, ServerRefused: the server cannot be asked.
        """
        spots: list[Spot] = []
        granted: tuple[Spot, ...] = ()
        try:
            if not self.core.is_fresh():
                yield from self.patiently(Local(self.core.refresh))
            spots = yield from self._spots()
            grant = yield from self._run(spots)
            granted = grant.spots
            return grant
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._withdraw()
            raise
        finally:
            for spot in spots:
                if spot not in granted:
                    self.core.put_spot(spot)

    def _spots(self) -> Steps[list[Spot]]:
        core, wish = self.core, self.wish
        try:
            try:
                places = core.places.fit(wish)
            except GpuNotFound:
                yield from self.patiently(Local(core.look_again))
                places = core.places.fit(wish)
        except GpuNotFound:
            if not wish.no_gpu_ok or core.places.all:
                raise
            return []
        return [core.take_spot(place) for place in places]

    def _run(self, spots: list[Spot]) -> Steps[Grant]:
        if not spots:
            return Grant(self.token, 0, "", (), self.wish.label, self.until_ms)
        grant = yield from self.attempts(spots)
        if grant is None:
            self.core.contended += 1
            self._log_refusals(spots)
        if grant is None and self.wish.timeout_s == 0:
            grant = yield from self._insist(spots)
        if grant is None and self.wish.timeout_s == 0:
            raise (yield from self.refused(spots))
        if grant is None:
            from foxqueue.leases.line import InLine  # most never stand in line

            grant = yield from InLine(self, spots).run()
        return grant

    def _log_refusals(self, spots: Sequence[Spot]) -> None:
        for spot in spots:
            refusal = self.refusals[spot.place.uuid]
            low = refusal.kind == "memory"
            _log.log(
                logging.WARNING if low else logging.INFO, "%s cannot be leased now: %s", spot.place.name, refusal.text
            )

    # --- one try ---------------------------------------------------------------------------------------

    def attempts(self, spots: Sequence[Spot], patience_s: float = MOMENT_S) -> Steps[Grant | None]:
        """Try all, and those that somebody only looks at again for a moment."""
        began, among = time.monotonic(), spots
        while True:
            grant = yield from self.attempt(among)
            if grant is not None:
                return grant
            shortly = [spot for spot in spots if self.refusals[spot.place.uuid].momentary]
            if not shortly or time.monotonic() - began > patience_s:
                return None
            among = spots if self.wish.count > 1 else shortly
            yield Pause(STEP_S)

    def _insist(self, spots: Sequence[Spot]) -> Steps[Grant | None]:
        """Try for longer where somebody has locked a device and nobody can tell who: he may be about to say so."""
        until = time.monotonic() + NAMELESS_S
        while True:
            yield from name_holders(self, spots)
            nameless = [spot for spot in spots if self.refusals[spot.place.uuid].momentary]
            if not nameless or time.monotonic() > until:
                return None
            grant = yield from self.attempts(spots if self.wish.count > 1 else nameless)
            if grant is not None:
                return grant

    def attempt(self, spots: Sequence[Spot]) -> Steps[Grant | None]:
        """Take as many of these devices as are wanted, all or none; ``refusals`` says why not."""
        taken: list[Spot] = []
        granted = False
        for spot in spots:
            self.refusals.setdefault(spot.place.uuid, Refusal("untried", "not tried, for the others cannot be had"))
        try:
            for at, spot in enumerate(spots):
                if len(taken) + len(spots) - at < self.wish.count:
                    break
                if any(one.place.device.whole == spot.place.device.whole for one in taken):
                    continue  # another slot of the same GPU
                refusal = yield from self._take(spot)
                if refusal is not None:
                    self.refusals[spot.place.uuid] = refusal
                    continue
                taken.append(spot)
                if len(taken) == self.wish.count:
                    answer = yield from self._ask(taken)
                    if isinstance(answer, Grant):
                        granted = True
                        return answer
                    answer.unlock()
                    taken.remove(answer)
            return None
        finally:
            if not granted:
                for spot in taken:
                    spot.unlock()

    def _take(self, spot: Spot) -> Steps[Refusal | None]:
        """Lock a device and look at it. Why it cannot be had; None when it is locked and free."""
        good = False
        try:
            if not spot.lock():
                return spot.in_use()
            refusal = None if spot.is_clean else (yield Local(spot.settle))
            if refusal is None:
                look = partial(spot.look, self.wish.memory_mib, self.core.settings)
                refusal = look() if spot.looks_quick else (yield Local(look))
            good = refusal is None
            return refusal
        except OSError as error:
            return Refusal("device", f"its lock file cannot be used: {error}", local=True)
        finally:
            if not good:
                spot.unlock()

    def _ask(self, spots: Sequence[Spot]) -> Steps[Grant | Spot]:
        """Ask the server for devices that are locked. The grant, or the one that cannot be had."""
        by_name = {spot.place.uuid: spot for spot in spots}
        for _ in range(10):
            self._open = ",".join(by_name)
            reply: Reply = (yield from self.patiently(Ask((self._acquire_call(spots),))))[0]
            self._open = ""
            if reply.word == "ok":
                self.standing, self.core.contended = False, 0
                return (yield from self._granted(reply, spots))
            if reply.word == "shapes":
                self.core.learn_shapes(reply)
                continue
            if reply.word == "stale":  # this token was used up, by somebody who took us for dead
                self.token = os.urandom(8).hex()
                continue
            if reply.word == "newer":
                raise ServerRefused("a newer foxqueue has changed the queue's data: upgrade this machine")
            device, *said = map(text, reply.rest)
            self.refusals[device] = self._refusal(by_name[device], reply.word, said)
            return by_name[device]
        raise ServerError("the shapes of jobs change without end")

    def _acquire_call(self, spots: Sequence[Spot]) -> Call:
        slot = next((spot.place.device for spot in spots if spot.place.device.slot is not None), None)
        total = 0 if slot is None else slot.memory_total_mib or 0
        for spot in spots:
            spot.declares = (self.wish.memory_mib or total) if slot is not None else 0
        return self.core.broker.lease_acquire_call(
            self.token,
            [spot.place.uuid for spot in spots],
            self.holder,
            priority=self.wish.priority,
            version=self.core.version,
            fitting=self.core.fitting(spots),
            declares=spots[0].declares,
            room=total,
            waited_ms=round((time.monotonic() - self.began) * 1000) if self.standing else 0,
            contended=self.core.contended,
        )

    def _granted(self, reply: Reply, spots: Sequence[Spot]) -> Steps[Grant]:
        fence, wish = int(reply.rest[0]), self.wish
        grant = Grant(
            self.token,
            fence,
            reply.instance,
            tuple(spots),
            wish.label,
            self.until_ms,
            time.monotonic() - self.began,
        )
        if _log.isEnabledFor(logging.INFO):
            names = ", ".join(spot.place.name for spot in spots)
            _log.info("leased %s to %r, fence %d, after %.3f s", names, wish.label, fence, grant.waited_s)
        try:
            write_down(grant)
        except OSError as error:
            yield Ask((release_call(self.core.broker, grant),))
            raise LeaseError(f"a lock's record of {spots[0].place.name} cannot be written: {error}") from error
        return grant

    def _refusal(self, spot: Spot, word: str, said: Sequence[str]) -> Refusal:
        """Why the server does not give a device."""
        match word:
            case "paused":
                return Refusal("queue", f"paused by {said[0]}")
            case "withheld":
                why = read_withheld(said[0])
                return Refusal("queue", f"{why.word}: {why.text}" if why else said[0])
            case "taken":
                grant, holder = said[0], read_holder(said[0], said[1])
                if job_number(grant) is not None:
                    holder = job_holder(grant, "", spot.place.host)
                return Refusal("held", f"in use by {holder.shown if holder else 'somebody'}", holder)
            case "yield":
                first = "a job of the queue ranks before" if said[0] == "job" else "somebody in line ranks before"
                return Refusal("line", first)
            case "full":
                free = int(said[0])
                return Refusal("memory", f"{format_memory(free)} not declared by others", free_mib=free)
        raise ServerError(f"lease_acquire answered {word!r}, which this version does not know")

    # --- what may go wrong -----------------------------------------------------------------------------

    def patiently(self, step: Step) -> Steps[Any]:
        """Do a step; while the server is away again and again, as long as there is time.

        Raises:
            ServerUnavailable: the time is over.
        """
        pause = 0.02
        while True:
            try:
                return (yield step)
            except ServerUnavailable:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    raise
                yield Pause(min(pause, left))
                pause = min(pause * 2, AWAY_S)

    def refused(self, spots: Sequence[Spot]) -> Steps[LeaseError]:
        """The error that says why nothing could be had."""
        yield from name_holders(self, spots)
        counted, self.core.contended = self.core.contended, 0
        if counted:
            with suppress(FoxqueueError):  # a figure alone
                yield Read((("HINCRBY", self.core.broker.keys.lease_stats, "contended", counted),))
        return refusal_error(self.wish, [(spot.place, self.refusals[spot.place.uuid]) for spot in spots])

    def _withdraw(self) -> Steps[None]:
        """Leave nothing behind: no place in a line, and no grant whose answer was not heard."""
        broker = self.core.broker
        with suppress(FoxqueueError):
            if self._open:
                devices = self._open.split(",")
                call = broker.lease_acquire_call(self.token, devices, self.holder, version=self.core.version)
                reply: Reply = (yield Ask((call,)))[0]
                if reply.word == "ok":
                    yield Ask((broker.lease_release_call(self.token, text(reply.rest[0]), devices),))
        with suppress(FoxqueueError):
            if self.standing:
                yield Ask((broker.lease_wait_call(self.token, [], self.holder, needs=0),))
