"""What `up` and `worker` are asked to serve on this machine."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Final

from foxqueue.config import Config
from foxqueue.gpu import Device
from foxqueue.places import home_id
from foxqueue.siblings import in_slots
from foxqueue.survey import discover

OFF: Final = "off"
ENFORCE: Final = (OFF, "warn", "kill")


@dataclass(frozen=True)
class Offered:
    """The device options of a command line.

    Attributes:
        simulate: simulated GPUs in place of real ones, like ``2x24G``.
        cpu: number of CPU slots.
        slots: into how many slots each GPU is parted; 0 for none.
        enforce: what is done about a run that uses more memory than it declared: one of ENFORCE.
    """

    simulate: str | None = None
    cpu: int = 0
    slots: int = 0
    enforce: str = OFF

    def devices(self, config: Config) -> list[Device]:
        """The devices that workers serve.

        Args:
            config: whose home it is.

        Raises:
            NoDevice, InvalidInput: there is none, or not what was asked for.
        """
        found = discover(self.simulate, self.cpu, home_id(config), socket.gethostname(), os.environ)
        return in_slots(found, self.slots)

    @property
    def flags(self) -> list[str]:
        """The same options for ``python -m workers``."""
        words = [] if self.simulate is None else ["--simulate", self.simulate]
        for flag, number in (("--cpu", self.cpu), ("--slots", self.slots)):
            words += [flag, str(number)] if number else []
        return words + (["--enforce-memory", self.enforce] if self.enforce != OFF else [])
