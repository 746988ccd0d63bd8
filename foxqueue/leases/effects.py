"""What the steps of acquiring and releasing may ask of who drives them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from foxqueue.scripts import Call


@dataclass(frozen=True)
class Ask:
    """Send these scripts in one round trip; a list of replies."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Read:
    """Send these commands, which only read, in one round trip; a list of answers."""

    commands: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Local:
    """Call this, which takes a while; what it returns."""

    call: Callable[[], Any]


@dataclass(frozen=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Listen:
    """Wait for a call to come, so many seconds at most; the device for which it came, or None."""

    key: str
    seconds: float


Step = Ask | Read | Local | Pause | Listen
T = TypeVar("T")
Steps = Generator[Step, Any, T]
