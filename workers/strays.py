"""Orphans of dead workers and runners: `up`, their subreaper, ends them before the next run can meet them."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from foxqueue.config import Config
from foxqueue.errors import FoxqueueError
from foxqueue.gpu import Device
from foxqueue.processes import ProcessId, become_subreaper, children
from workers.keeper import Keeper, say
from workers.leftovers import named_runner
from workers.tree import kill_orphans

DEADLINE_S = 4.0  # nothing else is looked after meanwhile
_SHOWN = 8


class Strays:
    """Kills what became a child of this process and is nobody's any more; to be made before the first child is.

    Orphans go to the nearest living subreaper: the runner of their run, then its worker, then this process. So
    what arrives here has neither, whatever it did to its environment, session or parents, but for a runner that
    lost its worker: the device's lock names that one before its job starts.

    A process that had children before (``sh -c 'daemon & exec foxqueue up'``) or is the init of a container gets
    strangers' orphans too, and they look the same. There nothing is killed.

    Args:
        config: home and namespace.

    Attributes:
        keeper: starts our own server, which is a child too; None when there is none.
        stuck: those that could not be killed.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.keeper: Keeper | None = None
        self.stuck: set[ProcessId] = set()
        self._ours_alone = _take_orphans()

    def end(self, workers: Collection[int], devices: Sequence[Device], patience_s: float = 0.0) -> bool:
        """Kill strays with all that descends from them, and reap the dead.

        Args:
            workers: children that are workers, dead ones too whose status nobody has taken yet.
            devices: whose locks may name a living runner.
            patience_s: seconds to wait while our own server is being started.

        Returns:
            Whether all was looked at. False while our own server is being started: it cannot be told apart.
        """
        if not set(children(os.getpid())) - set(workers):
            return True
        lock = self.keeper.starting if self.keeper else threading.Lock()
        if not lock.acquire(timeout=patience_s):
            return False
        try:
            self._end({*workers, *self._server()}, devices)
        finally:
            lock.release()
        return True

    def _server(self) -> list[int]:
        process = self.keeper.server.process if self.keeper else None
        return [process.pid] if process else []

    def _end(self, keep: set[int], devices: Sequence[Device]) -> None:
        unknown = set(children(os.getpid())) - keep
        if not unknown:
            return
        runners = self._runners(devices)
        if not self._ours_alone or runners is None:
            _reap(unknown)
            return
        names: dict[ProcessId, str] = {}  # filled while it kills: a runner that dies meanwhile leaves more

        def note(pid: int) -> None:
            process = ProcessId.of(pid)
            if process is not None and process not in names and process.alive():
                names[process] = _name(process)

        # What did not die before is struck again, but no longer waited for.
        gone = kill_orphans(keep | runners, 0.0 if self.stuck else DEADLINE_S, note)
        left = set() if gone else {process for process in names if process.alive()}
        ended = [name for process, name in names.items() if name and process not in left | self.stuck]
        fresh = [names[process] or f"pid {process.pid}" for process in left - self.stuck]
        self.stuck = left
        if ended:
            say(f"ended what a dead worker and its runner had left: {_listed(ended)}")
        if fresh:
            say(f"what a dead worker and its runner left cannot be killed, the kernel holds it: {_listed(fresh)}")

    def _runners(self, devices: Sequence[Device]) -> set[int] | None:
        """The living runners that the locks name, whether their workers live or die just now; None: cannot be read."""
        try:
            named = [named_runner(self._config, device) for device in devices]
        except FoxqueueError:
            return None
        return {process.pid for process in named if process}


def _take_orphans() -> bool:
    """Become the subreaper, if all orphans that come will descend from what this process starts."""
    if os.getpid() == 1 or children(os.getpid()):
        say(
            "warning: this process has children that it did not start (or is a container's init), so processes "
            "that escape from killed jobs are left alone: start foxqueue up on its own, in a container with --init"
        )
        return False
    try:
        become_subreaper()
    except OSError as error:
        say(f"warning: processes that escape from killed jobs are not ended: {error}")
        return False
    return True


def _reap(pids: Iterable[int]) -> None:
    for pid in pids:
        process = ProcessId.of(pid)
        if process is not None and not process.alive():
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _name(process: ProcessId) -> str:
    """For people; empty for a runner that stood by for a dead worker: it would have gone by itself."""
    try:
        proc = Path(f"/proc/{process.pid}")
        if b"\0workers.runner\0" in (proc / "cmdline").read_bytes():
            return ""
        name = (proc / "comm").read_text(errors="replace").strip()
    except OSError:
        return f"pid {process.pid}"
    # Not the command line, which may hold secrets, and nothing that a terminal would obey.
    return f"pid {process.pid} ({''.join(char if char.isprintable() else '?' for char in name)})"


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(sorted(names)[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
