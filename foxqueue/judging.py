"""What the queue can do with a job, judged at its submission from a look that is at most a second old."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from foxqueue.broker import Broker
from foxqueue.devices import SeenDevice
from foxqueue.errors import Unsatisfiable
from foxqueue.inspector import Inspector
from foxqueue.requirement import Requirement, fits
from foxqueue.units import DEFAULT_PRIORITY
from foxqueue.waiting import never_fits
from foxqueue.wishes import Wishes

LOOK_KEPT_S = 1.0


@dataclass(frozen=True)
class _Look:
    """The devices at one moment, and what was said about needs then."""

    taken: float
    devices: list[SeenDevice]
    warnings: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Judge:
    """Judges jobs for one client."""

    def __init__(self, broker: Broker, inspector: Inspector) -> None:
        self._broker = broker
        self._inspector = inspector
        self._look: _Look | None = None
        self._priorities: tuple[float, dict[str, int]] | None = None

    def warnings(self, wishes: Wishes) -> tuple[str, ...]:
        """Refuse what can never run; say what cannot run now.

        Raises:
            Unsatisfiable: no device registered at this moment can ever meet the need.
        """
        look = self._look
        if look is None or time.monotonic() - look.taken > LOOK_KEPT_S:
            look = self._take()
        known = look.warnings.get(wishes.shape)
        if known is None:
            if never_fits(wishes.need, look.devices):
                look = self._take()  # a device may have come since
                never = never_fits(wishes.need, look.devices)
                if never:
                    raise Unsatisfiable(f"{never}: ask for less, or add such a device")
            known = look.warnings[wishes.shape] = _warnings(wishes.need, look.devices)
        return known

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
        look = self._look = _Look(time.monotonic(), self._inspector.devices())
        return look


def _warnings(need: Requirement, devices: list[SeenDevice]) -> tuple[str, ...]:
    of_kind = [device for device in devices if fits(Requirement(need.gpus), device.kind, None)]
    if not devices:
        return ("no device is registered yet: the job waits until workers start (foxqueue up)",)
    if not of_kind and need.gpus == 0:
        return ("no CPU slot is registered: the job waits until there is one (foxqueue up --cpu 2)",)
    if not of_kind:
        return ("only CPU slots are registered: the job waits until a worker with a GPU starts (foxqueue up)",)
    if not any(device.live for device in of_kind):
        return ("no worker is running for a matching device: the job waits until one starts (foxqueue up)",)
    return ()
