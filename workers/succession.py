"""What a worker tells the queue of its predecessor on the device, before its own first claim."""

from __future__ import annotations

import logging

from foxqueue.broker import Broker
from foxqueue.ending import ending_call
from foxqueue.errors import ServerError
from foxqueue.processes import short_boot_id
from workers.inbox import Inbox
from workers.output import BoundedOutput
from workers.recovery import LeftRun, tail_of
from workers.runs import output_path
from workers.teller import Teller

_log = logging.getLogger(__name__)


class Succession:
    """Tells what a dead worker can tell no more.

    Args:
        broker: of the queue.
        teller: sends until there is a word.
        inbox: of the worker: signals end it.
    """

    def __init__(self, broker: Broker, teller: Teller, inbox: Inbox) -> None:
        self._broker = broker
        self._teller = teller
        self._inbox = inbox

    def tell(self, left: LeftRun) -> bool:
        """How a run ended that it left, its last process gone. False when we are to stop before there is a word."""
        call = ending_call(self._broker, left.number, left.fence, left.verdict, left.outcome, left.retries)
        instance = self._teller.instance()
        if instance is None:
            return False
        if call is None or left.instance != instance:
            return True  # in another life of Redis there is nobody to tell
        word, _ = self._teller.insist(call, tail_of(self._broker, left).pump)
        BoundedOutput(output_path(left.run_dir)).trim(0)
        _log.warning("job %d, left by a dead worker: %s -> %s", left.number, left.verdict.verb, word)
        return word is not None

    def lose_claim_of(self, predecessor: str | None, device: str) -> None:
        """Give back what it claimed and died before it could even write it down.

        Args:
            predecessor: its name, None when there was none.
            device: uuid.
        """
        while predecessor is not None and not self._inbox.stops:
            try:
                left = self._broker.claimed_by(predecessor, device)
                if left is not None:
                    number, fence = left
                    word = self._broker.send(self._broker.lose_call(number, fence, short_boot_id()))[0].word
                    _log.warning("job %d, claimed by a dead worker and not begun: %s", number, word)
                return
            except ServerError as error:
                self._teller.away(error)
