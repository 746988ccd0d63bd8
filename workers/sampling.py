"""The thread that looks at a device now and then: a driver that hangs costs nobody else any time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container
from typing import Final, NamedTuple

from foxqueue.gpu import Device
from foxqueue.nvml import NvmlFault
from foxqueue.probing import Observation, Probe
from foxqueue.processes import parent_of
from foxqueue.siblings import Siblings
from foxqueue.snapshots import GpuState, snapshot

EVERY_S: Final = 2.0  # a look takes a few ms, so this is far below half a percent of a core
QUICKLY_S: Final = 0.1  # between the first looks, and after one that found a fault
ELSEWHERE: Final = 5  # each so many looks during a run the other GPUs are looked at too
KEPT: Final = 64
_DEPTH: Final = 64


class Tree(Container[int]):
    """Processes that descend from given ones, asked about one at a time: few are on a GPU, many may be in a run.

    Args:
        roots: their numbers; they belong to it.
    """

    def __init__(self, roots: Collection[int] = ()) -> None:
        self._roots = frozenset(roots)

    def __contains__(self, pid: object) -> bool:
        for _ in range(_DEPTH if self._roots else 0):
            if pid in self._roots:
                return True
            if not isinstance(pid, int) or pid <= 1:
                break
            pid = parent_of(pid)
        return False


class Look(NamedTuple):
    """One look.

    Attributes:
        seen: what it saw.
        counts: whether it is long enough after the last one that counted, to say how things are for some time.
        during: whether a run of ours was on the device.
    """

    seen: Observation
    counts: bool
    during: bool


class Sampler(threading.Thread):
    """Looks at one device. Simulated devices and CPU slots need no thread: they never change.

    Args:
        device: what to look at.
        tell: called, in this thread, when a look finds another state of the device than the one before.
        siblings: tells what runs on the other slots of the device; it is no stranger.
    """

    def __init__(self, device: Device, tell: Callable[[], None], siblings: Callable[[], Siblings] = Siblings) -> None:
        super().__init__(name="sampler", daemon=True)
        self.ignore: tuple[str, ...] = ()
        self.over_mib = 256
        self._device = device
        self._probe = Probe(device)
        self._patience_s = self._probe.timeout_s
        self._tell = tell
        self._siblings = siblings
        self._probing = threading.Lock()  # held by the thread that looks
        self._changed = threading.Condition()
        self._looks: deque[Look] = deque(maxlen=KEPT)
        self._root: int | None = None
        self._seen: Observation | None = None
        self._due = 0.0
        self._counted_at = {True: 0.0, False: 0.0}  # during a run, and between runs
        self._quick = 0  # looks that come quickly, one after the other
        self._during = 0
        self._elsewhere: tuple[tuple[int, str], ...] = ()
        self._over = False

    @property
    def is_needed(self) -> bool:
        """Whether the device can change."""
        return self._device.kind == "nvml"

    @property
    def is_hurried(self) -> bool:
        """Whether the first looks are still to come."""
        return self._quick > 0

    def begin(self, first: int) -> None:
        """Start looking, the first so many times quickly."""
        if self.is_needed:
            self._quick = first
            self.start()

    def watch(self, root: int | None) -> None:
        """From now on what descends from this process is no stranger; None when the run is over."""
        with self._changed:
            self._root, self._during, self._elsewhere = root, 0, ()

    def fresh(self, timeout_s: float) -> Observation | None:
        """Look now, in the caller's thread.

        Returns:
            None when the driver does not answer within ``timeout_s`` seconds: that it hangs, only the thread's own look
            says, which has more patience.
        """
        if not self.is_needed:
            return self._probe.look(())
        deadline = time.monotonic() + timeout_s
        if not self._probing.acquire(timeout=timeout_s):
            return None
        try:
            seen = self._take(max(deadline - time.monotonic(), 0.001))
        finally:
            self._probing.release()
        if seen is None:
            with self._changed:
                self._due = 0.0
                self._changed.notify_all()
        return seen

    def looks(self) -> list[Look]:
        """Take the looks since the last call, oldest first."""
        with self._changed:
            found = [*self._looks]
            self._looks.clear()
        return found

    def elsewhere(self) -> tuple[tuple[int, str], ...]:
        """Processes of the run that were last seen on other GPUs: (pid, name of that GPU)."""
        with self._changed:
            return self._elsewhere

    def close(self) -> None:
        """Stop looking."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if not self.is_needed:
            self._probe.close()

    # --- the thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        """The thread."""
        while self._sleep():
            before = self._seen
            with self._probing:
                seen = self._take(self._patience_s)
            if before is not None and seen is not None and (before.state, before.fault) != (seen.state, seen.fault):
                self._tell()
            root = self._root
            if root is not None and self._during % ELSEWHERE == 1:
                self._look_elsewhere(root)
        self._probe.close()

    def _sleep(self) -> bool:
        """Until it is time to look; false when it is over."""
        with self._changed:
            while not self._over and (wait := self._due - time.monotonic()) > 0:
                self._changed.wait(wait)
            return not self._over

    def _take(self, timeout_s: float) -> Observation | None:
        """Look; None when the driver does not answer in less time than counts as hanging."""
        with self._changed:
            root = self._root
        beside = self._siblings()
        ours = Tree([*([] if root is None else [root]), *beside.roots])
        self._probe.timeout_s = timeout_s
        seen = self._probe.look(ours, self.ignore, self.over_mib, beside.declared_mib)
        if seen.fault == "hang" and timeout_s < self._patience_s:
            return None
        now, during = time.monotonic(), root is not None
        with self._changed:
            self._seen = seen
            counts = now - self._counted_at[during] >= (QUICKLY_S if self._quick else EVERY_S) * 0.9
            if counts:
                self._counted_at[during], self._quick = now, max(self._quick - 1, 0)
            self._due = now + (QUICKLY_S if self._quick or seen.fault else EVERY_S)
            self._looks.append(Look(seen, counts, during))
            self._during += counts and during
        return seen

    def _look_elsewhere(self, root: int) -> None:
        try:
            states = snapshot()
        except NvmlFault:
            return  # the look at our own device says what is wrong
        found = elsewhere_of(Tree([root]), self._device, states)
        with self._changed:
            if self._root == root:
                self._elsewhere = found


def elsewhere_of(tree: Container[int], device: Device, states: Collection[GpuState]) -> tuple[tuple[int, str], ...]:
    """Processes of a run on other GPUs than its own: (pid, name of that GPU)."""
    return tuple(
        (process.pid, f"GPU {state.index} ({state.uuid})")
        for state in states
        if state.sample is not None and not _is_part_of(state, device)
        for process in state.sample.processes
        if process.pid in tree
    )


def _is_part_of(state: GpuState, device: Device) -> bool:
    return state.uuid == device.whole or (device.mig is not None and state.index == device.index)
