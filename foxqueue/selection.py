"""Which jobs are meant: those with certain numbers, or all of which certain things are true."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice

from foxqueue.broker import Broker
from foxqueue.errors import InvalidInput, JobNotFound
from foxqueue.inspector import Inspector
from foxqueue.job import JobView
from foxqueue.paging import BATCH
from foxqueue.replies import whole
from foxqueue.requirement import in_group
from foxqueue.states import STATES

MAX_NUMBERS = 100_000  # named one by one; filters have no limit
LAST = "last"
HOW = "give numbers like 42 or 3,5-8, or last, or choose by --state, --name, --tag, --group, --mine or --all"

_PART = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", re.ASCII)
_LOOKED_AT = 20_000  # newest jobs among which one of a user's is looked for
_FIRST_LOOK = 10  # of them that are looked at first


@dataclass(frozen=True)
class Selection:
    """Jobs by number, or by filters of which all must hold.

    Attributes:
        numbers: in the order given.
        last: the newest job that this user submitted, too.
        states: words of STATES; empty for all.
        name: pattern with ``*`` and ``?``, matched with case.
        tags: names, each with the value that it must have, None for any.
        group: its name.
        user: who submitted them.
        every: all there are.
    """

    numbers: tuple[range, ...] = ()
    last: bool = False
    states: tuple[str, ...] = ()
    name: str | None = None
    tags: tuple[tuple[str, str | None], ...] = ()
    group: str | None = None
    user: str | None = None
    every: bool = False

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that were given, as they are written on a command line."""
        given = {
            "--state": self.states,
            "--name": self.name is not None,
            "--tag": self.tags,
            "--group": self.group is not None,
            "--mine": self.user is not None,
        }
        return tuple(flag for flag, value in given.items() if value)

    @property
    def named(self) -> bool:
        """Whether it goes by numbers."""
        return bool(self.numbers or self.last)

    def __bool__(self) -> bool:
        return self.named or self.every or bool(self.filters)

    def match(self) -> Callable[[JobView], bool] | None:
        """Whether a job is meant by name, tags and user; None when all are."""
        if self.name is None and not self.tags and self.user is None:
            return None

        def meant(job: JobView) -> bool:
            return (
                (self.name is None or fnmatchcase(job.name or "", self.name))
                and (self.user is None or job.user == self.user)
                and all(name in job.tags and value in (None, job.tags[name]) for name, value in self.tags)
            )

        return meant


def select(
    words: Sequence[str] = (),
    *,
    states: str | Iterable[str] = (),
    name: str | None = None,
    tags: Mapping[str, str | None] | None = None,
    group: str | None = None,
    user: str | None = None,
    every: bool = False,
) -> Selection:
    """Check a choice of jobs.

    Args:
        words: numbers, ranges and ``last``: ``3,5-8``.
        states, name, tags, group, user, every: see :class:`Selection`.

    Raises:
        InvalidInput: a word or filter is malformed, or numbers, filters and ``every`` stand side by side.
    """
    ranges, last = read_numbers(words)
    found = Selection(ranges, last, _states(states), name, _tags(tags), group, user, every)
    for what, given in (("name", name), ("group", group), ("user", user)):
        if given is not None and not isinstance(given, str):
            raise InvalidInput(f"{what} {given!r:.60} is no text")
    if group is not None:
        in_group("", group)
    if found.named and (every or found.filters):
        which = " and ".join(("--all",) if every else found.filters)
        raise InvalidInput(f"numbers and {which} say different things: give the one or the other")
    if every and found.filters:
        raise InvalidInput(f"--all and {' and '.join(found.filters)} say different things: leave --all out")
    return found


def _states(given: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(given, Iterable):
        raise InvalidInput(f"state {given!r:.60} is not one: give {', '.join(STATES)}")
    states = (given,) if isinstance(given, str) else tuple(given)
    for state in states:
        if state not in STATES:
            raise InvalidInput(f"state {state!r:.60} is not one: give {', '.join(STATES)}")
    return states


def _tags(given: Mapping[str, str | None] | None) -> tuple[tuple[str, str | None], ...]:
    pairs = tuple(given.items()) if isinstance(given, Mapping) else () if given is None else None
    if pairs is None or not all(isinstance(name, str) and isinstance(value, str | None) for name, value in pairs):
        raise InvalidInput(f"tags {given!r:.60} are not understood: give names and values, like {{'model': 'dqn'}}")
    return pairs


def read_numbers(words: Iterable[str]) -> tuple[tuple[range, ...], bool]:
    """Read numbers and ranges such as ``3,5-8``, and ``last``.

    Returns:
        The ranges in the order given, and whether ``last`` is among them.

    Raises:
        InvalidInput: a word is malformed, or there are over MAX_NUMBERS.
    """
    found: list[range] = []
    last = False
    for part in (part for word in words for part in word.split(",")):
        if part == LAST:
            last = True
        else:
            found.append(_range(part))
    count = sum(map(len, found))
    if count > MAX_NUMBERS:
        raise InvalidInput(f"{count:,} numbers are too many, at most {MAX_NUMBERS:,}: choose by filters, or --all")
    return tuple(found), last


def _range(text: str) -> range:
    match = _PART.fullmatch(text)
    first, end = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if first < 1:
        raise InvalidInput(
            f"{text!r:.60} is not the number of a job: give positive whole numbers, as foxqueue ls shows them, like "
            "42 or 3,5-8, or last"
        )
    if end < first:
        raise InvalidInput(f"the range {text!r} runs backwards: write {end}-{first}")
    return range(first, end + 1)


def last_of(broker: Broker, inspector: Inspector, user: str) -> int:
    """Number of the newest job that a user submitted.

    Raises:
        JobNotFound: there is none.
    """
    newest = whole(broker.connection.answer(("GET", broker.keys.next), "next") or b"0")
    numbers = islice(range(newest, 0, -1), _LOOKED_AT)
    size = _FIRST_LOOK
    while some := list(islice(numbers, size)):
        for view in inspector.views(some):
            if view is not None and view.user == user:
                return view.number
        size = BATCH
    raise JobNotFound(f"there is no job of {user} among the newest {_LOOKED_AT:,}: give a number")


def find(
    broker: Broker, inspector: Inspector, selection: Selection, states: Collection[str], me: str
) -> Iterator[tuple[int, JobView | None]]:
    """The jobs that are meant, one by one, each once; those of filters in the order of
    :meth:`foxqueue.inspector.Inspector.every`.

    Args:
        broker, inspector: of the namespace.
        selection: which.
        states: those among which filters choose; numbers may be of jobs in any state.
        me: who ``last`` is about.

    Returns:
        Number and job; None where no job has a number that was given.

    Raises:
        JobNotFound: there is no last job.
    """
    if not selection.named:
        wanted = [state for state in selection.states or STATES if state in states]
        if wanted:
            for job in inspector.every(wanted, selection.match(), selection.group):
                yield job.number, job
        return
    seen: set[int] = set()
    ranges = [*selection.numbers, *([_one(last_of(broker, inspector, me))] if selection.last else [])]
    numbers = (number for numbers in ranges for number in numbers)
    while some := list(islice(numbers, BATCH)):
        fresh = [number for number in dict.fromkeys(some) if number not in seen]
        seen.update(fresh)
        yield from zip(fresh, inspector.views(fresh), strict=True)


def _one(number: int) -> range:
    return range(number, number + 1)
