"""The jobs that a job waits for, and how each must end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from foxqueue.errors import InvalidInput

MAX_PARENTS = 1000
OPTIONS = {"after": "succeeded", "after_any": "any", "after_failed": "failed"}  # and what each asks of a parent

_PART = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", re.ASCII)


class Handle(Protocol):
    """A job as somebody holds it. ``born`` tells it from another that was given its number later."""

    number: int
    born: str


class Parent(NamedTuple):
    """What is asked of a parent, and its enqueue tick, empty where it is not known."""

    condition: str
    born: str


def parents(options: Mapping[str, Any]) -> dict[int, Parent]:
    """The parents that ``after``, ``after_any`` and ``after_failed`` name, by their numbers.

    Raises:
        InvalidInput: one is no job, stands under two conditions, or there are more than MAX_PARENTS.
    """
    found: dict[int, Parent] = {}
    for option, condition in OPTIONS.items():
        for given in _several(options.get(option), option):
            number, born = _name(given, option)
            known = found.get(number, Parent(condition, born))
            if known.condition != condition:
                raise InvalidInput(
                    f"job {number} is named under two conditions, {known.condition} and {condition}: name it once"
                )
            if known.born and born and known.born != born:
                raise InvalidInput(f"two jobs with the number {number} are named, of which one is gone: name one")
            found[number] = Parent(condition, known.born or born)
            if len(found) > MAX_PARENTS:
                raise InvalidInput(
                    f"it would wait for more than {MAX_PARENTS:,} jobs: put a job between, which waits for some of them"
                )
    return found


def _several(given: Any, option: str) -> Iterable[Any]:
    if given is None:
        return ()
    if isinstance(given, int) or hasattr(given, "number"):
        return (given,)
    if isinstance(given, str):
        return _written(given, option)
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput(f"{option} {given!r:.60} names no jobs: give numbers or jobs, like {option}=[41, 42]")
    return given


def _written(text: str, option: str) -> Iterator[int]:
    """The numbers in text like ``1,3-4``, one by one."""
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        first, end = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= end:
            raise InvalidInput(
                f"{option} {part.strip()!r:.60} names no jobs: give numbers and ranges, like {option}='41,43-45', or "
                "the jobs themselves"
            )
        yield from range(first, end + 1)


def _name(given: Any, option: str) -> tuple[int, str]:
    number, born = (given, "") if isinstance(given, int) else (getattr(given, "number", 0), getattr(given, "born", ""))
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number < 10**15:
        raise InvalidInput(f"{option} {given!r:.60} is no job: give a positive whole number, or the job itself")
    if not isinstance(born, str) or not (born.isdigit() or not born):
        raise InvalidInput(f"{option} {given!r:.60} is no job: its born is {born!r:.30}")
    return number, born
