"""What the queue can do with a job, judged at its submission from a look that is at most a second old."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foxqueue.broker import Broker
from foxqueue.devices import SeenDevice
from foxqueue.errors import Unsatisfiable
from foxqueue.inspector import Inspector, Seen
from foxqueue.requirement import Requirement
from foxqueue.states import CANCELLED
from foxqueue.units import DEFAULT_PRIORITY
from foxqueue.waiting import gpu_served, never_fits, of_its_kind
from foxqueue.wishes import Wishes

if TYPE_CHECKING:
    from foxqueue.handle import Job
    from foxqueue.submission import Submission

LOOK_KEPT_S = 1.0


@dataclass(frozen=True)
class _Look:
    """The devices and what is paused at one moment, and what was said about needs then."""

    taken: float
    seen: Seen
    warnings: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Judge:
    """Judges jobs for one client."""

    def __init__(self, broker: Broker, inspector: Inspector) -> None:
        self._broker = broker
        self._inspector = inspector
        self._look: _Look | None = None
        self._priorities: tuple[float, dict[str, int]] | None = None

    def warnings(self, wishes: Wishes) -> tuple[str, ...]:
        """Refuse what can never run; say what cannot run now, and when it starts where a moment was named.

        Raises:
            Unsatisfiable: no device registered at this moment can ever meet the need.
        """
        look = self._look
        if look is None or time.monotonic() - look.taken > LOOK_KEPT_S:
            look = self._take()
        known = look.warnings.get(wishes.shape)
        if known is None:
            if never_fits(wishes.need, look.seen.devices):
                look = self._take()  # a device may have come since
                never = never_fits(wishes.need, look.seen.devices)
                if never:
                    raise Unsatisfiable(f"{never}: ask for less, or add such a device")
            said = (*self._paused(wishes.group, look.seen), *_warnings(wishes.need, look.seen.devices))
            known = look.warnings[wishes.shape] = said
        return known if wishes.start is None else (wishes.start.note(time.time() * 1000), *known)

    def _paused(self, group: str | None, seen: Seen) -> Iterator[str]:
        """What is said of the namespace and the group where they are paused."""
        if "*" in seen.paused:
            yield f"the queue is paused by {seen.paused['*']}: the job waits for foxqueue resume"
        if group is not None and (by := self._inspector.paused([group]).get(f"@{group}")):
            yield f"group {group} is paused by {by}: the job waits for foxqueue resume --group {group}"

    def priority(self, wishes: Wishes) -> int:
        """The priority asked for, else the one that the namespace gives to the model type, else medium."""
        if wishes.priority is not None:
            return wishes.priority
        if wishes.model_type is None:
            return DEFAULT_PRIORITY
        known = self._priorities
        if known is None or time.monotonic() - known[0] > LOOK_KEPT_S:
            settings = self._broker.settings()
            table = {name.lower(): priority for name, priority in settings.priorities.items()}
            known = self._priorities = (time.monotonic(), table)
        return known[1].get(wishes.model_type.lower(), DEFAULT_PRIORITY)

    def _take(self) -> _Look:
        look = self._look = _Look(time.monotonic(), self._inspector.seen())
        return look


def _warnings(need: Requirement, devices: list[SeenDevice]) -> tuple[str, ...]:
    of_kind = of_its_kind(need, devices)
    if not devices:
        return ("no device is registered yet: the job waits until workers start (foxqueue up)",)
    if not of_kind and need.gpus == 0:
        return ("no CPU slot is registered: the job waits until there is one (foxqueue up --cpu 2)",)
    if not of_kind:
        return ("only CPU slots are registered: the job waits until a worker with a GPU starts (foxqueue up)",)
    if need.no_gpu_ok and not gpu_served(devices) and any(device.live for device in of_kind):
        return ("no GPU is served now: the job takes a CPU slot",)
    if not any(device.live for device in of_kind):
        return ("no worker is running for a matching device: the job waits until one starts (foxqueue up)",)
    if all(device.state == "paused" for device in of_kind if device.live):
        return ("all devices of its kind are paused: the job waits until one is resumed (foxqueue gpus)",)
    return ()


def never_runs(job: Job, submission: Submission) -> tuple[str, ...]:
    """What is said of a job that has just been accepted and can never run, as a parent ended in the wrong way.

    Args:
        job: it; read once more where it waits for others.
        submission: what it was made of.
    """
    if "after=" not in submission.more or not job.is_new or job.state != CANCELLED:
        return ()
    return (f"job {job.number} can never run and is cancelled ({job.reason}): {job.detail}",)


def sentences(said: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """What a submission has to say, for people.

    Args:
        said: by the judge.
        left_out: names of variables that stay behind.
    """
    found, names = list(said), ", ".join(left_out)
    if names:
        found.append(f"left out of the job's environment: {names} (-e NAME, in Python env=, passes one)")
    return found
