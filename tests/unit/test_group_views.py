"""Groups of jobs: the view of one, from good and from bad records."""

from __future__ import annotations

import pytest

from foxqueue.groups import FIELDS, GroupView, group_dict, group_view

HASH = {
    "created_at": b"1796056706600",
    "by": b"ann",
    "filling": None,
    "paused": b"ann: upgrade",
    "max_concurrent": b"4",
    "max_fails": b"3",
    "total": b"20",
    "running": b"4",
    "succeeded": b"5",
    "failed": b"2",
    "cancelled": b"1",
}


def test_the_view_of_a_group_is_read_from_its_hash() -> None:
    assert set(HASH) == set(FIELDS)
    found = group_view("lr", HASH)
    assert found == GroupView("lr", 1796056706600, "ann", False, "ann: upgrade", 4, 3, 20, 4, 5, 2, 1)
    assert found.waiting == 8 and found.full and found.held_back and found.state == "paused"
    shown = group_dict(found, "then")
    assert (shown["created_at"], shown["waiting"], shown["paused"]) == ("then", 8, "ann: upgrade")
    assert (shown["max_concurrent"], shown["max_fails"], shown["state"]) == (4, 3, "paused")


@pytest.mark.parametrize(
    ("group", "state", "held_back"),
    [
        (GroupView("a"), "open", False),
        (GroupView("a", total=3, max_concurrent=2, running=1), "open", False),
        (GroupView("a", total=3, max_concurrent=2, running=2), "open", True),
        (GroupView("a", paused="ann"), "paused", True),
        (GroupView("a", filling=True, paused="ann"), "filling", True),
    ],
)
def test_a_group_is_open_paused_or_filling(group: GroupView, state: str, held_back: bool) -> None:
    assert (group.state, group.held_back) == (state, held_back)
    assert group_dict(group, None)["max_fails"] is None


def test_a_malformed_record_gives_a_view_with_gaps() -> None:
    assert group_view("lr", dict.fromkeys(FIELDS)) is None
    found = group_view("lr", {"total": b"x", "running": b"-3", "created_at": b"\xff", "failed": b"9" * 400})
    assert found == GroupView("lr")
    assert GroupView("lr", total=1, succeeded=5).waiting == 0
