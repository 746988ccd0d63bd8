"""Looks at a device by a process that claims jobs itself, before each claim."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Final

from foxqueue.admission import FreeMemory
from foxqueue.broker import Broker
from foxqueue.gpu import Device
from foxqueue.messages import NamespaceSettings
from foxqueue.probing import Observation, Probe
from foxqueue.processes import descendants
from foxqueue.settings import DEFAULTS

QUICKLY_S: Final = 0.1  # between the first looks
SETTINGS_S: Final = 15.0
EVERY_S: Final = 2.0  # between those that count afterwards


class Looks:
    """Looks at one device. What this process itself and its children hold of it is no stranger's.

    Args:
        device: which.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._probe: Probe | None = None
        self._free = FreeMemory(int(DEFAULTS["admission_samples"]))
        self._counted_at = 0.0
        self._settings: NamespaceSettings | None = None
        self._settings_until = 0.0

    def refresh(self, broker: Broker) -> NamespaceSettings:
        """The namespace's settings, which say what counts as a stranger; asked for anew now and then.

        Raises:
            ServerError: the server cannot be asked.
        """
        now = time.monotonic()
        if self._settings is None or now >= self._settings_until:
            self._settings, self._settings_until = broker.settings(), now + SETTINGS_S
        return self._settings

    def look(self) -> tuple[Observation, float]:
        """Look now.

        Returns:
            What is seen, with the memory that has been free for some time; and the seconds after which to look again,
            because there have not been enough looks yet: 0 when there have.
        """
        self._probe = self._probe or Probe(self._device)
        if self._device.kind != "nvml":
            return self._probe.look(()), 0.0
        ours = {os.getpid(), *descendants(os.getpid())}
        settings = self._settings
        if settings is None:  # not yet known: the defaults
            seen = self._probe.look(ours)
        else:
            self._free.keep(settings.admission_samples)
            seen = self._probe.look(ours, settings.ignored, settings.occupied_over_mib)
        if seen.state == "unavailable":
            return seen, 0.0
        now = time.monotonic()
        counts = now - self._counted_at >= (EVERY_S if self._free.full else QUICKLY_S)
        if counts or self._free.falls(seen.memory_free_mib):
            self._counted_at = now
            self._free.add(seen.memory_free_mib, None)
        if seen.state == "free" and not self._free.full:
            return seen, QUICKLY_S
        return replace(seen, memory_free_mib=self._free.stable(seen.memory_free_mib)), 0.0

    def close(self) -> None:
        """Stop looking, until the next look."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None
