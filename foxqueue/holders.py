"""Who has a device: the holders of leases as they stand in Redis, and jobs, for people. Pure.

The text of a lease's holder is ``user<TAB>host<TAB>pid<TAB>until_ms or ''<TAB>label``. Once an operator has taken the
device, who that was follows.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MAX_LABEL: Final = 60  # characters: all that Redis keeps of a lease stays under 300 bytes
MAX_NAME: Final = 64  # of a user and of a host

_GRANT = re.compile(r"([0-9]{1,18}) (lease|released_lease):([0-9a-f]{1,64})\Z")
_JOB = re.compile(r"([0-9]{1,18}) (job|released):([0-9]{1,15})\Z")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True)
class Holder:
    """Who has a device.

    Attributes:
        user, host, pid: whose process; "" and None where they are unknown.
        label: what the lease is for, in the holder's own words.
        job: number of the job that has it, None for a lease.
        since_ms: epoch ms of the grant, by the server's clock.
        until_ms: epoch ms until which it is meant to be held; None when that was not said. Nothing ends it then.
        fence: of the grant.
        taken_by: the operator who has taken the device from it; "" where none has.
    """

    user: str
    host: str
    pid: int | None
    label: str
    job: int | None
    since_ms: int | None
    until_ms: int | None
    fence: int | None
    taken_by: str = ""

    @property
    def shown(self) -> str:
        """For people: ``ann on box (pid 4711, "notebook") since 12:03:10, until 14:03:10``; ``job 7 of ann on box``."""
        who = " on ".join(filter(None, (self.user or "somebody", self.host)))
        if self.job is not None:
            return f"job {self.job} of {who}"
        what = ", ".join(filter(None, (f"pid {self.pid}" if self.pid else "", f'"{self.label}"' if self.label else "")))
        text = f"{who} ({what})" if what else who
        if self.since_ms is not None:
            text += f" since {clock(self.since_ms)}"
        if self.until_ms is not None:
            text += f", until {clock(self.until_ms)}"
        return f"{text}, taken away by {self.taken_by}" if self.taken_by else text


@lru_cache(64)
def holder_text(user: str, host: str, pid: int, until_ms: int | None, label: str) -> str:
    """The text that Redis keeps of a lease's holder. What could be taken for its own signs becomes a space."""
    words = (_plain(user, MAX_NAME), _plain(host, MAX_NAME), str(pid), str(until_ms or ""), _plain(label, MAX_LABEL))
    return "\t".join(words)


def lease_token(grant: str) -> str | None:
    """The token of the lease that a grant names; None where it is no lease's."""
    match = _GRANT.match(grant)
    return match[3] if match else None


def job_number(grant: str) -> int | None:
    """The job that a grant names; None where it is no job's."""
    match = _JOB.match(grant)
    return int(match[3]) if match else None


def read_holder(grant: str, text: str | None) -> Holder | None:
    """Who has a device by a lease.

    Args:
        grant: of the device, ``<fence> lease:<token>`` or ``<fence> released_lease:<token>``.
        text: of :func:`holder_text`, None when it is gone.

    Returns:
        The holder, as far as it can be read; None when the grant is no lease's.
    """
    match = _GRANT.match(grant)
    if match is None:
        return None
    fence = int(match[1])
    user, host, pid, until, label, by = [*(text or "").split("\t"), *[""] * 6][:6]
    return Holder(
        user=user,
        host=host,
        pid=_number(pid),
        label=label,
        job=None,
        since_ms=fence // 1000,
        until_ms=_number(until),
        fence=fence,
        taken_by=(by or "an operator") if match[2] == "released_lease" else "",
    )


def job_holder(grant: str, user: str, host: str) -> Holder | None:
    """Who has a device by a job.

    Args:
        grant: of the device, ``<fence> job:<n>`` or ``<fence> released:<n>``.
        user: who submitted it, "" when unknown.
        host: where it runs, "" when unknown.
    """
    match = _JOB.match(grant)
    if match is None:
        return None
    return Holder(user, host, None, "", int(match[3]), int(match[1]) // 1000, None, int(match[1]))


def clock(ms: int) -> str:
    """A moment on this machine's clock: the time alone where it is of today."""
    try:
        then, today = time.localtime(ms / 1000), time.localtime()
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)


def _plain(text: str, most: int) -> str:
    return _UNPRINTABLE.sub(" ", text).strip()[:most]


def _number(digits: str) -> int | None:
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None
