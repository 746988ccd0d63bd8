"""The queue as it should be: every script in plain Python, with what only the server knows (times, ticks) learned.

A call is given to the model after the server has answered it, with the answer and an image of all data. The model
says what the answer should have been, and ``wrong`` compares its data with the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from queue_oracles import ROOM, declares, fits
from state_image import Image, named
from state_keepers import Keepers
from state_leases import Leases
from state_places import whole_of
from state_users import Users
from state_workers import Workers

from foxqueue.scripts import Call


class Model(Users, Workers, Keepers, Leases):
    """What each script does. Methods have the names of the scripts and return the answer that is right."""

    def apply(self, call: Call, got: Sequence[str], image: Image, earlier: int) -> list[str]:
        """Do what a call does.

        Args:
            call: which was sent and answered.
            got: the answer: word, instance, rest.
            image: of all data afterwards, from which ticks are learned.
            earlier: a time before it was sent, ms.

        Returns:
            The answer that is right.
        """
        self.got, self.image, self.now, self.earlier = list(got), image, image.now, earlier
        self.before = self.clock
        word, *rest = getattr(self, call.script.name)(named(call))
        self.clock = max(self.clock, int(self.version or 0))  # of several new shapes only the last one's is known
        return [word, self.life, *rest]

    def may_take(self, device: str, shape: str) -> bool:
        """Whether a job of a shape could start on a device now, which it fits."""
        return (
            bool(self.pending.get(shape))
            and self.may_start(shape)
            and not {"*", device} & {*self.paused}
            and self.is_free(device)
            and (not whole_of(device) or declares(shape) <= ROOM - self._declared_mib(whole_of(device)))
            and not self._waits_before(device, min(self.pending[shape].values()))
            and not self._is_kept(device)
        )

    def _is_kept(self, device: str) -> bool:
        """Whether one slot is left to empty for a job that needs more room."""
        return bool(whole_of(device)) and self._declared_mib(whole_of(device)) > 0

    def _waits_before(self, device: str, rank: float) -> bool:
        """Whether somebody in line for a lease of a device ranks before."""
        return min(self.lines.get(device, {}).values(), default=math.inf) < rank

    def first_in_line(self, device: str) -> str:
        """Who would be called for a device; nobody is taken out of the line."""
        line, self.lines[device] = self.lines[device], dict(self.lines[device])
        first = self._first_waiter(device)
        self.lines[device] = line
        return first[0] if first else ""

    def job_ranks_before(self, device: str, token: str) -> bool:
        """Whether a job that fits the device ranks before one in its line."""
        rank = self.lines[device][token]
        return any(fits(device, shape) and self._head(shape) <= rank for shape in self.pending)
