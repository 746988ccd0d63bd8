"""Reads Redis's answers in the shapes of both of its protocols, and asks for sorted sets page by page. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def text(value: Any) -> str:
    """Bytes as text; what is not UTF-8 survives as surrogates."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def whole(value: Any) -> int:
    """A count or a number of a job; 0 for what is none."""
    digits = text(value)
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def pairs(answer: Any) -> list[tuple[Any, Any]]:
    """Pairs: a flat list under one protocol, a list of pairs or a map under the other."""
    if not answer:
        return []
    if isinstance(answer, dict):
        return list(answer.items())
    if isinstance(answer[0], list | tuple):
        return [(first, second) for first, second in answer]
    return list(zip(answer[::2], answer[1::2], strict=True))


def memory_of(told: Mapping[str, Any]) -> tuple[int, int]:
    """Of INFO's section memory: bytes that count against the server's limit, and the limit (0: none)."""
    used = int(told.get("used_memory") or 0) - int(told.get("mem_not_counted_for_evict") or 0)
    return used, int(told.get("maxmemory") or 0)


def scores(answer: Any) -> list[tuple[float, int]]:
    """Score and job of each member of a sorted set."""
    return [(float(score), whole(member)) for member, score in pairs(answer)]


def fields(answer: Any) -> dict[str, str]:
    """Fields of a hash or of a stream's entry, as text."""
    return {text(name): text(value) for name, value in pairs(answer)}


def streams(answer: Any) -> list[tuple[Any, Any]]:
    """Streams and their entries, those without entries left out."""
    if isinstance(answer, dict):
        return [(key, [entry for part in parts for entry in part]) for key, parts in answer.items() if parts]
    return [(key, entries) for key, entries in answer or [] if entries]


@dataclass(frozen=True)
class Piece:
    """A piece of output: the run it belongs to and where it stands in that run's output, in bytes."""

    fence: int
    offset: int
    data: bytes

    @property
    def entry(self) -> str:
        """Its id in the stream."""
        return f"{self.fence}-{self.offset}"


def read_pieces(entries: Any) -> list[Piece]:
    """Pieces of output from the entries of a job's stream."""
    found = []
    for entry, values in entries or []:
        fence, _, offset = text(entry).partition("-")
        found.append(Piece(int(fence), int(offset), dict(pairs(values)).get(b"data", b"")))
    return found


def first_page(key: str, verb: str, start: int, count: int) -> tuple[Any, ...]:
    """The command for the first members of a sorted set, by ZRANGE or ZREVRANGE."""
    return (verb, key, start, start + count - 1, "WITHSCORES")


def page_from(key: str, verb: str, edge: float, skipped: int, count: int) -> tuple[Any, ...]:
    """The command for the members from a score on, that one included; ``skipped`` of them are left out."""
    start = f"{edge:.17g}"
    if verb == "ZRANGE":
        return ("ZRANGE", key, start, "+inf", "BYSCORE", "LIMIT", skipped, count, "WITHSCORES")
    return ("ZRANGE", key, start, "-inf", "BYSCORE", "REV", "LIMIT", skipped, count, "WITHSCORES")
