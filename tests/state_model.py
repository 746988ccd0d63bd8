"""The queue as it should be: every script in plain Python, with what only the server knows (times, ticks) learned.

A call is given to the model after the server has answered it, with the answer and an image of all data. The model
says what the answer should have been, and ``wrong`` compares its data with the image.
"""

from __future__ import annotations

from collections.abc import Sequence

from state_image import Image, named
from state_keepers import Keepers
from state_users import Users
from state_workers import Workers

from foxqueue.scripts import Call


class Model(Users, Workers, Keepers):
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
        )
