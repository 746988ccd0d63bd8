"""Who the processes on a GPU are, as far as /proc tells.

NVML counts processes as the driver does. In a container the driver gives the numbers of the host, which mean nothing
there or, worse, mean somebody else; newer drivers translate them, and give figures of 0.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from foxqueue.units import format_memory

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, the same in every kernel
_MAX_COMMAND = 60


@dataclass(frozen=True)
class Stranger:
    """A process on a device that is not ours.

    Attributes:
        pid: as NVML counts.
        mib: of the device's memory that it holds; None when that is not told.
        user: login name, or the number where it has none; empty when it cannot be seen from here.
        command: program, and the script where it is Python; empty when it cannot be seen from here.
    """

    pid: int
    mib: int | None
    user: str = ""
    command: str = ""

    @property
    def shown(self) -> str:
        """For people: ``pid 4242 (ann, python train.py, 1.2G)``."""
        parts = (self.user, self.command, format_memory(self.mib))
        return f"pid {self.pid} ({', '.join(part for part in parts if part)})"


@dataclass(frozen=True)
class Who:
    """A process as /proc tells of it.

    Attributes:
        pid: of the process that a number belongs to: translated for a container it can be that of a thread.
        names: those by which it can be ignored.
    """

    pid: int
    user: str = ""
    command: str = ""
    names: frozenset[str] = frozenset()


class Register:
    """Who the processes on one device are. Each is looked up once while it stays there."""

    def __init__(self) -> None:
        self._known: dict[int, Who] = {}
        self._seen: set[int] = set()

    def who(self, pid: int) -> Who:
        """A process; nothing is known of one that is gone, or that is hidden from us."""
        known = self._known.get(pid)
        if known is None:
            known = self._known[pid] = _look_up(pid)
        return known

    def keep(self, there: Collection[int]) -> None:
        """Forget all processes but those that are there now: their numbers are given out again."""
        for pid in self._known.keys() - there:
            del self._known[pid]

    def believable(self, listed: Iterable[int]) -> bool:
        """Whether NVML's process numbers are those of our own /proc.

        Outside containers they are. Inside, a single one that was never there shows that all are the host's.
        """
        if in_initial_namespace():
            return True
        numbers = {pid for pid in listed if pid}
        there = {pid for pid in numbers if os.path.exists(f"/proc/{pid}")}  # noqa: PTH110 - at every look
        self._seen = (self._seen & numbers) | there
        return self._seen >= numbers


@cache
def in_initial_namespace() -> bool:
    """Whether this process is in no container that counts processes by itself."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE  # noqa: PTH116
    return False


def _look_up(pid: int) -> Who:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            status = dict(line.rstrip("\n").partition(":\t")[::2] for line in file)
        name, user, leader = status["Name"], _login(int(status["Uid"].split()[0])), int(status["Tgid"])
    except (OSError, KeyError, ValueError, IndexError):
        return Who(pid)
    words = _command_line(pid)
    program = os.path.basename(words[0]) if words else ""  # noqa: PTH119
    return Who(leader, user, _shown(program, words) or name, frozenset(filter(None, (name, program))))


def _command_line(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            data = file.read(4096)
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in data.rstrip(b"\0").split(b"\0")] if data else []


def _shown(program: str, words: list[str]) -> str:
    """The program, and the script or module that Python runs. No more: arguments may hold secrets."""
    text = program
    if program.startswith("python") and len(words) > 1:
        if words[1] == "-m" and len(words) > 2:
            text = f"{program} -m {words[2]}"
        elif not words[1].startswith("-"):
            text = f"{program} {os.path.basename(words[1])}"  # noqa: PTH119
    return "".join(sign if sign.isprintable() else "?" for sign in text)[:_MAX_COMMAND]


@cache
def _login(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)  # containers run under numbers that no passwd file names
