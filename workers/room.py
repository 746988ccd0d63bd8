"""Whether a worker's disk has room for one more run: without it job after job would fail, none by its own fault."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from foxqueue.units import format_memory

ROOM_BYTES: Final = 16 * 1024 * 1024
ROOM_FILES: Final = 64
AGAIN_S: Final = 30.0  # after a run could not be prepared though room was shown: a quota of the user, say


class Room:
    """Room where runs keep their files.

    Args:
        jobs_dir: that place; it need not be there yet.
    """

    def __init__(self, jobs_dir: Path) -> None:
        self._jobs_dir = jobs_dir
        self._refused = ""
        self._refused_until = 0.0

    def refuse(self, detail: str) -> None:
        """A run has just failed for want of room: claim none for half a minute, whatever the file system says."""
        self._refused = detail
        self._refused_until = time.monotonic() + AGAIN_S

    def lacking(self) -> str:
        """What is lacking, for people; empty when there is room, or it cannot be told."""
        if time.monotonic() < self._refused_until:
            return self._refused
        place = self._jobs_dir
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            found = os.statvfs(place)
        except OSError:
            return ""
        free = found.f_bavail * found.f_frsize
        if found.f_blocks and free < ROOM_BYTES:  # one in memory alone, say, has no size
            return (
                f"the disk of {self._jobs_dir} is full: {format_memory(free // 2**20)} free, a run needs "
                f"{format_memory(ROOM_BYTES // 2**20)}: free some"
            )
        if found.f_files and found.f_favail < ROOM_FILES:  # likewise
            return f"the file system of {self._jobs_dir} takes no more files: {found.f_favail} left, remove some"
        return ""
