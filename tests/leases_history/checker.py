"""Judges a history: no two holders at once, fences that only grow, and every device free at the end.

A holding begins, for certain, when the answer was there (``acquired``), and lasts, for certain, until its holder was
about to release it, was about to be killed, or last saw before a loss that it still had it. Two holdings of one device
that overlap by these bounds overlapped in truth: what is reported is a fault, whatever the clocks of the processes did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from leases_history.history import Event


@dataclass(frozen=True)
class Holding:
    """One device as one process had it.

    Attributes:
        asked: when it was asked for; it was not held before.
        since: when it was held for certain.
        until: when it was still held for certain; None when nothing ended it.
        how: the word that ended it.
    """

    who: str
    device: str
    fence: int
    asked: int
    since: int
    until: int | None = None
    how: str = ""

    def __str__(self) -> str:
        end = "its end was never written" if self.until is None else f"{_s(self.until)} ({self.how})"
        return f"{self.who} had {self.device} with fence {self.fence} from {_s(self.since)} to {end}"


def _s(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.6f} s"


def holdings(events: Sequence[Event], locked: bool = True) -> list[Holding]:
    """All holdings of a history.

    Args:
        events: in the order of their times.
        locked: whether a file lock kept the devices too, so that even a lost lease excludes others until its holder
            heard of the loss. Without, a loss counts from the last time that the lease was seen to be held.

    Raises:
        ValueError: an event ends what never began, or begins what goes on.
    """
    made: list[Holding] = []
    open_: dict[tuple[str, str], int] = {}  # who, device -> index in made
    seen: dict[int, int] = {}  # index in made -> last time it was seen to be held
    for event in events:
        key = (event.who, event.device)
        if event.what == "acquired":
            if key in open_:
                raise ValueError(f"{event} while {made[open_[key]]}")
            open_[key] = len(made)
            seen[len(made)] = event.at
            made.append(Holding(event.who, event.device, event.fence, event.asked, event.at))
        elif event.what == "killed":
            for mine in [mine for mine in open_ if mine[0] == event.who]:
                at = open_.pop(mine)
                made[at] = replace(made[at], until=max(event.at, made[at].since), how="killed")
        elif event.what in ("holds", "releasing", "lost"):
            if key not in open_ or made[open_[key]].fence != event.fence:
                raise ValueError(f"{event} of a lease that was not acquired")
            if event.what == "holds":
                seen[open_[key]] = event.at
                continue
            at = open_.pop(key)
            until = seen[at] if event.what == "lost" and not locked else event.at
            made[at] = replace(made[at], until=until, how=event.what)
    return made


def faults(events: Sequence[Event], locked: bool = True) -> list[str]:
    """Everything in a history that may not be, each with what shows it; none when all is well.

    Args:
        events: in the order of their times.
        locked: as for `holdings`; losses are faults then too, as nobody else can have taken the device.
    """
    made = holdings(events, locked)
    found = [f"never ended: {holding}" for holding in made if holding.until is None]
    if locked:
        found += [f"lost although its device was locked: {holding}" for holding in made if holding.how == "lost"]
    for device in sorted({holding.device for holding in made}):
        mine = sorted((one for one in made if one.device == device), key=lambda one: (one.since, one.fence))
        found += _overlaps(mine)
        found += _falling(mine)
    return [*found, *_shared_fences(made), *_at_the_end(events, made)]


def _overlaps(mine: Sequence[Holding]) -> Iterable[str]:
    """Two holders at once. In order of their beginnings, each is held against the one that lasts longest so far."""
    longest: Holding | None = None
    for one in mine:
        if longest is not None and (longest.until is None or longest.until > one.since):
            yield f"two holders at once: {longest}; {one}"
        if longest is None or (longest.until is not None and (one.until is None or one.until > longest.until)):
            longest = one


def _falling(mine: Sequence[Holding]) -> Iterable[str]:
    """A fence that is not above that of a holding which had begun before this one was asked for."""
    begun = iter(mine)
    coming, highest = next(begun, None), None
    for one in sorted(mine, key=lambda one: one.asked):
        while coming is not None and coming.since <= one.asked:
            if highest is None or coming.fence > highest.fence:
                highest = coming
            coming = next(begun, None)
        if highest is not None and one is not highest and one.fence <= highest.fence:
            yield f"a fence that does not grow: {highest}; then {one}"


def _shared_fences(made: Sequence[Holding]) -> Iterable[str]:
    """One fence belongs to one lease, which may be of several devices of one process."""
    owner: dict[int, Holding] = {}
    for one in made:
        first = owner.setdefault(one.fence, one)
        if (first.who, first.asked) != (one.who, one.asked):
            yield f"one fence of two leases: {first}; {one}"


def _at_the_end(events: Sequence[Event], made: Sequence[Holding]) -> Iterable[str]:
    """Each device was looked at after its last holding, and was free."""
    last = {event.device: event for event in events if event.what in ("free", "taken")}
    for device in sorted({one.device for one in made} | set(last)):
        ends = [one.until for one in made if one.device == device and one.until is not None]
        look = last.get(device)
        if look is None or look.at < max(ends, default=0):
            yield f"nobody looked at {device} after its last holder"
        elif look.what == "taken":
            yield f"not free at the end: {device}: {look.more}"


def told(events: Sequence[Event]) -> Counter[str]:
    """How often each word stands there: a history in which nothing happened says nothing."""
    return Counter(event.what for event in events)
