"""A worker's children that belong to no run: runners that stand by or have finished, and orphans that came to it."""

from __future__ import annotations

import os
from collections.abc import Callable

from foxqueue.processes import ProcessId, children
from workers.runs import RunnerHandle, spawn_runner


class Brood:
    """Keeps one runner ready, so that starting a job costs no interpreter's start, and waits for what has ended.

    Args:
        others: tells the pids of children that somebody else in this process waits for, and whether these are all:
            one that is being started has a pid that nobody knows yet.
    """

    def __init__(self, others: Callable[[], tuple[list[int], bool]]) -> None:
        self._others = others
        self._standby: RunnerHandle | None = None
        self._done: list[RunnerHandle] = []

    def prepare(self) -> None:
        """Have a runner stand by."""
        if self._standby is None:
            self._standby = spawn_runner()

    def take(self) -> RunnerHandle:
        """The runner that stood by, or a new one."""
        runner, self._standby = self._standby, None
        if runner is None or runner.gone:
            runner = spawn_runner()
        return runner

    def give(self, runner: RunnerHandle | None) -> None:
        """Take back one whose run is over, to wait for its end."""
        if runner is not None:
            self._done.append(runner)

    def pids(self) -> list[int]:
        """All that are known and belong to no run."""
        return [*self._runners(), *self._others()[0]]

    def _runners(self) -> list[int]:
        return [runner.pid for runner in (*self._done, self._standby) if runner is not None]

    def reap(self) -> None:
        """Wait for runners that have finished, and for orphans that became our children as their subreaper."""
        self._done = [runner for runner in self._done if runner.process.poll() is None]
        found = children(os.getpid())
        # Asked after the list was made: whatever is in it is known by now, or being started.
        others, all_known = self._others()
        if not all_known:
            return
        for pid in set(found) - {*self._runners(), *others}:
            identity = ProcessId.of(pid)
            if identity is not None and not identity.alive():
                os.waitpid(pid, os.WNOHANG)

    def close(self) -> None:
        """Send home the one that stands by."""
        if self._standby is not None:
            self._standby.close()
        self.reap()
