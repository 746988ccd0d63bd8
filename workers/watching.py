"""What a worker's looks at its device say, while a run is on it and between runs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from foxqueue.gpu import Device
from foxqueue.presence import Presence
from foxqueue.probing import Observation
from workers.admission import Admission
from workers.enforcing import MemoryLimit, used_by
from workers.guests import Guests, Memory, Note
from workers.offered import OFF
from workers.sampling import Look, Sampler, Tree
from workers.sickness import Sickness
from workers.withholding import Withholding

_log = logging.getLogger(__name__)


class Watch:
    """Takes what the sampler saw, and has everybody hear of it whom it concerns. For the main thread.

    Args:
        device: that is looked at.
        presence: tells the queue.
        sampler: looks.
        admission: judges its memory.
        sickness: judges its health.
        withholding: keeps it from being given out.

    Attributes:
        alone: whether nobody else of this machine has the device: only then do looks tell how much memory there is.
    """

    def __init__(
        self,
        device: Device,
        presence: Presence,
        sampler: Sampler,
        admission: Admission,
        sickness: Sickness,
        withholding: Withholding,
    ) -> None:
        self.alone = True
        self._ref = device.ref
        self._presence = presence
        self._sampler = sampler
        self._admission = admission
        self._sickness = sickness
        self._withholding = withholding
        self._guests = Guests()
        self._memory = Memory()
        self._job: int | None = None
        self._limit = MemoryLimit(OFF, None)
        self._run = Tree()
        self._end_over: Callable[[str], None] = lambda _text: None
        self._elsewhere: dict[int, str] = {}

    def begin(self, job: int, runner: int, limit: MemoryLimit, end_over: Callable[[str], None]) -> None:
        """A run is on the device from now on.

        Args:
            job: its number.
            runner: pid of the process from which all of it descends.
            limit: of its memory.
            end_over: ends it when it is over that; called with the figures.
        """
        self._job, self._memory, self._elsewhere = job, Memory(), {}
        self._run, self._limit, self._end_over = Tree([runner]), limit, end_over
        self._sampler.watch(runner)

    def end(self) -> None:
        """It is over."""
        self._sampler.watch(None)
        self.take()
        self._job = None

    def take(self) -> None:
        """Take the looks since the last call."""
        for look in self._sampler.looks():
            self._see(look)
        if self._job is not None:
            for pid, where in self._sampler.elsewhere():
                self._misplaced(pid, where)

    def _see(self, look: Look) -> None:
        seen, job = look.seen, self._job
        finding = self._sickness.see(seen)
        if finding is not None:
            self._withholding.withhold("quarantined", finding.kind, finding.text, job or 0)
        if look.during and job is not None:
            self._tell(self._memory.see(seen))
            self._hold_to_limit(seen)
        elif self.alone and not look.during:
            self._admission.take(seen, counts=look.counts)
        if look.counts and self.alone and look.during == (job is not None) and not self._admission.returning:
            self._tell(self._guests.see(seen))
        if look.during and job is not None:
            self._presence.look(seen)
            self._presence.overlay("leased", self._said(seen))

    def _hold_to_limit(self, seen: Observation) -> None:
        if not self._limit.counts or seen.state == "unavailable":
            return
        found = self._limit.judge(used_by(self._run, seen.ours) if seen.pids_known else None)
        if found is not None and found.word == "over":
            self._tell(Note("over_memory", found.text))
            if self._limit.kills:
                self._end_over(found.text)
        elif found is not None:
            _log.warning("job %s on %s: %s", self._job, self._ref, found.text)

    def _said(self, seen: Observation) -> str:
        """What people should know of a device with a run on it."""
        if seen.state == "unavailable":
            return seen.detail
        return "; ".join(filter(None, (self._guests.text, *self._elsewhere.values())))

    def _tell(self, note: Note | None) -> None:
        if note is not None:
            job = self._job
            where = self._ref if job is None else f"{self._ref} (job {job})"
            _log.warning("%s: %s: %s", where, note.name, note.text)
            self._presence.note(note.name, job, note.text)

    def _misplaced(self, pid: int, where: str) -> None:
        if pid not in self._elsewhere:
            self._elsewhere[pid] = f"pid {pid} of its job is on {where}, which the job was not given"
            self._tell(Note("misplaced", f"{self._elsewhere[pid]}: does it set CUDA_VISIBLE_DEVICES itself?"))
            if self._job is not None:
                self._presence.overlay("leased", self._said(self._presence.seen))
