"""Who a process is, who descends from it, and how to end everything that carries a mark.

A number is no identity: the kernel gives it out again. So a process is named by its number, its start time
and the boot it belongs to, and a signal is sent only to that one. Pure standard library.
"""

# No pathlib: the runner, whose start must be quick, imports this.
# ruff: noqa: PTH110, PTH115, PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_EMPTY_SCANS: Final = 3  # a process that forks every few ms can slip through one scan


@dataclass(frozen=True)
class ProcessId:
    """One process of one boot of one machine, as this process sees it.

    Attributes:
        pid: its number in the namespace ``pid_ns``.
        start: its start time in clock ticks after boot (field 22 of /proc/PID/stat).
        boot_id: random name of the kernel's boot.
        pid_ns: the pid namespace the number belongs to.
    """

    pid: int
    start: int
    boot_id: str
    pid_ns: str

    @classmethod
    def of(cls, pid: int | None = None) -> ProcessId | None:
        """The identity of a process that exists (a zombie too), this one by default; None when gone."""
        number = os.getpid() if pid is None else pid
        stat = _stat(number)
        return None if stat is None else cls(number, int(stat[19]), boot_id(), pid_namespace())

    def alive(self) -> bool:
        """Whether this very process still runs.

        False when it is gone, a zombie, of another boot, or its number belongs to somebody else now. True
        when that cannot be judged from here: another pid namespace, or a /proc that hides it.
        """
        if self.boot_id != boot_id():
            return False
        if self.pid_ns != pid_namespace():
            return True
        stat = _stat(self.pid)
        if stat is not None:
            return int(stat[19]) == self.start and stat[0] not in ("Z", "X")
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # /proc is mounted with hidepid: it exists and nothing more can be said
        stat = _stat(self.pid)
        return stat is not None and int(stat[19]) == self.start

    def send(self, signum: int) -> bool:
        """Send a signal to this very process, never to a later one of the same number.

        Returns:
            Whether it was sent; False also when the process lives where we cannot or may not signal it.
        """
        if self.pid_ns != pid_namespace() or not self.alive():
            return False
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except OSError:  # an old kernel, or a container that forbids the call: a small gap is left
            return _kill(self.pid, signum)
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, signum)
            return True
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(descriptor)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a record."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProcessId:
        """Read what :meth:`to_dict` gave.

        Raises:
            ValueError: a field is missing or of the wrong type.
        """
        try:
            values = (data["pid"], data["start"], data["boot_id"], data["pid_ns"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a process identity: {data!r}") from error
        for value, kind in zip(values, (int, int, str, str), strict=True):
            if type(value) is not kind:
                raise ValueError(f"not a process identity: {data!r}")
        if values[0] <= 0:
            raise ValueError(f"not a process identity: {data!r}")
        return cls(*values)

    @classmethod
    def named(cls, record: Mapping[str, Any], name: str) -> ProcessId | None:
        """The identity under a name in a record; None when there is none, or a malformed one."""
        try:
            return cls.from_dict(record[name])
        except (KeyError, ValueError):
            return None


def fill_standard_fds() -> None:
    """Open /dev/null where standard input, output or error was closed.

    Else the next file or socket gets its number, and is taken for it.
    """
    for wanted in (0, 1, 2):
        try:
            os.fstat(wanted)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one


@cache
def boot_id() -> str:
    """The kernel's random name of this boot; empty where it is not told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def short_boot_id() -> str:
    """Its first 8 characters: enough to tell one boot of a machine from another."""
    return boot_id()[:8]


def pid_namespace() -> str:
    """The pid namespace of this process; empty where it is not told."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def parent_of(pid: int) -> int | None:
    """Number of the parent of a process, None when the process is gone."""
    stat = _stat(pid)
    return None if stat is None else int(stat[1])


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process."""
    stat = _stat(pid)
    return stat is not None and stat[0] == "T"


def children(pid: int) -> list[int]:
    """Children of a process, zombies too. While processes come and go the answer can miss some: ask again."""
    if not _tells_children():
        return _by_parent().get(pid, [])
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    except OSError:
        return []
    return found


def descendants(pid: int, skip: Collection[int] = ()) -> list[int]:
    """Children, their children and so on, parents before children, without ``pid`` itself.

    Args:
        pid: whose.
        skip: processes to be left out with all that descends from them.
    """
    table = None if _tells_children() else _by_parent()
    found: dict[int, None] = {}
    queue = [pid]
    for number in queue:
        for child in children(number) if table is None else table.get(number, []):
            if child not in found and child != pid and child not in skip:
                found[child] = None
                queue.append(child)
    return list(found)


def marked(name: str, value: str) -> list[int]:
    """Processes whose environment was given ``NAME=VALUE``, as far as we may read it; zombies have none."""
    wanted = f"{name}={value}".encode("utf-8", "surrogateescape")
    found = []
    for pid in _all_pids():
        try:
            environment = _read(f"/proc/{pid}/environ")
        except OSError:
            continue
        if wanted in environment and wanted in environment.split(b"\0"):
            found.append(pid)
    return found


def become_subreaper() -> None:
    """Let orphans among our descendants become our children instead of init's.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_CHILD_SUBREAPER)")


def session_of(leader: ProcessId) -> list[int]:
    """Living processes of the session that ``leader`` began, itself included, also when it is gone.

    Its number is not given out again while the session lives; if somebody else has it, the session is over.
    """
    if leader.boot_id != boot_id() or leader.pid_ns != pid_namespace():
        return []
    now = ProcessId.of(leader.pid)
    if now is not None and now != leader:
        return []
    found = []
    for pid in _all_pids():
        stat = _stat(pid)
        if stat is not None and int(stat[3]) == leader.pid and stat[0] not in ("Z", "X"):
            found.append(pid)
    return found


def kill_marked(name: str, value: str, grace_s: float, deadline_s: float, leader: ProcessId | None = None) -> bool:
    """End every process that carries ``NAME=VALUE`` in its environment, and what descends from one.

    TERM first, and after the grace STOP and KILL, again and again until several scans in a row find nothing.
    This process itself is left alone.

    Args:
        name: of the variable.
        value: of the variable, whole.
        grace_s: seconds between TERM and KILL; 0 kills at once.
        deadline_s: seconds after which to give up, the grace included.
        leader: of a session whose processes are ended likewise: one may have cleaned its environment.

    Returns:
        Whether none is left.
    """
    began = time.monotonic()
    asked: set[ProcessId] = set()
    empty = 0
    while empty < _EMPTY_SCANS:
        found = _marked_tree(name, value, leader)
        empty = 0 if found else empty + 1
        now = time.monotonic()
        if found and now - began >= deadline_s:
            return False
        if now - began < grace_s:
            for process in found - asked:
                process.send(signal.SIGTERM)
                process.send(signal.SIGCONT)  # a stopped one takes the TERM only when it goes on
            asked |= found
        else:
            for signum in (signal.SIGSTOP, signal.SIGKILL):
                for process in found:
                    process.send(signum)
        time.sleep(0.02 if now - began < grace_s else 0.003)
    return True


def _marked_tree(name: str, value: str, leader: ProcessId | None) -> set[ProcessId]:
    own = os.getpid()
    pids: set[int] = set()
    for pid in (*marked(name, value), *(session_of(leader) if leader else ())):
        if pid != own and pid not in pids:
            pids.add(pid)
            pids.update(descendants(pid))
    identities = (ProcessId.of(pid) for pid in pids - {own})
    return {process for process in identities if process is not None and process.alive()}


def _kill(pid: int, signum: int) -> bool:
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _stat(pid: int) -> list[str] | None:
    """Fields 3 and on of /proc/PID/stat; the name before them may hold spaces and parentheses."""
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return None
    return fields if len(fields) > 19 else None


@cache
def _tells_children() -> bool:
    """Whether the kernel lists children (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _all_pids() -> Iterable[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _by_parent() -> dict[int, list[int]]:
    table: dict[int, list[int]] = {}
    for pid in _all_pids():
        parent = parent_of(pid)
        if parent is not None:
            table.setdefault(parent, []).append(pid)
    return table
