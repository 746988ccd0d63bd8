"""Reads sorted sets page by page: a question costs what its answer holds, however much stands behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import hiredis

from foxqueue.broker import Broker
from foxqueue.replies import first_page, page_from, scores

BATCH = 100  # jobs read in one round trip

T = TypeVar("T")


class Reader:
    """Commands that change nothing, many in one round trip.

    Args:
        broker: the queue that is asked about.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.keys = broker.keys

    def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands in one round trip. One that meets a key of another type answers None.

        Raises:
            ServerUnavailable, ServerRefused: there is no answer.
        """
        if not commands:
            return []
        with self.broker.connection.errors("read"):
            return [_checked(answer) for answer in self.broker.connection.ask(commands)]

    def members(self, key: str, verb: str, batch: int = BATCH, first: Any = None) -> Iterator[tuple[float, int]]:
        """Score and job of each member of a sorted set, a page a round trip.

        What leaves it meanwhile shifts nothing: pages begin at the last score, and members with that score that were
        told already are passed over.

        Args:
            key: of the set.
            verb: ZRANGE for the lowest scores first, ZREVRANGE for the highest.
            batch: members of a page.
            first: the answer to the first page, where it was asked for already.
        """
        answer = first if first is not None else self.ask([first_page(key, verb, 0, batch)])[0]
        edge, told = 0.0, set[int]()
        while True:
            found = scores(answer)
            for score, number in found:
                if score != edge:
                    edge, told = score, set()
                if number not in told:
                    told.add(number)
                    yield score, number
            if len(found) < batch:
                return
            skipped = len(told) if len(told) >= batch else 0  # more of one score than a page holds
            answer = self.ask([page_from(key, verb, edge, skipped, batch)])[0]

    def numbers(self, key: str, verb: str = "ZRANGE", batch: int = BATCH) -> Iterator[int]:
        """The jobs alone; see :meth:`members`."""
        return (number for _, number in self.members(key, verb, batch))


def chunks(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """The items in lists of that length, the last one shorter."""
    while some := list(islice(items, size)):
        yield some


def _checked(answer: Any) -> Any:
    if isinstance(answer, hiredis.ReplyError) and "WRONGTYPE" in str(answer):
        return None
    if isinstance(answer, Exception):
        raise answer
    return answer
