"""What each process of a history writes down: one line of JSON an event, in one write, so that a kill tears none.

The words: ``acquired`` (one line a device), ``holds`` (the lease was checked and is ours), ``releasing`` before and
``released`` after the release, ``lost``, ``refused``. Of a process, by whoever does it to it, just before the signal:
``killed``, ``stopped``, ``continued``. Of a device, at the end, by somebody who uses none: ``free`` or ``taken``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """One line.

    Attributes:
        at: when it was written, ns of CLOCK_MONOTONIC, which all processes of a machine share.
        who: the process, by a name that no other ever had.
        what: one of the words above.
        device: UUID; "" where it is about the process.
        fence: of the lease; 0 where there is none.
        asked: when the question was asked whose answer this is; 0 where there is none.
        more: for people.
    """

    at: int
    who: str
    what: str
    device: str = ""
    fence: int = 0
    asked: int = 0
    more: str = ""


class Book:
    """The file of one process.

    Args:
        path: made when missing, else continued.
        who: whose events it gets.
    """

    def __init__(self, path: Path, who: str) -> None:
        self.who = who
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(
        self,
        what: str,
        device: str = "",
        fence: int = 0,
        asked: int = 0,
        more: str = "",
        *,
        who: str | None = None,
        at: int | None = None,
    ) -> None:
        """Write one event; ``at`` is now and ``who`` the owner of the file by default."""
        moment = time.monotonic_ns() if at is None else at
        event = Event(moment, self.who if who is None else who, what, device, fence, asked, more[:300])
        os.write(self._file, json.dumps(asdict(event)).encode() + b"\n")


def read(paths: Iterable[Path]) -> list[Event]:
    """All events of these files, in the order of their times."""
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted((Event(**json.loads(line)) for line in lines), key=lambda event: event.at)
