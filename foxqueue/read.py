"""Reads fields that may hold anything: what cannot be read counts as unknown. Pure."""

from __future__ import annotations

from typing import Any

from foxqueue import codec


def text(value: bytes | None) -> str | None:
    """Bytes as text, what is not UTF-8 as surrogates; None when there is nothing."""
    return value.decode("utf-8", "surrogateescape") if value else None


def number(digits: str | None) -> int | None:
    """A whole number."""
    # at most 18 digits: longer ones are no number of ours, and int() would take long over megabytes of them
    if not digits or len(digits) > 19 or not digits.lstrip("-").isascii() or not digits.lstrip("-").isdigit():
        return None
    return int(digits) if digits.count("-") <= 1 else None


def ms_of_tick(digits: str | None) -> int | None:
    """Epoch ms of a tick, which is the server's clock in us, or a little later."""
    return (number(digits) or 0) // 1000 or None


def mapping(data: bytes | None) -> dict[str, Any]:
    """A packed map, those of its entries that have a name."""
    if data is None:
        return {}
    try:
        found = codec.unpack(data)
    except ValueError:
        return {}
    return {key: value for key, value in found.items() if isinstance(key, str)} if isinstance(found, dict) else {}


def whole(value: Any) -> int | None:
    """A number as it was packed."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def string(value: Any) -> str | None:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else None


def strings(value: Any) -> tuple[str, ...]:
    """A list of texts; what is none is written out."""
    return tuple(part if isinstance(part, str) else repr(part) for part in value) if isinstance(value, list) else ()


def texts(value: Any) -> dict[str, str]:
    """A map from text to text."""
    return {str(key): str(item) for key, item in value.items()} if isinstance(value, dict) else {}
