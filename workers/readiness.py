"""Whether a worker may claim for its device now: the device is clean, it is ours, and the disk has room."""

from __future__ import annotations

import logging

from foxqueue.gpu import Device, Probe
from foxqueue.presence import Presence
from workers.holding import Holding
from workers.room import Room

AT_ONCE_S = 0.005  # a device that is clean within this is claimed for in the round trip that ends the last job

_log = logging.getLogger(__name__)


class Readiness:
    """Looks before each claim.

    Args:
        device: that is served.
        presence: told what is seen.
        holding: of the device's locks.
        room: for the files of runs.
    """

    def __init__(self, device: Device, presence: Presence, holding: Holding, room: Room) -> None:
        self._device = device
        self._presence = presence
        self._holding = holding
        self._room = room
        self._probe = Probe(device)
        self._said = ""

    def usable(self) -> bool:
        """Look at the device, and take its file lock."""
        seen = self._presence.look(self._probe.look(ours=()))
        if seen.state != "free":
            self._say(f"{self._device.ref} is {seen.state}: {seen.detail}")
            return False
        lacking = self._room.lacking()
        if lacking:
            self._presence.overlay("unavailable", lacking)
            self._say(f"{self._device.ref} is unavailable: {lacking}")
            return False
        held = self._holding.try_use()
        if held:
            self._presence.overlay("held", held)
            self._say(f"{self._device.ref} is held: {held}")
            return False
        self._say("")
        return True

    def at_once(self) -> bool:
        """Whether the next claim can follow without waiting; the lock is held still."""
        if self._room.lacking():
            return False
        patience, self._probe.timeout_s = self._probe.timeout_s, AT_ONCE_S
        try:
            return self._presence.look(self._probe.look(ours=())).state == "free"
        finally:
            self._probe.timeout_s = patience

    def close(self) -> None:
        """Stop looking."""
        self._probe.close()

    def _say(self, text: str) -> None:
        """Log a state of the device once, not at every poll."""
        if text and text != self._said:
            _log.warning("%s", text)
        self._said = text
