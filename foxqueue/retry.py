"""Whether a failed run is followed by another attempt, and after how long. Pure but for chance."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from foxqueue.states import RETRIED

MAX_DELAY_S: Final = 3600.0
JITTER: Final = 0.25  # of the delay, on top of it at most
LATER: Final = 75  # EX_TEMPFAIL: a command that exits with it could not do its work yet
LATER_S: Final = 1.0  # at least so long before such a one is tried again


def backoff(attempt: int, base_s: float, cap_s: float = MAX_DELAY_S) -> float:
    """Seconds to wait after a failed attempt, chance left out: the base, doubled with each further attempt.

    Args:
        attempt: the attempt that failed, counted from 1.
        base_s: seconds to wait after the first; also when it is above the cap.
        cap_s: seconds that doubling does not go beyond.
    """
    if base_s <= 0:
        return 0.0
    doublings = min(max(attempt, 1) - 1, 32)
    return float(min(base_s * 2**doublings, max(cap_s, base_s)))


def jittered(seconds: float) -> float:
    """Up to a quarter more, drawn by chance: what failed at once, as all of a sweep may, does not come back at once."""
    return seconds * (1 + JITTER * random.random())


@dataclass(frozen=True)
class Retries:
    """What a job says about further attempts.

    Attributes:
        attempt: the number of its present run, from 1.
        base_s: seconds before the second attempt.
        cap_s: seconds that doubling them does not go beyond.
        on: words of RETRIED and exit codes, as text, after which it is tried again; None for all of RETRIED.
    """

    attempt: int = 1
    base_s: float = 0.0
    cap_s: float = MAX_DELAY_S
    on: tuple[str, ...] | None = None

    def answer(self, reason: str, exit_code: int | None) -> bool:
        """Whether an end is followed by another attempt, as long as attempts last.

        Args:
            reason: why the run ended, of the closed list.
            exit_code: the command's own, when it has one; it counts where it is the reason.
        """
        if reason not in RETRIED or self.on is None:
            return reason in RETRIED
        return reason in self.on or (reason == "exit_code" and str(exit_code) in self.on)

    def delay_s(self) -> float:
        """Draw the seconds before the next attempt: up to a quarter more than :func:`backoff` says."""
        return jittered(backoff(self.attempt, self.base_s, self.cap_s))

    def later_s(self) -> float:
        """Draw the seconds before a run that could not do its work yet is tried again; no attempt is counted."""
        return jittered(max(self.base_s, LATER_S))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a record."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Retries:
        """Read what :meth:`to_dict` gave.

        Raises:
            ValueError: a field is of the wrong type.
        """
        try:
            on = data.get("on")
            return cls(
                attempt=int(data.get("attempt", 1)),
                base_s=float(data.get("base_s", 0.0)),
                cap_s=float(data.get("cap_s", MAX_DELAY_S)),
                on=None if on is None else tuple(map(str, on)),
            )
        except (AttributeError, TypeError) as error:
            raise ValueError(f"not what a job says about retries: {data!r:.100}") from error
