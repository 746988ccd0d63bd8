"""Which jobs a choice means."""

from __future__ import annotations

from typing import Any

import pytest

from foxqueue.errors import InvalidInput
from foxqueue.job import JobView
from foxqueue.selection import MAX_NUMBERS, read_numbers, select


@pytest.mark.parametrize(
    ("words", "numbers", "last"),
    [
        (["3"], [3], False),
        (["3,5-8"], [3, 5, 6, 7, 8], False),
        (["8-8", "1"], [8, 1], False),
        (["last"], [], True),
        (["4,last", "2"], [4, 2], True),
        ([], [], False),
    ],
)
def test_numbers_and_ranges(words: list[str], numbers: list[int], last: bool) -> None:
    ranges, with_last = read_numbers(words)
    assert ([number for some in ranges for number in some], with_last) == (numbers, last)


@pytest.mark.parametrize(
    "word", ["x", "0", "", "3,", "-1", "1-", "1--2", "1-2-3", "٣", "1.5", "+1", " 1", "9" * 16, "Last"]
)
def test_what_is_no_number_is_named(word: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not the number of a job: .* like 42 or 3,5-8, or last"):
        read_numbers([word])


def test_so_many_numbers_are_chosen_otherwise() -> None:
    assert sum(map(len, read_numbers([f"1-{MAX_NUMBERS}"])[0])) == MAX_NUMBERS
    with pytest.raises(InvalidInput, match="choose by filters"):
        read_numbers([f"1-{MAX_NUMBERS}", "1"])
    with pytest.raises(InvalidInput, match="999,999,999,999,999 numbers"):
        read_numbers(["1-999999999999999"])


@pytest.mark.parametrize(
    ("words", "filters", "text"),
    [
        (["3"], {"name": "x"}, "numbers and --name say different things"),
        (["3"], {"states": ["failed"], "user": "me"}, "--state and --mine"),
        (["last"], {"every": True}, "numbers and --all"),
        ([], {"every": True, "group": "g"}, "--all and --group"),
        ([], {"states": ["done"]}, "'done' is not one: give scheduled, blocked, pending"),
        ([], {"group": "a b"}, "letters, digits"),
    ],
)
def test_contradictions_are_refused(words: list[str], filters: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        select(words, **filters)


def test_filters_must_all_hold() -> None:
    job = JobView(1, "1", "pending", name="lr-1", user="ann", tags={"study": "a", "seed": "3"})
    for matching in (
        {"name": "lr-*"},
        {"user": "ann"},
        {"tags": {"study": None}},
        {"tags": {"study": "a", "seed": "3"}, "name": "*1", "user": "ann"},
    ):
        meant = select(**matching).match()
        assert meant is not None and meant(job)
    for other in (
        {"name": "LR-*"},
        {"user": "bob"},
        {"tags": {"study": "b"}},
        {"tags": {"none": None}},
        {"name": "lr-*", "tags": {"study": "a", "seed": "4"}},
    ):
        meant = select(**other).match()
        assert meant is not None and not meant(job)
    assert select(states=["failed"], group="g").match() is None, "states and groups have sets of their own"


def test_nothing_is_nothing() -> None:
    assert not select()
    assert select(every=True) and select(["1"]) and select(name="") and select(tags={"a": None})
    assert select(["1"]).named and select(["last"]).named and not select(every=True).named
