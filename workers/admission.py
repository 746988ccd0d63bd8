"""Whether a device may be given to the next run: its memory is free, has been for some time, and is back. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from foxqueue.admission import FreeMemory, Returning
from foxqueue.gpu import Device
from foxqueue.probing import Observation
from foxqueue.units import format_duration, format_memory


class Standing(NamedTuple):
    """How things stand before a claim.

    Attributes:
        word: ``free``, ``waits`` (for a moment: for looks, or for memory that is coming back), ``dirty`` (it did not
            come back in time) or ``taken`` (the look itself says why).
        text: why, for people.
        seen: the look, with the memory that may be offered to a run.
    """

    word: Literal["free", "waits", "dirty", "taken"]
    text: str
    seen: Observation


class Admission:
    """Judges the looks at one device.

    Args:
        device: which.
        samples: how many looks must show the free memory.
        allowed_s: seconds that the memory of a run may take to come back.
    """

    def __init__(self, device: Device, samples: int, allowed_s: float) -> None:
        self.allowed_s = allowed_s
        self._device = device
        self._changes = device.kind == "nvml"
        self._shared = device.slot is not None  # its siblings' memory comes and goes
        self._free = FreeMemory(samples)
        self._before: int | None = None
        self._returning: Returning | None = None

    def keep(self, samples: int) -> None:
        """From now on so many looks count."""
        self._free.keep(samples)

    @property
    def returning(self) -> bool:
        """Whether memory of the last run is still to come back."""
        return self._returning is not None

    def take(self, seen: Observation, *, counts: bool = True) -> None:
        """A look while no run of ours was there and nobody else had the device.

        Args:
            seen: the look.
            counts: whether it is long enough after the last one; one that shows less memory than those counts too.
        """
        usable = self._returning is None and seen.state != "unavailable"
        if usable and (counts or self._free.falls(seen.memory_free_mib)):
            self._free.add(seen.memory_free_mib, hidden_mib(seen))

    def claimed(self, seen: Observation) -> None:
        """A run is about to begin, after this look."""
        self._before = self._free.before(hidden_mib(seen)) if self._changes else None

    def ended(self, job: int, now: float) -> None:
        """It is over: its memory is to come back."""
        if self._changes and not self._shared and self._before is not None:
            self._returning = Returning(job, self._before, now)
        self._before = None

    def forgive(self) -> None:
        """What the last run left counts no more: somebody else has had the device since, or an operator says so."""
        self._returning = None

    def judge(self, seen: Observation, now: float) -> Standing:
        """Judge a fresh look.

        Args:
            seen: the look.
            now: of time.monotonic().
        """
        if not self._changes:
            return Standing("free", "", seen)
        if seen.state == "unavailable":
            return Standing("taken", seen.detail, seen)
        if self._returning is not None:
            standing = self._judge_returning(self._returning, seen, now)
            if standing is not None:
                return standing
        if seen.state != "free":
            return Standing("taken", seen.detail, seen)
        if not self._shared:
            if not self._free.full:
                return Standing("waits", "it is looked at for the first time", seen)
            seen = replace(seen, memory_free_mib=self._free.stable(seen.memory_free_mib))
        return Standing("free", "", seen)

    def _judge_returning(self, left: Returning, seen: Observation, now: float) -> Standing | None:
        missing = left.missing(hidden_mib(seen))
        if not missing:
            self._returning = None
            return None
        text = f"{format_memory(missing)} of its memory"
        if not left.overdue(now, self.allowed_s):
            return Standing("waits", f"{text} is still coming back since job {left.job} ended", seen)
        who = ", ".join(stranger.shown for stranger in seen.strangers) or "nobody that can be seen from here"
        return Standing(
            "dirty",
            f"{text} did not come back within {format_duration(self.allowed_s)} after job {left.job} ended (in use by "
            f"{who}): end what holds it, or nvidia-smi --gpu-reset -i {self._device.whole}; it is given out again when "
            f"the memory is back, or after foxqueue gpus --clear {self._device.whole}",
            seen,
        )


def hidden_mib(seen: Observation) -> int | None:
    """MiB in use by no process that can be seen; None when that is not told.

    A process that is there accounts for itself: a desktop that grew is not what a run left behind.
    """
    if seen.memory_used_mib is None:
        return None
    visible = [process.mib for process in (*seen.strangers, *seen.ignored) if process.user or process.command]
    known = [mib for mib in visible if mib is not None]
    return max(0, seen.memory_used_mib - sum(known)) if len(known) == len(visible) else None
