"""Devices that nobody is given: dirty ones and quarantined ones, as Redis keeps them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Word = Literal["dirty", "quarantined"]
Kind = Literal["memory", "fault", "ecc", "failures"]
WORDS: Final = ("dirty", "quarantined")


@dataclass(frozen=True)
class Withheld:
    """Why a device is withheld.

    Attributes:
        word: its state, ``dirty`` or ``quarantined``.
        since_ms: epoch ms; 0 when unknown.
        boot: of its machine then, '' when unknown.
        kind: ``memory`` (of a run, did not come back), ``fault`` (NVML's), ``ecc``, ``failures`` (runs failed at once).
        text: for people, with the cure.
    """

    word: str
    since_ms: int
    boot: str
    kind: str
    text: str


def read_withheld(text: str | None) -> Withheld | None:
    """Read a field of ``withheld``; None when there is none. What cannot be read is quarantined all the same."""
    if not text:
        return None
    parts = text.split("\t", 4)
    if len(parts) < 5 or parts[0] not in WORDS:
        return Withheld("quarantined", 0, "", "", text.replace("\t", " "))
    word, since, boot, kind, why = parts
    return Withheld(word, int(since) if since.isascii() and since.isdigit() else 0, boot, kind, why)
