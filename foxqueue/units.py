"""Sizes, times and priorities as people write them."""

from __future__ import annotations

import re

from foxqueue.errors import InvalidInput

MEMORY_BUCKET_MIB = 256
PRIORITY_NAMES = {"low": 2, "medium": 5, "high": 8}
DEFAULT_PRIORITY = 5
MAX_PRIORITY = 9
MAX_SECONDS = 365 * 86400.0  # a year: bounds every time, so that scores stay far below 2^53 us

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([MGT])(?:i?B)?\Z", re.IGNORECASE)
_SIZE_MIB = {"M": 1, "G": 1024, "T": 1024 * 1024}
_TIME = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+\Z")
_TIME_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_memory(text: str) -> int:
    """Read a memory size such as ``8G``, ``512M`` or ``1.5G``; G means GiB.

    Returns:
        MiB, rounded up to a multiple of 256; 0 for ``0``.

    Raises:
        InvalidInput: another spelling, or over 1,024 T.
    """
    if text.strip() == "0":
        return 0
    match = _SIZE.match(text.strip())
    if match is None:
        raise InvalidInput(f"memory size {text!r} is not understood: write a number and M, G or T, like 8G or 512M")
    mib = float(match[1]) * _SIZE_MIB[match[2].upper()]
    if mib > 1024 * 1024 * 1024:
        raise InvalidInput(f"memory size {text!r} is too large: at most 1024T")
    return -int(-mib // MEMORY_BUCKET_MIB) * MEMORY_BUCKET_MIB


def format_memory(mib: int | None) -> str:
    """MiB as people read it: ``24G``, ``7.5G``, ``512M``; ``unknown`` for None.

    Never less than the truth, and two sizes of which one can be asked for never look the same: 24,575 MiB are
    ``24575M``, not ``24G``.
    """
    if mib is None:
        return "unknown"
    if mib < 1024:
        return f"{mib}M"
    hundredths = -(-mib * 100 // 1024)
    if mib % MEMORY_BUCKET_MIB and hundredths % 25 == 0:
        return f"{mib}M"
    whole, rest = divmod(hundredths, 100)
    return f"{whole}.{rest:02d}".rstrip("0").rstrip(".") + "G"


def parse_duration(text: str) -> float:
    """Read a time such as ``30m``, ``1h30m``, ``10s``, ``500ms``.

    Returns:
        Seconds, at most a year.

    Raises:
        InvalidInput: another spelling (a bare number too: its unit would be a guess), or too long.
    """
    cleaned = text.strip().lower().replace(" ", "")
    if cleaned == "0":
        return 0.0
    if not _TIME.match(cleaned):
        raise InvalidInput(f"time {text!r} is not understood: write a number and ms, s, m, h or d, like 30m or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _TIME_PART.findall(cleaned))
    if seconds > MAX_SECONDS:
        raise InvalidInput(f"time {text!r} is too long: at most 365d")
    return seconds


def format_duration(seconds: float) -> str:
    """Seconds as people read them: ``12s``, ``3m04s``, ``2h05m``, ``3d04h``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def parse_priority(value: int | str) -> int:
    """Read a priority: 0-9, or low (2), medium (5), high (8). Higher runs first.

    Raises:
        InvalidInput: anything else.
    """
    text = str(value).strip().lower()
    if text in PRIORITY_NAMES:
        return PRIORITY_NAMES[text]
    if text.isascii() and text.isdigit() and int(text) <= MAX_PRIORITY:
        return int(text)
    raise InvalidInput(f"priority {value!r} is not understood: give 0 to 9, low (2), medium (5) or high (8)")
