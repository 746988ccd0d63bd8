"""Signals to a whole tree of processes, of which this process is the subreaper.

A group misses what calls setsid, a list of descendants misses what forks while it is made. What ends all is to
stop everything, kill everything, reap, and ask the kernel again until it says that there is no child left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection

from foxqueue.processes import ProcessId, descendants, is_stopped, parent_of

_ROUNDS = 50


def terminate(leader: int | None) -> None:
    """Ask every descendant to end: TERM, then CONT, without which a stopped one would not notice.

    Args:
        leader: leader of a process group that this process has not reaped yet, so that the number still means
            this group; it gets the signal in one step, which no fork can slip through. None: no such group.
    """
    found = descendants(os.getpid())
    rest = [pid for pid in found if leader is None or _group(pid) != leader]
    for signum in (signal.SIGTERM, signal.SIGCONT):
        if leader is not None:
            try:
                os.killpg(leader, signum)
            except (ProcessLookupError, PermissionError):
                rest = found
        for pid in rest:
            signal_member(pid, found, signum)


def pass_on(leader: int, signum: int) -> None:
    """Send a signal as a terminal would: to the group of a child that leads one, else to the child alone.

    Args:
        leader: a child that this process has not reaped yet, so that the number still means it.
        signum: the signal.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if _group(leader) == leader:
            os.killpg(leader, signum)
        else:
            os.kill(leader, signum)


class Terminal:
    """The session of a terminal that this process shares with its caller, and the caller's process group.

    When a shell dies, the kernel wakes and hangs up groups that it leaves behind stopped. It takes ours for one that
    somebody looks after, because the command's parent, this process, is of the session. So we do it.

    Args:
        group: of the caller and the command.
    """

    LOOK_S = 5.0

    def __init__(self, group: int) -> None:
        self._group = group
        self._caller = ProcessId.of(os.getppid())
        self._shell = ProcessId.of(os.getsid(0))

    def look(self) -> None:
        """Hang up a stopped caller whose shell is gone."""
        shell, caller = self._shell, self._caller
        if shell is None or caller is None or shell.alive() or not caller.alive() or not is_stopped(caller.pid):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, signal.SIGHUP)
            os.killpg(self._group, signal.SIGCONT)


def strike(keep: Collection[int] = (), note: Callable[[int], None] = lambda _pid: None) -> int:
    """One round of stopping and killing every descendant.

    Args:
        keep: children to be left alone, with all that descends from them.
        note: called with each, the dead included, before it is killed.

    Returns:
        How many were found, the dead that nobody has reaped yet included.
    """
    seen: set[int] = set()
    for _ in range(_ROUNDS):
        # Never looking below what is kept: two lists, one of all and one of the spared, would differ by what was
        # forked between them, and a busy job of another slot would be hit.
        fresh = set(descendants(os.getpid(), keep)) - seen
        if not fresh:
            break
        seen |= fresh
        for pid in fresh:
            signal_member(pid, seen, signal.SIGSTOP)
    for pid in seen:
        note(pid)
        signal_member(pid, seen, signal.SIGKILL)
    return len(seen)


def kill_orphans(keep: Collection[int], deadline_s: float, note: Callable[[int], None] = lambda _pid: None) -> bool:
    """Kill and reap every descendant of this process outside ``keep``: what a dead runner left to its worker.

    The dead runner must have been reaped: its channel ends a moment before its children become ours.

    Args:
        keep: children to be left alone, with all that descends from them; every child that somebody else in
            this process waits for must be among them.
        deadline_s: seconds after which to give up.
        note: called with each, the dead included, before it is killed; again with what does not die at once.

    Returns:
        Whether none is left.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        found = strike(keep, note)
        for pid in descendants(os.getpid(), keep):
            if parent_of(pid) == os.getpid():
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue
        if not found:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.003)


def signal_member(pid: int, members: Collection[int], signum: int) -> bool:
    """Signal a process if it still belongs to the tree: its parent is a member, or this process.

    The number of a grandchild may have been given to a stranger since it was listed. With the process held by a
    descriptor its parent is looked at, and a stranger's parent is none of ours.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # no pidfd here: the identity narrows the gap
        process = ProcessId.of(pid)
        return process is not None and _belongs(pid, members) and process.send(signum)
    try:
        if not _belongs(pid, members):
            return False
        signal.pidfd_send_signal(descriptor, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def _belongs(pid: int, members: Collection[int]) -> bool:
    parent = parent_of(pid)
    return parent == os.getpid() or parent in members


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1
