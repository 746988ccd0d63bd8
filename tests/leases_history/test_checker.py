"""The checker lets right histories pass, and catches each planted fault, in histories of any length."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leases_history.checker import faults, holdings, told
from leases_history.history import Book, Event, read


def lease(who: str, device: str, fence: int, since: int, until: int, how: str = "releasing") -> list[Event]:
    """One lease from its question, one tick before its answer, to its end."""
    begin = Event(since, who, "acquired", device, fence, asked=since - 1)
    if how == "killed":
        return [begin, Event(until, who, "killed")]
    return [begin, Event(until, who, how, device, fence)]


def free(*devices: str, at: int = 10_000) -> list[Event]:
    return [Event(at, "judge", "free", device) for device in devices]


def history(*parts: list[Event]) -> list[Event]:
    return sorted((event for part in parts for event in part), key=lambda event: event.at)


GOOD = history(
    lease("a", "d0", 100, 10, 20),
    lease("b", "d0", 110, 20, 40, "killed"),
    lease("c", "d1", 105, 12, 33),
    lease("a", "d0", 140, 45, 50),
    free("d0", "d1"),
)


def test_a_right_history_passes() -> None:
    assert faults(GOOD) == []
    assert told(GOOD) == {"acquired": 4, "releasing": 3, "killed": 1, "free": 2}


def test_holdings_are_read_with_their_bounds() -> None:
    assert [(one.who, one.device, one.fence, one.since, one.until, one.how) for one in holdings(GOOD)] == [
        ("a", "d0", 100, 10, 20, "releasing"),
        ("c", "d1", 105, 12, 33, "releasing"),
        ("b", "d0", 110, 20, 40, "killed"),
        ("a", "d0", 140, 45, 50, "releasing"),
    ]


@pytest.mark.parametrize(
    ("planted", "text"),
    [
        (lease("x", "d0", 150, 47, 48), "two holders at once"),  # within the last one
        (lease("x", "d0", 120, 39, 60), "two holders at once"),  # before the killed one's end
        (lease("x", "d0", 101, 11, 47), "two holders at once"),  # over the whole of another
        (lease("x", "d0", 99, 60, 70), "a fence that does not grow"),
        (lease("x", "d0", 139, 60, 70), "a fence that does not grow"),
        (lease("x", "d0", 140, 60, 70), "a fence that does not grow"),
        (lease("x", "d2", 100, 60, 70) + free("d2"), "one fence of two leases"),
        (lease("x", "d0", 150, 60, 70)[:1], "never ended: x had d0"),
        (lease("x", "d0", 150, 60, 70, "lost"), "lost although its device was locked"),
        (lease("x", "d2", 150, 60, 70), "nobody looked at d2"),
        ([Event(20_000, "judge", "taken", "d1", more="lease key of fence 7")], "not free at the end: d1: lease key"),
        ([Event(20_000, "judge", "taken", "d9", more="granted to x")], "not free at the end: d9"),
        (lease("x", "d0", 150, 30_000, 30_001), "nobody looked at d0 after its last holder"),
    ],
)
def test_a_planted_fault_is_caught(planted: list[Event], text: str) -> None:
    assert any(text in fault for fault in faults(history(GOOD, planted)))


def test_each_fault_names_both_holders_and_their_times() -> None:
    (fault, *_) = [one for one in faults(history(GOOD, lease("x", "d0", 150, 47, 48))) if one.startswith("two")]
    assert "a had d0 with fence 140 from 0.000000 s" in fault and "x had d0 with fence 150" in fault


def test_without_locks_a_loss_counts_from_the_last_time_it_was_seen_to_be_held() -> None:
    """A was cut off, B got the device, A heard of it later: right, unless A had seen it as its own meanwhile."""
    late = lease("a", "d0", 10, 10, 90, "lost")
    other = lease("b", "d0", 20, 50, 60)
    assert faults(history(late, other, free("d0")), locked=False) == []
    seen = [Event(55, "a", "holds", "d0", 10)]
    assert "two holders at once" in faults(history(late, other, seen, free("d0")), locked=False)[0]
    assert len(faults(history(late, other, free("d0")))) == 2  # with locks it is two faults


def test_overlapping_questions_may_be_answered_in_any_order() -> None:
    """The answer of the first was slow to come: only what was asked after another began must have a higher fence."""
    slow = [Event(30, "a", "acquired", "d0", 10, asked=5), Event(31, "a", "lost", "d0", 10)]
    quick = [Event(12, "b", "acquired", "d0", 20, asked=6), Event(13, "b", "releasing", "d0", 20)]
    assert faults(history(slow, quick, free("d0")), locked=False) == []


def test_a_kill_ends_all_of_a_process_and_of_no_other() -> None:
    both = [lease("a", device, 10, 10, 20, "killed")[0] for device in ("d0", "d1")]
    made = holdings(history(both, [Event(20, "a", "killed")], lease("b", "d0", 30, 25, 26)))
    assert [one.how for one in made] == ["killed", "killed", "releasing"]
    assert faults(history(both, [Event(20, "a", "killed")], free("d0", "d1"))) == []  # one lease of two devices


@pytest.mark.parametrize(
    "nonsense",
    [
        [Event(5, "a", "releasing", "d0", 1)],
        [Event(5, "a", "holds", "d0", 1)],
        lease("a", "d0", 1, 5, 9)[:1] + lease("a", "d0", 2, 6, 8),
        [*lease("a", "d0", 1, 5, 9)[:1], Event(6, "a", "releasing", "d0", 2)],
    ],
)
def test_what_no_process_can_have_written_is_refused(nonsense: list[Event]) -> None:
    with pytest.raises(ValueError, match="acquired"):
        holdings(history(nonsense))


# --- random histories: right ones pass, and one change of any of them is caught ---------------------------------


def _right(chance: random.Random) -> list[Event]:
    parts, now, fence = [], {f"d{index}": 100 for index in range(4)}, 1000
    for turn in range(chance.randrange(20, 200)):
        device = chance.choice(list(now))
        since = now[device] + chance.randrange(2, 30)
        now[device] = since + chance.randrange(2, 50)
        fence = max(fence + 1, since * 10)
        parts.append(
            lease(f"p{turn}", device, since * 10_000 + turn, since, now[device], chance.choice(("killed", "releasing")))
        )
    return history(*parts, free(*now, at=10**9))


def _two_holders(chance: random.Random, events: list[Event]) -> list[Event]:
    one = chance.choice([event for event in events if event.what == "acquired"])
    return history(events, lease("planted", one.device, one.fence + 1, one.at + 1, one.at + 2))


def _falling_fence(chance: random.Random, events: list[Event]) -> list[Event]:
    device = chance.choice(sorted({event.device for event in events if event.what == "acquired"}))
    mine = [event for event in events if event.what == "acquired" and event.device == device]
    first, last = mine[0], mine[-1]
    if first is last:
        return history(events, lease("planted", device, last.fence - 1, 10**8, 10**8 + 1))
    changed = first.fence - 5
    return [replace(event, fence=changed) if event.who == last.who and event.fence else event for event in events]


def _left(chance: random.Random, events: list[Event]) -> list[Event]:
    one = chance.choice([event for event in events if event.what in ("releasing", "killed")])
    return [event for event in events if event is not one]


def _taken(chance: random.Random, events: list[Event]) -> list[Event]:
    one = chance.choice([event for event in events if event.what == "free"])
    return [replace(event, what="taken", more="still leased") if event is one else event for event in events]


@pytest.mark.parametrize(
    ("plant", "text"),
    [
        (_two_holders, "two holders at once"),
        (_falling_fence, "a fence that does not grow"),
        (_left, "never ended"),
        (_taken, "not free at the end"),
    ],
)
def test_random_histories(plant: Callable[[random.Random, list[Event]], list[Event]], text: str) -> None:
    for seed in range(100):
        chance = random.Random(seed)
        events = _right(chance)
        assert faults(events) == [], seed
        found = faults(plant(chance, events))
        assert any(text in fault for fault in found), (seed, found)


def test_what_is_written_is_read_back_in_the_order_of_time(tmp_path: Path) -> None:
    books = [Book(tmp_path / name, name) for name in ("a", "b")]
    books[0].note("acquired", "d0", 7, asked=3)
    books[1].note("refused", "d0", more="held by a")
    books[0].note("killed", who="b")
    books[1].note("continued", at=1)
    events = read([tmp_path / "a", tmp_path / "b"])
    assert [(event.who, event.what) for event in events] == [
        ("b", "continued"),
        ("a", "acquired"),
        ("b", "refused"),
        ("b", "killed"),
    ]
    assert (events[1].fence, events[1].asked, events[2].more) == (7, 3, "held by a")
