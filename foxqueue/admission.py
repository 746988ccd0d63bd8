"""Whether the memory of a GPU is there for the next user: free for long enough, and back after the last one. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

TOLERANCE_MIB: Final = 256  # by so much a GPU may hold more after a run than before: what a driver keeps for itself


class FreeMemory:
    """The free memory that has been there for several looks, not only at the last one.

    Args:
        samples: how many looks count.
    """

    def __init__(self, samples: int) -> None:
        self._free: deque[int | None] = deque(maxlen=samples)
        self._hidden: deque[int | None] = deque(maxlen=samples)

    @property
    def full(self) -> bool:
        """Whether there have been so many looks."""
        return len(self._free) == self._free.maxlen

    def keep(self, samples: int) -> None:
        """From now on so many looks count."""
        if samples != self._free.maxlen:
            self._free, self._hidden = deque(self._free, samples), deque(self._hidden, samples)

    def add(self, free_mib: int | None, hidden_mib: int | None) -> None:
        """Take a look that counts: nobody of ours was on the GPU. None is unknown.

        Args:
            free_mib: free memory.
            hidden_mib: in use by nobody that can be seen.
        """
        self._free.append(free_mib)
        self._hidden.append(hidden_mib)

    def stable(self, fresh_mib: int | None) -> int | None:
        """MiB that were free at every look that counts and at the fresh one; None when any of them does not know."""
        looks = [*self._free, fresh_mib]
        known = [mib for mib in looks if mib is not None]
        return min(known) if len(known) == len(looks) else None

    def falls(self, fresh_mib: int | None) -> bool:
        """Whether a look shows less than all that count."""
        known = [mib for mib in self._free if mib is not None]
        return self.full and fresh_mib is not None and bool(known) and fresh_mib < min(known)

    def before(self, fresh_mib: int | None) -> int | None:
        """MiB in use by nobody that can be seen, the most of all looks; None when the fresh one does not know."""
        known = [mib for mib in self._hidden if mib is not None]
        return None if fresh_mib is None else max(*known, fresh_mib) if known else fresh_mib


@dataclass(frozen=True)
class Returning:
    """The memory of a run that is over.

    Attributes:
        job: its number.
        before_mib: in use by nobody that could be seen before it began; None when unknown: then nothing can be said.
        since: when it ended, in seconds of time.monotonic().
    """

    job: int
    before_mib: int | None
    since: float

    def missing(self, hidden_mib: int | None) -> int:
        """MiB that have not come back; 0 when that is within what a driver keeps for itself, or unknown.

        Args:
            hidden_mib: in use now by nobody that can be seen.
        """
        if self.before_mib is None or hidden_mib is None:
            return 0
        more = hidden_mib - self.before_mib
        return more if more > TOLERANCE_MIB else 0

    def overdue(self, now: float, allowed_s: float) -> bool:
        """Whether it has had all the time that it may take."""
        return now - self.since >= allowed_s
