"""The queue as it should be: which devices are free, and who stands first in line for one."""

from __future__ import annotations

from queue_oracles import ROOM
from state_moves import Moves

TURN_MS = 600_000  # the server is told so too: turns end by accident only
SLOTS = 16  # at most, of one device


def whole_of(device: str) -> str:
    """The device that a slot is part of; empty for a whole one."""
    whole, _, slot = device.rpartition("/")
    return whole if slot.isdigit() else ""


class Places(Moves):
    """Devices, their slots, and the lines in front of them."""

    def _is_granted(self, device: str) -> bool:
        """Whether a run or a lease has it that is heard of."""
        fence, _, holder = self.granted.get(device, "").partition(" ")
        kind, _, n = holder.partition(":")
        job = self.jobs.get(n, {}) if kind in ("job", "released") else {}
        return device in self.leases or (job.get("state"), job.get("fence")) == ("running", fence)

    def _in_the_way(self, device: str) -> str:
        """The granted device that keeps this one from being given out: itself, its whole one, or a slot of it."""
        around = (device, whole_of(device), *(f"{device}/{slot}" for slot in self.declared.get(device, ())))
        return next((name for name in around if name and self._is_granted(name)), "")

    def is_free(self, device: str) -> bool:
        """Whether a device may be given to a run or a lease."""
        return not self._in_the_way(device) and not {device, whole_of(device)} & {*self.withheld}

    def _declared_mib(self, whole: str) -> int:
        """What the granted slots of a device have declared."""
        slots = self.declared.get(whole, {}).items()
        return sum(int(mib) for slot, mib in slots if self._is_granted(f"{whole}/{slot}"))

    def lacks_mib(self, whole: str, mib: int) -> bool:
        """Whether the slots of a device leave less."""
        return mib > ROOM - self._declared_mib(whole)

    def _declare(self, device: str, mib: str) -> None:
        if whole_of(device):
            self.declared[whole_of(device)][device.rpartition("/")[2]] = mib

    def _undeclare(self, device: str) -> None:
        if whole_of(device):
            self.declared[whole_of(device)].pop(device.rpartition("/")[2], None)
            self._wake(whole_of(device), SLOTS)
            self._call_line(whole_of(device))
            for slot in range(SLOTS):
                if f"{whole_of(device)}/{slot}" != device:
                    self._call_line(f"{whole_of(device)}/{slot}")

    def _stat(self, name: str, by: int) -> None:
        self.lease_stats[name] = str(int(self.lease_stats.get(name, 0)) + by)

    def _count_lost(self, device: str) -> None:
        """Another has it now: its lease was not heard of any more."""
        if " lease:" in self.granted.get(device, ""):
            self._stat("lost", 1)
            self.holders.pop(device, None)

    # --- lines -------------------------------------------------------------------------------------------

    def turn_of(self, device: str) -> tuple[str, bool]:
        """Whose turn it is, and whether it is over."""
        who, _, since = self.turns.get(device, " 0").partition(" ")
        return who, bool(who) and not 0 <= self.now - int(since) < TURN_MS

    def _give_turn(self, device: str, who: str) -> None:
        given = str(self.image.keys.get(f"turn:{device}", "")).partition(" ")[2]
        assert self.earlier <= int(given or 0) <= self.now, f"the turn of {who} for {device} began at {given}"
        self.turns[device] = f"{who} {given}"

    def _first_waiter(self, device: str) -> tuple[str, float] | None:
        """The first in line who lives and can be served now. The silent and the late leave the line."""
        who, missed = self.turn_of(device)
        behind = 0
        for _ in range(20):
            line = sorted((rank, token) for token, rank in self.lines.get(device, {}).items())
            if behind >= len(line):
                return None
            rank, token = line[behind]
            waiter = self.waiters.get(token)
            wants = waiter is not None and device in waiter["devices"].split(",")
            if waiter is None or not wants or (token == who and missed):
                del self.lines[device][token]
            elif self._enough(device, waiter):
                return token, rank
            else:
                behind += 1
        return None

    def _enough(self, device: str, waiter: dict[str, str]) -> bool:
        """Whether as many of its devices are free as it needs, this one among them."""
        others = {*waiter["devices"].split(",")} - {device}
        return 1 + sum(map(self.is_free, others)) >= int(waiter["needs"])

    def _call_waiter(self, device: str, token: str) -> None:
        if self.turn_of(device)[0] != token:
            self._give_turn(device, token)
            self._token(token, device)
