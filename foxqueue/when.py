"""When a job may start at the earliest, and when it is no longer worth starting."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from foxqueue.errors import InvalidInput
from foxqueue.units import MAX_SECONDS, format_duration, parse_duration

OFF = "off"
ZONEINFO = Path("/usr/share/zoneinfo")
LOCALTIME = Path("/etc/localtime")
HOW = "give RFC 3339 with its offset, like 2026-12-01T08:00:00+01:00, or local time, like '2026-12-01 08:00'"

_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)[0-9]*"
    r"([Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?",
    re.ASCII,
)
_OFFSET = re.compile(r"[+-][0-9:]+\Z", re.ASCII)
_BY_RULES = re.compile(r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]+>)[+-]?[0-9]", re.ASCII)  # how TZ spells a zone out
_NO_PLACE = ("", "UTC", "GMT")  # these need no file


class Moment(NamedTuple):
    """A moment: epoch milliseconds, and as people read it, with its offset and, where it was local, its zone."""

    ms: int
    shown: str

    def note(self, now_ms: float) -> str:
        """What is said about a job that may start then, a sentence."""
        if self.ms <= now_ms:
            return f"{self.shown} is past: the job is due at once"
        return f"starts at {self.shown}"


class Times(NamedTuple):
    """Checked times of a job: its start, None where it may start at once or ``more`` says a delay, and the lines that
    say all of it to the queue."""

    start: Moment | None = None
    more: str = ""


def times(delay: float | str | None, at: Any, expires: float | str | None) -> Times:
    """Check when a job may start and until when it is worth it.

    Args:
        delay: seconds from now, or text like ``10m``.
        at: text, RFC 3339 with an offset or local time, or a datetime; local where it has no zone.
        expires: seconds from now, or text; ``off`` for never, whatever the namespace says.

    Raises:
        InvalidInput: one is malformed, both delay and at are given, or it would expire before it may start.
    """
    if delay is not None and at is not None:
        raise InvalidInput("delay and at are two answers to one question: give the one or the other")
    wait = 0.0 if delay is None else seconds(delay, "delay")
    start = None if at is None else moment(at)
    lines = []
    if wait:
        lines.append(f"delay_ms={round(wait * 1000)}")
    if start:
        now = time.time()
        wait = start.ms / 1000 - now
        if wait > MAX_SECONDS:
            raise InvalidInput(f"{start.shown} is over a year ahead: give a moment within 365 days")
        lines.append(f"at_ms={start.ms}")
    if isinstance(expires, str) and expires.strip().lower() == OFF:
        lines.append(f"expires_ms={OFF}")
    elif expires is not None:
        lines.append(f"expires_ms={_expiry_ms(expires, wait)}")
    return Times(start, "".join(f"{line}\n" for line in lines))


def _expiry_ms(given: float | str, wait: float) -> int:
    limit = seconds(given, "expires")
    if round(limit * 1000) < 1:
        raise InvalidInput("a job that expires after 0 would be cancelled at once: leave it out for none")
    if limit <= wait:
        raise InvalidInput(
            f"it would expire before it may start: it starts in {format_duration(wait)} at the earliest and expires in "
            f"{format_duration(limit)}; both count from now"
        )
    return round(limit * 1000)


def seconds(given: float | str, what: str) -> float:
    """Seconds from a number of them or text like ``30m``."""
    if isinstance(given, str):
        return parse_duration(given)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= MAX_SECONDS:
        raise InvalidInput(f"{what} {given!r} is not understood: give seconds up to a year, or text like '30m'")
    return float(given)


def moment(given: Any) -> Moment:
    """Read a moment.

    Args:
        given: see :func:`times`.

    Raises:
        InvalidInput: another spelling, no moment of the calendar, or a local time that clocks never show, or twice.
    """
    if isinstance(given, datetime):
        found = given
    elif not isinstance(given, str):
        raise InvalidInput(f"at {given!r:.60} is not understood: {HOW}")
    else:
        match = _MOMENT.fullmatch(given.strip())
        if match is None:
            raise InvalidInput(f"at {given!r:.60} is not understood ({_wrong(given.strip())}): {HOW}")
        try:
            found = datetime.fromisoformat(f"{match[1]}T{match[2]}{(match[3] or '').upper()}")
        except ValueError as error:
            raise InvalidInput(f"at {given!r:.60} is no moment ({str(error).replace('..', ' to ')}): {HOW}") from error
    try:
        if found.utcoffset() is None:
            return _local(found)
        return Moment(_ms(found), found.isoformat(timespec="seconds"))
    except InvalidInput:
        raise
    except (OverflowError, OSError, ValueError) as error:
        raise InvalidInput(f"at {given!r:.60} is no moment that this machine can name: {HOW}") from error


def _wrong(text: str) -> str:
    """What is wrong with text that is no moment, in words."""
    offset = _OFFSET.search(text[11:])
    if offset and _MOMENT.fullmatch(text.removesuffix(offset[0])):
        return f"its offset {offset[0]} is none, they go from -23:59 to +23:59, like +01:00"
    if _MOMENT.fullmatch(f"{text} 00:00"):
        return "it names no time of day"
    if _MOMENT.fullmatch(f"2000-01-01 {text}"):
        return "it names no day"
    return "it is not written as YYYY-MM-DD HH:MM"


def _check_zone() -> None:
    """Refuse a TZ that names no zone: the system takes UTC in its place without a word."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if name in _NO_PLACE or _BY_RULES.match(name) or _is_zone(name):
        return
    raise InvalidInput(
        f"TZ is {name!r:.60}, and this machine has no zone of that name, so that nobody knows what local time is: "
        "write the offset, like 2026-12-01T08:00:00+01:00, or set TZ to a name like Europe/Berlin"
    )


def _is_zone(name: str) -> bool:
    try:
        return bool(name) and (Path(os.environ.get("TZDIR") or ZONEINFO) / name).is_file()
    except (OSError, ValueError):
        return False


def _local(naive: datetime) -> Moment:
    """A moment by the clocks on the wall here."""
    _check_zone()
    readings = [datetime.fromtimestamp(naive.replace(fold=fold).timestamp()).astimezone() for fold in (0, 1)]
    first, second = readings
    if first.timestamp() == second.timestamp():
        return Moment(_ms(first), f"{first.isoformat(timespec='seconds')} ({_zone(first)})")
    twice = first.replace(tzinfo=None) == naive.replace(fold=0)
    what = "comes twice" if twice else "does not exist"
    either = " or ".join(sorted(reading.isoformat(timespec="seconds") for reading in readings))
    raise InvalidInput(
        f"local time {naive.isoformat(' ', 'seconds')} {what} in {_zone(first)}, where clocks are changed then: "
        f"give {either}"
    )


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _zone(here: datetime) -> str:
    """The name of this machine's zone, like Europe/Berlin, else what it calls its time, like CET."""
    name = os.environ.get("TZ")
    if name is None:
        _, _, name = os.path.realpath(LOCALTIME).partition("/zoneinfo/")
    name = name.removeprefix(":")
    return name if _is_zone(name) else here.tzname() or "local time"
