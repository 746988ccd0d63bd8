"""What is worth telling of the memory of a device: strangers that come and go, and too little of it left. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from foxqueue.probing import Observation
from foxqueue.units import format_memory

STEADY: Final = (
    3  # looks in a row: after so many without strangers they are gone, and those that nobody can name are there
)
LOW_SHARE: Final = 0.05  # of the memory; less than this free during a run is told, once a run


class Note(NamedTuple):
    """An event for the trail: its name, and a sentence."""

    name: str
    text: str


class Guests:
    """Strangers on a device that is ours: told when they come and when they are gone.

    Attributes:
        text: who they are, "" when none is there.
    """

    def __init__(self) -> None:
        self.text = ""
        self._looks = 0  # in a row that say otherwise

    def see(self, seen: Observation) -> Note | None:
        """Take a look; a fault says nothing."""
        if seen.state == "unavailable" or not seen.pids_known:
            return None
        here = seen.state == "occupied"
        if here == bool(self.text):
            self._looks = 0
            self.text = seen.detail if here else ""
            return None
        self._looks += 1
        named = any(stranger.user or stranger.command for stranger in seen.strangers)
        if self._looks < STEADY and not (here and named):
            return None  # memory that a process of ours is just giving back looks like a stranger's
        self._looks = 0
        gone, self.text = self.text, seen.detail if here else ""
        return Note("occupied", self.text) if here else Note("vacated", f"gone: {gone}")


class Memory:
    """Whether a run is about to exhaust the memory of its device; told once."""

    def __init__(self) -> None:
        self._told = False

    def see(self, seen: Observation) -> Note | None:
        """Take a look."""
        total, free = seen.memory_total_mib, seen.memory_free_mib
        if self._told or not total or free is None or free >= total * LOW_SHARE:
            return None
        self._told = True
        return Note("low_memory", f"{format_memory(free)} of {format_memory(total)} free")
