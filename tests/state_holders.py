"""What holders of leases do in a walk of the state machine: acquire, wait in line, renew, give back, fall silent."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import rule
from queue_oracles import DEVICES, ROOM, SLOTS, WHOLE, fits
from state_requests import LOST, PICK, Requests
from state_walk import step

from foxqueue.broker import Reply
from foxqueue.scripts import Call

HOLDER = "ann\tbox\t4711\t\tnotebook"
LEASED = (("GPU-1",), ("GPU-2",), ("GPU-1",), (WHOLE,), ("GPU-3/0",), ("GPU-3/1",), ("GPU-1", "GPU-2"))
MOST_WAITING = 5
WAITS = ("again", "again", "other devices", "none", "leaves", "dies", "dies")


@dataclass
class Wish:
    """A process that wants ``needs`` of some devices: it waits for them, or has them under ``fence``."""

    token: str
    devices: tuple[str, ...]
    needs: int
    priority: int
    fence: str = ""
    version: str = "?"
    shapes: list[str] = field(default_factory=list)
    had: tuple[str, ...] = ()

    @property
    def declares(self) -> int:
        """MiB, on slots."""
        return ROOM // (1 + self.priority % 2)

    def fitting(self) -> list[str]:
        """Shapes of jobs that its devices could take."""
        return [shape for shape in self.shapes if any(fits(device, shape) for device in self.devices)]


class Holders(Requests):
    """Rules of leases, and of devices that nobody is given."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Wish] = []
        self.holding: list[Wish] = []
        self.gone: list[Wish] = []  # had a lease, and fell silent

    # --- one question -------------------------------------------------------------------------------------

    def acquire(self, wish: Wish, devices: tuple[str, ...], lost: bool = False) -> Reply:
        """Ask for devices, and again when there are new shapes."""
        for _ in range(2):
            reply = self.send(self._acquire_call(wish, devices), lost=lost)[0]
            if reply.word != "shapes":
                break
            wish.version, *wish.shapes = map(bytes.decode, reply.rest)
        # The next to ask finds out; a job that went first may be cancelled, one of several devices be taken.
        self.hint_lost |= reply.word == "full" or b"job" in reply.rest or (wish.needs > 1 and reply.word != "ok")
        if reply.word == "ok":
            wish.fence, wish.had = reply.rest[0].decode(), devices
            assert all(int(wish.fence) >= self.oracles.highest.get(device, 0) for device in devices)
            self.holding.append(wish)
            self.waiting = [other for other in self.waiting if other is not wish]
        return reply

    def _acquire_call(self, wish: Wish, devices: tuple[str, ...]) -> Call:
        on_slot = devices[0] in SLOTS
        return self.broker.lease_acquire_call(
            wish.token,
            devices,
            HOLDER,
            priority=wish.priority,
            version=wish.version,
            fitting=wish.fitting(),
            declares=wish.declares if on_slot else 0,
            room=ROOM if on_slot else 0,
            waited_ms=len(wish.shapes),
            contended=wish.priority % 3,
        )

    def come(self, wish: Wish, lost: bool = False) -> bool:
        """Who was called asks for the devices."""
        key = self.keys.wake(wish.token)
        called = [token.decode() for token in self.redis.lrange(key, 0, -1)]
        self.redis.delete(key)
        self.model.wake.pop(wish.token, None)
        for device in dict.fromkeys(called):
            if wish.fence:
                break
            self.acquire(wish, wish.devices if wish.needs > 1 else (device,), lost)
        return bool(called)

    def stand(self, wish: Wish, lost: bool = False) -> None:
        """In the lines of its devices."""
        call = self.broker.lease_wait_call(wish.token, wish.devices, HOLDER, priority=wish.priority, needs=wish.needs)
        if self.send(call, lost=lost)[0].word == "ok" and wish not in self.waiting:
            self.waiting.append(wish)

    # --- rules --------------------------------------------------------------------------------------------

    @rule(pick=PICK, devices=st.sampled_from(LEASED), priority=st.sampled_from((5, 5, 2, 9)), stands=PICK, lost=LOST)
    @step
    def lease(self, pick: int, devices: tuple[str, ...], priority: int, stands: int, lost: bool) -> None:
        """Somebody wants devices, and waits if it cannot have them."""
        wish = Wish(self.token()[-16:], devices, len(devices), priority)
        first = devices
        if len(devices) > 1 and pick % 2:  # one of two would do
            wish.needs, first = 1, devices[:1]
        if stands % 3 == 0 and len(self.waiting) < MOST_WAITING:
            self.stand(wish, lost)
        reply = self.acquire(wish, first, lost)
        if reply.word in ("taken", "yield", "withheld", "full") and stands and len(self.waiting) < MOST_WAITING:
            self._stand_and_try(wish, lost)

    def _stand_and_try(self, wish: Wish, lost: bool) -> None:
        """It may be free by now."""
        self.stand(wish, lost)
        for device in wish.devices:
            if not wish.fence:
                self.acquire(wish, wish.devices if wish.needs > 1 else (device,))

    @rule(pick=PICK, device=st.sampled_from(("GPU-1", "GPU-2", WHOLE, *SLOTS)), registers=st.booleans(), lost=LOST)
    @step
    def crowd(self, pick: int, device: str, registers: bool, lost: bool) -> None:
        """Several want a device that somebody has; it is given back, and one of them asks."""
        holder = Wish(self.token()[-16:], (device,), 1, 9)
        self.acquire(holder, (device,), lost)
        crowd = [Wish(self.token()[-16:], (device,), 1, (5, 9, 2, 5)[(pick + at) % 4]) for at in range(1 + pick % 3)]
        for wish in crowd:
            if len(self.waiting) < MOST_WAITING:
                self.stand(wish, lost)
        for seat in self.seats:
            if registers and seat.worker.device == device:
                seat.registered += 1
                name = seat.worker.name
                self.send(self.broker.register_call(name, device, seat.registered, b"seen", "host", seat.worker.boot))
        if holder.fence:
            self.send(self.broker.lease_release_call(holder.token, holder.fence, holder.had), lost=lost)
            self.holding = [wish for wish in self.holding if wish is not holder]
        self.acquire(crowd[-1], (device,), lost)

    @rule(pick=PICK, lost=LOST)
    @step
    def called(self, pick: int, lost: bool) -> bool | None:
        """One who was called comes; or tries without a call."""
        if not self.waiting:
            return False
        woken = [wish for wish in self.waiting if self.model.wake.get(wish.token)]
        wish = (woken or self.waiting)[pick % len(woken or self.waiting)]
        if not self.come(wish, lost):
            self.acquire(wish, wish.devices if wish.needs > 1 else wish.devices[pick % len(wish.devices) :][:1], lost)
        return None

    @rule(
        pick=PICK,
        what=st.sampled_from(WAITS),
        lost=LOST,
    )
    @step
    def wait(self, pick: int, what: str, lost: bool) -> bool | None:
        """Those in line say that they are there, or leave, or fall silent."""
        if not self.waiting:
            return False
        wish = self.waiting[pick % len(self.waiting)]
        if what == "dies":
            self.hint_lost = True  # it may have been called
            self.waiting.remove(wish)
            return None
        if what == "leaves":
            call = self.broker.lease_wait_call(wish.token, (), HOLDER, needs=0)
            self.send(call, lost=lost)
            self.waiting.remove(wish)
            return None
        if what == "other devices":
            wish.devices, wish.needs = LEASED[pick % len(LEASED)][:1], 1
        if what == "none":
            self.send(self.broker.lease_wait_call(wish.token, (), HOLDER, needs=wish.needs), lost=lost)
            return None
        self._stand_and_try(wish, lost)
        return None

    @rule(pick=PICK, what=st.sampled_from(("renew", "renew", "release", "release", "part", "dies")), lost=LOST)
    @step
    def hold_on(self, pick: int, what: str, lost: bool) -> bool | None:
        """A holder renews its lease, gives it back, or falls silent."""
        if not self.holding:
            return False
        wish = self.holding[pick % len(self.holding)]
        match what:
            case "renew":
                self._renew(wish, lost)
            case "dies":
                self.holding.remove(wish)
                self.gone.append(wish)
            case "part":
                self.send(self.broker.lease_release_call(wish.token, wish.fence, wish.had[:1]), lost=lost)
                wish.had = wish.had[1:]
                if not wish.had:
                    self.holding.remove(wish)
            case _:
                self.send(self.broker.lease_release_call(wish.token, wish.fence, wish.had), lost=lost)
                self.holding.remove(wish)
        return None

    def _renew(self, wish: Wish, lost: bool) -> None:
        word = self.send(self.broker.lease_renew_call(wish.token, wish.fence, wish.had, ROOM), lost=lost)[0].word
        if word != "ok":
            self.holding.remove(wish)
            self.gone.append(wish)

    @rule(pick=PICK, what=st.sampled_from(("renew", "release", "release")))
    @step
    def late_holder(self, pick: int, what: str) -> bool | None:
        """The first copy of a call of one who fell silent, or was told that its lease is lost."""
        if not self.gone:
            return False
        wish = self.gone[-1 - pick % len(self.gone)]
        if what == "renew":
            self.send(self.broker.lease_renew_call(wish.token, wish.fence, wish.had, ROOM))
        else:
            self.send(self.broker.lease_release_call(wish.token, wish.fence, wish.had))
        return None

    @rule(
        what=st.sampled_from(("dirty", "quarantined", "clear", "clear", "clear", "clear memory", "forget")),
        pick=PICK,
        lost=LOST,
    )
    @step
    def care(self, what: str, pick: int, lost: bool) -> None:
        """A device is withheld, cleared or forgotten."""
        device = (*DEVICES, WHOLE, "GPU-2", *SLOTS)[pick % 6]
        withheld = sorted(self.model.withheld)
        if withheld and pick < 9 and what != "forget":
            what, device = "clear", withheld[pick % len(withheld)]
        match what:
            case "forget":
                call = self.broker.forget_call(device, "me", self.token())
                self.hint_lost = True  # its line is gone
            case "clear" | "clear memory":
                call = self.broker.clear_call(device, "me", self.token(), "memory" if what != "clear" else "")
                self.hint_lost = True  # wakes the worker that registered last, and another may stand there
            case _:
                kind = "memory" if what == "dirty" else "fault"
                call = self.broker.withhold_call(device, what, kind, "look", "boot", "w1", pick, self.token())
        self.send(call, lost=lost)

    # --- at rest ----------------------------------------------------------------------------------------

    def _answer_wakes(self) -> None:
        for _ in range(100):
            woken = [wish for wish in self.waiting if self.model.wake.get(wish.token)]
            seats = [seat for seat in self.seats if seat.run is None and self.model.wake.get(seat.worker.name)]
            if not woken and not seats:
                return
            for wish in woken:
                self.come(wish)
            for seat in seats:
                self.ask(seat)
        raise AssertionError("workers and waiters wake each other for ever")

    def _poll(self) -> None:
        """Lost hints are bounded: the silent have left the lines, turns are over, and all ask once more."""
        self.accidents.only_those_live({wish.token for wish in self.waiting})
        super()._poll()
        for wish in list(self.waiting):
            self.stand(wish)
            for device in wish.devices:
                if not wish.fence:
                    self.acquire(wish, wish.devices if wish.needs > 1 else (device,))

    def _nobody_waits_beside_what_is_free(self) -> None:
        super()._nobody_waits_beside_what_is_free()
        live = {wish.token for wish in self.waiting}
        for device, line in self.model.lines.items():
            first = self.model.first_in_line(device)
            if first not in live or not self.model.is_free(device) or device in self.model.paused:
                continue
            (wish,) = (wish for wish in self.waiting if wish.token == first)
            lacks = device in SLOTS and self.model.lacks_mib(WHOLE, wish.declares)
            assert lacks or self.model.job_ranks_before(device, first), (
                f"{first} is first in line of the free {device}: {line}"
            )
